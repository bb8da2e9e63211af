"""MaruHandler where the older system's behaviour was a defect: an error is no miss, what is read is not overwritten, nothing
leaks, and a process that dies or forks takes nothing with it."""
import dataclasses
import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy
import pytest

import maru
from test_handler import CHUNK, config, handler, peer, put, read


@pytest.fixture
def small(marud_program):
    """A marud of its own, to be filled or killed."""
    from with_marud import Marud
    with Marud(marud_program, size="8MiB") as running:
        yield running


# -- errors are errors ------------------------------------------------------------------------------------------------------

def test_the_context_raises_what_hinders_connecting(marud):
    with pytest.raises(maru.NotFoundError):
        with maru.MaruHandler(config(marud, server_url="/nonexistent/socket")):
            pass


def test_a_dead_daemon_is_no_miss(small, key):
    with maru.MaruHandler(config(small, timeout_ms=60_000)) as handler:
        assert handler.healthcheck() and put(handler, key, b"x")
        kept = [handler.alloc(CHUNK)]
        small.process.kill()
        small.process.wait()
        assert read(handler, key) == b"x" and handler.batch_exists([key, key + "2"]) == [True, False]
        assert handler.pin(key) and handler.unpin(key) and handler.healthcheck() is False
        with pytest.raises(maru.DaemonUnreachableError):
            while True:
                kept.append(handler.alloc(CHUNK))
        before = handler.allocator.num_allocated
        assert before == len(kept)  # the failed one has left no trace


def test_pins_that_run_out_are_an_error_and_leave_nothing(marud_program, key):
    from with_marud import Marud
    with Marud(marud_program, size="160MiB") as running, maru.MaruHandler(config(running)) as handler:
        keys = [f"{key} {i}" for i in range(30_000)]  # pins are given out beyond the limit while there is room
        for name in keys:
            try:
                put(handler, name, b"x")
            except maru.RegistryFullError:  # rare: both of its buckets are full
                pass
        with pytest.raises(maru.PinsExhaustedError):
            handler.batch_pin(keys)
        assert handler.get_stats()["native"]["pins"] == 0 and handler.delete(keys[0])


@pytest.mark.parametrize("wrong", [None, 5.0, "x" * 4097, ["k"]])
def test_what_is_no_key_is_refused(handler, wrong):
    handle = handler.alloc(1)
    for call in (handler.exists, handler.retrieve, handler.pin, handler.delete,
                 lambda k: [handler.unpin(k), handler.pin(k)], lambda k: handler.store(k, handle),
                 lambda k: handler.batch_exists(["good", k]), lambda k: handler.batch_retrieve([k]),
                 lambda k: handler.batch_pin([k]), lambda k: handler.batch_store([k], [handle])):
        with pytest.raises(maru.InvalidArgumentError):
            call(wrong)
    assert not handle.is_spent and handler.store("good after all", handle)


def test_a_config_is_wanted():
    with pytest.raises(maru.InvalidArgumentError):
        maru.MaruHandler("tcp://localhost:5555")


def test_a_wrong_batch_stores_nothing(handler, key):
    good, spent = handler.alloc(1), handler.alloc(1)
    handler.free(spent)
    for handles in ([good, spent], [good, good], [good, "handle"]):
        with pytest.raises(maru.InvalidArgumentError):
            handler.batch_store([key, key + "2"], handles)
        assert not handler.exists(key) and not good.is_spent


def test_what_of_a_batch_the_pool_does_not_take_is_false_and_said(marud_program, key, caplog):
    from with_marud import Marud
    with Marud(marud_program, pins=64) as running, maru.MaruHandler(config(running)) as handler:
        keys = [f"{key} {i}" for i in range(2000)]
        handles = [handler.alloc(4) for _ in keys]
        for i, handle in enumerate(handles):
            handle._fill = lambda page, i=i: page.__setitem__(slice(None), i.to_bytes(4, "little"))
        arrays = [numpy.frombuffer(handle.buf, numpy.uint8) for handle in handles[::2]]  # of each a pin is wanted
        stored = handler.batch_store(keys, handles)
        assert all(stored[1::2]) and 0 < stored.count(False) < 1000 and stored == handler.batch_exists(keys)
        assert stored.count(False) == caplog.text.count("every pin slot of this client is taken")
        assert all(handle.is_spent for handle in handles) and handler.allocator.num_allocated == 0
        del arrays
        assert [int.from_bytes(read(handler, name), "little") for name in keys[1::2]] == list(range(1, 2000, 2))


def test_what_the_pool_does_not_take_is_false_and_said(marud_program, key, caplog):
    from with_marud import Marud
    limit = 'tenants = "listed"'
    with Marud(marud_program, size="8MiB", more=limit) as running:
        with maru.MaruHandler(config(running, server_url=f"maru://{running.socket}?tenant=nobody")) as handler:
            handle = handler.alloc(10)
            assert handler.store(key, handle) is False and handle.is_spent
            assert "TenantNotListed" in caplog.text or "listed tenants" in caplog.text
            assert not handler.exists(key) and handler.allocator.num_allocated == 0
            assert not handle._buffer.is_held  # its pages are the pool's again, although the handle is kept
            handler.free(handle)  # as callers do in a `finally`: once, and it is nobody's page
            assert handler.allocator.num_allocated == 0
            with pytest.raises(maru.HandleUsedError):
                handler.free(handle)


def test_a_damaged_value_is_an_error_and_then_absent(marud_program, key, caplog):
    from with_marud import Marud
    payloads = [os.urandom(2000) for _ in range(3)]
    with Marud(marud_program, more="checksums = true") as running, maru.MaruHandler(config(running)) as handler:
        keys = [f"{key} {i}" for i in range(3)]
        for name, payload in zip(keys, payloads):
            put(handler, name, payload)
        running.damage(payloads[0])
        running.damage(payloads[1])
        with pytest.raises(maru.DamagedBlockError):
            handler.retrieve(keys[0])
        assert handler.retrieve(keys[0]) is None
        # Of a batch the others are wanted all the same: what is damaged is counted and said, and absent at once.
        assert [info is not None for info in handler.batch_retrieve(keys)] == [False, False, True]
        said, = (record.getMessage() for record in caplog.records if record.name == "maru" and record.levelname == "ERROR")
        assert "checksum" in said and keys[1] in said
        assert handler.get_stats()["native"]["checksum_errors"] == 2 and handler.get_stats()["native"]["pins"] == 0
        assert put(handler, keys[0], payloads[0]) and read(handler, keys[0]) == payloads[0]


# -- what is read stays -----------------------------------------------------------------------------------------------------

def test_a_value_that_is_read_is_not_reused(small, key):
    with maru.MaruHandler(config(small)) as handler, maru.MaruHandler(config(small)) as peer:
        put(handler, key, b"\xaa" * CHUNK)
        array = numpy.frombuffer(peer.retrieve(key).view, dtype=numpy.uint8)
        assert handler.delete(key)
        for i in range(400):  # more than the pool holds
            put(handler, f"{key} {i}", b"\xcc" * CHUNK)
        assert (array == 0xAA).all() and not array.flags.writeable


def test_eviction_runs_under_a_handler(small, key):
    with maru.MaruHandler(config(small)) as handler:
        put(handler, key, b"pinned")
        assert handler.pin(key)
        for i in range(400):
            assert put(handler, f"{key} {i}", i.to_bytes(2, "little") * (CHUNK // 2))
        assert read(handler, key) == b"pinned"
        present = handler.batch_exists([f"{key} {i}" for i in range(400)])
        assert not all(present) and present[-1]


def test_free_after_a_store_leaves_the_value(handler, key):
    handle = handler.alloc(1)
    handle.buf[:] = b"\x11"
    assert handler.store(key, handle)
    handler.free(handle)
    for i in range(20):
        put(handler, f"{key} {i}", b"\x33")
    assert read(handler, key) == b"\x11"


def test_a_duplicate_leaves_arrays_their_pages(handler, peer, key):
    """Somebody else stored the key meanwhile: what this array shows must not become another block."""
    handle = handler.alloc(CHUNK)
    array = numpy.frombuffer(handle.buf, dtype=numpy.uint8)
    array[:] = 5
    put(peer, key, b"first")
    assert handler.store(key, handle)
    others = [handler.alloc(CHUNK) for _ in range(30)]
    for other in others:
        other.buf[:] = b"\xff" * CHUNK
    assert (array == 5).all() and read(handler, key) == b"first"


def test_a_stored_value_is_pinned_while_its_arrays_live(small, key):
    with maru.MaruHandler(config(small)) as handler:
        handle = handler.alloc(CHUNK)
        array = numpy.frombuffer(handle.buf, dtype=numpy.uint8)
        array[:] = 9
        assert handler.store(key, handle)
        for i in range(400):
            put(handler, f"{key} {i}", b"\xff" * CHUNK)
        assert handler.exists(key) and (array == 9).all()
        del array, handle
        for i in range(400, 800):
            put(handler, f"{key} {i}", b"\xff" * CHUNK)
        assert not handler.exists(key)


def test_a_stored_handle_has_no_buffer_and_keeps_nothing(handler, key):
    handle = handler.alloc(1)
    kept = handle.buf
    handler.store(key, handle)
    with pytest.raises(maru.ClosedError):
        handle.buf
    assert handler.get_stats()["native"]["pins"] == 1  # for whoever kept it
    del kept
    assert handler.get_stats()["native"]["pins"] == 0


def test_views_are_readable_after_close(marud, key):
    handler = maru.MaruHandler(config(marud))
    assert handler.connect()
    put(handler, key, b"x" * 100)
    info = handler.retrieve(key)
    array = numpy.frombuffer(info.view, dtype=numpy.uint8)
    assert info.page_index >= 0
    handler.close()
    assert (array == ord("x")).all() and bytes(info.view) == b"x" * 100


# -- life -------------------------------------------------------------------------------------------------------------------

def test_pins_end_with_the_info(handler, key):
    put(handler, key, b"x")
    info = handler.retrieve(key)
    part = info.view[0:1]
    assert info.page_index == handler.retrieve(key).page_index
    del info
    gc.collect()
    assert handler.get_stats()["native"]["pins"] == 1
    del part
    assert handler.get_stats()["native"]["pins"] == 0


def test_pins_of_the_dead_end(small, key):
    with maru.MaruHandler(config(small)) as handler:
        put(handler, key, b"x")
        program = textwrap.dedent(f"""
            import maru, os
            handler = maru.MaruHandler(maru.MaruConfig(server_url={str(small.socket)!r}, chunk_size_bytes={CHUNK}))
            assert handler.connect() and handler.pin({key!r}) and handler.alloc(5)
            os.kill(os.getpid(), 9)
        """)
        assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == -9
        for i in range(5000):  # until marud has noticed and evicts it
            try:
                put(handler, f"{key} {i}", b"\xff" * CHUNK)
            except maru.RegistryFullError:  # rare: both of its buckets are full
                pass
            if not handler.exists(key):
                break
        assert not handler.exists(key)


def test_close_waits_for_stores_and_everything_after_raises(marud, key):
    for _ in range(10):
        handler = maru.MaruHandler(config(marud))
        assert handler.connect()
        started, ended = threading.Barrier(4), []

        def work(i):
            started.wait()
            try:
                for n in range(10_000_000):
                    put(handler, f"{key} {i} {n % 50}", b"x" * 100)
                    handler.batch_exists([key])
            except (maru.ClosedError, maru.HandleUsedError):
                ended.append(True)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        handler.close()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 3 and not handler.connected


def test_close_lets_a_store_that_is_under_way_finish(marud, key):
    entered, go, order = threading.Event(), threading.Event(), []

    class Slow(maru.MaruHandler):
        def _store(self, *arguments):
            entered.set()
            assert go.wait(60)
            order.append(super()._store(*arguments))
            return order[-1]

    handler = Slow(config(marud))
    assert handler.connect()
    storing = threading.Thread(target=put, args=(handler, key, b"x"))
    storing.start()
    assert entered.wait(60)
    closing = threading.Thread(target=lambda: [handler.close(), order.append("closed")])
    closing.start()
    while handler.connected:
        pass
    closing.join(0.2)  # not awaited: a close() that does not wait has every chance to end
    go.set()
    storing.join(60)
    closing.join(60)
    assert order == [True, "closed"]


def test_a_closed_handler_connects_again(marud, key):
    handler = maru.MaruHandler(config(marud))
    assert handler.connect()
    old = handler.alloc(1)
    handler.close()
    assert handler.connect()
    with pytest.raises(maru.HandleUsedError):
        handler.store(key, old)
    assert put(handler, key, b"x")
    handler.close()


def test_a_callback_that_raises_hinders_connecting(marud, caplog):
    def fail(region_id, pages):
        raise ZeroDivisionError(f"of region {region_id}")

    handler = maru.MaruHandler(config(marud))
    handler.set_on_region_added(fail)
    assert handler.connect() is False and not handler.connected and "of region 1" in caplog.text
    with pytest.raises(ZeroDivisionError), handler:
        pass
    assert not handler.connected
    handler.set_on_region_added(None)
    assert handler.connect() and handler.get_stats()["native"]["pins"] == 0
    handler.close()


def test_a_config_that_is_changed_later_changes_nothing(marud):
    given = config(marud)
    handler = maru.MaruHandler(given)
    given.chunk_size_bytes = 0
    assert handler.connect() and handler.alloc(1) and handler.get_chunk_size() == CHUNK
    handler.close()
    for name, wrong in (("chunk_size_bytes", 0), ("timeout_ms", -5), ("server_url", 5), ("read_only", "no")):
        changed = config(marud)
        setattr(changed, name, wrong)
        with pytest.raises(maru.InvalidArgumentError):
            maru.MaruHandler(changed)


def test_a_config_may_be_of_a_class_that_is_made_otherwise(marud):
    class Own(maru.MaruConfig):
        def __init__(self, socket):
            super().__init__(server_url=str(socket), chunk_size_bytes=CHUNK, instance_id="own")
            self.more = 1

    @dataclasses.dataclass(slots=True)
    class InSlots(maru.MaruConfig):
        more: int = 1

    @dataclasses.dataclass
    class Asking(maru.MaruConfig):
        strict: dataclasses.InitVar[bool] = False

        def __post_init__(self, strict):
            super().__post_init__()
            self.seen = strict

        def __getstate__(self):
            raise TypeError("not to be copied")

    usual = dict(server_url=str(marud.socket), chunk_size_bytes=CHUNK, instance_id="own")
    for given in (Own(marud.socket), InSlots(**usual), Asking(**usual, strict=True)):
        with maru.MaruHandler(given) as handler:
            assert handler.instance_id == "own" and handler.get_chunk_size() == CHUNK and handler.healthcheck()
        given.chunk_size_bytes = 0
        with pytest.raises(maru.InvalidArgumentError):
            maru.MaruHandler(given)


def test_what_is_no_number_and_no_sequence_is_refused(handler, key):
    put(handler, key, b"x")
    handle = handler.alloc(1)
    for call in (lambda: handler.batch_store((name for name in [key]), [handle]), lambda: handler.batch_store(None, None),
                 lambda: handler.batch_store([key], iter([handle])), lambda: handler.batch_store(key[:1], [handle]),
                 lambda: handler.get_buffer_view(None, 0, 1), lambda: handler.get_buffer_view(0, "0", 1),
                 lambda: handler.get_buffer_view(1, 0.0, 1), lambda: handler.get_region_page_count([]),
                 lambda: handler.get_region_page_count("1"), lambda: handler.alloc(numpy.bool_(True))):
        with pytest.raises(maru.InvalidArgumentError):
            call()
    assert not handle.is_spent


class Interposed:
    """The client of a handler; meanwhile() begins in another thread around its next call of this name."""

    def __init__(self, handler, name, meanwhile, is_before):
        self.client, self.name, self.is_before = handler._client, name, is_before
        self.thread = threading.Thread(target=meanwhile)
        handler._client = self

    def __getattr__(self, name):
        found = getattr(self.client, name)
        if name != self.name or self.thread.ident is not None:
            return found

        def call(*arguments, **keywords):
            result = None if self.is_before else found(*arguments, **keywords)
            self.thread.start()
            self.thread.join(0.2)  # or it waits for this thread
            return found(*arguments, **keywords) if self.is_before else result

        return call


@pytest.mark.parametrize("pin, pin_call", [
    (lambda handler, key: handler.pin(key), "pin"), (lambda handler, key: handler.batch_pin([key])[0], "pin_batch")])
def test_what_is_pinned_at_this_moment_is_not_deleted(handler, key, pin, pin_call):
    put(handler, key, b"x")
    answers = []
    client = handler._client
    deleting = Interposed(handler, pin_call, lambda: answers.append(handler.delete(key)), is_before=False)
    answers.append(pin(handler, key))
    deleting.thread.join(60)
    assert answers == [True, False] and handler.unpin(key)
    handler._client = client
    pinning = Interposed(handler, "delete", lambda: answers.append(pin(handler, key)), is_before=True)
    answers.append(handler.delete(key))
    pinning.thread.join(60)
    handler._client = client
    assert answers[2:] == [True, False] and not handler.exists(key)


def test_numbers_of_numpy_are_numbers(marud):
    with maru.MaruHandler(config(marud, pool_size=numpy.int64(4 * CHUNK), chunk_size_bytes=numpy.uint32(CHUNK))) as handler:
        handle = handler.alloc(numpy.int64(10))
        assert handle.size == handle.buf.nbytes == 10 and type(handle.size) is int


def test_a_place_of_before_leads_to_nothing_else(marud, key):
    with maru.MaruHandler(config(marud)) as handler:
        for number in ("", " 2", " 3"):
            put(handler, key + number, b"first" + number.encode())
        before, late, handle = handler.retrieve(key), handler.retrieve(key), handler.alloc(1)
        place = before.page_index
        del before
        handler.close()
        assert handler.connect()
        later = handler.retrieve(key + " 2")
        assert later.page_index != place and handler.get_buffer_view(0, place * CHUNK, 1) is None
        # A place of before that is asked for only now.
        place = late.page_index
        last = handler.retrieve(key + " 3")
        assert len({place, later.page_index, last.page_index}) == 3
        assert handler.get_buffer_view(0, place * CHUNK, 1) is None and handler._key_at(0, place) is None
        assert bytes(late.view) == b"first"
        # And one of the budget.
        now = handler.alloc(1)
        assert handler.get_buffer_view(now.region_id, now.page_index * CHUNK, 1) is not None
        assert handler.get_buffer_view(handle.region_id, handle.page_index * CHUNK, 1) is None
        assert handler.get_owned_region_ids() == [now.region_id] == [handler.pool_handle.region_id] != [handle.region_id]
        assert handler.get_region_page_count(handle.region_id) is None and handler.allocator.num_allocated == 1


def test_an_allocation_is_of_one_attachment(marud, key):
    """While another thread closes the handler and connects it again, which here comes when its client has been asked for."""
    comes = []

    class Interrupted(maru.MaruHandler):
        def _ask(self):
            client = super()._ask()
            if comes:
                comes.pop()
                self.close()
                assert self.connect()
            return client

    with Interrupted(config(marud)) as handler:
        comes.append(True)
        handle = handler.alloc(1)
        assert handler.get_buffer_view(handle.region_id, handle.page_index * CHUNK, 1) is not None
        assert handler.store(key, handle)
        comes.append(True)
        [found] = handler.batch_retrieve([key])
        assert not comes and handler.get_buffer_view(0, found.page_index * CHUNK, 1) is not None


def test_a_child_is_told_and_may_connect_itself(handler, key):
    put(handler, key, b"x")
    info, handle = handler.retrieve(key), handler.alloc(1)
    place, seat = info.page_index, (handle.region_id, handle.page_index)
    child = os.fork()
    if child == 0:
        wrong = 1
        try:
            wrong = int(handler.connected) + int(handler.healthcheck())
            for call in (lambda: handler.exists(key), lambda: handler.retrieve(key), lambda: handler.alloc(1),
                         lambda: handler.pin(key), handler.get_stats, lambda: handler.delete(key),
                         lambda: info.view, lambda: info.region_id, lambda: info.page_index,
                         lambda: handler.unpin(key), lambda: handler.batch_unpin([key]),
                         lambda: handler.batch_pin([]),
                         lambda: handler.batch_exists([key]), lambda: handler.batch_retrieve([key]),
                         lambda: handler.get_buffer_view(0, 0, 1), lambda: handler.get_region_page_count(1),
                         lambda: handler.free(handle), lambda: handler.store(key + "2", handle),
                         lambda: handler.batch_store([key + "2"], [handle])):
                try:
                    call()
                    wrong += 1
                except maru.ForkedError as error:
                    wrong += "call connect() " not in str(error)
            wrong += handler.get_owned_region_ids() != [] or handler.pool_handle is not None or handler.mapper is not None
            wrong += not handler.connect()
            wrong += read(handler, key) != b"x" or not put(handler, key + " child", b"y")
            mine, handle_of_mine = handler.retrieve(key), handler.alloc(1)
            wrong += handler.get_buffer_view(0, mine.page_index * CHUNK, 1) is None
            wrong += handler.get_buffer_view(0, place * CHUNK, 1) is not None
            wrong += handler.get_buffer_view(handle_of_mine.region_id, handle_of_mine.page_index * CHUNK, 1) is None
            wrong += handler.get_buffer_view(seat[0], seat[1] * CHUNK, 1) is not None
            del info, handle, mine, handle_of_mine
            handler.close()
            gc.collect()
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert handler.connected and bytes(info.view) == b"x" and read(handler, key + " child") == b"y"
    assert handler.store(key + "2", handle)


def test_threads_of_a_child_that_connect_at_once_share_one_attachment(marud, monkeypatch):
    made, attach, others = [], maru.Client, []
    monkeypatch.setattr("maru.handler.Client", lambda *arguments, **more: made.append(1) or attach(*arguments, **more))

    class Interrupted(maru.MaruHandler):
        """In the child a second thread connects right after the first has seen that this is one."""

        @property
        def _is_forked(self):
            is_forked = self._forked
            if is_forked and not others:
                others.append(threading.Thread(target=self.connect))
                others[0].start()
                others[0].join(0.5)  # or it waits for this thread
            return is_forked

        @_is_forked.setter
        def _is_forked(self, value):
            self._forked = value

    handler = Interrupted(config(marud))
    assert handler.connect() and len(made) == 1
    child = os.fork()
    if child == 0:
        wrong = 1
        try:
            wrong = not handler.connect()
            others[0].join()
            wrong += 2 * (len(made) != 2) + 4 * (handler.exists("nothing") is not False)
            handler.close()
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    handler.close()


def test_the_tenant_of_the_address_is_used(marud, handler, key):
    with maru.MaruHandler(config(marud, server_url=f"maru://{marud.socket}?tenant=alice")) as alice:
        keys = [key, key + " everybody's"]
        put(alice, keys[0], b"hers")
        put(handler, keys[1], b"everybody's")
        for one, own, other in ((alice, *keys), (handler, *keys[::-1])):
            for name, is_there in ((own, True), (other, False)):
                assert one.exists(name) is is_there and one.batch_exists([name]) == [is_there]
                assert (one.retrieve(name) is not None) is (one.batch_retrieve([name])[0] is not None) is is_there
                assert one.pin(name) is one.unpin(name) is is_there
                assert one.batch_pin([name]) == one.batch_unpin([name]) == [is_there]
        assert alice.delete(keys[1]) is handler.delete(keys[0]) is False
        assert alice.delete(keys[0]) is handler.delete(keys[1]) is True


def first_absent(found):
    for i, info in enumerate(found):
        if info is None:
            return i
    return None


@pytest.mark.parametrize("read, pinned", [
    (list, [0, 1, 3, 4]), (lambda found: [len(info.view) for info in found if info is not None], [0, 1, 3, 4]),
    (lambda found: list(zip(range(5), found)), [0, 1, 3]), (lambda found: list(zip(found, range(5))), [0, 1, 3, 4]),
    (lambda found: found[3], [0, 1, 3, 4]), (first_absent, [0, 1]), (lambda found: next(iter(found)), [])])
def test_a_reader_that_stops_ends_the_pins_of_what_it_leaves(handler, key, read, pinned):
    """For LMCache, which the adapter says: it reads on to the first that it cannot use, and ends no pins behind it."""
    handler._ends_pins_of_unread = True
    keys = [f"{key} {i}" for i in range(5)]
    for name in keys:
        assert put(handler, name, b"x") and handler.pin(name)
    assert handler.unpin(keys[2]) and handler.delete(keys[2])
    read(handler.batch_retrieve(keys))
    assert [i for i, name in enumerate(keys) if handler.unpin(name)] == pinned
