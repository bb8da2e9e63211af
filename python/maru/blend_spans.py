"""Chunks of tokens in a pool, found anywhere in a prompt: the calls of maru/spans.h. maru.blend is what to import."""
from __future__ import annotations

import array
import dataclasses
import operator
from types import TracebackType
from typing import Any, Iterator, Optional, Sequence, Union

from ._maru import Client, View
from .errors import InvalidArgumentError, shown

_SEGMENT = 1  # a kind
_SEGMENTS, _SKIP_FIRST = 1, 2  # flags


def packed(tokens: Any) -> Any:
    """The tokens as numbers of 4 bytes without gaps, copied only where they are not."""
    try:
        view = memoryview(tokens)
    except TypeError:
        view = None
    if view is not None and view.itemsize == 4 and view.format in ("I", "<I", "L") and view.c_contiguous:
        return tokens
    try:
        return array.array("I", [operator.index(token) for token in tokens])
    except (TypeError, OverflowError) as error:
        raise InvalidArgumentError(f"Tokens are whole numbers from 0 to 2^32 - 1: {error}.") from None


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a prompt that was found."""
    old_start: int       # where it was when it was computed
    old_end: int
    new_start: int       # where it is in the prompt
    new_end: int
    is_segment: bool     # found by its key of the prefix, behind a gap: everything before it is the same
    block: int           # the block that was found
    note: bytes
    views: list[View]    # of the blocks with the bytes, in the order of the tokens

    @property
    def shift(self) -> int:
        return self.new_start - self.old_start


class Found(Sequence[Span]):
    """What find() found, pinned together until release(), and until the last view of it is gone."""

    def __init__(self, found: tuple[int, list[View], int, list[tuple[Any, ...]], int]) -> None:
        self.prefix_tokens, self.prefix_views, self.deepest, spans, self.rejected = found
        self._spans = [Span(old_start, old_end, new_start, new_end, kind == _SEGMENT, block, note, views)
                       for old_start, old_end, new_start, new_end, kind, block, note, views in spans]

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: Any) -> Any:
        return self._spans[index]

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @property
    def tokens(self) -> int:
        """Of all spans, without the prefix."""
        return sum(span.new_end - span.new_start for span in self._spans)

    def release(self) -> None:
        for view in self.prefix_views:
            view.release()
        for span in self._spans:
            for view in span.views:
                view.release()

    def __enter__(self) -> "Found":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.release()


class Spans:
    """The chunks of one model, layout, tenant and length, in the pool of one client.

    space      says what the payloads are: model, revision, layout, rank. Others never meet
    window     tokens of each chunk
    occupants  how many blocks the same tokens may have, from different positions
    """

    def __init__(self, client: Client, space: Union[str, bytes], window: int, *, tenant: Union[None, str, int] = None,
                 occupants: int = 1) -> None:
        name = space.encode() if isinstance(space, str) else space
        if not isinstance(name, bytes) or not 0 < len(name) <= 4096:
            raise InvalidArgumentError(f"space is {shown(space)}, expected a text of 1 to 4096 bytes.")
        if not isinstance(window, int) or not 1 <= window <= 16128:
            raise InvalidArgumentError(f"window is {shown(window)}, expected 1 to 16128 tokens.")
        self._native = client._open_spans(name, window, tenant, occupants)
        self.window = window
        self.tenant: int = self._native.tenant

    def store(self, tokens: Any, position: int, data: Any, *, note: bytes = b"", ttl_ms: int = 0,
              priority: int = 0) -> bool:
        """Stores a chunk with its bytes. False: these tokens were there already."""
        return self._native.store(packed(tokens), position, data, note, ttl_ms, priority)

    def name(self, tokens: Any, position: int, deepest: int, blocks: int = 1, *, note: bytes = b"", ttl_ms: int = 0,
             priority: int = 0) -> bool:
        """Gives a second name to a chunk whose bytes are in the pool already: in the block `deepest` and the blocks - 1 above
        it. False: these tokens were there already."""
        return self._native.name(packed(tokens), position, deepest, blocks, note, ttl_ms, priority)

    def forget(self, tokens: Any) -> int:
        """Deletes what has these tokens, but no blocks that a name refers to. Returns how many blocks it deleted."""
        return self._native.forget(packed(tokens))

    def find(self, tokens: Any, *, prefix_keys: Any = (), prefix_key_tokens: int = 0, segments: bool = False,
             skip_first: bool = False, first: int = 0, step: int = 1, tokens_min: int = 0, spans_max: int = 0) -> Found:
        """The prefix, and the chunks behind it. maru_find_spans_options in maru/spans.h explains each argument."""
        flags = (_SEGMENTS if segments else 0) | (_SKIP_FIRST if skip_first else 0)
        return Found(self._native.find(packed(tokens), prefix_keys, prefix_key_tokens, first, step, tokens_min, spans_max,
                                       flags))
