"""What a MaruHandler gives: handles to fill, and blocks to read."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Iterator, NamedTuple, Optional, Protocol, Sequence

from ._maru import Buffer, MemoryInfo
from .arguments import Key
from .places import Budget, Place, Seat

__all__ = ["AllocHandle", "FoundInOrder", "MemoryInfo", "OwnedRegions", "PageAccount", "PooledHandle", "PoolHandle",
           "region_statistics", "takes_slot_size"]


class PoolHandle(NamedTuple):
    """What stands for the pool where programs print it. Nothing can be mapped with it."""

    region_id: int
    offset: int
    length: int
    auth_token: int


class AllocHandle:
    """Memory to fill: write into `buf`, then store or free the handle. Both use it up; dropping it frees it.
    MaruHandler.alloc() makes them. A program that stands in for a handler may make its own, of memory that it has."""

    __slots__ = ("_fill", "_standing", "__weakref__")

    def __init__(self, buf: memoryview, _region_id: int, _page_index: int, _size: int) -> None:
        self._standing = buf, Place(_region_id, _page_index), _size
        # Called with `buf` by the thread that stores, before it does.
        self._fill: Optional[Callable[[memoryview], None]] = None

    @property
    def buf(self) -> memoryview:
        """Writable, of exactly `size` bytes. Raises ClosedError once the handle was stored or freed."""
        return self._standing[0]

    @property
    def region_id(self) -> int:
        return self._standing[1].region_id

    @property
    def page_index(self) -> int:
        return self._standing[1].page_index

    @property
    def size(self) -> int:
        return self._standing[2]

    @property
    def is_spent(self) -> bool:
        """Stored or freed."""
        return False

    # Programs reach for them by these names, too. Through the names above, which a class made of this one defines anew.
    @property
    def _region_id(self) -> int:
        return self.region_id

    @property
    def _page_index(self) -> int:
        return self.page_index

    @property
    def _size(self) -> int:
        return self.size

    def __repr__(self) -> str:
        state = "spent" if self.is_spent else "to fill"
        return f"AllocHandle(region_id={self.region_id}, page_index={self.page_index}, size={self.size}, {state})"


class PooledHandle(AllocHandle):
    """Pages of the pool to fill."""

    __slots__ = ("_buffer", "_budget", "_nbytes", "_place", "_unspent", "_unfreed")

    def __init__(self, buffer: Buffer, budget: Budget[Any], seat: Seat[Any], size: int) -> None:
        self._buffer = buffer
        self._budget = budget
        self._place = seat.place
        self._nbytes = size
        self._fill: Optional[Callable[[memoryview], None]] = None
        # One item each, until it was stored or freed, and until it was freed: of threads that come at once one takes it. The
        # seat is nowhere else.
        self._unspent = [seat]
        self._unfreed = [True]

    @property
    def buf(self) -> memoryview:
        return self._buffer.data

    @property
    def region_id(self) -> int:
        return self._place.region_id

    @property
    def page_index(self) -> int:
        return self._place.page_index

    @property
    def size(self) -> int:
        return self._nbytes

    @property
    def is_spent(self) -> bool:
        return not self._unspent

    def _fill_now(self) -> None:
        fill = self._fill
        if fill is not None:
            fill(self.buf)
            self._fill = None  # and of the memory that it copies

    def _leave(self) -> bool:
        """Spends it: the place is free again. False when somebody did that before."""
        try:
            self._unspent.pop()
        except IndexError:
            return False
        return True

    def _end(self) -> bool:
        """For free(). False when it was freed before."""
        try:
            self._unfreed.pop()
        except IndexError:
            return False
        return True


class FoundInOrder(list[Optional[MemoryInfo]]):
    """What was found under `keys`, for a reader that may stop at what it cannot use: then on_stop is called with the keys from
    there on, by the thread that reads and before its loop is left. A reader that reads on to the end calls nothing; one that
    takes the last and does not ask whether there are more (a zip() with this as its second) has stopped at the last."""

    def __init__(self, found: Sequence[Optional[MemoryInfo]], keys: Sequence[Key],
                 on_stop: Callable[[Sequence[Key]], None]) -> None:
        super().__init__(found)
        self._keys = keys
        self._on_stop = on_stop

    def __iter__(self) -> Iterator[Optional[MemoryInfo]]:
        for i in range(len(self)):
            try:
                yield self[i]
            except GeneratorExit:
                self._on_stop(self._keys[i:])
                raise


class PageAccount:
    """How many pages of the first region are allocated and not stored."""

    def __init__(self, budget: Budget[Any], chunk_size: int) -> None:
        self._budget = budget
        self.chunk_size = chunk_size

    @property
    def page_count(self) -> int:
        return self._budget.regions()[0][1]

    @property
    def num_allocated(self) -> int:
        return self._budget.in_use(self._budget.regions()[0][0])

    @property
    def num_free_pages(self) -> int:
        return self.page_count - self.num_allocated

    def get_stats(self) -> dict[str, Any]:
        [first, pages], *_ = self._budget.regions()
        return region_statistics(self._budget, first, pages, self.chunk_size)


class _Regions(Protocol):
    def get_owned_region_ids(self) -> list[int]: ...
    def get_region_page_count(self, region_id: int) -> Optional[int]: ...


class OwnedRegions:
    """The regions of a handler's budget."""

    def __init__(self, handler: _Regions, get_stats: Callable[[], dict[str, Any]]) -> None:
        self.get_owned_region_ids = handler.get_owned_region_ids
        self.get_region_page_count = handler.get_region_page_count
        self.get_stats = get_stats


def takes_slot_size(callback: Callable[..., Any]) -> bool:
    """Whether a callback of set_on_region_added() takes a third argument."""
    try:
        inspect.signature(callback).bind(0, 0, 0)
    except (TypeError, ValueError):  # ValueError: a callable whose signature Python does not know
        return False
    return True


def region_statistics(budget: Budget[Any], region_id: int, pages: int, chunk_size: int) -> dict[str, Any]:
    used = budget.in_use(region_id)
    return {"region_id": region_id, "pool_size": pages * chunk_size, "chunk_size": chunk_size, "page_count": pages,
            "free_pages": pages - used, "allocated_pages": used, "utilization": used / pages}
