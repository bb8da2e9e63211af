"""maru-lmcache-server: LMCache's own server, engines and benchmark, with a pool as L1."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest
from mp_server import CHUNK_BYTES, LMCACHE, OURS, Engine, Server, environment
from with_marud import Marud

import maru
from maru_lmcache.mp import guard

MODES = ["engine_driven", "lmcache_driven"]
MARUCTL = pathlib.Path(os.environ["MARU_TEST_MARUD"]).with_name("marudctl")


@pytest.fixture
def marud():
    """Room for about 30 chunks of 2 MiB."""
    with Marud(os.environ["MARU_TEST_MARUD"], size="64MiB", region_bytes="8MiB") as running:
        yield running


@pytest.fixture
def server(marud, tmp_path):
    with Server(marud, tmp_path / "server.log") as running:
        yield running


def ctl(marud, *arguments):
    done = subprocess.run([MARUCTL, "--socket", str(marud.socket), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def clients(marud):
    """What each other process holds pinned."""
    return {one["pid"]: one["pins"] for one in ctl(marud, "clients", "--json")["clients"]}


def run(*command, **more):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, **more)


@pytest.mark.parametrize("mode", MODES)
def test_lmcaches_own_benchmark(server, mode, tmp_path):
    """It ends with 0 whatever it found, so its report is read."""
    report = tmp_path / "report.json"
    start = 100 if mode == MODES[0] else 200
    done = run(*LMCACHE, "bench", "server", "--mode", "cpu", "--transfer-mode", mode, "--rpc-url", server.rpc_url, "--url",
               server.url, "--kvcache-shape-spec", "(2,128,16,4,64):float16:8", "--num-tokens", "512", "--start", str(start),
               "--end", str(start + 3), "--interval", "0.5", "--format", "json", "--output", str(report), env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(report.read_text())["metrics"]["results"]
    assert (results["checksum_ok"], results["checksum_fail"], results["pass_rate"]) == (3, 0, 100.0), done.stdout
    assert re.findall(r"cold\] LOOKUP: (\S+) chunks hit", done.stdout) == ["0/2"] * 3, done.stdout
    assert re.findall(r"warm\] LOOKUP: (\S+) chunks hit", done.stdout) == ["2/2"] * 3, done.stdout


@pytest.mark.parametrize("mode", MODES)
def test_stored_through_one_server_and_all_there_through_another(marud, server, tmp_path, mode):
    with Server(marud, tmp_path / "other.log") as other:
        with Engine(server, mode) as first, Engine(other, mode) as second:
            for sequence in range(5):
                assert second.load(sequence) == 0
                first.store(sequence)
                assert second.load(sequence) == 2 and first.load(sequence) == 2
            second.store(9)
            assert first.load(9) == 2
            assert server.l1()["total_object_count"] == 10 and other.l1()["total_object_count"] == 2
            other.ask("/cache/clear", {"tier": "l1"})
            assert second.load(9) == first.load(9) == 0 and second.load(0) == 2, "nothing of the other server's has gone"
        assert set(clients(marud).values()) <= {0}


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_is_killed_between_lookup_and_retrieve_leaves_no_pin(marud, tmp_path, mode):
    log = tmp_path / "server.log"
    with Server(marud, log) as server, Engine(server, mode) as engine:
        engine.store(1)
        assert engine.look_up(1)[1] == 2
        assert clients(marud)[server.process.pid] == 2
        server.kill()
        engine.client._req_client.close()
        engine.client._req_client = None
        deadline = time.monotonic() + 60
        while any(clients(marud).values()):
            assert time.monotonic() < deadline, clients(marud)
            time.sleep(0.05)
    with Server(marud, log) as again, Engine(again, mode) as engine:
        assert engine.load(1) == 2, "a new server finds everything"
        assert again.l1()["total_object_count"] == 0
        with maru.Client(str(marud.socket)) as client:  # and the block can be evicted
            assert client.statistics().pins == 0


def test_a_pool_smaller_than_the_traffic_never_lacks_memory(tmp_path):
    """Five times what it has room for, from two engines in two transfer modes."""
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="8MiB") as marud, \
            Server(marud, tmp_path / "server.log") as server, \
            Engine(server, "engine_driven") as one, Engine(server, "lmcache_driven") as two:
        for sequence in range(20):
            engine = one if sequence % 2 else two
            engine.store(sequence)
            assert engine.load(sequence) == 2, sequence
        assert one.load(1) == 0
        status = server.l1()
        assert "No pages for" not in server.text() and "triggering eviction" not in server.text()
    assert status["memory_used_bytes"] <= 16 << 20 and status["staging_bytes"] == 0 and status["is_healthy"]
    assert status["maru"]["pins"] == 0 and status["maru"]["stores"] == 40 and 40 * CHUNK_BYTES == 5 * (16 << 20)


def test_the_server_says_what_it_is(marud, server):
    with Engine(server, "engine_driven") as engine:
        engine.store(1)
        metrics = server.ask("/metrics")
        status = server.ask("/status")
    assert "lmcache_mp_l1_memory_usage_bytes" in metrics and 'backend="maru"' in metrics
    assert str(2 * CHUNK_BYTES) in re.search(r"^lmcache_mp_l1_memory_usage_bytes.*$", metrics, re.MULTILINE)[0].replace(
        "4.194304e+06", "4194304")
    assert status["is_healthy"] and any("maru" in str(module) for module in status.values())
    assert run(*LMCACHE, "ping", "kvcache", "--url", server.url, env=environment()).returncode == 0


# -- what it refuses --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, reason", [
    (["--p2p-advertise-url", "127.0.0.1:1", "--coordinator-url", "http://127.0.0.1:1"], "one buffer that a network card"),
    (["--shm-name", "x"], "issue 4068"),
    (["--eviction-policy", "LRU"], "marud evicts"),
    (["--l1-manager", '{"type": "DRAM", "tag": "x", "size_gb": 1}'], "an L1 of LMCache's own"),
    (["--l1-devdax-path", "/dev/dax0.0"], "an L1 of LMCache's own"),
    (["--engine-type", "blend"], "CacheBlend"),
    (["--l2-adapter", '{"type": "mooncake_store", "protocol": "rdma", "local_hostname": "h", "metadata_server": "m"}'],
     "type mooncake_store: it registers all of L1"),
])
def test_what_cannot_work_is_refused_with_the_reason(marud, options, reason):
    done = run(*OURS, *options, env=environment(marud))
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and reason in last and last.startswith("maru-lmcache-server: "), done.stderr


def test_options_that_shape_no_memory_are_said_to_be_of_no_use(marud, tmp_path):
    with Server(marud, tmp_path / "log", "--l1-size-gb", "3", "--eviction-policy", "noop") as server:
        assert "--l1-size-gb: of no use here" in server.text()


def test_without_a_pool_it_says_so(tmp_path):
    done = run(*OURS, "--maru-socket", str(tmp_path / "none.sock"), env=environment())
    assert done.returncode == 2 and "the pool cannot be used" in done.stderr.splitlines()[-1], done.stderr


def test_another_version_is_refused_and_pointed_to_the_plug_in(monkeypatch, capsys):
    from maru_lmcache.mp.launcher import main
    monkeypatch.setattr(guard.importlib.metadata, "version", lambda name: "0.6.0")
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "0.6.0" in said and "0.5.6" in said and "maru_lmcache.l2" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("broken, difference", [
    ("storage_manager.StorageManager.__init__ = lambda self, config: None", "StorageManager takes self, config"),
    ("internal_api.L1ManagerInterface.new_call = lambda self, keys: None", "an L1 manager has new_call"),
    ("internal_api.L1ManagerInterface.delete = lambda self, keys, mode: None", "delete() of an L1 manager takes"),
    ("engine_context.StorageManager = None", "another StorageManager"),
])
def test_a_version_that_is_not_what_it_says_is_refused(broken, difference):
    done = run("-c", "from lmcache.v1.distributed import internal_api, storage_manager; "
                     f"from lmcache.v1.multiprocess import engine_context; {broken}; "
                     "from maru_lmcache.mp.launcher import main; raise SystemExit(main([]))", env=environment())
    assert done.returncode == 2 and difference in done.stderr.splitlines()[-1], done.stderr


def test_the_console_script_is_there():
    done = run("-c", "import importlib.metadata as m; print(m.entry_points(group='console_scripts')"
                     "['maru-lmcache-server'].value)")
    assert done.stdout.strip() == "maru_lmcache.mp.launcher:main", done.stderr
