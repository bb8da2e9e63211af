"""MaruHandler: what threads and regions share, and what lookups leave behind: no reference, no pin, no place."""
import functools
import gc
import os
import random
import sys
import threading
import weakref

import numpy
import pytest

import maru
from test_handler import CHUNK, config, handler, peer, put, read


def run(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


def in_turns_of_a_few_steps(test):
    """Python lets another thread on after every few steps, not after milliseconds."""
    @functools.wraps(test)
    def run_test(*arguments, **keywords):
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            test(*arguments, **keywords)
        finally:
            sys.setswitchinterval(usual)
    return run_test


# -- threads ----------------------------------------------------------------------------------------------------------------

@in_turns_of_a_few_steps
def test_threads_that_allocate_free_drop_and_store_leave_every_page(marud, key):
    with maru.MaruHandler(config(marud, auto_expand=False)) as handler:
        failed = []

        def work(seed):
            choice = random.Random(seed)
            try:
                held = []
                for turn in range(300):
                    held.append(handler.alloc(choice.randrange(1, CHUNK)))
                    if len(held) > 5:
                        held[-1].buf[:1] = bytes([seed])
                        assert handler.store(f"{key} {seed}", held.pop())
                        handler.free(held.pop())
                        del held[choice.randrange(len(held)):]  # dropped is freed
            except Exception as error:
                failed.append(error)

        run([threading.Thread(target=work, args=(seed,)) for seed in range(6)])
        assert not failed and handler.allocator.num_allocated == 0
        assert len([handler.alloc(1) for _ in range(64)]) == 64
        assert [read(handler, f"{key} {seed}")[0] for seed in range(6)] == list(range(6))


@in_turns_of_a_few_steps
def test_a_handle_is_used_once_whoever_comes(handler, key):
    """Two that free it and two that store it, at once: its place is left once, and is given to one thereafter."""
    for turn in range(300):
        handle, start, freed, other = handler.alloc(1), threading.Barrier(4), [], []

        def free():
            start.wait()
            try:
                handler.free(handle)
                freed.append(True)
            except maru.HandleUsedError:
                freed.append(False)

        def store():
            start.wait()
            try:
                handler.store(f"{key} {turn % 5}", handle)
            except (maru.HandleUsedError, maru.ClosedError):
                pass
            except Exception as error:
                other.append(error)

        run([threading.Thread(target=call) for call in (free, store, free, store)])
        assert sorted(freed) == [False, True] and handle.is_spent and not other
        assert handler.allocator.num_allocated == 0
        assert {handler.alloc(1).page_index, handler.alloc(1).page_index} == {0}
        pair = handler.alloc(1), handler.alloc(1)
        assert [one.page_index for one in pair] == [0, 1]
        del pair


def test_threads_that_expand_at_once_add_what_is_needed(marud):
    with maru.MaruHandler(config(marud, pool_size=CHUNK, expand_size=2 * CHUNK)) as handler:
        taken, told, both = [handler.alloc(1)], [], threading.Barrier(2)
        handler.set_on_region_added(lambda region_id, pages: told.append((region_id, pages)))
        take, seen = handler._budget.take, set()

        def take_when_both_know_that_there_is_none():
            place = take()
            if place is None and threading.get_ident() not in seen:
                seen.add(threading.get_ident())
                both.wait(60)
            return place

        handler._budget.take = take_when_both_know_that_there_is_none
        run([threading.Thread(target=lambda: taken.append(handler.alloc(1))) for _ in range(2)])
        assert {(one.region_id, one.page_index) for one in taken} == {(1, 0), (2, 0), (2, 1)}
        assert told == [(1, 1), (2, 2)] and handler.get_owned_region_ids() == [1, 2]


def test_connecting_at_once_makes_one_attachment(marud, monkeypatch):
    made = []

    def attach(*arguments, **keywords):
        made.append(maru.Client(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr("maru.handler.Client", attach)
    handler, start, connected = maru.MaruHandler(config(marud)), threading.Barrier(6), []

    def connect():
        start.wait()
        connected.append(handler.connect())

    run([threading.Thread(target=connect) for _ in range(6)])
    assert connected == [True] * 6 and len(made) == 1
    handler.close()
    assert made[0].is_closed


class Meanwhile:
    """The client of a handler that is closed, and connected again, in the middle of its next call of this name."""

    def __init__(self, handler, name, is_before):
        self.client, self.handler, self.name, self.is_before = handler._client, handler, name, is_before
        handler._client = self

    def __getattr__(self, name):
        def call(*arguments, **keywords):
            result = None if self.is_before else getattr(self.client, name)(*arguments, **keywords)
            self.handler.close()
            assert self.handler.connect()
            return getattr(self.client, name)(*arguments, **keywords) if self.is_before else result

        return call if name == self.name else getattr(self.client, name)


def test_closed_and_connected_again_in_the_middle_of_alloc(marud, key):
    with maru.MaruHandler(config(marud)) as handler:
        kept = handler.alloc(1)
        Meanwhile(handler, "alloc", is_before=True)
        with pytest.raises(maru.ClosedError):
            handler.alloc(1)
        assert handler.allocator.num_allocated == 0 and handler.alloc(1).page_index == 0
        Meanwhile(handler, "alloc", is_before=False)
        late = handler.alloc(1)
        with pytest.raises(maru.HandleUsedError):
            handler.store(key, late)
        del late, kept
        assert handler.allocator.num_allocated == 0 and put(handler, key, b"x")


@pytest.mark.parametrize("pin, pin_call", [
    (lambda handler, key: handler.pin(key), "pin"), (lambda handler, key: handler.batch_pin([key]), "pin_batch")])
def test_a_pin_that_comes_after_close_is_nobodys(marud, key, pin, pin_call):
    with maru.MaruHandler(config(marud)) as handler:
        put(handler, key, b"x")
        Meanwhile(handler, pin_call, is_before=False)
        with pytest.raises(maru.NotConnectedError):
            pin(handler, key)
        assert handler.unpin(key) is False and handler.delete(key) is True


def test_lookups_do_not_wait_for_a_store_that_is_under_way(marud, peer, key):
    entered, go = threading.Event(), threading.Event()

    class Slow(maru.MaruHandler):
        def _store(self, *arguments):
            entered.set()
            assert go.wait(120)
            return super()._store(*arguments)

    put(peer, key, b"there")
    with Slow(config(marud)) as handler:
        answers = []
        storing = threading.Thread(target=put, args=(handler, key + " slow", b"x"))
        storing.start()
        try:
            assert entered.wait(60)

            def look_up():
                answers.append((read(handler, key), handler.exists(key + " slow"), handler.batch_exists([key]),
                                handler.pin(key), handler.unpin(key), handler.alloc(1).size))

            run([threading.Thread(target=look_up)])
            assert answers == [(b"there", False, [True], True, True, 1)]
        finally:
            go.set()
            storing.join(60)
        assert handler.exists(key + " slow")


def test_threads_that_ask_for_a_place_at_once_are_told_the_same(handler, key):
    for turn in range(20):
        put(handler, f"{key} {turn}", b"x")
        info, told, start = handler.retrieve(f"{key} {turn}"), [], threading.Barrier(4)

        def ask():
            start.wait()
            told.append((info.region_id, info.page_index))

        run([threading.Thread(target=ask) for _ in range(4)])
        assert told == [(0, 0)] * 4  # the place of the turn before is free again
        del info, ask


def test_a_list_may_change_while_it_is_asked_for(handler, key):
    names = [f"{key} {i}" for i in range(2000)]
    for name in names[::3]:
        put(handler, name, b"x")
    expected = [True, False, False] * 667
    ended = threading.Event()
    keys = list(names)

    def change():
        while not ended.is_set():
            keys.clear()
            keys.extend(f"{key} {i}" for i in range(2000))  # other strings of the same text

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(300):
            present = handler.batch_exists(keys)
            assert present == expected[:len(present)]
            found = [info is not None for info in handler.batch_retrieve(keys)]
            assert found == expected[:len(found)]
    finally:
        ended.set()
        changing.join(60)


# -- regions ----------------------------------------------------------------------------------------------------------------

def test_values_of_an_added_region_are_like_all_others(marud, peer, key):
    with maru.MaruHandler(config(marud, pool_size=CHUNK, expand_size=CHUNK)) as handler:
        first, second = handler.alloc(5), handler.alloc(6)
        assert (first.region_id, second.region_id) == (1, 2)
        first.buf[:], second.buf[:] = b"first", b"second"
        assert handler.store(key, second) and handler.store(key, first)  # the same key, from another region
        assert read(handler, key) == read(peer, key) == b"second"
        assert [handler.alloc(1).region_id for _ in range(3)] == [1, 1, 1]  # given back, and region 1 comes first


# -- what lookups leave behind ----------------------------------------------------------------------------------------------

def test_what_was_found_cannot_be_made_or_changed(handler, key):
    put(handler, key, b"abc")
    info = handler.retrieve(key)
    assert isinstance(info, maru.MemoryInfo) and repr(info) == "MemoryInfo(3 bytes)" and len(info) == 3
    assert info.view is info.view and info.region_id == 0
    for name, value in (("view", b""), ("region_id", 1), ("page_index", 1), ("other", 1)):
        with pytest.raises(AttributeError):
            setattr(info, name, value)
    with pytest.raises(TypeError):
        maru.MemoryInfo()
    gone = weakref.ref(info)
    del info
    assert gone() is None


def test_lookups_keep_no_reference(handler, key):
    names = [f"{key} {i}" for i in range(600)]
    for i in range(0, 600, 3):
        put(handler, names[i], b"x")

    def counts():
        gc.collect()
        handler.get_buffer_view(0, 0, 0)  # places that were left are noted, and cleared by the next who asks
        return [sys.getrefcount(name) for name in names], sys.getrefcount(handler._retrieved)

    before = counts()
    for keys in (names, names[:100], tuple(names), iter_of(names)):
        assert sum(handler.batch_exists(keys)) == (200 if len(keys) > 100 else 34)
        found = handler.batch_retrieve(keys)
        assert sum(info is not None for info in found) == (200 if len(keys) > 100 else 34)
        assert found[0].page_index >= 0
        del found, keys
    for i in range(600):
        assert handler.exists(names[i]) == (handler.retrieve(names[i]) is not None) == (i % 3 == 0)
    for wrong in ([*names, 5.0], (*names[:9], "x" * 4097)):
        with pytest.raises(maru.InvalidArgumentError):
            handler.batch_exists(wrong)
        del wrong
    assert counts() == before
    assert handler.get_stats()["native"]["pins"] == 0


class iter_of:
    """A sequence that is neither a list nor a tuple."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class _Text(str):
    pass


class _Bytes(bytes):
    pass


class _ByteArray(bytearray):
    pass


class _Digest(numpy.ndarray):
    pass


@pytest.mark.parametrize("kind", [_Text, _Bytes, _ByteArray, _Digest])
def test_a_key_that_refers_to_what_was_found_under_it_keeps_nothing(handler, kind):
    data = os.urandom(8).hex().encode()
    plain = {_Text: data.decode(), _Digest: maru.Digest(data)}.get(kind, data)
    handler._client.store_copy(plain, b"x")
    for find in (handler.retrieve, lambda name: handler.batch_retrieve([name])[0]):
        name = kind(16, numpy.uint8, data) if kind is _Digest else kind(plain)
        name.info = find(name)
        assert name.info.page_index >= 0 and handler.get_stats()["native"]["pins"] == 1
        kept = handler._key_at(name.info.region_id, name.info.page_index)
        assert kept == plain and type(kept) is type(plain)
        del name
        gc.collect()
        assert handler.get_stats()["native"]["pins"] == 0


@pytest.mark.parametrize("shown", [lambda rows: rows, list, memoryview])
def test_what_is_found_under_the_rows_of_an_array_has_their_digests(handler, shown):
    rows = numpy.frombuffer(os.urandom(48), numpy.uint8).reshape(3, 16)
    handler._client.store_copy_batch(rows, numpy.arange(3, dtype=numpy.uint8).reshape(3, 1))
    found = handler.batch_retrieve(shown(rows))
    assert [bytes(info.view) for info in found] == [b"\0", b"\1", b"\2"]
    keys = [handler._key_at(info.region_id, info.page_index) for info in found]
    assert keys == [maru.Digest(row) for row in rows] and {type(key) for key in keys} == {maru.Digest}
    assert handler.batch_exists(keys) == [True] * 3


def test_answers_are_counted_references(handler, key):
    put(handler, key, b"x")
    keys = [key, key + " absent", key] * 50
    yes, no = sys.getrefcount(True), sys.getrefcount(False)
    kept = [handler.batch_exists(keys) for _ in range(20)]
    assert all(present == [True, False, True] * 50 for present in kept)
    if sys.version_info < (3, 12):  # immortal from then on
        assert sys.getrefcount(True) - yes >= 2000 and sys.getrefcount(False) - no >= 1000
    del kept
    assert abs(sys.getrefcount(True) - yes) < 100 and abs(sys.getrefcount(False) - no) < 100


def test_keys_of_every_kind_in_one_list(handler, key):
    class Text(str):
        pass

    client = handler._client
    stored = [key, key + " schlüssel", key + " \u4e16", key + " subclass", key + " bytes", key + " array", key + " view"]
    for name in stored:
        put(handler, name, name.encode())
    digest = maru.Digest(bytes(range(16)))
    client.store_copy(digest, b"digest")
    kinds = [stored[0], stored[1], stored[2], Text(stored[3]), stored[4].encode(), bytearray(stored[5].encode()),
             memoryview(stored[6].encode()), digest, bytes(digest), "absent"]
    assert handler.batch_exists(kinds) == [True] * 8 + [False] * 2
    assert handler.batch_exists([name.encode() for name in stored]) == [True] * 7
    assert handler.batch_exists(kinds * 40) == ([True] * 8 + [False] * 2) * 40
    assert [bytes(info.view) for info in handler.batch_retrieve(kinds[:7])] == [name.encode() for name in stored]
    client.delete(digest)
