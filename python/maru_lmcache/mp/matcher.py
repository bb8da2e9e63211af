"""The matcher of LMCache's blend server, over a pool: one for all servers, which no restart empties.

LMCache's BlendModule makes a BlendTokenRangeMatcher, a table in its own memory that remembers where chunks of tokens were
computed. PoolMatcher has the same calls. What it remembers are chunks of maru.blend, whose bytes stay where LMCache has them:
the note of a chunk is LMCache's hash of it. Each match is compared by its tokens, which LMCache's matcher does not do.

The calls say neither model nor tenant. LMCache's lookup of the hashes that were matched keeps both apart, as it does with its
own matcher.
"""
from __future__ import annotations

import collections
import logging
import threading
from typing import Any, Sequence

import numpy
from lmcache.v1.multiprocess.custom_types import CBMatchResult

from maru import Client, MaruError
from maru.blend import Spans

_SPACE = "LMCache's blend matcher 1"
_REMEMBERED = 1 << 16  # chunks of which this process knows the tokens, to remove them by their hashes

log = logging.getLogger("maru_lmcache")


class PoolMatcher:
    """Thread safety: everything. What the pool refuses counts as not found or not stored, and the log says why."""

    def __init__(self, client: Client, chunk_size: int = 256, dedup_content: bool = False) -> None:
        self.chunk_size = chunk_size
        # The same text behind other beginnings has other hashes: one of them is enough with dedup_content.
        self._spans = Spans(client, _SPACE, chunk_size, occupants=1 if dedup_content else 4)
        self._tokens: collections.OrderedDict[bytes, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def on_new_token_hashes(self, token_ids: Sequence[int], token_hashes: Sequence[bytes], start_chunk_idx: int = 0,
                            position_offset: int = 0) -> int:
        """Remembers the full chunks of a sequence that was stored. Returns how many are new."""
        tokens = numpy.asarray(token_ids, dtype=numpy.uint32)
        new = 0
        for index in range(start_chunk_idx, min(len(tokens) // self.chunk_size, len(token_hashes))):
            start = index * self.chunk_size
            chunk = tokens[start:start + self.chunk_size]
            self._remember(token_hashes[index], chunk)
            try:
                new += self._spans.store(chunk, position_offset + start, b"\0", note=bytes(token_hashes[index]))
            except MaruError as error:
                log.error("A chunk is not made known to other prompts: %s", error)
        return new

    def match_sub_sequence(self, token_ids: Sequence[int]) -> list[CBMatchResult]:
        """Each known chunk that occurs in the tokens, at the first place where it does; none overlaps another."""
        tokens = numpy.asarray(token_ids, dtype=numpy.uint32)
        results: dict[bytes, CBMatchResult] = {}
        try:
            with self._spans.find(tokens) as found:
                for span in found:
                    if span.note not in results:
                        results[span.note] = CBMatchResult(old_st=span.old_start, old_ed=span.old_end, cur_st=span.new_start,
                                                           cur_ed=span.new_end, hash=span.note)
                        self._remember(span.note, tokens[span.new_start:span.new_end])
        except MaruError as error:
            log.error("No chunks are found in a prompt: %s", error)
        return list(results.values())

    def remove_chunks(self, token_hashes: Sequence[bytes]) -> None:
        """Forgets chunks that LMCache has met as stale, in the pool and so for all servers. A server that has one makes it
        known again with its next store."""
        for token_hash in token_hashes:
            with self._lock:
                tokens = self._tokens.pop(bytes(token_hash), None)
            if tokens is None:
                continue
            try:
                self._spans.forget(tokens)
            except MaruError as error:
                log.error("A stale chunk stays known: %s", error)

    def _remember(self, token_hash: bytes, tokens: Any) -> None:
        with self._lock:
            self._tokens[bytes(token_hash)] = tokens.copy()
            self._tokens.move_to_end(bytes(token_hash))
            if len(self._tokens) > _REMEMBERED:
                self._tokens.popitem(last=False)
