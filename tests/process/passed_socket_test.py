"""A socket that the service manager passes, as systemd does with marud.socket: a client that connects before marud is there is
served when it is; the socket outlives marud; a socket that clients would not find is refused with what to do.

  passed_socket_test.py MARUD MARUDCTL [PROGRAM]     PROGRAM attaches as a client ($MARU_SOCKET), if given
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

MARUD, MARUDCTL, *CLIENT = sys.argv[1:]
WAIT_S = 120
CONFIG = """
[daemon]
socket = "{folder}/marud.sock"
state_dir = "{folder}/state"
[[pool]]
name = "default"
backend = "memory"
size = "32MiB"
page_bytes = "4KiB"
region_bytes = "1MiB"
lanes = 8
users = ["{user}"]
"""


def listening(path, kind=socket.SOCK_SEQPACKET):
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    path.chmod(0o600)
    made.listen(16)
    return made


class PassedSocket(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="maru-passed-")
        self.addCleanup(self.directory.cleanup)
        self.folder = pathlib.Path(self.directory.name)
        self.path = self.folder / "marud.sock"
        self.config = self.folder / "marud.toml"
        # Others may attach, so a socket of marud's own would be open to everybody.
        self.config.write_text(CONFIG.format(folder=self.folder, user="daemon"))
        self.log = self.folder / "log"

    def start(self, *sockets):
        """marud with these sockets as descriptors from 3 on. The shell's process becomes marud's, so it knows LISTEN_PID."""
        moved = " ".join(f"{3 + i}<&{one.fileno()}" for i, one in enumerate(sockets))
        names = ":".join(["marud.socket"] + [f"other{i}.socket" for i in range(1, len(sockets))])
        environment = {**os.environ, "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names}
        with self.log.open("wb") as log:
            process = subprocess.Popen(["sh", "-c", f'export LISTEN_PID=$$; exec "$0" "$@" {moved}', MARUD, "--config",
                                        self.config], stdout=log, stderr=log, env=environment,
                                       pass_fds=[one.fileno() for one in sockets])
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def ask(self, **more):
        return subprocess.Popen([MARUDCTL, "--socket", self.path, "--json", "status"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, **more)

    def answer(self, asked):
        said = asked.communicate(timeout=WAIT_S)[0]
        self.assertEqual(asked.returncode, 0, said + self.log.read_text())
        self.assertIn('"default"', said)

    def refused(self, *sockets):
        process = self.start(*sockets)
        self.assertEqual(process.wait(WAIT_S), 1, self.log.read_text())
        return self.log.read_text()

    def test_who_connects_before_marud_is_there_is_served(self):
        with listening(self.path) as passed:
            early = self.ask()
            marud = self.start(passed)
            self.answer(early)
            self.assertTrue(self.becomes_true('grep -q "a socket that the service manager passed" "$0"', self.log))
            if CLIENT:
                subprocess.run(CLIENT, check=True, env={**os.environ, "MARU_SOCKET": str(self.path)}, timeout=WAIT_S)
            self.assertEqual(self.end(marud), 0)

    def test_socket_outlives_marud_with_its_mode(self):
        with listening(self.path) as passed:
            before = self.path.stat()
            first = self.start(passed)
            self.answer(self.ask())
            first.send_signal(signal.SIGHUP)  # a socket of marud's own would be opened to everybody now
            self.assertTrue(self.becomes_true('grep -q "was read again" "$0"', self.log))
            self.assertEqual(self.end(first), 0)
            after = self.path.stat()
            self.assertEqual((before.st_ino, before.st_mode), (after.st_ino, after.st_mode))
            between = self.ask()
            self.start(passed)
            self.answer(between)

    def test_nobody_else_takes_a_passed_socket_away(self):
        with listening(self.path) as passed:
            self.start(passed)
            self.answer(self.ask())
            second = subprocess.run([MARUD, "--config", self.config], capture_output=True, text=True, timeout=WAIT_S)
            self.assertEqual(second.returncode, 1)
            self.assertIn("another marud does", second.stderr)
            self.answer(self.ask())

    def test_socket_at_another_path_is_refused(self):
        other = self.folder / "other.sock"
        with listening(other) as passed:
            said = self.refused(passed)
        self.assertIn(f'it is at "{other}", the configuration says socket = "{self.path}"', said)

    def test_socket_of_another_kind_is_refused(self):
        with listening(self.path, socket.SOCK_STREAM) as passed:
            self.assertIn("expected a Unix socket of ListenSequentialPacket=", self.refused(passed))

    def test_two_sockets_are_refused(self):
        with listening(self.path) as passed, listening(self.folder / "other.sock") as more:
            self.assertIn("expected one", self.refused(passed, more))

    def test_what_is_not_a_listening_socket_is_left_alone(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unbound:
            self.start(unbound)
            self.assertTrue(self.becomes_true('"$0" --socket "$1" status >"$2" 2>&1', MARUDCTL, self.path, os.devnull))
            self.answer(self.ask())
            self.assertNotIn("service manager passed", self.log.read_text())

    def becomes_true(self, condition, *arguments):
        """Tries a condition of the shell until it holds."""
        waits = f"tries=0; until {condition}; do tries=$((tries + 1)); [ $tries -lt 600 ] || exit 1; sleep 0.1; done"
        return subprocess.run(["sh", "-c", waits, *arguments], timeout=WAIT_S).returncode == 0


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
