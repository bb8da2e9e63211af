"""Python without memory: MemoryError, and nothing stays held that nobody has. In processes of their own: Python's own allocator
is told to fail, or C++'s, which is the process's."""
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from conftest import Marud

PYTHONS = """
    from _testcapi import remove_mem_hooks as recover, set_nomemory as fail
"""
CXXS = """
    import ctypes
    process = ctypes.CDLL(None)
    fail, recover = process.fail_new, process.recover_new
"""
# Of the thread that says so: the allocations from the first on, counted from 1, until the last.
NEW = """
    #include <cstdlib>
    #include <new>
    static thread_local long number, first, last;
    extern "C" void fail_new(int from, int to) { number = 0, first = from, last = to; }
    extern "C" void recover_new() { last = 0; }
    void* operator new(std::size_t bytes) {
      const bool fails = last != 0 && ++number >= first && number < last;
      void* const made = fails ? nullptr : std::malloc(bytes != 0 ? bytes : 1);
      if (made == nullptr) throw std::bad_alloc();
      return made;
    }
    void operator delete(void* memory) noexcept { std::free(memory); }
    void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
"""
BEGIN = """
    import gc, sys
    import numpy
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

    class Text(str):
        pass

    class Bytes(bytes):
        pass

    client.store_copy(maru.Digest(rows[0]), b"x")

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
        "unpin_batch": lambda: client.unpin_batch(client.pin_batch(keys)),
        "alloc": lambda: client.alloc(10).data, "alloc_batch": lambda: client.alloc_batch(10, 5), "allocate": allocate,
        "store_copy": lambda: client.store_copy(keys[1], b"x"), "store an array": lambda: client.store_copy(keys[1], rows[0]),
        "store_chain": store_chain,
        "delete_batch": lambda: client.delete_batch(["absent"] * 5), "evicted": client.evicted, "geometry": client.geometry,
        "statistics": client.statistics, "subclass": lambda: Mine.__new__(Mine),
        "find under others": lambda: (handler.retrieve(Text(keys[1])), handler.retrieve(Bytes(keys[1], "ascii")),
                                      handler.batch_retrieve(rows)),
    }
    call = calls[sys.argv[2]]
    call(), call()
    gc.collect()

    def held():
        return client.statistics().pins, handler.get_stats()["native"]["pins"], handler.allocator.num_allocated

    before, raised = held(), set()
    def lacks(first, last):  # whether that was an error
        gc.disable()
        fail(first, last)
        ended = None
        try:
            call()
        except BaseException as error:
            ended = type(error)
            raised.add(ended)
        finally:
            recover()
        gc.collect()
        while handler.unpin(keys[1]):
            pass
        assert held() == before, (first, last)
        return ended is not None

    first = 1
    while lacks(first, first + 10**6):  # until it does with fewer
        first += 1
        assert first < 1000
    for only in range(1, first):
        lacks(only, only + 1)
    assert raised <= {MemoryError}, raised
    held = client.alloc_batch(4096, 64)  # no page is lost to somebody who is nobody
    client.close()
    handler.close()
    print("done")
"""
CALLS = ["retrieve", "retrieve_batch", "find", "find_batch", "match_prefix", "exists_batch", "pin", "unpin_batch", "alloc",
         "alloc_batch", "allocate", "store_copy", "store an array", "store_chain", "delete_batch", "evicted", "geometry",
         "statistics", "subclass", "find under others"]


@pytest.fixture(scope="session")
def failing_new(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None or "LD_PRELOAD" in os.environ:
        pytest.skip("no C++ compiler is here, or another library replaces C++'s allocator")
    folder = tmp_path_factory.mktemp("new")
    (folder / "new.cc").write_text(NEW)
    subprocess.run([compiler, "-shared", "-fPIC", folder / "new.cc", "-o", folder / "new.so"], check=True, timeout=600)
    return folder / "new.so"


def run(whose, marud, call, **environment):
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(whose) + textwrap.dedent(BEGIN),
                            str(marud.socket), call],
                           capture_output=True, text=True, timeout=600, env={**os.environ, **environment})
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.parametrize("call", CALLS)
def test_a_lack_of_memory_is_an_error_and_leaves_nothing_held(marud, call):
    pytest.importorskip("_testcapi")
    run(PYTHONS, marud, call)


@pytest.mark.parametrize("call", CALLS)
def test_so_is_a_lack_of_memory_of_the_process(marud, failing_new, call):
    run(CXXS, marud, call, LD_PRELOAD=str(failing_new))


EVICTED = """
    import sys
    import maru
    from _testcapi import remove_mem_hooks, set_nomemory

    client = maru.Client(sys.argv[1], timeout_ms=60_000)
    pages = client.geometry().pages
    for i in range(pages + 200):
        try:
            client.store_copy(maru.Digest(i.to_bytes(16, "big")) if i % 2 else f"k{i}", b"x")
        except maru.RegistryFullError:  # rare: both of its buckets are full
            pass
    told, some, failed = [], [], 0
    for only in range(1, 5000):
        set_nomemory(only, only + 1)
        try:
            some = client.evicted()
        except MemoryError:
            failed += 1
        finally:
            remove_mem_hooks()
        told += some
        some = []
    now = client.statistics()
    assert failed > 100 and len(set(told)) == len(told) == now.evicted > 100 and now.evicted_lost == 0, (failed, len(told), now)
    assert {type(one) for one in told} == {maru.EvictedKey} and {type(one.key) for one in told} == {bytes, maru.Digest}
    assert not any(client.exists(one.key) for one in told)
    print("done")
"""


def test_what_was_evicted_is_told_in_spite_of_a_lack_of_memory(marud_program):
    pytest.importorskip("_testcapi")
    # Without eviction in the background, which is not a request of this client.
    with Marud(marud_program, size="8MiB", more="high_watermark = 1") as small:
        ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(EVICTED), str(small.socket)],
                               capture_output=True, text=True, timeout=600)
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
