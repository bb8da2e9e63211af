"""Pinned host memory, through which chunks go between the pool and a GPU.

LMCache's CUDA kernels (multi_layer_kv_transfer) read and write host memory through the pointer that cudaHostGetDevicePointer
gives, and fail for memory that CUDA did not allocate or register. The pool is neither, on purpose. It is mapped read-only where
this process has no pages, so parts of it would have to be registered again with other rights, under kernels that are reading
them. Registered pages stay in use when marud wants to give a device back, or a client lets go of a pool that was replaced. And
a registration that outlives its mapping, which ends with the last view, has a GPU read what lay there before. So with CUDA a
chunk is copied, once: into memory of torch's, which keeps and reuses what it has pinned.

Thread safety: everything.
"""
from __future__ import annotations

import logging
from typing import Optional

import torch

logger = logging.getLogger("maru")


def is_wanted() -> bool:
    """Whether there is a GPU that LMCache may be using. ROCm's build of torch says so, too."""
    return bool(torch.cuda.is_available())


def allocate(nbytes: int) -> Optional[torch.Tensor]:
    """Uninitialized bytes. None when they cannot be pinned; the log says why. Enters the driver when torch has none in hand."""
    try:
        return _pinned(nbytes)
    except RuntimeError as error:
        # As text: whoever keeps the exception keeps frames that hold blocks of the pool.
        logger.error("%d bytes of host memory cannot be pinned: %s", nbytes, str(error))
        return None


def copy_of(memory: torch.Tensor) -> Optional[torch.Tensor]:
    """As allocate(), with these bytes."""
    copy = allocate(memory.numel())
    return None if copy is None else copy.copy_(memory)


def device() -> int:
    """The GPU of the calling thread. LMCache's engine has one of its own, and its other threads do not know which."""
    return int(torch.cuda.current_device())


def wait_for(gpu: int) -> None:
    """Until it has done all that was begun. Some of LMCache's connectors leave kernels running that write what is then stored,
    or read what is then let go (0.5.6: TensorRT-LLM's); with the others there is nothing to wait for."""
    torch.cuda.synchronize(gpu)


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
