"""Which chunks of an engine a pool has: what a connector reports to routers in its engine's own stream of events.

A router knows an engine by its stream, and sends it the requests whose prompts the stream has told of. Chunks that other
engines have stored are as useful to this engine as its own. So a thread follows the pool, and takes the chunks that this engine
can load: of its family, and with a part for each of its ranks.

The engine asks for news when it schedules a step, and not while it is idle. Until then a chunk has one entry here, however
often it has come and gone. So the pool's size bounds the memory.

Thread safety: everything. take() does not wait for marud or for the thread.
"""
from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Callable, Iterable, NamedTuple, Optional

from .chunk_keys import HASH_BYTES
from .errors import MaruError
from .follow import Event, Follower, Kind
from .token_metadata import TokenMetadata, decode

RETRY_S = 5.0  # until a pool that cannot be followed is tried again


class Told(NamedTuple):
    """One chunk that the pool has, or has no more."""

    is_stored: bool
    hashes: list[int]  # of the engine's blocks in it, 64 bits each
    parent: Optional[int]  # the hash of the block before the first one; None: the prompt begins here
    tokens: list[int]
    block_size: int
    lora: str
    salt: str


@dataclass
class _Chunk:
    metadata: TokenMetadata
    parent: Optional[bytes]
    ranks: Counter[bytes] = field(default_factory=Counter)  # digest of each rank whose part is there -> blocks with that part


def block_hashes(chunk: bytes, count: int) -> list[int]:
    """For the blocks of one chunk; the same in every process."""
    digest = hashlib.shake_128(chunk).digest(8 * count)
    return [int.from_bytes(digest[begin:begin + 8], "big") for begin in range(0, 8 * count, 8)]


def _without_rank(key: Optional[bytes], rank: bytes) -> Optional[bytes]:
    if key is None or len(key) != HASH_BYTES:
        return None
    return bytes(a ^ b for a, b in zip(key, rank))


class PoolEvents:
    def __init__(self, open_follower: Callable[[], tuple[Follower, int]], logger: logging.Logger) -> None:
        """open_follower: each time a new follower of the pool, and the number of the engine's tenant (0: none)."""
        self._open = open_follower
        self._logger = logger
        self._lock = threading.Lock()  # of what follows
        self._family = b""
        self._tenant = 0
        self._is_current = False  # the chunks here are those of the pool
        self._ranks: dict[bytes, bytes] = {}  # the first half of each rank's digest -> the digest
        self._chunks: dict[bytes, _Chunk] = {}  # that have a part in the pool, by their hash
        self._of_block: dict[int, tuple[bytes, bytes]] = {}  # number -> chunk's hash and rank's digest
        self._changed: dict[bytes, None] = {}  # in the order of their first change since the last take()
        self._told: dict[bytes, Told] = {}
        self._follower: Optional[Follower] = None
        self._end = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._is_said = False

    def start(self, family: bytes, rank_digests: Iterable[bytes]) -> None:
        """Tells of this family's chunks from now on; of another one's no more. May be called again."""
        with self._lock:
            self._family, self._ranks = family, {digest[:16]: digest for digest in rank_digests}
            self._forget_all()
            if self._follower is not None:
                self._follower.close()  # the thread opens another one, which begins with all that is there
            if self._thread is None and not self._end.is_set():
                self._thread = threading.Thread(target=self._run, name="maru-events", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._end.set()
            follower, thread = self._follower, self._thread
        if follower is not None:
            follower.close()
        if thread is not None:
            thread.join(5.0)

    def take(self) -> list[Told]:
        """What has changed since the last call: parents are stored before their children, and removed after them."""
        news: list[Told] = []
        with self._lock:
            if not self._is_current:
                return news  # after a loss most chunks are still there, and a snapshot of the pool is under way
            for chunk_hash in self._changed:
                chunk = self._chunks.get(chunk_hash)
                is_there = chunk is not None and len(chunk.ranks) == len(self._ranks)
                if is_there == (chunk_hash in self._told):
                    continue
                if chunk is not None and is_there:
                    told = self._told[chunk_hash] = self._stored(chunk_hash, chunk)
                    news.append(told)
                else:
                    news.append(self._told.pop(chunk_hash)._replace(is_stored=False))
            self._changed.clear()
        return news

    @staticmethod
    def _stored(chunk_hash: bytes, chunk: _Chunk) -> Told:
        metadata = chunk.metadata
        tokens = [int.from_bytes(metadata.tokens[begin:begin + 4], "little") for begin in range(0, len(metadata.tokens), 4)]
        count = len(tokens) // metadata.block_size
        # Chunks of one engine have the same number of blocks.
        parent = block_hashes(chunk.parent, count)[-1] if chunk.parent is not None else None
        return Told(True, block_hashes(chunk_hash, count), parent, tokens, metadata.block_size,
                    metadata.lora, metadata.salt)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                follower, tenant = self._open()
                with self._lock:
                    self._follower, self._tenant, self._is_said = follower, tenant, False
                with follower:
                    for event in follower:
                        with self._lock:
                            self._note(event)
            except MaruError as error:
                self._say(error)
            with self._lock:
                self._follower = None
                self._forget_all()
                self._is_current = self._is_said
            self._end.wait(RETRY_S if self._is_said else 0)

    def _say(self, error: MaruError) -> None:
        if not self._is_said:
            self._is_said = True
            self._logger.warning("maru: routers are not told of the pool's chunks, and the pool is tried again every %d s: %s",
                                 RETRY_S, error)

    def _forget_all(self) -> None:
        self._is_current = False
        self._chunks.clear()
        self._of_block.clear()
        for chunk_hash in reversed(self._told):
            self._change(chunk_hash)

    def _change(self, chunk_hash: bytes) -> None:
        # A parent comes before its children and goes after them, so the first changes have the right order, too.
        self._changed.setdefault(chunk_hash)

    def _note(self, event: Event) -> None:
        if event.kind == Kind.RESET:
            self._forget_all()
        elif event.kind == Kind.CURRENT:
            self._is_current = True
        elif event.kind == Kind.STORED:
            if event.tenant == self._tenant:
                self._note_stored(event)
        elif event.kind == Kind.REMOVED and (known := self._of_block.pop(event.block, None)) is not None:
            chunk_hash, rank = known
            chunk = self._chunks[chunk_hash]
            chunk.ranks[rank] -= 1  # two lives of a key overlap when a chunk is stored again
            if not chunk.ranks[rank]:
                del chunk.ranks[rank]
            if not chunk.ranks:
                del self._chunks[chunk_hash]
            self._change(chunk_hash)

    def _note_stored(self, event: Event) -> None:
        metadata = self._ours(event)
        rank = self._ranks.get(metadata.layout) if metadata is not None else None
        chunk_hash = _without_rank(event.key, rank) if rank is not None else None
        if metadata is None or rank is None or chunk_hash is None:
            return
        chunk = self._chunks.setdefault(chunk_hash, _Chunk(metadata, _without_rank(event.parent_key, rank)))
        chunk.ranks[rank] += 1
        self._of_block[event.block] = chunk_hash, rank
        self._change(chunk_hash)

    def _ours(self, event: Event) -> Optional[TokenMetadata]:
        try:
            metadata = decode(event.metadata) if event.metadata else None
        except ValueError:
            return None
        return metadata if metadata is not None and metadata.family == self._family else None
