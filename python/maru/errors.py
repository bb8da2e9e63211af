"""What can go wrong: one exception for each error of maru.h that asks for something different to be done.

An absent block is no error (None, or False). Every exception has `errno`, the number that libmaru returned, and `call`, the
function of maru.h that returned it; both are None for what was refused before libmaru was asked.
"""
from __future__ import annotations

import errno as _errno
import os
from typing import Any, Optional


class MaruError(Exception):
    """The base of all of them."""

    def __init__(self, sentence: str, errno: Optional[int] = None, call: Optional[str] = None) -> None:
        super().__init__(sentence)
        self.errno = errno
        self.call = call


class InvalidArgumentError(MaruError, ValueError):
    """An argument has a value that is not possible."""


class ClosedError(MaruError, RuntimeError):
    """The client was closed, or the view released, or the buffer used up."""


class NotConnectedError(ClosedError):
    """A MaruHandler is not connected: connect() was not called, or failed, or close() was."""


class HandleUsedError(InvalidArgumentError):
    """The handle was stored or freed before, or is another handler's."""


class ForkedError(MaruError, RuntimeError):
    """This process is the child of a fork, and the object belongs to the parent."""


class ViewsHeldError(MaruError, BufferError):
    """Something that could write into a buffer still refers to its data: a variable, an array, a tensor."""


class NotFoundError(MaruError):
    """No such pool or socket; or a block of a match was lost."""


class DaemonUnreachableError(MaruError):
    """marud was needed and is not there."""


class DaemonTimeoutError(DaemonUnreachableError):
    """marud was needed and did not answer in time."""


class PoolReplacedError(MaruError):
    """marud has another pool of this name now."""


class AccessDeniedError(MaruError):
    """The pool's access list refuses this user."""


class LanesExhaustedError(MaruError):
    """Every lane of the pool is in use."""


class VersionError(MaruError):
    """marud speaks another version."""


class ReadOnlyError(MaruError):
    """The client attached to read only."""


class DamagedPoolError(MaruError):
    """The control region is damaged or of another version."""


class DamagedBlockError(MaruError):
    """A payload does not match its checksum."""


class PoolLeavesError(MaruError):
    """The pool is being drained or removed."""


class PoolUnavailableError(MaruError):
    """marud could not open the pool yet: its device is missing, or somebody else has it."""


class BadMemoryError(MaruError):
    """Memory of the pool cannot be read any more."""


class NoSpaceError(MaruError):
    """Nothing is free and nothing can be evicted."""


class PoolExhaustedError(NoSpaceError, ValueError):
    """A MaruHandler gets no page: its own budget is in use, or nothing in the pool can be evicted."""


class TooLargeError(MaruError):
    """Larger than a region."""


class QuotaError(MaruError):
    """The tenant is at its hard limit."""


class TenantNotListedError(MaruError):
    """The pool takes only tenants that its administrator has listed."""


class ParentGoneError(MaruError):
    """The parent of what is to be stored is not there."""


class RegistryFullError(MaruError):
    """The registry, or the space for long keys, is full at this key."""


class PinsExhaustedError(MaruError):
    """Every pin slot of this client is taken."""


class TryAgainError(MaruError):
    """Something is in the way for a while."""


class HasChildrenError(MaruError):
    """The block has children."""

    deleted: Any = None  # of delete_batch: for each key whether it was deleted


class StillPinnedError(MaruError):
    """Something was pinned and stayed."""


_BY_ERRNO: dict[int, tuple[type[MaruError], str]] = {
    _errno.EINVAL: (
        InvalidArgumentError,
        "an argument has a value that is not possible; see the call's comment in maru.h",
    ),
    _errno.ECHILD: (ForkedError, "this was made before fork(): make a Client of its own in the child"),
    _errno.ENOENT: (NotFoundError, "a block of this match was lost: release it and match again"),
    _errno.ENOTCONN: (
        DaemonUnreachableError,
        "marud was needed and is not there: start it; libmaru connects again on its own",
    ),
    _errno.ECONNREFUSED: (
        DaemonUnreachableError,
        "no marud listens on this socket: start it, or name the right socket",
    ),
    _errno.ETIMEDOUT: (DaemonTimeoutError, "marud did not answer in time: try again, or see marud's log"),
    _errno.ESTALE: (
        PoolReplacedError,
        "marud has another pool of this name now: close this client and make a new one",
    ),
    _errno.EACCES: (AccessDeniedError, "the pool's access list refuses this user: ask its administrator"),
    _errno.EROFS: (ReadOnlyError, "this client attached to read only: make one without read_only to store or delete"),
    _errno.EUSERS: (
        LanesExhaustedError,
        "every lane of the pool is in use: close a client, or format the pool with more lanes",
    ),
    _errno.EPROTO: (VersionError, "marud speaks another version: install the same version of marud and maru"),
    _errno.EBADMSG: (DamagedPoolError, "the control region is damaged or of another version: run marudctl check"),
    _errno.EIO: (DamagedBlockError, "the payload does not match its checksum: compute the block again"),
    _errno.ESHUTDOWN: (
        PoolLeavesError,
        "the pool is being drained or removed: release what is held, and use another pool",
    ),
    _errno.ENODEV: (
        PoolUnavailableError,
        "marud could not open the pool yet, and tries again: marudctl status says why; attach again later, or to another pool",
    ),
    # EHWPOISON, which the module errno does not name.
    133: (BadMemoryError, "memory of the pool is bad, and marud is told: compute the block again"),
    _errno.ENOSPC: (
        NoSpaceError,
        "nothing is free and nothing can be evicted: release views and buffers, or enlarge the pool",
    ),
    _errno.EFBIG: (
        TooLargeError,
        "larger than a region: store less under one key, or format the pool with larger regions",
    ),
    _errno.EDQUOT: (
        QuotaError,
        "the tenant is at its hard limit: delete blocks of it, or wait until some are evicted",
    ),
    _errno.EPERM: (
        TenantNotListedError,
        "the pool takes only listed tenants: ask its administrator (marudctl quota)",
    ),
    _errno.ENOLINK: (ParentGoneError, "the parent is gone: store it again first, or store this as a root"),
    _errno.EXFULL: (
        RegistryFullError,
        "the registry or the space for long keys is full at this key: use another key, or a Digest",
    ),
    _errno.ENOBUFS: (
        PinsExhaustedError,
        "every pin slot of this client is taken: release views, or format the pool with more pins",
    ),
    _errno.EAGAIN: (TryAgainError, "an expired block is in the way, or marud is counting: try again later"),
    _errno.ENOTEMPTY: (HasChildrenError, "the block has children: delete them first, or use delete_tree"),
    _errno.EBUSY: (StillPinnedError, "something below is pinned and stayed: try again when it is released"),
}

# Where the same number asks for something else.
_AT_ATTACH = {
    _errno.ENOENT: "no such pool or socket: start marud, name its socket (or set MARU_SOCKET), name one of its pools",
    _errno.EINVAL: "an argument has a value that is not possible: the name of a pool has letters, digits, - and _; "
                   "thread_cache_pages is 4096 at most",
    _errno.EAGAIN: "the session thread could not be started: raise the limit of threads, or say session_thread=False",
}


def error_for(errno: int, call: str) -> Exception:
    """The exception for an errno of a function of maru.h."""
    if errno == _errno.ENOMEM:
        return MemoryError(f"{call}: out of memory")
    kind, sentence = _BY_ERRNO.get(errno, (MaruError, "see the call's comment in maru.h"))
    if call == "maru_attach":
        sentence = _AT_ATTACH.get(errno, sentence)
    name = _errno.errorcode.get(errno, str(errno))
    return kind(f"{call}: {name} ({os.strerror(errno)}): {sentence}.", errno, call)
