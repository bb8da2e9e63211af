"""The one switch of connectors and handlers: what has left the pool is loaded by a real maru-tierd, and a maru-tierd that is
away or hangs changes nothing but some seconds' delay of one request. Needs MARU_TEST_TIERD."""
import logging
import select
import time

import numpy
import pytest
from tier_process import PATIENCE, Tierd, fill, push_out
from with_marud import Marud

import maru
from maru import pool_tier
from maru.pool_tier import PoolTier

POOL = 8 << 20
LOGGER = logging.getLogger("test.maru")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A slow machine makes no block late, except where a test asks for a deadline."""
    monkeypatch.setattr(pool_tier, "DEADLINE_S", 60.0)


@pytest.fixture
def small(marud_program):
    with Marud(marud_program, size=f"{POOL >> 20}MiB") as running:
        yield running


@pytest.fixture
def tierd(small):
    with Tierd(small.socket) as running:
        yield running


@pytest.fixture
def client(small):
    with maru.Client(str(small.socket), timeout_ms=60_000) as attached:
        yield attached


def payload(number):
    return bytes([number]) * 50_000


def store_chain(client, rows):
    for number, row in enumerate(rows):
        client.store_copy(row, payload(number), parent=rows[number - 1] if number else None)


def settled(load):
    """Without waiting in the call: until its descriptor says so."""
    until = time.monotonic() + PATIENCE
    while not load.is_settled():
        assert time.monotonic() < until
        select.select([load._ticket], [], [], 1)
    return load


def test_a_chain_that_has_left_the_pool_is_brought_and_held(small, tierd, client, digests):
    rows = digests[:20]
    store_chain(client, rows)
    tierd.wait_for_entries(20)
    push_out(small.socket, POOL)
    assert not any(client.exists_batch(rows))
    tier = PoolTier(tierd.socket, LOGGER)
    with settled(tier.ask(rows, None))._ticket:
        with client.match_prefix(rows) as match:
            assert match.blocks == 20
        fill(small.socket, 3 * POOL)
        for number, row in enumerate(rows):
            with client.retrieve(row) as view:
                assert bytes(view.data) == payload(number)


def test_off_asks_nothing(tierd, digests):
    assert PoolTier(False, LOGGER).ask(digests, None) is None
    tier = PoolTier(tierd.socket, LOGGER)
    assert tier.ask(digests[:0], None) is None and tier.ask(["\ud800"], None) is None and tier.ask(["x" * 5000], None) is None
    assert settled(tier.ask(digests, None)).loaded == 0, "a key that cannot be is no failure of maru-tierd"


def test_a_socket_that_is_not_there_is_left_alone(tmp_path, caplog, monkeypatch):
    tier = PoolTier(str(tmp_path / "nothing"), LOGGER)
    for _ in range(3):
        assert tier.ask(["key"], None) is None
    assert caplog.text.count("does not answer") == 1
    monkeypatch.setattr(pool_tier.tier, "prefetch", lambda *_, **__: pytest.fail("it was asked at once again"))
    assert tier.ask(["key"], None) is None


def test_a_hanging_maru_tierd_delays_one_question_and_is_asked_again(tierd, digests, caplog, monkeypatch):
    monkeypatch.setattr(pool_tier, "DEADLINE_S", 1.0)
    monkeypatch.setattr(pool_tier, "LATE_S", 1.0)
    tier = PoolTier(tierd.socket, LOGGER)
    tierd.suspend()
    try:
        load = tier.ask(digests, None)
        assert not load.is_settled()
        load.wait()
        assert load.is_settled() and load.loaded == 0
        assert tier.ask(digests, None) is None, "it is left alone for a while"
    finally:
        tierd.resume()
    monkeypatch.setattr(pool_tier, "DEADLINE_S", 30.0)
    monkeypatch.setattr(tier, "_quiet_until", 0.0)
    settled(tier.ask(digests, None))
    assert "does not answer" in caplog.text and "answers again" in caplog.text


def test_a_hanging_tier_delays_one_question(small, digests, monkeypatch):
    """maru-tierd answers in time, that nothing came in time."""
    monkeypatch.setattr(pool_tier, "DEADLINE_S", 0.3)
    monkeypatch.setattr(pool_tier, "HANGING_S", 0.2)
    with Tierd(small.socket, faults="hang = 1") as hanging:
        tier = PoolTier(hanging.socket, LOGGER)
        load = tier.ask(digests, None)
        load.wait()
        assert load.loaded == 0
        assert tier.ask(digests, None) is None, "it is left alone for a while"


def test_the_death_of_maru_tierd_settles_a_load(tierd, digests):
    tier = PoolTier(tierd.socket, LOGGER)
    tierd.suspend()
    load = tier.ask(digests, None)
    tierd.kill()
    load.wait()
    assert load.is_settled() and tier.ask(digests, None) is None


# -- MaruHandler ----------------------------------------------------------------------------------------------------------

KEYS = ["text", b"\xff\xfe bytes", 7, maru.Digest(bytes(range(32)))]


@pytest.fixture
def handlers(small, tierd):
    """One that stores, one with the switch, one without it."""
    def config(**more):
        return maru.MaruConfig(server_url=str(small.socket), chunk_size_bytes=64 << 10, timeout_ms=60_000, **more)
    with maru.MaruHandler(config()) as first, maru.MaruHandler(config(prefetch=tierd.socket)) as second, \
            maru.MaruHandler(config()) as third:
        for number, key in enumerate(KEYS):
            handle = first.alloc(50_000)
            handle.buf[:] = payload(number)
            assert first.store(key, handle)
        tierd.wait_for_entries(len(KEYS))
        push_out(small.socket, POOL)
        assert third.batch_exists(KEYS) == [False] * len(KEYS)
        yield first, second, third


def whole(handler):
    return [bytes(handler.retrieve(key).view) == payload(number) for number, key in enumerate(KEYS)]


def test_batch_pin_brings_what_has_left_the_pool(small, handlers):
    _, second, third = handlers
    assert third.batch_pin(KEYS) == [False] * len(KEYS), "without the switch"
    assert second.batch_pin([*KEYS, "never stored"]) == [True] * len(KEYS) + [False]
    fill(small.socket, 3 * POOL)
    assert all(whole(second)), "pinned by the handler"
    assert second.batch_unpin(KEYS) == [True] * len(KEYS)


def test_stage_batch_waits_for_it_and_passes_over_gaps(handlers):
    _, second, third = handlers
    asked = [KEYS[0], "never stored", *KEYS[1:]]
    assert third.stage_batch(asked).found_keys == 0
    result = second.stage_batch(asked)
    assert (result.found_keys, result.issued_ranges, result.ready) == (len(KEYS), len(KEYS), False)
    assert all(whole(third))


def test_prefetch_batch_returns_at_once_and_they_come(handlers):
    _, second, third = handlers
    assert second.prefetch_batch(KEYS) is None
    until = time.monotonic() + PATIENCE
    while not all(third.batch_exists(KEYS)):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert all(whole(third))


def test_a_handler_without_maru_tierd_answers_as_ever(handlers, tierd):
    _, second, _ = handlers
    tierd.kill()
    assert second.batch_pin(KEYS) == [False] * len(KEYS)
    assert second.stage_batch(KEYS).found_keys == 0 and second.prefetch_batch(KEYS) is None
