"""Copies of blocks of a KV cache between the memory of a GPU and pages of a pool, on streams of their own.

A block of a layer is small, and its parts may lie apart. So a kernel gathers the blocks of a chunk into a buffer on the GPU,
and one copy takes them from there to the pool; a load goes the other way. Where CUDA knows the pages (registered_pool.py) they
are copied from and to where they lie. Otherwise the processor copies them once more, through page-locked memory of torch's.

Events order the engine's own stream and those of here, and a load from registered pages waits for nothing. A load of other
pages copies on the thread that asks for it, and waits for its buffers once two are under way. A store begins after an event of
the engine's (`now`), and returns when all of it is in the pool's pages. A load begins after one, too, and its `Loading` has the
events that what reads the blocks has to wait for.

Engines make and use their KV cache in torch's inference mode, which is a thread's own. So all of this is in that mode.

The buffers and the numbers of blocks belong to the stream that uses them, so torch gives their memory to nobody before the
stream is done with it, and record_stream() is not needed. The KV cache itself is the engine's for as long as it runs.

Thread safety: stores are made by one thread at a time, and loads by one; the two may be others.
"""
from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy
import torch

from . import registered_pool
from .errors import MaruError
from .registered_pool import Registered, RegisteredPool

BUFFER_BYTES = 32 << 20  # on the GPU, for each direction; more where one layer of a chunk has more
STAGED = 2  # chunks that are in page-locked memory at once, in each direction


class DeviceCopyError(MaruError):
    """CUDA has not copied. Nothing of it is under way any more."""


@dataclass(frozen=True)
class Chunk:
    """The KV cache of some blocks, of all layers, in memory that stays as long as the copy takes."""

    blocks: Sequence[int]
    address: int
    skip: int = 0  # blocks in the memory before those

    @classmethod
    def at(cls, blocks: Sequence[int], memory: Any, skip: int = 0) -> Chunk:
        return cls(blocks, int(numpy.frombuffer(memory, dtype=numpy.uint8).ctypes.data), skip)


class Loading:
    """A load under way."""

    def __init__(self, done: Any, layers: Sequence[Any], uses: list[Registered]) -> None:
        self._uses = uses
        self._done = done
        self.layers = layers  # an event for each layer, where they were asked for; what comes later is in later layers
        self.done = done

    def wait(self) -> None:
        """Until it has ended. Raises DeviceCopyError when not all was copied."""
        try:
            self._done.synchronize()
        except RuntimeError as error:
            raise DeviceCopyError(f"CUDA: {error}") from None
        finally:
            self.end()

    def end(self) -> None:
        uses, self._uses = self._uses, []
        for use in uses:
            use.release()


class _Side:
    """What one direction has for itself."""

    def __init__(self, runtime: Any, nbytes: int) -> None:
        self.stream = runtime.stream()
        self.buffer: Optional[torch.Tensor] = None
        self.staged: list[Optional[_Staged]] = [None] * STAGED
        self.next = 0

        def allocate() -> None:
            self.buffer = runtime.empty(nbytes)

        self.run(allocate)

    def run(self, work: Callable[[], None]) -> None:
        def in_mode() -> None:
            with torch.inference_mode():
                work()

        self.stream.run(in_mode)


class _Staged:
    """Page-locked memory, what happens when the stream is done with it, and the page that then gets it."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.done: Any = None
        self.page: Optional[torch.Tensor] = None

    def settle(self) -> None:
        done, self.done = self.done, None
        page, self.page = self.page, None
        if done is not None:
            done.synchronize()
        if page is not None:
            page.copy_(self.memory[:page.numel()])


class DeviceCopies:
    def __init__(self, layers: Sequence[torch.Tensor], runtime: Any, chunk_blocks: int) -> None:
        """layers: by block, then the bytes of a block, on the GPU of the runtime. chunk_blocks: of the largest chunk. Raises
        RuntimeError when the GPU has no memory for the buffers."""
        self._runtime = runtime
        self._layers = _widest(layers)
        self._sizes = [layer[0].numel() for layer in layers]
        self._block_bytes = sum(self._sizes)
        largest = max(self._sizes)
        nbytes = max(min(self._block_bytes * chunk_blocks, BUFFER_BYTES), largest * chunk_blocks)
        self._buffer_bytes = nbytes
        self._stores, self._loads = _Side(runtime, nbytes), _Side(runtime, nbytes)

    def begin_thread(self) -> None:
        """In each thread of our own."""
        self._runtime.begin_thread()

    def now(self) -> Any:
        """An event after all that the calling thread's stream has been given so far."""
        event = self._runtime.event()
        self._runtime.current_stream().record(event)
        return event

    def hold_back(self, event: Any) -> None:
        """What the calling thread's stream is given from here on comes after the event."""
        self._runtime.current_stream().wait(event)

    def registered(self, client: Any) -> Optional[RegisteredPool]:
        """None when the client's pool has gone."""
        return registered_pool.of(client, self._runtime)

    # -- stores -------------------------------------------------------------------------------------------------------

    def store(self, client: Any, after: Any, chunks: Sequence[Chunk]) -> None:
        """Copies blocks of the KV cache, as they are after the event, into buffers of the client. All of it is there when this
        returns. Raises DeviceCopyError."""
        side, pool, uses = self._stores, self.registered(client), _Uses()
        with torch.inference_mode(), self._undoing(side, uses):
            self._runtime.begin_thread()
            side.stream.wait(after)
            for chunk in chunks:
                nbytes = len(chunk.blocks) * self._block_bytes
                page = _memory(chunk.address, nbytes)
                use = pool.use(chunk.address, nbytes, writes=True) if pool is not None else None
                if use is not None:
                    uses.append(use)
                    self._gather(side, chunk, page, use.parts)
                    continue
                staged = self._take(side, nbytes)
                self._gather(side, chunk, staged.memory, [(0, nbytes)])
                staged.done, staged.page = self._event(side), page
            self._event(side).synchronize()
            for staged in filter(None, side.staged):
                staged.settle()
        uses.release()

    def _gather(self, side: _Side, chunk: Chunk, target: torch.Tensor, parts: Sequence[tuple[int, int]]) -> None:
        blocks, numbers = len(chunk.blocks), self._runtime.indices(chunk.blocks)
        offset = 0
        for first, end in self._groups(blocks):
            nbytes = sum(self._sizes[first:end]) * blocks
            side.run(self._gathering(side, numbers, first, end, target, _cut(parts, offset, nbytes)))
            offset += nbytes

    def _gathering(self, side: _Side, numbers: torch.Tensor, first: int, end: int, target: torch.Tensor,
                   parts: list[tuple[int, int]]) -> Callable[[], None]:
        def work() -> None:
            buffer = side.buffer
            assert buffer is not None
            index, place = numbers.to(self._runtime.device, non_blocking=True), 0
            for layer, size in zip(self._layers[first:end], self._sizes[first:end]):
                nbytes = size * len(numbers)
                torch.index_select(layer, 0, index, out=_shaped(buffer[place:place + nbytes], layer))
                place += nbytes
            begin = parts[0][0]
            for at, nbytes in parts:
                target[at:at + nbytes].copy_(buffer[at - begin:at - begin + nbytes], non_blocking=True)

        return work

    def _groups(self, blocks: int) -> Iterator[tuple[int, int]]:
        """Layers that follow each other, and fit into the buffer together."""
        first, nbytes = 0, 0
        for layer, size in enumerate(self._sizes):
            if layer > first and nbytes + size * blocks > self._buffer_bytes:
                yield first, layer
                first, nbytes = layer, 0
            nbytes += size * blocks
        yield first, len(self._sizes)

    # -- loads --------------------------------------------------------------------------------------------------------

    def load(self, client: Any, after: Any, chunks: Sequence[Chunk], chunk_blocks: int, by_layer: bool) -> Loading:
        """Begins to copy chunks from pages that the caller holds, each with so many blocks, into blocks of the KV cache, which
        nothing uses after the event. The pages stay held until the Loading has ended. Raises DeviceCopyError."""
        side, pool, uses = self._loads, self.registered(client), _Uses()
        nbytes = chunk_blocks * self._block_bytes
        with torch.inference_mode(), self._undoing(side, uses):
            side.stream.wait(after)
            in_place: list[tuple[Chunk, torch.Tensor, list[tuple[int, int]]]] = []
            for chunk in chunks:
                page = _memory(chunk.address, nbytes)
                use = pool.use(chunk.address, nbytes, writes=False) if pool is not None else None
                if use is not None:
                    uses.append(use)
                    in_place.append((chunk, page, use.parts))
                    continue
                staged = self._take(side, nbytes)
                staged.memory[:nbytes].copy_(page)
                for layer in range(len(self._layers)):
                    self._scatter(side, layer, [(chunk, staged.memory, [(0, nbytes)])], chunk_blocks)
                staged.done = self._event(side)
            batches = self._batches(in_place)
            layers = []
            for layer in range(len(self._layers)):
                for batch in batches:
                    self._scatter(side, layer, batch, chunk_blocks)
                if by_layer:
                    layers.append(self._event(side))
            return Loading(layers[-1] if layers else self._event(side), layers, list(uses))
        raise AssertionError  # _undoing raises

    def _batches(self, chunks: Sequence[Any]) -> list[list[Any]]:
        """Chunks of which a layer fits into the buffer."""
        batches: list[list[Any]] = []
        room = 0
        for one in chunks:
            nbytes = len(one[0].blocks) * max(self._sizes)
            if nbytes > room or not batches:
                batches.append([])
                room = self._buffer_bytes
            batches[-1].append(one)
            room -= nbytes
        return batches

    def _scatter(self, side: _Side, layer: int, batch: Sequence[tuple[Chunk, torch.Tensor, list[tuple[int, int]]]],
                 chunk_blocks: int) -> None:
        """One layer of some chunks."""
        numbers = self._runtime.indices([block for chunk, *_ in batch for block in chunk.blocks])
        size, before = self._sizes[layer], sum(self._sizes[:layer]) * chunk_blocks
        copies, place = [], 0
        for chunk, source, parts in batch:
            nbytes = len(chunk.blocks) * size
            for at, part in _cut(parts, before + chunk.skip * size, nbytes):
                copies.append((place, source[at:at + part]))
                place += part

        def work() -> None:
            buffer = side.buffer
            assert buffer is not None
            for at, source in copies:
                buffer[at:at + source.numel()].copy_(source, non_blocking=True)
            index, target = numbers.to(self._runtime.device, non_blocking=True), self._layers[layer]
            target.index_copy_(0, index, _shaped(buffer[:place], target))

        side.run(work)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _event(self, side: _Side) -> Any:
        event = self._runtime.event()
        side.stream.record(event)
        return event

    def _take(self, side: _Side, nbytes: int) -> _Staged:
        """Page-locked memory that the stream is done with."""
        place = side.next
        side.next = (place + 1) % STAGED
        staged = side.staged[place]
        if staged is None or staged.memory.numel() < nbytes:
            if staged is not None:
                staged.settle()
            staged = side.staged[place] = _Staged(self._runtime.host(nbytes))
        staged.settle()
        return staged

    @contextlib.contextmanager
    def _undoing(self, side: _Side, uses: _Uses) -> Iterator[None]:
        """When something fails: waits until nothing is under way, since what was copied from and to gets another use."""
        try:
            yield
        except BaseException as error:
            for staged in filter(None, side.staged):
                staged.done = staged.page = None
            with contextlib.suppress(RuntimeError):
                side.stream.synchronize()
            uses.release()
            if not isinstance(error, RuntimeError):
                raise
            raise DeviceCopyError(f"CUDA: {error}") from None


class _Uses(list[Registered]):
    def release(self) -> None:
        for use in self:
            use.release()
        self.clear()


def _memory(address: int, nbytes: int) -> torch.Tensor:
    """Bytes at an address, which this keeps from nobody. What is read there may be mapped for reading alone."""
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    return torch.from_numpy(numpy.ctypeslib.as_array(memory))


def _cut(parts: Sequence[tuple[int, int]], begin: int, nbytes: int) -> list[tuple[int, int]]:
    """The bytes from `begin` on, cut where a part ends: a copy that went over that would be refused."""
    cut = ((max(at, begin), min(at + size, begin + nbytes)) for at, size in parts)
    return [(at, end - at) for at, end in cut if at < end]


def _widest(layers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same bytes as the largest numbers that all layers consist of: a kernel takes one after the other."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        with contextlib.suppress(RuntimeError):
            return [layer.view(dtype) for layer in layers]
    return list(layers)


def _shaped(memory: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    """Bytes as blocks of a layer."""
    return memory.view(layer.dtype).view(-1, *layer.shape[1:])
