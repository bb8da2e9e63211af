"""What MaruL1Manager asks of the pool.

These calls do not raise when the pool refuses something. A block that cannot be read counts as absent, and the log says why.
Where there is CUDA, objects are in pinned memory while LMCache copies them to or from a GPU (staging.py says why).

Thread safety: everything.
"""
from __future__ import annotations

import logging
from typing import Any, Optional, TypeVar

import torch
from lmcache.v1.distributed.api import ObjectKey

from maru import Buffer, Client, MaruError, View
from maru.errors import ViewsHeldError
from maru.pool_tier import Load, PoolTier, Switch

from .. import staging
from .blocks import Blocks
from .keys import Family, Place
from .objects import PoolObject, tensor_of
from .reserved import Reserved
from .said import Sayings
from .stored import by_tenant

logger = logging.getLogger("maru")

_Item = TypeVar("_Item")


class Pool:
    def __init__(self, client: Client, l1_manager_id: int, prefetch: Switch = False, compute_us: float = 0.0) -> None:
        """prefetch: whether maru-tierd loads what has left the pool; a text is the path of its socket. compute_us: how long
        engines compute a chunk; 0: not known."""
        self._client = client
        self._compute_us = compute_us
        self._tier = PoolTier(prefetch, logger)
        self._l1_manager_id = l1_manager_id
        self._blocks = Blocks(client)
        self._said = Sayings()
        self.is_staged = staging.is_wanted()
        self._gpu: Optional[int] = None  # of the thread that has used one last

    def object(self, memory: torch.Tensor, family: Family) -> PoolObject:
        return PoolObject(memory, family, self._l1_manager_id)

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, asked: list[tuple[tuple[int, ObjectKey, Family], Place]],
             ) -> list[tuple[int, ObjectKey, Place, PoolObject]]:
        """The objects that are there, pinned, each with its number and key."""
        found = []
        for tenant, items, rows in by_tenant(((*item, place), place) for item, place in asked):
            try:
                views = self._client.retrieve_batch(rows, tenant)
            except MaruError as error:
                self._said.error("lookup", "%d objects count as absent: %s", len(items), error)
                continue
            for (number, key, family, place), view in zip(items, views):
                if (isinstance(view, View) and len(view) == family.nbytes
                        and self._blocks.is_described_so(view, family.metadata)):
                    found.append((number, key, place, self.object(tensor_of(view.data), family)))
                elif isinstance(view, View):
                    self._said.error("unreadable", "%s counts as absent: its block has %d bytes, not %d, or another layout",
                                     name_of(key), len(view), family.nbytes)
                elif view is not None:
                    self._said.error("unreadable", "%s counts as absent: %s", name_of(key), view)
        return found

    @property
    def has_tier(self) -> bool:
        return self._tier.is_on

    def bring(self, asked: list[tuple[ObjectKey, Place]]) -> list[Load]:
        """Has maru-tierd load those that are not there, and waits for it. What it has brought stays until these are
        released."""
        loads = []
        for tenant, items, rows in by_tenant(asked):
            try:
                present = self._client.exists_batch(rows, tenant)
            except MaruError as error:
                self._said.error("lookup", "%d objects count as absent: %s", len(rows), error)
                continue
            workers = ObjectKey.WorldSizeFromKVRank(items[0].kv_rank)  # each has an object of a chunk
            load = self._tier.bring(rows[[not is_there for is_there in present]], tenant, is_sparse=True,
                                    compute_us=self._compute_us / max(1, workers))
            if load is not None:
                loads.append(load)
        return loads

    def copy_for_gpu(self, memory: PoolObject) -> bool:
        """Has the object in pinned memory from now on, and not in the pool. False where none can be had."""
        self._gpu = staging.device()
        copy = staging.copy_of(memory.raw_data)
        if copy is not None:
            memory.raw_data = copy
        return copy is not None

    def wait_for_gpu(self) -> None:
        """Call this before dropping the last reference to objects that kernels may be using: torch gives pinned memory to the
        next caller."""
        if self._gpu is not None:
            staging.wait_for(self._gpu)

    # -- writing ------------------------------------------------------------------------------------------------------

    def absent(self, asked: list[tuple[_Item, Place]]) -> list[_Item]:
        """Those that are not there; none where the pool cannot be asked."""
        answer: list[_Item] = []
        for tenant, items, rows in by_tenant(asked):
            try:
                present = self._client.exists_batch(rows, tenant)
            except MaruError as error:
                self._said.error("write", "%d objects are not stored: %s", len(items), error)
                continue
            answer += [item for item, is_there in zip(items, present) if not is_there]
        return answer

    def pages(self, family: Family, count: int) -> Optional[list[tuple[Buffer, torch.Tensor]]]:
        """Pages, and the memory that a writer fills; all or none. May wait for marud."""
        try:
            buffers = self._blocks.alloc(family.nbytes, count, family.metadata)
        except MaruError as error:
            self._said.error("pages", "No pages for %d objects of %d bytes: %s", count, family.nbytes, error)
            return None
        if not self.is_staged:
            return [(buffer, tensor_of(buffer.data)) for buffer in buffers]
        self._gpu = staging.device()
        pairs = [(buffer, tensor) for buffer in buffers if (tensor := staging.allocate(family.nbytes)) is not None]
        if len(pairs) == count:
            return pairs
        for buffer in buffers:
            buffer.abort()
        return None

    def fill(self, reserved: Reserved) -> None:
        """Puts into the pages what the writer has written elsewhere."""
        if self.is_staged:
            tensor_of(reserved.buffer.data).copy_(reserved.memory.raw_data)

    def store(self, asked: list[Reserved]) -> tuple[list[tuple[Reserved, int]], list[ObjectKey]]:
        """Publishes complete pages: those that are new, with the numbers of their blocks, and the keys that the pool did not
        take. The objects show no memory any more, so no writer has a way to what others read."""
        new: list[tuple[Reserved, int]] = []
        refused: list[ObjectKey] = []
        for reserved in asked:
            reserved.memory.let_go()
        families: dict[int, list[tuple[Reserved, Place]]] = {}  # one call may end the writes of several object groups
        for reserved in asked:
            families.setdefault(id(reserved.family), []).append((reserved, reserved.place))
        for tenant, group, rows in (one for members in families.values() for one in by_tenant(members)):
            for reserved, (number, is_new, failure) in zip(group, self._stored(group, rows, tenant)):
                if failure is not None:
                    self._said.error("store", "%s is not stored: %s", name_of(reserved.key), failure)
                    reserved.give_back()
                    refused.append(reserved.key)
                elif is_new:
                    new.append((reserved, number))
        return new, refused

    def _stored(self, group: list[Reserved], rows: Any, tenant: int) -> list[tuple[int, bool, Optional[Exception]]]:
        """For each the block under its key now, whether that is new, and what hindered."""
        buffers, family = [reserved.buffer for reserved in group], group[0].family
        try:
            stored = self._blocks.store(rows, buffers, family.nbytes, tenant, family.metadata)
        except ViewsHeldError:
            return [self._store_one(reserved, row, tenant) for reserved, row in zip(group, rows)]
        except MaruError as error:
            return [(0, False, error)] * len(group)
        return [(int(number), bool(is_new), stored.errors.get(index))
                for index, (number, is_new) in enumerate(zip(stored.blocks, stored.is_new))]

    def _store_one(self, reserved: Reserved, row: Any, tenant: int) -> tuple[int, bool, Optional[Exception]]:
        """A writer that still has a tensor of these pages could go on writing. Then readers get a copy of the pages."""
        family = reserved.family
        try:
            try:
                number, is_new = self._blocks.store_one(row, reserved.buffer, family.nbytes, tenant, family.metadata)
            except ViewsHeldError:
                number, is_new = self._blocks.store_copy(row, reserved.buffer.data, family.nbytes, tenant, family.metadata)
                reserved.give_back()
        except MaruError as error:
            return 0, False, error
        return number, is_new, None

    # -- the rest -----------------------------------------------------------------------------------------------------

    def delete(self, asked: list[tuple[ObjectKey, Place]]) -> list[ObjectKey]:
        """The keys of the blocks that were there."""
        gone: list[ObjectKey] = []
        for tenant, keys, rows in by_tenant(asked):
            try:
                gone += [key for key, was_there in zip(keys, self._client.delete_batch(rows, tenant)) if was_there]
            except MaruError as error:
                self._said.error("delete", "%d objects are not deleted: %s", len(keys), error)
        return gone

    def say(self, subject: str, error: MaruError) -> None:
        self._said.error(subject, f"{subject}: %s", error)

    def is_readable(self) -> bool:
        """marud itself may be away for a while."""
        try:
            self._client.exists(b"is the pool there")
        except MaruError:
            return False
        return True


def name_of(key: ObjectKey) -> str:
    return f"{key.model_name} {key.kv_rank:08x} {key.object_group_id} {key.chunk_hash.hex()}"
