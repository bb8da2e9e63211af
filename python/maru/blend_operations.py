"""The operations of LMCache's blend server, over a pool: same names, arguments and results, in this process.

The pool holds what that server keeps in a table of its own: all processes see it, tenants and models are apart, each match is
verified by its tokens, and a restart loses nothing. KV caches are NumPy arrays in place of device memory, so the handles of
events mean nothing here, and are passed through.
"""
from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import Any, Iterator, Optional, Sequence

import numpy

from ._maru import Client
from .blend_spans import Span, Spans
from .errors import InvalidArgumentError, shown
from .records import Digest
from .rope import Rope, rerotate

_PREFIX_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Key:
    """What LMCache's IPCCacheServerKey has of use here; one of these does as well."""
    model_name: str
    token_ids: Sequence[int]
    world_size: int = 1
    worker_id: Optional[int] = None
    cache_salt: str = ""
    request_id: str = ""


@dataclasses.dataclass(frozen=True)
class MatchResult:
    """As CBMatchResult: a chunk, where it was and where it is."""
    old_st: int
    old_ed: int
    cur_st: int
    cur_ed: int
    hash: bytes  # of the prefix for a chunk behind a gap; of what moved, the block's number


@dataclasses.dataclass(frozen=True)
class UnifiedLookupResult:
    """As CBUnifiedLookupResult."""
    prefix_coverage_tokens: int
    non_prefix_segments: list[MatchResult]
    segmented_prefix_segments: list[MatchResult] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Instance:
    kv_caches: list[Any]  # of each layer: [2, tokens, heads, head_dim]
    model_name: str
    world_size: int
    rope: Optional[Rope] = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.kv_caches[0].shape)

    @property
    def space(self) -> str:
        """What a payload is: chunks of other models, ranks or shapes never meet."""
        _, _, heads, head_dim = self.shape
        return (f"blend 1, {self.model_name}, {self.world_size} ranks, {len(self.kv_caches)} layers, {heads} heads of"
                f" {head_dim}, {self.kv_caches[0].dtype}")


class Operations:
    """CacheBlend's operations for engines in this process.

    window      tokens of a chunk
    dtype       of the KV caches, where they are arrays of uint16 that hold "bfloat16"
    segments    whether a lookup also says which chunks of the prefix are there behind a gap
    skip_first  whether a sequence's first chunk is left out of what moves, because it draws attention for its place
    """

    def __init__(self, client: Client, window: int = 256, *, dtype: Optional[str] = None, segments: bool = False,
                 skip_first: bool = False, occupants: int = 1) -> None:
        self._client = client
        self._window = window
        self._dtype = dtype
        self._segments = segments
        self._skip_first = skip_first
        self._occupants = occupants
        self._lock = threading.Lock()
        self._instances: dict[int, _Instance] = {}
        self._spans: dict[tuple[str, str], Spans] = {}

    # -- registering ---------------------------------------------------------------------------------------------------

    def cb_register_kv_cache(self, instance_id: int, kv_caches: Sequence[Any], model_name: str, world_size: int = 1) -> None:
        """The KV cache of an engine: for each layer an array [2, tokens, heads, head_dim], keys first."""
        caches = list(kv_caches)
        if not caches or any(cache.ndim != 4 or cache.shape != caches[0].shape or cache.shape[0] != 2 for cache in caches):
            raise InvalidArgumentError("A KV cache is a list of arrays of one shape, [2, tokens, heads, head_dim].")
        with self._lock:
            self._instances[instance_id] = _Instance(caches, model_name, world_size)

    def cb_unregister_kv_cache(self, instance_id: int) -> None:
        """Forgets the engine. What it stored stays in the pool."""
        with self._lock:
            self._instances.pop(instance_id, None)

    def cb_register_rope(self, instance_id: int, rope: Rope) -> None:
        """How the engine's keys carry their position. Without it, keys are copied as they were computed."""
        self._instance(instance_id).rope = rope

    def cb_unregister_rope(self, instance_id: int) -> None:
        with self._lock:
            if instance_id in self._instances:
                self._instances[instance_id].rope = None

    # -- storing -------------------------------------------------------------------------------------------------------

    def cb_store_pre_computed(self, key: Any, offset: int, instance_id: int,
                              event_ipc_handle: bytes = b"") -> tuple[bytes, bool]:
        """Stores the full chunks of a text that was computed alone, from token `offset` of the engine's KV cache on. Returns
        (event, True)."""
        instance = self._instance(instance_id)
        spans = self._spans_of(instance, key)
        for start, tokens in self._chunks(key.token_ids):
            spans.store(tokens, start, self._payload(instance, offset + start))
        return event_ipc_handle, True

    def cb_store_final(self, key: Any, offset: int, instance_id: int, event_ipc_handle: bytes = b"") -> tuple[bytes, bool]:
        """Stores a whole sequence under the keys of its prefix, and gives each chunk a second name. The bytes are in the pool
        once."""
        instance = self._instance(instance_id)
        spans = self._spans_of(instance, key)
        chunks = list(self._chunks(key.token_ids))
        parent: Optional[int] = None
        for (start, tokens), prefix_key in zip(chunks, self._prefix_keys(instance, key)):
            stored = self._client.store_copy(prefix_key, self._payload(instance, offset + start), parent=parent,
                                             tenant=spans.tenant)
            parent = stored.block
            if not (start == 0 and self._skip_first):
                spans.name(tokens, start, parent)
        return event_ipc_handle, True

    # -- looking up ----------------------------------------------------------------------------------------------------

    def cb_lookup_pre_computed(self, key: Any) -> list[tuple[int, int]]:
        """The first form: the ranges of the tokens that were found."""
        return [(match.cur_st, match.cur_ed) for match in self.cb_lookup_pre_computed_v2(key)]

    def cb_lookup_pre_computed_v2(self, key: Any) -> list[MatchResult]:
        """The chunks that occur in the tokens, wherever."""
        with self._spans_of(self._instance_of(key), key).find(key.token_ids, skip_first=self._skip_first) as found:
            return [self._match(span, (), self._window) for span in found]

    def cb_unified_lookup(self, key: Any, tp_size: int = 1) -> UnifiedLookupResult:
        """The prefix, what moved behind it, and what of the prefix is there behind a gap."""
        instance = self._instance_of(key)
        keys = list(self._prefix_keys(instance, key))
        with self._spans_of(instance, key).find(key.token_ids, prefix_keys=keys, prefix_key_tokens=self._window,
                                                segments=self._segments, skip_first=self._skip_first) as found:
            matches = [(span, self._match(span, keys, self._window)) for span in found]
            return UnifiedLookupResult(found.prefix_tokens, [match for span, match in matches if not span.is_segment],
                                       [match for span, match in matches if span.is_segment])

    # -- retrieving ----------------------------------------------------------------------------------------------------

    def cb_retrieve_pre_computed(self, key: Any, ranges: Sequence[Any], offset: int, instance_id: int,
                                 event_ipc_handle: bytes = b"") -> tuple[bytes, bool]:
        """Copies chunks into the engine's KV cache, token t of the key to token offset + t, with their keys moved to where they
        are now. `ranges` are those of cb_lookup_pre_computed, or the matches of another lookup. The tokens of each range are
        compared again. Returns (event, whether all were there still); where not, the cache is as it was in those ranges."""
        instance = self._instance(instance_id)
        spans = self._spans_of(instance, key)
        tokens = numpy.asarray(key.token_ids, dtype=numpy.uint32)
        complete = True
        for item in ranges:
            match = item if isinstance(item, MatchResult) else MatchResult(-1, -1, item[0], item[1], b"")
            if not 0 <= match.cur_st < match.cur_ed <= len(tokens):
                raise InvalidArgumentError(f"A range is {match.cur_st} to {match.cur_ed}, of {len(tokens)} tokens.")
            if len(match.hash) == _PREFIX_KEY_BYTES:
                view = self._client.retrieve(Digest(match.hash), tenant=spans.tenant)
                if view is None:
                    complete = False
                    continue
                with view:
                    self._fill(instance, view.data, match.old_st, match.cur_st, offset)
                continue
            with spans.find(tokens[match.cur_st:match.cur_ed], skip_first=self._skip_first) as found:
                complete = complete and found.tokens == match.cur_ed - match.cur_st
                for span in found:
                    self._fill(instance, span.views[0].data, span.old_start, match.cur_st + span.new_start, offset)
        return event_ipc_handle, complete

    cb_retrieve_pre_computed_v2 = cb_retrieve_pre_computed

    def retrieve(self, key: Any, offset: int, instance_id: int) -> int:
        """Copies the prefix of the tokens into the engine's KV cache. Returns how many tokens it has."""
        instance = self._instance(instance_id)
        keys = list(self._prefix_keys(instance, key))
        tenant = self._spans_of(instance, key).tenant
        with self._client.match_prefix(keys, tenant=tenant) as match:
            for index, view in enumerate(match.resolve(keys[:match.blocks], tenant=tenant)):
                with view:
                    self._fill(instance, view.data, index * self._window, index * self._window, offset)
            return match.blocks * self._window

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _instance(self, instance_id: int) -> _Instance:
        with self._lock:
            instance = self._instances.get(instance_id)
        if instance is None:
            raise InvalidArgumentError(f"No KV cache is registered for instance {instance_id}: call cb_register_kv_cache"
                                       " before.")
        return instance

    def _instance_of(self, key: Any) -> _Instance:
        """Any engine of this model: all of them have the same chunks."""
        with self._lock:
            for instance in self._instances.values():
                if (instance.model_name, instance.world_size) == (key.model_name, key.world_size):
                    return instance
        raise InvalidArgumentError(f"No engine of {shown(key.model_name)} with {key.world_size} ranks is registered.")

    def _spans_of(self, instance: _Instance, key: Any) -> Spans:
        place = (instance.space, key.cache_salt)
        with self._lock:
            spans = self._spans.get(place)
            if spans is None:
                salt = key.cache_salt
                # A tenant's name has 64 bytes at most.
                tenant = salt if len(salt.encode()) <= 64 else hashlib.blake2b(salt.encode(), digest_size=32).hexdigest()
                spans = Spans(self._client, instance.space, self._window, tenant=tenant or None, occupants=self._occupants)
                self._spans[place] = spans
        return spans

    def _chunks(self, token_ids: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """The full chunks, each with its first token's index."""
        tokens = numpy.asarray(token_ids, dtype=numpy.uint32)
        for start in range(0, len(tokens) - self._window + 1, self._window):
            yield start, tokens[start:start + self._window]

    def _prefix_keys(self, instance: _Instance, key: Any) -> Iterator[Digest]:
        """Of each full chunk, with everything before it."""
        digest = hashlib.blake2b(instance.space.encode(), digest_size=_PREFIX_KEY_BYTES).digest()
        for _, tokens in self._chunks(key.token_ids):
            digest = hashlib.blake2b(digest + tokens.tobytes(), digest_size=_PREFIX_KEY_BYTES).digest()
            yield Digest(digest)

    def _payload(self, instance: _Instance, start: int) -> Any:
        """A chunk of the KV cache: [layers, 2, window, heads, head_dim]."""
        if not 0 <= start <= instance.shape[1] - self._window:
            raise InvalidArgumentError(f"A chunk would begin at token {start} of a KV cache of {instance.shape[1]}.")
        return numpy.stack([cache[:, start:start + self._window] for cache in instance.kv_caches])

    def _fill(self, instance: _Instance, data: Any, old_start: int, new_start: int, offset: int) -> None:
        _, tokens, heads, head_dim = instance.shape
        at = offset + new_start
        if not 0 <= at <= tokens - self._window:
            raise InvalidArgumentError(f"A chunk would be put at token {at} of a KV cache of {tokens}.")
        shape = (len(instance.kv_caches), 2, self._window, heads, head_dim)
        stored = numpy.frombuffer(data, dtype=instance.kv_caches[0].dtype).reshape(shape)
        for cache, (keys, values) in zip(instance.kv_caches, stored):
            target = cache[:, at:at + self._window]
            target[1] = values
            if instance.rope is None or old_start == new_start:
                target[0] = keys
            else:
                rerotate(keys, old_start, new_start, instance.rope, out=target[0], dtype=self._dtype)

    @staticmethod
    def _match(span: Span, prefix_keys: Sequence[Digest], window: int) -> MatchResult:
        name = bytes(prefix_keys[span.new_start // window]) if span.is_segment else span.block.to_bytes(8, "little")
        return MatchResult(span.old_start, span.old_end, span.new_start, span.new_end, name)
