"""Chunks are stored beside the steps that follow. The pool gets what was computed, whatever happens to the blocks."""
import threading

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine  # noqa: E402
from test_vllm import PROMPT, answer  # noqa: E402, F401

OTHER = [token + 500 for token in PROMPT]


@pytest.mark.parametrize("runner", [1, 2])
def test_blocks_that_another_request_gets_are_stored_first(pool, answer, runner):  # noqa: F811
    """The engine has room for one prompt, so the next one overwrites its blocks."""
    with Engine(pool.socket, blocks=12, runner=runner, prefix_caching=False, stores_late=True) as engine, \
            Engine(pool.socket) as other:
        engine.run("a", PROMPT)
        engine.run("b", OTHER)
        for worker in engine.workers:
            worker.wait_until_stored()
        for prompt in (PROMPT, OTHER):
            before = other.computed
            assert other.run(str(prompt[0]), prompt, 4) == answer(prompt)
            assert other.computed - before == len(PROMPT) - 5 * CHUNK + 3


@pytest.mark.parametrize("runner", [1, 2])
def test_blocks_that_are_loaded_into_are_stored_first(pool, answer, runner):  # noqa: F811
    with Engine(pool.socket) as writer:
        writer.run("a", OTHER)
    with Engine(pool.socket, blocks=12, runner=runner, prefix_caching=False, stores_late=True) as engine, \
            Engine(pool.socket) as other:
        engine.run("b", PROMPT)
        assert engine.run("c", OTHER, 1) == answer(OTHER)[:1]
        for worker in engine.workers:
            worker.wait_until_stored()
        assert other.run("d", PROMPT, 4) == answer(PROMPT)
        assert other.computed == len(PROMPT) - 5 * CHUNK + 3


def test_a_step_that_writes_elsewhere_does_not_wait(pool, answer):  # noqa: F811
    may_copy = threading.Event()
    with Engine(pool.socket, blocks=64, stores_late=True) as engine, Engine(pool.socket) as other:
        engine.workers[0]._layers.gather = lambda blocks, into, gather=engine.workers[0]._layers.gather: (
            may_copy.wait(600), gather(blocks, into))
        engine.run("a", PROMPT)
        engine.run("b", OTHER)  # ends, though nothing of the first is copied
        assert other.run("c", PROMPT, 4) == answer(PROMPT)
        assert other.computed == len(PROMPT) + 3, "nothing is found before it is complete"
        may_copy.set()
        engine.workers[0].wait_until_stored()
        assert other.run("d", OTHER, 4) == answer(OTHER)
        assert other.computed == len(PROMPT) + 3 + len(OTHER) - 5 * CHUNK + 3


def test_what_waits_is_stored_when_the_engine_ends(pool, answer):  # noqa: F811
    with Engine(pool.socket, stores_late=True) as engine:
        engine.run("a", PROMPT)
    with Engine(pool.socket) as other:
        assert other.run("b", PROMPT, 4) == answer(PROMPT)
        assert other.computed == len(PROMPT) - 5 * CHUNK + 3
