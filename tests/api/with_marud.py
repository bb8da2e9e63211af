"""Runs a program against a marud of its own on a small memory pool: with_marud.py MARUD PROGRAM [ARGUMENT...]."""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE = 120  # seconds, for a marud that begins or ends; the machine may be slow
CONFIG = """
[daemon]
socket = "{directory}/marud.sock"
state_dir = "{directory}/state"
{daemon}

[[pool]]
name = "default"
backend = "memory"
size = "{size}"
page_bytes = "{page_bytes}"
region_bytes = "{region_bytes}"
lanes = 16
pins = {pins}
{more}
"""


def listens_on(path, kind):
    """Whether somebody listens on this socket, which is there a moment before that."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Marud:
    """A marud that ends, with its files, when the block that holds it does."""

    def __init__(self, program, size="32MiB", page_bytes="4KiB", region_bytes="1MiB", pins=4096, more="", daemon=""):
        self.program = program
        self.arguments = []  # beside the configuration
        self.writes_to = None  # a path or a descriptor, in place of the log
        self.under = []  # the program that starts marud, and its arguments
        self.prepare = None  # done by marud's process before it is marud
        self.shape = dict(size=size, page_bytes=page_bytes, region_bytes=region_bytes, pins=pins, more=more,
                          daemon=daemon)

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="maru-test-")
        folder = pathlib.Path(self.directory.name)
        self.socket = folder / "marud.sock"
        config = folder / "marud.toml"
        config.write_text(CONFIG.format(directory=folder, **self.shape))
        self.config = config
        self.log = folder / "marud.log"
        self.begin()
        self.environment = {**os.environ, "MARU_SOCKET": str(self.socket)}
        return self

    def begin(self):
        """Starts marud, and waits until it listens."""
        self.log.touch()
        with open(self.log if self.writes_to is None else self.writes_to, "ab", buffering=0) as log:
            # What is preloaded is for this interpreter: marud, not built for an address sanitizer, does not end under one.
            environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            self.process = subprocess.Popen([*self.under, self.program, "--config", self.config, *self.arguments], stdout=log,
                                            stderr=log, env=environment, preexec_fn=self.prepare)
        deadline = time.monotonic() + PATIENCE
        while not listens_on(self.socket, socket.SOCK_SEQPACKET):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise SystemExit("marud did not start:\n" + self.log_text)
            time.sleep(0.01)

    def damage(self, payload):
        """Changes a bit in the middle of the first block that has these bytes."""
        self.flip(payload, ":pages")

    def flip(self, found, part):
        """Changes a bit in the middle of these bytes where they are found first: in the memory "default:pages" or "default"."""
        with self.memory(part) as bytes_of_it:
            middle = len(found) // 2
            bytes_of_it.seek(bytes_of_it.read().index(found) + middle)
            bytes_of_it.write(bytes([found[middle] ^ 1]))

    def peek(self, part, offset, count):
        with self.memory(part) as bytes_of_it:
            bytes_of_it.seek(offset)
            return bytes_of_it.read(count)

    def memory(self, part):
        folder = pathlib.Path(f"/proc/{self.process.pid}/fd")
        link = next(link for link in folder.iterdir() if os.readlink(link).removesuffix(" (deleted)").endswith(part))
        return open(link, "r+b", buffering=0)

    def __exit__(self, *_):
        self.end()

    def end(self):
        ends = True
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                ends = False
                self.process.kill()
        self.status = self.process.wait()
        self.log_text = self.log.read_text(errors="replace")
        self.directory.cleanup()
        assert ends, f"marud did not end in {PATIENCE} s when it was told to"


def main():
    with Marud(sys.argv[1]) as marud:
        outcome = subprocess.run(sys.argv[2:], env=marud.environment, timeout=PATIENCE).returncode
    if outcome != 0 or marud.status != 0:
        print(marud.log_text, file=sys.stderr)
    if marud.status != 0:
        print(f"marud ended with status {marud.status}", file=sys.stderr)
    return outcome or marud.status


if __name__ == "__main__":
    sys.exit(main())
