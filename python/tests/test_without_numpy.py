"""What needs no NumPy works without it, in a process of its own: it is looked for once in each."""
import subprocess
import sys

CODE = """
import sys
sys.modules["numpy"] = None
import maru
rows = memoryview(bytes(range(64))).cast("B", (4, 16))
with maru.Client(sys.argv[1], timeout_ms=60_000) as client:
    client.store_copy(maru.Digest(bytes(range(16, 32))), b"x")
    assert client.exists_batch(rows) == [False, True, False, False]
    found = bytearray(4)
    assert client.exists_batch(rows, out=found) is found and found == bytes([0, 1, 0, 0])
    assert [view and bytes(view.data) for view in client.retrieve_batch(rows)] == [None, b"x", None, None]
    assert client.match_prefix(rows[1:]).blocks == 1
    assert client.delete_batch(rows) == [False, True, False, False]
    assert client.exists_batch(["a"]) == [False]
"""


def test_digests_in_a_memoryview_need_no_numpy(marud):
    done = subprocess.run([sys.executable, "-c", CODE, str(marud.socket)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
