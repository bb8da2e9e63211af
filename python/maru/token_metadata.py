"""The tokens of a block, as metadata of the block: for programs that tell routers which prompts a pool has.

The metadata is a map in MessagePack that begins with the key "maru". docs/events.md has the table of its keys; `maru-eventd`
reads the same map. A reader ignores keys that it does not know.
"""
from __future__ import annotations

import struct
from typing import Any, NamedTuple, Optional, Sequence, Union

_VERSION = 1
TEXT_BYTES_MAX = 1024  # of lora and of salt
_BLOCK_TOKENS_MAX, _RANKS_MAX = 4096, 1024

_Value = Union[int, str, bytes]


class TokenMetadata(NamedTuple):
    block_size: int  # tokens of one of the engine's blocks
    tokens: bytes  # 32 bits each, least significant byte first; a whole number of the engine's blocks
    hashes: bytes = b""  # of each of the engine's blocks 64 bits, most significant byte first; b"": not told
    parent: Optional[int] = None  # the hash of the engine's block before the first one; None: none, or not told
    lora: str = ""  # the adapter's name; "": none
    salt: str = ""  # the request's cache salt; "": none
    rank: int = 0  # the part of the engine's blocks that this block holds
    ranks: int = 1  # the number of parts
    family: bytes = b""  # equal for engines that find each other's chunks, apart from `layout`
    layout: bytes = b""  # equal for workers that can copy each other's chunks

    def encode(self) -> bytes:
        pairs: dict[str, _Value] = {"maru": _VERSION, "block_size": self.block_size, "tokens": self.tokens}
        if self.hashes:
            pairs["hashes"] = self.hashes
        if self.parent is not None:
            pairs["parent"] = self.parent
        if self.ranks > 1:
            pairs["rank"], pairs["ranks"] = self.rank, self.ranks
        for name in ("lora", "salt", "family", "layout"):
            if value := getattr(self, name):
                pairs[name] = value
        return bytes([0x80 | len(pairs)]) + b"".join(_packed(key) + _packed(value) for key, value in pairs.items())


def encode(tokens: Sequence[int], block_size: int, *, hashes: Optional[Sequence[int]] = None, parent: Optional[int] = None,
           lora: str = "", salt: str = "", rank: int = 0, ranks: int = 1) -> bytes:
    """The metadata of a block with these tokens: whole blocks of the engine, of block_size tokens each.

    hashes: the engine's hash of each of its blocks, as its own events have it; the last 64 bits count, and no two are equal.
    maru-eventd computes others from the tokens where the metadata has none. parent: the hash of the engine's block before,
    likewise, and none of `hashes`; without it that of the block's parent in the pool counts. Raises ValueError for values that
    maru-eventd would refuse."""
    known = b"".join(_low_64(one) for one in hashes) if hashes is not None else b""
    return _checked(TokenMetadata(block_size, struct.pack(f"<{len(tokens)}I", *tokens), known,
                                  int.from_bytes(_low_64(parent), "big") if parent is not None else None, lora, salt, rank,
                                  ranks)).encode()


def decode(metadata: bytes) -> Optional[TokenMetadata]:
    """None: the metadata is of another kind. Raises ValueError where a map of this kind is damaged."""
    reader = _Reader(metadata)
    try:
        pairs = reader.map_length()
        if pairs < 1 or reader.value() != "maru":
            return None
    except ValueError:
        return None
    version = reader.value()
    if version != _VERSION:
        raise ValueError(f"metadata with tokens has version {version!r}; {_VERSION} was expected.")
    found: dict[str, Any] = {}
    for _ in range(pairs - 1):
        key = reader.value()
        found[str(key)] = reader.value()
    fields: dict[str, Any] = {"block_size": None, "tokens": None}
    fields.update((name, found[name]) for name in TokenMetadata._fields if name in found)
    return _checked(TokenMetadata(**fields))


def _checked(made: TokenMetadata) -> TokenMetadata:
    def is_whole(value: object, least: int, most: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    block_bytes = 4 * made.block_size if is_whole(made.block_size, 1, _BLOCK_TOKENS_MAX) else 0
    if not block_bytes:
        raise ValueError(f"metadata with tokens has block_size {made.block_size!r}; 1 to {_BLOCK_TOKENS_MAX} was expected.")
    if not isinstance(made.tokens, bytes) or not made.tokens or len(made.tokens) % block_bytes:
        raise ValueError(f"metadata has no whole number of blocks of {made.block_size} tokens.")
    if not isinstance(made.hashes, bytes) or (made.hashes and len(made.hashes) * block_bytes != len(made.tokens) * 8):
        raise ValueError("metadata has another number of hashes than of blocks of tokens.")
    if made.parent is not None and not is_whole(made.parent, 0, (1 << 64) - 1):
        raise ValueError(f"metadata has {made.parent!r} for the hash of the block before.")
    hashes = [made.hashes[at:at + 8] for at in range(0, len(made.hashes), 8)]
    if len(set(hashes)) != len(hashes) or (made.parent is not None and _low_64(made.parent) in hashes):
        raise ValueError("metadata has one hash twice.")
    if not (is_whole(made.ranks, 1, _RANKS_MAX) and is_whole(made.rank, 0, made.ranks - 1)):
        raise ValueError(f"metadata has rank {made.rank!r} of {made.ranks!r}.")
    for name in ("lora", "salt"):
        text = getattr(made, name)
        if not isinstance(text, str) or len(text.encode(errors="surrogateescape")) > TEXT_BYTES_MAX:
            raise ValueError(f"metadata has no text of at most {TEXT_BYTES_MAX} bytes for {name}.")
    if not (isinstance(made.family, bytes) and isinstance(made.layout, bytes)):
        raise ValueError("metadata has no bytes for family or layout.")
    return made


def _low_64(number: int) -> bytes:
    return (number & (1 << 64) - 1).to_bytes(8, "big")


def _packed(value: _Value) -> bytes:
    if isinstance(value, int):
        return bytes([value]) if value < 0x80 else b"\xcf" + value.to_bytes(8, "big")
    if isinstance(value, str):
        text = value.encode()
        return (bytes([0xa0 | len(text)]) if len(text) < 32 else b"\xda" + struct.pack(">H", len(text))) + text
    return (b"\xc4" + bytes([len(value)]) if len(value) < 256 else b"\xc5" + struct.pack(">H", len(value))) + value


class _Reader:
    """MessagePack as far as map keys, texts, bytes, numbers and nil go; ValueError for anything else, and at the end."""

    _SIZES = {0xc4: ">B", 0xc5: ">H", 0xc6: ">I", 0xd9: ">B", 0xda: ">H", 0xdb: ">I"}
    _NUMBERS = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i",
                0xd3: ">q"}
    _CONSTANTS = {0xc0: None, 0xc2: False, 0xc3: True}

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at:self._at + count]
        if len(taken) != count:
            raise ValueError("metadata ends in the middle of a value.")
        self._at += count
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def map_length(self) -> int:
        first = self._take(1)[0]
        if first == 0xde:
            return int(self._number(">H"))
        if first & 0xf0 != 0x80:
            raise ValueError("metadata is no map.")
        return first & 0x0f

    def value(self) -> Any:
        first = self._take(1)[0]
        if first < 0x80:
            return first
        if first >= 0xe0:
            return first - 0x100
        if first & 0xe0 == 0xa0:
            return self._take(first & 0x1f).decode(errors="surrogateescape")
        if first in self._CONSTANTS:
            return self._CONSTANTS[first]
        if first in self._NUMBERS:
            return self._number(self._NUMBERS[first])
        if first not in self._SIZES:
            raise ValueError(f"metadata has a value of kind 0x{first:02x}; a number, a text or bytes was expected.")
        body = self._take(int(self._number(self._SIZES[first])))
        return body.decode(errors="surrogateescape") if first >= 0xd9 else body
