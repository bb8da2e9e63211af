"""KV blocks shared between processes through memory that marud provides.

    with maru.Client() as client:
        client.store_copy("key", b"bytes of a block")
        with client.retrieve("key") as view:
            bytes(view.data)

Calls that find one block take well under a microsecond more than libmaru itself; batches take digests as NumPy arrays. What
a view shows stays in the pool for as long as the View, a memoryview of it, or an array or tensor made from that exists.
MaruConfig and MaruHandler are the interface of connectors for an older system of this name; maru_lmcache has what LMCache
loads. An absent block is None or False; everything else that goes wrong is a MaruError that says what to do, but for what is
damaged within a batch, which is None and counted.
"""
from .main_interpreter import require_main_interpreter

require_main_interpreter()  # before what would wait for ever in another one is loaded

from .distribution import warn_of_the_other

warn_of_the_other()  # also where what follows does not load, because the other is half there

from ._maru import Buffer, Client, Match, Pin, View, handle_memory_errors, version
from .config import MaruConfig
from .errors import (
    AccessDeniedError,
    BadMemoryError,
    ClosedError,
    DaemonTimeoutError,
    DaemonUnreachableError,
    DamagedBlockError,
    DamagedPoolError,
    ForkedError,
    HandleUsedError,
    HasChildrenError,
    InvalidArgumentError,
    LanesExhaustedError,
    MaruError,
    NoSpaceError,
    NotConnectedError,
    NotFoundError,
    ParentGoneError,
    PinsExhaustedError,
    PoolExhaustedError,
    PoolLeavesError,
    PoolReplacedError,
    PoolUnavailableError,
    QuotaError,
    ReadOnlyError,
    RegistryFullError,
    StillPinnedError,
    TenantNotListedError,
    TenantPlaceError,
    TooLargeError,
    TryAgainError,
    VersionError,
    ViewsHeldError,
)
from .handler import MaruHandler
from .records import BlockInfo, ContentType, Digest, EvictedKey, Geometry, Statistics, Stored, StoredBatch, StoredChain
from .results import AllocHandle, MemoryInfo

__version__ = version()

__all__ = [
    "AccessDeniedError", "AllocHandle", "BadMemoryError", "BlockInfo", "Buffer", "Client", "ClosedError", "ContentType",
    "DaemonTimeoutError", "DaemonUnreachableError", "DamagedBlockError", "DamagedPoolError", "Digest", "EvictedKey",
    "ForkedError", "Geometry", "HandleUsedError", "HasChildrenError", "InvalidArgumentError", "LanesExhaustedError",
    "MaruConfig", "MaruError", "MaruHandler", "Match", "MemoryInfo", "NoSpaceError", "NotConnectedError",
    "NotFoundError", "ParentGoneError", "Pin", "PinsExhaustedError", "PoolExhaustedError", "PoolLeavesError",
    "PoolReplacedError", "PoolUnavailableError", "QuotaError", "ReadOnlyError", "RegistryFullError", "Statistics",
    "StillPinnedError", "Stored", "StoredBatch", "StoredChain", "TenantNotListedError", "TenantPlaceError",
    "TooLargeError", "TryAgainError", "VersionError", "View", "ViewsHeldError", "handle_memory_errors", "version",
]
