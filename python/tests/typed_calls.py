"""What the types say, for the type checker, which runs over this with the package; it is not executed."""
from typing import Optional, Union, assert_type

import numpy
from numpy.typing import NDArray

import maru
import maru.aio
from maru import tokens


def of_the_client(client: maru.Client, digests: NDArray[numpy.uint8], names: list[bytes]) -> None:
    assert_type(client.exists_batch(digests), NDArray[numpy.bool_])
    assert_type(client.exists_batch(names), list[bool])
    assert_type(client.exists_batch(names, out=bytearray(1)), bytearray)
    assert_type(client.retrieve("k"), Optional[maru.View])
    assert_type(client.retrieve_batch(digests), list[Union[maru.View, maru.MaruError, None]])
    assert_type(client.store_batch(digests, []).blocks, NDArray[numpy.uint64])
    assert_type(client.store_batch(names, []).errors, dict[int, Exception])
    assert_type(client.delete_batch(digests), NDArray[numpy.bool_])
    with client.match_prefix(names) as match:
        client.store("k", client.alloc(3), parent=match.deepest)
    client.store_copy("k", numpy.zeros(3), ttl_ms=5, priority=1)


def of_the_handler(config: maru.MaruConfig) -> None:
    maru.MaruConfig(pool_size="4G", chunk_size_bytes="1M", expand_size="512M")
    maru.MaruConfig("/run/marud/marud.sock", None, 1 << 30, read_only=True)
    assert_type(config.pool_size, int)
    with maru.MaruHandler(config) as handler:
        assert_type(handler.retrieve("k"), Optional[maru.MemoryInfo])
        assert_type(handler.batch_retrieve(["k"]), list[Optional[maru.MemoryInfo]])
        assert_type(handler.batch_exists(["k", b"k", maru.Digest(bytes(16))]), list[bool])
        assert_type(handler.alloc(3).buf, memoryview)
        handler.batch_pin(["k"])
        handler.batch_unpin([b"k"])
        handler.delete(maru.Digest(bytes(32)))


async def of_asyncio(client: maru.aio.Client) -> None:
    assert_type(await client.alloc_batch(65536, 8), list[maru.Buffer])
    assert_type(client.retrieve("k"), Optional[maru.View])


def of_tokens(prompt: NDArray[numpy.uint32]) -> None:
    assert_type(tokens.dynamo(prompt, 4), tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]])
    assert_type(tokens.vllm([1, 2], 2, parent=b"p"), NDArray[numpy.uint8])
