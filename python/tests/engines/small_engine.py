"""vLLM on one processor, without a model: its own Scheduler, KV cache manager and connector interface, and in place of the
model runner one that computes something as dependent on everything before as attention is. What a token leaves in the KV cache
follows from the token and, byte by byte, from what all tokens before left on all ranks; so nonsense in any block shows in
everything after.
"""
import collections
import functools
import hashlib
import json
import os
import pathlib
import tempfile
import threading
from unittest import mock

import torch
from vllm import SamplingParams
from vllm.config import (CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, SpeculativeConfig,
                         VllmConfig)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from maru.vllm import MaruConnector

BLOCK, CHUNK, LAYERS, HEADS, HEAD, DRAFTED = 4, 8, 3, 2, 8, 3
SHAPES = {  # how attention back-ends lay out a layer
    "flash": lambda blocks: (2, blocks, BLOCK, HEADS, HEAD),
    "triton": lambda blocks: (blocks, 2, BLOCK, HEADS, HEAD),
    "mla": lambda blocks: (blocks, BLOCK, HEAD),
}


@functools.cache
def model_config():
    folder = tempfile.mkdtemp(prefix="maru-model-")
    pathlib.Path(folder, "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": LAYERS, "vocab_size": 1000,
        "max_position_embeddings": 2048, "torch_dtype": "float32"}))
    init_none_hash(sha256)
    return ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=2048)


def drafter(chance, of_prompt):
    """For Engine: tokens that are right and wrong by turns. of_prompt: what follows a prompt."""
    def draft(request, generated):
        right = of_prompt(tuple(request.prompt_token_ids))[generated:][:DRAFTED]
        return [token if chance.random() < 0.7 else (token + 1) % 1000 for token in right[:chance.randrange(DRAFTED + 1)]]
    return draft


class Engine:
    def __init__(self, socket, *, ranks=1, stages=1, blocks=64, step_tokens=2048, layout="flash", role="kv_both",
                 prefix_caching=True, asynchronous=False, runner=2, drafting=None, drafts=None,
                 failure_policy="recompute", stores_late=False, events=None, device=None, **extra):
        """ranks: of each of the stages of a pipeline, which has as many times LAYERS layers. drafts: what is called with a
        request and how many tokens it has generated for those, DRAFTED at most, that may follow. stores_late: the chunks of a
        step are copied after the next step was computed, unless the connector keeps that step from beginning. events: what vLLM
        publishes them by. device: in the place of a GPU (late_runtime.py)."""
        self.device, self.received = device, collections.Counter()
        self.drafts, self.accepted, self.rejected = drafts, 0, 0
        self.stores_late, self.computed_next = stores_late, threading.Event()
        self.asks_early = False  # for failed loads, before wait_for_save(): as vLLM's first model runner where it drafts
        drafting = drafting or (("ngram_gpu" if asynchronous else "ngram") if drafts else None)
        with mock.patch.dict(os.environ, VLLM_USE_V2_MODEL_RUNNER=str(runner - 1)):
            self._start(socket, ranks, stages, blocks, step_tokens, layout, role, prefix_caching, asynchronous, drafting,
                        {"kv_load_failure_policy": failure_policy} if failure_policy else {}, events, extra)

    def _start(self, socket, ranks, stages, blocks, step_tokens, layout, role, prefix_caching, asynchronous, drafting, policy,
               events, extra):
        self.asynchronous = asynchronous
        transfer = KVTransferConfig(
            kv_connector="MaruConnector", kv_connector_module_path="maru.vllm", kv_role=role,
            **policy,
            # The folder of the model differs from process to process.
            kv_connector_extra_config={"maru_socket": str(socket), "maru_chunk_tokens": CHUNK, "maru_model": "small",
                                       "maru_timeout_ms": 60_000, **extra})
        config = VllmConfig(
            model_config=model_config(), device_config=DeviceConfig(device="cpu"), kv_transfer_config=transfer,
            kv_events_config=events,
            scheduler_config=SchedulerConfig(max_num_seqs=min(8, step_tokens), max_num_batched_tokens=step_tokens,
                                             max_model_len=2048, is_encoder_decoder=False, async_scheduling=False),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=prefix_caching))
        config.cache_config.num_gpu_blocks = blocks
        if drafting is not None:
            # One that needs no model, said to be another: nothing drafts here.
            config.speculative_config = SpeculativeConfig(
                method="ngram", num_speculative_tokens=DRAFTED if self.drafts else 1, prompt_lookup_max=1,
                target_model_config=config.model_config, target_parallel_config=config.parallel_config)
            config.speculative_config.method = drafting
        config.parallel_config.tensor_parallel_size = ranks
        config.parallel_config.pipeline_parallel_size = stages
        kind = MLAAttentionSpec if layout == "mla" and stages > 1 else FullAttentionSpec
        spec = kind(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.float32)
        names = [[f"model.layers.{stage * LAYERS + i}.self_attn" for i in range(LAYERS)] for stage in range(stages)]
        kv_configs = [KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[],
                                    kv_cache_groups=[KVCacheGroupSpec(layer_names=of_stage, kv_cache_spec=spec)])
                      for of_stage in names]
        self.kv_configs = [config for config in kv_configs for _ in range(ranks)]
        self.kv_config = generate_scheduler_kv_cache_config(kv_configs)
        config.scheduler_config.async_scheduling = asynchronous
        self.scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config, kv_cache_config=self.kv_config, block_size=BLOCK, log_stats=False,
            structured_output_manager=StructuredOutputManager(config))
        self.connector = self.scheduler.connector
        self.workers, self.caches = [], []
        handshakes = {}
        for rank in range(stages * ranks):
            config.parallel_config.rank = rank
            stage = rank // ranks
            worker = MaruConnector(config, KVConnectorRole.WORKER, kv_configs[stage])
            cache = {name: torch.full(SHAPES[layout](blocks), -1.0) for name in names[stage]}
            with mock.patch("maru.vllm_load.runtime_of", return_value=self.device):
                worker.register_kv_caches(cache)
            handshakes[stage, rank % ranks] = worker.get_handshake_metadata()
            if self.stores_late:
                worker._layers.gather = functools.partial(self._gather_late, worker._layers.gather)
            self.workers.append(worker)
            self.caches.append([self._by_token(tensor, layout) for tensor in cache.values()])
        self.connector.set_xfer_handshake_metadata_pp_aware(handshakes)
        self.reached = {}  # of each request that was scheduled: how far it is, as vLLM's second model runner counts by itself
        self.updated = 0  # turns of which the scheduler knows the outcome
        self.executed = 0  # turns
        self.before = {}  # by request: tokens that the last turn drafted for it and that were wrong
        self.proposed = {}  # by request: the drafts of an asynchronous scheduler's workers, which it never sees
        self.computed = 0  # tokens
        self.recomputed = 0  # steps in which a load failed

    def _gather_late(self, gather, blocks, into):
        self.computed_next.wait(0.02)
        gather(blocks, into)

    @staticmethod
    def _by_token(tensor, layout):
        """(blocks, tokens of a block, the rest), whatever lies where."""
        return {"flash": lambda: tensor.permute(1, 2, 0, 3, 4), "triton": lambda: tensor.permute(0, 2, 1, 3, 4),
                "mla": lambda: tensor}[layout]()

    def add(self, name, prompt, max_tokens=1, **more):
        parameters = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add_request(Request(request_id=name, prompt_token_ids=list(prompt), sampling_params=parameters,
                                           pooling_params=None, block_hasher=get_request_block_hasher(BLOCK, sha256), **more))

    def step(self, before_loads=lambda: None):
        """One turn of the engine. Returns the ids of the requests that were scheduled."""
        turn = self.schedule()
        before_loads()
        self.finish(turn)
        return [name for name, *_ in turn[1]]

    def schedule(self):
        """The first half of a turn. Several may be begun before the first is finished, as vLLM does when it schedules ahead."""
        output = self.scheduler.schedule()
        pieces = []
        for name, scheduled in output.num_scheduled_tokens.items():
            # The scheduler has counted what it scheduled already. It may take that back before this is computed.
            request = self.scheduler.requests[name]
            (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
            pieces.append((name, request, blocks, request.num_computed_tokens - scheduled, request.num_computed_tokens))
        return output, pieces, self.updated

    def finish(self, turn):
        """The second half: loads, computes, stores, and tells the scheduler."""
        self.update(turn, self.execute(turn))

    def execute(self, turn):
        output, pieces, updated = turn
        for worker in self.workers:
            worker.handle_preemptions(output.kv_connector_metadata)
            worker.bind_connector_metadata(output.kv_connector_metadata)
            if output.has_sync_kv_loads:
                worker.start_load_kv(None)
        if self.scheduler.use_v2_model_runner:
            self.reached.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
            pieces = [(name, request, blocks, self.reached[name], self.reached[name] + end - begin)
                      for name, request, blocks, begin, end in pieces]
        elif updated < self.executed:
            # The scheduler took all drafts of the turn before for right. vLLM's first model runner takes back what was not.
            pieces = [(name, request, blocks, begin - self.before.get(name, 0), end - self.before.get(name, 0))
                      for name, request, blocks, begin, end in pieces]
        self.executed, self.before = self.executed + 1, {}
        sampled = []
        for name, request, blocks, begin, end in pieces:
            drafted = output.scheduled_spec_decode_tokens.get(name, [])
            if self.asynchronous:
                drafted = (self.proposed.get(name, []) + [0] * DRAFTED)[:len(drafted)]
            sampled.append(self._compute_on_device(request, blocks, begin, end, drafted))
            wrong = len(drafted) + 1 - len(sampled[-1])
            self.accepted, self.rejected = self.accepted + len(drafted) - wrong, self.rejected + wrong
            self.reached[name] = end - wrong
            if drafted:
                self.before[name] = wrong
            if self.drafts:
                self.proposed[name] = self.drafts(request, request.num_output_tokens + len(sampled[-1]))
            if end < request.num_tokens:
                sampled[-1] = []
        failed, stored = set(), None
        for worker in self.workers:
            if not output.has_sync_kv_loads:
                worker.start_load_kv(None)
        self.computed_next.set()
        for worker in self.workers:
            failed.update(worker.get_block_ids_with_load_errors() if self.asks_early else ())
            if not self.stores_late:
                worker.wait_for_save()
                worker.wait_until_stored()
                continue
            self.computed_next.clear()
            worker.wait_for_save()
        for worker in self.workers:
            self.received.update(worker.get_finished(output.finished_req_ids)[1] or ())
            failed.update(() if self.asks_early else worker.get_block_ids_with_load_errors())
            of_worker = worker.build_connector_worker_meta()
            stored = stored.aggregate(of_worker) if stored and of_worker else stored or of_worker
            worker.clear_connector_metadata()
        self.recomputed += bool(failed)
        names = [name for name, *_ in pieces]
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled,
            kv_connector_output=KVConnectorOutput(invalid_block_ids=failed, kv_connector_worker_meta=stored,
                                                  finished_recving=self._received_by_all() or None))

    def _received_by_all(self):
        """As vLLM counts the workers that have reported."""
        whole = {name for name, workers in self.received.items() if workers == len(self.workers)}
        for name in whole:
            del self.received[name]
        return whole

    def update(self, turn, runner_output):
        self.updated += 1
        self.scheduler.update_from_output(turn[0], runner_output)
        if self.asynchronous:
            return
        names = [name for name, sampled in zip(runner_output.req_ids, runner_output.sampled_token_ids)
                 if self.drafts and sampled and name in self.scheduler.requests]
        self.scheduler.update_draft_token_ids(DraftTokenIds(
            names, [self._drafts_now(self.scheduler.requests[name]) for name in names]))

    def _drafts_now(self, request):
        return self.drafts(request, request.num_output_tokens)

    def run(self, name, prompt, max_tokens=1, **more):
        """Until it is finished. Returns the tokens that were generated."""
        self.add(name, prompt, max_tokens, **more)
        request = self.scheduler.requests[name]
        while not request.is_finished():
            self.step()
        return list(request.output_token_ids)

    def _compute_on_device(self, *arguments):
        """Where there is a device, as a forward pass does it: it is only put there, behind what the connector has put there."""
        if self.device is None:
            return self._compute(*arguments)
        for worker, config in zip(self.workers, self.kv_configs):
            for name in config.kv_cache_groups[0].layer_names:
                worker.wait_for_layer_load(name)
        sampled = []
        self.device.compute.run(lambda: sampled.append(self._compute(*arguments)))
        self.device.compute.synchronize()
        return sampled[0]

    def _compute(self, request, blocks, begin, end, drafted):
        """Returns what is sampled: a token, and one more for each that was drafted right. What was drafted wrong leaves its
        nonsense in the KV cache."""
        known = end - len(drafted)
        place = lambda position: (blocks[position // BLOCK], position % BLOCK)  # noqa: E731
        for position in range(begin, end):
            # Of a step that was scheduled ahead and is of no use any more, the token before was never sampled.
            token = request.all_token_ids[position] if position < request.num_tokens else -1
            if position >= known:
                token = drafted[position - known]
            seen = b"".join(layer[blocks].flatten(0, 1)[:position].contiguous().numpy().tobytes()
                            for cache in self.caches for layer in cache)
            for rank, cache in enumerate(self.caches):
                for number, layer in enumerate(cache):
                    # Nothing else decides it: not the request, not the engine.
                    seed = hashlib.sha256(f"{token} {rank} {number}".encode() + seen).digest()
                    noise = torch.frombuffer(bytearray(seed * 8), dtype=torch.uint8)
                    rest = layer[place(position)]
                    rest.copy_(noise[:rest.numel()].reshape(rest.shape).float())
            self.computed += 1
        sampled = []
        for position in range(known - 1, end):
            sampled.append(int(self.caches[0][-1][place(position)].sum()) % 1000)
            if position + 1 < end and sampled[-1] != drafted[position + 1 - known]:
                break
        return sampled

    def close(self):
        for connector in [self.connector, *self.workers]:
            connector.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
