"""Memory for the messages of LMCache's server, kept from one to the next.

With the transfer mode engine_driven, and without shared memory beside it, a request's keys and values travel in messages of
many MiB. The server allocates each message and its parts anew. By default the C library returns such memory to the kernel when
it is freed, or keeps it, as the sizes before happened to be. Returned memory costs a page fault for each 4 KiB of the next
message, which can take as long as the copies. So the launcher asks the C library to keep it, up to a bound.
"""
from __future__ import annotations

import ctypes
import os

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8

_KEPT_BYTES = 512 << 20  # what is free at the end of the heap and is not returned: some requests at once
_HEAP_BYTES = 64 << 20  # of a heap that a thread has for itself


def keep() -> bool:
    """To be called before threads begin that take messages. False: nothing is changed, as the environment says how to allocate,
    or this C library is another one."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # No mapping for a single large piece. One heap for all threads, as far as libraries have not made more already: such a heap
    # is unmapped when it is empty, unless it is to be padded by all that it may have.
    return all(mallopt(option, value) == 1 for option, value in (
        (_MMAP_MAX, 0), (_ARENA_MAX, 1), (_TOP_PAD, _HEAP_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES)))
