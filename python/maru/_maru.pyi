"""The calls of maru.h. What each does, when it blocks and what each error means stands there; here is what Python adds.

Thread safety: everything may be called from any thread. Fork: the child gets ForkedError from every object of the parent;
memoryviews and arrays that it inherited must not be touched there. Their memory is not in the child, which ends with SIGSEGV, or
meets what came to lie at these addresses meanwhile: its own mapping of the pool after connect(), with other blocks in it.
"""
import os
from types import TracebackType
from typing import Any, Callable, Iterable, Optional, Sequence, TypeVar, Union, final, overload

import numpy
from numpy.typing import NDArray

from .errors import MaruError
from .places import Retrieved
from .follow import Follower
from .records import BlockInfo, Digest, EvictedKey, Geometry, Statistics, Stored, StoredBatch, StoredChain

# str, bytes, bytearray and memoryview: the bytes of the key, 1 to 4096 (str as UTF-8). Digest, or an array of 16 or 32 uint8:
# a digest, which is another key than the same bytes.
Key = Union[str, bytes, bytearray, memoryview, Digest, NDArray[numpy.uint8]]
# A str is the name of a tenant; an int is what Client.tenant() returned for it, which is faster.
Tenant = Union[None, str, int]
# The parent of a block that is stored: its key, or its `block`.
Parent = Union[None, Key, int, numpy.uint64]
# What describes a block: at most 65536 bytes, or anything with a contiguous buffer of them. None is empty.
Metadata = Union[bytes, bytearray, memoryview, NDArray[Any]]
Traceparent = Optional[str]  # of the request that the call is part of, as the W3C's header has it: maru/tracing.py
# An n x 16 or n x 32 array of digests, C-contiguous.
Digests = NDArray[numpy.uint8]

_Self = TypeVar("_Self")
_Out = TypeVar("_Out", NDArray[numpy.bool_], NDArray[numpy.uint8], bytearray, memoryview)

class Pin:
    """A block that is pinned, not mapped: neither evicted nor overwritten until it is released. View is its one subclass."""

    @property
    def block(self) -> int:
        """One life of one block; a block stored later never has the same value."""
    @property
    def nbytes(self) -> int: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def metadata(self) -> bytes:
        """What the block was stored with, copied; empty where it was stored without. Raises ClosedError after release()."""
    def release(self) -> None:
        """Lets go. The pin itself ends when the last memoryview of the block is gone. May be called again."""
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None: ...

@final
class View(Pin):
    """A block that is pinned, to be read in place."""

    @property
    def data(self) -> memoryview:
        """Read-only, as are arrays made from it. Tensors are not: torch knows none that is read-only. Who writes through one
        ends this process (SIGSEGV), or, where this process has stored into the same region, changes what others read. It, and
        every array or tensor made from it, keeps the block pinned and the memory mapped.
        Raises ClosedError after release()."""
    def check_memory(self) -> None:
        """To be asked after reading, before release(), in a program that called handle_memory_errors(views=True): raises
        BadMemoryError when memory of the block is known to have gone bad meanwhile, and what was read may be zeros."""
    def __len__(self) -> int: ...

@final
class MemoryInfo:
    """A block that MaruHandler found: `view` shows it, read-only. The block stays pinned for as long as this, `view`, or an array
    or tensor made from `view` lives. A program that stands in for a handler may make one of memory that it has."""

    def __init__(self, view: Union[bytes, bytearray, memoryview], region_id: int = 0, page_index: int = 0,
                 kv_offset: int = 0) -> None: ...
    @property
    def view(self) -> memoryview: ...
    @property
    def region_id(self) -> int: ...
    @property
    def page_index(self) -> int: ...
    @property
    def kv_offset(self) -> int:
        """Bytes from the beginning of the region."""
    def __len__(self) -> int: ...

class Buffer:
    """Pages to fill, private to this process until they are stored. Dropping it gives them back."""

    @property
    def block(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_held(self) -> bool:
        """False once it was stored or aborted."""
    @property
    def data(self) -> memoryview:
        """Writable; the same memoryview each time. Nothing may refer to it any more when the buffer is stored, unless that is
        done with keep_views. Then it is read-only from the store on, and so is what is made from it afterwards; arrays, tensors
        and slices that were made from it before go on writing, which Python cannot end: into a block that others read. Raises
        ClosedError once the buffer was stored or aborted."""
    def abort(self) -> None:
        """Gives the pages back, when the last memoryview of them is gone. May be called again."""
    def __len__(self) -> int: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None: ...

class Match:
    """The leading keys that are present, held together until it is released, and until the last view of them is."""

    @property
    def blocks(self) -> int:
        """How many; also len()."""
    @property
    def deepest(self) -> int:
        """The last of them, 0 when there are none: the parent for what is stored next."""
    @property
    def is_held(self) -> bool: ...
    def resolve(self, keys: Union[Sequence[Key], Digests], tenant: Tenant = None) -> list[View]:
        """Views of the blocks under the first keys given to match_prefix, `blocks` of them at most. The keys are the same ones,
        in the same order; fewer of them are possible."""
    def release(self) -> None: ...
    def __len__(self) -> int: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None: ...

class Spans:
    """The calls of maru/spans.h: see maru.blend.Spans."""

    @property
    def window(self) -> int: ...
    @property
    def tenant(self) -> int: ...
    def store(self, tokens: Any, position: int, data: Any, note: Any, ttl_ms: int, priority: int) -> bool: ...
    def name(self, tokens: Any, position: int, deepest: int, blocks: int, note: Any, ttl_ms: int, priority: int) -> bool: ...
    def forget(self, tokens: Any) -> int: ...
    def find(self, tokens: Any, prefix_keys: Any, prefix_key_tokens: int, first: int, step: int, tokens_min: int, spans_max: int,
             flags: int) -> tuple[int, list[View], int, list[tuple[Any, ...]], int]: ...

class Client:
    """One attachment to one pool of the marud that listens on socket_path.

    Calls that may ask marud, copy, delete, or take many keys (64 digests or 16 texts to ask whether they exist, 8 of a prefix
    or to pin, 16 to unpin, or more than 1024 bytes of texts) run without the GIL; those that look for one key keep it, since
    they take less time than giving it up does. In a pool with checksums retrieve reads the whole block, and runs without.
    """

    def __init__(self, socket_path: Union[str, os.PathLike[str], None] = None, pool: Optional[str] = None, *,
                 timeout_ms: int = 0, thread_cache_pages: int = 0, first_fit: bool = False, session_thread: bool = True,
                 read_only: bool = False) -> None:
        """Blocks for at most timeout_ms (0: 5000). What None stands for: maru_attach_options in maru.h. With read_only,
        which a user among the pool's `readers` needs, what stores or deletes raises ReadOnlyError."""
    def close(self) -> None:
        """Ends the attachment: whatever is held through it is let go, and every further call raises ClosedError. The
        memory itself stays mapped, and the lane taken, until calls of other threads have returned and the last memoryview
        is gone. Blocks until marud has answered. May be called again; the end of a `with` does it."""
    @property
    def is_closed(self) -> bool: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None: ...
    def reattach(self) -> None: ...
    def follow(self, *, timeout_ms: int = 0, metadata: bool = True) -> Follower:
        """What comes and goes in this client's pool: `for event in client.follow()`, `async for` likewise. It has a connection
        of its own and outlives the client."""
    @property
    def daemon_epoch(self) -> int: ...
    def tenant(self, name: str) -> int: ...
    def geometry(self) -> Geometry: ...
    def _before_unmap(self, call: Optional[Callable[[], object]]) -> int:
        """Has call() called, once, before the memory of the pool leaves its addresses in this process, in whichever thread that
        is; None: nothing. Returns the address of page 0. Waits for a call that is under way. PoolLeavesError: it has gone."""
    def statistics(self) -> Statistics: ...
    def count_blocks(self) -> tuple[int, int, int, int]:
        """Of the whole pool: blocks, those of them that are held (pinned by any client, and their ancestors), the pages of the
        blocks, free pages. maru.blocks.BlockPool.status() says it in blocks."""
    def _open_spans(self, space: bytes, window: int, tenant: Tenant, occupants: int) -> Spans: ...
    def evicted(self) -> list[EvictedKey]:
        """The keys of blocks that requests of this client evicted since the last call, oldest first; 4096 are kept."""

    def exists(self, key: Key, tenant: Tenant = None) -> bool:
        """Whether a block is there; it may go at any time. One whose time to live is over counts until marud has taken it away,
        some milliseconds later where it runs: retrieve() and match_prefix() do not find it any more."""
    @overload
    def exists_batch(self, keys: Digests, tenant: Tenant = None, out: None = None) -> NDArray[numpy.bool_]:
        """A list where there is no NumPy, and the digests are a memoryview."""
    @overload
    def exists_batch(self, keys: Sequence[Key], tenant: Tenant = None, out: None = None) -> list[bool]: ...
    @overload
    def exists_batch(self, keys: Union[Sequence[Key], Digests], tenant: Tenant = None, *, out: _Out) -> _Out:
        """out: one byte per key (an array of bool or uint8, a bytearray), which is returned."""
    def retrieve(self, key: Key, tenant: Tenant = None, traceparent: Traceparent = None) -> Optional[View]:
        """None when the block is absent."""
    def retrieve_batch(self, keys: Union[Sequence[Key], Digests],
                       tenant: Tenant = None, traceparent: Traceparent = None) -> list[Union[View, MaruError, None]]:
        """None for what is absent. So that the others are not lost, what is there and cannot be read is not raised: in its
        place is the DamagedBlockError (statistics().checksum_errors counts these) or BadMemoryError."""
    # For MaruHandler.
    def _find(self, key: Key, tenant: Tenant, places: Retrieved) -> Optional[MemoryInfo]: ...
    def _find_batch(self, keys: Sequence[Union[Key, int]], tenant: Tenant, places: Retrieved) -> list[Optional[MemoryInfo]]: ...
    def pin(self, key: Key, tenant: Tenant = None) -> Optional[Pin]: ...
    def pin_batch(self, keys: Union[Sequence[Key], Digests], tenant: Tenant = None) -> list[Optional[Pin]]:
        """None for what is absent, and nothing is pinned when it raises."""
    def pin_block(self, block: int) -> Optional[Pin]: ...
    def block_info(self, block: int) -> Optional[BlockInfo]:
        """What the pool knows of a block, which stays true while a pin or a match holds the block; None when it is gone."""
    def unpin(self, pin: Pin) -> None:
        """The same as pin.release()."""
    def unpin_batch(self, pins: Iterable[Pin]) -> None:
        """pin.release() of each. What is no pin raises before any is released."""
    def match_prefix(self, keys: Union[Sequence[Key], Digests], tenant: Tenant = None,
                     traceparent: Traceparent = None) -> Match: ...

    def alloc(self, nbytes: int, metadata_bytes: int = 0, traceparent: Traceparent = None) -> Buffer:
        """metadata_bytes: the room that is left behind nbytes for the metadata of the store."""
    def alloc_batch(self, nbytes: int, n: int, metadata_bytes: int = 0, traceparent: Traceparent = None) -> list[Buffer]:
        """All or nothing."""
    def store(self, key: Key, buffer: Buffer, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
              content_type: int = 0, tenant: Tenant = None, keep_views: bool = False,
              metadata: Metadata = b"", traceparent: Traceparent = None) -> Stored:
        """Uses the buffer up, also when a block was there already (is_new is False: that one stays). After an exception
        it is still the caller's. While a variable, an array or a tensor still refers to buffer.data, ViewsHeldError is raised.
        keep_views says that nobody will write through them any more (see Buffer.data for what can still be). They stay valid
        then: the block is pinned for as long as they live; or, when a block was there already, they keep the pages of the buffer, and Stored.block is 0. ttl_ms 0
        is for ever. The library copies metadata behind the data: alloc() leaves room for it."""
    def store_copy(self, key: Key, data: Any, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
                   content_type: int = 0, tenant: Tenant = None,
                   metadata: Metadata = b"", traceparent: Traceparent = None) -> Stored:
        """data: anything with a contiguous buffer: bytes, an array. Each reader gets metadata with the block: View.metadata."""
    @overload
    def store_batch(self, keys: Digests, buffers: Sequence[Buffer], *, parent: Parent = None, ttl_ms: int = 0,
                    priority: int = 0, content_type: int = 0, tenant: Tenant = None,
                    keep_views: bool = False,
                    metadata: Sequence[Metadata] = (),
                    traceparent: Traceparent = None) -> StoredBatch[NDArray[numpy.uint64], NDArray[numpy.bool_]]: ...
    @overload
    def store_batch(self, keys: Sequence[Key], buffers: Sequence[Buffer], *, parent: Parent = None, ttl_ms: int = 0,
                    priority: int = 0, content_type: int = 0, tenant: Tenant = None,
                    keep_views: bool = False,
                    metadata: Sequence[Metadata] = (), traceparent: Traceparent = None) -> StoredBatch[list[int], list[bool]]:
        """store() of each, in their order; the options hold for all of them, but metadata has an entry for each. What is wrong
        with one of them is in `errors` and not raised: that buffer is still the caller's (is_held). After an exception all of them are, and nothing is stored.
        keep_views as of store(), but that `blocks` has the block that was there already."""
    @overload
    def store_copy_batch(self, keys: Digests, data: Any, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
                         content_type: int = 0, tenant: Tenant = None,
                         metadata: Sequence[Metadata] = (),
                         traceparent: Traceparent = None) -> StoredBatch[NDArray[numpy.uint64], NDArray[numpy.bool_]]: ...
    @overload
    def store_copy_batch(self, keys: Sequence[Key], data: Any, *, parent: Parent = None, ttl_ms: int = 0, priority: int = 0,
                         content_type: int = 0, tenant: Tenant = None,
                         metadata: Sequence[Metadata] = (),
                         traceparent: Traceparent = None) -> StoredBatch[list[int], list[bool]]:
        """store_copy() of each. data: a sequence of what store_copy() takes, or one C-contiguous array of whose first dimension
        each row is the bytes of one block. Pages that are missing are asked for in one request, and taken together: where
        not all can be had the first blocks are stored, and none where they are more than the pool holds. errors as of
        store_batch()."""
    def store_chain(self, keys: Union[Sequence[Key], Digests], buffers: Sequence[Buffer], *, parent: Parent = None,
                    ttl_ms: int = 0, priority: int = 0, content_type: int = 0, tenant: Tenant = None,
                    keep_views: bool = False,
                    metadata: Sequence[Metadata] = (), traceparent: Traceparent = None) -> StoredChain:
        """The first under parent, each further one under the one before. After an exception the buffers that are not
        is_held are stored, the others are still the caller's. keep_views as of store()."""
    def delete(self, key: Key, tenant: Tenant = None, traceparent: Traceparent = None) -> bool:
        """False when it was absent. Raises HasChildrenError."""
    @overload
    def delete_batch(self, keys: Digests, tenant: Tenant = None, traceparent: Traceparent = None) -> NDArray[numpy.bool_]: ...
    @overload
    def delete_batch(self, keys: Sequence[Key], tenant: Tenant = None, traceparent: Traceparent = None) -> list[bool]:
        """One by one, in order; a chain goes when its deepest key is first. False where a block was absent. When some have
        children, the others are deleted all the same, and then HasChildrenError is raised, whose `deleted` is the answer."""
    def delete_block(self, block: int, *, unpinned: bool = False) -> None:
        """Removes this life of a block, and none that was stored later under its key. With unpinned, one that a client has
        pinned raises StillPinnedError. NotFoundError: this life is over."""
    def delete_tree(self, key: Key, tenant: Tenant = None) -> int:
        """How many blocks went; 0 when the root is absent. Raises StillPinnedError when something stayed."""

class Finder:
    """The calls of MaruHandler that look for a value. A class made of this defines _refuse(), which raises when there is no
    client, and _passes_over(error), which is asked whether what is UNREADABLE counts as absent."""

    _client: Optional[Client]
    _tenant: Optional[int]
    _retrieved: Retrieved
    def exists(self, key: Union[str, bytes, int]) -> bool: ...
    def batch_exists(self, keys: Sequence[Union[str, bytes, int]]) -> list[bool]:
        """Of every key, also behind absent ones."""
    def retrieve(self, key: Union[str, bytes, int]) -> Optional[MemoryInfo]:
        """None when the value is absent."""

def handle_memory_errors(*, views: bool = False) -> None:
    """For the whole process, for good: what libmaru itself reads and copies raises BadMemoryError where memory is bad, instead
    of ending the process with SIGBUS. With views=True so does check_memory() after a view was read, which shows zeros there. May
    be called again, to add views. Other SIGBUS go to the handler that was there before (faulthandler's, say); see
    maru_handle_memory_errors in maru.h."""

def version() -> str:
    """Of libmaru."""

# For maru/tracing.py.
def _set_traceparent(traceparent: Optional[str]) -> None: ...
def _get_traceparent() -> str: ...
def _begin_request(client: Client, traceparent: Optional[str]) -> bytes: ...
def _end_request(client: Client, span: bytes, result: int) -> None: ...
def _set_tracing(client: Client, socket_path: Union[str, os.PathLike[str], None], spans: int, one_in: int) -> bool: ...
def _stop_tracing(client: Client) -> None: ...

def _client_key(key: Union[str, bytes, int]) -> Union[str, bytes]:
    """The key under which Client knows what MaruHandler stored under this one: the key itself, but for integers and the empty
    text, which become bytes or a Digest (native/handler_keys.h)."""
