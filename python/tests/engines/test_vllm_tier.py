"""MaruConnector with storage below the pool, under vLLM's own scheduler, beside a real maru-tierd: what has left the pool is
loaded and not computed, no step waits for it, and where maru-tierd is away or hangs, answers are as without it."""
import math
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine  # noqa: E402
from tier_process import PATIENCE, Tierd, push_out  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402
from with_marud import Marud  # noqa: E402

from maru import pool_tier  # noqa: E402

CHUNKS, POOL = 5, 4 << 20
PROMPT = list(range(100, 100 + CHUNKS * CHUNK + 3))
OTHER = list(range(500, 500 + 2 * CHUNK + 1))


class Beside:
    """A small pool from which PROMPT's chunks have gone, and a maru-tierd that has them."""

    def __init__(self, marud_program, ranks=1):
        self._marud = Marud(marud_program, size=f"{POOL >> 20}MiB")
        self.ranks = ranks

    def __enter__(self):
        self.marud = self._marud.__enter__()
        self.tierd = Tierd(self.marud.socket)
        with Engine(self.marud.socket, ranks=self.ranks) as first:
            self.answer = first.run("a", PROMPT, 4)
        self.tierd.wait_for_entries(CHUNKS * self.ranks)
        push_out(self.marud.socket, POOL)
        return self

    def __exit__(self, *_):
        self.tierd.__exit__()
        self._marud.__exit__(None, None, None)

    def engine(self, **more):
        """One that only loads, so that it puts nothing into the pool by itself."""
        return Engine(self.marud.socket, ranks=self.ranks, role="kv_consumer", **{"maru_prefetch": self.tierd.socket, **more})


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A slow machine makes no block late, except where a test asks for a deadline."""
    monkeypatch.setattr(pool_tier, "DEADLINE_S", 60.0)


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_has_left_the_pool_is_loaded(marud_program, ranks, runner):
    with Beside(marud_program, ranks) as beside:
        with beside.engine(maru_prefetch=False, runner=runner) as without:
            assert without.run("b", PROMPT, 4) == beside.answer and without.computed == len(PROMPT) + 3
        with beside.engine(runner=runner) as engine:
            assert engine.run("c", PROMPT, 4) == beside.answer
            assert engine.computed == len(PROMPT) - CHUNKS * CHUNK + 3
            assert engine.recomputed == 0 and not engine.connector._requests


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_would_be_loaded_more_slowly_than_computed_is_computed(marud_program, monkeypatch, ranks):
    prefetch, asked = pool_tier.tier.prefetch, []
    monkeypatch.setattr(pool_tier.tier, "prefetch",
                        lambda *keys, **how: (asked.append(how["compute_us"]), prefetch(*keys, **how))[1])
    with Beside(marud_program, ranks) as beside, beside.engine(prefix_caching=False) as engine:
        pace = engine.connector._pace
        assert engine.run("a", OTHER) and asked == [0], "no step has been measured"
        measured = pace.token_us
        assert engine.run("b", PROMPT, 4) == beside.answer and engine.computed < len(OTHER) + len(PROMPT)
        assert asked[1:] == [math.ceil(measured * CHUNK / ranks)] and measured > 0
        push_out(beside.marud.socket, POOL)
        pace.token_us, before = 1e-6, engine.computed
        assert engine.run("c", PROMPT, 4) == beside.answer
        assert asked[2:] == [1] and engine.computed - before == len(PROMPT) + 3


def test_a_part_that_is_still_there_is_not_asked_for_in_vain(marud_program):
    """The engine's own prefix cache has the prompt: nothing is asked."""
    with Beside(marud_program) as beside, beside.engine() as engine:
        engine.run("a", PROMPT, 4)
        push_out(beside.marud.socket, POOL)
        engine.connector._tier.ask = lambda *_, **__: pytest.fail("asked for what is computed already")
        assert engine.run("b", PROMPT[:CHUNKS * CHUNK], 1)


def test_others_go_on_while_a_request_waits(marud_program):
    with Beside(marud_program) as beside, beside.engine() as engine:
        beside.tierd.suspend()
        try:
            engine.add("waits", PROMPT, 4)
            assert engine.step() == []
            request = engine.scheduler.requests["waits"]
            assert engine.run("other", OTHER[:CHUNK - 1], 3), "less than a chunk, of which nothing can be anywhere"
            assert request.num_computed_tokens == 0 and not request.is_finished()
        finally:
            beside.tierd.resume()
        while not request.is_finished():
            engine.step()
        assert list(request.output_token_ids) == beside.answer


def test_a_hanging_maru_tierd_delays_one_request(marud_program, monkeypatch, caplog):
    monkeypatch.setattr(pool_tier, "DEADLINE_S", 1.0)
    monkeypatch.setattr(pool_tier, "LATE_S", 1.0)
    with Beside(marud_program) as beside, beside.engine() as engine:
        beside.tierd.suspend()
        try:
            assert engine.run("a", PROMPT, 4) == beside.answer and engine.computed == len(PROMPT) + 3
            engine.add("b", OTHER)
            assert engine.step() == ["b"], "it is left alone for a while"
        finally:
            beside.tierd.resume()
    assert "storage below the pool does not answer" in caplog.text


def test_a_death_of_maru_tierd_ends_the_wait(marud_program):
    with Beside(marud_program) as beside, beside.engine() as engine:
        beside.tierd.suspend()
        engine.add("a", PROMPT, 4)
        assert engine.step() == []
        beside.tierd.kill()
        request = engine.scheduler.requests["a"]
        while not request.is_finished():
            engine.step()
        assert list(request.output_token_ids) == beside.answer


def test_an_aborted_request_gives_up_its_loads(marud_program):
    with Beside(marud_program) as beside, beside.engine() as engine:
        beside.tierd.suspend()
        engine.add("a", PROMPT, 4)
        assert engine.step() == []
        coming = engine.connector._requests["a"].coming
        engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
        assert not engine.connector._requests and coming.is_settled() and coming.loaded == 0
        beside.tierd.resume()
        until = time.monotonic() + PATIENCE
        while beside.tierd.ask(2)["loading_bytes"]:  # kListTiers
            assert time.monotonic() < until
