"""What the metadata of a pool's block says of the tokens whose keys and values it holds, for maru-eventd, which tells routers.
docs/events.md, "Tokens", has the form."""
from __future__ import annotations

import struct
from typing import Optional, Sequence

VERSION = 1
BLOCK_SIZE_MAX = 4096
TEXT_BYTES_MAX = 1024
RANKS_MAX = 1024


def encode(tokens: Sequence[int], block_size: int, *, hashes: Optional[Sequence[int]] = None, parent: Optional[int] = None,
           lora: str = "", salt: str = "", rank: int = 0, ranks: int = 1) -> bytes:
    """The metadata of a block with these tokens, which are one or more of the engine's blocks of block_size tokens each.

    hashes: the engine's hash of each of its blocks, as its own events have it, of which the last 64 bits count. Without them
    maru-eventd computes hashes from the tokens, which the engine's own events do not have. parent: the hash of the engine's
    block before; without it that of the block's parent in the pool counts. rank, ranks: which part of the engine's blocks this
    is, and of how many. Raises ValueError for what maru-eventd would refuse."""
    blocks, rest = divmod(len(tokens), block_size) if 1 <= block_size <= BLOCK_SIZE_MAX else (0, 0)
    if blocks == 0 or rest:
        raise ValueError(f"{len(tokens)} tokens in blocks of {block_size}; expected whole blocks of 1 to {BLOCK_SIZE_MAX}.")
    if hashes is not None and len(hashes) != blocks:
        raise ValueError(f"{len(hashes)} hashes for {blocks} blocks.")
    if not 0 <= rank < ranks <= RANKS_MAX:
        raise ValueError(f"rank {rank} of {ranks}; expected ranks of up to {RANKS_MAX}.")
    pairs = [_text("maru") + _number(VERSION), _text("block_size") + _number(block_size),
             _text("tokens") + _binary(struct.pack(f"<{len(tokens)}I", *tokens))]
    if hashes is not None:
        pairs.append(_text("hashes") + _binary(b"".join(_low_64(one) for one in hashes)))
    if parent is not None:
        pairs.append(_text("parent") + b"\xcf" + _low_64(parent))
    for name, value in (("lora", lora), ("salt", salt)):
        if len(value.encode()) > TEXT_BYTES_MAX:
            raise ValueError(f"{name} has {len(value.encode())} bytes; expected at most {TEXT_BYTES_MAX}.")
        if value:
            pairs.append(_text(name) + _text(value))
    if ranks > 1:
        pairs += [_text("rank") + _number(rank), _text("ranks") + _number(ranks)]
    return bytes([0x80 | len(pairs)]) + b"".join(pairs)


# MessagePack, as far as this needs it: the package depends on nothing.


def _low_64(number: int) -> bytes:
    return (number & (1 << 64) - 1).to_bytes(8, "big")


def _number(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else b"\xcd" + value.to_bytes(2, "big")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return (bytes([0xa0 | len(encoded)]) if len(encoded) < 32 else b"\xda" + len(encoded).to_bytes(2, "big")) + encoded


def _binary(value: bytes) -> bytes:
    length = b"\xc5" + len(value).to_bytes(2, "big") if len(value) < 1 << 16 else b"\xc6" + len(value).to_bytes(4, "big")
    return length + value
