"""marud as containers have it: under seccomp filters, and in namespaces of its own (docs/containers.md).

  container_test.py --marud PROGRAM --marudctl PROGRAM --client PROGRAM --profile FILE
"""
import argparse
import errno
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import seccomp  # noqa: E402
from observed_marud import PATIENCE, BlockClient, ObservedMarud, wait_for  # noqa: E402

APART = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


class Container(unittest.TestCase):
    def under(self, program, *command):
        return subprocess.run(command, preexec_fn=lambda: seccomp.apply(program), capture_output=True, text=True,
                              timeout=PATIENCE)

    def test_who_denies_io_uring_is_named(self):
        for code in (errno.EPERM, errno.ENOSYS):
            with self.subTest(os.strerror(code)), tempfile.TemporaryDirectory(prefix="maru-container-") as folder:
                program, path = seccomp.without_io_uring(code), f"{folder}/marud.sock"
                ended = self.under(program, arguments.marud, "--memory", "32MiB", "--socket", path, "--state-dir",
                                   f"{folder}/state")
                self.assertEqual(ended.returncode, 1, ended.stderr)
                self.assertIn("create an io_uring (found a seccomp filter of the container or service; expected to be allowed: "
                              "allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile",
                              ended.stderr)
                self.assertIn(os.strerror(code), ended.stderr)
                asked = self.under(program, arguments.marudctl, "--socket", path, "--json", "doctor")
                found = {one["what"]: one for one in json.loads(asked.stdout)["findings"]}["io_uring"]
                self.assertEqual(found["grade"], "wrong", found)
                self.assertIn("a seccomp filter", found["found"])
                self.assertIn("io_uring_setup", found["advice"])
                self.assertIn(os.strerror(code), found["why"])

    def test_the_documented_profile_allows_all_that_marud_does(self):
        program = seccomp.of_profile(arguments.profile)
        if program is None:
            self.skipTest("no C compiler says the numbers of system calls")

        # The search for leaks, where a sanitizer is in, traces the process, which the profile forbids.
        options = os.environ.get("ASAN_OPTIONS", "")
        self.enterContext(mock.patch.dict(os.environ, ASAN_OPTIONS=f"{options}:detect_leaks=0"))
        confined = ObservedMarud(arguments.marud, tcp=True)
        confined.prepare = lambda: seccomp.apply(program)
        with confined as marud:
            self.assertIn("\nSeccomp:\t2", pathlib.Path(f"/proc/{marud.process.pid}/status").read_text())
            self.serves(marud)
            for command in (["status"], ["clients"], ["evict", "1"], ["check"]):
                asked = self.under(program, arguments.marudctl, "--socket", str(marud.socket), *command)
                self.assertEqual(asked.returncode, 0, asked.stderr + asked.stdout)
            self.assertEqual(marud.http_tcp("GET", "/metrics").status, 200)
        self.assertEqual(marud.status, 0, marud.log_text)

    def serves(self, marud, command=(), key="key"):
        with BlockClient(arguments.client, marud, under=command) as client:
            self.assertEqual(client.ask(f"store {key} 4096"), 0)
            self.assertEqual(client.ask(f"retrieve {key}"), 0)

    def test_marud_and_clients_in_one_pid_namespace(self):
        """As in one pod that shares its process namespace."""
        self.need_namespaces()
        within = subprocess.run([*APART, sys.executable, __file__, *sys.argv[1:], "--within"], capture_output=True, text=True,
                                timeout=PATIENCE)
        self.assertEqual(within.returncode, 0, within.stderr)

    def test_clients_in_namespaces_below_maruds(self):
        self.need_namespaces()
        with ObservedMarud(arguments.marud) as marud:
            self.serves(marud, APART)
            folder = shlex.quote(str(marud.socket.parent))
            read_only = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec {arguments.client}"
            self.serves(marud, [*APART, "sh", "-c", read_only], "another")

    def test_a_client_outside_of_maruds_pid_namespace_is_refused(self):
        self.need_namespaces()
        apart = ObservedMarud(arguments.marud, http_waits=False)
        apart.under = APART
        with apart as marud:
            asked = subprocess.run([arguments.client], env=marud.environment, input="", capture_output=True, text=True,
                                   timeout=PATIENCE)
            self.assertNotEqual(asked.returncode, 0, asked.stdout)
            wait_for(lambda: "outside marud's pid namespace" in marud.log.read_text(), "the reason in the log")
            first = pathlib.Path(f"/proc/{marud.process.pid}/task/{marud.process.pid}/children").read_text().split()[0]
            os.kill(int(first), signal.SIGTERM)  # unshare itself waits for it, whatever it is told
            self.assertEqual(marud.process.wait(PATIENCE), 0)

    def need_namespaces(self):
        try:
            tried = subprocess.run([*APART, "true"], capture_output=True, text=True)
        except FileNotFoundError:
            self.skipTest("unshare is not here")
        if tried.returncode != 0:
            self.skipTest(f"namespaces cannot be made here: {tried.stderr}")


def serve_within():
    with ObservedMarud(arguments.marud) as marud, BlockClient(arguments.client, marud) as client:
        return 0 if client.ask("store key 4096") == 0 and client.ask("retrieve key") == 0 else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("marud", "marudctl", "client", "profile"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--within", action="store_true")
    arguments = parser.parse_args()
    if arguments.within:
        sys.exit(serve_within())
    if why := seccomp.why_no_filter():
        print(why)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
