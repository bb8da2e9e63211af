"""What the calls of a MaruHandler are given, looked at before anything is done."""
from __future__ import annotations

import operator
from typing import Any, Sequence, TypeVar, Union

from ._maru import _client_key
from .config import is_truth
from .errors import InvalidArgumentError, shown
from .records import Digest

# Of a MaruHandler. bytes: also a Digest. int: of any size, and another key than its digits.
Key = Union[str, bytes, int]
ClientKey = Union[str, bytes]
# Equal for what is one key to libmaru, and for nothing else; hashable. Bytes that are no UTF-8 and digests say which they are.
KeyName = Union[str, tuple[bytes, str]]

_Item = TypeVar("_Item")


def whole(value: Any) -> int:
    try:
        if not is_truth(value):
            return operator.index(value)
    except TypeError:
        pass
    raise InvalidArgumentError(f"A whole number is wanted, not {shown(value)}.")


def client_key(key: Key) -> ClientKey:
    return key if type(key) is str and key else _client_key(key)


def client_keys(keys: Sequence[Key]) -> list[ClientKey]:
    return [key if type(key) is str and key else _client_key(key) for key in keys]


def name_of(key: ClientKey) -> KeyName:
    if type(key) is str:
        return key
    if isinstance(key, str):
        return str.__str__(key)  # without what its class makes of comparing and hashing
    if isinstance(key, Digest):
        return key, "digest"
    if not isinstance(key, bytes):
        raise InvalidArgumentError(f"A key is a str of up to 4096 bytes, bytes, an int or a Digest, not {type(key).__name__}.")
    plain = bytes.__getitem__(key, slice(None))
    try:
        return plain.decode()  # a str is its UTF-8
    except UnicodeDecodeError:
        return plain, "bytes"


def names_of(keys: Sequence[ClientKey]) -> list[KeyName]:
    return [key if type(key) is str else name_of(key) for key in keys]


def expect_possible(key: ClientKey) -> None:
    """Raises for a str or bytes that nothing can be stored under."""
    try:
        size = bytes.__len__(key) if isinstance(key, bytes) else len(str.encode(key))
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"A key is a str without surrogates, or bytes; this one: {error}.") from None
    if not 1 <= size <= 4096:
        raise InvalidArgumentError(f"A key of {size} bytes; 1 to 4096 are possible. Use a Digest of what is longer.")


def list_of(values: Sequence[_Item], what: str) -> list[_Item]:
    # A number of NumPy has items, too, but no dimension.
    if (isinstance(values, (str, bytes, type)) or not hasattr(values, "__getitem__") or getattr(values, "ndim", 1) == 0
            or (isinstance(values, memoryview) and getattr(values, "ndim", 1) > 1)):  # of which Python makes no list
        raise InvalidArgumentError(f"A batch wants a sequence of {what}, not {type(values).__name__}.")
    return list(values)
