"""Blocks with a description beside them, where the pool has room for one that costs no page.

The description is the metadata of maru.Client: the model, the rank, the object group and the layout, for administrators and
for programs that meet a block without its writer. The key stands for the same, so a reader needs no description; it refuses a
block whose description is another one. An object that fills its pages has none: a page more for each would leave gaps in
regions whose size is a multiple of an object's.
"""
from __future__ import annotations

from typing import Any, Sequence

from maru import Buffer, Client, View
from maru.records import Digest, Stored


class Blocks:
    """The calls of a client that allocate and store. Thread safety: everything."""

    def __init__(self, client: Client) -> None:
        self._client = client
        geometry = client.geometry()
        self._page_bytes = geometry.page_bytes
        # 0: this client, or the marud that formatted the pool, is from before metadata.
        self._most: int = getattr(geometry, "metadata_bytes_max", 0)

    def _beside(self, nbytes: int, description: bytes) -> bytes:
        return description if len(description) <= min(-nbytes % self._page_bytes, self._most) else b""

    def alloc(self, nbytes: int, count: int, description: bytes) -> list[Buffer]:
        """client.alloc_batch(), for blocks that are then stored with this description."""
        beside = self._beside(nbytes, description)
        more: dict[str, Any] = {"metadata_bytes": len(beside)} if beside else {}
        return self._client.alloc_batch(nbytes, count, **more)

    def store(self, rows: Any, buffers: Sequence[Buffer], nbytes: int, tenant: int, description: bytes) -> Any:
        """client.store_batch() of blocks of equal size: a StoredBatch."""
        beside = self._beside(nbytes, description)
        more: dict[str, Any] = {"metadata": [beside] * len(buffers)} if beside else {}
        return self._client.store_batch(rows, buffers, tenant=tenant, **more)

    def store_one(self, row: Any, buffer: Buffer, nbytes: int, tenant: int, description: bytes) -> Stored:
        """client.store()."""
        return self._client.store(Digest(bytes(row)), buffer, tenant=tenant, **self._one(nbytes, description))

    def store_copy(self, row: Any, data: Any, nbytes: int, tenant: int, description: bytes) -> Stored:
        """client.store_copy()."""
        return self._client.store_copy(Digest(bytes(row)), data, tenant=tenant, **self._one(nbytes, description))

    def store_copies(self, rows: Any, data: Sequence[memoryview], tenant: int, description: bytes) -> Any:
        """client.store_copy_batch(): a StoredBatch."""
        beside = [self._beside(one.nbytes, description) for one in data]
        more: dict[str, Any] = {"metadata": beside} if any(beside) else {}
        return self._client.store_copy_batch(rows, data, tenant=tenant, **more)

    def _one(self, nbytes: int, description: bytes) -> dict[str, Any]:
        beside = self._beside(nbytes, description)
        return {"metadata": beside} if beside else {}

    def is_described_so(self, view: View, description: bytes) -> bool:
        """True also for a block without a description."""
        return not self._most or getattr(view, "metadata", b"") in (b"", description)
