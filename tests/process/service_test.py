"""What marud is to who runs it as a service: priorities for the journal, a status for the service manager, and a check of the
configuration that finds what would keep marud from starting.

  service_test.py MARUD
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
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
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(str(self.folder / "notify"))
        manager.settimeout(WAIT_S)

        def state(name):
            while True:
                for line in manager.recv(1 << 16).decode().split("\n"):
                    if line.startswith(name + "="):
                        return line.partition("=")[2]
        with self.log.open("wb") as log:
            marud = subprocess.Popen([MARUD, "--config", self.config], stdout=log, stderr=log,
                                     env={**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify")})
        try:
            state("READY")
            marud.send_signal(signal.SIGHUP)
            self.assertEqual(state("STATUS"), "the configuration was read again")
            self.write(size="64MiB")
            marud.send_signal(signal.SIGHUP)
            self.assertRegex(state("STATUS"), "default.*32MiB.*64MiB.*waits for a restart")
            self.config.unlink()
            marud.send_signal(signal.SIGHUP)
            self.assertIn("cannot be used", state("STATUS"))
            self.assertIn(f"stays as it is: {self.config}: cannot read the file", self.log.read_text())
        finally:
            marud.terminate()
            self.assertEqual(marud.wait(WAIT_S), 0)

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
        token.chmod(0o604)
        self.refused(http, "anybody can read or change the file")

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
