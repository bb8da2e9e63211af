"""Objects of LMCache's server whose memory is the pool's."""
from __future__ import annotations

import warnings
from typing import Union

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

from .keys import Family

# Blocks are read-only, on purpose; torch says so once for each process.
warnings.filterwarnings("ignore", message="The given buffer is not writable")

_NOTHING = torch.empty(0, dtype=torch.uint8)


class PoolObject(TensorMemoryObj):  # type: ignore[misc]
    """A TensorMemoryObj on pages to fill or on a block that is pinned. The pages, or the pin, last as long as this object
    does, and as long as any tensor that was taken from it. LMCache's reference counts say nothing about either."""

    def __init__(self, memory: torch.Tensor, family: Family, l1_manager_id: int) -> None:
        super().__init__(memory, MemoryObjMetadata(
            shape=family.shapes[0], dtype=family.dtypes[0], address=0, phy_size=family.nbytes, ref_count=1,
            fmt=MemoryFormat.UNDEFINED, shapes=family.shapes, dtypes=family.dtypes), None)
        self.set_l1_manager(l1_manager_id)

    def let_go(self) -> None:
        """This object shows no memory from now on."""
        self.invalidate()
        self.raw_data = _NOTHING


def tensor_of(data: Union[memoryview, bytearray]) -> torch.Tensor:
    """The bytes of a view or of a buffer, not copied."""
    return torch.frombuffer(data, dtype=torch.uint8)
