"""Which blocks a pool has, and which come and go: for routers and other indexes of its contents.

    for event in client.follow():             # or maru.follow.Follower(socket_path, pool): no client is needed
        if event.kind == Kind.RESET:
            index.clear()
        elif event.kind == Kind.STORED:
            index[event.block] = event
        elif event.kind == Kind.REMOVED:
            del index[event.block]

    async for event in client.follow(): ...

RESET comes first, then the blocks that are there, each parent before its children, then CURRENT, then each change. After a loss
(the program was too slow, marud was restarted) RESET and the blocks that are there come again. While marud is away the
iterators wait for it. docs/events.md has the guarantees.
"""
from __future__ import annotations

import asyncio
import enum
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, AsyncIterator, Iterator, NamedTuple, Optional, TypeVar, Union

from . import _follow
from .errors import ClosedError, ForkedError, error_for
from .records import Digest

_Self = TypeVar("_Self", bound="Follower")

# marud is away, or its pool is not open yet; or it makes events faster than snapshots can be taken.
_PASSING = frozenset({"ECONNREFUSED", "ECONNRESET", "ENOTCONN", "ENOENT", "ENODEV", "ETIMEDOUT", "EPIPE", "EAGAIN"})
_SLICE_MS = 200  # so that a signal is seen


class Kind(enum.IntEnum):
    RESET = 1
    STORED = 2
    REMOVED = 3
    CURRENT = 4


class Event(NamedTuple):
    """What happened. Of RESET and CURRENT nothing after `at_ms` means anything."""

    kind: Kind
    reason: str  # of a removal, or of RESET; else ""
    is_in_snapshot: bool
    metadata_is_gone: bool  # the block has some, and went before it could be read
    depth: int
    incarnation: int
    sequence: int
    at_ms: int
    block: int
    parent: int  # 0: a root
    key: Union[None, bytes, Digest]
    tenant: int  # 0: none
    tenant_name: Optional[str]  # None: none, or marud has not been told it
    parent_key: Union[None, bytes, Digest]  # None: a root, or not known
    length: int
    stored_ms: int
    expires_ms: int  # 0: never
    metadata: Optional[bytes]
    content_type: int
    priority: int


def _event_of(fields: tuple[Any, ...]) -> Event:
    (kind, reason, flags, depth, incarnation, sequence, at_ms, block, parent, key, key_kind, tenant, tenant_name, parent_key,
     length, stored_ms, expires_ms, metadata, content_type, priority) = fields
    make = bytes if key_kind == 0 else Digest
    return Event(Kind(kind), reason, bool(flags & 1), bool(flags & 2), depth, incarnation, sequence, at_ms, block, parent,
                 None if key is None else make(key), tenant,
                 None if tenant_name is None else tenant_name.decode(errors="surrogateescape"),
                 None if parent_key is None else make(parent_key), length, stored_ms, expires_ms, metadata, content_type,
                 priority)


class Follower:
    """One follower. Iterate over it, in one thread or task at a time; it goes on where the last iteration ended."""

    def __init__(self, socket_path: Union[str, os.PathLike[str], None] = None, pool: Optional[str] = None, *,
                 timeout_ms: int = 0, metadata: bool = True) -> None:
        """The arguments are those of maru.Client. Blocks for at most timeout_ms (0: 5000). Without `metadata` no block's
        metadata is read or kept."""
        self._native = _follow.Follower(None if socket_path is None else os.fspath(socket_path), pool, timeout_ms, metadata)
        if self._native.opened < 0:
            raise error_for(-self._native.opened, "maru_follow_open")
        self._process = os.getpid()
        self._lock = threading.Lock()  # of the calls that read
        self._is_closed = False
        self._ready: deque[Event] = deque()
        self._threads: Optional[ThreadPoolExecutor] = None

    def next(self, timeout_ms: int = -1) -> list[Event]:
        """The next events; none when the time is over. Raises what the iterators wait for, too: DaemonUnreachableError while
        marud is away. -1: waits for as long as it takes."""
        if self._process != os.getpid():
            raise ForkedError("This follower was made before fork(): make one of its own in the child.")
        left = timeout_ms
        while True:
            part = _SLICE_MS if left < 0 else min(left, _SLICE_MS)
            with self._lock:
                if self._is_closed:
                    raise ClosedError("This follower was closed: make another one.")
                found = self._native.next(part)
            if not isinstance(found, int):
                if found or (0 <= left <= part):
                    return [_event_of(fields) for fields in found]
            elif left <= part or not self._passes(found):  # also without end: whoever wants to wait iterates
                raise error_for(-found, "maru_follow_next")
            if left >= 0:
                left -= part

    @staticmethod
    def _passes(code: int) -> bool:
        import errno
        return errno.errorcode.get(-code, "") in _PASSING

    def _take(self) -> Optional[list[Event]]:
        """None: it was closed."""
        with self._lock:
            if self._is_closed:
                return None
            found = self._native.next(_SLICE_MS)
        if not isinstance(found, int):
            return [_event_of(fields) for fields in found]
        if not self._passes(found):
            raise error_for(-found, "maru_follow_next")
        return []

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._process != os.getpid():
            raise ForkedError("This follower was made before fork(): make one of its own in the child.")
        while not self._ready:
            events = self._take()
            if events is None:
                raise StopIteration
            self._ready.extend(events)
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="maru-follow")
        while not self._ready:
            # A task that is cancelled here leaves the events to the next call: they are taken by whoever comes.
            if await asyncio.get_running_loop().run_in_executor(self._threads, self._take_ahead):
                raise StopAsyncIteration
        return self._ready.popleft()

    def _take_ahead(self) -> bool:
        events = self._take()
        if events is not None:
            self._ready.extend(events)
        return events is None

    def status(self) -> dict[str, Any]:
        """How far it is: maru_follow_status of maru/follow.h."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("This follower was closed: make another one.")
            return self._native.status()

    def close(self) -> None:
        """Ends the iterations, also in other threads. May be called again."""
        self._is_closed = True
        self._native.wake()
        with self._lock:
            self._native.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()
