"""Stores and pins of many keys in one call: what is wrong with one of them is told of that one."""
import asyncio
import errno
import gc
import os
import threading

import numpy
import pytest

import maru
import maru.aio
from conftest import PAGE, Marud


def filled(client, n, nbytes=PAGE):
    buffers = client.alloc_batch(nbytes, n)
    for i, buffer in enumerate(buffers):
        buffer.data[:] = bytes([i % 256]) * nbytes
    return buffers


def test_arrays_in_are_arrays_out(client, other, digests):
    client.store_copy(digests[3], b"there already")
    buffers = filled(client, 8)
    stored = client.store_batch(digests[:8], buffers)
    assert stored.is_new.dtype == numpy.bool_ and stored.is_new.tolist() == [i != 3 for i in range(8)]
    assert stored.blocks.dtype == numpy.uint64 and stored.errors == {}
    assert not any(buffer.is_held for buffer in buffers)
    views = other.retrieve_batch(digests[:8])
    assert [view.block for view in views] == stored.blocks.tolist()
    assert [bytes(view.data[:2]) for view in views] == [bytes([i, i]) if i != 3 else b"th" for i in range(8)]


def test_sequences_in_are_lists_out(client, key):
    keys = [f"{key} {i}" for i in range(3)]
    stored = client.store_batch([*keys, keys[0]], filled(client, 4))
    assert stored.is_new == [True, True, True, False] and stored.errors == {}
    assert stored.blocks == [client.retrieve(name).block for name in [*keys, keys[0]]]
    assert client.store_batch([], []) == maru.StoredBatch([], [], {})
    numbers = numpy.arange(4, dtype=numpy.float32)
    copied = client.store_copy_batch([*keys, key], [b"a", bytearray(b"b"), memoryview(b"c"), numbers])
    assert copied.is_new == [False, False, False, True] and copied.blocks[:3] == stored.blocks[:3]
    assert bytes(client.retrieve(key).data) == numbers.tobytes()
    assert client.store_copy_batch([], []) == maru.StoredBatch([], [], {})


def test_the_options_hold_for_all_of_a_batch(client, digests):
    root = client.store_copy(digests[0], b"root", tenant="alice").block
    stored = client.store_batch(digests[1:3], filled(client, 2), parent=root, tenant="alice")
    copied = client.store_copy_batch(digests[3:5], [b"x", b"y"], parent=digests[0], tenant="alice", ttl_ms=60_000)
    assert stored.errors == copied.errors == {}
    assert client.exists_batch(digests[:6], "alice").tolist() == [True] * 5 + [False]
    assert not client.exists_batch(digests).any()
    with pytest.raises(maru.HasChildrenError):
        client.delete(digests[0], "alice")


def test_a_block_of_an_array_is_a_parent(client, digests):
    stored = client.store_copy_batch(digests[:2], [b"x", b"y"])
    assert client.store_copy(digests[2], b"child", parent=stored.blocks[1]).is_new
    with pytest.raises(maru.HasChildrenError):
        client.delete(digests[1])
    for wrong in (stored.blocks, numpy.zeros((), numpy.uint64), numpy.True_, 1.5):
        with pytest.raises(maru.InvalidArgumentError):
            client.store_copy("nothing", b"x", parent=wrong)


def test_rows_of_an_array_are_copied(client, other, digests):
    rows = numpy.arange(64 * 50, dtype=numpy.float16).reshape(64, 5, 10)
    assert client.store_copy_batch(digests, rows).is_new.all()
    for i, view in enumerate(other.retrieve_batch(digests)):
        assert numpy.frombuffer(view.data, numpy.float16).tolist() == rows[i].ravel().tolist()


@pytest.mark.parametrize("wrong", [
    b"ab", "ab", None, 3, [b"a"], [b"a", b""], [b"a", "text"], [b"a", None], numpy.zeros(2, numpy.uint8),
    numpy.zeros((3, 4), numpy.uint8), numpy.zeros((2, 0), numpy.uint8), numpy.zeros((4, 2), numpy.uint8).T])
def test_what_is_no_data_of_two_blocks_is_refused(client, digests, wrong):
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy_batch(digests[:2], wrong)
    assert not client.exists_batch(digests).any()


def test_buffers_that_cannot_all_be_stored_are_all_left(client, digests):
    buffers = filled(client, 3)
    for wrong, kind in (([*buffers[:2], "no buffer"], maru.InvalidArgumentError), (buffers[:2], maru.InvalidArgumentError),
                        ([buffers[0], buffers[0], buffers[1]], maru.ClosedError), (3, maru.InvalidArgumentError)):
        with pytest.raises(kind):
            client.store_batch(digests[:3], wrong)
        assert all(buffer.is_held for buffer in buffers) and not client.exists_batch(digests[:3]).any()
    held = buffers[2].data
    with pytest.raises(maru.ViewsHeldError):
        client.store_batch(digests[:3], buffers)
    assert all(buffer.is_held for buffer in buffers) and not client.exists_batch(digests[:3]).any()
    del held
    assert client.store_batch(digests[:3], buffers).is_new.all()


@pytest.mark.parametrize("name", ["store_batch", "store_chain"])
def test_a_buffer_that_is_there_twice_is_said_to_be(client, key, name):
    first, second = client.alloc_batch(4, 2)
    with pytest.raises(maru.ClosedError, match="twice in this batch"):
        getattr(client, name)([f"{key} {i}" for i in range(3)], [first, second, first])
    assert first.is_held and second.is_held and not any(client.exists_batch([f"{key} {i}" for i in range(3)]))
    first.data[:] = b"good"
    client.store(key, first)
    assert bytes(client.retrieve(key).data) == b"good"


def test_an_error_is_that_of_one_key(client, other, digests):
    mine, others = filled(client, 2), filled(other, 1)
    stored = client.store_batch(digests[:3], [mine[0], others[0], mine[1]])
    assert list(stored.errors) == [1] and isinstance(stored.errors[1], maru.InvalidArgumentError)
    assert stored.errors[1].call == "maru_store_batch"
    assert stored.is_new.tolist() == [True, False, True] and stored.blocks[1] == 0
    assert [buffer.is_held for buffer in [*mine, *others]] == [False, False, True]
    other.store(digests[1], others[0])

    gone = client.store_batch(digests[5:7], filled(client, 2), parent="nobody")
    assert [type(error) for error in gone.errors.values()] == [maru.ParentGoneError] * 2 and not gone.is_new.any()
    region = client.geometry()
    large = bytes(region.region_pages * region.page_bytes + 1)
    copied = client.store_copy_batch(digests[8:11], [b"x", large, b"y"])
    assert copied.is_new.tolist() == [True, False, True]
    assert isinstance(copied.errors[1], maru.TooLargeError) and copied.errors[1].errno == errno.EFBIG


def test_what_has_no_room_is_told(marud_program, digests):
    with Marud(marud_program, size="8MiB", more='policy = "none"') as small, \
            maru.Client(str(small.socket), timeout_ms=60_000) as client:
        pages = client.geometry().pages
        for i in range(100):
            client.store_copy(f"before {i}", b"x")
        keys = [f"key {i}" for i in range(pages)]
        stored = client.store_copy_batch(keys, numpy.zeros((pages, PAGE), numpy.uint8))
        assert stored.is_new == client.exists_batch(keys)
        assert list(stored.errors) == [i for i in range(pages) if not stored.is_new[i]]
        # Rare (docs/format.md, "Overflow buckets"): both buckets of a key are full. Its page goes to the next.
        crowded = {i for i, error in stored.errors.items() if isinstance(error, maru.RegistryFullError)}
        assert len(crowded) < 10
        errors = [stored.errors.get(i) for i in range(pages) if i not in crowded]
        assert errors[:pages - 100] == [None] * (pages - 100)
        assert {type(error) for error in errors[pages - 100:]} == {maru.NoSpaceError}
        more = client.store_copy_batch([f"more {i}" for i in range(pages + 1)], [b"x"] * (pages + 1))
        assert len(more.errors) == pages + 1, "never has the pool room for them"


@pytest.mark.parametrize("n", [3, 64])
def test_views_may_be_kept(client, other, digests, n):
    before = client.statistics().pins
    client.store_copy(digests[0], b"there already")
    buffers = filled(client, n)
    arrays = [numpy.frombuffer(buffers[i].data, numpy.uint8) for i in (0, 1)]
    stored = client.store_batch(digests[:n], buffers, keep_views=True)
    assert stored.is_new.tolist() == [False] + [True] * (n - 1) and stored.errors == {}
    assert stored.blocks.tolist() == [view.block for view in other.retrieve_batch(digests[:n])]
    assert client.statistics().pins == before + 1, "of the one that an array shows"
    client.delete_batch(digests[:n])
    assert [array[7] for array in arrays] == [0, 1]
    del arrays
    gc.collect()
    assert client.statistics().pins == before and not any(buffer.is_held for buffer in buffers)


def test_a_batch_is_pinned(client, other, digests, key):
    for i in (0, 2, 9):
        client.store_copy(digests[i], b"x")
    pins = other.pin_batch(digests[:10])
    assert [i for i, pin in enumerate(pins) if pin is not None] == [0, 2, 9]
    assert all(isinstance(pin, maru.Pin) and pin.is_held for pin in pins if pin is not None)
    assert other.statistics().pins == 3
    assert [pin and pin.block for pin in pins] == [view and view.block for view in other.retrieve_batch(digests[:10])]
    assert client.delete(digests[2]), "the key goes, the memory stays"
    assert other.pin_batch([maru.Digest(row) for row in digests[:3]])[2] is None
    del pins
    assert other.statistics().pins == 0
    assert other.pin_batch([]) == []
    client.store_copy(key, b"x", tenant="alice")
    assert [pin is not None for pin in client.pin_batch([key], "alice") + client.pin_batch([key])] == [True, False]
    for wrong in ("text", 3, None, numpy.zeros(16, numpy.uint8)):
        with pytest.raises(maru.InvalidArgumentError):
            client.pin_batch(wrong)


@pytest.mark.parametrize("n", [3, 60])  # with the GIL, and without
def test_a_batch_is_unpinned(client, other, digests, n):
    client.store_copy_batch(digests, [b"x"] * 64)
    pins = other.pin_batch(digests[:n])
    foreign, match = client.pin(digests[0]), other.match_prefix(digests[62:63])
    [of_match], shown = match.resolve(digests[62:63]), other.retrieve(digests[63])
    data = shown.data
    match.release()
    for wrong in ([*pins, None], [*pins, data], None, 5):
        with pytest.raises(maru.InvalidArgumentError):
            other.unpin_batch(wrong)
    assert all(pin.is_held for pin in pins) and other.statistics().pins == n + 2
    pins[1].release()
    assert other.unpin_batch(iter([*pins, foreign, of_match, shown, pins[0]])) is None
    assert not any(pin.is_held for pin in [*pins, foreign, of_match, shown])
    assert client.statistics().pins == 0
    assert other.statistics().pins == 1 and bytes(data) == b"x", "what shows a block keeps it"
    del data
    assert other.statistics().pins == 0
    other.unpin_batch([])
    other.unpin_batch(pins)
    assert client.delete_batch(digests).all()


def test_a_batch_of_pins_went_with_its_client(marud, client, digests):
    client.store_copy_batch(digests, [b"x"] * 64)
    with maru.Client(str(marud.socket), timeout_ms=60_000) as closed:
        pins = closed.pin_batch(digests)
    closed.unpin_batch(pins)  # as release() of each
    assert not any(pin.is_held for pin in pins)


def test_when_pins_run_out_a_batch_holds_none(marud_program):
    with Marud(marud_program, pins=64) as small, maru.Client(str(small.socket), timeout_ms=60_000) as client:
        most = client.geometry().pins_max
        keys = [f"key {i}" for i in range(4 * most)]
        assert not client.store_copy_batch(keys, [b"x"] * len(keys)).errors
        with pytest.raises(maru.PinsExhaustedError):
            client.pin_batch(keys)
        assert client.statistics().pins == 0
        # Of buffers that somebody goes on using each is pinned: those that cannot be are left.
        buffers = filled(client, 4 * most)
        views = [buffer.data for buffer in buffers]
        stored = client.store_batch([f"other {i}" for i in range(4 * most)], buffers, keep_views=True)
        assert {type(error) for error in stored.errors.values()} == {maru.PinsExhaustedError}
        assert [buffer.is_held for buffer in buffers] == [i in stored.errors for i in range(4 * most)]
        del views


def test_other_threads_run_meanwhile(client, other, key):
    """Two batches at once, of the same keys: each key has one winner."""
    keys = [f"{key} {i}" for i in range(512)]
    results, start = {}, threading.Barrier(2)

    def store(name, mine):
        buffers = filled(mine, len(keys))
        start.wait()
        results[name] = mine.store_batch(keys, buffers)

    threads = [threading.Thread(target=store, args=pair) for pair in (("a", client), ("b", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(pair) for pair in zip(results["a"].is_new, results["b"].is_new)] == [1] * len(keys)


def test_readers_closed_clients_and_children_are_refused(marud, client, digests):
    buffers = filled(client, 2)
    with maru.Client(str(marud.socket), timeout_ms=60_000, read_only=True) as reader:
        for call in (lambda: reader.store_batch(digests[:2], buffers),
                     lambda: reader.store_copy_batch(digests[:2], [b"x", b"y"])):
            with pytest.raises(maru.ReadOnlyError):
                call()
        assert reader.pin_batch(digests[:2]) == [None, None]
    for call in (lambda: reader.store_batch(digests[:2], buffers), lambda: reader.pin_batch(digests),
                 lambda: reader.store_copy_batch(digests[:2], [b"x", b"y"])):
        with pytest.raises(maru.ClosedError):
            call()
    assert all(buffer.is_held for buffer in buffers)


def test_batches_of_asyncio(marud, digests):
    async def use():
        async with maru.aio.Client(str(marud.socket), timeout_ms=60_000) as client:
            stored = await client.store_batch(digests[:2], await client.alloc_batch(PAGE, 2))
            copied = await client.store_copy_batch(digests[1:3], [b"x", b"y"])
            assert stored.is_new.tolist() == [True, True] and copied.is_new.tolist() == [False, True]

    asyncio.run(use())


def test_a_geometry_has_the_limits_of_its_user(marud_program):
    with Marud(marud_program) as running, maru.Client(str(running.socket), timeout_ms=60_000) as client:
        shape = client.geometry()
        assert (shape.user_regions_max, shape.user_bytes_max) == (0, 0)
    limit = f'[[limit]]\nuser = {os.getuid()}\nregions = 7\nbytes = "12MiB"'
    with Marud(marud_program, more=limit) as running, \
            maru.Client(str(running.socket), timeout_ms=60_000) as client:
        shape = client.geometry()
        assert (shape.user_regions_max, shape.user_bytes_max) == (7, 12 << 20)
