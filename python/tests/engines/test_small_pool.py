"""Pools with less room than one prompt wants: what fits is stored and served, and requests are answered as without a pool."""
import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine  # noqa: E402

import maru  # noqa: E402

SMALL = dict(size="3MiB", page_bytes="64KiB", region_bytes="512KiB")


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("step_tokens", [2048, 32])  # all of a prompt in one step, and in many
def test_a_prompt_that_the_pool_cannot_hold_is_answered(marud_program, caplog, runner, step_tokens):
    from with_marud import Marud
    with Marud(marud_program, **SMALL) as small:
        with maru.Client(str(small.socket), timeout_ms=60_000) as client:
            chunks = client.geometry().pages  # each takes one
        prompts = {name: [(i * 7 + number) % 1000 for i in range((chunks + 8) * CHUNK)] for number, name in enumerate("ab")}
        answers, computed = {}, []
        with Engine(small.socket, blocks=3 * (chunks + 8), step_tokens=step_tokens, runner=runner,
                    prefix_caching=False) as engine:
            for turn, name in enumerate("aabba"):
                before = engine.computed
                answer = engine.run(f"{name} {turn}", prompts[name], 3)
                assert answers.setdefault(name, answer) == answer
                computed.append(engine.computed - before)
            dropped = engine.workers[0].dropped
        whole = len(prompts["a"]) + 2
        assert computed[0] == computed[2] == whole
        assert max(computed[1], computed[3]) < whole - chunks // 2 * CHUNK, "what fits is found again, also after an eviction"
        assert dropped >= 8 and "chunks were not stored so far" in caplog.text
        assert caplog.text.count("chunks were not stored so far") <= dropped.bit_length()


def test_a_chunk_that_no_region_holds_is_refused_at_the_start(marud_program):
    from with_marud import Marud
    with Marud(marud_program, **{**SMALL, "region_bytes": "64KiB"}) as small:
        with pytest.raises(maru.InvalidArgumentError, match="region_bytes of the pool higher, or maru_chunk_tokens lower"):
            Engine(small.socket, maru_chunk_tokens=256)
        with Engine(small.socket, maru_chunk_tokens=128) as engine:
            engine.run("a", list(range(130)))
            assert engine.workers[0]._client.statistics().stores == 1
