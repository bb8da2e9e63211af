"""LoRA adapters of the pool in vLLM's own classes, beside vLLM's own loading of the same files."""
import asyncio
import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from test_adapters import write_adapter  # noqa: E402

from maru import vllm_lora  # noqa: E402

pytest.importorskip("vllm")


@pytest.fixture
def registered(marud, tmp_path, monkeypatch):
    monkeypatch.setenv("MARU_ADAPTERS", "1")
    monkeypatch.setenv("MARU_SOCKET", str(marud.socket))
    monkeypatch.setenv("MARU_ADAPTERS_REGISTER", str(tmp_path / "register"))
    monkeypatch.setenv("MARU_ADAPTERS_ROOT", str(tmp_path))
    monkeypatch.setattr(vllm_lora, "pool_adapters", vllm_lora.PoolAdapters())
    vllm_lora.register()
    import vllm.lora.lora_model
    monkeypatch.setattr(vllm.lora.lora_model, "PIN_MEMORY", False, raising=False)  # this vLLM has no kernels
    yield vllm_lora.pool_adapters
    vllm_lora.pool_adapters.get().close()


def load(folder, expected=("q_proj",), **options):
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
    helper = PEFTHelper.from_local_dir(str(folder), 8192)
    return LoRAModel.from_local_checkpoint(str(folder), set(expected), peft_helper=helper, lora_model_id=1, device="cpu",
                                           **options)


def test_the_resolver_finds_adapters_and_no_others(registered, tmp_path):
    from vllm.lora.resolver import LoRAResolverRegistry
    write_adapter(tmp_path / "a")
    resolver = LoRAResolverRegistry.get_resolver("maru")
    request = asyncio.run(resolver.resolve_lora("base/model", "a"))
    assert (request.lora_name, request.lora_path) == ("a", str(tmp_path / "a"))
    assert request.lora_int_id == vllm_lora.number_of("a") != vllm_lora.number_of("b")
    for name in ("none", "..", "../a", ""):
        assert asyncio.run(resolver.resolve_lora("base/model", name)) is None
    registered.get().unload("a")


def test_weights_of_the_pool_are_those_that_vllm_loads(registered, tmp_path, caplog):
    write_adapter(tmp_path / "a")
    own = load(tmp_path / "a", dtype=torch.float32)
    assert registered.get().statistics()["loads"] == 1
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
    helper = PEFTHelper.from_local_dir(str(tmp_path / "a"), 8192)
    theirs = LoRAModel.maru_original_checkpoint(LoRAModel, str(tmp_path / "a"), {"q_proj"}, helper, lora_model_id=1,
                                                device="cpu", dtype=torch.float32)
    assert own.loras.keys() == theirs.loras.keys() and len(own.loras) == 2
    for name, lora in theirs.loras.items():
        assert torch.equal(own.loras[name].lora_a, lora.lora_a) and torch.equal(own.loras[name].lora_b, lora.lora_b)
        assert own.loras[name].scaling == lora.scaling
    load(tmp_path / "a")
    totals = registered.get().statistics()
    assert (totals["loads"], totals["acquires_hot"]) == (1, 1)
    assert "reads the LoRA adapter" not in caplog.text


def test_what_the_pool_refuses_vllm_loads_itself(registered, tmp_path, monkeypatch):
    write_adapter(tmp_path / "a")
    def refused(folder):
        raise OSError("no pool")

    with monkeypatch.context() as own:
        own.setattr(registered, "tensors", refused)
        assert len(load(tmp_path / "a").loras) == 2
    assert registered.get().statistics()["loads"] == 0


def test_vllm_refuses_modules_that_the_model_has_not(registered, tmp_path):
    write_adapter(tmp_path / "a")
    with pytest.raises(ValueError, match="expected target modules"):
        load(tmp_path / "a", expected=("k_proj",))


def test_pip_tells_vllm_of_the_plug_in():
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert any(plugin.value == "maru.vllm_lora:register" for plugin in plugins)
