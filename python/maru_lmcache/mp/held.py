"""The objects that are being read, with their read locks, and the private objects.

An object has an entry while it has read locks that have not expired. The entry keeps the pin of the block. So a lookup whose
client is gone pins its blocks no longer than the locks last. Expiry removes the entry, and takes no memory from a reader: an
object, or a tensor made from it, keeps its block pinned.

Temporary objects, LMCache's copies of objects in a lower tier, are private: their pages are never stored under a key.

Thread safety: none; the manager's lock covers it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.error import L1Error

from maru import Buffer

from .keys import Place
from .objects import PoolObject


@dataclass(slots=True)
class Held:
    memory: PoolObject
    place: Optional[Place]  # of a block of the pool; None: private
    buffer: Optional[Buffer]  # the pages of a private object
    locks: int
    until: float  # when the locks expire, by time.monotonic()
    is_staged: bool = False  # memory is a copy for a GPU

    @property
    def is_private(self) -> bool:
        return self.place is None

    def is_locked(self, now: float) -> bool:
        return self.locks > 0 and now < self.until

    def let_go(self) -> None:
        """Ends the pin, or gives the pages back: at once, or when the last reader has let go of the memory."""
        if self.buffer is not None:
            self.buffer.abort()


class HeldObjects:
    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._held: dict[ObjectKey, Held] = {}
        self.private_bytes = 0
        self.expired = 0  # entries whose readers did not come

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._held)

    def get(self, key: ObjectKey) -> Optional[Held]:
        return self._held.get(key)

    def add(self, key: ObjectKey, held: Held, now: float) -> Held:
        """Returns the key's entry, which is another one where the key has one already."""
        held.until = now + self._ttl
        entry = self._held.setdefault(key, held)
        if entry is held and held.buffer is not None:
            self.private_bytes += held.buffer.nbytes
        return entry

    def lock(self, held: Held, locks: int, now: float) -> PoolObject:
        """held: an entry that is here. Locks that have expired do not count on."""
        held.locks = locks + (held.locks if held.is_locked(now) else 0)
        held.until = now + self._ttl
        return held.memory

    def is_locked(self, key: ObjectKey, now: float) -> bool:
        held = self._held.get(key)
        return held is not None and held.is_locked(now)

    def release(self, key: ObjectKey, locks: int, now: float) -> tuple[L1Error, Optional[Held]]:
        """The second is what went with its last lock."""
        held = self._held.get(key)
        if held is None:
            return L1Error.KEY_NOT_EXIST, None
        if not held.is_locked(now):
            return L1Error.KEY_IN_WRONG_STATE, None
        held.locks = max(0, held.locks - locks)
        return L1Error.SUCCESS, None if held.locks else self.pop(key)

    def pop(self, key: ObjectKey) -> Optional[Held]:
        """Takes the entry away, whatever its locks are."""
        held = self._held.pop(key, None)
        if held is not None:
            if held.buffer is not None:
                self.private_bytes -= held.buffer.nbytes
            held.let_go()
        return held

    def pop_expired(self, now: float) -> list[tuple[ObjectKey, Held]]:
        over = [key for key, held in self._held.items() if now >= held.until]
        self.expired += len(over)
        return [(key, held) for key in over if (held := self.pop(key)) is not None]

    def locked_count(self, now: float) -> int:
        return sum(held.is_locked(now) for held in self._held.values())

    def private_count(self) -> int:
        return sum(held.is_private for held in self._held.values())
