"""A maru-tierd of a test's own beside its marud, with a file tier in a folder of its own."""
import pathlib
import socket
import subprocess
import tempfile
import time

from with_marud import PATIENCE, listens_on

CONFIG = """
[pool]
socket = "%(marud)s"
%(tables)s
[prefetch]
socket = "{folder}/tier.sock"
%(prefetch)s
[[tier]]
name = "disk"
%(tier)s
"""
FILE = """kind = "file"
load_timeout_ms = 60000
[tier.options]
path = "{folder}"
capacity = "64MiB"
region_bytes = "1MiB"
"""


class Tierd:
    """It ends, with its files, when the block that holds it does. {folder} in its configuration is its own. `tables` come
    before those here. `tier`: all of its first tier but the name."""

    def __init__(self, program, marud_socket, tables="", prefetch="", tier=FILE):
        self.program = program
        self._directory = tempfile.TemporaryDirectory(prefix="maru-tier-test-")
        self.folder = pathlib.Path(self._directory.name)
        text = CONFIG % {"marud": marud_socket, "tables": tables, "prefetch": prefetch, "tier": tier}
        self._config = self.folder / "tierd.toml"
        self._config.write_text(text.replace("{folder}", str(self.folder)))
        self.log = self.folder / "tierd.log"
        self.socket = str(self.folder / "tier.sock")
        self.start()

    def start(self):
        """Returns when it listens."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.program, "--config", self._config], stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE
        while not listens_on(self.socket, socket.SOCK_STREAM):
            is_waited_for = self.process.poll() is None and time.monotonic() < until
            assert is_waited_for, "maru-tierd did not start:\n" + self.log.read_text()
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        self._directory.cleanup()
