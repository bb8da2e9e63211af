"""The connector that gives vLLM the chunks of KV cache in a pool of marud. docs/python/vllm.md says how to configure it.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "MaruConnector", "kv_connector_module_path": "maru.vllm",
                                            "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

A chunk is one block of the pool: the KV cache of as many tokens (256) in all layers of one rank, under one key. The
scheduler's half looks for chunks of all ranks and holds those that it wants loaded; the workers' half copies them, and reports
what it could not load, so that vLLM computes it. Chunks of a prompt are stored as a chain: one is evicted only after all that
follow it.

With vLLM's second model runner a request is loaded in a step before the first that computes it: vLLM calls that loading
asynchronously, though the worker copies within the step. With the first one it is loaded in the same step, and the rest of this
is about that.

What a step computes after a failed load was computed from nonsense, on every rank. So workers store nothing of steps that were
scheduled before the scheduler learnt of the failure: both count the steps in which loads failed, and the worker is ahead until
its last report has arrived (`epoch`), however many steps were scheduled ahead. And where there are several ranks, of which one
cannot know what another failed to load, a request that shares blocks with a load is stored only when that load must have been
reported.

vLLM gives the blocks of a request their hashes, under which others find them, when it schedules the request, before they are
loaded or computed; and after a failed load it leaves them there for the request to fill, which an aborted request never does,
and another may take several steps to do. So the scheduler's half takes all that hold nonsense out of vLLM's prefix cache.

A worker stores the chunks of a step on a thread of its own while it computes the next ones (store_queue.py). The scheduler's
half says which blocks a step writes to, and the step begins when nothing that waits is read from them.
"""
from __future__ import annotations

import logging
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Iterable, Optional

import numpy
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from . import chunk_keys, tracing
from ._maru import Client
from .chunk_keys import HASH_BYTES
from .compute_pace import ComputePace
from .distribution import expect_this_package
from .engine_pool import EnginePool
from .engine_settings import Settings
from .errors import InvalidArgumentError, MaruError
from .paged_layers import PagedLayers
from .pool_tier import PoolTier
from .tally import Tally
from .tokens import BLOCK_TOKENS_MAX
from .vllm_adapters import Adapters
from .vllm_events import as_vllm_has_them, pool_events
from .vllm_load import DeviceLoads, Loads, copies_of
from .vllm_model import attention_backends, attention_of, drafts_ahead, identify, refuse_what_cannot_be_shared
from .vllm_plan import Prompt, RequestPlan, Transfer, compute_again, first_of, following
from .vllm_store import METADATA_SHARE, Place, Stores

expect_this_package()
logger = logging.getLogger("vllm.maru")

SETTINGS = {"maru_socket", "maru_pool", "maru_tenant", "maru_chunk_tokens", "maru_priority", "maru_ttl_ms", "maru_model",
            "maru_store_generated", "maru_timeout_ms", "maru_required", "maru_metadata", "maru_prefetch"}
# Whether this vLLM has connectors take blocks out of its prefix cache. Such a vLLM also tells them of all blocks that a request
# gets, even of those that another connector loads.
_SAYS_WHICH_BLOCKS = hasattr(KVConnectorBase_V1, "bind_kv_cache_manager")


@dataclass
class RankMetadata(KVConnectorHandshakeMetadata):
    """From each worker to the scheduler, once: the digest of its place and of how its memory is laid out."""

    digest: bytes


@dataclass
class StepMetadata(KVConnectorMetadata):
    """From the scheduler to every worker, each step."""

    epoch: int = 0  # reports of failed loads that had arrived when the step was scheduled
    loads: list[Transfer] = field(default_factory=list)
    stores: list[Transfer] = field(default_factory=list)
    written: Optional[list[int]] = None  # blocks that this step, or a load, may be the first to write to; None: any


@dataclass
class StoreMetadata(KVConnectorWorkerMetadata):
    """From the workers to the scheduler, after a step in which it is needed."""

    interrupted: set[str]  # requests whose chunks before those to store are gone from the pool

    def aggregate(self, other: Any) -> "StoreMetadata":
        return StoreMetadata(self.interrupted | other.interrupted)


class MaruConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = Settings("kv_connector_extra_config", transfer.kv_connector_extra_config or {}, SETTINGS)
        specs = attention_of(kv_cache_config)
        refuse_what_cannot_be_shared(vllm_config)
        self._block_tokens: int = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._chunk_tokens = settings.number("maru_chunk_tokens", 256, 1, BLOCK_TOKENS_MAX)
        if self._chunk_tokens % self._block_tokens:
            raise InvalidArgumentError(f"maru_chunk_tokens is {self._chunk_tokens}; it must be a multiple of vLLM's block "
                                       f"size, {self._block_tokens}.")
        parallel = vllm_config.parallel_config
        # vLLM's second model runner keeps on the GPU how far a request is, and cannot take one back whose load failed. With it
        # a request is loaded in a step in which it computes nothing, and scheduled when it is known what was loaded.
        # Nor can the first one with drafts under an asynchronous scheduler: when it learns how many were wrong, it corrects
        # the place of the step after, also of one that begins anew because a load failed.
        self._apart = bool(getattr(vllm_config, "use_v2_model_runner", False)) or drafts_ahead(vllm_config)
        self._ranks: int = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        # Steps that may be under way, and one. vLLM's own count knows of steps scheduled ahead in each stage of a pipeline.
        self._depth = max(2, parallel.pipeline_parallel_size, getattr(vllm_config, "max_concurrent_batches", 0)) + 1
        # What a model that drafts from hidden states keeps of a token follows from the token after it as well. A chunk's hash
        # does not cover the one after its last, so vLLM computes that block, as it does for what its own prefix cache has.
        drops_last = getattr(getattr(vllm_config, "speculative_config", None), "use_eagle_block_drop", None)
        self._dropped_tokens = self._block_tokens if drops_last is not None and drops_last() else 0
        if bool(transfer.is_kv_consumer):
            _have_failed_loads_computed(transfer, role)
        self._stores: bool = bool(transfer.is_kv_producer)
        self._loads: bool = bool(transfer.is_kv_consumer)
        if self._loads and not hasattr(KVConnectorBase_V1, "bind_kv_cache_manager"):
            raise InvalidArgumentError("This vLLM does not let a connector take a block out of its prefix cache, where one "
                                       "that could not be loaded would be found. Use vLLM 0.33 or newer, or kv_role "
                                       "kv_producer.")
        self._stores_generated = settings.flag("maru_store_generated", True)
        self._is_described = settings.flag("maru_metadata", True)
        is_wanted = "maru_metadata" in (transfer.kv_connector_extra_config or {})
        self._metadata_share = 1 if is_wanted else METADATA_SHARE
        self._options: dict[str, Any] = {"priority": settings.priority, "ttl_ms": settings.ttl_ms}
        # An engine that only loads may be run by a user who may only read.
        self._pool = EnginePool(settings, logger, read_only=not self._stores)
        self._tier = PoolTier(settings.prefetch if self._loads else False, logger)
        self._identity = identify(vllm_config, settings.model, self._block_tokens, self._chunk_tokens)
        self._family = chunk_keys.digest(self._identity)[:16]
        self._events = (pool_events(vllm_config, self._pool, logger) if role == KVConnectorRole.SCHEDULER and self._loads
                        else None)
        self._adapters = Adapters(logger)
        # Latent attention (MLA) has the same KV cache on all ranks of a tensor-parallel group, whatever their number.
        self._is_shared = all(type(spec) is MLAAttentionSpec for spec in specs)
        self._not_loaded = Tally(logger, "maru: %d blocks of %d requests were found and not loaded so far, and vLLM computes "
                                         "them again. The last reason: %s", counts=2)
        # The scheduler's.
        self._rank_digests: list[bytes] = []
        self._requests: dict[str, RequestPlan] = {}
        self._step = 0
        self._epoch = 0
        self._allocated: list[RequestPlan] = []  # to be loaded in the next step
        self._given: list[int] = []  # blocks that requests have got since the last step
        self._loading: list[tuple[int, set[int]]] = []  # steps and the blocks that they load
        self._under_way: deque[tuple[int, list[list[int]]]] = deque()  # steps and the blocks of each request in them
        self._pace = ComputePace(self._chunk_tokens, self._depth)
        # A worker's.
        self._layers: Optional[PagedLayers] = None
        self._reader: Optional[Loads] = None
        self._beside: Optional[DeviceLoads] = None  # the reader, where it loads on a GPU
        self._rank_digest = b""
        self._heard: Any = None  # the step that a worker has last heard of
        self._failed_blocks: set[int] = set()  # not reported yet
        self._loaded: set[str] = set()  # requests of which a load has ended, well or not; not reported yet
        self._failures = 0  # reports of failed loads, with the one to come
        self._stored: Optional[Stores] = None

    @property
    def dropped(self) -> int:
        """Chunks that could not be stored."""
        return self._stored.dropped if self._stored is not None else 0

    @property
    def not_loaded(self) -> int:
        """Blocks that were found and could not be loaded."""
        return self._not_loaded.count

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a chunk that is not stored is a later miss

    @property
    def _client(self) -> Client:
        return self._pool.attached().client

    def _root(self, request: Any, adapter: Optional[str] = None) -> bytes:
        """What the chain of a request's chunks begins with. adapter: what its LoRA is known by."""
        return chunk_keys.digest({**self._identity, "lora": adapter, "salt": _text(getattr(request, "cache_salt", None))})

    def shutdown(self) -> None:
        for plan in self._requests.values():
            plan.end()
        self._requests.clear()
        if self._events is not None:
            self._events.close()
        for ends in (self._reader, self._stored):
            if ends is not None:
                ends.close()
        self._pool.close()

    # -- workers ------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._layers = layers = PagedLayers(kv_caches, self._kv_cache_config.num_blocks)
        chunk_blocks = self._chunk_tokens // self._block_tokens
        if self._pool.is_attached:
            self._refuse_small_regions(chunk_blocks * layers.block_bytes)
        parallel = self._vllm_config.parallel_config
        rank = parallel.rank % self._ranks
        pipeline_rank, tensor_rank = divmod(rank, parallel.tensor_parallel_size)
        self._stores = self._stores and not (self._is_shared and tensor_rank != 0)
        self._rank_digest = chunk_keys.digest({
            # A worker reads the files of its own machine: with other files there it shares nothing.
            "model": self._identity["model"], "pipeline": [pipeline_rank, parallel.pipeline_parallel_size],
            "tensor": None if self._is_shared else [tensor_rank, parallel.tensor_parallel_size],
            "layout": layers.layout, "attention": attention_backends(self._vllm_config, kv_caches)})
        # Where vLLM clears blocks before it uses them, it does so before it tells this of the step.
        # In sleep mode the KV cache loses its memory between two steps, and no connector is told: so all is copied in the step.
        sleeps = getattr(self._vllm_config.model_config, "enable_sleep_mode", False)
        copies = copies_of(layers, chunk_blocks, logger) if not sleeps else None
        is_beside = ((layers.is_in_processor_memory or copies is not None)
                     and not getattr(self._kv_cache_config, "needs_kv_cache_zeroing", False))
        place = Place(self._rank_digest, self._block_tokens, chunk_blocks,
                      *((pipeline_rank, parallel.pipeline_parallel_size) if self._is_shared else (rank, self._ranks)),
                      metadata_share=self._metadata_share)
        self._stored = Stores(self._pool, layers, place, self._options, logger, is_beside, copies)
        ours = (self._pool, layers, self._rank_digest, chunk_blocks, self._not_loaded, logger)
        self._beside = DeviceLoads(copies, *ours) if copies is not None else None
        self._reader = self._beside or Loads(*ours)

    def _refuse_small_regions(self, chunk_bytes: int) -> None:
        shape = self._client.geometry()
        if chunk_bytes > shape.region_pages * shape.page_bytes:
            raise InvalidArgumentError(f"A chunk of {self._chunk_tokens} tokens has {chunk_bytes} bytes, and the pool takes "
                                       f"blocks of {shape.region_pages * shape.page_bytes} at the most: set region_bytes of "
                                       "the pool higher, or maru_chunk_tokens lower.")

    def get_handshake_metadata(self) -> Optional[RankMetadata]:
        return RankMetadata(self._rank_digest) if self._rank_digest else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """The first that a worker hears of a step."""
        self._heard = kv_connector_metadata
        if self._stored is not None and isinstance(kv_connector_metadata, StepMetadata):
            self._stored.wait_for(kv_connector_metadata.written)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        if connector_metadata is not self._heard:
            self.handle_preemptions(connector_metadata)  # not every vLLM calls it in every step
        if self._beside is not None and connector_metadata.loads:
            self._beside.begin_step()
        super().bind_connector_metadata(connector_metadata)

    def wait_until_stored(self) -> None:
        """Until all that steps before have computed is in the pool, or is not going to be."""
        if self._stored is not None:
            self._stored.wait_for(None)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._pool.attached()  # looks for a pool where there is none: a worker that only loads has nothing to do until then
        loads = self._get_connector_metadata().loads
        if loads:
            reader = self._registered()
            reader.load(loads, forward_context, self._apart)
            if self._beside is None:
                self._note_ended(reader, waits=False)

    def _note_ended(self, reader: Loads, waits: bool) -> None:
        for request_id, failed in reader.take_ended(waits):
            if failed and not self._failed_blocks:
                self._failures += 1
            self._failed_blocks |= failed
            if self._apart:
                self._loaded.add(request_id)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[Optional[set[str]], Optional[set[str]]]:
        if self._beside is not None:
            self._note_ended(self._beside, waits=False)
        loaded, self._loaded = self._loaded, set()
        return None, loaded or None

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._beside is not None:
            self._beside.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return  # chunks hold all layers: see wait_for_save

    def wait_for_save(self) -> None:
        metadata = self._get_connector_metadata()
        if self._beside is not None:
            self._beside.end_step()
            # A step that loads for itself computes from these blocks, and stores the result.
            self._note_ended(self._beside, waits=not self._apart)
        if self._stored is None or not self._stores or metadata.epoch < self._failures:
            return  # when the report arrives the scheduler asks for all of it again
        for transfer in metadata.stores:
            self._stored.put(transfer)

    def _registered(self) -> Loads:
        if self._reader is None:
            raise InvalidArgumentError("vLLM has not registered its KV caches with this connector.")
        return self._reader

    def get_block_ids_with_load_errors(self) -> set[int]:
        if self._beside is not None and not self._apart:
            self._note_ended(self._beside, waits=True)  # where vLLM drafts tokens it asks before wait_for_save()
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> Optional[StoreMetadata]:
        interrupted = self._stored.take_interrupted() if self._stored is not None else None
        return StoreMetadata(interrupted) if interrupted else None

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): value for rank, value in metadata.items()})

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if len(metadata) != self._ranks:
            raise InvalidArgumentError(f"{len(metadata)} workers said how their memory is laid out; {self._ranks} were "
                                       "expected. An older vLLM has no word for several pipeline stages; use a newer one.")
        self._rank_digests = sorted({value.digest for value in metadata.values()})
        if self._events is not None:
            self._events.start(self._family, self._rank_digests)

    def take_events(self) -> Iterable[Any]:
        """The chunks that this engine can load: vLLM publishes them beside its own blocks. It asks once a step, at its end."""
        self._pace.end()
        return as_vllm_has_them(self._events.take()) if self._events is not None else ()

    def _plan(self, request: Any) -> Optional[RequestPlan]:
        """None for a request whose KV cache does not follow from its tokens, or not for long."""
        if getattr(request, "prompt_embeds", None) is not None:
            return None
        plan = self._requests.get(request.request_id)
        if plan is None:
            lora = getattr(request, "lora_request", None)
            adapter = self._adapters.weights(lora) if lora is not None else None
            if lora is not None and adapter is None:
                return None
            plan = RequestPlan(request, self._root(request, adapter), adapter=adapter, trace=self._begin_trace(request))
            self._requests[request.request_id] = plan
        return plan

    def _begin_trace(self, request: Any) -> Optional[tracing.Request]:
        """The request's whole way, below the span of vLLM's caller where vLLM was given its header."""
        headers = getattr(request, "trace_headers", None) or {}
        try:
            return tracing.Request(self._client, headers.get("traceparent")) if self._pool.is_attached else None
        except MaruError:
            return None  # the header is none, or the pool has just gone

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[Optional[int], bool]:
        if not self._loads or not self._rank_digests or num_computed_tokens % self._block_tokens:
            return 0, False
        plan = self._plan(request)
        if plan is None:
            return 0, False
        if plan.coming is not None and not plan.coming.is_settled():
            return None, False
        hashes = plan.hash_to(request.num_tokens, self._chunk_tokens)
        if plan.loadable is not None:
            hashes = hashes[:plan.loadable * HASH_BYTES]
        with tracing.WorkingFor(plan.traceparent):
            chunks = self._match(hashes, plan=None)
        if self._waits_for_tier(plan, hashes, chunks, num_computed_tokens):
            return None, False
        found = max(0, self._loadable(plan, chunks) - num_computed_tokens)
        plan.offered_from, plan.found = num_computed_tokens, chunks
        return found, self._apart and found > 0

    def _loadable(self, plan: RequestPlan, chunks: int) -> int:
        return plan.loadable_tokens(chunks * self._chunk_tokens - self._dropped_tokens, self._block_tokens)

    def _waits_for_tier(self, plan: RequestPlan, hashes: bytes, found: int, computed: int) -> bool:
        """Whether chunks of the request may come from storage below the pool. vLLM asks for such a request again in its next
        steps. A request waits once, and once more after it was preempted."""
        if not self._tier.is_on or plan.coming is not None or plan.loadable is not None:
            return False
        if self._loadable(plan, len(hashes) // HASH_BYTES) <= max(computed, self._loadable(plan, found)):
            return False
        # With the last that is there: holding it keeps all before it, under which the others are published.
        missing = hashes[max(0, found - 1) * HASH_BYTES:]
        of_ranks = [chunk_keys.of_rank(missing, digest) for digest in self._rank_digests]
        plan.coming = self._tier.ask(numpy.stack(of_ranks, axis=1).reshape(-1, HASH_BYTES), self._pool.attached().tenant,
                                     compute_us=self._pace.token_us * self._chunk_tokens / len(of_ranks))
        return plan.coming is not None

    def _match(self, hashes: bytes, plan: Optional[RequestPlan]) -> int:
        """How many leading chunks all ranks can load. With a plan they are held for it."""
        found = len(hashes) // HASH_BYTES
        attached = self._pool.attached()
        try:
            for digest in self._rank_digests:
                if found == 0:
                    break
                match = attached.client.match_prefix(chunk_keys.of_rank(hashes[:found * HASH_BYTES], digest), attached.tenant)
                found = match.blocks
                if plan is None:
                    match.release()
                else:
                    plan.held.append(match)
        except MaruError as error:
            self._pool.warn(attached, error, "nothing can be looked up")
            return 0
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if blocks is not None:
            self._given += blocks.get_block_ids()[0]  # another connector beside this one may load into these
        plan = self._plan(request)
        if plan is None:
            return
        found, plan.found = plan.found, None
        if num_external_tokens == 0:
            plan.end_coming()
            plan.stored = plan.stored if found is None else found
            return
        end = plan.offered_from + num_external_tokens
        plan.load = (plan.offered_from, end)
        plan.let_go()
        with tracing.WorkingFor(plan.traceparent):
            held = self._match(plan.hashes[:-(-end // self._chunk_tokens) * HASH_BYTES], plan)
        plan.end_coming()
        plan.held_since = self._step
        # The last chunk that is held may not be loaded whole. It is there all the same.
        plan.stored = max(held, end // self._chunk_tokens)
        if self._apart:
            plan.blocks = list(blocks.get_block_ids()[0])
            self._allocated.append(plan)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        self._step += 1
        given, self._given = self._given, []
        metadata = StepMetadata(epoch=self._epoch, written=given if _SAYS_WHICH_BLOCKS else None)
        # What was loaded in steps of which the outcome must be known by now.
        if self._loading:
            self._loading = [(step, blocks) for step, blocks in self._loading if self._step - step < self._depth]
        while self._under_way and self._step - self._under_way[0][0] >= self._depth:
            self._under_way.popleft()
        scheduled: list[tuple[RequestPlan, int]] = []  # and its tokens that are computed after the step
        tokens = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            given += new.block_ids[0]
            plan = self._requests.get(new.req_id)
            if plan is not None:
                plan.blocks = list(new.block_ids[0])
                scheduled.append((plan, new.num_computed_tokens + tokens[new.req_id]))
        cached = scheduler_output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for i, request_id in enumerate(cached.req_ids):
            added = cached.new_block_ids[i]
            given += added[0] if added else []
            plan = self._requests.get(request_id)
            if plan is None:
                continue
            if request_id in resumed:
                plan.blocks = []
            plan.blocks += added[0] if added else []
            scheduled.append((plan, cached.num_computed_tokens[i] + tokens[request_id]))
        self._distrust_preempted()
        for plan in self._allocated:
            self._add_load(plan, metadata)
        self._allocated.clear()
        for plan, _ in scheduled:
            self._add_load(plan, metadata)
        for plan, computed in scheduled if self._stores else ():  # after all loads of the step
            self._add_store(plan, computed, metadata)
        if self._loads and not self._apart and scheduled:
            # A list grows with its request, and is another one after the request was preempted.
            self._under_way.append((self._step, [plan.blocks for plan, _ in scheduled]))
        for plan in self._requests.values():
            if plan.held and self._step - plan.held_since > self._depth:
                plan.let_go()
        self._pace.begin(0 if metadata.loads else scheduler_output.total_num_scheduled_tokens)
        return metadata

    def _distrust_preempted(self) -> None:
        """vLLM answers with what steps that are under way sample for a request that it preempts meanwhile, and does not look
        whether they loaded what they should have."""
        for plan in self._requests.values() if self._loading else ():
            if getattr(plan.request, "num_stale_output_tokens", 0) and any(
                    blocks.intersection(plan.blocks) for _, blocks in self._loading):
                plan.request.drop_stale_output = True

    def _add_load(self, plan: RequestPlan, metadata: StepMetadata) -> None:
        if plan.load is None:
            return
        transfer = plan.transfer(*plan.load, self._block_tokens, self._chunk_tokens)
        plan.load = None
        metadata.loads.append(transfer)
        if not self._apart:
            self._loading.append((self._step, set(transfer.blocks)))

    def _add_store(self, plan: RequestPlan, computed: int, metadata: StepMetadata) -> None:
        request = plan.request
        known = request.num_tokens if self._stores_generated else request.num_prompt_tokens
        computed = min(computed, known)  # what is drafted may be rejected
        first, last = plan.stored, computed // self._chunk_tokens
        if last <= first:
            return
        if self._ranks > 1 and any(blocks.intersection(plan.blocks) for _, blocks in self._loading):
            return
        plan.hash_to(computed, self._chunk_tokens)
        transfer = plan.transfer(first * self._chunk_tokens, last * self._chunk_tokens, self._block_tokens, self._chunk_tokens)
        if self._is_described:
            transfer.tokens = plan.tokens_of(transfer, self._chunk_tokens, first)
            transfer.prompt = Prompt.of(request, self._family)
        metadata.stores.append(transfer)
        plan.stored = last

    def update_connector_output(self, connector_output: Any) -> None:
        stored = getattr(connector_output, "kv_connector_worker_meta", None)
        for request_id in stored.interrupted if stored is not None else ():
            if (plan := self._requests.get(request_id)) is not None:
                plan.stored = 0  # what follows is stored when all before it is there again
        if getattr(connector_output, "invalid_block_ids", None):
            self._epoch += 1
            for plan in self._requests.values():
                plan.stored = 0  # workers know what is there already
            self._forget(connector_output.invalid_block_ids)

    def _forget(self, failed: set[int]) -> None:
        """Takes the blocks that could not be loaded, and what was computed from them, out of vLLM's prefix cache, and lets
        every request that has any of them compute it. A block may have gone to another request since, which then computes more
        than it needs."""
        wrong = following(failed, [blocks for _, lists in self._under_way for blocks in lists])
        if self._kv_cache_manager is not None:
            self._kv_cache_manager.evict_blocks(wrong)
        for plan in self._requests.values():
            place = first_of(plan.blocks, wrong)
            if place is not None:
                plan.loadable = place * self._block_tokens // self._chunk_tokens
                compute_again(plan.request, place * self._block_tokens)

    def reset_cache(self) -> bool:
        """Nothing that was stored before is found by this engine any more, nor what it stores from here on by others: its
        chains begin with a random value, and hashes reach the workers from here alone. What others share is not this engine's
        to clear. False, and nothing done, while vLLM itself has not reset its prefix cache because requests hold blocks of it:
        what follows in these blocks was computed from what is to be forgotten."""
        manager = getattr(self, "_kv_cache_manager", None)
        computed = any(plan.request.num_computed_tokens for plan in self._requests.values())
        if manager.usage > 0 if manager is not None else computed:
            logger.warning("maru: not reset while requests hold blocks of vLLM's KV cache: it would be stored as new what was "
                           "computed from what is there")
            return False
        self._identity = {**self._identity, "reset": secrets.token_hex(16)}
        self._family = chunk_keys.digest(self._identity)[:16]
        if self._events is not None:
            self._events.start(self._family, self._rank_digests)
        for plan in self._requests.values():
            plan.begin_again(self._root(plan.request, plan.adapter))
        self._allocated.clear()
        logger.info("maru: what is in the pool is not found by this engine any more, nor what it stores from now on by others; "
                    "the pool is not cleared, which `marudctl clear` does")
        return True

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        plan = self._requests.pop(request.request_id, None)
        if plan is not None:
            plan.end()
            plan.end_trace()
        return False, None


def _have_failed_loads_computed(transfer: Any, role: KVConnectorRole) -> None:
    """vLLM ends a request of which a block could not be loaded, with an empty answer, unless it is told to compute it. That a
    chunk goes between being found and being loaded is nothing unusual here. vLLM's scheduler reads this after its connector
    is made."""
    if getattr(transfer, "kv_load_failure_policy", "recompute") == "recompute":
        return
    if role == KVConnectorRole.SCHEDULER:
        logger.warning('maru: kv_load_failure_policy is "%s": vLLM would end a request with an empty answer when a chunk is '
                       'evicted before it is loaded. It is set to "recompute" here; say so in --kv-transfer-config.',
                       transfer.kv_load_failure_policy)
    transfer.kv_load_failure_policy = "recompute"


def _text(value: Any) -> Optional[str]:
    return None if value is None else str(value)
