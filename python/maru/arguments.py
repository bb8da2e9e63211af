"""What the calls of a MaruHandler are given, looked at before anything is done."""
from __future__ import annotations

import operator
from typing import Any, Sequence, TypeVar

from .config import is_truth
from .errors import InvalidArgumentError, shown

_Item = TypeVar("_Item")


def whole(value: Any) -> int:
    try:
        if not is_truth(value):
            return operator.index(value)
    except TypeError:
        pass
    raise InvalidArgumentError(f"A whole number is wanted, not {shown(value)}.")


def expect_text(key: str) -> None:
    if not isinstance(key, str):
        raise InvalidArgumentError(f"A key is a str of 1 to 4096 bytes, not {type(key).__name__}.")


def texts_of(keys: Sequence[str]) -> list[str]:
    texts = list_of(keys, "keys")
    for key in texts:
        expect_text(key)
    return texts


def list_of(values: Sequence[_Item], what: str) -> list[_Item]:
    # A number of NumPy has items, too, but no dimension.
    if (isinstance(values, (str, bytes, type)) or not hasattr(values, "__getitem__") or getattr(values, "ndim", 1) == 0
            or (isinstance(values, memoryview) and getattr(values, "ndim", 1) > 1)):  # of which Python makes no list
        raise InvalidArgumentError(f"A batch wants a sequence of {what}, not {type(values).__name__}.")
    return list(values)
