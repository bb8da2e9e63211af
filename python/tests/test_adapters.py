"""Adapters from Python: files that are written here, byte by byte, and the page's program."""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from with_marud import PATIENCE, Marud

from maru.adapters import AdapterError, Adapters, BatchFormer, Bgmv, Tier
from maru.vllm_lora import PoolAdapters

ROOT = pathlib.Path(__file__).resolve().parents[2]
A, B = ".lora_A.weight", ".lora_B.weight"


def write_adapter(folder, seed=1, rank=8, base="base/model", layers=2, features=64):
    """As PEFT writes it. The tensors, by their names."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        path = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[path + A] = random.standard_normal((rank, features)).astype(np.float16)
        tensors[path + B] = random.standard_normal((features, rank)).astype(np.float16)
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": base, "target_modules": ["q_proj"]}))
    return tensors


@pytest.fixture
def adapters(marud, tmp_path):
    with Adapters(str(marud.socket), register_path=tmp_path / "register") as opened:
        yield opened


def test_an_adapter_comes_back_as_the_file_has_it(adapters, tmp_path):
    tensors = write_adapter(tmp_path / "a")
    adapters.load("a", tmp_path / "a")
    with adapters.acquire("a", exact=True) as adapter:
        assert adapter.info.tier is Tier.HOT and len(adapter) == 2
        for module in adapter:
            path = "base_model.model." + module.name
            assert np.array_equal(adapter.a(module.name), tensors[path + A].astype(np.float32))
            assert np.array_equal(adapter.b(module.name), tensors[path + B].astype(np.float32))
            number = adapter.number(module.name)
            assert np.array_equal(adapter.matrix(number, 1, raw=True).view(np.float16), tensors[path + A])
            assert module.scaling == 2.0
    with pytest.raises(AdapterError, match="released"):
        adapter.a(module.name)
    adapters.unload("a")


def test_the_small_form_is_within_its_bound(adapters, tmp_path):
    tensors = write_adapter(tmp_path / "a", seed=2)
    adapters.load("a", tmp_path / "a")
    with adapters.acquire("a") as adapter:
        assert adapter.info.tier is Tier.WARM and adapter.module(0).dtype == "int8"
        exact = tensors["base_model.model." + adapter.module(0).name + A].astype(np.float32)
        bound = np.abs(exact).max(axis=1, keepdims=True) / 254 * 1.001
        assert (np.abs(adapter.a(adapter.module(0).name) - exact) <= bound).all()
    adapters.unload("a")


def test_what_is_refused_says_why(adapters, tmp_path):
    write_adapter(tmp_path / "a")
    write_adapter(tmp_path / "b", seed=3)
    adapters.load("a", tmp_path / "a")
    with pytest.raises(AdapterError, match="belongs to the adapter in") as refused:
        adapters.load("a", tmp_path / "b")
    assert refused.value.errno == 17
    weights = tmp_path / "b" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(AdapterError, match="lie outside of the"):
        adapters.load("b", tmp_path / "b")
    with pytest.raises(KeyError):
        adapters["b"]
    with pytest.raises(AdapterError, match="16 bytes"):
        Adapters(base_fingerprint=b"short")
    with pytest.raises(TypeError, match="unknown option 'hot'"):
        Adapters(hot=3)
    assert [info.name for info in adapters] == ["a"]
    adapters.unload("a")


def test_products_equal_numpy(adapters, tmp_path):
    write_adapter(tmp_path / "a", rank=8)
    write_adapter(tmp_path / "b", seed=4, rank=24)
    held = []
    for name in "ab":
        adapters.load(name, tmp_path / name)
        held.append(adapters.acquire(name, exact=True))
    chosen = [held[0], None, held[1], held[0]]
    x = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    y = np.zeros((4, 64), dtype=np.float32)
    Bgmv(threads=2).add(chosen, 1, x, y)
    for row, adapter in enumerate(chosen):
        name = held[0].module(1).name
        expected = 0 if adapter is None else 2.0 * adapter.b(name) @ (adapter.a(name) @ x[row])
        assert np.allclose(y[row], expected, rtol=1e-4, atol=1e-3)
    with pytest.raises(AdapterError, match="columns"):
        Bgmv(threads=1).add(chosen, 1, x[:, :32].copy(), y)
    for adapter in held:
        adapter.release()
    for name in "ab":
        adapters.unload(name)


def test_totals_and_metrics(adapters, tmp_path):
    write_adapter(tmp_path / "a")
    adapters.load("a", tmp_path / "a")
    assert adapters.prefetch(["a", "none"]) == {"a": None, "none": os.strerror(2)}
    adapters.acquire("a").release()
    totals = adapters.statistics()
    assert (totals["loads"], totals["acquires_warm"], totals["warm_adapters"]) == (1, 1, 1)
    assert 'maru_adapter_acquires_total{tier="warm"} 1\n' in adapters.metrics()
    assert adapters.rebalance() == 0
    adapters.unload("a")


def test_a_program_lists_them(marud, adapters, tmp_path):
    write_adapter(tmp_path / "a")
    adapters.load("a", tmp_path / "a")
    adapters.acquire("a").release()

    def listed(*arguments):
        done = subprocess.run([sys.executable, "-m", "maru.adapters", "--register", tmp_path / "register", *arguments],
                              env=marud.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    heading, line = listed().splitlines()
    assert line.split() == ["a", "WARM", "8", "1", "0.0", str(tmp_path / "a")]
    assert "maru_adapters_registered 1\n" in listed("--metrics")
    adapters.unload("a")


def test_batches():
    former = BatchFormer(requests_max=2)
    for id in (1, 2, 3):
        former.add(id, tenant=id, adapter=id, now_ms=0)
    former.cancel(2)
    assert former.next(now_ms=1) == [1, 3] and len(former) == 0
    with pytest.raises(AdapterError):
        former.cancel(1)


def test_the_program_of_the_page_runs(marud, tmp_path):
    write_adapter(tmp_path / "sql")
    page = (ROOT / "docs" / "adapters.md").read_text()
    program, output = re.search(r"```python\n(.*?)```\n\nIt prints\n\n```\n(.*?)```", page, re.DOTALL).groups()
    example = ROOT / "docs" / "examples" / "python" / "adapters.py"
    assert program == example.read_text()
    done = subprocess.run([sys.executable, example, tmp_path], env=marud.environment, capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


@pytest.mark.parametrize("is_named", [False, True])
def test_vllm_gets_the_files_that_a_folder_has_now(marud, tmp_path, monkeypatch, is_named):
    monkeypatch.setenv("MARU_SOCKET", str(marud.socket))
    monkeypatch.setenv("MARU_ADAPTERS_REGISTER", str(tmp_path / "register"))
    pool = PoolAdapters()
    write_adapter(tmp_path / "a", seed=1)
    new = write_adapter(tmp_path / "new", seed=2)
    if is_named:
        pool.get().load("sql", tmp_path / "a")
    old_name = pool.name_of(tmp_path / "a")
    assert pool.name_of(tmp_path / "a") == old_name and (old_name == "sql") == is_named
    pool.get().acquire(old_name, exact=True).release()  # the pool has the old weights
    (tmp_path / "a").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "a")
    with pool.get().acquire(pool.name_of(tmp_path / "a"), exact=True) as adapter:
        module = adapter.module(0)
        assert np.array_equal(adapter.a(module.name), new["base_model.model." + module.name + A].astype(np.float32))
    assert len(list(pool.get())) == 1 + is_named  # a name that the plug-in made goes with its files
    pool.get().close()


def test_a_set_that_another_thread_closes_serves_the_call_under_way(marud_program, tmp_path):
    with Marud(marud_program) as own:
        adapters = Adapters(str(own.socket), register_path=tmp_path / "register")
        tensors = write_adapter(tmp_path / "a")
        adapters.load("a", tmp_path / "a")
        own.process.send_signal(signal.SIGSTOP)  # so that the call waits for memory
        held = []
        thread = threading.Thread(target=lambda: held.append(adapters.acquire("a", exact=True)))
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while adapters.statistics()["acquires_cold"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        adapters.close()
        own.process.send_signal(signal.SIGCONT)
        thread.join()
        with held[0] as adapter:
            module = adapter.module(0)
            assert np.array_equal(adapter.a(module.name), tensors["base_model.model." + module.name + A].astype(np.float32))
        with pytest.raises(AdapterError, match="closed"):
            adapters.acquire("a")
