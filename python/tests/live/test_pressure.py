"""Too little room: in the pool, and in the engine's own cache."""
import random

from conftest import Pool


def test_a_pool_that_is_smaller_than_what_is_asked(marud_program, start, tokens, right):
    """Chunks have 384 KiB: the pool has room for about a dozen, and what is asked for has over 100."""
    chance = random.Random(3)
    beginnings = [tokens(256 * chance.randrange(2, 5)) for _ in range(10)]
    with Pool(marud_program, size="8MiB", region_bytes="1MiB") as small, start("small 1", small) as one, \
            start("small 2", small) as two:
        cached = 0
        for _ in range(5):
            orders = []
            for engine in (one, two):
                prompts = [chance.choice(beginnings) + tokens(chance.randrange(10, 700)) for _ in range(6)]
                orders.append((engine, prompts))
                engine.send("generate", prompts=prompts, tokens=4, together=chance.random() < 0.5)
            for engine, prompts in orders:
                answer = engine.reply()
                assert answer["tokens"] == right(prompts, 4)
                cached += sum(answer["cached"])
                engine.ask("settle")
                assert engine.ask("forget") == {"done": True}, "so that it asks the pool"
        assert cached > 0
        assert small.status()["evicted_blocks"] > 0


def test_requests_that_an_engine_preempts(start, shared, tokens, right):
    """17 blocks of 128 tokens, and six requests that want four each in the end."""
    prompts = [tokens(n) for n in (310, 320, 330, 340, 350, 360)]
    expected = right(prompts, 90)
    with start("few blocks", shared, num_gpu_blocks_override=17, max_model_len=1024, max_num_batched_tokens=1024) as engine:
        for _ in range(2):
            assert engine.answers(prompts, 90)["tokens"] == expected
            engine.ask("settle")
            engine.ask("forget")
        preempted = engine.ask("count", name="vllm:num_preemptions")
        assert preempted["found"] and preempted["value"] > 0
