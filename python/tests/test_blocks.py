"""Storing, finding and reading one block, and its keys."""
import contextlib
import errno
import os
import sys
import threading

import numpy
import pytest

import maru
from conftest import PAGE, Marud
from maru.places import Fresh, Retrieved


def test_what_is_stored_is_read_by_another_client(client, other, key):
    data = bytes(range(256)) * 20
    assert client.store_copy(key, data).is_new
    with other.retrieve(key) as view:
        assert bytes(view.data) == data
        assert view.nbytes == len(view) == len(data)


def test_the_first_value_stays(client, key):
    first = client.store_copy(key, b"first")
    second = client.store_copy(key, b"second")
    assert (first.is_new, second.is_new) == (True, False)
    assert first.block == second.block
    assert bytes(client.retrieve(key).data) == b"first"


def test_a_filled_buffer_is_stored(client, other, key):
    buffer = client.alloc(3 * PAGE)
    numpy.frombuffer(buffer.data, dtype=numpy.uint32)[:] = 7
    stored = client.store(key, buffer)
    assert stored == (buffer.block, True)
    assert not buffer.is_held
    assert (numpy.frombuffer(other.retrieve(key).data, dtype=numpy.uint32) == 7).all()


def test_an_absent_block_is_no_error(client, key):
    assert client.retrieve(key) is None
    assert client.pin(key) is None
    assert client.pin_block(1 << 40) is None
    assert client.exists(key) is False
    assert client.delete(key) is False
    assert client.delete_tree(key) == 0


def test_delete_makes_absent(client, key):
    client.store_copy(key, b"x")
    assert client.delete(key) is True
    assert client.retrieve(key) is None
    assert client.delete(key) is False


def test_str_and_its_utf8_are_one_key_and_a_digest_is_another(client, key):
    name = key + "ä"
    client.store_copy(name, b"x")
    utf8 = name.encode()
    assert client.exists(utf8) and client.exists(bytearray(utf8)) and client.exists(memoryview(utf8))
    raw = key.encode()[-16:].rjust(16, b"-")
    client.store_copy(maru.Digest(raw), b"x")
    assert client.exists(maru.Digest(raw)) and client.exists(numpy.frombuffer(raw, dtype=numpy.uint8))
    assert not client.exists(raw)
    assert not client.exists(maru.Digest(raw + raw))


def test_tenants_do_not_see_each_other(client, key):
    client.store_copy(key, b"a", tenant="alice")
    assert client.exists(key, "alice") and client.exists(key, tenant=client.tenant("alice"))
    assert not client.exists(key) and not client.exists(key, tenant="bob")


def test_children_hold_their_parent(client, key):
    root = client.store_copy(key, b"root")
    client.store_copy(key + "1", b"by block", parent=root.block)
    client.store_copy(key + "2", b"by key", parent=key)
    with pytest.raises(maru.HasChildrenError):
        client.delete(key)
    assert client.delete_tree(key) == 3


def test_delete_tree_says_when_something_is_pinned(client, key):
    client.store_copy(key, b"root")
    client.store_copy(key + "1", b"leaf", parent=key)
    with client.pin(key + "1"):
        with pytest.raises(maru.StillPinnedError):
            client.delete_tree(key)
    assert client.delete_tree(key) == 2


def test_a_missing_parent_is_named(client, key):
    with pytest.raises(maru.ParentGoneError) as raised:
        client.store_copy(key, b"x", parent="nobody " + key)
    assert raised.value.errno == errno.ENOLINK
    assert raised.value.call == "maru_store_copy"
    assert "store it again first" in str(raised.value)


def test_a_block_of_a_moment_expires(client, key):
    client.store_copy(key, b"x", ttl_ms=1, priority=3, content_type=maru.ContentType.TEMPORARY)
    client.store_copy(key + " stays", b"x", ttl_ms=3_600_000)
    for _ in range(10_000_000):
        if not client.exists(key):
            break
    assert client.retrieve(key) is None
    assert client.retrieve(key + " stays") is not None


def test_statistics_and_geometry(client, key):
    client.store_copy(key, b"abc")
    client.retrieve(key)
    client.retrieve(key + " absent")
    now = client.statistics()
    assert len(now) == len(maru.Statistics._fields) and len(client.geometry()) == len(client.geometry()._fields)
    assert (now.stores, now.stored_bytes, now.retrieve_hits, now.retrieve_misses) == (1, 3, 1, 1)
    shape = client.geometry()
    assert shape.page_bytes == PAGE and shape.pages > 0 and len(shape.uuid) == 16 and shape.checksums is False
    assert client.daemon_epoch >= 1
    client.reattach()


@pytest.mark.parametrize("wrong", [None, 5, 1.5, "", b"", "x" * 4097, ["k"], numpy.zeros(17, numpy.uint8),
                                   numpy.zeros(16, numpy.int32), numpy.zeros(32, numpy.uint8)[::2]])
def test_what_is_no_key_is_refused(client, wrong):
    for call in (client.exists, client.retrieve, client.pin, client.delete, client.delete_tree,
                 lambda k: client.store_copy(k, b"x"), lambda k: client.exists_batch(["good", k]),
                 lambda k: client.match_prefix([k]), lambda k: client.delete_batch(["good", k])):
        with pytest.raises(maru.InvalidArgumentError):
            call(wrong)


@pytest.mark.parametrize("size", [0, 15, 17, 33])
def test_a_digest_has_16_or_32_bytes(size):
    with pytest.raises(maru.InvalidArgumentError):
        maru.Digest(b"x" * size)


@pytest.mark.parametrize("tenant", ["", "x" * 65, -1, 1 << 64, 1.5, b"x"])
def test_what_is_no_tenant_is_refused(client, tenant):
    with pytest.raises(maru.InvalidArgumentError):
        client.exists("k", tenant)


def test_sizes_that_cannot_be_stored_are_refused(client, key):
    with pytest.raises(maru.InvalidArgumentError):
        client.alloc(0)
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy(key, b"")
    with pytest.raises(maru.TooLargeError):
        client.alloc(1 << 30)
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy(key, "text is no buffer")
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy(key, numpy.zeros((8, 8))[:, ::2])
    for value in (-1, 1 << 64, "many", 1.0, None, True, numpy.bool_(True)):
        with pytest.raises(maru.InvalidArgumentError, match="nbytes is a whole number"):
            client.alloc(value)
        for name in ("ttl_ms", "priority", "content_type"):
            with pytest.raises(maru.InvalidArgumentError, match=name) as raised:
                client.store_copy(key, bytes(1 << 20), **{name: value})
            assert len(str(raised.value)) < 200  # and not the block
    for value in (5, 99, 256):
        with pytest.raises(maru.InvalidArgumentError, match="content_type is a whole number from 0 to 4"):
            client.store_copy(key, b"x", content_type=value)
    with pytest.raises(maru.InvalidArgumentError, match="from 0 to 4294967295"):
        client.store_copy(key, b"x", priority=1 << 32)
    assert client.alloc(numpy.int64(5)).nbytes == 5 and len(client.alloc_batch(numpy.uint8(5), numpy.int32(2))) == 2
    for call in (lambda: client.alloc_batch(5, -1), lambda: client.pin_block("block")):
        with pytest.raises(maru.InvalidArgumentError):
            call()


@contextlib.contextmanager
def damaged_block(marud_program):
    """A client of a pool with checksums, in which the block b"k" is damaged and b"other" is whole."""
    payload = os.urandom(2000)
    with Marud(marud_program, more="checksums = true") as running, \
            maru.Client(str(running.socket), timeout_ms=60_000) as client:
        client.store_copy(b"k", payload)
        client.store_copy(b"other", b"whole")
        running.damage(payload)
        yield client


def test_a_block_that_was_damaged_is_an_error_and_then_a_miss(marud_program):
    with damaged_block(marud_program) as client:
        with pytest.raises(maru.DamagedBlockError):
            client.retrieve(b"k")
        assert client.retrieve(b"k") is None
        assert bytes(client.retrieve(b"other").data) == b"whole"


def test_a_block_of_a_batch_that_was_damaged_is_told_from_one_that_is_absent(marud_program):
    with damaged_block(marud_program) as client:
        absent, damaged, whole = client.retrieve_batch([b"absent", b"k", b"other"])
        assert absent is None and bytes(whole.data) == b"whole"
        assert type(damaged) is maru.DamagedBlockError and damaged.errno == errno.EIO
        assert (damaged.call, client.statistics().checksum_errors) == ("maru_retrieve_batch", 1)
        assert client.retrieve_batch([b"k"]) == [None]


def gives_up_the_gil(call, times):
    """Whether one of the calls does: Python never takes the GIL away here, so the other thread runs only while it is given."""
    may_run, has_run = threading.Lock(), []
    may_run.acquire()

    def run():
        with may_run:
            has_run.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        may_run.release()
        for _ in range(times):
            call()
            if has_run:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("find", [lambda client: client.retrieve(b"k"),
                                  lambda client: client._find(b"k", None, Retrieved(4096, Fresh(0)))],
                         ids=["retrieve", "_find"])
def test_a_block_is_verified_without_the_gil(marud_program, find):
    with Marud(marud_program, more="checksums = true") as running, \
            maru.Client(str(running.socket), timeout_ms=60_000) as client:
        assert client.geometry().checksums is True
        client.store_copy(b"k", bytes(1 << 20))
        assert gives_up_the_gil(lambda: find(client), 20_000)


@pytest.mark.parametrize("call", [
    lambda client, key: client.exists_batch([key] * 16),
    lambda client, key: client.exists_batch(numpy.zeros((64, 16), numpy.uint8)),
    lambda client, key: client.match_prefix([key] * 8),
    lambda client, key: client.match_prefix([key, key + "3"]).release(),  # no chain: a pin for each
    lambda client, key: client.exists("x" * 4096),
    lambda client, key: client.exists_batch(["x" * 4096] * 15),
    lambda client, key: client.match_prefix(["x" * 4096] * 7),
    lambda client, key: client.pin_batch(["x" * 4096] * 7),
    lambda client, key: client.pin("x" * 4096),
    lambda client, key: client.retrieve("x" * 4096),
    lambda client, key: client.delete(key + "2"),
    lambda client, key: client.delete_batch([key + "2"]),
    lambda client, key: client.retrieve_batch([key]),
    lambda client, key: client.alloc(PAGE),  # and dropped
    lambda client, key: client.store_copy(key, b"x"),
    lambda client, key: client.statistics(),
], ids=["exists, texts", "exists, digests", "match", "release", "exists, long", "exists, long ones", "match, long ones",
        "pins, long ones", "pin, long", "retrieve, long", "delete", "delete, batch", "retrieve", "alloc", "store",
        "statistics"])
def test_what_may_take_longer_than_a_microsecond_gives_up_the_gil(client, key, call):
    for name in (key, key + "3"):
        client.store_copy(name, b"x")
    assert gives_up_the_gil(lambda: call(client, key), 200_000)


def test_blocks_of_high_priority_are_evicted_last(marud_program):
    with Marud(marud_program, size="2MiB", region_bytes="256KiB", more='policy = "priority"\nhigh_watermark = 1') as small, \
            maru.Client(str(small.socket), timeout_ms=60_000) as client:
        # The oldest, which every other rule would take first.
        kept = [f"kept {i}" for i in range(50)]
        for name in kept:
            client.store_copy(name, b"x", priority=7)
        others = [f"other {i}" for i in range(1000)]  # twice what there is room for
        for name in others:
            try:
                client.store_copy(name, b"x", priority=1)
            except maru.RegistryFullError:  # rare: both of its buckets are full
                pass
        assert all(client.exists_batch(kept))
        assert 0 < sum(client.exists_batch(others)) < 512


def test_a_buffer_is_stored_through_the_client_that_allocated_it(marud_program, key):
    """The first buffers of two pools are the same page of the same life."""
    with Marud(marud_program) as elsewhere, maru.Client(str(elsewhere.socket), timeout_ms=60_000) as stranger, \
            Marud(marud_program) as fresh, maru.Client(str(fresh.socket), timeout_ms=60_000) as client:
        own, theirs = client.alloc(8), stranger.alloc(8)
        assert own.block == theirs.block
        for store in (lambda: client.store(key, theirs), lambda: client.store_chain([key], [theirs])):
            with pytest.raises(maru.InvalidArgumentError, match="buffer is of another Client"):
                store()
        shown = numpy.asarray(theirs.data)
        with pytest.raises(maru.InvalidArgumentError, match="buffer is of another Client"):
            client.store(key, theirs, keep_views=True)
        del shown
        stored = client.store_batch([key, key + "2"], [theirs, client.alloc(8)])
        assert "buffer is of another Client" in str(stored.errors[0]) and list(stored.is_new) == [False, True]
        assert not client.exists(key) and own.is_held and theirs.is_held
        assert client.store(key, own).is_new and stranger.store(key, theirs).is_new
