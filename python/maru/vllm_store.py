"""How a worker of the vLLM connector stores chunks: on a thread of its own, beside the steps that follow."""
from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Collection, Mapping, Optional

from . import chunk_keys, tracing
from .buffers import take_what_there_is
from .device_copies import Chunk, DeviceCopies
from .engine_pool import GONE, Attached, EnginePool
from .errors import MaruError, ParentGoneError, QuotaError
from .paged_layers import PagedLayers
from .store_queue import StoreQueue
from .tally import Tally
from .token_metadata import TokenMetadata
from .vllm_plan import Transfer

WAITING_BYTES_MAX = 256 << 20  # of the KV cache, that a worker has computed and not yet stored
_Waiting = tuple[Transfer, Any]  # with an event after which its blocks are computed, on a GPU
METADATA_SHARE = 64  # a chunk may take one page more for its metadata for every so many pages that it has


@dataclass(frozen=True)
class Place:
    """What a worker's part of the KV cache is."""

    digest: bytes  # of the place and of how memory is laid out
    block_tokens: int
    chunk_blocks: int
    rank: int = 0
    ranks: int = 1
    metadata_share: int = METADATA_SHARE


class Stores:
    """Thread safety: one thread uses it, the worker's, but for `dropped`, which any may read."""

    def __init__(self, pool: EnginePool, layers: PagedLayers, place: Place, options: Mapping[str, Any], logger: logging.Logger,
                 is_beside: bool, copies: Optional[DeviceCopies] = None) -> None:
        """options: of what is stored. is_beside: False where a step must not end before its chunks are stored. copies: where
        the layers are on a GPU with streams; what a step has put there to compute need not have been computed then."""
        self._pool = pool
        self._layers = layers
        self._copies = copies
        self._place = place
        self._is_described = True  # until a pool has no room for metadata
        self._options = options
        self._logger = logger
        self._interrupted: deque[str] = deque()  # not reported yet
        self._dropped = Tally(logger, "maru: %d chunks were not stored so far, so others compute them. Mostly nothing in the "
                                      "pool is free or can be evicted: other requests read or store all of it, or the tenant "
                                      "or user has all that it may. The last reason: %s")
        self._queue: Optional[StoreQueue[_Waiting]] = StoreQueue(self._store_or_count, WAITING_BYTES_MAX) if is_beside else None

    @property
    def dropped(self) -> int:
        """Chunks that could not be stored."""
        return self._dropped.count

    def put(self, transfer: Transfer) -> None:
        """Stores the transfer, or has it stored. Until wait_for() says so nothing may be written to its blocks."""
        waiting = transfer, self._copies.now() if self._copies is not None else None
        if self._queue is None:
            self._store_or_count(waiting)
        else:
            self._queue.put(waiting, frozenset(transfer.blocks), len(transfer.blocks) * self._layers.block_bytes)

    def wait_for(self, blocks: Optional[Collection[int]]) -> None:
        """Until nothing is stored from these blocks any more; None: until all is stored."""
        if self._queue is not None:
            self._queue.wait_for(blocks)

    def take_interrupted(self) -> set[str]:
        """The requests of which chunks before those to store are gone from the pool; each is returned once."""
        return {self._interrupted.popleft() for _ in range(len(self._interrupted))}

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _store_or_count(self, waiting: _Waiting) -> None:
        transfer, after = waiting
        attached = self._pool.attached()
        reason: object = "there was no room"
        try:
            with tracing.WorkingFor(transfer.traceparent):
                stored = self._store(attached, transfer, after)
        except MaruError as error:
            if isinstance(error, GONE):
                self._pool.warn(attached, error, "chunks are not stored")
                return
            stored, reason = 0, error
        self._dropped.add(transfer.chunks - stored, reason=reason)

    def _store(self, attached: Attached, transfer: Transfer, after: Any) -> int:
        """after: an event, where there are copies. Returns how many chunks are in the pool now; what there is no room for is
        not."""
        per_chunk = self._place.chunk_blocks
        keys = chunk_keys.of_rank(transfer.hashes, self._place.digest)
        parent: Any = chunk_keys.of_rank(transfer.parent, self._place.digest)[0] if transfer.parent else None
        nbytes = per_chunk * self._layers.block_bytes
        metadata = self._metadata(attached, transfer, nbytes)
        with attached.client.match_prefix(keys, attached.tenant) as match:
            present = match.blocks
            buffers = take_what_there_is(attached.client, [nbytes] * (transfer.chunks - present),
                                         max(map(len, metadata), default=0))
            if not buffers:
                return present
            try:
                chunks = [transfer.blocks[i * per_chunk:(i + 1) * per_chunk]
                          for i in range(present, present + len(buffers))]
                if self._copies is None:
                    for blocks, buffer in zip(chunks, buffers):
                        self._layers.gather(blocks, buffer.data)
                else:
                    self._copies.store(attached.client, after, [Chunk.at(blocks, buffer.data)
                                                                for blocks, buffer in zip(chunks, buffers)])
                attached.client.store_chain(keys[present:present + len(buffers)], buffers, parent=match.deepest or parent,
                                            tenant=attached.tenant, metadata=metadata[present:present + len(buffers)],
                                            **self._options)
            except (ParentGoneError, QuotaError) as error:
                self._logger.debug("maru: %s", error)
                if isinstance(error, ParentGoneError):
                    self._interrupted.append(transfer.request_id)
                return present + sum(not buffer.is_held for buffer in buffers)
            finally:
                for buffer in buffers:
                    buffer.abort()  # what was stored has none left to give back
        return present + len(buffers)

    def _metadata(self, attached: Attached, transfer: Transfer, nbytes: int) -> list[bytes]:
        """For each chunk; empty where the pool holds none, or where a chunk would take many pages more."""
        if transfer.prompt is None:
            return []
        place, prompt = self._place, transfer.prompt
        step = 4 * place.block_tokens * place.chunk_blocks
        made = [TokenMetadata(place.block_tokens, transfer.tokens[begin:begin + step], lora=prompt.lora, salt=prompt.salt,
                              rank=place.rank, ranks=place.ranks, family=prompt.family, layout=place.digest[:16]).encode()
                for begin in range(0, transfer.chunks * step, step)]
        shape = attached.client.geometry()
        longest = max(map(len, made), default=0)
        pages = -(-nbytes // shape.page_bytes)
        more = -(-(-(-nbytes // 64) * 64 + longest) // shape.page_bytes) - pages
        if longest <= shape.metadata_bytes_max and more * place.metadata_share <= pages:
            return made
        if self._is_described:
            self._is_described = False
            self._logger.info("maru: chunks are stored without their tokens, so routers cannot be told of them: metadata of "
                              "a chunk has %d bytes, and the pool takes %d; a chunk has %d pages of %d bytes, and would have "
                              "%d more. For events set page_bytes of the pool lower, or maru_metadata to true.",
                              longest, shape.metadata_bytes_max, pages, shape.page_bytes, more)
        return []
