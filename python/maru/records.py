"""What goes in and out of a Client as plain values."""
from __future__ import annotations

import enum
from typing import Generic, NamedTuple, TypeVar, Union

from .errors import InvalidArgumentError


# Lists; for keys that are a NumPy array arrays of uint64 and of bool.
_Blocks = TypeVar("_Blocks")
_Truths = TypeVar("_Truths")


class Digest(bytes):
    """A key that is already a digest: 16 or 32 bytes. Never equal to a key of the same bytes."""

    __slots__ = ()

    def __new__(cls, data: Union[bytes, bytearray, memoryview]) -> Digest:
        # Of a number n bytes() makes n zeros; an array of one number passes for a number, too.
        is_number = hasattr(data, "__index__") and not hasattr(data, "__len__")
        if is_number or isinstance(data, str) or data is None:
            raise InvalidArgumentError(f"A digest is made of 16 or 32 bytes, not of {type(data).__name__}.")
        try:
            digest = super().__new__(cls, data)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgumentError(f"A digest is made of 16 or 32 bytes, not of {type(data).__name__}: {error}.") from error
        if len(digest) not in (16, 32):
            raise InvalidArgumentError(f"A digest has 16 or 32 bytes, not {len(digest)}.")
        return digest

    def __init_subclass__(cls) -> None:
        raise TypeError("Digest is what libmaru recognises; it has no subclasses")


class ContentType(enum.IntEnum):
    """What a block holds; for eviction policies and administrators."""

    KV_CACHE = 0
    LORA_WEIGHT = 1
    TEMPORARY = 2
    ACTIVATION = 3
    GRADIENT = 4


class Stored(NamedTuple):
    """The block under the key now, and whether it is the one that was just stored."""

    block: int
    is_new: bool


class StoredChain(NamedTuple):
    """The blocks under the keys, and how many of them are new."""

    blocks: list[int]
    new_blocks: int


class StoredBatch(NamedTuple, Generic[_Blocks, _Truths]):
    """For each key the block that is under it, 0 where there is an error; whether that is the one that was just stored; and
    what hindered the others, by their places in the batch."""

    blocks: _Blocks
    is_new: _Truths
    errors: dict[int, Exception]


class BlockInfo(NamedTuple):
    """What the pool knows of a block; see maru_block_info in maru.h. Times are milliseconds of the Unix clock."""

    key: bytes  # or a Digest
    tenant: int
    parent: int  # 0 for a root
    depth: int
    priority: int
    content_type: int
    nbytes: int
    metadata_nbytes: int
    stored_ms: int
    expires_ms: int  # 0 for never


class EvictedKey(NamedTuple):
    """The key of a block that a request of this client evicted: bytes or a Digest; and its tenant."""

    key: bytes
    tenant: int


class Geometry(NamedTuple):
    """The shape of a pool; see maru_geometry in maru.h."""

    pool_bytes: int
    control_bytes: int
    page_bytes: int
    pages: int
    region_pages: int
    lanes: int
    lane: int
    pins_max: int
    key_bytes_max: int
    uuid: bytes
    checksums: bool
    user_regions_max: int
    user_bytes_max: int
    metadata_bytes_max: int


class Statistics(NamedTuple):
    """Totals of a client since it attached; see maru_statistics in maru.h."""

    exists_keys: int
    exists_hits: int
    retrieve_hits: int
    retrieve_misses: int
    match_keys: int
    match_blocks: int
    stores: int
    stored_bytes: int
    duplicates: int
    deletes: int
    pin_full: int
    registry_full: int
    revives: int
    search_fallbacks: int
    checksum_errors: int
    rents: int
    pins: int
    regions: int
    pages_cached: int
    evicted: int
    evicted_lost: int
    regions_taken: int
