"""A maru-tierd of a test's own, with a file tier beside its marud. MARU_TEST_TIERD names the program."""
import json
import os
import pathlib
import signal
import socket
import struct
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "api"))
import with_tierd  # noqa: E402
from with_marud import PATIENCE  # noqa: E402

SLOW = """kind = "fault"
[tier.options]
inner = "file"
inner_path = "{folder}"
inner_capacity = "64MiB"
inner_region_bytes = "1MiB"
"""
_MAGIC, _LIST, _DRAIN = 0x3150464d, 2, 4  # of libmaru/prefetch/message.h


class Tierd(with_tierd.Tierd):
    def __init__(self, marud_socket, policy="all", faults=None):
        """faults: lines of the fault tier's options, around the file tier."""
        program = os.environ.get("MARU_TEST_TIERD")
        if not program:
            pytest.skip("MARU_TEST_TIERD names no maru-tierd")
        super().__init__(program, marud_socket, tables=f'[store]\npolicy = "{policy}"', prefetch="held_percent = 50",
                         tier=SLOW + faults if faults else with_tierd.FILE)

    def suspend(self):
        """Returns when all of its threads stand still."""
        os.kill(self.process.pid, signal.SIGSTOP)
        until = time.monotonic() + PATIENCE
        while any(stat.read_text().rsplit(")", 1)[1].split()[0] != "T"
                  for stat in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")):
            assert time.monotonic() < until
            time.sleep(0.001)

    def resume(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def ask(self, kind):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(PATIENCE)
            asked.connect(self.socket)
            asked.sendall(struct.pack("<IIiI", _MAGIC, kind, 0, 0))
            answer = b""
            while len(answer) < 16 or len(answer) < 16 + struct.unpack_from("<I", answer, 12)[0]:
                more = asked.recv(65536)
                assert more, "maru-tierd breaks off"
                answer += more
        return json.loads(answer[16:])

    def entries(self):
        return self.ask(_LIST)["tiers"][0]["entries"]

    def wait_for_entries(self, entries):
        """Until so many are written: the feed tells of them some milliseconds late."""
        until = time.monotonic() + PATIENCE
        while self.entries() < entries:
            assert time.monotonic() < until, f"{self.entries()} of {entries} entries are written"
            time.sleep(0.01)


def fill(marud_socket, nbytes):
    """Stores as many bytes that nobody asks for again."""
    import maru
    payload = bytes(60_000)
    with maru.Client(str(marud_socket), timeout_ms=60_000) as client:
        for i in range(nbytes // len(payload)):
            client.store_copy(f"filler {time.monotonic_ns()} {i}", payload)


def blocks_of(marud_socket):
    """The numbers of all blocks that the pool has."""
    from maru.follow import Follower, Kind
    found = set()
    with Follower(str(marud_socket), timeout_ms=60_000) as follower:
        for event in follower:
            if event.kind == Kind.CURRENT:
                return found
            if event.kind == Kind.STORED:
                found.add(event.block)


def push_out(marud_socket, pool_bytes):
    """Fills the pool until all that it has now has gone. Nothing of it may be pinned."""
    before, until = blocks_of(marud_socket), time.monotonic() + PATIENCE
    while before & blocks_of(marud_socket):
        assert time.monotonic() < until, "blocks stay in a pool that is full"
        fill(marud_socket, pool_bytes)
