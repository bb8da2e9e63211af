"""AllocHandle and MemoryInfo, which a MaruHandler returns and a program that stands in for one makes; and MappedRegion, which
only such a program has use for."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from maru import AllocHandle, MemoryInfo

__all__ = ["AllocHandle", "MappedRegion", "MemoryInfo"]


@dataclass
class MappedRegion:
    """A mapping of `size` bytes by its region_id. `handle` is the caller's own; `_mmap_obj` is an mmap.mmap, or None."""

    region_id: int
    handle: Any
    size: int
    _mmap_obj: Any = field(default=None, repr=False)

    @property
    def is_mapped(self) -> bool:
        return self._mmap_obj is not None

    def get_buffer_view(self, offset: int, size: int) -> Optional[memoryview]:
        """Bytes [offset, offset + size) as the mapping lets them be used; None when they are not all in it."""
        if self._mmap_obj is None or offset < 0 or size < 0 or offset + size > self.size:
            return None
        return memoryview(self._mmap_obj)[offset:offset + size]
