"""Pipelines: each stage has layers of its own, and workers that store and load them; one scheduler for all."""
import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine  # noqa: E402
from test_vllm import PROMPT  # noqa: E402
from test_vllm_disorder import lose  # noqa: E402

import maru  # noqa: E402
from maru import chunk_keys  # noqa: E402

CHUNKS = len(PROMPT) // CHUNK


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("ranks, stages", [(1, 2), (2, 2), (1, 3)])
def test_every_stage_stores_and_loads_its_own_layers(pool, runner, ranks, stages):
    shape = dict(ranks=ranks, stages=stages, runner=runner)
    with Engine(pool.socket, **shape) as first, Engine(pool.socket, **shape) as second:
        generated = first.run("a", PROMPT, 4)
        assert [worker._client.statistics().stores for worker in first.workers] == [CHUNKS] * ranks * stages
        assert len({worker._rank_digest for worker in first.workers}) == ranks * stages
        assert second.run("b", PROMPT, 4) == generated
        assert second.computed == len(PROMPT) - CHUNKS * CHUNK + 3


def test_engines_with_other_pipelines_do_not_meet(pool):
    with Engine(pool.socket, ranks=2) as tensor, Engine(pool.socket, stages=2) as pipeline, \
            Engine(pool.socket, stages=3) as longer:
        for engine in (tensor, pipeline, longer):
            engine.run("a", PROMPT)
            assert engine.computed == len(PROMPT)


def test_latent_attention_is_shared_within_each_stage(pool):
    with Engine(pool.socket, ranks=2, stages=2, layout="mla") as first, \
            Engine(pool.socket, stages=2, layout="mla") as second:
        assert len({worker._rank_digest for worker in first.workers}) == 2
        first.run("a", PROMPT)
        assert [worker._client.statistics().stores for worker in first.workers] == [CHUNKS, 0, CHUNKS, 0]
        second.run("b", PROMPT)
        assert second.computed == len(PROMPT) - CHUNKS * CHUNK


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_what_one_stage_cannot_load_all_compute(pool, runner, stage):
    with Engine(pool.socket, stages=2, runner=runner) as first, Engine(pool.socket, stages=2, runner=runner) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        generated = first.run("a", PROMPT, 4)
        second.add("b", PROMPT, 4)
        request = second.scheduler.requests["b"]
        # Steps of a pipeline begin before those ahead of them have ended.
        turn = second.schedule()
        (transfer,) = turn[0].kv_connector_metadata.loads
        lose(client, second, chunk_keys.of_rank(transfer.hashes, second.workers[stage]._rank_digest)[2])
        while not request.is_finished():
            ahead = second.schedule()
            second.finish(turn)
            turn = ahead
        second.finish(turn)
        assert list(request.output_token_ids) == generated and second.recomputed == 1
        second.scheduler.reset_prefix_cache()
        with Engine(pool.socket, stages=2) as third:
            assert third.run("c", PROMPT, 4) == generated
            assert third.computed <= len(PROMPT) - 2 * CHUNK + 3, "what was computed again was stored, or nothing was"
