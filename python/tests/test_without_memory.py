"""Python without memory: MemoryError, and nothing stays held that nobody has. In processes of their own: Python's own allocator
is told to fail."""
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("_testcapi")

BEGIN = """
    import gc, sys
    import _testcapi, numpy
    import maru

    client = maru.Client(sys.argv[1], timeout_ms=60_000)
    keys = [f"without memory {i}" for i in range(20)]
    for key in keys:
        client.store_copy(key, b"x")
    handler = maru.MaruHandler(maru.MaruConfig(server_url=sys.argv[1], timeout_ms=60_000, chunk_size_bytes=4096,
                                               pool_size=64 * 4096))
    assert handler.connect()
    rows = numpy.zeros((4, 16), numpy.uint8)

    class Mine(maru.Client):
        pass

    def allocate():
        handler.free(handler.alloc(1))

    def pin():
        handler.pin(keys[1])
        handler.unpin(keys[1])

    def store_chain():
        client.store_chain(keys[:2], client.alloc_batch(1, 2))

    calls = {
        "retrieve": lambda: client.retrieve(keys[1]).data, "retrieve_batch": lambda: client.retrieve_batch(keys),
        "find": lambda: handler.retrieve(keys[1]).page_index, "find_batch": lambda: handler.batch_retrieve(keys),
        "match_prefix": lambda: client.match_prefix(keys[:1]).resolve(keys[:1]),
        "exists_batch": lambda: (client.exists_batch(keys), client.exists_batch(rows)), "pin": pin,
        "alloc": lambda: client.alloc(10).data, "alloc_batch": lambda: client.alloc_batch(10, 5), "allocate": allocate,
        "store_copy": lambda: client.store_copy(keys[1], b"x"), "store an array": lambda: client.store_copy(keys[1], rows[0]),
        "store_chain": store_chain,
        "delete_batch": lambda: client.delete_batch(["absent"] * 5), "evicted": client.evicted, "geometry": client.geometry,
        "statistics": client.statistics, "subclass": lambda: Mine.__new__(Mine),
    }
    call = calls[sys.argv[2]]
    call(), call()
    gc.collect()

    def held():
        return client.statistics().pins, handler.get_stats()["native"]["pins"], handler.allocator.num_allocated

    before, raised = held(), set()
    for allocations in (1, 10**6):
        for first in range(1, 150):
            gc.disable()
            _testcapi.set_nomemory(first, first + allocations)
            try:
                call()
            except MemoryError:
                raised.add(MemoryError)
            except BaseException as error:
                raised.add(type(error))
            finally:
                _testcapi.remove_mem_hooks()
            gc.collect()
            while handler.unpin(keys[1]):
                pass
            assert held() == before, (allocations, first)
    assert raised <= {MemoryError}, raised
    held = client.alloc_batch(4096, 64)  # no page is lost to somebody who is nobody
    client.close()
    handler.close()
    print("done")
"""
CALLS = ["retrieve", "retrieve_batch", "find", "find_batch", "match_prefix", "exists_batch", "pin", "alloc", "alloc_batch",
         "allocate", "store_copy", "store an array", "store_chain", "delete_batch", "evicted", "geometry", "statistics",
         "subclass"]


@pytest.mark.parametrize("call", CALLS)
def test_a_lack_of_memory_is_an_error_and_leaves_nothing_held(marud, call):
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(BEGIN), str(marud.socket), call],
                           capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
