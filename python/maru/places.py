"""Places: the pairs (region_id, page_index) by which programs name what a MaruHandler holds.

They are numbers of this handler alone. In a pool of marud blocks lie anywhere, and a handler may look only at what it holds;
so a place is where something held is *found in the handler*, for as long as it is held:

  region 0          blocks that were retrieved; a block has one page_index however often it was retrieved
  regions 1, 2, ... pages that were allocated and not stored: pool_size of them in region 1, expand_size in each further one

A page_index counts chunks, so byte `offset` of a region is in page `offset // chunk`. A place is given again once what was
there is gone.

Thread safety: everything, under one lock, which is never held while something else is called. What is dropped may be dropped
by the garbage collector in the middle of anything, so leaving a place takes no lock: it is noted, and done by the next call.
"""
from __future__ import annotations

import heapq
import threading
import weakref
from collections import deque
from typing import Generic, NamedTuple, Optional, TypeVar

from ._maru import View

RETRIEVED = 0  # the region of what was retrieved


class Place(NamedTuple):
    region_id: int
    page_index: int


class _Numbers:
    """The smallest number that is free."""

    def __init__(self) -> None:
        self._given = 0
        self._returned: list[int] = []

    def take(self) -> int:
        if self._returned:
            return heapq.heappop(self._returned)
        self._given += 1
        return self._given - 1

    def give_back(self, number: int) -> None:
        heapq.heappush(self._returned, number)


class _Block:
    __slots__ = ("block", "key", "view", "visitors")

    def __init__(self, block: int, key: str) -> None:
        self.block = block
        self.key = key
        self.view: Optional[weakref.ReferenceType[View]] = None
        self.visitors = 0


class Stay:
    """Somebody is at a place of region 0, for as long as this lives."""

    __slots__ = ("region_id", "page_index", "_view", "_left")

    def __init__(self, page_index: int, view: View, left: deque[int]) -> None:
        self.region_id = RETRIEVED
        self.page_index = page_index
        self._view = view
        self._left = left

    def __del__(self) -> None:
        self._left.append(self.page_index)


class Retrieved:
    """Region 0. Holds nothing itself: whoever entered a place holds the Stay that enter() returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = _Numbers()
        self._at: dict[int, _Block] = {}  # by page_index
        self._of_block: dict[int, int] = {}
        self._left: deque[int] = deque()

    def enter(self, view: View, key: str) -> Stay:
        """At the place of a block, with a view of it: the same one for everybody who enters."""
        with self._lock:
            self._see_out()
            index = self._of_block.get(view.block)
            if index is None:
                index = self._of_block[view.block] = self._numbers.take()
                self._at[index] = _Block(view.block, key)
            there = self._at[index]
            shared = None if there.view is None else there.view()
            if shared is None:
                shared, there.view = view, weakref.ref(view)
            there.visitors += 1
            return Stay(index, shared, self._left)

    def view(self, page_index: int) -> Optional[View]:
        with self._lock:
            self._see_out()
            there = self._at.get(page_index)
            return None if there is None or there.view is None else there.view()

    def key(self, page_index: int) -> Optional[str]:
        """Under which a block was retrieved."""
        with self._lock:
            there = self._at.get(page_index)
            return None if there is None else there.key

    def _see_out(self) -> None:
        while self._left:
            index = self._left.popleft()
            there = self._at[index]
            there.visitors -= 1
            if there.visitors == 0:
                del self._at[index], self._of_block[there.block]
                self._numbers.give_back(index)


_Held = TypeVar("_Held")


class Budget(Generic[_Held]):
    """Regions 1 and up: what is allocated and not stored, and how much of it there may be."""

    def __init__(self, chunk_bytes: int, region_bytes: int) -> None:
        self._lock = threading.Lock()
        self._chunk_bytes = chunk_bytes
        self._numbers = _Numbers()
        self._held: dict[int, Optional[weakref.ReferenceType[_Held]]] = {}  # numbered through all regions
        self._ends: list[int] = [0]  # of each region
        self._left: deque[int] = deque()
        self.expand_if_full(region_bytes)

    def expand_if_full(self, region_bytes: int) -> list[tuple[int, int]]:
        """A further region, by its (region_id, pages), where every place is taken; none where one has become free, or another
        thread was first."""
        with self._lock:
            self._see_out()
            if len(self._held) < self._ends[-1]:
                return []
            self._ends.append(self._ends[-1] + region_bytes // self._chunk_bytes)
            return [(len(self._ends) - 1, self._ends[-1] - self._ends[-2])]

    def take(self) -> Optional[Place]:
        """A place for what will be allocated; None when every one is taken."""
        with self._lock:
            self._see_out()
            if len(self._held) >= self._ends[-1]:
                return None
            number = self._numbers.take()
            self._held[number] = None
            region_id = next(i for i in range(1, len(self._ends)) if number < self._ends[i])
            return Place(region_id, number - self._ends[region_id - 1])

    def fill(self, place: Place, held: _Held) -> None:
        with self._lock:
            self._held[self._number(place)] = weakref.ref(held)

    def leave(self, place: Place) -> None:
        """Once for each take()."""
        self._left.append(self._number(place))

    def held(self, place: Place) -> Optional[_Held]:
        with self._lock:
            self._see_out()
            if not 1 <= place.region_id < len(self._ends):
                return None
            if not 0 <= place.page_index < self._ends[place.region_id] - self._ends[place.region_id - 1]:
                return None  # the numbers go on in the next region
            there = self._held.get(self._number(place))
            return None if there is None else there()

    def regions(self) -> list[tuple[int, int]]:
        """(region_id, pages) of each."""
        with self._lock:
            return [(i, self._ends[i] - self._ends[i - 1]) for i in range(1, len(self._ends))]

    def in_use(self, region_id: int) -> int:
        with self._lock:
            self._see_out()
            begin, end = self._ends[region_id - 1], self._ends[region_id]
            return sum(begin <= number < end for number in self._held)

    def _number(self, place: Place) -> int:
        return self._ends[place.region_id - 1] + place.page_index

    def _see_out(self) -> None:
        while self._left:
            number = self._left.popleft()
            del self._held[number]
            self._numbers.give_back(number)
