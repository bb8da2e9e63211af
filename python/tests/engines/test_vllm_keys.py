"""What the keys of vLLM's chunks carry, and what the connector refuses. The interface is vLLM's; the configuration has just the
fields that the connector reads, so that any can be changed."""
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
import torch  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402

import maru  # noqa: E402
from maru import chunk_keys  # noqa: E402
from maru.vllm import MaruConnector  # noqa: E402

BLOCKS, BLOCK, CHUNK = 16, 4, 8
PROMPT = list(range(3 * CHUNK))


def connector(pool, *, kv=(2, BLOCKS, BLOCK, 2, 8), dtype=torch.bfloat16, layers=2, groups=1, block=BLOCK, mla=False,
              parallel=None, model=None, cache_dtype="auto", **extra):
    settings = {"maru_socket": str(pool.socket), "maru_chunk_tokens": CHUNK, "maru_timeout_ms": 60_000, **extra}
    places = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "rank": 0, **(parallel or {})}
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=settings, is_kv_producer=True, is_kv_consumer=True),
        parallel_config=SimpleNamespace(**places),
        model_config=SimpleNamespace(**{"model": "m", "revision": None, "dtype": "bf16", "quantization": None, "use_mla": mla,
                                        **(model or {})}),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype))
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=block))
    made = MaruConnector(config, KVConnectorRole.WORKER, SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[group] * groups))
    made.register_kv_caches({f"layer {i}": torch.zeros(kv, dtype=dtype) for i in range(layers)})
    return made


def keys(made, **request):
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT), prompt_embeds=None, **request)
    plan = made._plan(request)
    found = {bytes(row) for row in chunk_keys.of_rank(plan.hash_to(len(PROMPT), CHUNK), made._rank_digest)}
    made.request_finished(request, [])
    made.shutdown()
    assert len(found) == 3
    return found


@pytest.mark.parametrize("change", [
    {"model": {"model": "n"}}, {"model": {"revision": "r1"}}, {"model": {"dtype": "f16"}}, {"model": {"quantization": "fp8"}},
    {"cache_dtype": "fp8"}, {"maru_model": "n"}, {"maru_chunk_tokens": 4, "block": 4}, {"dtype": torch.float16}, {"layers": 3},
    {"kv": (2, BLOCKS, BLOCK, 4, 8)}, {"kv": (BLOCKS, BLOCK, 32)}, {"kv": (2, BLOCKS, 2, BLOCK, 8)},
    {"parallel": {"tensor_parallel_size": 2}}, {"parallel": {"tensor_parallel_size": 2, "rank": 1}},
    {"parallel": {"pipeline_parallel_size": 2}}, {"parallel": {"pipeline_parallel_size": 2, "rank": 1}}])
def test_whatever_changes_the_bytes_changes_every_key(pool, change):
    if "maru_chunk_tokens" in change:
        other = connector(pool, **change)
        assert other._root(SimpleNamespace()) != connector(pool)._root(SimpleNamespace())
        return
    assert not keys(connector(pool)) & keys(connector(pool, **change))


def test_ranks_differ_from_each_other(pool):
    places = [{"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "rank": rank} for rank in range(4)]
    found = [keys(connector(pool, parallel=place)) for place in places]
    assert len(set().union(*found)) == 12


@pytest.mark.parametrize("request_change", [
    {"lora_request": SimpleNamespace(lora_name="l", lora_path="/a")}, {"cache_salt": "salt"},
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


def test_another_lora_of_the_same_name_is_another(pool):
    first, other = (keys(connector(pool), lora_request=SimpleNamespace(lora_name="l", lora_path=path)) for path in ("/a", "/b"))
    assert not first & other


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
                                    (2 * BLOCKS, 2, 2, 8)])
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


def test_heads_before_tokens_in_memory_are_the_same_block(pool):
    """Some back-ends permute strides; the order in which the engine counts is what counts."""
    from maru.paged_layers import PagedLayers
    plain = torch.randn(2, BLOCKS, BLOCK, 2, 8)
    permuted = plain.permute(0, 1, 3, 2, 4).contiguous().permute(0, 1, 3, 2, 4)
    buffers = [bytearray(2 * plain[0].numel() * 4 // BLOCKS * 2) for _ in range(2)]
    for layer, buffer in zip((plain, permuted), buffers):
        PagedLayers({"a": layer}, BLOCKS).gather([3, 4], buffer)
    assert buffers[0] == buffers[1] and any(buffers[0])


@pytest.mark.parametrize("change, word", [
    ({"groups": 2}, "disable-hybrid"), ({"maru_chunk_tokens": 6}, "multiple"), ({"maru_chunk_tokens": 0}, "from 1 to 4096"),
    ({"maru_chunk_tokens": 4100}, "from 1 to 4096"), ({"maru_priority": -1}, "maru_priority"),
    ({"maru_ttl_ms": -1}, "maru_ttl"), ({"maru_store_generated": "false"}, "true or false"),
    ({"maru_sockt": "x"}, "maru_sockt"), ({"parallel": {"decode_context_parallel_size": 2}}, "decode_context"),
    ({"kv": (3, 7, BLOCK, 2, 8)}, "shape")])
def test_what_cannot_work_is_refused_at_the_start(pool, change, word):
    with pytest.raises(maru.InvalidArgumentError, match=word):
        connector(pool, **change)


def test_before_the_workers_said_how_their_memory_lies_nothing_matches(pool):
    made = connector(pool)
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT))
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    with pytest.raises(maru.InvalidArgumentError, match="2 workers"):
        made.set_xfer_handshake_metadata({0: made.get_handshake_metadata(), 1: made.get_handshake_metadata()})


def test_the_pool_is_not_said_to_be_cleared(pool):
    assert connector(pool).reset_cache() is False


def test_prompts_that_are_embeddings_are_left_alone(pool):
    made = connector(pool)
    made.set_xfer_handshake_metadata({0: made.get_handshake_metadata()})
    request = SimpleNamespace(request_id="r", all_token_ids=PROMPT, num_tokens=len(PROMPT), prompt_embeds=object())
    assert made.get_num_new_matched_tokens(request, 0) == (0, False)
    made.update_state_after_alloc(request, None, 0)
    assert made._requests == {}
