"""The configurations in docs/python are what the engines take."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import maru

DOCUMENTS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python"


def configuration(name, option):
    text = (DOCUMENTS / name).read_text()
    return text, json.loads(re.search(rf"{option} '(.*?)'", text, re.DOTALL)[1])


def documented(text):
    return {name for row in re.findall(r"^\| (`maru_.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(maru_\w+)`", row)}


def test_vllm_takes_what_its_document_says(pool):
    pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
    from small_engine import Engine
    from vllm.config import KVTransferConfig

    import maru.vllm
    text, given = configuration("vllm.md", "--kv-transfer-config")
    transfer = KVTransferConfig(**given)
    assert (transfer.kv_connector, transfer.kv_connector_module_path) == ("MaruConnector", "maru.vllm")
    assert transfer.is_kv_producer and transfer.is_kv_consumer and transfer.kv_load_failure_policy == "recompute"
    assert documented(text) == maru.vllm.SETTINGS
    with Engine(pool.socket, **{**given["kv_connector_extra_config"], "maru_chunk_tokens": 8, "maru_priority": 1,
                                "maru_ttl_ms": 60000, "maru_tenant": "t", "maru_store_generated": False}) as engine:
        engine.run("a", list(range(20)), 20)
        assert engine.workers[0]._client.statistics().stores == 2, "what was generated is not stored"


def test_engines_with_lmcache_give_the_same_chunk_the_same_name():
    """LMCache's chunk hashes begin with vLLM's NONE_HASH."""
    pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
    from vllm.config import KVTransferConfig

    text, given = configuration("lmcache.md", "--kv-transfer-config")
    assert KVTransferConfig(**given).kv_connector == "LMCacheConnectorV1"
    command = re.search(r"^((?:[A-Z_]+=\S+ )+)vllm serve", text, re.MULTILINE)[1]
    chosen = dict(word.split("=") for word in command.split())
    assert chosen["LMCACHE_CONFIG_FILE"] == re.search(r"```yaml\n# (\S+)\n", text)[1]
    algorithm = re.search(r'^pre_caching_hash_algorithm: "(\w+)"', text, re.MULTILINE)[1]
    code = ("from vllm.utils.hashing import get_hash_fn_by_name; from vllm.v1.core import kv_cache_utils\n"
            f"kv_cache_utils.init_none_hash(get_hash_fn_by_name('{algorithm}')); print(kv_cache_utils.NONE_HASH.hex())")
    first, second, of_another_seed = (
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **chosen, **more}, capture_output=True, text=True,
                       timeout=300, check=True).stdout for more in ({}, {}, {"PYTHONHASHSEED": "1"}))
    assert first == second != of_another_seed


def test_sglang_takes_what_its_document_says(pool):
    from sglang_interface import HostPool, backend

    import maru.sglang
    text, given = configuration("sglang.md", "--hicache-storage-backend-extra-config")
    assert documented(text) == maru.sglang.SETTINGS and given["hicache_storage_pass_prefix_keys"] is True
    host_pool = HostPool().fill(1)
    made = backend(pool.socket, host_pool, extra={**given, "maru_tenant": "t", "maru_priority": 1, "maru_ttl_ms": 60000})
    assert type(made).__name__ == given["class_name"]
    assert made.batch_set_v1(["a"], host_pool.indices([0])) == [True]


def test_a_chunk_of_the_example_fits_its_pool():
    text = (DOCUMENTS / "vllm.md").read_text()
    assert "256 tokens are 32 MiB" in text and 256 * 32 * 2 * 8 * 128 * 2 == 32 << 20
    assert maru.__version__
