"""Other caches that share between engines, for bench-engines: begins each as its users have it, with an engine that stores and
one that loads.

Two more cannot run on a processor, and are tried when they are asked for by name: vLLM's OffloadingConnector does not start,
and LMCache inside the engine stores nothing.
"""
import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from engines import EngineFailed

CHUNK = 256
CAPACITY_GIB = 3  # of each cache: what an engine's prompts of one run need, and more


class Peer(NamedTuple):
    begin: object  # from a Bench to two engines
    words: str  # in the table
    is_usual: bool = True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def expect_package(name):
    if importlib.util.find_spec(name) is None:
        raise EngineFailed(f"the package {name} is not in this environment")


def program(bench, name, port, command, environ=None):
    """Begins a program beside the engines, which ends with them, and waits until it listens."""
    with open(bench.folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environ or {})})

    def end():
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    bench.engines.callback(end)
    deadline = time.monotonic() + 240
    while not is_open(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise EngineFailed(f"{name} did not start: " + pathlib.Path(log.name).read_text(errors="replace")[-300:])
        time.sleep(0.2)


def files(bench):
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="maru-bench-")
    bench.engines.callback(shutil.rmtree, folder)
    kv = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
          "kv_connector_extra_config": {"shared_storage_path": folder}}
    return bench.start("files 1", kv), bench.start("files 2", kv)


def lmcache(bench):
    return _lmcache(bench, "lmcache", [pathlib.Path(sys.executable).with_name("lmcache"), "server", "--l1-size-gb",
                                       str(CAPACITY_GIB), "--no-l1-use-lazy", "--eviction-policy", "LRU"])


def lmcache_marud(bench):
    return _lmcache(bench, "lmcache-marud", [sys.executable, "-m", "maru_lmcache.mp", "--maru-socket",
                                             str(bench.running.socket)])


def _lmcache(bench, name, command):
    expect_package("lmcache")
    port, http_port = free_port(), free_port()
    program(bench, f"{name} server", http_port,
            [*command, "--supported-transfer-mode", "auto", "--chunk-size", str(CHUNK), "--host", "127.0.0.1", "--port",
             str(port), "--http-port", str(http_port)], {"LMCACHE_TRACK_USAGE": "false"})
    kv = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
          "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}}
    return bench.start(f"{name} 1", kv), bench.start(f"{name} 2", kv)


def mooncake(bench):
    """By TCP on this machine; each engine gives half of the memory."""
    expect_package("mooncake")
    port = free_port()
    program(bench, "mooncake master", port, [sys.executable, "-m", "mooncake.cli", f"--rpc_port={port}",
                                             f"--metrics_port={free_port()}"])
    configuration = bench.folder / "mooncake.json"
    configuration.write_text(json.dumps({
        "metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{port}", "protocol": "tcp", "device_name": "",
        "global_segment_size": CAPACITY_GIB << 29, "local_buffer_size": 256 << 20}))
    kv = {"kv_connector": "MooncakeOnProcessor", "kv_connector_module_path": "mooncake_on_processor", "kv_role": "kv_both",
          "kv_connector_extra_config": {"load_async": True}}
    environ = {"MOONCAKE_CONFIG_PATH": str(configuration), "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1"}
    return bench.start("mooncake 1", kv, environ), bench.start("mooncake 2", kv, environ)


def offloading(bench):
    """Its memory is one engine's own, so the same engine loads, after it has emptied its prefix cache."""
    engine = bench.start("offloading", {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                                        "kv_connector_extra_config": {"cpu_bytes_to_use": CAPACITY_GIB << 30}})
    return engine, engine


def lmcache_inside(bench):
    """The same."""
    expect_package("lmcache")
    engine = bench.start("lmcache inside", {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
                         {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": str(CAPACITY_GIB),
                          "LMCACHE_CHUNK_SIZE": str(CHUNK)})
    return engine, engine


PEERS = {
    "files": Peer(files, "vLLM's ExampleConnector, files in /dev/shm, another process", is_usual=False),
    "lmcache": Peer(lmcache, "LMCache's server with its own DRAM, another process"),
    "lmcache-marud": Peer(lmcache_marud, "LMCache's server with marud as its L1, another process"),
    "mooncake": Peer(mooncake, "Mooncake Store by TCP, another process"),
    "offloading": Peer(offloading, "vLLM's OffloadingConnector, the same process", is_usual=False),
    "lmcache-inside": Peer(lmcache_inside, "LMCache in the engine, the same process", is_usual=False),
}


def begin(bench, only):
    """(by name the engine that stores and the one that loads, by name why it does not run). only: names, or None for the usual
    ones. A peer that finds nothing of what it stored, or answers otherwise from its cache, does not run."""
    found, missing = {}, {}
    for name, peer in PEERS.items():
        if not (peer.is_usual if only is None else name in only):
            continue
        with contextlib.ExitStack() as until_it_runs:
            outer, bench.engines = bench.engines, until_it_runs
            try:
                pair = peer.begin(bench)
                prompt = bench.prompt(600)
                stored, loaded = bench.through(pair, prompt)
                if not loaded["cached"][0]:
                    raise EngineFailed("it finds nothing of what was stored")
                if stored["tokens"] != loaded["tokens"]:
                    raise EngineFailed("it answers otherwise from its cache")
                outer.callback(until_it_runs.pop_all().close)
                found[name] = pair
            except EngineFailed as error:
                missing[name] = reason_of(error)
            finally:
                bench.engines = outer
    return found, missing


def reason_of(error):
    """The line of a log that says most: the last error in it, or its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (told or lines or ["it gave no reason"])[-1][-200:]
