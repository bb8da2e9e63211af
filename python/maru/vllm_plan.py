"""What the scheduler's half of the vLLM connector knows of requests: which chunks there are, which are stored, which are to be
loaded. Plain values; nothing here needs vLLM or a pool."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Collection, Iterable, Optional

import numpy

from . import chunk_keys
from .chunk_keys import HASH_BYTES
from .errors import MaruError
from .pool_tier import Load
from .token_metadata import TEXT_BYTES_MAX

if TYPE_CHECKING:
    from .tracing import Request


@dataclass(frozen=True)
class Prompt:
    """What the metadata of a request's chunks says beside their tokens."""

    family: bytes  # of the engines that find each other's chunks
    lora: str = ""
    salt: str = ""

    @classmethod
    def of(cls, request: Any, family: bytes) -> Optional[Prompt]:
        """None where tokens, LoRA and salt do not say which prompt it is: one with images, or with names that metadata does not
        take."""
        lora = getattr(getattr(request, "lora_request", None), "lora_name", None) or ""
        salt = str(getattr(request, "cache_salt", None) or "")
        are_taken = all(text.isprintable() and len(text.encode()) <= TEXT_BYTES_MAX for text in (lora, salt))
        return cls(family, lora, salt) if are_taken and not getattr(request, "mm_features", None) else None


@dataclass
class Transfer:
    """Chunks of one request between the pool and blocks of the engine's KV cache."""

    request_id: str
    hashes: bytes  # of the chunks, without the rank
    parent: Optional[bytes]  # the hash of the chunk before the first one
    blocks: list[int]
    skip: int = 0  # blocks of the first chunk that are not in `blocks`, because they are computed already
    tokens: bytes = b""  # of chunks to store, 32 bits each, least significant byte first
    prompt: Optional[Prompt] = None  # of chunks to store; None: they are stored without metadata
    traceparent: str = ""  # of the request, where it is traced

    @property
    def chunks(self) -> int:
        return len(self.hashes) // HASH_BYTES


@dataclass
class RequestPlan:
    """One request, from when the scheduler first asks about it until it is finished."""

    request: Any
    root: bytes
    adapter: Optional[str] = None  # what its LoRA is known by
    hashes: bytes = b""
    offered_from: int = 0  # tokens that were computed when the scheduler last asked
    found: Optional[int] = None  # leading chunks that were in the pool then, until blocks are allocated
    load: Optional[tuple[int, int]] = None  # tokens from and to, once blocks are allocated
    loadable: Optional[int] = None  # leading chunks, after those behind them could not be loaded
    blocks: list[int] = field(default_factory=list)
    stored: int = 0  # chunks that are in the pool, or on their way
    held: list[Any] = field(default_factory=list)  # what keeps the chunks to load from being evicted
    held_since: int = 0
    coming: Optional[Load] = None  # chunks from below the pool, until they are held or are of no use
    trace: Optional[Request] = None  # from the first question about it to its end

    @property
    def traceparent(self) -> str:
        return self.trace.traceparent if self.trace is not None else ""

    def end_trace(self) -> None:
        if self.trace is not None:
            with contextlib.suppress(MaruError):  # the client it began with is closed, as another one has the pool now
                self.trace.end()

    def loadable_tokens(self, stored: int, block_tokens: int) -> int:
        """Of so many leading tokens that are stored. One token has to be computed in any case, so that there is something to go
        on from. Then the last chunk is loaded without its last block."""
        known: int = (self.request.num_tokens - 1) // block_tokens * block_tokens
        return min(stored, known)

    def hash_to(self, n: int, chunk_tokens: int) -> bytes:
        """The hashes of the whole chunks among the first n tokens."""
        chunks = n // chunk_tokens
        done = len(self.hashes) // HASH_BYTES
        if chunks > done:
            # Only what is new is copied out of the scheduler's list: chunks before stand as their hashes.
            new = numpy.array(self.request.all_token_ids[done * chunk_tokens:chunks * chunk_tokens], dtype=numpy.int64)
            # Read again each time: a streaming session gets more of them with every turn.
            features = features_of(self.request, chunk_tokens)
            features = {chunk - done: value for chunk, value in features.items() if chunk >= done}
            parent = self.hashes[-HASH_BYTES:] if done else self.root
            self.hashes += chunk_keys.extend(new, chunk_tokens, parent, features)
        return self.hashes[:chunks * HASH_BYTES]

    def transfer(self, begin: int, end: int, block_tokens: int, chunk_tokens: int) -> Transfer:
        """The chunks that hold the tokens from begin to end, and the blocks of these tokens."""
        first, last = begin // chunk_tokens, -(-end // chunk_tokens)
        return Transfer(
            request_id=self.request.request_id, hashes=self.hashes[first * HASH_BYTES:last * HASH_BYTES],
            parent=self.hashes[(first - 1) * HASH_BYTES:first * HASH_BYTES] if first else None,
            blocks=self.blocks[begin // block_tokens:-(-end // block_tokens)],
            skip=(begin - first * chunk_tokens) // block_tokens, traceparent=self.traceparent)

    def tokens_of(self, transfer: Transfer, chunk_tokens: int, first: int) -> bytes:
        """first: the number of the transfer's first chunk."""
        tokens = self.request.all_token_ids[first * chunk_tokens:(first + transfer.chunks) * chunk_tokens]
        return numpy.array(tokens, dtype="<u4").tobytes()

    def begin_again(self, root: bytes) -> None:
        """With other hashes, when nothing of the request is computed."""
        self.end()
        self.root, self.hashes = root, b""
        self.offered_from = self.stored = 0
        self.found = self.load = self.loadable = None
        self.blocks = []

    def let_go(self) -> None:
        for match in self.held:
            match.release()
        self.held.clear()

    def end_coming(self) -> None:
        if self.coming is not None:
            self.coming.release()
            self.coming = None

    def end(self) -> None:
        self.let_go()
        self.end_coming()


def first_of(blocks: Iterable[int], among: Collection[int]) -> Optional[int]:
    """The place of the first block that is among others; None when none is."""
    return next((place for place, block in enumerate(blocks) if block in among), None)


def following(failed: Collection[int], lists: Collection[list[int]]) -> set[int]:
    """The failed blocks, and those that stand behind one of them in any list of a request's blocks: what these hold was, or
    will be, computed from what was not loaded. Lists may share blocks. Ends because each turn but the last finds a block."""
    found, before = set(failed), 0
    while len(found) > before:
        before = len(found)
        for blocks in lists:
            place = first_of(blocks, found)
            if place is not None:
                found.update(blocks[place:])
    return found


def compute_again(request: Any, computed: int) -> None:
    """Makes vLLM's scheduler compute a request from its token `computed` on, and drop what steps that are under way return for
    it. vLLM itself takes a request back to the first block that failed, but not where another request of the batch is to
    compute that block, which may take that one several steps; and it would deliver what steps scheduled ahead sampled."""
    request.num_computed_tokens = min(request.num_computed_tokens, computed)
    if getattr(request, "num_in_flight_tokens", None) is None:
        return  # a vLLM that does not count them
    # What vLLM does with a request that is preempted because its cache is reset.
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.drop_stale_output = request.num_in_flight_tokens > 0
    request.num_output_placeholders = 0
    request.spec_token_ids = []


def features_of(request: Any, chunk_tokens: int) -> dict[int, bytes]:
    """What stands behind the placeholders in a prompt (images, audio), by the chunk in which each begins."""
    features: dict[int, bytes] = {}
    for feature in getattr(request, "mm_features", None) or ():
        chunk = feature.mm_position.offset // chunk_tokens
        text = f"{feature.modality}\0{feature.identifier}\0{feature.mm_position.offset}\0{feature.mm_position.length}\0"
        features[chunk] = features.get(chunk, b"") + text.encode()
    return features
