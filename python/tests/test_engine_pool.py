"""The pool of an engine's connector is removed, or another one has its name."""
import itertools
import logging
import pathlib
import shutil
import subprocess
import time

import pytest

import maru
from conftest import Marud
from maru import engine_pool
from maru.engine_pool import EnginePool
from maru.engine_settings import Settings

PATIENCE = 120  # seconds


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    monkeypatch.setattr(engine_pool, "LOOK_S", 0)


def pool_of(running, read_only=False, **more):
    given = {"maru_socket": str(running.socket), "maru_tenant": "t", "maru_timeout_ms": 60_000, **more}
    return EnginePool(Settings("extra_config", given, set(given)), logging.getLogger("engine"), read_only)


def turn(pool, stores=True):
    """What a connector does with a prompt."""
    attached = pool.attached()
    try:
        attached.client.match_prefix([b"k"], attached.tenant).release()
        if stores:
            attached.client.store_copy(b"k", b"x", tenant=attached.tenant)
    except maru.MaruError as error:
        pool.warn(attached, error, "not done")


def turns_until(is_done, pool, stores=True):
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < deadline
        turn(pool, stores)
        time.sleep(0.01)


def start_with_another_pool(running):
    """A marud that knew of the old one would make it of the memory that its clients bring along."""
    running.process.terminate()
    running.process.wait(PATIENCE)
    shutil.rmtree(running.socket.parent / "state")
    running.begin()


def said(caplog):
    """In short, by one logger. That a pool takes nothing now, who stores says once before it is known to be gone: not here."""
    assert {record.name for record in caplog.records} <= {"engine"}
    short = {"pool is gone": "gone", "has attached": "attached", "no pool to attach to": "not there"}
    return [next((word for part, word in short.items() if part in record.message), record.message)
            for record in caplog.records if "takes nothing now" not in record.message]


def refusals(caplog):
    return sum("takes nothing now" in record.message for record in caplog.records)


def device(marud_program, running, *arguments):
    subprocess.run([pathlib.Path(marud_program).with_name("marudctl"), "--socket", running.socket, "device", *arguments],
                   check=True, capture_output=True, timeout=PATIENCE)


@pytest.mark.parametrize("stores", [True, False], ids=["stores", "only looks"])
def test_an_engine_goes_on_with_another_pool_of_the_name(marud_program, caplog, stores):
    with Marud(marud_program) as running:
        pool = pool_of(running, read_only=not stores)
        turn(pool, stores)
        first = pool.attached()
        start_with_another_pool(running)
        turns_until(lambda: pool.attached() is not first, pool, stores)
        turn(pool, stores)
        turns_until(lambda: "attached" in said(caplog), pool, stores)  # the log follows the attachment
        second = pool.attached()
        assert second.client.geometry().uuid != first.client.geometry().uuid
        assert second.tenant == second.client.tenant("t")
        assert second.client.exists(b"k", second.tenant) is stores
        assert said(caplog) == ["gone", "attached"]
        pool.warn(first, maru.PoolReplacedError("late"), "not done")  # of another thread, about the pool before
        assert said(caplog) == ["gone", "attached"] and not first.client.is_closed
        pool.close()
        assert second.client.is_closed


def test_of_a_removed_pool_is_said_once_that_it_is_gone(marud_program, caplog):
    with Marud(marud_program) as running:
        pool = pool_of(running)
        turn(pool)
        first = pool.attached()
        device(marud_program, running, "remove", "default", "--yes", "--deadline", "1")
        turns_until(lambda: said(caplog) == ["gone"], pool)
        for _ in range(100):
            turn(pool)
        assert said(caplog) == ["gone"] and refusals(caplog) <= 1 and pool.attached() is first
        device(marud_program, running, "add", "default")
        turns_until(lambda: pool.attached() is not first, pool)
        turn(pool)
        turns_until(lambda: "attached" in said(caplog), pool)
        second = pool.attached()
        assert second.client.exists(b"k", second.tenant) and said(caplog) == ["gone", "attached"]
        pool.close()


def test_a_pool_that_is_drained_is_not_gone(marud_program, caplog):
    with Marud(marud_program) as running:
        pool = pool_of(running)
        turn(pool)
        first = pool.attached()
        held = first.client.retrieve(b"k", first.tenant)  # so the drain does not end
        device(marud_program, running, "drain", "default")
        until, refused = time.monotonic() + 60, 0
        for i in itertools.count():  # pages that the client has of the region are still good
            try:
                pool.attached().client.store_copy(b"%d" % i, b"x", tenant=first.tenant)
            except maru.MaruError as error:
                pool.warn(first, error, "not stored")
                refused += 1
            if refused == 50 or time.monotonic() > until:
                break
            time.sleep(0.01)
        assert pool.attached() is first and first.client.exists(b"k", first.tenant)
        assert refused == 50
        assert said(caplog) == [] and refusals(caplog) == 1
        device(marud_program, running, "cancel", "default")
        first.client.store_copy(b"later", b"x", tenant=first.tenant)
        held.release()
        pool.close()


def test_what_else_hinders_is_said_each_time(marud, caplog):
    pool = pool_of(marud)
    for _ in range(2):
        pool.warn(pool.attached(), maru.NoSpaceError("full"), "2 pages were not stored")
    assert said(caplog) == ["maru: 2 pages were not stored: full"] * 2
    pool.close()
    with pytest.raises(maru.ClosedError):
        pool.attached().client.exists(b"k")


def stopped(running):
    running.process.terminate()
    running.process.wait(PATIENCE)


@pytest.mark.parametrize("stores", [True, False], ids=["stores", "only looks"])
def test_an_engine_starts_without_marud_and_attaches_later(marud_program, caplog, stores):
    with Marud(marud_program) as running:
        stopped(running)
        pool = pool_of(running, read_only=not stores)
        first = pool.attached()
        for _ in range(20):
            turn(pool, stores)
        assert said(caplog) == ["not there"] and refusals(caplog) == 0
        assert not pool.is_attached and str(running.socket) in caplog.text
        running.begin()
        turns_until(lambda: pool.attached() is not first, pool, stores)
        turn(pool, stores)
        turns_until(lambda: "attached" in said(caplog), pool, stores)  # the log follows the attachment
        second = pool.attached()
        assert pool.is_attached and second.client.exists(b"k", second.tenant) is stores
        assert said(caplog) == ["not there", "attached"]
        pool.close()
        assert second.client.is_closed


def test_an_engine_may_insist_on_a_pool(marud_program):
    with Marud(marud_program) as running:
        with pytest.raises(maru.NotFoundError):
            pool_of(running, maru_required=True, maru_pool="other")
        stopped(running)
        with pytest.raises((maru.NotFoundError, maru.DaemonUnreachableError)):
            pool_of(running, maru_required=True)
        pool_of(running, maru_required=False).close()


def test_an_engine_waits_for_a_pool_of_its_name(marud_program, caplog):
    with Marud(marud_program) as running:
        pool = pool_of(running, maru_pool="other")
        turn(pool)
        assert said(caplog) == ["not there"]
        pool.close()


def test_a_mistake_is_refused_at_the_start_and_said_once_later(marud_program, caplog, monkeypatch):
    def refuse(*_, **__):
        raise maru.AccessDeniedError("the pool's access list refuses this user")

    with Marud(marud_program) as running:
        stopped(running)
        pool = pool_of(running)
        running.begin()
        monkeypatch.setattr(engine_pool, "Client", refuse)
        with pytest.raises(maru.AccessDeniedError):
            pool_of(running)
        turns_until(lambda: len(said(caplog)) > 1, pool)
        for _ in range(20):
            turn(pool)
        assert said(caplog)[0] == "not there" and len(said(caplog)) == 2 and "cannot attach to it" in said(caplog)[1]
        pool.close()
