"""Metadata of blocks, and what the pool knows of one."""
import numpy
import pytest

import maru
import maru.aio
from conftest import PAGE, Marud


def test_a_reader_gets_what_the_writer_said(client, other, key):
    assert client.store_copy(key, b"payload", metadata=b"layers 0 to 3").is_new
    with other.retrieve(key) as view:
        assert view.metadata == b"layers 0 to 3"
        assert bytes(view.data) == b"payload"
    with pytest.raises(maru.ClosedError):
        view.metadata
    with other.pin(key) as pin:
        assert pin.metadata == b"layers 0 to 3"


def test_without_metadata_it_is_empty(client, key):
    client.store_copy(key, b"payload")
    assert client.retrieve(key).metadata == b""


@pytest.mark.parametrize("metadata", [bytearray(b"abcd"), memoryview(b"abcd"), numpy.frombuffer(b"abcd", dtype=numpy.uint16)])
def test_anything_with_a_buffer_is_metadata(client, key, metadata):
    client.store_copy(key, b"payload", metadata=metadata)
    assert client.retrieve(key).metadata == b"abcd"


def test_a_buffer_leaves_room(client, other, key):
    buffer = client.alloc(PAGE, metadata_bytes=65536)
    assert buffer.nbytes == PAGE
    buffer.data[:] = b"x" * PAGE
    client.store(key, buffer, metadata=b"m" * 65536)
    view = other.retrieve(key)
    assert view.metadata == b"m" * 65536
    assert bytes(view.data) == b"x" * PAGE


def test_one_who_keeps_views_stores_metadata_too(client, other, key):
    buffer = client.alloc(100, metadata_bytes=4)
    array = numpy.frombuffer(buffer.data, dtype=numpy.uint8)
    client.store(key, buffer, keep_views=True, metadata=b"kept")
    assert other.retrieve(key).metadata == b"kept"
    assert array.nbytes == 100


def test_each_block_of_a_batch_has_its_own(client, other, key):
    keys = [f"{key} {i}" for i in range(3)]
    stored = client.store_copy_batch(keys, [b"x"] * 3, metadata=[b"one", b"", b"m" * 65537])
    assert list(stored.is_new) == [True, True, False]
    assert isinstance(stored.errors[2], maru.TooLargeError)
    assert [view.metadata for view in other.retrieve_batch(keys[:2])] == [b"one", b""]
    buffers = client.alloc_batch(100, 2, metadata_bytes=10)
    views = [buffers[1].data]  # the second is stored pinned
    client.store_batch([key + "a", key + "b"], buffers, keep_views=True, metadata=[b"a", b"b"])
    assert [other.retrieve(key + name).metadata for name in "ab"] == [b"a", b"b"]
    assert len(views[0]) == 100


@pytest.mark.parametrize("keep_views", [False, True])
def test_each_block_of_a_chain_has_its_own(client, other, digests, keep_views):
    buffers = client.alloc_batch(PAGE, 3, metadata_bytes=10)
    kept = buffers[0].data if keep_views else None
    chain = client.store_chain(digests[:3], buffers, keep_views=keep_views, metadata=[b"a", b"", b"c"])
    assert chain.new_blocks == 3
    with other.match_prefix(digests[:3]) as match:
        assert [view.metadata for view in match.resolve(digests[:3])] == [b"a", b"", b"c"]
    assert kept is None or len(kept) == PAGE


def test_what_does_not_fit_is_refused(client, key):
    with pytest.raises(maru.TooLargeError, match="65536"):
        client.store_copy(key, b"x", metadata=b"m" * 65537)
    with pytest.raises(maru.TooLargeError, match="65536"):
        client.alloc(1, metadata_bytes=65537)
    buffer = client.alloc(PAGE)
    with pytest.raises(maru.TooLargeError, match="metadata_bytes"):
        client.store(key, buffer, metadata=b"m")
    assert buffer.is_held
    buffer.abort()
    assert not client.exists(key)
    assert client.geometry().metadata_bytes_max == 65536


@pytest.mark.parametrize("metadata", ["text", 5, numpy.array([object()])])
def test_what_is_no_metadata_is_refused(client, key, metadata):
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy(key, b"x", metadata=metadata)
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy_batch([key], [b"x"], metadata=[metadata])
    with pytest.raises(maru.InvalidArgumentError):
        client.store_copy_batch([key], [b"x"], metadata=b"x")
    with pytest.raises(maru.InvalidArgumentError, match="1 keys, but metadata of 2 blocks"):
        client.store_copy_batch([key], [b"x"], metadata=[b"x", b"y"])


def test_what_the_pool_knows_of_a_block(client, other, key):
    parent = client.store_copy(key + "parent", b"x").block
    block = client.store_copy(maru.Digest(bytes(16)), b"payload", parent=parent, ttl_ms=60_000, priority=7, tenant="salt",
                              content_type=maru.ContentType.ACTIVATION, metadata=b"text").block
    info = other.block_info(block)
    assert isinstance(info, maru.BlockInfo)
    assert info.key == bytes(16) and isinstance(info.key, maru.Digest)
    assert info.tenant == client.tenant("salt")
    assert (info.parent, info.depth) == (parent, 1)
    assert (info.priority, info.content_type) == (7, maru.ContentType.ACTIVATION)
    assert (info.nbytes, info.metadata_nbytes) == (7, 4)
    assert info.expires_ms == info.stored_ms + 60_000
    root = other.block_info(parent)
    assert (root.key, root.parent, root.depth, root.expires_ms) == ((key + "parent").encode(), 0, 0, 0)
    with other.pin_block(block):
        client.delete(maru.Digest(bytes(16)), tenant="salt")
        assert other.block_info(block) == info
    with pytest.raises(maru.InvalidArgumentError):
        other.block_info(0)


def test_of_a_block_that_is_gone_nothing_is_known(client, key):
    block = client.store_copy(key, b"x").block
    client.delete(key)
    assert client.block_info(block) is None


def test_metadata_is_read_where_there_are_checksums(marud_program, key):
    with Marud(marud_program, more="checksums = true\n") as marud, maru.Client(str(marud.socket), timeout_ms=60_000) as client:
        client.store_copy(key, b"x", metadata=b"text")
        assert client.retrieve(key).metadata == b"text"


def test_asyncio_stores_metadata(marud, key):
    import asyncio

    async def store():
        async with maru.aio.Client(str(marud.socket), timeout_ms=60_000) as client:
            buffer = await client.alloc(100, metadata_bytes=5)
            await client.store(key, buffer, metadata=b"async")
            return client.retrieve(key).metadata

    assert asyncio.run(store()) == b"async"
