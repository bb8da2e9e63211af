"""Where the elements of a KV cache lie in memory, and copies between two layouts of the same tokens.

    >>> from maru import layout
    >>> whole = layout.Layout(layers=32, heads=8, head_dim=128, page_tokens=16, blocks=64, dtype="float16", order="hnd")
    >>> four = [whole.slice(4, rank) for rank in range(4)]        # the part of each of four tensor-parallel ranks
    >>> eight = [whole.slice(8, rank) for rank in range(8)]
    >>> plan = layout.Reslice(four, eight)
    >>> plan.copy(stored, buffers)                                # without the GIL

Offsets and sizes are in bytes. An offset counts from the address of its storage, brought to a multiple of the alignment. What a
layout cannot be, and what does not fit together, raises InvalidArgumentError, whose text says what was found and expected.
"""
from __future__ import annotations

import dataclasses
import errno
import operator
from typing import Any, Callable, Iterator, NamedTuple, NoReturn, Optional, Sequence, TypeVar

from . import _layout
from .errors import InvalidArgumentError, shown

KINDS = {"contiguous": 1, "separate_outer": 2, "separate_block": 3}
ORDERS = {"nhd": 1, "hnd": 2}
DTYPES = {"uint8": 1, "int8": 2, "float8_e4m3fn": 3, "float8_e5m2": 4, "float16": 5, "bfloat16": 6, "float32": 7, "float64": 8}

T = TypeVar("T")


class Sizes(NamedTuple):
    """What follows from a layout. A region holds the elements of one block, one layer, and either K or V."""
    element_bytes: int
    region_bytes: int
    outer_stride: int      # from K to V
    layer_stride: int      # 0 where each layer has a storage
    block_stride: int
    block_bytes: int       # all elements of a block, without padding
    storages: int          # how many; 1, or as many as layers
    storage_bytes: int     # of each
    allocation_bytes: int  # of each, wherever it begins


class Part(NamedTuple):
    """A piece of a storage."""
    storage: int
    offset: int
    bytes: int


class Run(NamedTuple):
    """One piece of a plan. Storages count through all layouts of a side."""
    source_storage: int
    source_offset: int
    target_storage: int
    target_offset: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """The blocks of a KV cache, or the part of them that one rank of a split model has.

    kind      "contiguous": one storage of blocks, layers, K and V. "separate_outer": a storage for each layer, of all K, then
              all V. "separate_block": a storage for each layer, of blocks, each with K and V. choose_kind() finds one.
    order     "nhd": in a region tokens come first, then heads. "hnd": heads, then tokens.
    outer     2: K and V. 1: one tensor for both, as latent attention (MLA) has.
    heads_total, first_head, layers_total, first_layer
              which part of the model this is; without them all of it. slice() fills them.
    """
    layers: int
    heads: int
    head_dim: int
    page_tokens: int
    blocks: int
    dtype: str = "bfloat16"
    kind: str = "contiguous"
    order: str = "nhd"
    outer: int = 2
    alignment: int = 1
    heads_total: int = 0
    first_head: int = 0
    layers_total: int = 0
    first_layer: int = 0

    def __post_init__(self) -> None:
        numbers = {field.name: _word(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)
                   if field.name not in ("dtype", "kind", "order")}
        if numbers["outer"] > 2:
            raise InvalidArgumentError(f"outer is {numbers['outer']}, expected 1 to 2")
        self._keep(_call(_layout.Layout, kind=_number(KINDS, "kind", self.kind), order=_number(ORDERS, "order", self.order),
                         dtype=_number(DTYPES, "dtype", self.dtype), **numbers))

    def _keep(self, native: _layout.Layout) -> None:
        # Zeros that stand for something get their values, so that equal layouts are equal.
        complete = _layout.Layout.decode(native.encode())
        object.__setattr__(self, "_native", complete)
        kind, order, dtype, *numbers = complete.fields()
        names = ("outer", "blocks", "layers", "page_tokens", "heads", "head_dim", "alignment", "heads_total", "first_head",
                 "layers_total", "first_layer")
        for name, value in (("kind", _name(KINDS, kind)), ("order", _name(ORDERS, order)), ("dtype", _name(DTYPES, dtype)),
                            *zip(names, numbers)):
            object.__setattr__(self, name, value)

    @property
    def native(self) -> _layout.Layout:
        native: _layout.Layout = object.__getattribute__(self, "_native")
        return native

    @classmethod
    def _of(cls, native: _layout.Layout) -> Layout:
        layout = cls.__new__(cls)
        layout._keep(native)
        return layout

    def __reduce__(self) -> tuple[Callable[[bytes], Layout], tuple[bytes]]:
        return Layout.decode, (self.encode(),)

    @property
    def sizes(self) -> Sizes:
        return Sizes(*self.native.measure())

    def locate(self, block: int, layer: int, outer: int = 0) -> Part:
        """Where a region lies; all indices count from 0 within this layout."""
        return Part(*_call(self.native.locate, _word("block", block), _word("layer", layer), _word("outer", outer)))

    def locate_element(self, block: int, layer: int, outer: int, token: int, head: int, dim: int) -> Part:
        """Where one element lies."""
        return Part(*_call(self.native.locate_element, _word("block", block), _word("layer", layer), _word("outer", outer),
                           _word("token", token), _word("head", head), _word("dim", dim)))

    def block_parts(self, block: int) -> list[Part]:
        """All of one block, as few pieces as there are, in the order layers, K and V."""
        return [Part(*part) for part in _call(self.native.block_parts, _word("block", block))]

    def slice(self, tensor_ranks: int, tensor_rank: int, pipeline_ranks: int = 1, pipeline_rank: int = 0) -> Layout:
        """The part that one rank has. Where there are more tensor ranks than heads, neighbouring ranks have the same head."""
        return Layout._of(_call(self.native.slice, _word("tensor_ranks", tensor_ranks), _word("tensor_rank", tensor_rank),
                                _word("pipeline_ranks", pipeline_ranks), _word("pipeline_rank", pipeline_rank)))

    def encode(self) -> bytes:
        """As bytes, the same on every machine, with a version and a checksum."""
        return self.native.encode()

    @staticmethod
    def decode(data: bytes) -> Layout:
        """The layout in such bytes; any others are refused."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgumentError(f"A layout is read from bytes, not from {shown(data)}.")
        return Layout._of(_call(_layout.Layout.decode, bytes(data)))

    def to_json(self) -> str:
        """As one JSON object."""
        return self.native.to_json()

    @staticmethod
    def from_json(text: str) -> Layout:
        """The layout in such an object; the members may stand in any order."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"JSON is text, not {shown(text)}.")
        return Layout._of(_call(_layout.Layout.from_json, text.encode(errors="surrogatepass")))

    @property
    def fingerprint(self) -> bytes:
        """16 bytes to mix into keys. They cover all but the number of blocks."""
        return self.native.fingerprint()


def choose_kind(wish: str, shape: Sequence[int], blocks: int, outer: int = 2) -> str:
    """The kind of a layout whose layers are tensors of this shape. wish: a kind, or "layer_separate", which leaves the order of
    K and V and of the blocks to the shape. A wish that contradicts the shape is refused: it would swap K and V."""
    if not isinstance(wish, str) or "\0" in wish:
        raise InvalidArgumentError(f"A kind is text, not {shown(wish)}.")
    extents = [_word("an extent of the shape", extent) for extent in shape]
    if _word("outer", outer) > 2:
        raise InvalidArgumentError(f"outer is {outer}, expected 1 or 2")
    number = _call(_layout.kind_from_text, wish.encode(errors="replace").decode())
    return _name(KINDS, _call(_layout.choose_kind, number, extents, _word("blocks", blocks), operator.index(outer)))


class Reslice:
    """A plan of copies that fill the blocks of all targets from the sources. It does not change: threads may share one.

    sources, targets               layouts of the same tokens; those of one side have equal blocks and page_tokens
    source_blocks, target_blocks   the blocks that hold the tokens and those to fill, in the order of the tokens; None: all
    """

    def __init__(self, sources: Sequence[Layout], targets: Sequence[Layout], source_blocks: Optional[Sequence[int]] = None,
                 target_blocks: Optional[Sequence[int]] = None) -> None:
        self._plan = _call(_layout.Plan, _natives("sources", sources), _natives("targets", targets),
                           _blocks("source_blocks", source_blocks), _blocks("target_blocks", target_blocks))
        (self.bytes, self.runs, self.run_bytes_min, self.run_bytes_max, self.moves, self.source_storages,
         self.target_storages) = self._plan.totals()

    def __iter__(self) -> Iterator[Run]:
        """Each run, for a caller that copies by itself."""
        first = 0
        while some := self._plan.runs(first, 1024):
            yield from (Run(*run) for run in some)
            first += len(some)

    def copy(self, sources: Sequence[Any], targets: Sequence[Any]) -> None:
        """Copies. Each is a buffer for one storage, without gaps: those of the first layout, then those of the second. Nobody
        may write the sources meanwhile. The GIL is not held."""
        try:
            _call(self._plan.copy, list(sources), list(targets))
        except (BufferError, TypeError, ValueError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(f"A storage is a buffer without gaps, and a target can be written: {error}.") from None


def _call(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    try:
        return call(*arguments, **named)
    except _layout.Refused as refused:
        _refuse(*refused.args)


def _refuse(code: int, reason: str) -> NoReturn:
    if code == errno.ENOMEM:
        raise MemoryError(reason)
    raise InvalidArgumentError(reason, code)


def _word(name: str, value: Any) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not 0 <= number < 1 << 64:
        raise InvalidArgumentError(f"{name} is a whole number of 64 bits, not {shown(value)}.")
    return number


def _number(names: dict[str, int], what: str, name: Any) -> int:
    if not isinstance(name, str) or name not in names:
        raise InvalidArgumentError(f"{what} is {shown(name)}, expected one of {', '.join(names)}")
    return names[name]


def _name(names: dict[str, int], number: int) -> str:
    return next(name for name, value in names.items() if value == number)


def _natives(what: str, layouts: Sequence[Layout]) -> list[_layout.Layout]:
    for layout in layouts:
        if not isinstance(layout, Layout):
            raise InvalidArgumentError(f"{what} are layouts, and {shown(layout)} is none.")
    return [layout.native for layout in layouts]


def _blocks(what: str, blocks: Optional[Sequence[int]]) -> Optional[list[int]]:
    return None if blocks is None else [_word(f"one of {what}", block) for block in blocks]
