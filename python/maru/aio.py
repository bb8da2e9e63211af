"""maru.Client for programs that run on asyncio.

    async with maru.aio.Client() as client:
        buffers = await client.alloc_batch(65536, 8)      # may evict, so it may wait
        ...
        await client.store_chain(keys, buffers)
        view = client.retrieve(keys[0])                   # never waits

Only what may wait for marud is awaited: attaching, taking memory, storing (a tenant's quota), deleting trees. Those calls go
through one thread of this client, one after the other, as marud would answer them anyway; no call has a thread of its own. What
never waits is a plain call, as in maru.Client, whose documentation holds for everything here.

A plain call is not always a short one. In a pool with checksums retrieve() and retrieve_batch() read all of each block, which
takes as long as reading memory does (some milliseconds for 32 MiB), and the loop with it; there a thread may read them:

    view = await asyncio.to_thread(client.sync.retrieve, key)

A task that is cancelled while it waits does not stop marud: what it would have got is given back as soon as it comes.
"""
from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, TypeVar, Union

from . import _maru
from .errors import ClosedError, ForkedError, MaruError
from .follow import Follower
from .records import Digest, Stored, StoredBatch, StoredChain

if TYPE_CHECKING:  # those who bring no arrays do without NumPy
    import numpy
    from numpy.typing import NDArray

Key = Union[str, bytes, bytearray, memoryview, Digest, "NDArray[numpy.uint8]"]
Keys = Union[Sequence[Key], "NDArray[numpy.uint8]"]
Tenant = Union[None, str, int]
Parent = Union[None, Key, int]

_T = TypeVar("_T")


class Client:
    """One attachment. The arguments are those of maru.Client. Its methods are for the thread of one event loop."""

    def __init__(self, socket_path: Union[str, os.PathLike[str], None] = None, pool: Optional[str] = None,
                 **options: Any) -> None:
        self._arguments = (socket_path, pool)
        self._options = options
        self._client: Optional[_maru.Client] = None
        self._is_closed = False
        self._attaching = asyncio.Lock()
        self._process = os.getpid()
        self._waiting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="maru-aio")

    async def attach(self) -> None:
        """`async with` does it. May be called again, and by several tasks at once, which wait for one attachment."""
        async with self._attaching:
            if self._client is not None:
                return
            client = await self._wait(lambda: _maru.Client(*self._arguments, **self._options))
            if self._is_closed:  # meanwhile
                await asyncio.get_running_loop().run_in_executor(None, client.close)
                raise ClosedError("This client was closed: make another one.")
            self._client = client

    async def close(self) -> None:
        """As maru.Client.close. May be called again; the end of `async with` does it."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is not None:
            # Not behind calls that wait, which closing refuses, all but the one that is under way.
            await asyncio.get_running_loop().run_in_executor(None, client.close)
        self._waiting.shutdown(wait=False)

    async def __aenter__(self) -> Client:
        await self.attach()
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        traceback: Optional[TracebackType]) -> None:
        await self.close()

    @property
    def sync(self) -> _maru.Client:
        """For calls that are not here. Raises ClosedError before attach and after close."""
        if self._client is not None:
            return self._client
        if self._is_closed:
            raise ClosedError("This client was closed: make another one.")
        raise ClosedError("This client is not attached: use it in `async with`, or await attach().")

    async def _wait(self, call: Callable[[], _T]) -> _T:
        if os.getpid() != self._process:  # which has no such thread: the call would wait for ever
            raise ForkedError("This client was made before fork(): make one of its own in the child.")
        try:
            future: Future[_T] = self._waiting.submit(call)
        except RuntimeError:
            raise ClosedError("This client was closed: make another one.") from None
        # Where nobody waits any more, what comes is dropped, and buffers and attachments that are dropped are given back.
        return await asyncio.wrap_future(future)

    # -- what may wait ------------------------------------------------------------------------------------------------

    async def reattach(self) -> None:
        await self._wait(self.sync.reattach)

    async def alloc(self, nbytes: int, metadata_bytes: int = 0, traceparent: _maru.Traceparent = None) -> _maru.Buffer:
        client = self.sync
        return await self._wait(lambda: client.alloc(nbytes, metadata_bytes, traceparent))

    async def alloc_batch(self, nbytes: int, n: int, metadata_bytes: int = 0,
                          traceparent: _maru.Traceparent = None) -> list[_maru.Buffer]:
        client = self.sync
        return await self._wait(lambda: client.alloc_batch(nbytes, n, metadata_bytes, traceparent))

    async def store(self, key: Key, buffer: _maru.Buffer, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
                    content_type: int = 0, tenant: Tenant = None, keep_views: bool = False,
                    metadata: _maru.Metadata = b"", traceparent: _maru.Traceparent = None) -> Stored:
        client = self.sync
        return await self._wait(lambda: client.store(key, buffer, parent=parent, ttl_ms=ttl_ms, priority=priority,
                                                     content_type=content_type, tenant=tenant, keep_views=keep_views,
                                                     metadata=metadata, traceparent=traceparent))

    async def store_copy(self, key: Key, data: Any, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
                         content_type: int = 0, tenant: Tenant = None,
                         metadata: _maru.Metadata = b"", traceparent: _maru.Traceparent = None) -> Stored:
        client = self.sync
        return await self._wait(lambda: client.store_copy(key, data, parent=parent, ttl_ms=ttl_ms, priority=priority,
                                                          content_type=content_type, tenant=tenant,
                                                          metadata=metadata, traceparent=traceparent))

    async def store_batch(self, keys: Keys, buffers: Sequence[_maru.Buffer], *, parent: Parent = None, ttl_ms: int = 0,
                          priority: int = 0, content_type: int = 0, tenant: Tenant = None,
                          keep_views: bool = False,
                          metadata: Sequence[_maru.Metadata] = (),
                          traceparent: _maru.Traceparent = None) -> StoredBatch[Any, Any]:
        client = self.sync
        return await self._wait(lambda: client.store_batch(keys, buffers, parent=parent, ttl_ms=ttl_ms, priority=priority,
                                                           content_type=content_type, tenant=tenant, keep_views=keep_views,
                                                           metadata=metadata, traceparent=traceparent))

    async def store_copy_batch(self, keys: Keys, data: Any, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
                               content_type: int = 0, tenant: Tenant = None,
                               metadata: Sequence[_maru.Metadata] = (),
                               traceparent: _maru.Traceparent = None) -> StoredBatch[Any, Any]:
        client = self.sync
        return await self._wait(lambda: client.store_copy_batch(keys, data, parent=parent, ttl_ms=ttl_ms, priority=priority,
                                                                content_type=content_type, tenant=tenant,
                                                                metadata=metadata, traceparent=traceparent))

    async def store_chain(self, keys: Keys, buffers: Sequence[_maru.Buffer], *, parent: Parent = None, ttl_ms: int = 0,
                          priority: int = 0, content_type: int = 0, tenant: Tenant = None,
                          keep_views: bool = False,
                          metadata: Sequence[_maru.Metadata] = (), traceparent: _maru.Traceparent = None) -> StoredChain:
        client = self.sync
        return await self._wait(lambda: client.store_chain(keys, buffers, parent=parent, ttl_ms=ttl_ms, priority=priority,
                                                           content_type=content_type, tenant=tenant, keep_views=keep_views,
                                                           metadata=metadata, traceparent=traceparent))

    async def delete_tree(self, key: Key, tenant: Tenant = None) -> int:
        client = self.sync
        return await self._wait(lambda: client.delete_tree(key, tenant))

    def follow(self, *, metadata: bool = True) -> Follower:
        """As maru.Client.follow, for `async for`. Connects at once, which takes as long as a message to marud."""
        return Follower(*self._arguments, metadata=metadata)

    # -- what never waits ---------------------------------------------------------------------------------------------

    def exists(self, key: Key, tenant: Tenant = None) -> bool:
        return self.sync.exists(key, tenant)

    def exists_batch(self, keys: Keys, tenant: Tenant = None) -> Union[list[bool], NDArray[numpy.bool_]]:
        return self.sync.exists_batch(keys, tenant)

    def retrieve(self, key: Key, tenant: Tenant = None, traceparent: _maru.Traceparent = None) -> Optional[_maru.View]:
        return self.sync.retrieve(key, tenant, traceparent)

    def retrieve_batch(self, keys: Keys, tenant: Tenant = None,
                       traceparent: _maru.Traceparent = None) -> list[Union[_maru.View, MaruError, None]]:
        return self.sync.retrieve_batch(keys, tenant, traceparent)

    def match_prefix(self, keys: Keys, tenant: Tenant = None, traceparent: _maru.Traceparent = None) -> _maru.Match:
        return self.sync.match_prefix(keys, tenant, traceparent)

    def delete(self, key: Key, tenant: Tenant = None, traceparent: _maru.Traceparent = None) -> bool:
        return self.sync.delete(key, tenant, traceparent)

    def delete_batch(self, keys: Keys, tenant: Tenant = None,
                     traceparent: _maru.Traceparent = None) -> Union[list[bool], NDArray[numpy.bool_]]:
        return self.sync.delete_batch(keys, tenant, traceparent)

    def tenant(self, name: str) -> int:
        return self.sync.tenant(name)
