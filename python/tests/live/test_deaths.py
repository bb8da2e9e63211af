"""Engines that are killed in the middle of a copy."""
from conftest import loadable
from engines import until


def test_an_engine_that_is_killed_while_it_stores_publishes_nothing_of_it(start, shared, first, tokens, right):
    prompts = [tokens(1000)]
    with start("stops storing", shared, "StoppingConnector",
               environ={"MARU_LIVE_STOP": "gather", "MARU_LIVE_STOP_AT": "2"}) as engine:
        engine.wait_ready()
        before = shared.status()["lanes"]["live"]
        engine.send("generate", prompts=prompts, tokens=1)
        while engine.reply() != {"stopped": "gather"}:
            pass
        engine.kill()
        until(lambda: shared.status()["lanes"]["live"] < before and not shared.status()["lanes"]["reclaiming"],
              "marud takes back what it held")
    states = shared.status()["page_states"]
    assert (states["reserved"], states["sealed"]) == (0, 0)
    answer = first.answers(prompts)
    assert answer["tokens"] == right(prompts) and answer["cached"] == [0]


def test_an_engine_that_is_killed_while_it_loads_leaves_no_pin(start, shared, first, second, tokens, right):
    prompts = [tokens(1000)]
    assert first.answers(prompts)["tokens"] == right(prompts)
    first.ask("settle")
    with start("stops loading", shared, "StoppingConnector",
               environ={"MARU_LIVE_STOP": "scatter", "MARU_LIVE_STOP_AT": "1"}) as engine:
        engine.send("generate", prompts=prompts, tokens=1)
        while engine.reply() != {"stopped": "scatter"}:
            pass
        pid = engine.process.pid
        until(lambda: any(pin["pid"] == pid for pin in shared.pins()), "what is being loaded is pinned")
        engine.kill()
        until(lambda: not any(pin["pid"] == pid for pin in shared.pins()), "the pins end with the process")
    answer = second.answers(prompts)
    assert answer["tokens"] == right(prompts) and answer["cached"] == [loadable(prompts[0])]
