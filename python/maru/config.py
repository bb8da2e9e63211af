"""MaruConfig: what a MaruHandler is made with. The fields and defaults are those that connectors written for the older system
of this name use; what each does here, and which do nothing, docs/python/migration.md says."""
from __future__ import annotations

import logging
import operator
import os
import re
import uuid
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Optional, Union

from .address import parse, say_once
from .errors import InvalidArgumentError, shown

# This very text, made when this is loaded: an equal one was chosen by somebody.
UNCHOSEN = "://".join(("tcp", "localhost:5555"))

# As "4G", "1.5GB" and "64 MiB"; all of them with the units of 1024.
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([KMGT]?)(?:I?B)?", re.ASCII | re.IGNORECASE)
_SIZES = ("pool_size", "chunk_size_bytes", "expand_size")

_TRUE, _FALSE = frozenset(("1", "true", "yes", "on")), frozenset(("0", "false", "no", "off"))

# What is accepted and does nothing, with the value that needs no word about it.
_EXPLAINED = {
    "use_async_rpc": (True, "lookups and stores are no requests, so there is nothing to wait for"),
    "max_inflight": (64, "lookups and stores are no requests, so none are in flight"),
    "rm_address": ("127.0.0.1:9850", "marud is daemon and resource manager in one, and is found by server_url"),
    "eager_map": (True, "all of the pool is mapped when the handler connects, and read only where it is used"),
    "enable_stats": (False, "statistics are always kept and cost nothing; get_stats() has them"),
}


def is_truth(value: object) -> bool:
    """True or False, also NumPy's (without a look into NumPy, which need not be there), which before 1.25 were numbers."""
    return isinstance(value, bool) or type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


def _size_of(text: str) -> int:
    """In bytes, what is left of one dropped; 0 when it is no size."""
    found = _SIZE.fullmatch(text)
    return 0 if found is None else int(Fraction(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def _flag_of_environment(name: str, default: bool) -> bool:
    given = os.environ.get(name)
    if given is None:
        return default
    if given.strip().lower() in _TRUE:
        return True
    if given.strip().lower() in _FALSE:
        return False
    say_once(logging.WARNING, name, f"{name}={given!r} is neither true nor false (1, true, yes, on; 0, false, no, off): "
                                    f"{default} is used.")
    return default


@dataclass
class MaruConfig:
    """
    server_url        the path of marud's socket, or a URL: maru://, tcp://, unix:// (see maru.address)
    instance_id       names this handler in statistics; made up when None
    pool_size         bytes: what a handler may hold allocated and not yet stored, as long as it may not expand
    chunk_size_bytes  the largest value
    auto_connect      whether `with MaruHandler(...)` connects
    timeout_ms        for requests to marud: connecting, and memory when there is none left
    read_only         whether this handler only finds and reads, which a user among the pool's `readers` may
    prefetch          whether batch_pin(), prefetch_batch() and stage_batch() have maru-tierd load what has left the pool; a
                      text is the path of its socket. None: as $MARU_PREFETCH says, in the same way
    auto_expand       whether more than pool_size may be held; then expand_size (None: pool_size) more each time
    A size (pool_size, chunk_size_bytes, expand_size) may also be a text with a unit: "512M", "1.5G", "64GiB"; the field has the
    number of bytes afterwards.
    The rest is accepted for the sake of programs that set it; the first handler that sets it logs why it does nothing.
    """

    server_url: str = UNCHOSEN
    instance_id: Optional[str] = None
    pool_size: int = 100 * 1024 * 1024
    chunk_size_bytes: int = 1024 * 1024
    auto_connect: bool = True
    timeout_ms: int = 2000
    use_async_rpc: bool = True
    max_inflight: int = 64
    eager_map: bool = True
    auto_expand: bool = True
    expand_size: Optional[int] = None
    rm_address: str = "127.0.0.1:9850"
    enable_stats: bool = False
    read_only: bool = False
    prefetch: Union[None, bool, str] = None  # ours, too

    if TYPE_CHECKING:  # what the fields may be made of
        def __init__(self, server_url: str = ..., instance_id: Optional[str] = ..., pool_size: Union[int, str] = ...,
                     chunk_size_bytes: Union[int, str] = ..., auto_connect: bool = ..., timeout_ms: int = ...,
                     use_async_rpc: bool = ..., max_inflight: int = ..., eager_map: bool = ..., auto_expand: bool = ...,
                     expand_size: Union[None, int, str] = ..., rm_address: str = ..., enable_stats: bool = ...,
                     read_only: bool = ..., prefetch: Union[None, bool, str] = ...) -> None: ...

    def __post_init__(self) -> None:
        if self.instance_id is None:
            self.instance_id = str(uuid.uuid4())
        self.eager_map = _flag_of_environment("MARU_EAGER_MAP", self.eager_map)
        self.enable_stats = _flag_of_environment("MARU_STAT", self.enable_stats)
        if self.prefetch is None:
            path = os.environ.get("MARU_PREFETCH", "")
            self.prefetch = path if path.startswith("/") else _flag_of_environment("MARU_PREFETCH", False)
        if not is_truth(self.prefetch) and not (isinstance(self.prefetch, str) and self.prefetch.startswith("/")):
            raise InvalidArgumentError(f"prefetch is {shown(self.prefetch)}: it must be True, False, or the path of "
                                       "maru-tierd's socket, which begins with /.")
        if not isinstance(self.server_url, str):
            raise InvalidArgumentError(f"server_url is {shown(self.server_url)}: it must be the path of a socket, or a URL.")
        if self.server_url is not UNCHOSEN:
            parse(self.server_url)
        for name in ("auto_connect", "auto_expand", "read_only"):
            setattr(self, name, self._flag(name, getattr(self, name)))
        for name in ("pool_size", "chunk_size_bytes", "timeout_ms"):
            setattr(self, name, self._number(name, getattr(self, name)))
        if self.timeout_ms >= 1 << 32:
            raise InvalidArgumentError(f"timeout_ms is {shown(self.timeout_ms)}: it must be less than 2^32, which is seven "
                                       "weeks.")
        if self.pool_size < self.chunk_size_bytes:
            raise InvalidArgumentError(f"pool_size is {shown(self.pool_size)} and chunk_size_bytes "
                                       f"{shown(self.chunk_size_bytes)}: a pool holds one chunk at the least.")
        if self.expand_size is None:
            return
        self.expand_size = self._number("expand_size", self.expand_size)
        if not self.auto_expand:
            raise InvalidArgumentError("expand_size is given and auto_expand is False: set auto_expand=True or leave "
                                       "expand_size out.")
        if self.expand_size < self.chunk_size_bytes:
            raise InvalidArgumentError(f"expand_size is {shown(self.expand_size)} and chunk_size_bytes "
                                       f"{shown(self.chunk_size_bytes)}: an expansion holds one chunk at the least.")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: an address that nobody chose stays behind, and is chosen by nobody where it arrives."""
        state = dict(self.__dict__)
        if state.get("server_url") is UNCHOSEN:
            del state["server_url"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"server_url": UNCHOSEN, **state})

    @staticmethod
    def _flag(name: str, value: object) -> bool:
        if not is_truth(value) and not (isinstance(value, int) and value in (0, 1)):
            raise InvalidArgumentError(f"{name} is {shown(value)}: it must be True or False.")
        return bool(value)

    @staticmethod
    def _number(name: str, value: Any) -> int:
        try:
            if name in _SIZES and isinstance(value, str):
                number = _size_of(value)
            else:
                number = 0 if is_truth(value) else operator.index(value)
        except TypeError:
            number = 0
        if number <= 0:
            text = ', or a text as "512M" or "1.5GiB"' if name in _SIZES else ""
            raise InvalidArgumentError(f"{name} is {shown(value)}: it must be a whole number above 0{text}.")
        return number

    def checked_copy(self) -> MaruConfig:
        """Of these fields; not made by a class made of this one, which may want others."""
        return MaruConfig(**{field.name: getattr(self, field.name) for field in fields(MaruConfig)})

    def explain_what_does_nothing(self) -> None:
        for name, (usual, reason) in _EXPLAINED.items():
            if getattr(self, name) != usual:
                say_once(logging.INFO, name, f"{name}={shown(getattr(self, name))} is accepted and does nothing: {reason}.")
