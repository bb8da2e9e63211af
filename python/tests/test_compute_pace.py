"""What an engine's scheduler measures of its own speed, on a clock of the test's."""
import pytest

from maru import compute_pace
from maru.compute_pace import ComputePace


@pytest.fixture
def clock(monkeypatch):
    """at(SECONDS) sets it."""
    now = [100.0]
    monkeypatch.setattr(compute_pace.time, "perf_counter", lambda: now[0])

    def at(seconds):
        now[0] = 100.0 + seconds
    return at


def pace_after(clock, *events, least_tokens=256, steps_max=3):
    """events: (SECONDS, TOKENS) of a step that is scheduled, (SECONDS,) of one that ends."""
    pace = ComputePace(least_tokens, steps_max)
    for seconds, *tokens in events:
        clock(seconds)
        pace.begin(*tokens) if tokens else pace.end()
    return pace.token_us


def test_nothing_is_known_before_a_step_has_ended(clock):
    assert pace_after(clock, (0, 1000)) == 0 and pace_after(clock, (0,), (1,)) == 0


def test_a_step_of_a_prompt_tells_the_time_of_a_token(clock):
    assert pace_after(clock, (0, 1000), (0.5,)) == pytest.approx(500)


def test_steps_that_generate_or_that_load_say_nothing(clock):
    assert pace_after(clock, (0, 255), (1,), (1, 0), (2,)) == 0
    assert pace_after(clock, (0, 1000), (0.5,), (1, 4), (9,)) == pytest.approx(500)


def test_time_between_steps_does_not_count(clock):
    assert pace_after(clock, (0, 1000), (0.5,), (60, 1000), (60.5,)) == pytest.approx(500)


def test_a_step_that_is_scheduled_ahead_begins_when_the_one_before_ends(clock):
    assert pace_after(clock, (0, 1000), (0.01, 2000), (0.5,), (0.51, 1), (1.5,)) == pytest.approx(500)


def test_a_newer_step_counts_for_a_quarter(clock):
    assert pace_after(clock, (0, 1000), (0.4,), (1, 1000), (1.8,)) == pytest.approx(500)


def test_outcomes_that_never_come_are_forgotten(clock):
    assert pace_after(clock, *[(i, 5) for i in range(9)], (10, 1000), (20,), (20,), (20.5,)) == pytest.approx(500)
