"""Copies of blocks of a KV cache in the processor's memory; maru.paged_layers is what to use."""
from typing import Any, Sequence

class Layers:
    def __init__(self, layers: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> None:
        """Each: the address of its first byte, its shape in bytes with the blocks first, and its strides in bytes. The memory
        must stay as long as this is used."""
    def gather(self, blocks: Sequence[int], into: Any) -> None: ...
    def scatter(self, blocks: Sequence[int], data: Any, skip: int = 0) -> None: ...
