"""What this server has stored, as far as it is still there.

The pool is shared and outlives the server, and marud evicts. So this list is no index: lookups go to the pool. It says what
clear() may delete, how many bytes this server has in the pool, and which keys LMCache's listeners must hear to be gone.

A block may have gone, and another server may have stored the key since. A block's number tells the two: it stands for one life
of one block.

Thread safety: none; the manager's lock covers it.
"""
from __future__ import annotations

from itertools import islice
from typing import Iterable, Iterator, NamedTuple, Optional, TypeVar

import numpy
from lmcache.v1.distributed.api import ObjectKey
from numpy.typing import NDArray

from maru import Client

from .keys import Place

_AT_ONCE = 1024  # digests in one call

_Item = TypeVar("_Item")


class Block(NamedTuple):
    place: Place
    number: int
    nbytes: int


def by_tenant(items: Iterable[tuple[_Item, Place]]) -> Iterator[tuple[int, list[_Item], NDArray[numpy.uint8]]]:
    """For each tenant its items, and their digests for one call of maru.Client."""
    groups: dict[int, list[tuple[_Item, bytes]]] = {}
    for item, place in items:
        groups.setdefault(place.tenant, []).append((item, place.digest))
    for tenant, pairs in groups.items():
        rows = numpy.frombuffer(b"".join(digest for _, digest in pairs), dtype=numpy.uint8).reshape(len(pairs), 32)
        yield tenant, [item for item, _ in pairs], rows


class StoredBlocks:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._blocks: dict[ObjectKey, Block] = {}
        self._round: Iterator[ObjectKey] = iter(())
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._blocks

    def add(self, key: ObjectKey, block: Block) -> None:
        self.forget(key)
        self._blocks[key] = block
        self.nbytes += block.nbytes

    def forget(self, key: ObjectKey) -> Optional[Block]:
        block = self._blocks.pop(key, None)
        if block is not None:
            self.nbytes -= block.nbytes
        return block

    def keys(self) -> list[ObjectKey]:
        return list(self._blocks)

    def get(self, key: ObjectKey) -> Optional[Block]:
        return self._blocks.get(key)

    def items(self) -> Iterable[tuple[ObjectKey, Block]]:
        return self._blocks.items()

    def pop_gone(self, most: int, from_start: bool = False) -> list[tuple[ObjectKey, Block]]:
        """Looks at the next keys, `most` of them, in turn, and takes away those that the pool no longer has. That is no use of
        the blocks to an eviction policy."""
        asked = [] if from_start else list(islice(self._round, most))
        if not asked:  # a round is over
            self._round = iter(list(self._blocks))
            asked = list(islice(self._round, most))
        gone: list[tuple[ObjectKey, Block]] = []
        known = [(key, self._blocks[key].place) for key in asked if key in self._blocks]
        for tenant, keys, rows in by_tenant(known):
            present = self._client.exists_batch(rows, tenant)
            gone += [(key, self._blocks[key]) for key, is_there in zip(keys, present) if not is_there]
        for key, _ in gone:
            self.forget(key)
        return gone

    def delete(self, keys: Iterable[ObjectKey]) -> list[tuple[ObjectKey, Block]]:
        """Deletes the blocks of these keys as far as they are the ones that this server has stored, and forgets the keys.
        Returns what has gone. A pin keeps each block from eviction between the look and the deletion."""
        gone: list[tuple[ObjectKey, Block]] = []
        asked = iter([(key, self._blocks[key].place) for key in keys if key in self._blocks])
        while part := list(islice(asked, _AT_ONCE)):
            for tenant, known, rows in by_tenant(part):
                pins = self._client.pin_batch(rows, tenant)
                is_ours = [pin is not None and pin.block == self._blocks[key].number for key, pin in zip(known, pins)]
                self._client.delete_batch(rows[is_ours], tenant)
                for key in known:
                    block = self.forget(key)
                    if block is not None:
                        gone.append((key, block))
        return gone
