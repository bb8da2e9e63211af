"""What can go wrong: one exception for each error of maru.h that asks for something different to be done.

An absent block is no error (None, or False). Every exception has `errno`, the number that libmaru returned, and `call`, the
function of maru.h that returned it; both are None for what was refused before libmaru was asked.
"""
from __future__ import annotations

import errno as _errno
import os
from typing import Any, Optional


def shown(value: object, most: int = 100) -> str:
    """What repr() says of it, for a message. A whole number may be too long for that."""
    try:
        return repr(value)[:most]
    except ValueError:
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"


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
    """marud was needed and is not there; or maru-tierd, by `maru.tier`."""


class DaemonTimeoutError(DaemonUnreachableError):
    """marud was needed and did not answer in time; or the wait for a ticket of `maru.tier` ended before the ticket."""


class PoolReplacedError(MaruError):
    """marud has another pool of this name now."""


class AccessDeniedError(MaruError):
    """The pool's access list refuses this user."""


class LanesExhaustedError(MaruError):
    """Every lane of the pool is in use."""


class VersionError(MaruError):
    """marud, or the pool, is of another version."""


class ReadOnlyError(MaruError):
    """The client attached to read only."""


class DamagedPoolError(MaruError):
    """The control region is damaged or of another version."""


class DamagedBlockError(MaruError):
    """A payload does not match its checksum."""


class PoolLeavesError(MaruError):
    """The pool is being drained or removed, or marud has fenced it."""


class PoolUnavailableError(MaruError):
    """marud could not open the pool yet: its device is missing, or somebody else has it."""


class BadMemoryError(MaruError):
    """Memory of the pool cannot be read any more."""


class NoSpaceError(MaruError):
    """Nothing is free and nothing can be evicted."""


class PoolExhaustedError(NoSpaceError, ValueError):
    """A MaruHandler gets no page: its own budget is in use, or nothing in the pool can be evicted."""


class TooLargeError(MaruError):
    """Larger than a region; or metadata that is too long, or does not fit into the pages of its buffer."""


class QuotaError(MaruError):
    """The tenant is at its hard limit, or this user at a limit of its own."""


class TenantPlaceError(QuotaError):
    """A hard limit holds for the tenant, and the pool has no place to count its bytes."""


class TenantNotListedError(MaruError):
    """The pool takes only tenants that its administrator has listed."""


class ParentGoneError(MaruError):
    """The parent of what is to be stored is not there."""


class RegistryFullError(MaruError):
    """The registry is full at this key, or has no cell free for a key this long."""


class PinsExhaustedError(MaruError):
    """Every pin slot of this client is taken."""


# Of a value that is there: it cannot be read, or not be held, or its pool is being removed.
UNREADABLE = (BadMemoryError, DamagedBlockError, PinsExhaustedError, PoolLeavesError)


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
        "nothing is free and nothing can be evicted, or the file system of the pool's file is full: release views and buffers,"
        " make room there, or enlarge the pool",
    ),
    _errno.EFBIG: (
        TooLargeError,
        "larger than a region: store less under one key, or format the pool with larger regions",
    ),
    _errno.E2BIG: (TooLargeError, "metadata has at most 65536 bytes: store more of it as a block of its own"),
    _errno.EMSGSIZE: (
        TooLargeError,
        "the metadata does not fit behind the data in the pages of the buffer: allocate it with metadata_bytes",
    ),
    _errno.EOPNOTSUPP: (
        VersionError,
        "the pool holds no metadata, since a marud from before metadata formatted it: store without, or format it anew",
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
        "the registry is full at this key, or has no cell free for one this long: use another key or a Digest,"
        " or format the pool with a larger key_inline_bytes",
    ),
    _errno.ENOBUFS: (
        PinsExhaustedError,
        "every pin slot of this client is taken: release views, or format the pool with more pins",
    ),
    _errno.EAGAIN: (TryAgainError, "an expired block is in the way, or marud is counting: try again later"),
    _errno.ENOTEMPTY: (HasChildrenError, "the block has children: delete them first, or use delete_tree"),
    _errno.EBUSY: (StillPinnedError, "something below is pinned and stayed: try again when it is released"),
}

_Errors = dict[int, tuple[type[MaruError], str]]

_FENCED = (PoolLeavesError, "marud has fenced the pool because its memory went away (marudctl device list): use another pool")
_NO_DESCRIPTOR = (TryAgainError, "descriptors ran out: raise the limit of open files, or close some")
_CLOSED = (DaemonUnreachableError, "marud closed the connection without a word, which its log explains: try again")
_USERS_MEMORY = ("this user is at its limit of memory, and nothing in the regions of its clients can be evicted: release views "
                 "and buffers, or have [limits] of marud raised")
_BATCH: _Errors = {
    _errno.EINVAL: (InvalidArgumentError, "an argument has a value that is not possible; a batch has at most 2^20 keys"),
}
_RESOLVE: _Errors = {
    _errno.EINVAL: (
        InvalidArgumentError,
        "the keys are not those of the match: give the first ones that match_prefix was given, in that order",
    ),
}
_NO_PLACE = (
    TenantPlaceError,
    "a hard limit holds for the tenant, and the pool has no place to count its bytes: delete blocks of tenants that are not"
    " needed, or format the pool with a larger tenants_max",
)
_STORE: _Errors = {
    _errno.EUSERS: _NO_PLACE,
    _errno.EINVAL: (
        InvalidArgumentError,
        "the buffer is of another Client, which is the one to store it through, or the parent's number is no block of this "
        "pool",
    ),
}
_ALLOC: _Errors = {
    _errno.EINVAL: (InvalidArgumentError, "a block has one byte or more"),
    _errno.EDQUOT: (QuotaError, _USERS_MEMORY),
}
_STORE_COPY: _Errors = {
    _errno.EUSERS: _NO_PLACE,
    _errno.EINVAL: (
        InvalidArgumentError,
        "a block has one byte or more, or the parent's number is no block of this pool",
    ),
    _errno.EDQUOT: (
        QuotaError,
        f"the tenant is at its hard limit: delete blocks of it, or wait until some are evicted; or {_USERS_MEMORY}",
    ),
}

# Where the same number asks for something else.
_SPAN = {
    **_STORE_COPY,
    _errno.EEXIST: (
        MaruError,
        "another text has this name, which happens by intent alone: leave the chunk without one, or open the spans with more"
        " occupants",
    ),
    _errno.EINVAL: (
        InvalidArgumentError,
        "the chunk has no tokens or data, or `deepest` is no chain of so many blocks of the spans' tenant",
    ),
}

# Of marud's socket, and of the pool behind it.
_CONNECT: _Errors = {
    _errno.ENOENT: (
        NotFoundError,
        "no such pool or socket: start marud, name its socket (or set MARU_SOCKET), name one of its pools",
    ),
    _errno.ENOTDIR: (NotFoundError, "a part of the socket's path is no directory: name marud's socket"),
    _errno.ENAMETOOLONG: (InvalidArgumentError, "the path of a socket has at most 107 bytes: name a shorter one or a link"),
    _errno.EPROTOTYPE: (DaemonUnreachableError, "the socket is of another program: name marud's"),
    _errno.EACCES: (
        AccessDeniedError,
        "the pool's access list refuses this user, or the folder of the socket does: ask its administrator",
    ),
    _errno.EMFILE: _NO_DESCRIPTOR,
    _errno.ENFILE: _NO_DESCRIPTOR,
    _errno.EIO: _FENCED,
    _errno.EPIPE: _CLOSED,
    _errno.ECONNRESET: _CLOSED,
}
_FOLLOW: _Errors = {
    **_CONNECT,
    _errno.EDQUOT: (
        QuotaError,
        "this user has as many connections as it may: close clients and followers, or have [limits] of marud raised",
    ),
    _errno.EPROTO: (
        VersionError,
        "marud speaks another version, or is too old to be followed: install the same version of marud and maru",
    ),
    _errno.ENOSPC: (NoSpaceError, "marud has no memory for a feed, which its log explains: make room, and try again"),
    _errno.EAGAIN: (
        TryAgainError,
        "events come faster than this follower takes snapshots of the pool: try again",
    ),
    _errno.EINVAL: (
        InvalidArgumentError,
        "an argument has a value that is not possible: the name of a pool has 1 to 63 letters, digits, -, _ and .",
    ),
}
_NO_TIER = (DaemonUnreachableError, "no maru-tierd answers on this socket: go on without, or start it")
_PREFETCH: _Errors = {
    _errno.ENOENT: (
        NotFoundError,
        "no such socket: start maru-tierd, or name its socket (or set MARU_TIER_SOCKET)",
    ),
    _errno.ENOTDIR: (NotFoundError, "a part of the socket's path is no directory: name maru-tierd's socket"),
    _errno.EPROTOTYPE: (DaemonUnreachableError, "the socket is of another program: name maru-tierd's"),
    _errno.EACCES: (AccessDeniedError, "this user may not write to maru-tierd's socket: ask its administrator"),
    _errno.EAGAIN: (TryAgainError, "maru-tierd has too many questions: go on without"),
    _errno.EMSGSIZE: (TooLargeError, "the keys of one question have at most 1 MiB: ask for fewer of them"),
    _errno.EMFILE: _NO_DESCRIPTOR,
    _errno.ENFILE: _NO_DESCRIPTOR,
    _errno.ECONNREFUSED: _NO_TIER,
    _errno.ECONNRESET: _NO_TIER,
    _errno.EINVAL: (
        InvalidArgumentError,
        "a key has 1 to 4096 bytes, and a digest 16 or 32; the path of a socket has at most 107",
    ),
}

_OF_CALL: dict[str, _Errors] = {
    "maru_attach": {
        **_CONNECT,
        _errno.EDQUOT: (
            QuotaError,
            "this user has as many connections as it may, or pins more blocks: close clients, release views, or have [limits] "
            "of marud raised",
        ),
        _errno.EINVAL: (
            InvalidArgumentError,
            "an argument has a value that is not possible: the name of a pool has 1 to 63 letters, digits, -, _ and .; "
            "thread_cache_pages is 4096 at most",
        ),
        _errno.EAGAIN: (
            TryAgainError,
            "the session thread could not be started: raise the limit of threads, or say session_thread=False",
        ),
        _errno.ENOLCK: (
            TryAgainError,
            "this process locks all that it maps (mlockall), and RLIMIT_MEMLOCK does not let it lock the pool: raise that "
            "limit, or attach before locking",
        ),
        _errno.EINTR: (TryAgainError, "a signal came in between: try again"),
    },
    "maru_reattach": {_errno.EIO: _FENCED, _errno.EPIPE: _CLOSED, _errno.ECONNRESET: _CLOSED},
    "maru_alloc": _ALLOC,
    "maru_alloc_batch": _ALLOC,
    "maru_store_copy": _STORE_COPY,
    "maru_store": _STORE,
    "maru_store_pinned": _STORE,
    "maru_store_batch": _STORE,
    "maru_store_copy_batch": _STORE_COPY,
    "maru_get_block_info": {_errno.EINVAL: (InvalidArgumentError, "the number is no block: give the `block` of a result")},
    "maru_delete_block": {
        _errno.EINVAL: (InvalidArgumentError, "the number is no block: give the `block` of a result"),
        _errno.ENOENT: (NotFoundError, "this life of the block is over: it was evicted or removed"),
        _errno.EBUSY: (StillPinnedError, "a client has the block pinned: try again when it is released"),
    },
    "maru_pin_block": {_errno.EINVAL: (InvalidArgumentError, "the number is no block: give the `block` of a result")},
    "maru_pin_batch": _BATCH,
    "maru_exists_batch": _BATCH,
    "maru_exists_rows": _BATCH,
    "maru_retrieve_batch": _BATCH,
    "maru_match_prefix": _BATCH,
    "maru_resolve": _RESOLVE,
    "maru_store_chain": _STORE,
    "maru_store_span_copy": _SPAN,
    "maru_name_span": _SPAN,
    "maru_delete_batch": _BATCH,
    "maru_follow_open": _FOLLOW,
    "maru_follow_next": _FOLLOW,
    "maru_prefetch": _PREFETCH,
    "maru_prefetch_wait": {
        _errno.ECONNRESET: (DaemonUnreachableError, "maru-tierd has gone, and holds nothing any more: go on without"),
        _errno.ETIMEDOUT: (DaemonTimeoutError, "the ticket has not ended yet: wait again, or release it"),
    },
}


def error_for(errno: int, call: str) -> Exception:
    """The exception for an errno of a function of maru.h."""
    if errno == _errno.ENOMEM:
        return MemoryError(f"{call}: out of memory")
    usual = _BY_ERRNO.get(errno, (MaruError, "see the call's comment in maru.h"))
    kind, sentence = _OF_CALL.get(call, {}).get(errno, usual)
    name = _errno.errorcode.get(errno, str(errno))
    return kind(f"{call}: {name} ({os.strerror(errno)}): {sentence}.", errno, call)
