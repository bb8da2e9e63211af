"""What the older system was seen to do wrong and the other files do not ask: under a daemon that stalls, from many threads, and
between handlers that were configured differently."""
import os
import signal
import threading

import pytest

import maru
from test_handler import CHUNK, config, put, read


@pytest.fixture
def stalled(marud_program, key):
    """A marud that does not answer, and a handler that was connected before and has memory in hand."""
    from with_marud import Marud
    with Marud(marud_program, size="16MiB") as running, maru.MaruHandler(config(running)) as handler:
        put(handler, key + " there", b"there")
        handler.free(handler.alloc(CHUNK))
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            yield handler
        finally:
            os.kill(running.process.pid, signal.SIGCONT)


def test_a_stalled_daemon_changes_no_answer(stalled, key):
    keys = [key + " there", key + " absent", key + " there"]
    assert stalled.batch_exists(keys) == [True, False, True]
    assert [info and bytes(info.view) for info in stalled.batch_retrieve(keys)] == [b"there", None, b"there"]
    assert stalled.batch_pin(keys) == [True, False, False] and stalled.batch_unpin(keys[:1]) == [True]
    assert stalled.exists(keys[0]) and stalled.pin(keys[0]) and stalled.delete(keys[0]) is False
    assert stalled.unpin(keys[0]) and stalled.delete(keys[0]) is True and stalled.exists(keys[0]) is False


def test_a_store_under_a_stalled_daemon_is_done_or_not_and_stays_so(stalled, key):
    for name in (key, key + " 2"):
        assert put(stalled, name, name.encode() * 10) and stalled.exists(name)
    assert stalled.delete(key) and put(stalled, key, b"again")
    assert read(stalled, key) == b"again" and read(stalled, key + " 2") == (key + " 2").encode() * 10


def test_threads_that_ask_at_once_all_get_their_own_answer(marud, key):
    """While another stores and deletes."""
    there = [f"{key} {i}" for i in range(20)]
    wrong, start = [], threading.Barrier(5)
    with maru.MaruHandler(config(marud)) as handler:
        for name in there:
            put(handler, name, name.encode())

        def ask():
            start.wait()
            for turn in range(300):
                name = there[turn % 20]
                info, batch = handler.retrieve(name), handler.batch_exists([name, key + " absent", name])
                read_back = None if info is None else bytes(info.view)
                if not handler.exists(name) or read_back != name.encode() or batch != [True, False, True]:
                    wrong.append((name, batch))

        def change():
            start.wait()
            for turn in range(300):
                put(handler, f"{key} changing {turn % 7}", b"x" * 1000)
                handler.delete(f"{key} changing {turn % 7}")

        threads = [threading.Thread(target=ask) for _ in range(4)] + [threading.Thread(target=change)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not wrong and not any(thread.is_alive() for thread in threads)


def test_handlers_with_other_chunk_sizes_read_the_same_bytes(marud, key):
    with maru.MaruHandler(config(marud)) as large, maru.MaruHandler(config(marud, chunk_size_bytes=4096)) as small:
        data = bytes(range(256)) * 200
        put(large, key, data)
        put(large, key + " before", b"x" * CHUNK)
        before, info = small.retrieve(key + " before"), small.retrieve(key)
        assert bytes(info.view) == data and (before.page_index, info.page_index) == (0, CHUNK // 4096)
        at = info.page_index * small.get_chunk_size()
        assert bytes(small.get_buffer_view(info.region_id, at, 4096)) == data[:4096]


def test_a_key_that_somebody_else_deleted_can_be_stored_again(marud, key):
    with maru.MaruHandler(config(marud)) as owner, maru.MaruHandler(config(marud)) as other:
        for turn in range(50):
            assert put(owner, key, bytes([turn]) * CHUNK) and other.delete(key) and not owner.exists(key)
        assert put(owner, key, b"last") and read(other, key) == b"last"
        assert owner.allocator.num_allocated == 0
