"""The life of KV blocks, as NVIDIA Dynamo's block manager has it, over one pool: filled with tokens, named by their hashes,
registered, matched by any process, evicted. maru/blocks.hpp is the same in C++; docs/blocks.md explains both.

    with maru.Client() as client:
        pool = BlockPool(client, page_size=16, block_bytes=65536)
        block = pool.allocate(1).blocks[0]
        block.init_sequence(1337)
        block.add_tokens(range(16))
        block.data[:4] = b"kv.."
        with block.commit().register() as registered, pool.match_blocks([registered.hash]) as matched:
            bytes(matched[0].data[:4])

A state is a class. A transition uses its handle up, which raises HandleUsedError from then on, and returns the next one; a
transition that is refused raises BlockStateError and leaves the handle as it was. blocks.hpp finds the blocks that this module
registers, and the other way round. Handles of one block are for one thread at a time; a pool is for all.
"""
from __future__ import annotations

import os
import struct
import threading
from types import TracebackType
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Protocol, Sequence, TypeVar, Union

import numpy

from . import tokens as _tokens
from ._maru import Buffer, Client, Match, View
from .errors import (BadMemoryError, DamagedBlockError, HandleUsedError, HasChildrenError, InvalidArgumentError, MaruError,
                     NotFoundError, StillPinnedError, TryAgainError)
from .records import Digest

_Self = TypeVar("_Self")
_CHECK_SALT = 0x6D61_7275_2D63_6865  # as in maru/blocks/hashes.hpp
_REGISTER_TRIES = 64


class BlockStateError(InvalidArgumentError):
    """The block is in a state in which this is not possible; the message says in which, and what to do."""


class BlockHash(NamedTuple):
    """What names a block: Dynamo's sequence hash, and a second hash of the same tokens, so that a collision is a miss."""

    sequence: int
    check: int

    def key(self) -> Digest:
        return Digest(struct.pack("<QQ", self.sequence, self.check))


class BlockPoolStatus(NamedTuple):
    """Of the whole pool, of all processes."""

    active: int  # registered blocks that a process holds, and their ancestors
    inactive: int  # registered blocks that nothing holds
    empty: int  # blocks for which there are free pages


class ResetBlocks(NamedTuple):
    reset: list[BlockHash]
    not_found: list[BlockHash]
    not_reset: list[BlockHash]  # held by a process, or with children


class BlockEvent(NamedTuple):
    hash: BlockHash
    parent: Optional[BlockHash]
    block: int  # which life of the hash


class BlockListener(Protocol):
    """For each life of a block on_register comes before on_remove. Calls come one at a time, from any thread, and must neither
    raise nor call the pool."""

    def on_register(self, event: BlockEvent) -> None: ...
    def on_remove(self, event: BlockEvent) -> None: ...


def hash_tokens(salt_hash: int, page_size: int, tokens: _tokens.Tokens, parent: Optional[BlockHash] = None) -> list[BlockHash]:
    """The names of the whole blocks of a prompt."""
    before = (None, None) if parent is None else parent
    _, sequences = _tokens.dynamo(tokens, page_size, salt=salt_hash, parent=before[0])
    _, checks = _tokens.dynamo(tokens, page_size, salt=salt_hash ^ _CHECK_SALT, parent=before[1])
    return [BlockHash(int(sequence), int(check)) for sequence, check in zip(sequences, checks)]


class _Handle:
    """What has a block of a pool until it is used up."""

    _pool: BlockPool
    _held = True

    def _use(self) -> None:
        if not self._held:
            raise HandleUsedError(f"This {type(self).__name__} has no block: it was used up or released; use the handle "
                                  "that has the block now.")

    @property
    def is_held(self) -> bool:
        return self._held

    def release(self) -> None:
        """Lets go. May be called again."""
        if self._held:
            self._held = False
            self._end()

    def _end(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.release()


class _Unregistered(_Handle):
    def __init__(self, pool: BlockPool, buffer: Buffer) -> None:
        self._pool = pool
        self._buffer: Buffer = buffer

    @property
    def data(self) -> memoryview:
        """The payload, to be written until the block is registered. Nothing may refer to it any more then."""
        self._use()
        return self._buffer.data

    def _use_up(self) -> Buffer:
        self._held = False
        buffer = self._buffer
        del self._buffer
        return buffer

    def _end(self) -> None:
        self._use_up().abort()


class MutableBlock(_Unregistered):
    """Reset, or Partial with a sequence of tokens."""

    _tokens: Optional[list[int]] = None
    _salt_hash = 0
    _parent: Optional[BlockHash] = None

    @property
    def state(self) -> str:
        return "Reset" if self._tokens is None else "Partial"

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens or ())

    def __len__(self) -> int:
        return len(self._tokens or ())

    @property
    def remaining(self) -> Optional[int]:
        """How many tokens a Partial block still takes; None for a Reset one."""
        return None if self._tokens is None else self._pool.page_size - len(self._tokens)

    def init_sequence(self, salt_hash: int, parent: Optional[BlockHash] = None) -> None:
        """Reset -> Partial, at the beginning of a sequence or behind `parent`."""
        self._reset_only()
        self._tokens, self._salt_hash, self._parent = [], _tokens._word("salt_hash", salt_hash), parent

    def add_token(self, token: int) -> None:
        held = self._partial()
        if len(held) == self._pool.page_size:
            raise BlockStateError(f"Block is full: it has {len(held)} of {self._pool.page_size} tokens; commit it, and go on "
                                  "in the next block.")
        held.append(_token(token))

    def add_tokens(self, tokens: Iterable[int]) -> list[int]:
        """Adds what fits, and returns the rest: for the next block."""
        held = self._partial()
        given = [_token(token) for token in tokens]
        fits = self._pool.page_size - len(held)
        held += given[:fits]
        return given[fits:]

    def pop_token(self) -> int:
        held = self._partial()
        if not held:
            raise BlockStateError("Block has no token to take away; expected at least one.")
        return held.pop()

    def pop_tokens(self, count: int) -> None:
        held = self._partial()
        if not 0 <= count <= len(held):
            raise BlockStateError(f"Block has {len(held)} tokens; {count} were to be taken away: take fewer.")
        del held[len(held) - count:]

    def reset(self) -> None:
        """Partial -> Reset, or nothing for a Reset block. The payload stays as it is."""
        self._use()
        self._tokens, self._parent = None, None

    def commit(self) -> CompleteBlock:
        """Partial -> Complete, when full."""
        held = self._partial()
        if len(held) != self._pool.page_size:
            raise BlockStateError(f"Block is incomplete: found {len(held)} tokens, expected {self._pool.page_size}: add the "
                                  "rest before commit().")
        return self._complete(self._salt_hash, held, self._parent)

    def apply_token_block(self, salt_hash: int, tokens: Sequence[int], parent: Optional[BlockHash] = None) -> CompleteBlock:
        """Reset -> Complete."""
        self._reset_only()
        given = [_token(token) for token in tokens]
        if len(given) != self._pool.page_size:
            raise BlockStateError(f"Token block has {len(given)} tokens, the pool's blocks have {self._pool.page_size}: cut "
                                  "the sequence by the pool's page size.")
        return self._complete(_tokens._word("salt_hash", salt_hash), given, parent)

    def _complete(self, salt_hash: int, tokens: list[int], parent: Optional[BlockHash]) -> CompleteBlock:
        prompt = numpy.array(tokens, dtype=numpy.uint32)
        hash = hash_tokens(salt_hash, self._pool.page_size, prompt, parent)[0]
        own, _ = _tokens.dynamo(prompt, self._pool.page_size, salt=salt_hash)
        return CompleteBlock(self._pool, self._use_up(), self._pool._named(hash), int(own[0]), parent, tuple(tokens))

    def _partial(self) -> list[int]:
        self._use()
        if self._tokens is None:
            raise BlockStateError("Block is not partial: found a Reset block; expected a Partial one: call "
                                  "init_sequence() first.")
        return self._tokens

    def _reset_only(self) -> None:
        self._use()
        if self._tokens is not None:
            raise BlockStateError(f"Block is not reset: it has a sequence of {len(self._tokens)} tokens; expected a Reset "
                                  "block: call reset() first.")


class CompleteBlock(_Unregistered):
    """A full block with its hashes, which only its owner sees."""

    def __init__(self, pool: BlockPool, buffer: Buffer, hash: BlockHash, block_hash: int, parent: Optional[BlockHash],
                 tokens: tuple[int, ...]) -> None:
        super().__init__(pool, buffer)
        self.hash = hash
        self.block_hash = block_hash
        self.parent = parent
        self.tokens = tokens

    @property
    def sequence_hash(self) -> int:
        return self.hash.sequence

    def reset(self) -> MutableBlock:
        """Complete -> Reset."""
        self._use()
        return MutableBlock(self._pool, self._use_up())

    def register(self, duplicates: Optional[str] = None) -> ImmutableBlock:
        """Complete -> Registered: every process finds the block from now on. Where the hash is registered already, the handle
        is of the block that is there ("reject"), or keeps these bytes for itself beside it ("allow"). Arrays that were made
        of `data` before must not be written any more. ParentGoneError: register the parent again first. Whatever is raised
        leaves the handle as it was, with its bytes perhaps in other pages; only where the pool has none left it is used up."""
        self._use()
        return self._pool._register(self, self._pool.duplicates if duplicates is None else _duplicates(duplicates))


class ImmutableBlock(_Handle):
    """A registered block, held: neither evicted nor overwritten while the handle lives."""

    def __init__(self, pool: BlockPool, view: Union[View, _Kept], hash: BlockHash, is_new: bool,
                 own: Optional[memoryview] = None) -> None:
        self._pool = pool
        self._view = view
        self.block = view.block  # which life of the hash
        self.hash = hash
        self.is_new = is_new
        self._own = own

    @property
    def sequence_hash(self) -> int:
        return self.hash.sequence

    @property
    def is_duplicate(self) -> bool:
        return self._held and self._own is not None

    @property
    def data(self) -> memoryview:
        """In place, read-only. Of a duplicate: the bytes that its owner wrote."""
        self._use()
        return self._view.data if self._own is None else self._own.toreadonly()

    def downgrade(self) -> WeakBlock:
        self._use()
        return WeakBlock(self._pool, self.hash, self.block)

    def unregister(self) -> None:
        """Registered -> Reset: takes this life of the block out of the pool. A block that was registered later under its hash
        stays. Its parent counts it until marud has freed it, some milliseconds. HasChildrenError: the handle is as it was.
        NotFoundError: this life was removed already, and the handle is used up."""
        self._use()
        self._pool._unregister(self)

    def _let_go(self) -> None:
        self._held = False
        self._own = None
        self._view.release()

    def _end(self) -> None:
        self._let_go()
        self._pool._released(self.hash, self.block)


class WeakBlock:
    """Names one life of a block, and does not hold it."""

    def __init__(self, pool: BlockPool, hash: BlockHash, block: int) -> None:
        self._pool = pool
        self.hash = hash
        self.block = block

    def upgrade(self) -> Optional[ImmutableBlock]:
        """The same life, held; None when it is over."""
        found = self._pool.client.retrieve(self.hash.key(), self._pool.tenant)
        if found is None:
            return None
        if found.block != self.block:
            found.release()
            return None
        return ImmutableBlock(self._pool, found, self.hash, False)


class ImmutableBlocks(_Handle):
    """What a match or a scan found, held together. Each element has its data, and goes with this."""

    def __init__(self, pool: BlockPool, hashes: list[BlockHash], views: list[View], match: Optional[Match] = None) -> None:
        self._pool = pool
        self.hashes = hashes
        self._views = views
        self._match = match

    def __len__(self) -> int:
        return len(self._views) if self._held else 0

    def __getitem__(self, index: int) -> View:
        self._use()
        return self._views[index]

    def __iter__(self) -> Iterator[View]:
        self._use()
        return iter(self._views)

    def downgrade(self, index: int) -> WeakBlock:
        self._use()
        return WeakBlock(self._pool, self.hashes[index], self._views[index].block)

    def hold(self, index: int) -> Optional[ImmutableBlock]:
        """A handle of its own for one of them; None when it was unregistered meanwhile."""
        return self.downgrade(index).upgrade()

    def _end(self) -> None:
        lives = [view.block for view in self._views]
        for view in self._views:
            view.release()
        if self._match is not None:
            self._match.release()
        for hash, block in zip(reversed(self.hashes), reversed(lives)):
            self._pool._released(hash, block)


class AllocatedBlocks(NamedTuple):
    blocks: list[MutableBlock]
    evicted: list[BlockHash]  # by requests of this client since the last allocate()


class BlockPool:
    """The blocks of a pool, through a client that stays the caller's. Close the client after the handles."""

    def __init__(self, client: Client, *, page_size: int = 16, block_bytes: int, tenant: Union[None, str, int] = None,
                 duplicates: str = "reject", reset_on_release: bool = False, sequence_hash_only: bool = False, ttl_ms: int = 0,
                 priority: int = 0, listener: Optional[BlockListener] = None) -> None:
        geometry = client.geometry()
        region_bytes = geometry.page_bytes * geometry.region_pages
        if not 1 <= page_size <= _tokens.BLOCK_TOKENS_MAX:
            raise InvalidArgumentError(f"page_size: found {page_size}, expected 1 to {_tokens.BLOCK_TOKENS_MAX} tokens.")
        if not 1 <= block_bytes <= region_bytes:
            raise InvalidArgumentError(f"block_bytes: found {block_bytes}, expected 1 to {region_bytes}, a region.")
        self.client = client
        self.page_size = page_size
        self.block_bytes = block_bytes
        self.tenant = client.tenant(tenant) if isinstance(tenant, str) else tenant
        self.duplicates = _duplicates(duplicates)
        self.reset_on_release = reset_on_release
        self.sequence_hash_only = sequence_hash_only
        self._block_pages = -(-block_bytes // geometry.page_bytes)
        self._store: dict[str, Any] = {"ttl_ms": ttl_ms, "priority": priority, "tenant": self.tenant}
        self._listener = listener
        self._lock = threading.Lock()
        self._lives: dict[BlockHash, BlockEvent] = {}  # that the listener has heard of
        # What maru.block_set keeps.
        self._exporter = os.urandom(16)
        self._sets_exported = 0
        self._sets_imported: set[tuple[bytes, int]] = set()

    def allocate(self, n: int) -> AllocatedBlocks:
        """n blocks, all Reset, or none."""
        try:
            buffers = self.client.alloc_batch(self.block_bytes, n)
        finally:
            evicted = self._take_evicted()
        return AllocatedBlocks([MutableBlock(self, buffer) for buffer in buffers], evicted)

    def match_blocks(self, hashes: Sequence[BlockHash]) -> ImmutableBlocks:
        """The longest run of leading hashes whose blocks are there. A block that cannot be read ends it."""
        keys = [hash.key() for hash in hashes]
        match = self.client.match_prefix(keys, self.tenant)
        found = list(hashes[:match.blocks])
        try:
            views = match.resolve(keys[:match.blocks], self.tenant) if match.blocks else []
        except (NotFoundError, BadMemoryError, DamagedBlockError):
            match.release()
            views = []
            for view in self.client.retrieve_batch(keys[:len(found)], self.tenant):
                if isinstance(view, View):
                    views.append(view)
                else:
                    break
            return ImmutableBlocks(self, found[:len(views)], views)
        return ImmutableBlocks(self, found, views, match)

    def scan_matches(self, hashes: Sequence[BlockHash]) -> ImmutableBlocks:
        """Those of the hashes whose blocks are there, in their order."""
        views = self.client.retrieve_batch([hash.key() for hash in hashes], self.tenant)
        found = [(hash, view) for hash, view in zip(hashes, views) if isinstance(view, View)]
        return ImmutableBlocks(self, [hash for hash, _ in found], [view for _, view in found])

    def register_blocks(self, blocks: Iterable[CompleteBlock], duplicates: Optional[str] = None) -> list[ImmutableBlock]:
        """Registers blocks in their order, parents first. What is raised has the blocks registered so far in `registered`."""
        done: list[ImmutableBlock] = []
        try:
            for block in blocks:
                if block._pool is not self:
                    raise InvalidArgumentError("The block belongs to another BlockPool: give it to that pool.")
                done.append(block.register(duplicates))
        except MaruError as error:
            error.registered = done  # type: ignore[attr-defined]
            raise
        return done

    def touch(self, hashes: Sequence[BlockHash]) -> int:
        """Counts as a use of each block that is there; returns how many are."""
        pins = [pin for pin in self.client.pin_batch([hash.key() for hash in hashes], self.tenant) if pin is not None]
        self.client.unpin_batch(pins)
        return len(pins)

    def status(self) -> BlockPoolStatus:
        blocks, held, _, free_pages = self.client.count_blocks()
        held = min(held, blocks)  # counted while others go on
        return BlockPoolStatus(held, blocks - held, free_pages // self._block_pages)

    def reset_blocks(self, hashes: Sequence[BlockHash]) -> ResetBlocks:
        """Takes registered blocks out of the pool, the last of the hashes first."""
        fates = [self._reset(hash) for hash in reversed(hashes)][::-1]
        return ResetBlocks(*([hash for hash, fate in zip(hashes, fates) if fate == which] for which in range(3)))

    def reconcile(self) -> int:
        """Tells the listener of registered blocks that are gone, whoever took them out. Returns how many were."""
        with self._lock:
            return sum(self._tell_if_over(event) for event in list(self._lives.values()))

    # -- what the handles do through their pool

    def _named(self, hash: BlockHash) -> BlockHash:
        return BlockHash(hash.sequence, 0) if self.sequence_hash_only else hash

    def _register(self, block: CompleteBlock, duplicates: str) -> ImmutableBlock:
        options = dict(self._store)
        if block.parent is not None:
            options["parent"] = self._named(block.parent).key()
        key, buffer = block.hash.key(), block._buffer
        for _ in range(_REGISTER_TRIES):
            # This view keeps the block pinned from the moment that it is visible, or the pages where another one was first.
            kept = buffer.data
            with self._lock:
                stored = self.client.store(key, buffer, keep_views=True, **options)
                if stored.is_new:
                    self._announce(BlockEvent(block.hash, block.parent, stored.block))
            block._use_up()
            if stored.is_new:
                return ImmutableBlock(self, _Kept(kept.toreadonly(), stored.block), block.hash, True)
            there = None
            try:
                there = self.client.retrieve(key, self.tenant)
            finally:
                if there is None:  # the other one is gone again, or cannot be read: the bytes go into new pages
                    buffer = self.client.alloc(self.block_bytes)
                    buffer.data[:] = kept
                    block._buffer, block._held = buffer, True
            if there is not None:
                return ImmutableBlock(self, there, block.hash, False, kept if duplicates == "allow" else None)
        raise TryAgainError("The block was registered and evicted again and again by others: try again.")

    def _unregister(self, block: ImmutableBlock) -> None:
        life = block.block
        with self._lock:
            try:
                self.client.delete_block(life)
            except NotFoundError:
                self._removed(block.hash, life)
                block._let_go()
                raise
            self._removed(block.hash, life)
        block._let_go()

    def _released(self, hash: BlockHash, life: int) -> None:
        if not self.reset_on_release:
            return
        with self._lock:
            try:
                self.client.delete_block(life, unpinned=True)
            except (StillPinnedError, HasChildrenError, NotFoundError):
                return  # another holder's, or gone
            self._removed(hash, life)

    def _reset(self, hash: BlockHash) -> int:
        """0 reset, 1 not found, 2 not reset."""
        with self._lock:
            pin = self.client.pin(hash.key(), self.tenant)
            if pin is None:
                return 1
            life = pin.block
            pin.release()
            try:
                self.client.delete_block(life, unpinned=True)
            except NotFoundError:
                return 1
            except (StillPinnedError, HasChildrenError):
                return 2
            self._removed(hash, life)
            return 0

    def _take_evicted(self) -> list[BlockHash]:
        evicted = []
        for found in self.client.evicted():
            if isinstance(found.key, Digest) and len(found.key) == 16 and found.tenant == (self.tenant or 0):
                hash = BlockHash(*struct.unpack("<QQ", found.key))
                evicted.append(hash)
                with self._lock:
                    event = self._lives.get(hash)
                    if event is not None:
                        self._tell_if_over(event)
        return evicted

    # -- the listener; the caller has the lock

    def _announce(self, event: BlockEvent) -> None:
        if self._listener is None:
            return
        before = self._lives.get(event.hash)
        if before is not None:
            self._removed(before.hash, before.block)  # that life is over, or this one could not be
        self._lives[event.hash] = event
        self._listener.on_register(event)

    def _removed(self, hash: BlockHash, life: int) -> None:
        event = self._lives.get(hash)
        if self._listener is not None and event is not None and event.block == life:
            del self._lives[hash]
            self._listener.on_remove(event)

    def _tell_if_over(self, event: BlockEvent) -> bool:
        pin = self.client.pin_block(event.block)
        if pin is not None:
            pin.release()
            return False
        self._removed(event.hash, event.block)
        return True


class _Kept:
    """Holds a block by a view of the buffer that it was stored from."""

    def __init__(self, data: memoryview, block: int) -> None:
        self.data = data
        self.block = block

    def release(self) -> None:
        self.data = memoryview(b"")


def _duplicates(which: str) -> str:
    if which not in ("reject", "allow"):
        raise InvalidArgumentError(f'duplicates: found {which!r}, expected "reject" or "allow".')
    return which


def _token(token: int) -> int:
    if not 0 <= token <= 0xFFFF_FFFF:
        raise InvalidArgumentError(f"A token is a number of 32 bits; found {token}.")
    return int(token)
