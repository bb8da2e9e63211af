"""marud and its clients in pid namespaces that end, as in a container that is made anew: the next marud is in another one, in
which the pids that stand in the pool say nothing, and has to know which lanes nobody uses any more.

  pid_namespace_test.py MARUD MARUDCTL BLOCK_CLIENT

Ends with 77 where no pid namespaces can be made: that takes root.
"""
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

WAIT_S = 120
CONFIG = """
[daemon]
socket = "{folder}/marud.sock"
state_dir = "{folder}/state"
[[pool]]
name = "default"
backend = "file"
path = "{folder}/pool"
size = "16MiB"
page_bytes = "4KiB"
region_bytes = "1MiB"
lanes = 8
"""
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Inside:
    """The first process of a pid namespace: does what the test says, line by line."""

    def __init__(self, marud, marudctl, client, folder):
        self.programs = {"marud": marud, "marudctl": marudctl, "client": client}
        self.folder = pathlib.Path(folder)
        self.clients = {}

    def marud(self):
        log = (self.folder / "log").open("ab")
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify = self.folder / "notify"
        notify.unlink(missing_ok=True)
        manager.bind(str(notify))
        manager.settimeout(WAIT_S)
        held = os.dup(1)  # so that Life.end() waits for marud, too: it would make its socket again in a folder that goes
        self.process = subprocess.Popen([self.programs["marud"], "--config", self.folder / "marud.toml"], stdout=log,
                                        stderr=log, env={**os.environ, "NOTIFY_SOCKET": str(notify)}, pass_fds=(held,))
        os.close(held)
        while b"READY=1" not in manager.recv(1 << 16):
            pass
        return "ready"

    def mount_overlay(self):
        """Below the pool, in this namespace alone."""
        upper, path = self.folder / "upper", self.folder / "pools"
        for folder in (upper, path):
            folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", upper]).returncode != 0:
            return False
        for name in ("files", "work"):
            (upper / name).mkdir()
        options = f"lowerdir={path},upperdir={upper}/files,workdir={upper}/work"
        config = self.folder / "marud.toml"
        config.write_text(config.read_text().replace(f"{self.folder}/pool", f"{path}/pool"))
        return subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, path]).returncode == 0

    def end_marud(self):
        self.process.kill()
        return self.process.wait()

    def client(self, name):
        self.clients[name] = subprocess.Popen(
            [self.programs["client"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "MARU_SOCKET": str(self.folder / "marud.sock")})
        return self.tell(name, "exists nothing")

    def tell(self, name, line):
        client = self.clients[name]
        try:
            client.stdin.write(line + "\n")
            client.stdin.flush()
        except BrokenPipeError:
            pass
        return client.stdout.readline().strip()  # empty: it could not attach, and has ended

    def ctl(self, *arguments):
        ran = subprocess.run([self.programs["marudctl"], "--socket", self.folder / "marud.sock", *arguments],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT_S)
        return [ran.returncode, ran.stdout]

    def obey(self):
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            print(json.dumps(getattr(self, what)(*arguments)), flush=True)


class Life:
    """A pid namespace, seen from outside."""

    def __init__(self, folder):
        self.process = subprocess.Popen([*NAMESPACE, sys.executable, __file__, "--inside", *PROGRAMS, folder],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the namespace has ended"
        return json.loads(line)

    def json(self, *arguments):
        code, text = self.ask("ctl", "--json", *arguments)
        assert code == 0, text
        return json.loads(text)

    def wait_until(self, predicate):
        """Asks marud over and over, which paces itself: a command is a process of its own."""
        for _ in range(2000):
            if predicate():
                return True
        return False

    def end(self):
        """All of its processes, at once; returns when they are gone, and their files are closed."""
        if self.process.stdout.closed:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.stdout.read()  # to its end, which comes when no process has the other side any more
        self.process.wait(WAIT_S)
        self.process.stdin.close()
        self.process.stdout.close()


def clear_lock_flags(path):
    """As if the lanes had been given out by a marud before 1.1 of the format, or where locks cannot be had."""
    with open(path, "r+b") as file:
        file.seek(168 + 2 * 16)  # SectionRecord of the lane identities
        offset, size = struct.unpack("<QQ", file.read(16))
        cleared = 0
        for at in range(offset + 512, offset + size, 64):
            file.seek(at)
            state, = struct.unpack("<Q", file.read(8))
            cleared += state >> 8 & 1
            file.seek(at)
            file.write(struct.pack("<Q", state & ~(1 << 8)))
        return cleared


class PidNamespaces(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="maru-pid-namespaces-")
        self.addCleanup(self.directory.cleanup)
        self.folder = pathlib.Path(self.directory.name)
        (self.folder / "marud.toml").write_text(CONFIG.format(folder=self.folder))

    def begin(self):
        life = Life(str(self.folder))
        self.addCleanup(life.end)
        return life

    def serve(self, life):
        self.assertEqual(life.ask("marud"), "ready")

    def live(self, life):
        return life.json("status")["pools"][0]["lanes"]["live"]

    def test_lanes_are_taken_back_in_every_life(self):
        before = None
        for number in range(5):
            life = self.begin()  # while the last one is there, so that this one has another number
            if before:
                before.end()
            self.serve(life)
            for engine in range(3):
                self.assertEqual(life.ask("client", f"engine{engine}"), "0", f"life {number}: no lane is left")
                self.assertEqual(life.ask("tell", f"engine{engine}", f"store {number}-{engine} 1000"), "0")
                self.assertEqual(life.ask("tell", f"engine{engine}", f"hold {number}-{engine}"), "0")
            self.assertTrue(life.wait_until(lambda: self.live(life) == 3), self.live(life))
            self.assertEqual(len(life.json("clients")["clients"]), 3)
            self.assertEqual(len(life.json("pins")["pins"]), 3)
            if number:
                self.assertEqual(life.ask("tell", "engine0", f"retrieve {number - 1}-0"), "0", "what was stored stays")
            before = life

    def test_a_process_of_another_namespace_keeps_its_lane_while_it_lives(self):
        outer = self.begin()
        self.serve(outer)
        outer.ask("client", "engine")
        self.assertEqual(outer.ask("tell", "engine", "store kept 1000"), "0")
        self.assertEqual(outer.ask("tell", "engine", "hold kept"), "0")
        outer.ask("end_marud")
        other = self.begin()
        self.serve(other)
        clients = other.json("clients")["clients"]
        self.assertEqual([(one["state"], one["pins"]) for one in clients], [("frozen", 1)])
        lane = str(clients[0]["lane"])
        code, said = other.ask("ctl", "client", "forget", lane, "--yes")
        self.assertEqual(code, 1, said)
        self.assertIn("found that a process has the pool mapped", said)
        code, said = other.ask("ctl", "client", "fence", lane, "--yes")
        self.assertIn("takes back what it holds as soon as it has ended", said)
        self.assertEqual(len(other.json("pins")["pins"]), 1)
        other.ask("end_marud")
        code, said = other.ask("ctl", "check", "--file", str(self.folder / "pool"))
        self.assertNotIn("a marud serves it", said)  # a client's lock is another one
        self.assertIn("violations in", said)  # what a client has open counts as wrong there
        self.serve(other)
        outer.end()
        self.assertTrue(other.wait_until(lambda: self.live(other) == 0))
        self.assertEqual(other.json("pins")["pins"], [])

    def test_a_file_system_whose_mappings_keep_no_lock_is_found(self):
        life = self.begin()
        if not life.ask("mount_overlay"):
            self.skipTest("no overlay can be mounted here")
        self.serve(life)
        self.assertEqual(life.ask("client", "engine"), "0")
        said, log = "gives lanes out without locks: a mapping of the control region does not keep a lock", self.folder / "log"
        deadline = time.monotonic() + 60
        while said not in log.read_text() and time.monotonic() < deadline:  # a thread of its own writes it
            time.sleep(0.01)
        self.assertIn(said, log.read_text())

    def test_what_cannot_be_proven_is_shown_and_forgotten_when_somebody_says_so(self):
        life = self.begin()
        self.serve(life)
        life.ask("client", "engine")
        self.assertEqual(life.ask("tell", "engine", "store ghost 1000"), "0")
        self.assertEqual(life.ask("tell", "engine", "hold ghost"), "0")
        pid = life.json("clients")["clients"][0]["pid"]
        life.ask("end_marud")
        after = self.begin()
        life.end()
        self.assertEqual(clear_lock_flags(self.folder / "pool"), 1)
        self.serve(after)
        after.ask("client", "living")
        ghosts = [one for one in after.json("clients")["clients"] if one["state"] == "unproven"]
        self.assertEqual([(one["pid"], one["pins"]) for one in ghosts], [(pid, 1)])
        self.assertGreater(ghosts[0]["pid_namespace"], 0)
        self.assertGreater(ghosts[0]["since_ms"], 0)
        self.assertEqual(after.json("status")["pools"][0]["lanes"]["unproven"], 1)
        self.assertEqual([one["state"] for one in after.json("pins")["pins"]], ["unproven"])
        lane = str(ghosts[0]["lane"])
        for arguments, expected in ((("clients",), "unproven: marud cannot know"), (("pins",), "unproven"),
                                    (("client", "fence", lane, "--yes"), f"marudctl client forget {lane}"),
                                    (("clear", "--yes"), "unproven lanes"), (("doctor",), "1 lane is held by a process")):
            self.assertIn(expected, after.ask("ctl", *arguments)[1])
        living = [one for one in after.json("clients")["clients"] if one["state"] == "connected"][0]
        code, said = after.ask("ctl", "client", "forget", str(living["lane"]), "--yes")
        self.assertEqual(code, 1, said)
        self.assertIn("lives: marud knows by itself", said)
        self.assertEqual(after.ask("ctl", "client", "forget", "7", "--yes")[0], 1)
        self.assertEqual(after.ask("ctl", "client", "forget", "nine", "--yes")[0], 2)
        code, said = after.ask("ctl", "client", "forget", lane)
        self.assertEqual(code, 2, said)
        code, said = after.ask("ctl", "client", "forget", lane, "--yes")
        self.assertEqual(code, 0, said)
        self.assertIn(f"lane {lane} of pool \"default\" is taken back: 1 pin", said)
        self.assertTrue(after.wait_until(lambda: self.live(after) == 1))
        self.assertEqual(after.json("pins")["pins"], [])
        self.assertNotIn("1 lane is held", after.ask("ctl", "doctor")[1])


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        Inside(*sys.argv[2:]).obey()
        sys.exit(0)
    PROGRAMS = sys.argv[1:4]
    if subprocess.run([*NAMESPACE, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("no pid namespace can be made here")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
