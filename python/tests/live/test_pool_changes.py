"""Engines go on while their marud dies and comes back, has another pool, or loses what it holds."""
import shutil

import pytest
from conftest import Pool, loadable
from engines import PATIENCE_S, until


@pytest.fixture(scope="module")
def pool(marud_program):
    with Pool(marud_program) as running:
        yield running


@pytest.fixture(scope="module")
def pair(start, pool):
    engines = start("changes 1", pool), start("changes 2", pool)
    for engine in engines:
        engine.wait_ready()  # an engine that starts while marud is away begins without a pool
    yield engines
    for engine in engines:
        engine.end()


@pytest.fixture
def shared_again(pair, tokens, right):
    """Whether the second engine loads what the first one stores now."""
    one, two = pair

    def ask():
        prompts = [tokens(600)]
        assert one.answers(prompts)["tokens"] == right(prompts)
        one.ask("settle")
        answer = two.answers(prompts)
        assert answer["tokens"] == right(prompts)
        return answer["cached"] == [loadable(prompts[0])]
    return ask


def test_marud_is_killed_while_engines_compute_and_comes_back(pool, pair, shared_again, tokens, right):
    one, two = pair
    kept, meanwhile = [tokens(1000)], [tokens(n) for n in (2100, 1700, 2100)]
    assert one.answers(kept)["tokens"] == right(kept)
    one.ask("settle")
    expected = right(meanwhile)
    one.send("generate", prompts=meanwhile, tokens=8, together=False)
    pool.kill()
    found = two.answers(kept)
    assert found["tokens"] == right(kept) and found["cached"] == [loadable(kept[0])], "the pool is there without marud"
    assert one.reply()["tokens"] == expected
    pool.begin()
    until(shared_again, "what one stores the other loads, once marud is back")
    assert two.ask("forget") == {"done": True}
    found = two.answers(kept)
    assert found["tokens"] == right(kept) and found["cached"] == [loadable(kept[0])], "the restart lost nothing"


def test_marud_is_restarted_with_a_new_pool_while_engines_compute(pool, pair, shared_again, tokens, right):
    one, two = pair
    kept, meanwhile = [tokens(1000)], [tokens(n) for n in (2100, 1700, 2100)]
    assert one.answers(kept)["tokens"] == right(kept)
    one.ask("settle")
    expected = right(meanwhile)
    for engine in pair:
        engine.send("generate", prompts=meanwhile, tokens=8, together=False)
    pool.process.terminate()
    pool.process.wait(PATIENCE_S)
    shutil.rmtree(pool.socket.parent / "state")  # else marud would take up the old pool, which its clients bring along
    pool.begin()
    for engine in pair:
        assert engine.reply()["tokens"] == expected
    until(shared_again, "what one stores the other loads, once both have the new pool")
    for engine in pair:
        assert engine.ask("forget") == {"done": True}
    found = two.answers(kept)
    assert found["tokens"] == right(kept) and found["cached"] == [0], "the new pool began empty"


def test_the_pool_is_cleared_while_engines_store_and_load(pool, pair, shared_again, tokens, right):
    beginnings = [tokens(900) for _ in range(2)]
    cached = removed = 0
    for _ in range(4):
        prompts = [beginning + tokens(300) for beginning in beginnings for _ in range(3)]
        expected = right(prompts)
        for engine in pair:
            engine.send("generate", prompts=prompts, tokens=8, together=False)
        for _ in range(10):
            removed += pool.ctl("clear", "--yes")["deleted_blocks"]
        for engine in pair:
            answer = engine.reply()
            assert answer["tokens"] == expected
            cached += sum(answer["cached"])
            engine.ask("settle")
            assert engine.ask("forget") == {"done": True}
    assert removed > 0 and cached > 0
    assert shared_again()


def test_the_device_is_removed_while_engines_compute_and_added_again(pool, pair, shared_again, tokens, right):
    beginnings = [tokens(900) for _ in range(2)]
    prompts = [beginning + tokens(300) for beginning in beginnings for _ in range(3)]
    expected = right(prompts)
    for engine in pair:
        engine.send("generate", prompts=prompts, tokens=8, together=False)
    pool.ctl("device", "remove", "default", "--yes")
    for engine in pair:
        assert engine.reply()["tokens"] == expected
    fresh = [tokens(1000)]
    for engine in pair:
        answer = engine.answers(fresh)
        assert answer["tokens"] == right(fresh) and answer["cached"] == [0], "there is no pool"
    pool.ctl("device", "add", "default")
    until(shared_again, "what one stores the other loads, once the pool is there again")
