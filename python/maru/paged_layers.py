"""The KV cache of an engine's layers as it lies in its memory: one tensor a layer, in blocks of tokens. Copies the blocks of a
chunk, of all layers, into one buffer and back, byte by byte."""
from __future__ import annotations

import ctypes
from typing import Any, Mapping, Optional, Sequence

import numpy
import torch

from . import _paged
from .chunk_keys import Value
from .errors import InvalidArgumentError


class PagedLayers:
    """In a buffer the layers follow each other in the order in which they were given; the blocks of each lie side by side."""

    def __init__(self, layers: Mapping[str, torch.Tensor], blocks: int) -> None:
        if not layers:
            raise InvalidArgumentError("The engine has registered no layer with a KV cache.")
        self._names: list[str] = []
        self._shapes: list[Value] = []
        self.numbers: dict[str, int] = {}  # of the layers, by all of their names
        seen: dict[tuple[object, ...], int] = {}
        # By block, then the bytes of a block in the order in which the engine counts its dimensions.
        self._layers: list[torch.Tensor] = []
        for name, tensor in layers.items():
            if not isinstance(tensor, torch.Tensor):
                raise InvalidArgumentError(f"The KV cache of layer {name} is a {type(tensor).__name__}, not a tensor: layers "
                                           "that keep a state (Mamba) cannot be shared in chunks.")
            # Layers may share the KV cache of another one (Gemma 3n): it is copied once.
            place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
            self.numbers[name] = seen.setdefault(place, len(self._layers))
            if self.numbers[name] < len(self._layers):
                continue
            dimension = _block_dimension(name, tuple(tensor.shape), blocks)
            # A kernel may want smaller blocks than the engine counts in: then several are one.
            by_block = tensor.unflatten(dimension, (blocks, -1)).movedim(dimension, 0).movedim(dimension + 1, 1)
            if by_block.stride(-1) != 1:
                raise InvalidArgumentError(f"The KV cache of layer {name} has strides {tuple(tensor.stride())}; the last "
                                           "dimension must be contiguous.")
            self._layers.append(by_block.view(torch.uint8))
            self._names.append(name)
            self._shapes.append([tensor.device.type, str(tensor.dtype), *by_block.shape[1:]])
        self._sizes = [layer[0].numel() for layer in self._layers]
        # In the processor's memory a copy is made here, of bytes: torch would make a loop over indices, in parallel, for each
        # layer, and wait for all of its threads each time, which on a busy machine takes far longer than the copy.
        self._native: Optional[_paged.Layers] = None
        if all(layer.device.type == "cpu" for layer in self._layers):
            self._native = _paged.Layers([(layer.data_ptr(), tuple(layer.shape), tuple(layer.stride()))
                                          for layer in self._layers])

    @property
    def is_in_processor_memory(self) -> bool:
        """Then any thread may copy."""
        return self._native is not None

    @property
    def by_block(self) -> list[torch.Tensor]:
        """Each layer, as it lies in memory: blocks, then the bytes of a block in the order that they have in a buffer."""
        return self._layers

    @property
    def block_bytes(self) -> int:
        """Of all layers."""
        return sum(self._sizes)

    @property
    def layout(self) -> Value:
        """What must be equal for the bytes of a block to mean the same: which layers these are, in which order, and of what."""
        uniform = all(shape == self._shapes[0] for shape in self._shapes)
        return [list(self._names), self._shapes[:1] if uniform else self._shapes]

    def gather(self, blocks: Sequence[int], into: Any) -> None:
        """Copies the blocks into a buffer of len(blocks) * block_bytes."""
        if self._native is not None:
            self._native.gather(blocks, into)
            return
        flat = torch.frombuffer(into, dtype=torch.uint8)
        offset = 0
        for layer, size in zip(self._layers, self._sizes):
            index = torch.tensor(blocks, dtype=torch.long, device=layer.device)
            part = flat[offset:offset + size * len(blocks)].view(len(blocks), *layer.shape[1:])
            part.copy_(layer.index_select(0, index))
            offset += part.numel()

    def scatter(self, blocks: Sequence[int], data: Any, skip: int = 0) -> None:
        """Copies len(blocks) of the blocks in a buffer that gather wrote, without the first skip, into these."""
        if self._native is not None:
            self._native.scatter(blocks, data, skip)
            return
        flat = torch.from_numpy(writable(data))
        total, offset = flat.numel() // self.block_bytes, 0
        for layer, size in zip(self._layers, self._sizes):
            part = flat[offset + skip * size:offset + (skip + len(blocks)) * size].view(len(blocks), *layer.shape[1:])
            index = torch.tensor(blocks, dtype=torch.long, device=layer.device)
            layer.index_copy_(0, index, part.to(layer.device))
            offset += total * size


def _block_dimension(name: str, shape: tuple[int, ...], blocks: int) -> int:
    """Engines number blocks in the first dimension, or in the second behind one for keys and values."""
    candidates = [i for i in (0, 1) if len(shape) > i + 1 and shape[i] == blocks]
    if not candidates:
        candidates = [i for i in (0, 1) if len(shape) > i + 1 and shape[i] % blocks == 0]
    if candidates == [0, 1]:
        candidates = [1] if shape[0] == 2 and len(shape) > 3 else [0]
    if len(candidates) != 1:
        raise InvalidArgumentError(f"The KV cache of layer {name} has the shape {shape}; one of the first two dimensions "
                                   f"should be the {blocks} blocks.")
    return candidates[0]


def writable(data: Any) -> Any:
    """An array over read-only memory that torch takes without a warning; nothing here writes to it."""
    view = numpy.frombuffer(data, dtype=numpy.uint8)
    memory = (ctypes.c_ubyte * view.nbytes).from_address(view.ctypes.data)
    return numpy.ctypeslib.as_array(memory)
