"""Blocks from storage below a pool, asked for before they are needed.

    with maru.tier.prefetch(keys, tenant=0) as ticket:       # at once: maru-tierd looks, and reads missing blocks
        ...                                                  # the program does something else
        usable = ticket.wait(0.1).usable                     # leading keys that are in the pool
        with client.match_prefix(keys) as match: ...         # pins them, as always

A ticket holds the blocks until it is released. Where there is no maru-tierd, prefetch() raises NotFoundError or
DaemonUnreachableError; has_tier() says so without. A program goes on without tiers then. docs/tiers.md has the guarantees.
"""
from __future__ import annotations

import os
from types import TracebackType
from typing import NamedTuple, Optional, Sequence, Union

from . import _prefetch
from .errors import ClosedError, InvalidArgumentError, error_for, shown
from .records import Digest

_BYTES, _DIGEST128, _DIGEST256 = 0, 1, 2  # enum maru_key_kind
_PREFIX, _SPARSE, _SEGMENTED = 0, 1, 2  # enum maru_prefetch_policy
_KEYS_MAX = 4096
_DEADLINE_MAX = 60.0
_DEFAULT_SOCKET = "/run/maru-tierd/prefetch.sock"


class Status(NamedTuple):
    """The end of a ticket. Until is_done all else is 0."""

    is_done: bool
    keys: int
    usable: int  # leading keys that were in the pool when the ticket ended
    in_pool: int
    loaded: int
    absent: int
    failed: int
    gated: int
    late: int
    loaded_bytes: int
    took_us: int


class Ticket:
    """A question to maru-tierd. One thread at a time may use it."""

    def __init__(self, native: _prefetch.Ticket) -> None:
        self._native = native

    def status(self) -> Status:
        """Without waiting."""
        return self._told(0)

    def wait(self, timeout: Optional[float] = None) -> Status:
        """Waits until the ticket ends, for at most so many seconds; None: until its deadline has ended it. Raises
        DaemonTimeoutError."""
        return self._told(-1 if timeout is None else max(1, int(timeout * 1000)))

    def fileno(self) -> int:
        """A descriptor that is readable once the ticket has ended, or maru-tierd has gone: for select and asyncio."""
        descriptor = self._native.descriptor()
        if descriptor < 0:
            raise ClosedError("the ticket was released")
        return descriptor

    def release(self) -> None:
        """Gives up loads that have not ended; blocks that the ticket held may be evicted. May be called again."""
        self._native.release()

    def _told(self, timeout_ms: int) -> Status:
        self.fileno()
        found = self._native.wait(timeout_ms)
        if not isinstance(found, int):
            return Status(*found)
        raise error_for(-found, "maru_prefetch_wait")

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.release()


def prefetch(keys: Sequence[Union[bytes, str]], *, tenant: int = 0, digests: bool = False, sparse: bool = False,
             segmented: bool = False, temporary: bool = False, deadline: float = 1.0, compute_us: int = 0,
             socket_path: Optional[str] = None) -> Ticket:
    """Asks for keys in the order in which they are needed, and returns at once.

    digests: the keys are digests of 16 or 32 bytes, and not bytes of any kind; a Digest is one in any case. sparse: do not stop
    at the first key that is not to be had. segmented: stop at the first that is nowhere, and not at one whose load fails.
    temporary: what this ticket loads leaves the pool when the ticket is released, unless others hold it. deadline: seconds,
    after which the ticket ends with the blocks that are there. compute_us: how long computing a block would take; a load that
    is estimated to take longer does not begin. socket_path: None is $MARU_TIER_SOCKET, else the service's.
    """
    if not 1 <= len(keys) <= _KEYS_MAX:
        raise InvalidArgumentError(f"keys: found {len(keys)}, expected 1 to {_KEYS_MAX}")
    if not 0 < deadline <= _DEADLINE_MAX:
        raise InvalidArgumentError(f"deadline: found {shown(deadline)}, expected more than 0 and at most {_DEADLINE_MAX} "
                                   "seconds")
    asked = []
    for key in keys:
        data = key.encode() if isinstance(key, str) else bytes(key)
        is_digest = digests or isinstance(key, Digest)
        kind = _BYTES if not is_digest else _DIGEST128 if len(data) == 16 else _DIGEST256
        if is_digest and len(data) not in (16, 32):
            raise InvalidArgumentError(f"a digest has {len(data)} bytes, expected 16 or 32")
        asked.append((data, kind, tenant))
    if sparse and segmented:
        raise InvalidArgumentError("found sparse and segmented, expected one of them or none")
    policy = _SPARSE if sparse else _SEGMENTED if segmented else _PREFIX
    native = _prefetch.Ticket(asked, socket_path, policy, max(1, int(deadline * 1000)), compute_us, int(temporary))
    if native.opened() != 0:
        raise error_for(-native.opened(), "maru_prefetch")
    return Ticket(native)


def has_tier(socket_path: Optional[str] = None) -> bool:
    """Whether there is a socket to ask on. A maru-tierd may listen there, or not any more."""
    return os.path.exists(socket_path or os.environ.get("MARU_TIER_SOCKET") or _DEFAULT_SOCKET)
