"""A vLLM that computes with two LoRA adapters from the pool answers as one that loads their files itself."""
import pathlib
import sys

from engines import Engine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from test_adapters import write_adapter  # noqa: E402

from maru import vllm_lora  # noqa: E402
from maru.adapters import Adapters  # noqa: E402

OPTIONS = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16, "enable_prefix_caching": False}


def answers(engine, prompts, folders):
    """For each prompt those of the base model, and with each adapter. One after the other: in a batch the order of sums depends
    on what came first, and this model makes other tokens of the last bit."""
    loras = [None] + [[name, vllm_lora.number_of(name), str(folder)] for name, folder in folders.items()]
    engine.wait_ready()
    engine.send("generate", prompts=[prompt for prompt in prompts for _ in loras], tokens=12, together=False,
                loras=[lora for _ in prompts for lora in loras])
    reply = engine.reply()
    assert "error" not in reply, reply
    return reply["tokens"]


def test_two_adapters_of_the_pool(model, folder, shared, tmp_path, tokens):
    folders = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for seed, path in enumerate(folders.values(), 1):
        write_adapter(path, seed=seed, layers=3)
    prompts = [tokens(40), tokens(90)]
    # One engine after the other: each takes more than a gigabyte.
    with Engine(model, folder, "lora-files", **OPTIONS) as engine:
        own = answers(engine, prompts, folders)
    register = tmp_path / "register"
    environ = {"MARU_ADAPTERS": "1", "MARU_SOCKET": str(shared.socket), "MARU_ADAPTERS_REGISTER": str(register)}
    with Engine(model, folder, "lora-pool", environ=environ, **OPTIONS) as engine:
        pooled = answers(engine, prompts, folders)
    assert pooled == own
    for base, a, b in (own[:3], own[3:]):
        assert base != a != b != base, "the adapters change nothing, so that the test shows nothing"
    with Adapters(str(shared.socket), register_path=register) as adapters:
        assert adapters.statistics()["loads"] == 2
        assert sorted(info.folder for info in adapters) == sorted(str(path.resolve()) for path in folders.values())
        for info in list(adapters):
            adapters.unload(info.name)
