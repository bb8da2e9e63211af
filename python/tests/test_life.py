"""How long pins, views, buffers and attachments live; and what is refused afterwards."""
import copy
import ctypes
import errno
import gc
import os
import threading
import weakref

import numpy
import pytest

import maru
from conftest import PAGE, Marud


def test_a_view_pins_as_long_as_it_lives(client, key):
    client.store_copy(key, b"x")
    view = client.retrieve(key)
    assert client.statistics().pins == 1
    del view
    assert client.statistics().pins == 0


def test_an_array_pins_after_its_view_was_released(client, other, key):
    data = numpy.arange(PAGE, dtype=numpy.uint32)
    client.store_copy(key, data)
    view = client.retrieve(key)
    array = numpy.frombuffer(view.data, dtype=numpy.uint32)[10:].reshape(-1, 2)
    view.release()
    view.release()
    assert not view.is_held
    del view
    gc.collect()
    assert client.statistics().pins == 1
    # Deleted and its memory asked for: it must not be handed out under the array.
    assert other.delete(key)
    for i in range(300):
        other.store_copy(f"{key} {i}", b"\xff" * 4 * PAGE)
    assert (array.ravel() == data[10:]).all()
    del array
    assert client.statistics().pins == 0


def test_a_slice_of_a_memoryview_pins(client, key):
    client.store_copy(key, b"abcdef")
    part = client.retrieve(key).data[2:4]
    assert bytes(part) == b"cd"
    assert client.statistics().pins == 1
    part.release()
    assert client.statistics().pins == 0


def test_views_are_read_only(client, key):
    client.store_copy(key, b"abc")
    view = client.retrieve(key)
    assert view.data.readonly and not numpy.frombuffer(view.data, dtype=numpy.uint8).flags.writeable
    with pytest.raises(TypeError):
        view.data[0] = 1


def test_pin_and_unpin(client, key):
    block = client.store_copy(key, b"abc").block
    for take in (lambda: client.pin(key), lambda: client.pin_block(block)):
        pin = take()
        assert (pin.block, pin.nbytes, pin.is_held) == (block, 3, True)
        assert client.statistics().pins == 1
        client.unpin(pin)
        assert not pin.is_held
        assert client.statistics().pins == 0


def test_what_lookups_return_cannot_be_made_otherwise(client, key):
    client.store_copy(key, b"x")
    view = client.retrieve(key)
    for kind in (maru.Pin, maru.View, type(view.data.obj)):
        for make in (kind, lambda: object.__new__(kind), lambda: type("Mine", (kind,), {})):
            with pytest.raises(TypeError):
                make()
    with pytest.raises(TypeError):
        copy.copy(view)
    for call in (lambda: client.unpin(view.data), lambda: client.unpin(None)):
        with pytest.raises(maru.InvalidArgumentError, match="A Pin or a View is wanted, not"):
            call()
    assert isinstance(view, maru.Pin) and view.is_held
    watched = weakref.ref(view)
    del view, call
    assert watched() is None and client.statistics().pins == 0


def test_threads_may_share_a_view(client, key):
    """Each sees the bytes, or that it was released."""
    client.store_copy(key, b"x" * 100)
    for _ in range(50):
        view, wrong, start = client.retrieve(key), [], threading.Barrier(4)

        def use(view=view, wrong=wrong, start=start):
            start.wait()
            try:
                for turn in range(20):
                    if bytes(view.data) != b"x" * 100:
                        wrong.append(turn)
                view.release()
            except maru.ClosedError:
                pass

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong and not view.is_held
    del view, use
    assert client.statistics().pins == 0


def test_released_views_raise(client, key):
    client.store_copy(key, b"abc")
    with client.retrieve(key) as view:
        pass
    with pytest.raises(maru.ClosedError):
        view.data
    match = client.match_prefix([key])
    match.release()
    with pytest.raises(maru.ClosedError):
        match.resolve([key])


def test_a_stored_buffer_cannot_be_written(client, key):
    buffer = client.alloc(PAGE)
    buffer.data[:] = b"a" * PAGE
    writer = buffer.data[:10]
    writer.release()
    client.store(key, buffer)
    with pytest.raises(ValueError):
        writer[0] = 1
    for use in (lambda: buffer.data, lambda: client.store(key + "2", buffer)):
        with pytest.raises(maru.ClosedError):
            use()
    buffer.abort()


class Tensor:
    """As torch.frombuffer makes one: it refers to the object that it was made from, knows where its bytes are, and is no export
    of it."""

    def __init__(self, source):
        self.source = source
        self.nbytes = source.nbytes
        self.address = numpy.frombuffer(source, dtype=numpy.uint8).ctypes.data

    def fill(self, byte):
        ctypes.memset(self.address, byte, self.nbytes)

    def __bytes__(self):
        return ctypes.string_at(self.address, self.nbytes)


@pytest.mark.parametrize("store", ["store", "store_chain"])
def test_a_tensor_that_could_write_stops_a_store(client, other, key, store):
    def put():
        if store == "store":
            return client.store(key, buffer)
        return client.store_chain([key], [buffer])

    buffer = client.alloc(PAGE)
    tensor = Tensor(buffer.data)
    for _ in range(2):
        with pytest.raises(maru.ViewsHeldError, match="delete it first"):
            put()
    assert buffer.is_held and not client.exists(key)
    tensor.fill(7)
    tensor.source.release()  # with it, the tensor has no hold on the memory any more
    with pytest.raises(maru.ViewsHeldError):
        put()
    del tensor
    put()
    assert bytes(other.retrieve(key).data) == b"\7" * PAGE


def test_a_tensor_of_a_stored_buffer_keeps_block_and_memory(marud, other, key):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    buffer = client.alloc(PAGE)
    tensor = Tensor(buffer.data)
    tensor.fill(7)
    assert client.store(key, buffer, keep_views=True).is_new
    del buffer
    assert client.statistics().pins == 1
    assert other.delete(key)
    for i in range(300):
        other.store_copy(f"{key} {i}", b"\xff" * 4 * PAGE)
    assert bytes(tensor) == b"\7" * PAGE
    client.close()
    assert bytes(tensor) == b"\7" * PAGE


def test_a_tensor_of_a_view_keeps_block_and_memory(marud, other, key):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    client.store_copy(key, b"\7" * PAGE)
    view = client.retrieve(key)
    tensor = Tensor(view.data)
    view.release()
    del view
    assert client.statistics().pins == 1
    client.close()
    assert bytes(tensor) == b"\7" * PAGE


def test_an_array_that_could_write_stops_a_store(client, key):
    buffer = client.alloc(PAGE)
    array = numpy.frombuffer(buffer.data, dtype=numpy.uint8)
    with pytest.raises(maru.ViewsHeldError) as raised:
        client.store(key, buffer)
    assert isinstance(raised.value, BufferError)
    assert buffer.is_held and not client.exists(key)
    del array
    assert client.store(key, buffer).is_new
    second = client.alloc(PAGE)
    array = numpy.frombuffer(second.data, dtype=numpy.uint8)
    assert client.store(key + "2", second, keep_views=True).is_new
    assert len(array) == PAGE


def test_arrays_that_outlive_a_chain_keep_its_blocks(marud_program):
    with Marud(marud_program, size="8MiB") as small, maru.Client(str(small.socket), timeout_ms=60_000) as client:
        client.store_copy("b", b"there already", parent=client.store_copy("a", b"root").block)
        client.delete_tree("a")
        client.store_copy("a", b"there already")
        buffers = client.alloc_batch(PAGE, 4)
        array, middle = (numpy.frombuffer(buffers[i].data, dtype=numpy.uint8) for i in (3, 0))
        for i, buffer in enumerate(buffers):
            buffer.data[:] = bytes([i + 7]) * PAGE
        chain = client.store_chain(["a", "b", "c", "d"], buffers, keep_views=True)
        assert chain.new_blocks == 3 and not any(buffer.is_held for buffer in buffers)
        with client.match_prefix(["a", "b", "c", "d"]) as match:
            assert (match.blocks, match.deepest) == (4, chain.blocks[3])
        assert [client.retrieve(key).block for key in "abcd"] == chain.blocks
        assert bytes(client.retrieve("a").data) == b"there already" and (middle == 7).all()
        assert client.statistics().pins == 1  # of "d", which the array shows; it holds the blocks above
        client.delete("d")
        for i in range(3000):  # more than the pool holds
            try:
                client.store_copy(f"other {i}", b"\xff" * PAGE)
            except maru.RegistryFullError:  # rare: both of its buckets are full
                pass
        assert (array == 10).all() and (middle == 7).all()
        del array, middle
        assert client.statistics().pins == 0


STORES = {
    "store": lambda client, keys, buffers, **more: client.store(keys[0], buffers[0], keep_views=True, **more),
    "store_batch": lambda client, keys, buffers, **more: client.store_batch(keys, buffers, keep_views=True, **more),
    "store_chain": lambda client, keys, buffers, **more: client.store_chain(keys, buffers, keep_views=True, **more),
}


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_memoryview_only_reads_once_its_buffer_is_stored(client, other, key, store, is_there):
    if is_there:
        other.store_copy(key, b"there already")
    buffer = client.alloc(PAGE)
    view = buffer.data
    array = numpy.frombuffer(view, dtype=numpy.uint8)
    view[:] = b"a" * PAGE
    store(client, [key], [buffer])
    for made in (view, view[1:], view.cast("f"), memoryview(view), memoryview(view.obj), memoryview(numpy.asarray(view))):
        assert made.readonly
        with pytest.raises(TypeError):
            made[0] = 1
    assert bytes(view) == b"a" * PAGE and array[0] == ord("a")
    assert bytes(other.retrieve(key).data)[:5] == (b"there" if is_there else b"aaaaa")


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_memoryview_of_what_was_not_stored_writes_again(client, key, store):
    buffer = client.alloc(PAGE)
    view = buffer.data
    try:
        assert store(client, [key], [buffer], parent="nobody").errors
    except maru.ParentGoneError:
        pass
    assert buffer.is_held and buffer.data is view and not view.readonly
    view[:] = b"b" * PAGE
    store(client, [key], [buffer])
    assert view.readonly and bytes(client.retrieve(key).data) == b"b" * PAGE


def test_a_memoryview_that_was_ended_is_counted_after_a_store_that_failed(client, key):
    buffer = client.alloc(PAGE)
    tensor = Tensor(buffer.data)
    with pytest.raises(maru.ParentGoneError):
        client.store(key, buffer, parent="nobody", keep_views=True)
    tensor.source.release()
    with pytest.raises(maru.ViewsHeldError):
        client.store(key, buffer)
    del tensor
    assert client.store(key, buffer).is_new


def test_a_chain_that_fails_leaves_its_buffers_held(client, other, key):
    gone = other.store_copy(key, b"x").block
    assert other.delete(key)
    buffers = client.alloc_batch(PAGE, 2)
    array = numpy.frombuffer(buffers[0].data, dtype=numpy.uint8)
    with pytest.raises(maru.ParentGoneError):
        client.store_chain([key, key + " 2"], buffers, parent=gone, keep_views=True)
    assert all(buffer.is_held for buffer in buffers) and client.statistics().pins == 0
    assert client.store_chain([key, key + " 2"], buffers, keep_views=True).new_blocks == 2
    assert client.statistics().pins == 1
    del array
    assert client.statistics().pins == 0


def test_dropped_buffers_return_their_pages(marud_program):
    with Marud(marud_program, size="8MiB") as small, maru.Client(str(small.socket), timeout_ms=60_000) as client:
        held = []
        with pytest.raises(maru.NoSpaceError):
            while True:
                held.append(client.alloc(PAGE))
        view = held[0].data
        view[0] = 1
        with held[1]:
            pass
        assert not held[1].is_held
        n = len(held)
        held.clear()
        view[0] = 2  # its page is kept for it
        again = client.alloc_batch(PAGE, n - 1)
        assert len(again) == n - 1


def test_everything_raises_after_close(marud, key):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    client.store_copy(key, b"x")
    view, pin, match, buffer = client.retrieve(key), client.pin(key), client.match_prefix([key]), client.alloc(PAGE)
    spare = client.retrieve(key)
    spare_data = spare.data
    pages = spare_data.obj
    spare_data.release()
    client.close()
    client.close()
    assert client.is_closed
    calls = [
        lambda: client.exists(key), lambda: client.exists_batch([key]), lambda: client.retrieve(key),
        lambda: client.retrieve_batch([key]), lambda: client.pin(key), lambda: client.pin_block(1),
        lambda: client.match_prefix([key]), lambda: client.alloc(PAGE), lambda: client.alloc_batch(PAGE, 2),
        lambda: client.store(key, buffer), lambda: client.store_copy(key, b"x"), lambda: client.store_chain([key], [buffer]),
        lambda: client.delete(key), lambda: client.delete_batch([key]), lambda: client.delete_tree(key),
        lambda: client.tenant("t"), client.geometry, client.statistics, client.evicted, client.reattach,
        lambda: client.daemon_epoch, lambda: view.data,
        lambda: buffer.data, lambda: match.resolve([key]), lambda: memoryview(pages),
    ]
    for call in calls:
        with pytest.raises(maru.ClosedError):
            call()
    for held in (view, pin, match, spare):
        held.release()
    buffer.abort()


def test_arrays_are_readable_after_close(marud, key):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    client.store_copy(key, b"x" * PAGE)
    lane = client.geometry().lane
    array = numpy.frombuffer(client.retrieve(key).data, dtype=numpy.uint8)
    client.close()
    del client
    gc.collect()
    assert (array == ord("x")).all()
    others = []
    with pytest.raises(maru.LanesExhaustedError):
        while True:
            others.append(maru.Client(str(marud.socket), timeout_ms=60_000, session_thread=False))
    assert lane not in [taken.geometry().lane for taken in others], "it is the array's"
    del array
    with maru.Client(str(marud.socket), timeout_ms=60_000) as last:
        assert last.geometry().lane == lane
    for taken in others:
        taken.close()


def test_an_attachment_ends_with_its_last_reference(marud):
    for _ in range(40):  # more than there are lanes
        maru.Client(str(marud.socket), timeout_ms=60_000)


def test_close_waits_for_nobody_and_calls_of_others_end_well(marud, key, digests):
    many = numpy.tile(digests, (64, 1))
    for _ in range(20):
        client = maru.Client(str(marud.socket), timeout_ms=60_000)
        started = threading.Barrier(4)
        ended = []

        def ask():
            started.wait()
            try:
                while True:
                    client.exists_batch(many)
                    client.store_copy(key, b"x")
                    client.retrieve_batch(many[:200])
            except maru.ClosedError:
                ended.append(True)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        client.close()
        for thread in threads:
            thread.join(30)
        assert len(ended) == 3


def attached(marud, digests):
    """A client with a chain of two blocks, a match of it and a buffer."""
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    client.store_chain(digests[:2], client.alloc_batch(PAGE, 2))
    return client, client.match_prefix(digests[:2]), client.alloc(PAGE)


@pytest.mark.parametrize("call, expected", [
    (lambda client, match, buffer, closing: client.exists_batch(closing(0, 1)), [True, True]),
    (lambda client, match, buffer, closing: [view.nbytes for view in client.retrieve_batch(closing(0, 1))], [PAGE, PAGE]),
    (lambda client, match, buffer, closing: client.match_prefix(closing(0, 1)).blocks, 2),
    (lambda client, match, buffer, closing: len(match.resolve(closing(0, 1))), 2),
    (lambda client, match, buffer, closing: client.delete_batch(closing(1, 0)), [True, True]),
    (lambda client, match, buffer, closing: client.store_chain(closing(2), [buffer]), maru.ClosedError),
    (lambda client, match, buffer, closing: client.store_chain([b"k"], (buffer for _ in closing(2))), maru.ClosedError),
], ids=["exists", "retrieve", "match", "resolve", "delete", "store", "buffers"])
def test_arguments_that_close_the_client_let_the_call_end(marud, digests, call, expected):
    """Python code runs while arguments are read; the client must be there until the call has ended."""
    client, match, buffer = attached(marud, digests)

    def closing(*numbers):
        match.release()
        client.close()
        yield from (maru.Digest(digests[number]) for number in numbers)

    if expected is maru.ClosedError:  # of the buffer
        with pytest.raises(maru.ClosedError):
            call(client, match, buffer, closing)
    else:
        assert call(client, match, buffer, closing) == expected
    with pytest.raises(maru.ClosedError):
        client.exists(digests[0])


@pytest.mark.parametrize("keep_views", [False, True])
def test_the_end_of_a_view_may_close_and_abort(marud, other, key, keep_views):
    """What somebody wants called when the memoryview ends, which is in the middle of a store."""
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    buffer = client.alloc(PAGE)
    buffer.data[:] = b"x" * PAGE

    def end(_):
        buffer.abort()
        client.close()

    watched = weakref.ref(buffer.data, end)
    assert client.store(key, buffer, keep_views=keep_views).is_new
    assert watched() is None and client.is_closed
    assert bytes(other.retrieve(key).data) == b"x" * PAGE


def test_a_child_is_told_that_it_is_one(marud, key):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    client.store_copy(key, b"x")
    view, buffer, match = client.retrieve(key), client.alloc(PAGE), client.match_prefix([key])
    pages = client.retrieve(key).data.obj
    child = os.fork()
    if child == 0:
        wrong = 1
        try:
            wrong = 0
            for call in (lambda: client.exists(key), lambda: client.retrieve_batch([key]), lambda: view.data,
                         lambda: buffer.data, lambda: client.store(key, buffer), lambda: match.resolve([key]),
                         lambda: memoryview(pages), client.geometry, lambda: client.store_copy(key, b"x")):
                try:
                    call()
                    wrong += 1
                except maru.ForkedError:
                    pass
            with maru.Client(str(marud.socket), timeout_ms=60_000) as own:
                wrong += bytes(own.retrieve(key).data) != b"x"
            del view, buffer, match
            client.close()
            del client
            gc.collect()
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(view.data) == b"x" and buffer.is_held and client.exists(key)
    buffer.data[0] = 1
    client.store(key + "2", buffer)
    client.close()


def test_threads_that_store_one_key_have_one_winner(client, key):
    winners = []
    ready = threading.Barrier(8)

    def store(i):
        ready.wait()
        if client.store_copy(key, bytes([i]) * PAGE).is_new:
            winners.append(i)

    threads = [threading.Thread(target=store, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert bytes(client.retrieve(key).data) == bytes(winners) * PAGE


def test_a_socket_may_be_a_path_and_what_is_none_is_refused(marud):
    with maru.Client(marud.socket, timeout_ms=60_000) as client:  # a pathlib.Path
        assert not client.exists("nothing")
    for arguments in ({"socket_path": 5}, {"socket_path": os.fsencode(marud.socket)}, {"pool": 5}, {"pool": marud.socket},
                      {"pool": "\ud800"}, {"timeout_ms": -1}, {"timeout_ms": 1.5}, {"thread_cache_pages": 1 << 32}):
        with pytest.raises(maru.InvalidArgumentError, match=next(iter(arguments))):
            maru.Client(**{"socket_path": str(marud.socket), **arguments})


@pytest.mark.parametrize("arguments", [{"socket_path": "/nonexistent/socket"}, {"pool": "nobody"}])
def test_no_marud_and_no_pool_are_named(marud, arguments):
    with pytest.raises(maru.NotFoundError, match="no such pool or socket"):
        maru.Client(**{"socket_path": str(marud.socket), **arguments})


def test_without_marud_stores_end_and_lookups_go_on(marud_program, key):
    with Marud(marud_program, size="8MiB") as running:
        client = maru.Client(str(running.socket), timeout_ms=60_000)
        client.store_copy(key, b"x")
        running.process.kill()
        running.process.wait()
        assert client.exists(key) and bytes(client.retrieve(key).data) == b"x"
        with pytest.raises(maru.DaemonUnreachableError):
            client.delete_tree(key)
        with pytest.raises(maru.DaemonUnreachableError):
            maru.Client(str(running.socket), timeout_ms=60_000)
        client.close()


def test_a_pool_that_is_unavailable_is_named(marud_program, tmp_path):
    """marud serves its other pools meanwhile."""
    away = f'[[pool]]\nname = "far"\nbackend = "dax"\ndevice = "{tmp_path}/missing/dax0.0"\n'
    with Marud(marud_program, more=away) as running:
        with maru.Client(str(running.socket)) as served:
            assert served.store_copy("key", b"there")
        with pytest.raises(maru.PoolUnavailableError, match="marudctl status") as raised:
            maru.Client(str(running.socket), "far")
        assert raised.value.errno == errno.ENODEV and raised.value.call == "maru_attach"
