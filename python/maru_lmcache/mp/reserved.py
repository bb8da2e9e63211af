"""The write reservations: pages that a writer fills, not yet an object that anybody finds.

A reservation belongs to a key and the writer's tag. Its end is one of

  - finished: the manager takes it, and stores or drops the pages;
  - expired: the writer has not come back in time. Its pages go back to marud with the last reference to their memory, when no
    thread can write them any more. No other writer gets them from this table.

LMCache's finish calls name a key and a tag, and not the reservation. All stores of a server have one tag. So after an expiry a
late call of the old writer looks like a call of a new writer, and would publish pages that the new writer has half written.
Therefore the key and tag of an expired reservation take no new reservation until the old writer has called, or until an
administrator discards it by force.

Thread safety: none; the manager's lock covers it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.error import L1Error

from maru import Buffer

from .keys import Family, Place
from .objects import PoolObject


@dataclass(slots=True)
class Reserved:
    key: ObjectKey
    memory: PoolObject
    buffer: Buffer
    family: Family
    place: Place
    is_temporary: bool
    until: float  # when it expires, by time.monotonic()
    is_finishing: bool = False  # its writer has come back, and a thread is storing it

    def is_live(self, now: float) -> bool:
        return self.is_finishing or now < self.until

    def give_back(self) -> None:
        """The pages go when the writer's last reference to them does."""
        self.buffer.abort()


_NONE: dict[str, Reserved] = {}


class Reservations:
    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._reserved: dict[ObjectKey, dict[str, Reserved]] = {}
        self._overdue: dict[ObjectKey, set[str]] = {}  # expired, and the writer has not called
        self._claimed: set[tuple[ObjectKey, str]] = set()  # a thread is asking for pages
        self.nbytes = 0
        self.expired = 0

    def __len__(self) -> int:
        return sum(map(len, self._reserved.values()))

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._reserved

    def __iter__(self) -> Iterator[Reserved]:
        return (reserved for tags in self._reserved.values() for reserved in tags.values())

    def overdue_count(self) -> int:
        return sum(map(len, self._overdue.values()))

    def live_count(self, now: float) -> int:
        return sum(reserved.is_live(now) for reserved in self)

    def is_live(self, key: ObjectKey, now: float) -> bool:
        """Whether a writer of any tag has the key, or is getting pages for it."""
        return (any(reserved.is_live(now) for reserved in self._reserved.get(key, {}).values())
                or any(key == claimed for claimed, _ in self._claimed))

    def claim(self, key: ObjectKey, tag: str, now: float) -> bool:
        """Lets this writer, and no other, add() a reservation. False when the tag has the key already."""
        if self._is_overdue(key, tag):
            return False
        reserved = self._reserved.get(key, _NONE).get(tag)
        if reserved is not None:
            if not reserved.is_live(now):
                self._expire(reserved, tag)
            return False
        claims = len(self._claimed)
        self._claimed.add((key, tag))
        return len(self._claimed) > claims

    def unclaim(self, key: ObjectKey, tag: str) -> None:
        self._claimed.discard((key, tag))

    def add(self, tag: str, reserved: Reserved, now: float) -> None:
        """What was claimed."""
        self._claimed.discard((reserved.key, tag))
        reserved.until = now + self._ttl
        self._reserved.setdefault(reserved.key, {})[tag] = reserved
        self.nbytes += reserved.buffer.nbytes

    def begin_finish(self, key: ObjectKey, tag: str, now: float) -> tuple[L1Error, Optional[Reserved]]:
        """The writer has come back: the reservation no longer expires, and end_finish() takes it away."""
        if self._is_overdue(key, tag):
            self._come_late(key, tag)
            return L1Error.KEY_IN_WRONG_STATE, None
        reserved = self._reserved.get(key, _NONE).get(tag)
        if reserved is None or reserved.is_finishing:
            return L1Error.KEY_NOT_EXIST, None
        if not reserved.is_live(now):
            self._expire(reserved, tag)
            self._come_late(key, tag)
            return L1Error.KEY_IN_WRONG_STATE, None
        reserved.is_finishing = True
        return L1Error.SUCCESS, reserved

    def end_finish(self, reserved: Reserved, tag: str) -> None:
        if reserved.buffer.is_held:  # else delete() or clear() has discarded it by force
            self._remove(reserved, tag)

    def pop_expired(self, now: float) -> list[Reserved]:
        over = [(reserved, tag) for tags in self._reserved.values() for tag, reserved in tags.items()
                if not reserved.is_live(now)]
        for reserved, tag in over:
            self._expire(reserved, tag)
        return [reserved for reserved, _ in over]

    def discard(self, key: ObjectKey, now: float, force: bool) -> int:
        """Ends what has expired, and with force all: how many. Forgets with force that a writer may still call."""
        gone = 0
        for tag, reserved in list(self._reserved.get(key, {}).items()):
            if force:
                self._remove(reserved, tag)
                reserved.give_back()
                gone += 1
            elif not reserved.is_live(now):
                self._expire(reserved, tag)
                gone += 1
        if force:
            self._overdue.pop(key, None)
        return gone

    def _is_overdue(self, key: ObjectKey, tag: str) -> bool:
        return bool(self._overdue) and tag in self._overdue.get(key, ())

    def _expire(self, reserved: Reserved, tag: str) -> None:
        self._remove(reserved, tag)
        self._overdue.setdefault(reserved.key, set()).add(tag)
        self.expired += 1
        reserved.give_back()

    def _come_late(self, key: ObjectKey, tag: str) -> None:
        self._overdue[key].discard(tag)
        if not self._overdue[key]:
            del self._overdue[key]

    def _remove(self, reserved: Reserved, tag: str) -> None:
        tags = self._reserved.pop(reserved.key)
        del tags[tag]
        if tags:
            self._reserved[reserved.key] = tags
        self.nbytes -= reserved.buffer.nbytes
