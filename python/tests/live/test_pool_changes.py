"""Engines go on while their marud dies, comes back, has another pool, or loses what it holds."""
import shutil
import time

from conftest import Pool, loadable
from engines import PATIENCE_S


def until(holds, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def test_marud_is_killed_and_restarted_and_has_another_pool(marud_program, start, tokens, right):
    with Pool(marud_program) as pool, start("one", pool) as one, start("two", pool) as two:
        kept, meanwhile = [tokens(1000)], [tokens(1000)]
        assert one.answers(kept)["tokens"] == right(kept)
        one.ask("settle")
        pool.kill()
        assert one.answers(meanwhile)["tokens"] == right(meanwhile), "computed without marud"
        found = two.answers(kept)
        assert found["tokens"] == right(kept) and found["cached"] == [loadable(kept[0])], "the pool is still there"
        pool.begin()

        def stored():
            prompts = [tokens(600)]
            assert one.answers(prompts)["tokens"] == right(prompts)
            one.ask("settle")
            answer = two.answers(prompts)
            assert answer["tokens"] == right(prompts)
            return answer["cached"] == [512]
        until(stored, "what one stores the other finds, once marud is back")
        two.ask("forget")
        found = two.answers(kept)
        assert found["tokens"] == right(kept) and found["cached"] == [loadable(kept[0])], "the restart lost nothing"

        pool.process.terminate()
        pool.process.wait(PATIENCE_S)
        shutil.rmtree(pool.socket.parent / "state")  # else marud would take up the old pool
        pool.begin()
        until(stored, "what one stores the other finds, once both have the new pool")
        one.ask("forget"), two.ask("forget")
        assert two.answers(kept)["cached"] == [0]


def test_the_pool_is_cleared_and_removed_meanwhile(marud_program, start, tokens, right):
    with Pool(marud_program) as pool, start("cleared 1", pool) as one, start("cleared 2", pool) as two:
        beginnings = [tokens(900) for _ in range(2)]
        for turn in range(4):
            prompts = [beginning + tokens(300) for beginning in beginnings for _ in range(3)]
            expected = right(prompts)
            for engine in (one, two):
                engine.send("generate", prompts=prompts, tokens=8, together=False)
            for _ in range(10):
                pool.ctl("clear", "--yes")
            for engine in (one, two):
                assert engine.reply()["tokens"] == expected
                engine.ask("settle")
                engine.ask("forget")
        prompts = [beginning + tokens(300) for beginning in beginnings for _ in range(3)]
        expected = right(prompts)
        for engine in (one, two):
            engine.send("generate", prompts=prompts, tokens=8, together=False)
        pool.ctl("device", "remove", "default", "--yes", "--deadline", "1")
        for engine in (one, two):
            assert engine.reply()["tokens"] == expected
        pool.ctl("device", "add", "default")

        def found():
            prompts = [tokens(600)]
            assert one.answers(prompts)["tokens"] == right(prompts)
            one.ask("settle")
            answer = two.answers(prompts)
            assert answer["tokens"] == right(prompts)
            return answer["cached"] == [512]
        until(found, "what one stores the other finds, once the pool is there again")
