"""maru.tokens against the engines' own functions, on prompts that are drawn anew each time."""
import itertools
import random

import pytest

from maru import tokens

pytest.importorskip("blake3", reason="scripts/test-engines installs it")
pytest.importorskip("cbor2", reason="scripts/test-engines installs it")
pytest.importorskip("xxhash", reason="scripts/test-engines installs it")
import token_reference  # noqa: E402

SEED = random.randrange(1 << 32)


@pytest.mark.parametrize("algorithm", token_reference.ALGORITHMS)
def test_the_libraries_that_the_engines_use_compute_the_same(algorithm):
    draw = random.Random(SEED)
    print("seed", SEED)
    for _ in range(60):
        block = draw.choice((1, 2, 3, 4, 16, 64, 256, 257, 1000))
        prompt = [draw.randrange(draw.choice((24, 256, 1 << 16, 1 << 20, 1 << 32))) for _ in range(block * draw.randrange(4))]
        parent = draw.randbytes(draw.choice((8, 16, 32)))
        extra = {} if algorithm == "blake3" else {
            **draw.choice(({}, {"lora_name": "name", "lora_path": "/path"}, {"lora_name": "name", "extra_keys": "bare"})),
            "cache_salt": draw.choice((None, "s"))}
        call = tokens.lmcache if algorithm == "blake3" else tokens.vllm
        found = call(prompt, block, algorithm=algorithm, parent=parent, **extra)
        assert [bytes(row) for row in found] == token_reference.chain(algorithm, prompt, block, parent, **extra)


@pytest.mark.parametrize("algorithm", token_reference.ALGORITHMS[1:])
def test_lmcache_within_an_engine_folds_and_chains_the_same(algorithm):
    draw = random.Random(SEED)
    print("seed", SEED)
    for _ in range(40):
        chunk = draw.choice((1, 3, 16, 256))
        prompt = [draw.randrange(draw.choice((24, 1 << 16, 1 << 32))) for _ in range(chunk * draw.randrange(4))]
        parent = draw.randrange(1 << draw.randrange(65))
        found = tokens.lmcache_engine(prompt, chunk, algorithm=algorithm, parent=parent)
        assert found.tolist() == token_reference.lmcache_engine(algorithm, prompt, chunk, parent)


@pytest.mark.parametrize("name", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_vllm_itself_computes_the_same(name, monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    function = get_hash_fn_by_name(name)
    kv_cache_utils.init_none_hash(function)
    root = tokens.root(name, seed="17")
    assert root == kv_cache_utils.NONE_HASH
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request
    prompt = [random.Random(SEED).randrange(150000) for _ in range(64)]
    for lora, salt in itertools.product((None, ("adapter", "/adapters/one"), ("other", "/" + "p" * 300)), (None, "salt")):
        request = Request(
            request_id="r", prompt_token_ids=prompt, sampling_params=SamplingParams(max_tokens=1), pooling_params=None,
            lora_request=LoRARequest(lora_name=lora[0], lora_int_id=1, lora_path=lora[1]) if lora else None, cache_salt=salt,
            block_hasher=kv_cache_utils.get_request_block_hasher(16, function))
        name_and_path = {} if lora is None else {"lora_name": lora[0], "lora_path": lora[1]}
        found = tokens.vllm(prompt, algorithm=name, parent=root, cache_salt=salt, **name_and_path)
        assert [bytes(row) for row in found] == list(map(bytes, request.block_hashes)), (lora, salt)
