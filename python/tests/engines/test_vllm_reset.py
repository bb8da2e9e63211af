"""What vLLM's reset of its caches is to the connector: the pool is shared and stays, but this engine, whose weights may be
others now, finds nothing of what was there before, and nobody else what it stores from then on."""
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine  # noqa: E402
from test_vllm import PROMPT, answer  # noqa: E402, F401
from vllm.v1.engine.core import EngineCore  # noqa: E402

WHOLE = len(PROMPT) // CHUNK * CHUNK


def core_of(engine):
    """vLLM's own core around an engine's scheduler, without processes for its workers."""
    core = EngineCore.__new__(EngineCore)
    core.scheduler = engine.scheduler
    core.slept = []
    core.model_executor = SimpleNamespace(collective_rpc=lambda *_, **__: None, reset_encoder_cache=lambda: None,
                                          reset_mm_cache=lambda: None, sleep=core.slept.append)
    core.mm_receiver_cache = None
    return core


def stored(engine):
    return engine.workers[0]._client.statistics().stores


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("runner", [1, 2])
def test_an_engine_that_slept_shares_nothing_with_what_was_before(pool, answer, runner, ranks):  # noqa: F811
    with Engine(pool.socket, ranks=ranks, runner=runner) as first, Engine(pool.socket, ranks=ranks, runner=runner) as second:
        first.run("a", PROMPT)
        core = core_of(first)
        core.sleep(1)
        assert core.slept == [1]
        core.resume_scheduler()
        before = first.computed
        assert first.run("b", PROMPT, 4) == answer(PROMPT, ranks)
        assert first.computed == before + len(PROMPT) + 3, "nothing of before was loaded"
        # What it stores is found by itself, on all ranks, and by nobody else.
        first.scheduler.reset_prefix_cache()
        before = first.computed
        assert first.run("c", PROMPT, 4) == answer(PROMPT, ranks)
        assert first.computed == before + len(PROMPT) - WHOLE + 3
        assert second.run("d", PROMPT, 4) == answer(PROMPT, ranks)
        assert second.computed == len(PROMPT) - WHOLE + 3, "what was before the reset is the others' still"


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_under_way_begins_again_under_other_keys(pool, answer, runner, asynchronous):  # noqa: F811
    with Engine(pool.socket, runner=runner, asynchronous=asynchronous, step_tokens=CHUNK) as engine:
        engine.add("a", PROMPT, 4)
        request = engine.scheduler.requests["a"]
        engine.step()
        engine.step()
        assert request.num_computed_tokens == 2 * CHUNK
        core_of(engine).pause_scheduler("keep")
        assert request.num_computed_tokens == 0
        engine.scheduler.set_pause_state(type(engine.scheduler.pause_state).UNPAUSED)
        assert stored(engine) == 2
        while not request.is_finished():
            engine.step()
        assert list(request.output_token_ids) == answer(PROMPT)
        assert stored(engine) == 2 + WHOLE // CHUNK, "all of it is stored anew"


@pytest.mark.parametrize("runner", [1, 2])
def test_nothing_is_reset_while_requests_hold_what_was_computed(pool, runner):
    """vLLM asks the connector even where its own prefix cache could not be reset, and says that it was not."""
    with Engine(pool.socket, runner=runner, step_tokens=CHUNK) as engine, Engine(pool.socket, runner=runner) as other:
        engine.add("a", PROMPT)
        request = engine.scheduler.requests["a"]
        engine.step()
        assert not engine.scheduler.reset_prefix_cache(reset_connector=True)
        while not request.is_finished():
            engine.step()
        other.run("b", PROMPT)
        assert other.computed == len(PROMPT) - WHOLE
        assert engine.scheduler.reset_prefix_cache(reset_connector=True)


def test_a_worker_may_be_a_consumer_only(pool):
    with Engine(pool.socket) as first, Engine(pool.socket, role="kv_consumer") as second:
        first.run("a", PROMPT)
        assert second.scheduler.reset_prefix_cache(reset_connector=True)
        second.run("b", PROMPT)
        assert second.computed == len(PROMPT)
