"""Requests that come, are aborted, preempted and fail to load in a random order, under vLLM's own schedulers, one step ahead of
what is known: what is answered and what there is in the pool is right all the same."""
import random

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine, drafter  # noqa: E402
from test_vllm import answer  # noqa: E402, F401
from vllm.v1.request import RequestStatus  # noqa: E402

import maru  # noqa: E402
from maru import chunk_keys  # noqa: E402

STEM = list(range(100, 100 + 3 * CHUNK))
PROMPTS = [STEM[:CHUNK + 3], STEM + [1] * 5, STEM + [1] * 2 * CHUNK, STEM + [2] * CHUNK + [3] * 4, [7] + STEM]


def lose(client, engine, key):
    """A chunk that the scheduler was promised, with all that follow it; what holds them is let go."""
    for plan in engine.connector._requests.values():
        plan.let_go()
    for worker in engine.workers:
        worker.wait_until_stored()  # a thread that stores holds what is there already
    client.delete_tree(key)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("runner, asynchronous", [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_wrong_whatever_happens(pool, answer, seed, runner, asynchronous, ranks):  # noqa: F811
    chance = random.Random(f"{seed} {runner} {asynchronous} {ranks}")
    drafts = drafter(chance, lambda prompt: answer(prompt, ranks, 6)) if seed % 2 == 0 else None
    with Engine(pool.socket, ranks=ranks, runner=runner, asynchronous=asynchronous, blocks=chance.choice([16, 20, 64]),
                step_tokens=chance.choice([CHUNK, 20, 64]), prefix_caching=chance.random() < 0.6, drafts=drafts,
                stores_late=chance.random() < 0.5) as engine, \
            Engine(pool.socket, ranks=ranks) as other, maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        requests, turn = {}, None
        for step in range(1000):
            if step < 60 and chance.random() < 0.4:
                prompt = chance.choice(PROMPTS)
                engine.add(str(step), prompt, chance.choice([1, 2, 6]))
                requests[str(step)] = prompt, engine.scheduler.requests[str(step)]
            if chance.random() < 0.2:
                other.scheduler.reset_prefix_cache()
                other.run(f"other {step}", chance.choice(PROMPTS), 2)
            if not engine.scheduler.running:
                engine.scheduler.reset_prefix_cache()
            ahead = engine.schedule()
            for transfer in ahead[0].kv_connector_metadata.loads:
                if chance.random() < 0.5:
                    digest = engine.workers[chance.randrange(ranks)]._rank_digest
                    lose(client, engine, chance.choice(chunk_keys.of_rank(transfer.hashes, digest)))
            if drafts and not asynchronous:  # ahead only in a pipeline, where the connector refuses drafts
                turn, ahead = ahead, None
            running = [name for name, (_, request) in requests.items() if not request.is_finished()]
            if turn is not None:
                returned = engine.execute(turn)
                if running and chance.random() < 0.1:
                    name = chance.choice(running)
                    engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                    del requests[name]
                engine.update(turn, returned)
            turn = ahead
            if step > 60 and not running:
                break
        if turn is not None:
            engine.update(turn, engine.execute(turn))
        for prompt, request in requests.values():
            assert request.is_finished()
            assert list(request.output_token_ids) == answer(prompt, ranks, request.max_tokens), (prompt, request.request_id)
        for worker in engine.workers:
            worker.wait_until_stored()
        engine.scheduler.reset_prefix_cache()
        for made in (engine, other):
            for number, prompt in enumerate(PROMPTS):
                assert made.run(f"after {number}", prompt, 4) == answer(prompt, ranks), "what is left of it is right"
