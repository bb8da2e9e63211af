"""maru.tier against a real maru-tierd: what has left the pool comes back, and errors are told. MARU_TEST_TIERD names the
program; without it the tests are skipped."""
import select
import time

import pytest
from tier_process import PATIENCE, Tierd
from with_marud import Marud

import maru
from maru import tier

@pytest.fixture
def tierd(marud_program):
    with Marud(marud_program, size="16MiB") as marud, Tierd(marud.socket, policy="skip_pool") as running:
        yield marud, running.socket, running.process


def test_what_has_left_the_pool_comes_back(tierd):
    marud, path, _ = tierd
    keys = [f"block {i}" for i in range(8)]
    with maru.Client(str(marud.socket), timeout_ms=60_000) as client:
        for i, key in enumerate(keys):
            client.store_copy(key, bytes([i]) * 50_000)
        until = time.monotonic() + PATIENCE
        while any(client.exists(key) for key in keys):  # what is written leaves the pool
            assert time.monotonic() < until
            time.sleep(0.01)
        with tier.prefetch(keys, deadline=30, socket_path=path) as ticket:
            select.select([ticket], [], [], PATIENCE)
            assert ticket.status().is_done
            status = ticket.wait()
            assert status.usable == len(keys)
            for i, key in enumerate(keys):
                with client.retrieve(key) as view:
                    assert bytes(view.data) == bytes([i]) * 50_000
        with pytest.raises(maru.ClosedError):
            ticket.status()


def test_without_a_tier_it_says_so(tmp_path):
    assert not tier.has_tier(str(tmp_path / "nothing"))
    with pytest.raises(maru.NotFoundError):
        tier.prefetch(["key"], socket_path=str(tmp_path / "nothing"))
    with pytest.raises(maru.InvalidArgumentError):
        tier.prefetch([])
    with pytest.raises(maru.InvalidArgumentError):
        tier.prefetch([b"short"], digests=True)
    with pytest.raises(maru.InvalidArgumentError):
        tier.prefetch(["key"], deadline=0)


def test_the_death_of_maru_tierd_is_told(tierd):
    _, path, process = tierd
    process.kill()
    process.wait(PATIENCE)
    with pytest.raises(maru.MaruError):
        tier.prefetch(["key"], socket_path=path).wait()
