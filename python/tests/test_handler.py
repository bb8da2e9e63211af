"""MaruHandler: every public name with the signature that programs for the older system call, and each behaviour that was to be
kept. What was to be better is in test_handler_better.py."""
import inspect
import threading

import numpy
import pytest

import maru

CHUNK = 64 * 1024

# name: the parameters, by which programs name them
METHODS = {
    "close": [], "alloc": ["size"], "free": ["handle"], "store": ["key", "handle"], "retrieve": ["key"],
    "exists": ["key"], "pin": ["key"], "unpin": ["key"], "delete": ["key"], "batch_retrieve": ["keys"],
    "batch_store": ["keys", "handles"], "batch_exists": ["keys"], "batch_pin": ["keys"], "batch_unpin": ["keys"],
    "healthcheck": [], "get_stats": [], "get_buffer_view": ["region_id", "offset", "size"],
    "get_region_page_count": ["region_id"], "get_owned_region_ids": [], "get_chunk_size": [],
    "set_on_region_added": ["callback"], "prefetch_batch": ["keys"], "stage_batch": ["keys"],
    "is_region_mapped": ["region_id"],
}
PROPERTIES = ("pool_handle", "allocator", "owned_region_manager", "mapper", "instance_id", "connected")


def config(marud, **more):
    return maru.MaruConfig(**{"server_url": str(marud.socket), "pool_size": 64 * CHUNK, "chunk_size_bytes": CHUNK,
                              "timeout_ms": 60_000, **more})


@pytest.fixture
def handler(marud):
    with maru.MaruHandler(config(marud)) as connected:
        yield connected


@pytest.fixture
def peer(marud):
    with maru.MaruHandler(config(marud)) as connected:
        yield connected


def put(handler, key, data):
    handle = handler.alloc(len(data))
    handle.buf[:] = data
    return handler.store(key, handle)


def read(handler, key):
    return bytes(handler.retrieve(key).view)


# -- names ------------------------------------------------------------------------------------------------------------------

def test_every_method_takes_what_callers_give():
    for name, parameters in METHODS.items():
        given = list(inspect.signature(getattr(maru.MaruHandler, name)).parameters.values())
        assert [p.name for p in given] == ["self", *parameters], name
        assert all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in given[1:]), name
    connect = inspect.signature(maru.MaruHandler.connect).parameters
    assert list(connect) == ["self", "require_cuda_pin"] and connect["require_cuda_pin"].default is False
    made = inspect.signature(maru.MaruHandler).parameters
    assert list(made) == ["config"] and made["config"].default is None


def test_every_property_is_one():
    assert all(isinstance(inspect.getattr_static(maru.MaruHandler, name), property) for name in PROPERTIES)


def test_nothing_public_is_beyond_the_interface():
    public = {name for name in dir(maru.MaruHandler) if not name.startswith("_")}
    assert public == {"connect", *METHODS, *PROPERTIES}


# -- connect and close ------------------------------------------------------------------------------------------------------

def test_a_second_connect_does_nothing(handler):
    assert handler.connected and handler.connect() is True and handler.connect() is True


def test_before_connect_and_after_close_everything_raises(marud, key):
    never, closed = maru.MaruHandler(config(marud)), maru.MaruHandler(config(marud))
    assert closed.connect()
    handle = closed.alloc(10)
    closed.close()
    closed.close()
    never.close()
    for one in (never, closed):
        assert not one.connected and not one.healthcheck()
        assert one.pool_handle is None and one.allocator is None and one.get_owned_region_ids() == []
        for call in (lambda: one.alloc(1), lambda: one.free(handle), lambda: one.store(key, handle), lambda: one.retrieve(key),
                     lambda: one.exists(key), lambda: one.pin(key), lambda: one.unpin(key), lambda: one.delete(key),
                     lambda: one.batch_retrieve([key]), lambda: one.batch_store([key], [handle]),
                     lambda: one.batch_exists([key]), lambda: one.batch_pin([key]), lambda: one.batch_unpin([key]),
                     one.get_stats, lambda: one.get_buffer_view(1, 0, 1), lambda: one.get_region_page_count(1)):
            with pytest.raises(maru.NotConnectedError) as raised:
                call()
            assert isinstance(raised.value, RuntimeError)


def test_the_context_connects_and_closes(marud):
    with maru.MaruHandler(config(marud)) as handler:
        assert handler.connected and handler.healthcheck()
    assert not handler.connected
    with maru.MaruHandler(config(marud, auto_connect=False)) as handler:
        assert not handler.connected and handler.connect()


def test_a_failed_connect_is_false_and_says_why(marud, caplog, monkeypatch):
    assert maru.MaruHandler(config(marud, server_url="/nonexistent/socket")).connect() is False
    assert "start marud" in caplog.text
    caplog.clear()
    monkeypatch.setenv("MARU_SOCKET", "/nonexistent/socket")
    assert maru.MaruHandler().connect() is False
    assert "$MARU_SOCKET" in caplog.text and "tcp://" not in caplog.text
    caplog.clear()
    too_large = maru.MaruHandler(config(marud, chunk_size_bytes=64 << 20, pool_size=64 << 20))
    assert too_large.connect() is False and not too_large.connected
    assert "region_bytes" in caplog.text


def test_a_handle_that_was_not_stored_does_not_hinder_close(marud):
    handler = maru.MaruHandler(config(marud))
    assert handler.connect()
    handler.alloc(5)
    handler.close()
    assert handler.connect()
    handler.close()


# -- alloc and free ---------------------------------------------------------------------------------------------------------

def test_a_handle_has_a_writable_buffer_of_the_size(handler):
    first, second = handler.alloc(100), handler.alloc(100)
    assert first.buf.nbytes == first.size == 100 and not first.buf.readonly
    first.buf[:], second.buf[:] = b"a" * 100, b"b" * 100
    assert bytes(first.buf) == b"a" * 100 and bytes(second.buf) == b"b" * 100
    assert first.region_id == first._region_id == 1 and first._page_index == first.page_index != second.page_index
    assert handler.alloc(CHUNK).buf.nbytes == CHUNK


@pytest.mark.parametrize("wrong", [0, -1, CHUNK + 1, 1.5, None, "8", True])
def test_a_size_that_cannot_be_is_refused(handler, wrong):
    with pytest.raises(ValueError):
        handler.alloc(wrong)


def test_without_expansion_exactly_the_pages_of_the_pool_are_there(marud):
    with maru.MaruHandler(config(marud, pool_size=5 * CHUNK + CHUNK // 2, auto_expand=False)) as handler:
        handles = [handler.alloc(1) for _ in range(5)]
        assert len({handle.page_index for handle in handles}) == 5
        assert (handler.allocator.page_count, handler.allocator.num_free_pages) == (5, 0)
        with pytest.raises(ValueError, match="auto_expand is disabled"):
            handler.alloc(1)
        handler.free(handles.pop())
        handles.append(handler.alloc(1))
        del handles  # dropped is freed
        assert handler.allocator.num_allocated == 0 and handler.alloc(1)


def test_expansion_adds_a_region_and_says_so(marud):
    added = []
    with maru.MaruHandler(config(marud, pool_size=2 * CHUNK, expand_size=3 * CHUNK)) as handler:
        handler.set_on_region_added(lambda region_id, pages: added.append((region_id, pages)))
        assert added == [(1, 2)]
        handles = [handler.alloc(1) for _ in range(4)]
        assert added == [(1, 2), (2, 3)] and handler.get_owned_region_ids() == [1, 2]
        assert [(handle.region_id, handle.page_index) for handle in handles] == [(1, 0), (1, 1), (2, 0), (2, 1)]
        assert handler.get_region_page_count(2) == 3 and handler.get_region_page_count(3) is None
        assert handler.get_buffer_view(2, 0, 1) is not None
        assert handler.get_buffer_view(1, 2 * CHUNK, 1) is None, "beyond region 1, where region 2 would go on"
        handler.free(handles[0])
        assert handler.alloc(1).region_id == 1
        handler.set_on_region_added(None)


def test_an_expansion_is_as_large_as_the_pool_when_nothing_is_said(marud):
    with maru.MaruHandler(config(marud, pool_size=3 * CHUNK)) as handler:
        handles = [handler.alloc(1) for _ in range(4)]
        assert handles[3].region_id == 2 and handler.get_region_page_count(2) == 3


def test_a_callback_may_call_the_handler_and_one_that_raises_leaves_nothing(marud, key):
    with maru.MaruHandler(config(marud, pool_size=CHUNK)) as handler:
        told = []
        handler.set_on_region_added(lambda region_id, pages: told.append((handler.get_owned_region_ids(), pages,
                                                                          put(handler, f"{key} {region_id}", b"x"))))
        assert told == [([1], 1, True)]
        kept = [handler.alloc(1), handler.alloc(1)]
        assert told[1:] == [([1, 2], 1, True)]

        def fail(region_id, pages):
            if region_id == 3:
                raise KeyError(region_id)

        handler.set_on_region_added(fail)
        with pytest.raises(KeyError):
            handler.alloc(1)
        assert handler.get_stats()["store_regions"]["total_allocated"] == 2
        kept.append(handler.alloc(1))  # in the region that was added all the same
        assert kept[-1].region_id == 3
        handler.set_on_region_added(None)


def test_an_exhausted_pool_says_something_else(marud_program):
    from with_marud import Marud
    with Marud(marud_program, size="8MiB") as small, maru.MaruHandler(config(small)) as handler:
        handles = []
        with pytest.raises(ValueError, match="expansion failed") as raised:
            while True:
                handles.append(handler.alloc(CHUNK))
        assert isinstance(raised.value, maru.NoSpaceError) and handles
        assert handler.get_stats()["store_regions"]["total_allocated"] == len(handles)
        n = len(handles)
        handles.clear()
        assert len([handler.alloc(CHUNK) for _ in range(n)]) == n


def test_a_second_free_is_an_error(handler, key):
    handle = handler.alloc(1)
    handler.free(handle)
    with pytest.raises(ValueError):
        handler.free(handle)
    with pytest.raises(ValueError):
        handler.store(key, handle)
    stored = handler.alloc(1)
    assert handler.store(key, stored)
    handler.free(stored)
    with pytest.raises(ValueError):
        handler.free(stored)


def test_a_handle_of_somebody_else_is_refused(handler, peer, key):
    foreign = peer.alloc(1)
    for call in (lambda: handler.free(foreign), lambda: handler.store(key, foreign), lambda: handler.store(key, b"bytes"),
                 lambda: handler.free(None)):
        with pytest.raises(maru.InvalidArgumentError):
            call()


# -- store, find, delete ----------------------------------------------------------------------------------------------------

def test_what_is_stored_is_read_back(handler, key):
    for name in (key, "prefix/" + key, "x" * 4096, "schlüssel " + key):
        data = name.encode()[:100] * 3
        assert put(handler, name, data) is True
        info = handler.retrieve(name)
        assert bytes(info.view) == data and info.view.readonly and len(info) == len(data)
        assert handler.delete(name) is True


def test_a_duplicate_is_skipped_and_the_first_stays(handler, peer, key):
    assert put(handler, key, b"first") and put(handler, key, b"second") and put(peer, key, b"third")
    assert read(handler, key) == read(peer, key) == b"first"


def test_absent_is_none_and_false(handler, key):
    assert handler.retrieve(key) is None and handler.exists(key) is False and handler.delete(key) is False
    put(handler, key, b"x")
    assert handler.exists(key) is True and handler.delete(key) is True and handler.delete(key) is False
    put(handler, key, b"again")
    assert read(handler, key) == b"again"


def test_others_find_and_delete_it(handler, peer, key):
    put(handler, key, b"x")
    assert peer.exists(key) and peer.batch_exists([key, key + " absent"]) == [True, False]
    assert read(peer, key) == b"x"
    assert peer.delete(key) and not handler.exists(key)
    assert put(handler, key, b"y") and read(peer, key) == b"y"


def test_threads_that_store_one_key_all_succeed(handler, key):
    results, start = [], threading.Barrier(8)

    def store(i):
        start.wait()
        results.append((put(handler, key, bytes([i]) * 100), put(handler, f"{key} {i}", bytes([i]) * 100)))

    threads = [threading.Thread(target=store, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [(True, True)] * 8
    assert len(set(read(handler, key))) == 1
    assert all(read(handler, f"{key} {i}") == bytes([i]) * 100 for i in range(8))


def test_no_page_is_given_to_two_threads(marud, key):
    with maru.MaruHandler(config(marud, auto_expand=False)) as handler:
        taken, lock = [], threading.Lock()

        def take():
            try:
                while True:
                    handle = handler.alloc(8)
                    handle.buf[:] = id(handle).to_bytes(8, "little")
                    with lock:
                        taken.append(handle)
            except maru.PoolExhaustedError:
                pass

        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(taken) == 64 == len({handle.page_index for handle in taken})
        assert all(int.from_bytes(handle.buf, "little") == id(handle) for handle in taken)


# -- batches ----------------------------------------------------------------------------------------------------------------

def test_batches_answer_in_order_one_for_each(handler, key):
    keys = [f"{key} {i}" for i in range(40)]
    handles = [handler.alloc(4) for _ in keys[::2]]
    for i, handle in enumerate(handles):
        handle.buf[:] = i.to_bytes(4, "little")
    assert handler.batch_store(keys[::2], handles) == [True] * 20
    assert handler.batch_exists(keys) == [True, False] * 20
    found = handler.batch_retrieve(keys)
    assert [None if info is None else int.from_bytes(info.view, "little") for info in found] == [
        i // 2 if i % 2 == 0 else None for i in range(40)]
    assert handler.batch_exists([]) == handler.batch_retrieve([]) == handler.batch_store([], []) == []
    assert handler.batch_pin([]) == handler.batch_unpin([]) == []


def test_a_batch_of_thousands(handler, key):
    keys = [f"{key} {i}" for i in range(3000)]
    assert handler.batch_store(keys[:1000], [handler.alloc(1) for _ in range(1000)]) == [True] * 1000
    assert handler.batch_exists(keys) == [True] * 1000 + [False] * 2000


def test_lengths_that_differ_are_an_error(handler, key):
    with pytest.raises(ValueError):
        handler.batch_store([key, key + "2"], [handler.alloc(1)])


def test_duplicates_in_a_batch_succeed(handler, key):
    put(handler, key, b"there")
    assert handler.batch_store([key, key + "2", key + "2"], [handler.alloc(1) for _ in range(3)]) == [True] * 3
    assert read(handler, key) == b"there" and handler.allocator.num_allocated == 0


# -- pins -------------------------------------------------------------------------------------------------------------------

def test_pins_count_and_refuse_a_delete(handler, key):
    put(handler, key, b"x")
    assert handler.pin(key) and handler.pin(key)
    assert handler.delete(key) is False
    assert handler.unpin(key) and handler.delete(key) is False
    assert handler.unpin(key) and handler.unpin(key) is False
    assert handler.delete(key) is True


def test_a_pinned_value_can_be_deleted_by_others_and_stays_in_its_memory(handler, peer, key):
    put(handler, key, b"pinned")
    info = handler.retrieve(key)
    assert handler.pin(key) and peer.pin(key) and peer.unpin(key) and peer.delete(key)
    assert not handler.exists(key) and put(peer, key, b"another") and bytes(info.view) == b"pinned"
    del info
    assert handler.get_stats()["native"]["pins"] == 1
    assert handler.unpin(key) and handler.get_stats()["native"]["pins"] == 0


def test_a_value_with_children_is_not_deleted(handler, client, key):
    put(handler, key, b"x")
    client.store_copy(key + " child", b"x", parent=key)
    with pytest.raises(maru.HasChildrenError):
        handler.delete(key)
    assert client.delete(key + " child") and handler.delete(key)


@pytest.mark.parametrize("wrong", [None, 5, "text", b"text", iter(["k"])])
def test_what_is_no_batch_is_refused(handler, wrong):
    for call in (handler.batch_pin, handler.batch_unpin):
        with pytest.raises(maru.InvalidArgumentError):
            call(wrong)


def test_a_wrong_batch_pins_and_unpins_nothing(handler, key):
    put(handler, key, b"x")
    with pytest.raises(maru.InvalidArgumentError):
        handler.batch_pin([key, 5.0])
    with pytest.raises(maru.InvalidArgumentError):
        handler.batch_pin([key, "x" * 4097])
    assert handler.get_stats()["native"]["pins"] == 0
    assert handler.pin(key)
    with pytest.raises(maru.InvalidArgumentError):
        handler.batch_unpin([key, 5.0])
    assert handler.delete(key) is False and handler.unpin(key)


def test_pins_of_what_is_absent(handler, key):
    assert handler.pin(key) is False and handler.unpin(key) is False


def test_a_batch_pins_the_leading_keys(handler, key):
    keys = [f"{key} {i}" for i in range(5)]
    for i in (0, 1, 3, 4):
        put(handler, keys[i], b"x")
    assert handler.batch_pin(keys) == [True, True, False, False, False]
    assert handler.delete(keys[1]) is False and handler.delete(keys[3]) is True
    assert handler.batch_unpin(keys) == [True, True, False, False, False]
    assert handler.batch_pin(keys[2:]) == [False] * 3
    assert all(handler.delete(keys[i]) for i in (0, 1, 4))


class Asked:
    """A client that notes what it is asked."""

    def __init__(self, client, asked):
        self._client, self._asked = client, asked

    def __getattr__(self, name):
        self._asked.append(name)
        return getattr(self._client, name)


def test_a_batch_is_pinned_in_one_call(handler, key):
    keys = [f"{key} {i}" for i in range(5)]
    for i in (0, 1, 3):
        put(handler, keys[i], b"x")
    client, asked = handler._client, []
    handler._client = Asked(client, asked)
    assert handler.batch_pin(keys) == [True, True, False, False, False]
    assert asked == ["pin_batch"] and client.statistics().pins == 2
    # What stands behind an absent key is not asked for, whatever it is.
    assert handler.batch_pin([keys[0], keys[2], "x" * 4097]) == [True, False, False]
    handler._client = client
    assert handler.batch_unpin([keys[0], *keys]) == [True, True, True, False, False, False]
    assert client.statistics().pins == 0


def test_a_batch_is_unpinned_in_one_call(handler, key):
    keys = [f"{key} {i}" for i in range(5)]
    for name in keys[1:]:
        put(handler, name, b"x")
    assert handler.batch_pin(keys[1:]) == [True] * 4 and handler.pin(keys[2])
    client, asked = handler._client, []
    handler._client = Asked(client, asked)
    unpinned = handler.batch_unpin([keys[0], keys[2], keys[1], keys[1], keys[2], keys[2]])
    assert unpinned == [False, True, True, False, True, False]
    assert asked == ["unpin_batch"] and client.statistics().pins == 2
    with pytest.raises(maru.InvalidArgumentError):
        handler.batch_unpin([keys[3], 5.0])
    assert client.statistics().pins == 2
    handler._client = client
    assert handler.unpin(keys[3]) and handler.batch_unpin(tuple(keys)) == [False] * 4 + [True]
    assert client.statistics().pins == 0 and all(handler.delete(name) for name in keys[1:])


# -- accessors --------------------------------------------------------------------------------------------------------------

def test_places_lead_to_what_is_held(handler, key):
    handle = handler.alloc(10)
    handler.get_buffer_view(handle.region_id, handle.page_index * handler.get_chunk_size() + 2, 8)[:] = b"23456789"
    handle.buf[:2] = b"01"
    handler.store(key, handle)
    assert handler.get_buffer_view(handle.region_id, handle.page_index * handler.get_chunk_size(), 1) is None
    info, again = handler.retrieve(key), handler.retrieve(key)
    assert (info.region_id, info.page_index) == (again.region_id, again.page_index)
    at = info.page_index * handler.get_chunk_size()
    assert bytes(handler.get_buffer_view(info.region_id, at + 3, 4)) == b"3456"
    assert bytes(handler.get_buffer_view(info.region_id, at, 0)) == b""
    for wrong in ((info.region_id, at, 11), (info.region_id, at + 10, 1), (info.region_id, -1, 1), (info.region_id, at, -1),
                  (77, at, 1), (info.region_id, at + CHUNK, 1)):
        assert handler.get_buffer_view(*wrong) is None
    del info
    assert handler.get_buffer_view(again.region_id, at, 10) is not None
    del again
    assert handler.get_buffer_view(0, at, 10) is None
    put(handler, key + " next", b"x")
    assert handler.retrieve(key + " next").page_index * handler.get_chunk_size() == at  # the place is free again


def test_a_value_larger_than_a_chunk_has_all_the_places_that_it_fills(handler, key):
    """Written by somebody whose chunks are larger."""
    with maru.MaruHandler(maru.MaruConfig(server_url=handler._config.server_url, chunk_size_bytes=4 * CHUNK)) as writer:
        content = {"/large": bytes(range(256)) * (CHUNK // 256) * 2 + b"end", "/small": b"small", "/larger": b"x" * 3 * CHUNK}
        for name, data in content.items():
            put(writer, key + name, data)
    infos = {name: handler.retrieve(key + name) for name in content}
    for name, data in content.items():
        at = infos[name].page_index * CHUNK
        for begin in {0, 1, len(data) // 2, max(0, len(data) - CHUNK), len(data) - 3}:
            assert bytes(handler.get_buffer_view(0, at + begin, 3)) == data[begin:begin + 3], (name, begin)
        assert handler.get_buffer_view(0, at, len(data)) == data
        assert handler.get_buffer_view(0, at + len(data) - 1, 2) is None
    place = infos["/large"].page_index
    del infos["/large"]
    assert handler.get_buffer_view(0, (place + 1) * CHUNK, 1) is None
    assert handler.retrieve(key + "/large").page_index == place


def test_a_place_that_is_taken_again_and_again_is_noted_once(handler):
    held = [handler.alloc(1) for _ in range(3)]
    for _ in range(500):
        handler.free(handler.alloc(1))
        handler.free(held.pop(0))
        held.append(handler.alloc(1))
    assert len(handler._budget._returned) <= len(held) + 1
    assert {one.page_index for one in held} <= set(range(4))


def test_statistics_reflect_operations(handler, key):
    put(handler, key, b"abc")
    handler.retrieve(key)
    handler.retrieve(key + " absent")
    for _ in range(2):  # reading changes nothing
        stats = handler.get_stats()
        assert stats["kv_manager"] == {"total_entries": 1, "total_size": 3}
        assert set(stats["allocation_manager"]) == {"num_allocations", "total_allocated", "active_clients"}
        for name in ("_all", handler.instance_id):
            assert stats["stats_manager"][name]["retrieve"] == {"count": 2, "hit": 1, "miss": 1}
        assert stats["allocator"]["page_count"] == 64 == stats["store_regions"]["total_pages"]
    handle = handler.alloc(1)
    assert handler.get_stats()["allocator"]["allocated_pages"] == 1
    assert handler.allocator.get_stats()["utilization"] == 1 / 64
    handler.free(handle)


def test_the_pool_handle_and_the_deprecated_names(handler):
    assert handler.pool_handle == (1, 0, 64 * CHUNK, 0) and handler.pool_handle.region_id == 1
    assert handler.mapper.get_buffer_view(1, 0, 1) is None
    assert handler.owned_region_manager.get_owned_region_ids() == [1]
    assert handler.get_region_page_count(0) > 0


def test_a_callback_is_a_callback(handler):
    with pytest.raises(maru.InvalidArgumentError):
        handler.set_on_region_added(5)


def test_arrays_over_buf_may_outlive_a_store(handler, key):
    handle = handler.alloc(1000)
    array = numpy.frombuffer(handle.buf, dtype=numpy.uint8)
    array[:] = 7
    assert handler.store(key, handle)
    assert handler.get_stats()["native"]["pins"] == 1  # the block stays where the array looks
    assert handler.delete(key) and (array == 7).all()
    del array, handle
    assert handler.get_stats()["native"]["pins"] == 0
