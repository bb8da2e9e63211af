"""Many keys at once, as sequences and as NumPy arrays; chains and prefixes."""
import numpy
import pytest

import maru
from conftest import PAGE


def store_chain(client, digests, n):
    buffers = client.alloc_batch(PAGE, n)
    for i, buffer in enumerate(buffers):
        buffer.data[:] = bytes([i]) * PAGE
    return client.store_chain(digests[:n], buffers)


def test_an_array_in_is_an_array_out(client, digests):
    for i in range(0, 64, 3):
        client.store_copy(digests[i], b"x")
    present = client.exists_batch(digests)
    assert present.dtype == numpy.bool_
    assert present.tolist() == [i % 3 == 0 for i in range(64)]
    assert client.exists_batch(list(digests)) == present.tolist()
    assert client.exists_batch([maru.Digest(row) for row in digests]) == present.tolist()


@pytest.mark.parametrize("most", [64, 70])
def test_texts_of_every_length_in_one_batch(client, most):
    """Short ones are copied before the GIL is given up; from 65 bytes on they are held where they are."""
    texts = ["x" * length for length in range(1, most + 1)] + ["y" + "x" * length for length in range(most - 1)]
    for text in texts[::2]:
        client.store_copy(text, b"x")
    assert client.exists_batch(texts) == [client.exists(text) for text in texts] == [i % 2 == 0 for i in range(len(texts))]


def test_digests_of_32_bytes(client, digests):
    wide = digests.reshape(32, 32)
    client.store_copy(wide[1], b"x")
    assert numpy.flatnonzero(client.exists_batch(wide)).tolist() == [1]


def test_out_is_filled_and_returned(client, digests):
    client.store_copy(digests[5], b"x")
    for out in (numpy.full(64, 9, numpy.uint8), numpy.zeros(64, numpy.bool_), bytearray(64)):
        assert client.exists_batch(digests, out=out) is out
        assert [bool(x) for x in out] == [i == 5 for i in range(64)]
    for out in (numpy.zeros(63, numpy.uint8), numpy.zeros(8, numpy.uint64), bytes(64), 3):
        with pytest.raises(maru.InvalidArgumentError):
            client.exists_batch(digests, out=out)


def test_empty_batches(client):
    assert client.exists_batch([]) == []
    assert client.exists_batch(numpy.zeros((0, 16), numpy.uint8)).tolist() == []
    assert client.retrieve_batch([]) == []
    assert client.delete_batch([]) == []
    assert client.delete_batch(numpy.zeros((0, 16), numpy.uint8)).tolist() == []
    assert client.match_prefix([]).blocks == 0
    assert client.alloc_batch(PAGE, 0) == []


@pytest.mark.parametrize("wrong", ["text", b"bytes", 3, None, numpy.zeros(16, numpy.uint8), numpy.zeros((4, 8), numpy.uint8),
                                   numpy.zeros((4, 16), numpy.int8), numpy.zeros((4, 32), numpy.uint8)[:, ::2],
                                   numpy.zeros((2, 2, 16), numpy.uint8)])
def test_what_is_no_batch_is_refused(client, wrong):
    for call in (client.exists_batch, client.retrieve_batch, client.match_prefix, client.delete_batch):
        with pytest.raises(maru.InvalidArgumentError):
            call(wrong)


def test_retrieve_batch_has_none_for_what_is_absent(client, other, digests):
    for i in (1, 4):
        client.store_copy(digests[i], bytes([i]) * 10)
    views = other.retrieve_batch(digests)
    assert [i for i, view in enumerate(views) if view is not None] == [1, 4]
    assert bytes(views[4].data) == bytes([4]) * 10
    assert other.statistics().pins == 2
    del views
    assert other.statistics().pins == 0


def test_a_chain_is_matched_by_one_pin_and_resolved(client, other, digests):
    stored = store_chain(client, digests, 10)
    assert stored.new_blocks == 10 and len(stored.blocks) == 10
    with other.match_prefix(digests) as match:
        assert match.blocks == len(match) == 10
        assert match.deepest == stored.blocks[-1]
        assert other.statistics().pins == 1
        views = match.resolve(digests)
        assert [view.data[PAGE - 1] for view in views] == list(range(10))
        assert len(match.resolve(digests[:3])) == 3
        with pytest.raises(maru.InvalidArgumentError, match="not those of the match"):
            match.resolve(digests[1:])
    assert other.statistics().pins == 1, "the views still need the match"
    assert views[9].data[0] == 9
    del views
    assert other.statistics().pins == 0


def test_a_chain_goes_on_below_what_is_there(client, digests):
    store_chain(client, digests, 3)
    again = store_chain(client, digests, 5)
    assert again.new_blocks == 2
    match = client.match_prefix(digests)
    buffers = client.alloc_batch(PAGE, 2)
    client.store_chain(digests[5:7], buffers, parent=match.deepest)
    assert client.match_prefix(digests).blocks == 7


def test_a_failed_chain_says_which_buffers_are_left(client, digests):
    buffers = client.alloc_batch(PAGE, 2)
    with pytest.raises(maru.ParentGoneError):
        client.store_chain(digests[:2], buffers, parent="nobody " + str(digests[0]))
    assert [buffer.is_held for buffer in buffers] == [True, True]
    client.store_chain(digests[:2], buffers)
    assert [buffer.is_held for buffer in buffers] == [False, False]


def test_a_chain_that_cannot_begin_leaves_every_buffer(client, digests):
    buffers = client.alloc_batch(PAGE, 3)
    for wrong in ([*buffers[:2], "no buffer"], buffers[:2], [buffers[0], buffers[0], buffers[1]]):
        with pytest.raises(maru.MaruError):
            client.store_chain(digests[:3], wrong)
        assert all(buffer.is_held for buffer in buffers)
    assert client.store_chain(digests[:3], buffers).new_blocks == 3


@pytest.mark.parametrize("n", [2, 64])  # with the GIL, and without
def test_a_batch_is_deleted_and_says_what_was_there(client, other, digests, n):
    there = [i for i in range(n) if i % 3 == 0]
    for i in there:
        client.store_copy(digests[i], b"x")
    gone = other.delete_batch(digests[:n])
    assert gone.dtype == numpy.bool_ and numpy.flatnonzero(gone).tolist() == there
    assert not client.exists_batch(digests).any()
    for i in there:
        client.store_copy(digests[i], b"again")
    assert client.delete_batch(list(digests[:n])) == gone.tolist()
    assert client.delete_batch([maru.Digest(row) for row in digests[:n]]) == [False] * n


def test_a_batch_deletes_for_its_tenant_alone(client, key):
    for tenant in (None, "alice"):
        client.store_copy(key, b"x", tenant=tenant)
    assert client.delete_batch([key, key], "alice") == [True, False]
    assert client.exists(key) and not client.exists(key, "alice")


def test_a_chain_is_deleted_from_its_end(client, digests):
    store_chain(client, digests, 4)
    assert client.delete_batch(numpy.ascontiguousarray(digests[3::-1])).tolist() == [True] * 4
    store_chain(client, digests, 4)
    with pytest.raises(maru.HasChildrenError) as raised:
        client.delete_batch([*digests[:2], digests[3], digests[9]])
    assert raised.value.deleted == [False, False, True, False] and raised.value.call == "maru_delete_batch"
    assert client.exists_batch(digests[:4]).tolist() == [True, True, True, False]
    with pytest.raises(maru.HasChildrenError) as raised:
        client.delete_batch(digests[:3])
    assert raised.value.deleted.tolist() == [False, False, True]


def test_evicted_keys_are_reported_once(marud_program):
    from with_marud import Marud
    # Without eviction in the background, which is not a request of this client.
    with Marud(marud_program, size="8MiB", more="high_watermark = 1") as small, \
            maru.Client(str(small.socket), timeout_ms=60_000) as client:
        before = client.geometry().pages + 100
        for i in range(before):
            try:
                client.store_copy(f"k{i}", b"x" * PAGE)
            except maru.RegistryFullError:  # rare: both of its buckets are full
                pass
        keys = [evicted.key for evicted in client.evicted()]
        assert keys and all(key.startswith(b"k") for key in keys)
        assert not client.exists(keys[0])
        assert client.evicted() == []
        assert client.statistics().evicted >= len(keys)
