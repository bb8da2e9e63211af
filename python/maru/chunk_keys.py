"""Keys of chunks of KV cache, for connectors.

A key must differ wherever the bytes would. So a chain of chunk hashes begins with a digest of everything that all ranks
share (model, dtypes, LoRA, salt), each chunk's hash covers its tokens and the chunk before, and every rank has a digest of its
own place and memory layout that is combined with all of them. The tokens are hashed once for all ranks: the combination is an
exclusive or, and two chunks of two ranks meet only where the digests of two chunks differ by just what the ranks' digests do.
"""
from __future__ import annotations

import hashlib
import json
from typing import Any, Mapping, Sequence, Union

import numpy
from numpy.typing import NDArray

from . import tokens as token_hashes

Value = Union[None, bool, int, str, Sequence["Value"], Mapping[str, "Value"]]
HASH_BYTES = 32


def digest(identity: Mapping[str, Value]) -> bytes:
    """Of names and values, in whatever order they come."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).digest()


def extend(tokens: Union[Sequence[int], NDArray[Any]], chunk_tokens: int, before: bytes,
           features: Mapping[int, bytes]) -> bytes:
    """The hashes of all whole chunks of the tokens. before: the hash of the chunk before, or what begins the chain. features:
    what besides its tokens a chunk is made of (images), by the number of the chunk."""
    whole = len(tokens) // chunk_tokens
    result = bytearray()
    edges = sorted({0, *(chunk for chunk in features if chunk < whole)})
    for first, last in zip(edges, [*edges[1:], whole]):
        parent = bytes(result[-HASH_BYTES:]) or before
        if first in features:
            parent = hashlib.sha256(parent + features[first]).digest()
        part = tokens[first * chunk_tokens:last * chunk_tokens]
        result += token_hashes.lmcache(part, chunk_tokens, parent=parent).tobytes()
    return bytes(result)


def of_rank(hashes: bytes, rank: bytes) -> NDArray[numpy.uint8]:
    """The keys of one rank, one a row; rank is its digest."""
    rows = numpy.frombuffer(hashes, dtype=numpy.uint8).reshape(-1, HASH_BYTES)
    return rows ^ numpy.frombuffer(rank, dtype=numpy.uint8)
