"""What the keys of vLLM's chunks carry, and what the connector refuses. The interface is vLLM's; the configuration has just the
fields that the connector reads, so that any can be changed."""
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
import torch  # noqa: E402
from model_folders import folder  # noqa: E402
from vllm.config.quantization import QuantizationConfigArgs  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1 import kv_cache_interface as kept  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs  # noqa: E402

import maru  # noqa: E402
from maru import chunk_keys  # noqa: E402
from maru.vllm import MaruConnector  # noqa: E402

BLOCKS, BLOCK, CHUNK = 16, 4, 8
PROMPT = list(range(3 * CHUNK))


def spec(kind, block=BLOCK, **more):
    return kind(block_size=block, num_kv_heads=2, head_size=8, dtype=torch.bfloat16, **more)


def connector(pool, *, kv=(2, BLOCKS, BLOCK, 2, 8), dtype=torch.bfloat16, layers=2, groups=1, block=BLOCK, mla=False,
              parallel=None, model=None, cache_dtype="auto", attention=None, cache=None, whole=None,
              names="layer {}", **extra):
    settings = {"maru_socket": str(pool.socket), "maru_chunk_tokens": CHUNK, "maru_timeout_ms": 60_000, **extra}
    places = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "rank": 0, **(parallel or {})}
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=settings, is_kv_producer=True, is_kv_consumer=True),
        parallel_config=SimpleNamespace(**places),
        model_config=SimpleNamespace(**{"model": folder("m"), "revision": None, "dtype": "bf16", "quantization": None,
                                        **(model or {})}),
        cache_config=SimpleNamespace(**{"cache_dtype": cache_dtype, "enable_prefix_caching": True, **(cache or {})}),
        **(whole or {}))
    group = SimpleNamespace(kv_cache_spec=attention or spec(MLAAttentionSpec if mla else FullAttentionSpec, block))
    made = MaruConnector(config, KVConnectorRole.WORKER, SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[group] * groups))
    made.register_kv_caches({names.format(i): torch.zeros(kv, dtype=dtype) for i in range(layers)})
    return made


def drafting(asynchronous):
    return {"speculative_config": SimpleNamespace(method="ngram"),
            "scheduler_config": SimpleNamespace(async_scheduling=asynchronous)}


def backend(name):
    layer = SimpleNamespace(get_attn_backend=lambda: SimpleNamespace(get_name=lambda: name))
    return {"compilation_config": SimpleNamespace(static_forward_context={f"layer {i}": layer for i in range(2)})}


def keys(made, **request):
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT), prompt_embeds=None, **request)
    plan = made._plan(request)
    found = {bytes(row) for row in chunk_keys.of_rank(plan.hash_to(len(PROMPT), CHUNK), made._rank_digest)}
    made.request_finished(request, [])
    made.shutdown()
    assert len(found) == 3
    return found


@pytest.mark.parametrize("change", [
    {"model": {"model": folder("n")}}, {"model": {"dtype": "f16"}}, {"model": {"quantization": "fp8"}},
    {"cache_dtype": "fp8"}, {"maru_model": "n"}, {"maru_chunk_tokens": 4, "block": 4}, {"dtype": torch.float16}, {"layers": 3},
    {"kv": (2, BLOCKS, BLOCK, 4, 8)}, {"kv": (BLOCKS, BLOCK, 32)}, {"kv": (2, BLOCKS, 2, BLOCK, 8)},
    {"parallel": {"tensor_parallel_size": 2}}, {"parallel": {"tensor_parallel_size": 2, "rank": 1}},
    {"parallel": {"pipeline_parallel_size": 2}}, {"parallel": {"pipeline_parallel_size": 2, "rank": 1}},
    {"model": {"code_revision": "c1"}}, {"model": {"model_impl": "transformers"}},
    {"model": {"quantization_config": {"linear": {"weight": "fp8_per_tensor"}}}},
    {"model": {"quantization_config": QuantizationConfigArgs(ignore=["re:.*qkv.*"])}},
    {"model": {"model_class_overrides": {"LlamaForCausalLM": "other.module:Class"}}},
    {"names": "other layer {}"}, {"whole": backend("FLASH_ATTN")}, {"whole": backend("FLASHINFER")},
    {"whole": {"load_config": SimpleNamespace(load_format="dummy")}},
    {"model": {"multimodal_config": SimpleNamespace(mm_processor_kwargs={"max_pixels": 1})}},
    {"whole": {"speculative_config": SimpleNamespace(method="eagle",
                                                     draft_model_config=SimpleNamespace(model=folder("d")))}}])
def test_whatever_changes_the_bytes_changes_every_key(pool, change):
    if "maru_chunk_tokens" in change:
        other = connector(pool, **change)
        assert other._root(SimpleNamespace()) != connector(pool)._root(SimpleNamespace())
        return
    assert not keys(connector(pool)) & keys(connector(pool, **change))


def test_what_is_overridden_of_the_model_s_configuration_is_in_the_keys(pool):
    """As vLLM itself reads it: --hf-overrides, here another scaling of positions."""
    from small_engine import model_config
    from vllm.config import ModelConfig
    folder = model_config().model

    def root(length=2048, **scaling):
        values = {"rope_theta": 10000.0, "original_max_position_embeddings": 512, **scaling}
        rope = {"rope_parameters": values} if scaling else {}
        model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", seed=0,
                            max_model_len=length, hf_overrides=rope)
        made = connector(pool, model={name: getattr(model, name) for name in ("hf_config", "max_model_len")})
        made.shutdown()
        return made._root(SimpleNamespace())

    long = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    assert root() == root(1024)
    assert len({root(), root(rope_type="yarn", factor=4.0), root(rope_type="yarn", factor=2.0), root(**long),
                root(512, **long)}) == 5


def test_copies_of_a_model_in_two_folders_are_one(pool):
    def root(path, version, **extra):
        values = {"_name_or_path": path, "transformers_version": version, "rope_theta": 1e4, "model_type": "llava",
                  "dtype": version, "text_config": {"model_type": "llama", "dtype": path, "_name_or_path": path}}
        made = connector(pool, model={"hf_config": SimpleNamespace(to_dict=lambda: values), "model": path}, **extra)
        made.shutdown()
        return made._root(SimpleNamespace())

    assert root("/a", "4.1", maru_model="m") == root("/b", "4.2", maru_model="m")
    assert root(folder("one", "same"), "4.1") == root(folder("two", "same"), "4.2") != root(folder("three"), "4.2")


def test_two_fine_tunes_under_one_relative_path_do_not_meet(pool, monkeypatch, tmp_path):
    found = []
    for engine, weights in (("1", "one"), ("2", "two"), ("3", "one")):
        (tmp_path / engine / "m").mkdir(parents=True)
        (tmp_path / engine / "m" / "model.safetensors").write_text(weights)
        monkeypatch.chdir(tmp_path / engine)
        found.append(keys(connector(pool, model={"model": "./m"})))
    assert not found[0] & found[1] and found[0] == found[2]


def test_weights_that_change_in_place_are_others_at_the_next_start(pool):
    def changed(name, **more):
        folder(name)
        before, named = keys(connector(pool, **more)), keys(connector(pool, maru_model="n", **more))
        folder(name, weights=name.upper())
        assert keys(connector(pool, maru_model="n", **more)) == named or name == "draft"
        return not before & keys(connector(pool, **more))

    assert changed("changes", model={"model": folder("changes")})
    draft = SimpleNamespace(method="eagle", draft_model_config=SimpleNamespace(model=folder("draft")))
    assert changed("draft", whole={"speculative_config": draft})
    scales = {"multimodal_config": SimpleNamespace(mm_encoder_fp8_scale_path=folder("scales") + "/model.safetensors")}
    folder("scales")
    before = keys(connector(pool, model=scales))
    folder("scales", weights="others")
    assert not before & keys(connector(pool, model=scales))


def test_a_worker_whose_machine_has_other_weights_shares_nothing(pool):
    """The scheduler's machine may have those of the others: what a worker read is in its own part of the keys."""
    first, other = (connector(pool, model={"model": folder(name)}) for name in ("m", "n"))
    assert first._rank_digest != other._rank_digest
    for made in (first, other):
        made.shutdown()


@pytest.mark.parametrize("change", [{"model": {"model": "/nowhere/at/all"}}, {"model": {"model_weights": "s3://bucket/m"}},
                                    {"whole": {"load_config": SimpleNamespace(load_format="tensorizer")}}])
def test_weights_that_are_not_to_be_had_have_to_be_named(pool, change):
    with pytest.raises(maru.InvalidArgumentError, match="set maru_model in kv_connector_extra_config"):
        connector(pool, **change)
    assert keys(connector(pool, maru_model="n", **change)) != keys(connector(pool, maru_model="m", **change))


def test_made_up_weights_need_no_files(pool):
    keys(connector(pool, model={"model": "/nowhere/at/all"}, whole={"load_config": SimpleNamespace(load_format="dummy")}))


def test_a_name_of_a_hub_stands_for_the_revision_that_was_downloaded(pool, tmp_path):
    """In the hub's own layout, read by its own library."""
    repository = tmp_path / "models--o--m"

    def download(commit, weights):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "model.safetensors").write_text(weights)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)

    def made(commit, revision=None):
        config = SimpleNamespace(_commit_hash=commit, to_dict=dict)
        return keys(connector(pool, model={"model": "o/m", "revision": revision, "hf_config": config},
                              whole={"load_config": SimpleNamespace(load_format="auto", download_dir=str(tmp_path))}))

    first, second = "a" * 40, "b" * 40
    download(first, "one")
    before = made(first)
    download(second, "two")
    assert not before & made(second) and made(first, revision=first) == before
    with pytest.raises(maru.InvalidArgumentError, match="revision that does not move"):
        made(first)


def test_all_of_a_quantization_is_in_the_keys(pool):
    def root(dtype):
        values = {"model_type": "llama", "quantization_config": {"global_quant_config": {"weight": {"dtype": dtype}}}}
        made = connector(pool, model={"hf_config": SimpleNamespace(to_dict=lambda: values)})
        made.shutdown()
        return made._root(SimpleNamespace())

    assert root("fp8_e4m3") != root("int4")


def test_attention_back_ends_do_not_share_blocks(pool):
    assert not keys(connector(pool, whole=backend("FLASH_ATTN"))) & keys(connector(pool, whole=backend("FLASHINFER")))
    assert keys(connector(pool, whole=backend("FLASHINFER"))) == keys(connector(pool, whole=backend("FLASHINFER")))


@pytest.mark.parametrize("feature", ["_is_amx_tile_supported", "_is_avx512_supported"])
def test_processors_with_other_instructions_do_not_share_blocks(pool, monkeypatch, feature):
    """vLLM's attention on a processor orders the bytes of a block by them."""
    monkeypatch.setattr(torch.cpu, feature, lambda: False)
    without = keys(connector(pool))
    assert keys(connector(pool)) == without
    monkeypatch.setattr(torch.cpu, feature, lambda: True)
    assert not keys(connector(pool)) & without


def test_stages_of_other_layers_do_not_share_blocks(pool):
    """As VLLM_PP_LAYER_PARTITION makes them: the second of three stages with layers 8 to 19, or 12 to 23."""
    from maru.paged_layers import PagedLayers

    def stage(first):
        return PagedLayers({f"model.layers.{first + i}.attn": torch.zeros(2, BLOCKS, BLOCK, 2, 8) for i in range(12)}, BLOCKS)

    assert stage(8).layout == stage(8).layout != stage(12).layout


def test_a_kv_cache_that_layers_share_is_kept_once():
    from maru.paged_layers import PagedLayers
    layers = {name: torch.randn(2, BLOCKS, BLOCK, 2, 8) for name in "ab"}
    alone, shared = PagedLayers(layers, BLOCKS), PagedLayers({**layers, "c": layers["a"]}, BLOCKS)
    assert alone.block_bytes == shared.block_bytes and alone.layout == shared.layout


def test_ranks_differ_from_each_other(pool):
    places = [{"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "rank": rank} for rank in range(4)]
    found = [keys(connector(pool, parallel=place)) for place in places]
    assert len(set().union(*found)) == 12


@pytest.mark.parametrize("request_change", [
    {"lora_request": SimpleNamespace(lora_name="l", lora_path=folder("lora"))}, {"cache_salt": "salt"},
    {"mm_features": [SimpleNamespace(modality="image", identifier="i", mm_position=SimpleNamespace(offset=0, length=2))]}])
def test_lora_salt_and_images_change_every_key(pool, request_change):
    assert not keys(connector(pool)) & keys(connector(pool), **request_change)


def test_an_image_changes_the_keys_from_its_chunk_on(pool):
    def image(name, offset):
        return {"mm_features": [SimpleNamespace(modality="image", identifier=name,
                                                mm_position=SimpleNamespace(offset=offset, length=2))]}

    plain = keys(connector(pool))
    first, other = keys(connector(pool), **image("a", CHUNK + 1)), keys(connector(pool), **image("b", CHUNK + 1))
    assert len(plain & first) == len(plain & other) == len(first & other) == 1


def lora(path, number=1, **more):
    return SimpleNamespace(lora_name="l", lora_int_id=number, lora_path=path, **more)


def test_an_adapter_is_known_by_its_weights(pool):
    first, copy, other = (keys(connector(pool), lora_request=lora(path)) for path in (
        folder("lora"), folder("lora copy", weights="lora"), folder("lora of the same name")))
    assert first == copy and not first & other
    assert not first & keys(connector(pool), lora_request=lora(folder("lora"), is_3d_lora_weight=True))


def test_an_adapter_that_changes_in_place_is_another_at_the_next_start(pool):
    before = keys(connector(pool), lora_request=lora(folder("lora in place")))
    folder("lora in place", weights="others")
    assert not before & keys(connector(pool), lora_request=lora(folder("lora in place", weights="others")))


def said(caplog):
    return [record.message for record in caplog.records if record.name == "vllm.maru"]


def test_an_adapter_whose_files_change_under_an_engine_is_left_alone(pool, caplog):
    """It is not known which of its files a worker has loaded."""
    made, path = connector(pool), folder("lora that changes")

    def plan(number):
        request = SimpleNamespace(request_id=f"r{len(made._requests)}", all_token_ids=PROMPT, num_tokens=len(PROMPT),
                                  num_computed_tokens=0, lora_request=lora(path, number))
        return made._plan(request)

    before = plan(1)
    assert before is not None and plan(1).root == before.root and not said(caplog)
    folder("lora that changes", weights="others")
    for _ in range(3):
        assert plan(1) is None
    message, = said(caplog)
    assert "files have changed" in message and "new number" in message
    assert plan(2).root != before.root
    made.reset_cache()
    made.shutdown()


@pytest.mark.parametrize("path", ["owner/adapter", "/nowhere/at/all"])
def test_an_adapter_that_is_in_no_folder_is_left_alone_and_said_to_be_once(pool, caplog, path):
    made = connector(pool)
    made.set_xfer_handshake_metadata({0: made.get_handshake_metadata()})
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT), lora_request=lora(path))
    for _ in range(3):
        assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    message, = said(caplog)
    assert "without the pool" in message and path in message and made._requests == {}
    made.shutdown()


def test_the_same_configuration_has_the_same_keys_in_another_process(pool):
    code = ("import sys; sys.path[:0] = sys.argv[2:]; from types import SimpleNamespace; import test_vllm_keys as t; "
            "print(*sorted(key.hex() for key in t.keys(t.connector(SimpleNamespace(socket=sys.argv[1])))))")
    done = subprocess.run([sys.executable, "-c", code, str(pool.socket), *sys.path], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == sorted(key.hex() for key in keys(connector(pool)))


def test_latent_attention_has_one_kv_cache_for_all_ranks_and_one_writer(pool):
    parts = [connector(pool, mla=True, kv=(BLOCKS, BLOCK, 32), parallel={"tensor_parallel_size": 2, "rank": rank})
             for rank in (0, 1)]
    assert [part._stores for part in parts] == [True, False]
    assert keys(parts[0]) == keys(parts[1])


@pytest.mark.parametrize("layout", [(2, BLOCKS, BLOCK, 2, 8), (BLOCKS, 2, BLOCK, 2, 8), (BLOCKS, BLOCK, 32),
                                    (2 * BLOCKS, 2, 2, 8), (2, BLOCKS, 4, 128, 64), (BLOCKS, 2, 4, 128, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_blocks_are_copied_bit_for_bit(layout, dtype):
    from maru.paged_layers import PagedLayers
    noise = torch.randint(0, 256, layout[:-1] + (layout[-1] * dtype.itemsize,), dtype=torch.uint8)
    source = {"a": noise.view(dtype), "b": noise.flip(0).contiguous().view(dtype)}
    target = {name: torch.zeros_like(layer) for name, layer in source.items()}
    from_layers, to_layers = PagedLayers(source, BLOCKS), PagedLayers(target, BLOCKS)
    buffer = bytearray(3 * from_layers.block_bytes)
    from_layers.gather([5, 0, 9], buffer)
    to_layers.scatter([1, 2, 3], bytes(buffer))
    again = bytearray(3 * from_layers.block_bytes)
    to_layers.gather([1, 2, 3], again)
    assert again == buffer
    to_layers.scatter([12], bytes(buffer), skip=2)
    one, expected = bytearray(to_layers.block_bytes), bytearray(to_layers.block_bytes)
    to_layers.gather([12], one)
    from_layers.gather([9], expected)
    assert one == expected
    untouched = bytearray(to_layers.block_bytes)
    to_layers.gather([0], untouched)
    assert not any(untouched)
    # As for a layer in the memory of a device, which torch copies.
    from_layers._native = to_layers._native = None
    by_torch = bytearray(3 * from_layers.block_bytes)
    from_layers.gather([5, 0, 9], by_torch)
    assert by_torch == buffer
    to_layers.scatter([4, 5, 6], bytes(buffer))
    to_layers.gather([4, 5, 6], by_torch)
    assert by_torch == buffer


def test_copies_in_the_processor_s_memory_wait_for_no_thread_of_torch(monkeypatch):
    from maru.paged_layers import PagedLayers
    layers = PagedLayers({"a": torch.randn(2, BLOCKS, 2, 128, 64)}, BLOCKS)
    buffer = bytearray(2 * layers.block_bytes)

    def refuse(*_, **__):
        raise AssertionError("torch copies")

    for name in ("index_select", "index_copy_", "copy_"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    layers.gather([3, 4], buffer)
    layers.scatter([5, 6], bytes(buffer))
    monkeypatch.undo()
    again = bytearray(len(buffer))
    layers.gather([5, 6], again)
    assert again == buffer and any(buffer)


def test_heads_before_tokens_in_memory_are_the_same_block(pool):
    """Some back-ends permute strides; the order in which the engine counts is what counts."""
    from maru.paged_layers import PagedLayers
    plain = torch.randn(2, BLOCKS, BLOCK, 2, 8)
    permuted = plain.permute(0, 1, 3, 2, 4).contiguous().permute(0, 1, 3, 2, 4)
    buffers = [bytearray(2 * plain[0].numel() * 4 // BLOCKS * 2) for _ in range(2)]
    for layer, buffer in zip((plain, permuted), buffers):
        PagedLayers({"a": layer}, BLOCKS).gather([3, 4], buffer)
    assert buffers[0] == buffers[1] and any(buffers[0])


def test_latent_attention_beside_other_attention_has_a_kv_cache_for_each_rank(pool):
    """As with a draft model of another kind."""
    both = UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"a": spec(MLAAttentionSpec), "b": spec(FullAttentionSpec)})
    parts = [connector(pool, attention=both, parallel={"tensor_parallel_size": 2, "rank": rank}) for rank in (0, 1)]
    assert [part._stores for part in parts] == [True, True]
    assert not keys(parts[0]) & keys(parts[1])


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("kind, more", [
    (kept.SlidingWindowSpec, {"sliding_window": 8}), (kept.ChunkedLocalAttentionSpec, {"attention_chunk_size": 8}),
    (kept.RSWASpec, {"rswa_window": 8}), (kept.SinkFullAttentionSpec, {"sink_len": BLOCK}), (kept.HiddenStateCacheSpec, {}),
    (kept.CrossAttentionSpec, {}), (kept.EncoderOnlyAttentionSpec, {}), (FullAttentionSpec, {"non_causal": True}),
    (MLAAttentionSpec, {"tokens_per_state": 4})])
def test_what_is_not_kept_for_every_token_is_refused(pool, kind, more, wrap):
    """Blocks before a window are freed, and stand in vLLM's tables as its block 0, or as what another request has in them."""
    attention = spec(kind, **more)
    if wrap:
        attention = UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"a": spec(FullAttentionSpec), "b": attention})
    with pytest.raises(maru.InvalidArgumentError, match="without --kv-transfer-config"):
        connector(pool, attention=attention)


def test_a_window_that_vllm_computes_and_does_not_free_is_kept_whole(pool):
    """What a model with several kinds of attention has without vLLM's hybrid manager."""
    assert len(keys(connector(pool, attention=spec(FullAttentionSpec, sliding_window=8)))) == 3


@pytest.mark.parametrize("change, word", [
    ({"groups": 0}, "0 groups"), ({"groups": 2}, "disable-hybrid"), ({"model": {"is_diffusion": True}}, "diffusion"),
    ({"cache": {"calculate_kv_scales": True}}, "calculate-kv-scales"),
    ({"model": {"multimodal_config": SimpleNamespace(mm_processor_cache_gb=0)}, "cache": {"enable_prefix_caching": False}},
     "mm-processor-cache-gb"),
    ({"parallel": {"prefill_context_parallel_size": 2}}, "prefill_context"),
    ({"parallel": {"pipeline_parallel_size": 2}, "whole": drafting(asynchronous=False)}, "no-async-scheduling"),
    ({"maru_chunk_tokens": 6}, "multiple"), ({"maru_chunk_tokens": 0}, "from 1 to 4096"),
    ({"maru_chunk_tokens": 4100}, "from 1 to 4096"), ({"maru_priority": -1}, "maru_priority"),
    ({"maru_ttl_ms": -1}, "maru_ttl"), ({"maru_store_generated": "false"}, "true or false"),
    ({"maru_sockt": "x"}, "maru_sockt"), ({"parallel": {"decode_context_parallel_size": 2}}, "decode_context"),
    ({"kv": (3, 7, BLOCK, 2, 8)}, "shape")])
def test_what_cannot_work_is_refused_at_the_start(pool, change, word):
    with pytest.raises(maru.InvalidArgumentError, match=word):
        connector(pool, **change)


def test_drafts_in_a_pipeline_are_taken_with_asynchronous_scheduling(pool):
    connector(pool, parallel={"pipeline_parallel_size": 2}, whole=drafting(asynchronous=True)).shutdown()
    connector(pool, whole=drafting(asynchronous=False)).shutdown()


def test_a_vllm_without_a_way_to_forget_blocks_is_refused(pool, monkeypatch):
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    monkeypatch.delattr(KVConnectorBase_V1, "bind_kv_cache_manager")
    with pytest.raises(maru.InvalidArgumentError, match="0.33"):
        connector(pool)


def test_a_load_is_remembered_for_all_steps_that_vllm_schedules_ahead(pool):
    """Four stages of a pipeline with asynchronous scheduling have five steps under way."""
    from vllm.config import VllmConfig
    places = {"pipeline_parallel_size": 4}
    batches = VllmConfig.max_concurrent_batches.fget(SimpleNamespace(
        parallel_config=SimpleNamespace(**places), scheduler_config=SimpleNamespace(async_scheduling=True),
        use_v2_model_runner=True))
    assert batches == 5
    assert connector(pool, parallel=places, whole={"max_concurrent_batches": batches})._depth > batches


def test_before_the_workers_said_how_their_memory_lies_nothing_matches(pool):
    made = connector(pool)
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT))
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    with pytest.raises(maru.InvalidArgumentError, match="2 workers"):
        made.set_xfer_handshake_metadata({0: made.get_handshake_metadata(), 1: made.get_handshake_metadata()})


def test_adapters_that_are_replaced_in_place_are_left_alone(pool):
    made = connector(pool)
    made.set_xfer_handshake_metadata({0: made.get_handshake_metadata()})
    lora = SimpleNamespace(lora_name="l", lora_path="/a", load_inplace=True)
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT), lora_request=lora)
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    made.update_state_after_alloc(request, None, 0)
    assert made._requests == {}


def test_prompts_that_are_embeddings_are_left_alone(pool):
    made = connector(pool)
    made.set_xfer_handshake_metadata({0: made.get_handshake_metadata()})
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT), prompt_embeds=object())
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    made.update_state_after_alloc(request, None, 0)
    assert made._requests == {}
