"""maru.tokens against the engines' own functions, on prompts that are drawn anew each time."""
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
            "lora_name": draw.choice((None, "lora")), "cache_salt": draw.choice((None, "s"))}
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
    prompt = [random.Random(SEED).randrange(150000) for _ in range(64)]
    parent, expected = None, []
    for begin in range(0, 64, 16):
        extra = ("lora", "salt") if begin == 0 else ("lora",)
        parent = kv_cache_utils.hash_block_tokens(function, parent, prompt[begin:begin + 16], extra)
        expected.append(parent)
    found = tokens.vllm(prompt, algorithm=name, parent=root, lora_name="lora", cache_salt="salt")
    assert [bytes(row) for row in found] == expected
