"""Counts that a log has the first time, and whenever they have doubled."""
import logging

import pytest

from maru.tally import Tally


def test_it_is_said_the_first_time_and_whenever_there_are_twice_as_many(caplog):
    tally = Tally(logging.getLogger("engine"), "%d blocks of %d requests: %s", counts=2)
    for number in range(100):
        tally.add(2, 1, reason=f"reason {number}")
    assert [record.message for record in caplog.records] == [
        f"{2 * n} blocks of {n} requests: reason {n - 1}" for n in (1, 3, 7, 15, 31, 63)]
    assert tally.count == 200


def test_nothing_is_nothing(caplog):
    tally = Tally(logging.getLogger("engine"), "%d: %s")
    tally.add(0, reason="none")
    assert not caplog.records and tally.count == 0
    with pytest.raises(ValueError):
        tally.add(1, 1, reason="two")
