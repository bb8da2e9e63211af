"""The hashes under which inference engines know blocks of tokens, bit for bit.

    >>> from maru import tokens
    >>> root = tokens.root("sha256_cbor", seed="0")
    >>> keys = tokens.lmcache(prompt)                      # its server: an n x 32 array, what Client.match_prefix takes
    >>> names = tokens.lmcache_engine(prompt, parent=root) # LMCache within an engine's process
    >>> keys = tokens.vllm(prompt, parent=root)

A prompt is an array or a sequence of token numbers; one of dtype uint32 without gaps is read where it lies. Only whole blocks
are hashed. The GIL is not held meanwhile. Everything that cannot be hashed raises InvalidArgumentError.
"""
from __future__ import annotations

import operator
from typing import Any, Optional, Sequence, Union

import numpy
from numpy.typing import NDArray

from . import _tokens
from .errors import InvalidArgumentError, shown

# The names that vLLM (--prefix-caching-hash-algo) and LMCache (--hash-algorithm) have for them, and maru/tokens.h's numbers.
ALGORITHMS = {"blake3": 1, "sha256_cbor": 2, "sha256": 3, "xxhash_cbor": 4, "xxhash": 5}
_PICKLES = frozenset(("sha256", "xxhash"))
BLOCK_TOKENS_MAX = 4096
TOKENS_MAX = 1 << 26

Tokens = Union[Sequence[int], NDArray[Any]]


def lmcache(tokens: Tokens, chunk_tokens: int = 256, *, algorithm: str = "blake3",
            parent: Optional[bytes] = None) -> NDArray[numpy.uint8]:
    """The chunk hashes of LMCache's multiprocess server, one a row. parent: the hash of the chunk before; None is the beginning
    of a prompt for an LMCache beside which there is no vLLM (where there is one, LMCache takes vLLM's: see root)."""
    return _chain(algorithm, tokens, chunk_tokens, root(algorithm) if parent is None else parent)


def lmcache_engine(tokens: Tokens, chunk_tokens: int = 256, *, parent: Union[int, numpy.uint64, bytes],
                   algorithm: str = "sha256_cbor") -> NDArray[numpy.uint64]:
    """The chunk hashes of LMCache within an engine's process, as in its CacheEngineKey. algorithm: its
    pre_caching_hash_algorithm. parent: the hash of the chunk before; at the beginning of a prompt root(algorithm, seed=...) of
    the engine, or 0 where LMCache found no vLLM that has one."""
    number = _number(algorithm)
    if algorithm == "blake3":
        raise InvalidArgumentError("blake3 is an algorithm of LMCache's multiprocess server alone: lmcache().")
    if isinstance(parent, bytes):
        if len(parent) < 8:
            raise InvalidArgumentError(f"parent is the number or the bytes of a hash, 8 at least, not {shown(parent)}.")
        parent = int.from_bytes(parent[:8], "big")
    before = _word("parent", parent)
    return _tokens.lmcache_engine(number, before, _block(chunk_tokens), _read(tokens))


def vllm(tokens: Tokens, block_tokens: int = 16, *, parent: bytes, algorithm: str = "sha256_cbor",
         lora_name: Optional[str] = None, lora_path: Optional[str] = None, cache_salt: Optional[str] = None,
         extra_keys: str = "tagged") -> NDArray[numpy.uint8]:
    """vLLM's block hashes, one a row. parent: the hash of the block before, or root(algorithm, seed=...) of the engine.
    lora_name, lora_path: of the request's LoRARequest. The salt counts for the first block of the tokens alone: give it only
    where that begins the prompt. extra_keys: "tagged", as vLLM 0.33 writes LoRA and salt, or "bare", as it did until the middle
    of 2026, when the path did not count. Prompts with images and the like have further keys, so their hashes must come from
    vLLM. So must, with "sha256" and "xxhash", those where two of name, path, salt and vLLM's tags ("lora", "cache_salt") are
    equal: how a pickle looks then depends on vLLM's objects."""
    return _chain(algorithm, tokens, block_tokens, parent, lora_name, lora_path, cache_salt, extra_keys)


def dynamo(tokens: Tokens, block_tokens: int, *, salt: int = 1337,
           parent: Union[int, numpy.uint64, None] = None) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]:
    """Dynamo's hashes of the blocks alone, and of the sequences up to them. parent: the sequence hash of the block before."""
    prompt = _read(tokens)
    before = None if parent is None else _word("parent", parent)
    return _tokens.dynamo(_word("salt", salt), before, _block(block_tokens), prompt)


def root(algorithm: str, seed: Optional[str] = None) -> bytes:
    """What stands in for the hash before the first block. seed: what PYTHONHASHSEED says to vLLM, which takes random bytes
    where that is not set; None: what LMCache takes without vLLM."""
    number = _number(algorithm)
    if seed is not None and (algorithm == "blake3" or not _is_text(seed)):
        raise InvalidArgumentError("A seed is text of at most 255 bytes, for one of vLLM's algorithms; this is "
                                   f"{shown(seed)} for {algorithm}.")
    return _tokens.root(number, seed)


def _chain(algorithm: str, tokens: Tokens, block_tokens: int, parent: bytes, lora_name: Optional[str] = None,
           lora_path: Optional[str] = None, cache_salt: Optional[str] = None,
           extra_keys: str = "tagged") -> NDArray[numpy.uint8]:
    number = _number(algorithm)
    prompt = _read(tokens)
    block = _block(block_tokens)
    if not isinstance(parent, bytes) or not 1 <= len(parent) <= 255:
        raise InvalidArgumentError(f"parent is the bytes of a hash, 1 to 255, not {shown(parent)}.")
    for name, text, most in (("lora_name", lora_name, 255), ("lora_path", lora_path, 4096), ("cache_salt", cache_salt, 255)):
        if text is not None and (algorithm == "blake3" or not _is_text(text, most)):
            raise InvalidArgumentError(f"{name} is text of at most {most} bytes, for one of vLLM's algorithms; this is "
                                       f"{shown(text, 300)} for {algorithm}.")
    if not isinstance(extra_keys, str) or extra_keys not in ("tagged", "bare"):
        raise InvalidArgumentError(f'extra_keys is "tagged" or "bare", not {shown(extra_keys)}.')
    lora_name, lora_path, cache_salt = lora_name or None, lora_path or None, cache_salt or None  # empty: none, as to vLLM
    if (lora_path is not None) != (lora_name is not None and extra_keys == "tagged"):
        raise InvalidArgumentError("vLLM's tagged keys have the path of a LoRA beside its name (lora_path of its LoRARequest), "
                                   f"and there is none otherwise; these are lora_name={shown(lora_name)}, "
                                   f"lora_path={shown(lora_path)}, extra_keys={shown(extra_keys)}.")
    is_tagged = extra_keys == "tagged"
    texts = [text for text in (lora_name, lora_path, cache_salt) if text is not None]
    if is_tagged:
        texts += ["lora"] * (lora_name is not None) + ["cache_salt"] * (cache_salt is not None)
    if algorithm in _PICKLES and len(set(texts)) != len(texts):
        raise InvalidArgumentError(f"{algorithm} hashes a pickle, which has a text again or a reference to it, as equal ones "
                                   f"are two objects in vLLM or one; of {shown(texts, 300)} some are equal. Let vLLM use "
                                   f"{algorithm}_cbor, or have these hashes from it.")
    return _tokens.hash(number, prompt, block, parent, lora_name, lora_path, cache_salt, is_tagged)


def _number(algorithm: str) -> int:
    if isinstance(algorithm, str) and algorithm == "builtin":
        raise InvalidArgumentError('Python\'s hash() ("builtin") differs between processes, so what it names cannot be shared: '
                                   "let the engine use another algorithm.")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidArgumentError(f"There is no algorithm {shown(algorithm)}; there are {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[algorithm]


def _whole(value: Any) -> Optional[int]:
    """None for what is no whole number: also a bool, which is one to Python."""
    try:
        return None if isinstance(value, (bool, numpy.bool_)) else operator.index(value)
    except TypeError:
        return None


def _word(name: str, value: Any) -> int:
    number = _whole(value)
    if number is None or not 0 <= number < 1 << 64:
        raise InvalidArgumentError(f"{name} is a number of 64 bits, not {shown(value)}.")
    return number


def _block(block_tokens: Any) -> int:
    number = _whole(block_tokens)
    if number is None or not 1 <= number <= BLOCK_TOKENS_MAX:
        raise InvalidArgumentError(f"A block has 1 to {BLOCK_TOKENS_MAX} tokens, not {shown(block_tokens)}.")
    return number


def _is_text(text: object, bytes_max: int = 255) -> bool:
    try:
        return isinstance(text, str) and len(text.encode()) <= bytes_max and "\0" not in text
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _read(tokens: Tokens) -> NDArray[numpy.uint32]:
    if isinstance(tokens, numpy.ndarray) and tokens.dtype == numpy.uint32 and tokens.ndim == 1:
        array = tokens
    else:
        try:
            given = numpy.asarray(tokens)
            if given.size == 0 and given.ndim == 1:
                given = given.astype(numpy.uint32)
        except (ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"Tokens are numbers of 32 bits: {error}.") from None
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InvalidArgumentError(f"Tokens are one row of whole numbers, not {given.ndim} dimensions of {given.dtype}.")
        if given.size and (int(given.min()) < 0 or int(given.max()) >= 1 << 32):
            raise InvalidArgumentError(f"Tokens are 0 to 2^32 - 1; these are {given.min()} to {given.max()}.")
        array = given.astype(numpy.uint32)
    if array.size > TOKENS_MAX:
        raise InvalidArgumentError(f"{array.size} tokens; one call takes {TOKENS_MAX}. Hash the rest with the last hash as "
                                   "parent.")
    return numpy.ascontiguousarray(array)
