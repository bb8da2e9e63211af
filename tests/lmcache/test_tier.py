"""LMCache with storage below the pool: its server's first tier, its plug-in, and its back-end in an engine find what has left
the pool, beside a real maru-tierd. Needs MARU_TEST_TIERD."""
import pathlib
import sys

import pytest
from kv_store import TOKENS, Storage, chunk, key_of, same
from lmcache.v1.distributed.api import ObjectKey
from mp_objects import key_of as key_of_object
from mp_objects import manager, read, write
from test_l2 import Tier

from maru import pool_tier
from maru_lmcache import adapter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
from tier_process import Tierd, push_out  # noqa: E402

POOL = 16 << 20  # of conftest.py
NUMBERS = list(range(8))


@pytest.fixture
def tierd(marud):
    with Tierd(marud.socket) as running:
        yield running


@pytest.fixture
def asked(monkeypatch):
    """In how many microseconds those who asked maru-tierd would compute a block."""
    prefetch, told = pool_tier.tier.prefetch, []
    monkeypatch.setattr(pool_tier.tier, "prefetch",
                        lambda *keys, **how: (told.append(how["compute_us"]), prefetch(*keys, **how))[1])
    return told


def test_the_first_tier_of_the_server(marud, tierd):
    first, second, third = (manager(marud.socket, prefetch=where) for where in (False, tierd.socket, False))
    write(first, NUMBERS)
    tierd.wait_for_entries(len(NUMBERS))
    push_out(marud.socket, POOL)
    assert read(third, NUMBERS) == [] and read(second, [*NUMBERS, 99]) == NUMBERS
    for one in (first, second, third):
        assert one.memcheck()
        one.close()


def test_the_first_tier_goes_on_without_maru_tierd(marud, tierd):
    l1 = manager(marud.socket, prefetch=tierd.socket)
    tierd.kill()
    write(l1, [1])
    assert read(l1, [1, 2]) == [1]
    l1.close()


def test_the_first_tier_says_how_long_an_object_is_computed(marud, tierd, asked):
    """Each of a chunk's workers computes one."""
    l1 = manager(marud.socket, prefetch=tierd.socket, compute_us=3000)
    keys = [key_of_object(1, rank=ObjectKey.ComputeKVRank(workers, 0, workers, 0)) for workers in (1, 4)]
    assert [l1.reserve_read([key])[key][1] for key in keys] == [None, None] and asked == [3000, 750]
    l1.close()


def test_the_plug_in(marud, tierd):
    with Tier(marud) as first, Tier(marud, prefetch=tierd.socket) as second, Tier(marud) as third:
        assert first.store(NUMBERS).is_successful()
        tierd.wait_for_entries(len(NUMBERS))
        push_out(marud.socket, POOL)
        assert third.look_up(NUMBERS) == []
        assert second.look_up([*NUMBERS, 99]) == NUMBERS and second.pins() == len(NUMBERS)
        assert second.load(NUMBERS) == NUMBERS
        second.unlock(NUMBERS)


def test_the_back_end_in_an_engine(marud, tierd, monkeypatch, asked):
    keys = [key_of(number) for number in NUMBERS]
    with Storage(str(marud.socket)) as first:
        first.store(NUMBERS)
    tierd.wait_for_entries(len(NUMBERS))
    push_out(marud.socket, POOL)
    with Storage(str(marud.socket)) as without:
        assert without.backend.batched_contains(keys, pin=True) == 0
    monkeypatch.setenv("MARU_PREFETCH", tierd.socket)
    monkeypatch.setenv("MARU_COMPUTE_US", "3")
    with Storage(str(marud.socket)) as second:
        assert second.backend.batched_contains(keys, pin=True) == len(keys)
        items = second.load(NUMBERS)
        assert all(same(item.tensor, chunk(number)) for item, number in zip(items, NUMBERS))
        assert asked == [3 * TOKENS]


def test_a_time_to_compute_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("MARU_COMPUTE_US", "fast")
    with pytest.raises(ValueError, match="MARU_COMPUTE_US is 'fast'"):
        adapter._compute_us()
