"""CxlMemoryAdapter: LMCache's memory allocator, over a MaruHandler.

LMCache allocates a chunk, copies a GPU's keys and values into it, and asks its Maru back-end to store it; and it takes chunks
that were found and copies them to a GPU. Both are MemoryObjs here whose tensor *is* the memory of the pool:

  allocate()         a page that marud gave this process, writable. Stored: the block stays pinned until LMCache drops it
  get_by_location()  a block that was retrieved, read-only, pinned until LMCache drops it

Where there is CUDA the tensor is pinned memory instead (staging.py says why): store() copies it into the page, and what was
found is a copy, for which nothing in the pool is held.

LMCache takes an object, or None and computes the chunk; an exception it would not survive. So what is there and cannot be read
(damaged, of another layout, no pin left to hold it) is logged as an error, and None. So is everything once the pool is being
removed, which is logged once.

LMCache's lookups pin keys as well. Those of the asynchronous path no released version ends (0.5.6; its issue 3027), so here

  - the pin of a key ends with the pin of the object that was loaded for it;
  - the pins of the keys from the first that could not be loaded end when LMCache stops reading there (the synchronous path
    reads on, and ends them itself);
  - the pin of an object ends with its last reference: LMCache drops what it has loaded and does not need without ending it.

"Drops it" is whichever comes first: its reference count (and pin count) reaching 0, or the object itself being gone. The Maru
back-end of LMCache keeps one reference for ever to what it has stored, so there it is the second. A tensor that was taken from
an object keeps the memory, too. Nothing else is held, so marud may evict whatever LMCache is not looking at.

Keys are LMCache's; weights_name.py says what they call the model.

The address in an object's metadata names a place of the handler, (region_id << 32) | page_index.

Thread safety: everything.
"""
from __future__ import annotations

import logging
import math
import os
import warnings
import weakref
from functools import partial
from typing import Optional, Union

import torch
from lmcache.v1.memory_management import (MemoryAllocatorInterface, MemoryFormat, MemoryObj, MemoryObjMetadata,
                                          TensorMemoryObj)
from lmcache.v1.storage_backend.abstract_backend import StorageBackendInterface

from maru import AllocHandle, MaruError, MaruHandler
from maru.arguments import Key, whole
from maru.errors import HandleUsedError, InvalidArgumentError, shown

from . import staging, weights_name

logger = logging.getLogger("maru")

# Blocks are read-only, on purpose; torch says so once for each process.
warnings.filterwarnings("ignore", message="The given buffer is not writable")

Shapes = Union[torch.Size, list[torch.Size]]
Dtypes = Union[torch.dtype, list[torch.dtype]]

# Versions that ask a back-end whether it keeps pins end them, too.
_LMCACHE_ENDS_LOOKUP_PINS = hasattr(StorageBackendInterface, "has_external_pin_state")

_NOTHING = torch.empty(0, dtype=torch.uint8)

# The methods that this calls. Another object may have them, too: a stand-in in a test, or a wrapper.
_CALLED = ("alloc", "free", "get_buffer_view", "get_owned_region_ids", "get_region_page_count", "healthcheck",
           "set_on_region_added")


def _copy(staged: torch.Tensor, gpu: int, page: memoryview) -> None:
    staging.wait_for(gpu)
    torch.frombuffer(page, dtype=torch.uint8).copy_(staged)


def _compute_us() -> int:
    """Of a token, as the environment says; 0: not known."""
    text = os.environ.get("MARU_COMPUTE_US", "0")
    if not text.isdecimal() or len(text) > 9:
        raise InvalidArgumentError(f"MARU_COMPUTE_US is {shown(text)}: set it to the microseconds in which the engine computes "
                                   "a token, or leave it out.")
    return int(text)


class PoolMemoryObj(TensorMemoryObj):  # type: ignore[misc]
    """A TensorMemoryObj in the pool, or staged for it: a page with the handle that it was allocated with, or a block with the
    key under which it was found."""

    def __init__(self, memory: torch.Tensor, metadata: MemoryObjMetadata, adapter: CxlMemoryAdapter,
                 handle: Optional[AllocHandle], key: Optional[Key]) -> None:
        super().__init__(memory, metadata, adapter)
        self.handle = handle
        self.key = key

    def unpin(self) -> bool:
        self.parent_allocator.end_lookup_pin(self)
        return bool(super().unpin())

    def ref_count_down(self) -> None:
        super().ref_count_down()
        while not _LMCACHE_ENDS_LOOKUP_PINS and self.get_ref_count() == 0 and self.is_pinned:
            self.unpin()

    def __del__(self) -> None:
        """Nothing to say about references that are left: the back-end leaves one with everything it stores."""


class CxlMemoryAdapter(MemoryAllocatorInterface):  # type: ignore[misc]
    def __init__(self, handler: MaruHandler, shapes: list[torch.Size], dtypes: list[torch.dtype], fmt: MemoryFormat,
                 chunk_size: int) -> None:
        missing = [name for name in _CALLED if not callable(getattr(handler, name, None))]
        if missing:
            raise InvalidArgumentError(f"A CxlMemoryAdapter takes a MaruHandler, or an object with its methods; "
                                       f"{type(handler).__name__} has no {missing[0]}().")
        weights_name.put_into(weights_name.metadata_of_caller(2))
        self._handler = handler
        self._shapes, self._dtypes = self._layout(shapes, dtypes)
        self._fmt = fmt
        self._chunk_size = whole(chunk_size)
        if not isinstance(fmt, MemoryFormat) or self._token_dimension(self._shapes[0]) >= len(self._shapes[0]):
            raise InvalidArgumentError(f"A chunk of shape {self._shapes[0]} has no format {shown(fmt)}.")
        self._tokens: int = self._shapes[0][self._token_dimension(self._shapes[0])]  # of a full chunk
        self._is_closed = False
        self._is_staged = staging.is_wanted()
        self._gpu = staging.device() if self._is_staged else -1  # of the thread that computes: the one that allocates
        # How many pages the handler may hold, for get_capacity_bytes.
        self._pages: dict[int, int] = {}
        self._objects: weakref.WeakSet[PoolMemoryObj] = weakref.WeakSet()
        full = self._bytes_of(self._shapes, self._dtypes)
        if full > chunk_size:
            raise InvalidArgumentError(f"A full chunk has {full} bytes, and chunk_size is {chunk_size}: make the handler with "
                                       f"chunk_size_bytes={full}.")
        if self._is_staged:
            logger.info("There is CUDA, which does not know the memory of the pool: chunks are copied through pinned memory.")
        if isinstance(handler, MaruHandler):
            handler._passes_over_unreadable = True
            handler._ends_pins_of_unread = not _LMCACHE_ENDS_LOOKUP_PINS
            handler._compute_us = _compute_us() * self._tokens
        handler.set_on_region_added(self._note_region)

    def _note_region(self, region_id: int, pages: int) -> None:
        self._pages[region_id] = pages
        for other in set(self._pages).difference(self._handler.get_owned_region_ids()):  # of another attachment
            self._pages.pop(other, None)

    # -- addresses ----------------------------------------------------------------------------------------------------

    @staticmethod
    def encode_address(region_id: int, page_index: int) -> int:
        return (region_id << 32) | page_index

    @staticmethod
    def decode_address(address: int) -> tuple[int, int]:
        return address >> 32, address & 0xFFFFFFFF

    # -- allocating ---------------------------------------------------------------------------------------------------

    def allocate(self, shapes: Shapes, dtypes: Dtypes, fmt: MemoryFormat = MemoryFormat.UNDEFINED,
                 allocator_type: Optional[str] = None) -> Optional[MemoryObj]:
        """None when nothing is to be allocated, or there is no memory; the log says why."""
        objects = self.batched_allocate(shapes, dtypes, 1, fmt, allocator_type)
        return None if not objects else objects[0]

    def batched_allocate(self, shapes: Shapes, dtypes: Dtypes, batch_size: int,
                         fmt: MemoryFormat = MemoryFormat.UNDEFINED,
                         allocator_type: Optional[str] = None) -> Optional[list[MemoryObj]]:
        """All or nothing."""
        shapes, dtypes = self._layout(shapes, dtypes)
        batch_size = whole(batch_size)
        if batch_size < 0 or not isinstance(fmt, MemoryFormat):
            raise InvalidArgumentError(f"A batch has 0 chunks or more of a MemoryFormat, not {shown(batch_size)} of "
                                       f"{shown(fmt)}.")
        nbytes = self._bytes_of(shapes, dtypes)
        if nbytes == 0 or self._is_closed:
            return None
        handles: list[AllocHandle] = []
        memory: Optional[list[torch.Tensor]] = None
        try:
            for _ in range(batch_size):
                handles.append(self._handler.alloc(nbytes))
            memory = self._memory_to_fill(handles)
        except (MaruError, MemoryError) as error:
            logger.warning("Not allocated, %d chunks of %d bytes: %s", batch_size, nbytes, error)
        if memory is None:
            for handle in handles:
                self._give_back(handle)
            return None
        fmt = self._fmt if fmt == MemoryFormat.UNDEFINED else fmt
        return [self._object(tensor, shapes, dtypes, fmt, handle.region_id, handle.page_index, 1, handle, None)
                for tensor, handle in zip(memory, handles)]

    def _memory_to_fill(self, handles: list[AllocHandle]) -> Optional[list[torch.Tensor]]:
        """That of the handles, or what is copied there when they are stored; None when there is not enough."""
        if not self._is_staged:
            return [torch.frombuffer(handle.buf, dtype=torch.uint8) for handle in handles]
        self._gpu = staging.device()
        memory = []
        for handle in handles:
            staged = staging.allocate(handle.size)
            if staged is None:
                return None
            handle._fill = partial(_copy, staged, self._gpu)
            memory.append(staged)
        return memory

    def _object(self, memory: torch.Tensor, shapes: list[torch.Size], dtypes: list[torch.dtype], fmt: MemoryFormat,
                region_id: int, page_index: int, references: int, handle: Optional[AllocHandle],
                key: Optional[Key]) -> PoolMemoryObj:
        metadata = MemoryObjMetadata(shape=shapes[0], dtype=dtypes[0], address=self.encode_address(region_id, page_index),
                                     phy_size=memory.numel(), ref_count=references, fmt=fmt, shapes=list(shapes),
                                     dtypes=list(dtypes))
        made = PoolMemoryObj(memory, metadata, self, handle, key)
        self._objects.add(made)
        return made

    @staticmethod
    def _layout(shapes: Shapes, dtypes: Dtypes) -> tuple[list[torch.Size], list[torch.dtype]]:
        sizes = [shapes] if isinstance(shapes, torch.Size) else shapes
        numbers = [dtypes] if isinstance(dtypes, torch.dtype) else dtypes
        if (not isinstance(sizes, (list, tuple)) or not isinstance(numbers, (list, tuple)) or not sizes
                or len(sizes) != len(numbers) or not all(isinstance(size, torch.Size) for size in sizes)
                or not all(isinstance(number, torch.dtype) for number in numbers)):
            raise InvalidArgumentError("A torch.Size and a torch.dtype are wanted, or as many of the one as of the other, one "
                                       f"at least; not {shown(shapes)} and {shown(dtypes)}.")
        return list(sizes), list(numbers)

    @staticmethod
    def _bytes_of(shapes: list[torch.Size], dtypes: list[torch.dtype]) -> int:
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))

    def free(self, memory_obj: MemoryObj, allocator_type: Optional[str] = None) -> None:
        """Called by the object when nobody refers to it any more. May be called again."""
        if not isinstance(memory_obj, PoolMemoryObj) or not memory_obj.is_valid():
            return
        memory_obj.invalidate()
        if self._is_staged and memory_obj.key is not None:
            staging.wait_for(self._gpu)  # torch gives the memory to the next who asks
        memory_obj.raw_data = _NOTHING  # with it goes the pin, or the page, unless somebody still has a tensor
        handle, memory_obj.handle = memory_obj.handle, None
        if handle is not None and not handle.is_spent:
            self._give_back(handle)

    def _give_back(self, handle: AllocHandle) -> None:
        try:
            self._handler.free(handle)
        except MaruError as error:
            logger.debug("The page went with its handler: %s", error)

    def end_lookup_pin(self, memory_obj: PoolMemoryObj) -> None:
        """Called when a pin of an object ends, which only the asynchronous path takes."""
        if _LMCACHE_ENDS_LOOKUP_PINS or memory_obj.key is None or memory_obj.metadata.pin_count == 0:
            return
        try:
            self._handler.unpin(memory_obj.key)
        except MaruError as error:
            logger.debug("The pin went with its handler: %s", error)

    def batched_free(self, memory_objs: list[MemoryObj], allocator_type: Optional[str] = None,
                     update_stats: bool = True) -> None:
        for memory_obj in memory_objs:
            self.free(memory_obj, allocator_type)

    # -- storing and finding ------------------------------------------------------------------------------------------

    def create_store_handle(self, memory_obj: MemoryObj) -> AllocHandle:
        """What MaruHandler.store() takes for an object of allocate()."""
        handle = getattr(memory_obj, "handle", None)
        if handle is None:
            raise HandleUsedError("This object was not allocated here, or was freed already: only what allocate() returned "
                                  "can be stored.")
        return handle  # type: ignore[no-any-return]

    def get_by_location(self, region_id: int, page_index: int, actual_size: int,
                        single_token_size: int) -> Optional[MemoryObj]:
        """The object for a MemoryInfo that is still held. A block with fewer tokens than a chunk has a smaller shape. None when
        nothing is held there, or no chunk of this model in this layout, or no memory for it; the log says which. Its reference
        count is 0: the caller takes the first one."""
        region_id, page_index, actual_size, single_token_size = map(whole, (region_id, page_index, actual_size,
                                                                            single_token_size))
        memory = self._handler.get_buffer_view(region_id, page_index * self._chunk_size, actual_size)
        if memory is None:
            return None
        shapes = self._shapes_of(actual_size, single_token_size)
        if shapes is None:
            logger.error("A block has %d bytes, which are no chunk of at most %d tokens of %d bytes: another model or another "
                         "layout wrote under this key, which is taken for absent.", actual_size, self._tokens,
                         single_token_size)
            return None
        found: Optional[torch.Tensor] = torch.frombuffer(memory, dtype=torch.uint8)
        if self._is_staged:
            found = staging.copy_of(found)
        if found is None:
            return None
        key = self._handler._key_at(region_id, page_index) if isinstance(self._handler, MaruHandler) else None
        return self._object(found, shapes, self._dtypes, self._fmt, region_id, page_index, 0, None, key)

    def _shapes_of(self, nbytes: int, token_bytes: int) -> Optional[list[torch.Size]]:
        """None when no whole number of tokens, up to a chunk of them, has these bytes."""
        if nbytes == self._bytes_of(self._shapes, self._dtypes):
            return self._shapes
        if token_bytes <= 0:
            return None
        tokens, rest = divmod(nbytes, token_bytes)
        if rest != 0 or not 0 < tokens < self._tokens:
            return None
        shapes = [self._with_tokens(shape, tokens) for shape in self._shapes]
        return shapes if self._bytes_of(shapes, self._dtypes) == nbytes else None

    def _token_dimension(self, shape: torch.Size) -> int:
        """The format's; of a flat chunk the only one there is."""
        return int(self._fmt.token_dim()) if len(shape) > 1 else 0

    def _with_tokens(self, shape: torch.Size, tokens: int) -> torch.Size:
        dimension = self._token_dimension(shape)
        return torch.Size([*shape[:dimension], tokens, *shape[dimension + 1:]])

    # -- the rest of the interface ------------------------------------------------------------------------------------

    def ensure_region_pool(self, region_id: int) -> bool:
        """Whether there is such a region; nothing has to be built for it."""
        return self._handler.get_region_page_count(region_id) is not None

    def get_capacity_bytes(self) -> int:
        """What the handler may hold allocated and not stored."""
        return sum(self._pages.values()) * self._chunk_size

    def close(self) -> None:
        """Frees what was allocated and not stored, and lets go of what was found. Tensors stay readable."""
        self._is_closed = True
        self._handler.set_on_region_added(None)
        while True:
            try:
                objects = list(self._objects)
                break
            except RuntimeError:  # another thread has added one meanwhile
                continue
        for memory_obj in objects:
            self.free(memory_obj)

    def memcheck(self) -> bool:
        return self._handler.healthcheck()
