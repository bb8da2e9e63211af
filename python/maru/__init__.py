"""KV blocks shared between processes through memory that marud provides.

    with maru.Client() as client:
        client.store_copy("key", b"bytes of a block")
        with client.retrieve("key") as view:
            bytes(view.data)

Calls that find one block take well under a microsecond more than libmaru itself; batches take digests as NumPy arrays. What
a view shows stays in the pool for as long as the View, a memoryview of it, or an array or tensor made from that exists.
An absent block is None or False; everything else that goes wrong is a MaruError that says what to do.
"""
from ._maru import Buffer, Client, Match, Pin, View, version
from .errors import (
    AccessDeniedError,
    ClosedError,
    DaemonTimeoutError,
    DaemonUnreachableError,
    DamagedBlockError,
    DamagedPoolError,
    ForkedError,
    HasChildrenError,
    InvalidArgumentError,
    LanesExhaustedError,
    MaruError,
    NoSpaceError,
    NotFoundError,
    ParentGoneError,
    PinsExhaustedError,
    PoolReplacedError,
    QuotaError,
    RegistryFullError,
    StillPinnedError,
    TenantNotListedError,
    TooLargeError,
    TryAgainError,
    VersionError,
    ViewsHeldError,
)
from .records import ContentType, Digest, EvictedKey, Geometry, Statistics, Stored, StoredChain

__version__ = version()

__all__ = [
    "AccessDeniedError", "Buffer", "Client", "ClosedError", "ContentType", "DaemonTimeoutError", "DaemonUnreachableError",
    "DamagedBlockError", "DamagedPoolError", "Digest", "EvictedKey", "ForkedError", "Geometry", "HasChildrenError",
    "InvalidArgumentError", "LanesExhaustedError", "MaruError", "Match", "NoSpaceError", "NotFoundError", "ParentGoneError",
    "Pin", "PinsExhaustedError", "PoolReplacedError", "QuotaError", "RegistryFullError", "Statistics", "StillPinnedError",
    "Stored", "StoredChain", "TenantNotListedError", "TooLargeError", "TryAgainError", "VersionError", "View",
    "ViewsHeldError", "version",
]
