"""Places: the pairs (region_id, page_index) by which programs name what a MaruHandler holds.

They are numbers of this handler alone. In a pool of marud blocks lie anywhere, and a handler may look only at what it holds;
so a place is where something held is *found in the handler*, for as long as it is held:

  region 0          blocks that were retrieved; a block has one page_index however often it was retrieved, and as many chunks
                    from there on as it fills
  regions 1, 2, ... pages that were allocated and not stored: pool_size of them in the first, expand_size in each further one

A page_index counts chunks, so byte `offset` of a region is in page `offset // chunk`. A place is given again once what was
there is gone, but never by another attachment of the handler, nor in the child of a fork: what was noted of the one before
leads to nothing there. Of region 0 an attachment has its own page_indexes, and of the others its own regions.

What is given a place is held weakly, and its end noted where no Python code runs, so that nothing can come between: neither a
Ctrl-C nor what the garbage collector calls. A place that has ended is given back by the next call.

Thread safety: everything, under one lock, which is never held while something else is called. A thread that holds it may come
again (from a signal's handler, from what the garbage collector calls): each step leaves what the next call can go on from.
"""
from __future__ import annotations

import heapq
import logging
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Optional, TypeVar

from ._maru import View
from .arguments import ClientKey

logger = logging.getLogger("maru")

RETRIEVED = 0  # the region of what was retrieved


class Place(NamedTuple):
    region_id: int
    page_index: int


class Fresh:
    """Numbers that were never given, for all the attachments of a handler. Each call is one step; there is no lock, which
    another thread could hold at a fork."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int = 1) -> int:
        """The first of so many in a row."""
        number, self._next = self._next, self._next + count  # without a call: nothing comes between
        return number


class _Numbers:
    """The first of so many numbers in a row that are free: the smallest that was given for as many before, or a fresh one."""

    def __init__(self, fresh: Fresh) -> None:
        self._fresh = fresh
        self._returned: dict[int, list[int]] = {}  # by how many

    def take(self, count: int) -> int:
        try:
            return heapq.heappop(self._returned[count])
        except (IndexError, KeyError):
            return self._fresh.take(count)

    def give_back(self, number: int, count: int) -> None:
        heapq.heappush(self._returned.setdefault(count, []), number)


class Standing(NamedTuple):
    """The place of a MemoryInfo that a program made itself."""

    region_id: int
    page_index: int
    kv_offset: int


class Stay:
    """The place of a block in region 0, for as long as somebody has this: all who retrieved the block have the same."""

    __slots__ = ("region_id", "page_index", "kv_offset", "view", "key", "__weakref__")

    def __init__(self, page_index: int, kv_offset: int, view: View, key: ClientKey) -> None:
        self.region_id = RETRIEVED
        self.page_index = page_index
        self.kv_offset = kv_offset  # bytes from the beginning of the region
        self.view = view
        self.key = key


class _StayOf(weakref.ref[Stay]):
    """Of a Stay, that may have ended; before it was given its place, when something came between."""

    page_index = -1
    pages = 0
    block = 0


class Retrieved:
    """Region 0. Holds nothing itself: whoever entered a place holds the Stay that enter() returned."""

    def __init__(self, chunk_bytes: int, fresh: Fresh) -> None:
        self._chunk_bytes = chunk_bytes
        self._lock = threading.RLock()
        self._numbers = _Numbers(fresh)
        self._at: dict[int, _StayOf] = {}  # by page_index
        self._large: dict[int, _StayOf] = {}  # those of them that are larger than a chunk
        self._of_block: dict[int, _StayOf] = {}
        self._left: deque[Any] = deque()  # of _StayOf, ended

    def enter(self, view: View, key: ClientKey) -> Stay:
        """At the place of a block, with a view of it: the same one for everybody who enters."""
        with self._lock:
            self._see_out()
            block = view.block
            known = self._of_block.get(block)
            there = None if known is None else known()
            if there is not None:
                return there
            pages = max(1, -(-len(view) // self._chunk_bytes))
            page_index = self._numbers.take(pages)
            made = Stay(page_index, page_index * self._chunk_bytes, view, key)
            mine = _StayOf(made, self._left.append)
            mine.page_index, mine.pages, mine.block = made.page_index, pages, block
            self._at[made.page_index] = mine
            if pages > 1:
                self._large[made.page_index] = mine
            known = self._of_block.setdefault(block, mine)
            there = known()
            if there is not None:
                return there  # the one that was made, or one that this thread has entered meanwhile
            self._of_block[block] = mine  # the other ends at this moment
            return made

    def pass_over(self, key: object, error: Exception) -> None:
        """Of a batch, what is there and cannot be read: it is None, for the others are not to be lost, and said here."""
        logger.error("Taken for absent in a batch, under %.100r: %s", key, error)

    def view(self, page_index: int) -> tuple[Optional[View], int]:
        """What is there, and where it begins."""
        there = self._there(page_index)
        return (None, 0) if there is None else (there.view, there.page_index)

    def key(self, page_index: int) -> Optional[ClientKey]:
        """Under which the block that begins there was retrieved."""
        there = self._there(page_index)
        return None if there is None or there.page_index != page_index else there.key

    def _there(self, page_index: int) -> Optional[Stay]:
        with self._lock:
            known = self._at.get(page_index)
            if known is None:
                inside = (stay for first, stay in list(self._large.items()) if first < page_index < first + stay.pages)
                known = next(inside, None)
            return None if known is None else known()

    def _see_out(self) -> None:
        while True:
            try:
                ended = self._left.popleft()
            except IndexError:
                return
            self._at.pop(ended.page_index, None)
            self._large.pop(ended.page_index, None)
            # Without a call in it: nothing comes between the question and what follows from it.
            if ended.block in self._of_block and self._of_block[ended.block] is ended:
                del self._of_block[ended.block]
            if ended.page_index >= 0:
                self._numbers.give_back(ended.page_index, ended.pages)


_Held = TypeVar("_Held")


class Seat(Generic[_Held]):
    """A place of a Budget, taken for as long as somebody has this."""

    __slots__ = ("place", "held", "__weakref__")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.held: Optional[weakref.ReferenceType[_Held]] = None


class _SeatOf(weakref.ref[Seat[_Held]]):
    """Of a Seat, that may have ended; before it was given its number, when something came between."""

    number = -1
    is_passed_over = False


# Of a region of a Budget its id, and where it begins and ends in the numbers through all of them. A plain tuple: making one is
# no call.
_Region = tuple[int, int, int]
_id_of, _begin_of, _end_of = itemgetter(0), itemgetter(1), itemgetter(2)


class Budget(Generic[_Held]):
    """Regions 1 and up: what is allocated and not stored, and how much of it there may be."""

    def __init__(self, chunk_bytes: int, region_bytes: int, fresh_ids: Fresh) -> None:
        self._lock = threading.RLock()
        self._fresh_ids = fresh_ids
        self._chunk_bytes = chunk_bytes
        self._taken: dict[int, _SeatOf[_Held]] = {}  # numbered through all regions
        # What is not taken is in this heap or from _fresh on; what is taken still is, unless it was passed over.
        self._returned: list[int] = []
        self._fresh = 0
        self._regions: list[_Region] = []
        self._left: deque[Any] = deque()  # of _SeatOf, ended
        self.expand_if_full(region_bytes)

    def expand_if_full(self, region_bytes: int) -> list[tuple[int, int]]:
        """A further region, by its (region_id, pages), where every place is taken; none where one has become free, or another
        thread was first."""
        with self._lock:
            self._see_out()
            end = _end_of(self._regions[-1]) if self._regions else 0
            if len(self._taken) < end:
                return []
            added = (self._fresh_ids.take(), end, end + region_bytes // self._chunk_bytes)
            return [(added[0], added[2] - end)] if self._add(added) else []

    def _add(self, region: _Region) -> bool:
        """False when another came in between. The questions are without a call: nothing comes between them and what follows."""
        if self._regions and (self._regions[-1][2] != region[1] or self._regions[-1][0] > region[0]):
            return False
        self._regions.append(region)
        return True

    def take(self) -> Optional[Seat[_Held]]:
        """A place for what will be allocated; None when every one is taken."""
        with self._lock:
            while True:
                self._see_out()
                number = self._returned[0] if self._returned else self._fresh
                if number >= _end_of(self._regions[-1]):
                    return None
                if number not in self._taken:
                    region_id, begin, _ = self._regions[bisect_right(self._regions, number, key=_begin_of) - 1]
                    seat: Seat[_Held] = Seat(Place(region_id, number - begin))
                    mine = _SeatOf(seat, self._left.append)
                    mine.number = number
                    if self._taken.setdefault(number, mine) is mine:
                        return seat
                else:
                    self._pass_over(number)

    def _pass_over(self, number: int) -> None:
        """One that is taken. The questions are without a call: nothing comes between them and what follows from them."""
        if number not in self._taken:
            return  # any more
        self._taken[number].is_passed_over = True
        if self._returned and self._returned[0] == number:
            heapq.heappop(self._returned)
        elif self._fresh == number:
            self._fresh += 1

    def held(self, place: Place) -> Optional[_Held]:
        with self._lock:
            self._see_out()
            _, begin, end = self._region(place.region_id)
            if not 0 <= place.page_index < end - begin:
                return None  # the numbers go on in the next region
            known = self._taken.get(begin + place.page_index)
            seat = None if known is None else known()
            return None if seat is None or seat.held is None else seat.held()

    def regions(self) -> list[tuple[int, int]]:
        """(region_id, pages) of each."""
        return [(region_id, end - begin) for region_id, begin, end in self._regions[:]]

    def in_use(self, region_id: int) -> int:
        with self._lock:
            self._see_out()
            _, begin, end = self._region(region_id)
            return sum(begin <= number < end for number in list(self._taken))

    def _region(self, region_id: int) -> _Region:
        """One of no pages when there is none of this id."""
        at = bisect_left(self._regions, region_id, key=_id_of)
        return self._regions[at] if region_id in map(_id_of, self._regions[at:at + 1]) else (region_id, 0, 0)

    def _see_out(self) -> None:
        while True:
            try:
                ended = self._left[0]
            except IndexError:
                return
            # It stays in the queue until all is done: twice does no harm, and half of it would lose the place. The questions
            # are without a call: nothing comes between them and what follows from them.
            if ended.is_passed_over:
                heapq.heappush(self._returned, ended.number)
            if ended.number in self._taken and self._taken[ended.number] is ended:
                del self._taken[ended.number]
            if self._left and self._left[0] is ended:
                self._left.popleft()
