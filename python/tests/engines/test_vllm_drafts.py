"""Speculative decoding by vLLM's own scheduler, of tokens that are right and wrong by turns."""
import random

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine, drafter  # noqa: E402
from test_vllm import PROMPT, answer  # noqa: E402, F401
from test_vllm_disorder import lose  # noqa: E402
from vllm.v1.outputs import DraftTokenIds  # noqa: E402

import maru  # noqa: E402
from maru import chunk_keys  # noqa: E402

TOKENS = 60


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("runner", [1, 2])
def test_what_was_drafted_wrong_is_never_stored(pool, answer, runner, ranks):  # noqa: F811
    expected = answer(PROMPT, ranks, TOKENS)
    drafts = drafter(random.Random(f"{runner} {ranks}"), lambda prompt: expected)
    with Engine(pool.socket, ranks=ranks, runner=runner, drafts=drafts) as first, \
            Engine(pool.socket, ranks=ranks, runner=runner) as second:
        assert first.run("a", PROMPT, TOKENS) == expected
        assert first.accepted > 5 and first.rejected > 5
        # All of it, with what was generated, but for the last token; also by one that does not draft.
        everything = PROMPT + expected[:-1]
        assert second.run("b", everything) == expected[-1:]
        assert second.computed <= CHUNK + 1


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("runner", [1, 2])
def test_drafts_go_on_after_a_load_that_failed(pool, answer, runner, asynchronous):  # noqa: F811
    """With an asynchronous scheduler, which is one step ahead: also when that step has drafts that turn out to be wrong."""
    expected = answer(PROMPT, 1, TOKENS)
    drafts = drafter(random.Random(runner), lambda prompt: expected)
    with Engine(pool.socket, runner=runner) as first, \
            Engine(pool.socket, runner=runner, drafts=drafts, asynchronous=asynchronous) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        first.run("a", PROMPT)
        second.add("b", PROMPT, TOKENS)
        request = second.scheduler.requests["b"]
        turn = second.schedule()
        (transfer,) = turn[0].kv_connector_metadata.loads
        lose(client, second, chunk_keys.of_rank(transfer.hashes, second.workers[0]._rank_digest)[0])
        while not request.is_finished():
            ahead = second.schedule() if asynchronous else None
            second.finish(turn)
            turn = ahead or second.schedule()
        second.finish(turn)
        assert list(request.output_token_ids) == expected and second.recomputed == 1
        assert second.accepted > 5 and second.rejected > 5
        # Nor was anything stored of what was computed at a wrong place.
        first.scheduler.reset_prefix_cache()
        assert first.run("c", PROMPT + expected[:-1]) == expected[-1:]


def test_vllm_itself_computes_drafts_before_the_token_that_they_follow_is_known(pool):
    """Why the connector refuses drafts in a pipeline without asynchronous scheduling: there vLLM asks for the drafts of a step
    whose outcome its scheduler does not have yet. When this fails, vLLM may have mended it (its issue 52071)."""
    with Engine(pool.socket, drafts=lambda *_: []) as engine:
        engine.add("a", PROMPT, TOKENS)
        turn = engine.schedule()
        engine.scheduler.update_draft_token_ids(DraftTokenIds(["a"], [[1, 2, 3]]))
        ahead = engine.schedule()
        assert engine.scheduler.requests["a"].num_output_tokens == 0 and ahead[0].num_scheduled_tokens == {"a": 3}
        engine.finish(turn)
