"""What marud is to who runs it: priorities for the journal, a status for the service manager, a check of the configuration that
finds what would keep marud from starting, a folder that clients can pass, and state that is never taken for none.

  service_test.py MARUD
"""
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

MARUD = sys.argv[1]
WAIT_S = 120
CONFIG = """
[daemon]
socket = "{folder}/marud.sock"
state_dir = "{folder}/state"
[[pool]]
name = "default"
backend = "memory"
size = "{size}"
page_bytes = "4KiB"
region_bytes = "1MiB"
lanes = 8
"""
FILE_POOL = """
[[pool]]
name = "{name}"
backend = "file"
path = "{path}"
size = "32MiB"
"""


class Service(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="maru-service-")
        self.addCleanup(self.directory.cleanup)
        self.folder = pathlib.Path(self.directory.name)
        self.config = self.folder / "marud.toml"
        self.log = self.folder / "log"

    def write(self, more="", size="32MiB"):
        self.config.write_text(CONFIG.format(folder=self.folder, size=size) + more)

    def run_marud(self, *options, journal=False):
        """What a marud that does not serve says, and its status."""
        with self.log.open("wb") as log:
            environment = dict(os.environ)
            if journal:
                status = os.fstat(log.fileno())
                environment["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
            ended = subprocess.run([MARUD, "--config", self.config, *options], stdout=log, stderr=log, env=environment,
                                   timeout=WAIT_S)
        return ended.returncode, self.log.read_text()

    def serve(self):
        """A marud that is ready, and what it tells a service manager."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        notify = self.folder / "notify"
        notify.unlink(missing_ok=True)
        manager.bind(str(notify))
        manager.settimeout(WAIT_S)
        with self.log.open("wb") as log:
            marud = subprocess.Popen([MARUD, "--config", self.config], stdout=log, stderr=log,
                                     env={**os.environ, "NOTIFY_SOCKET": str(notify)})
        self.addCleanup(self.end, marud)
        self.told(manager, "READY")
        return marud, manager

    def end(self, marud):
        marud.terminate()
        self.assertEqual(marud.wait(WAIT_S), 0)

    def told(self, manager, name):
        while True:
            for line in manager.recv(1 << 16).decode().split("\n"):
                if line.startswith(name + "="):
                    return line.partition("=")[2]

    def logs(self, text):
        """Waits for a line: marud's log has a thread of its own."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertIn(text, self.log.read_text())

    def reload(self, marud, manager):
        marud.send_signal(signal.SIGHUP)
        self.assertEqual(self.told(manager, "STATUS"), "the configuration was read again")

    # -- the journal ---------------------------------------------------------------------------------------------------

    def test_lines_for_the_journal_have_their_priority(self):
        self.write()
        code, said = self.run_marud("--format", "default", journal=True)
        self.assertEqual(code, 1)
        self.assertTrue(said.startswith("<3>error: marud stops: "), said)
        self.write("nonsense = 1\n")
        code, said = self.run_marud(journal=True)
        self.assertEqual(code, 1)
        self.assertTrue(said.startswith(f"<3>{self.config}:"), said)

    def test_lines_for_others_have_none(self):
        self.write()
        self.assertNotIn("<3>", self.run_marud("--format", "default")[1])

    # -- the status ----------------------------------------------------------------------------------------------------

    def test_status_says_what_a_reload_did(self):
        self.write()
        marud, manager = self.serve()
        marud.send_signal(signal.SIGHUP)
        self.assertEqual(self.told(manager, "STATUS"), "the configuration was read again")
        self.write(size="64MiB")
        marud.send_signal(signal.SIGHUP)
        self.assertRegex(self.told(manager, "STATUS"), "default.*32MiB.*64MiB.*waits for a restart")
        self.config.unlink()
        marud.send_signal(signal.SIGHUP)
        self.assertIn("cannot be used", self.told(manager, "STATUS"))
        self.logs(f"stays as it is: {self.config}: cannot read the file")

    def test_status_says_which_tables_came_and_went(self):
        wish = '[[provision]]\nname = "kv"\nkind = "namespace"\nsize = "{size}"\n'
        other = FILE_POOL.format(name="other", path=self.folder / "other")
        self.write(other + "[http]\n" + wish.format(size="1GiB"))
        marud, manager = self.serve()
        self.reload(marud, manager)
        self.write(wish.format(size="2GiB"))
        marud.send_signal(signal.SIGHUP)
        said = self.told(manager, "STATUS")
        for expected in ("http: the table is not there now: HTTP is answered no more after a restart",
                         "provision kv: is another one now", 'pool "other" is not in the configuration and goes on'):
            self.assertIn(expected, said)
            self.logs(expected)
        self.write(other + "[http]\n" + wish.format(size="1GiB").replace("kv", "new"))
        marud.send_signal(signal.SIGHUP)
        said = self.told(manager, "STATUS")
        self.assertRegex(said, "provision kv: is not there now.*; provision new: is new now")
        self.assertNotIn("http", said)

    def test_status_says_that_http_is_new(self):
        self.write()
        marud, manager = self.serve()
        self.write("[http]\n")
        marud.send_signal(signal.SIGHUP)
        self.assertIn("http: the table is new now: HTTP is answered after a restart", self.told(manager, "STATUS"))

    # -- the folder of the socket --------------------------------------------------------------------------------------

    def test_folder_that_marud_makes_is_as_open_as_the_socket(self):
        folder = self.folder / "made/run"
        modes = lambda: [f"{path.stat().st_mode & 0o777:o}" for path in (folder.parent, folder, folder / "marud.sock")]
        config = CONFIG.format(folder=folder, size="32MiB")
        self.config.write_text(config + 'users = ["daemon"]\n')
        marud, manager = self.serve()
        self.assertEqual(modes(), ["755", "755", "666"])
        self.config.write_text(config)
        self.reload(marud, manager)
        self.assertEqual(modes()[1:], ["700", "600"])
        self.config.write_text(config + 'users = ["daemon"]\n')
        self.reload(marud, manager)
        self.assertEqual(modes()[1:], ["755", "666"])

    def test_folder_that_was_there_stays_and_the_log_says_whom_it_bars(self):
        folder = self.folder / "run"
        folder.mkdir(mode=0o700)
        config = CONFIG.format(folder=folder, size="32MiB")
        self.config.write_text(config)
        marud, manager = self.serve()
        self.assertNotIn("cannot reach", self.log.read_text())
        self.config.write_text(config + 'users = ["daemon"]\n')
        self.reload(marud, manager)
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        self.logs(f"{folder} lets others than its owner and group not pass")

    # -- what was remembered -------------------------------------------------------------------------------------------

    def test_what_cannot_be_read_is_not_overwritten(self):
        for kind in ("tenants", "state"):
            there = self.folder / f"state/pool-default.{kind}"
            there.mkdir(mode=0o700, parents=True)  # stands for a file that cannot be read just now
            self.write()
            code, said = self.run_marud()
            self.assertEqual(code, 1, said)
            self.assertIn(f"read {there}: Is a directory", said)
            there.rmdir()

    @unittest.skipUnless(os.geteuid() == 0, "only root can take what is another user's")
    def test_root_leaves_nothing_in_the_state_of_another_user(self):
        self.write()
        (self.folder / "state").mkdir(mode=0o700)
        os.chown(self.folder / "state", 1, 1)
        before = sorted(self.folder.rglob("*"))
        for options in ((), ("--format", "dax")):
            self.write('[[pool]]\nname = "dax"\nbackend = "dax"\ndevice = "/dev/dax77.0"\n' if options else "")
            code, said = self.run_marud(*options)
            self.assertEqual(code, 1, said)
            self.assertRegex(said, "use the state directory .*/state as root: it is user daemon's.*runuser -u daemon -- marud")
        self.assertEqual(sorted(path for path in self.folder.rglob("*") if path != self.log), before)

    # -- the command line ----------------------------------------------------------------------------------------------

    def test_a_word_that_is_no_option_is_told_of_once(self):
        for words, expected in ((["-memory", "1GiB"], '"-memory", expected "--memory"; see --help'),
                                (["-mem", "--foreground"], '"-mem", expected an option with its value'),
                                (["-x", "-y"], '"-x", expected an option with its value')):
            ended = subprocess.run([MARUD, *words], capture_output=True, text=True, timeout=WAIT_S)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(f"marud: found {expected}", ended.stderr)
            self.assertEqual(ended.stderr.count(f'"{words[0]}"'), 1, ended.stderr)

    def test_an_option_without_its_value_is_all_that_is_told_of(self):
        for words, expected in ((["--memory"], '"--memory" without a value, expected "--memory SIZE"'),
                                (["--file", "/a", "--size"], '"--size" without a value, expected "--size SIZE"'),
                                (["--config"], '"--config" without a value, expected "--config FILE"'),
                                (["--memory", "1GiB", "--policy-option"],
                                 '"--policy-option" without a value, expected "--policy-option NAME=VALUE"')):
            ended = subprocess.run([MARUD, *words], capture_output=True, text=True, timeout=WAIT_S)
            self.assertEqual(ended.returncode, 2)
            self.assertEqual(ended.stderr, f"marud: found {expected}; see --help\n")

    def test_a_limit_of_locked_memory_is_named_with_what_to_do(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))

        with tempfile.TemporaryDirectory(prefix="maru-test-") as folder:
            who = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
            if who:
                os.chown(folder, 65534, 65534)
                if subprocess.run(["test", "-x", MARUD], **who).returncode != 0:
                    self.skipTest("nobody else may run the marud that is tested")
            ended = subprocess.run([MARUD, "--memory", "32MiB", "--socket", folder + "/marud.sock"], capture_output=True,
                                   text=True, timeout=WAIT_S, preexec_fn=limit, **who)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn("create an io_uring: found a limit of 64 KiB for all locked memory of this user (RLIMIT_MEMLOCK)",
                          ended.stderr)
            self.assertIn("LimitMEMLOCK=", ended.stderr)

    # -- what cannot be opened -----------------------------------------------------------------------------------------

    def test_what_stops_marud_is_not_said_to_be_gone_on_without(self):
        pool = '[[pool]]\nname = "{name}"\nbackend = "dax"\ndevice = "/dev/dax77.{unit}"\n'
        head = CONFIG.format(folder=self.folder, size="32MiB").partition("[[pool]]")[0]
        self.config.write_text(head + pool.format(name="one", unit=0))
        code, said = self.run_marud()
        self.assertEqual(code, 1, said)
        self.assertNotIn("goes on", said)
        self.assertEqual(said.count("/dev/dax77.0"), 1, said)
        self.config.write_text(head + pool.format(name="one", unit=0) + pool.format(name="two", unit=1))
        code, said = self.run_marud()
        self.assertEqual(code, 1, said)
        self.assertNotIn("goes on", said)
        self.assertRegex(said, '(?s)pool "one" cannot be opened.*pool "two" cannot be opened.*marud stops')

    # -- the check -----------------------------------------------------------------------------------------------------

    def refused(self, more, expected):
        self.write(more)
        code, said = self.run_marud("--check-config")
        self.assertEqual(code, 1, said)
        self.assertIn(expected, said)

    def test_a_token_that_cannot_be_used_is_found(self):
        token = self.folder / "token"
        http = f'[http]\nlisten = "127.0.0.1:0"\ntoken_file = "{token}"\n'
        self.refused(http, "14: http.token_file: cannot read the token in ")
        token.write_text("short\n")
        token.chmod(0o600)
        self.refused(http, "found 5 characters, expected 16")
        token.write_text("long enough for a token\n".replace(" ", "-"))
        self.write(http)
        self.assertEqual(self.run_marud("--check-config"), (0, "OK\n"))
        read_token = self.folder / "read-token"
        both = http + f'read_token_file = "{read_token}"\n'
        self.refused(both, "15: http.read_token_file: cannot read the token in ")
        read_token.write_text(token.read_text())
        read_token.chmod(0o600)
        self.refused(both, f"15: http.read_token_file: cannot use the token in {read_token} to look alone (it is the one in ")
        read_token.write_text("another-one-for-those-who-look\n")
        for good in (both, http.replace("token_file", "read_token_file")):
            self.write(good)
            self.assertEqual(self.run_marud("--check-config"), (0, "OK\n"))
        token.chmod(0o604)
        self.refused(http, "anybody can read or change the file")
        read_token.chmod(0o604)
        self.write(both)
        code, said = self.run_marud("--check-config")
        self.assertEqual((code, said.count("anybody can read or change the file")), (1, 2), said)

    def test_a_node_that_is_not_there_is_found(self):
        if not os.path.exists("/sys/devices/system/node/node0"):
            self.skipTest("this kernel has no NUMA nodes")
        self.refused("numa_node = 1000\n", '12: pool "default": found no memory on node 1000, expected one of the ')
        comes = '[[provision]]\nname = "ram"\nkind = "device"\nregion = "any"\nsize = "1GiB"\nmode = "system-ram"\n'
        self.write("numa_node = 1000\n" + comes)
        self.assertEqual(self.run_marud("--check-config"), (0, "OK\n"))

    def test_a_limit_that_leaves_no_memory_is_found(self):
        limit = '[[limit]]\nuser = 7\nbytes = "{}"\n[[limit]]\ngroup = 8\nbytes = "{}"\n[limits]\nbytes = {}\n'
        self.write(limit.format("1023KiB", "4KiB", 1))
        code, said = self.run_marud("--check-config")
        self.assertEqual((code, said.count("expected at least 1 MiB, one region of pool ")), (1, 3), said)
        self.assertEqual(len(set(re.findall(r"(?m)(\d+): limits?\.bytes: found ", said))), 3, said)
        small = '[[pool]]\nname = "small"\nbackend = "memory"\nsize = "8MiB"\nregion_bytes = "4KiB"\npage_bytes = "4KiB"\n'
        for good in (limit.format("1MiB", "2MiB", 0), limit.format("4KiB", "4KiB", 0) + small,
                     limit.format("1KiB", "1KiB", 0) + FILE_POOL.format(name="a", path="/dev/shm/maru-not-there")):
            self.write(good)
            self.assertEqual(self.run_marud("--check-config"), (0, "OK\n"))

    def test_more_memory_than_the_machine_has_is_found(self):
        huge = '[[pool]]\nname = "huge"\nbackend = "memory"\nsize = "{}"\n{}'
        for more in ("first_touch = true\n", 'huge_pages = "require"\n'):
            self.refused(huge.format("64TiB", more), 'pool "huge": size: found 64 TiB, with which pools of first_touch or of')
        self.refused(huge.format("64TiB", "first_touch = true\n"), "of memory that this machine has")
        for good in (huge.format("64TiB", ""), huge.format("64MiB", "first_touch = true\n")):
            self.write(good)
            self.assertEqual(self.run_marud("--check-config"), (0, "OK\n"))
        with open("/proc/meminfo") as lines:
            half = int(next(line for line in lines if line.startswith("MemTotal:")).split()[1]) * 3 // 4
        both = huge.format(f"{half}KiB", "first_touch = true\n")
        self.write(both)
        self.assertEqual(self.run_marud("--check-config"), (0, "OK\n"))
        self.refused(both + both.replace('"huge"', '"second"'), 'pool "second": size: ')

    def test_one_socket_for_clients_and_http_is_found(self):
        self.refused(f'[http]\nsocket = "{self.folder}/./marud.sock"\n', "13: http.socket: found ")
        self.write("[http]\n")
        code, said = self.run_marud("--check-config", "--socket", self.folder / "http.sock")
        self.assertEqual(code, 1, said)
        self.assertIn("which is daemon.socket, expected a socket of its own", said)

    def test_one_file_under_two_spellings_is_found(self):
        pools = FILE_POOL.format(name="a", path="/dev/shm/maru-a") + FILE_POOL.format(name="b", path="/dev//shm/./maru-a")
        self.refused(pools, '"/dev//shm/./maru-a" a second time, expected a file of its own')
        one = FILE_POOL.format(name="a", path="/dev/shm/maru-a") + 'control_path = "/dev/shm/../shm/maru-a"\n'
        self.refused(one, "another file than path")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
