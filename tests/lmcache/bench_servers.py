"""How LMCache's server with the pool as its L1 compares with its own L1 in DRAM: bandwidth of stores and retrieves in both
transfer modes, and the time of the L1 calls alone. Both run at once and take turns, so the machine's noise meets both; the
ratio counts.

    bench_servers.py [ROUNDS]       (scripts/test-lmcache --bench)

Ends with one line of JSON.
"""
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))

import torch  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc  # noqa: E402
from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig  # noqa: E402
from lmcache.v1.distributed.l1_manager import L1Manager  # noqa: E402
from mp_objects import LAYOUT, key_of, layouts, manager  # noqa: E402
from mp_server import CHUNK, CHUNK_BYTES, OURS, STOCK, Engine, Server  # noqa: E402
from with_marud import Marud  # noqa: E402

CHUNKS = 8  # of a request: 16 MiB
CALLS = 64  # objects of one call
POOL_MIB = 256
# LMCache touches its own memory when it starts. The kernel gives a pool in memory its pages, and each process its mappings, at
# the first touch. So the measured rounds begin when each page has been written once.
WARM_ROUNDS = POOL_MIB * (1 << 20) // (CHUNKS * CHUNK_BYTES) + 2
BIG = MemoryLayoutDesc([torch.Size([2, 8, 256, 256])], [torch.float16])  # 2 MiB


def median_ms(values):
    return statistics.median(values) * 1000


def transfers(servers, mode, rounds):
    """{server: {store, retrieve}} in seconds, one value a round."""
    taken = {name: {"store": [], "retrieve": []} for name in servers}
    engines = {name: Engine(server, mode, chunks=CHUNKS) for name, server in servers.items()}
    for engine in engines.values():
        engine.__enter__()
    try:
        first = time.time_ns() // 1000 % 1_000_000 * 1000
        for turn in range(WARM_ROUNDS + rounds):
            names = list(engines) if turn % 2 else list(engines)[::-1]
            for name in names:
                store, retrieve = once(engines[name], first + turn)
                if turn >= WARM_ROUNDS:
                    taken[name]["store"].append(store)
                    taken[name]["retrieve"].append(retrieve)
    finally:
        for engine in engines.values():
            engine.__exit__()
    return taken


def once(engine, sequence):
    client = engine.client
    request, hits = engine.look_up(sequence)
    assert hits == 0
    begun = time.perf_counter()
    assert client.store(request, 0, request.num_full_tokens).succeeded
    stored = time.perf_counter() - begun
    engine.server.wait_until_stored()
    client.end_session(request)
    request, hits = engine.look_up(sequence)
    assert hits == CHUNKS, hits
    begun = time.perf_counter()
    assert client.retrieve(request, 0, hits * CHUNK).succeeded
    retrieved = time.perf_counter() - begun
    client.end_session(request)
    return stored, retrieved


def calls(managers, rounds):
    """{manager: {step: processor seconds for each object}}: the calls of a store and of a hit, without the copies of the
    bytes. Processor time of this thread, which a busy machine disturbs least; it has no waiting for marud in it."""
    taken = {name: {} for name in managers}
    for turn in range(rounds + 2):
        keys = [key_of(turn * CALLS + number) for number in range(CALLS)]
        for name in list(managers) if turn % 2 else list(managers)[::-1]:
            l1 = managers[name]
            for step, call in (
                    ("reserve_write", lambda: l1.reserve_write(keys, [False] * CALLS, LAYOUT)),
                    ("finish_write", lambda: l1.finish_write(keys)),
                    ("reserve_read", lambda: l1.reserve_read(keys)), ("unsafe_read", lambda: l1.unsafe_read(keys)),
                    ("finish_read", lambda: l1.finish_read(keys))):
                begun = time.thread_time()
                answer = call()
                spent = time.thread_time() - begun
                assert all((one[0] if isinstance(one, tuple) else one).name == "SUCCESS" for one in answer.values()), step
                del answer
                if turn >= 2:
                    taken[name].setdefault(step, []).append(spent / CALLS)
            if name == "dram":
                l1.delete(keys)  # no eviction thread here
    return taken


def copies(managers, rounds):
    """{manager: {store, retrieve: processor seconds for each object}}: the same calls with one copy of each object, of 2 MiB,
    as a server makes it; an engine's part, and the way between the two, are left out."""
    engine = torch.empty(BIG.shapes[0], dtype=BIG.dtypes[0]).fill_(1)
    keys = [key_of(1_000_000 + number, model="big") for number in range(CHUNKS)]
    taken = {name: {"store": [], "retrieve": []} for name in managers}
    for turn in range(rounds + 2):
        for name in list(managers) if turn % 2 else list(managers)[::-1]:
            l1 = managers[name]
            begun = time.thread_time()
            for _, item in l1.reserve_write(keys, [False] * CHUNKS, BIG).values():
                item.tensor.copy_(engine)
            l1.finish_write(keys)
            stored = time.thread_time()
            l1.reserve_read(keys)
            for _, item in l1.unsafe_read(keys).values():
                engine.copy_(item.tensor)
            del item
            l1.finish_read(keys)
            retrieved = time.thread_time()
            assert len(l1.delete(keys)) == CHUNKS
            if turn >= 2:
                taken[name]["store"].append((stored - begun) / CHUNKS)
                taken[name]["retrieve"].append((retrieved - stored) / CHUNKS)
    return taken


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    report = {}
    with tempfile.TemporaryDirectory(prefix="maru-bench-") as folder, \
            Marud(os.environ["MARU_TEST_MARUD"], size=f"{POOL_MIB}MiB", page_bytes="2MiB",
                  region_bytes="32MiB") as marud:
        folder = pathlib.Path(folder)
        stock = [*STOCK]
        stock[stock.index("0.25")] = "2"
        with Server(marud, folder / "ours.log", program=OURS) as ours, Server(None, folder / "dram.log", program=stock) as dram:
            for mode in ("engine_driven", "lmcache_driven"):
                taken = transfers({"maru": ours, "dram": dram}, mode, rounds)
                for what in ("store", "retrieve"):
                    speeds = {name: CHUNKS * CHUNK_BYTES / statistics.median(one[what]) / 1e9 for name, one in taken.items()}
                    # Of each round the two that ran one after the other.
                    ratio = statistics.median(d / m for m, d in zip(taken["maru"][what], taken["dram"][what]))
                    report[f"{mode} {what}"] = {"maru_gb_s": round(speeds["maru"], 3), "dram_gb_s": round(speeds["dram"], 3),
                                                "ratio": round(ratio, 3)}
                    print(f"{mode:15} {what:9} maru {speeds['maru']:6.2f} GB/s   dram {speeds['dram']:6.2f} GB/s   "
                          f"maru over dram {ratio:5.2f}")
        by_model = {"model": layouts("model", 1), "big": {0: BIG}}
        managers = {"maru": manager(marud.socket, registry=lambda model, workers: by_model[model]),
                    "dram": L1Manager(L1ManagerConfig(L1MemoryManagerConfig(256 << 20, False, shm_name="")))}
        taken = calls(managers, 10 * rounds)
        for step in taken["maru"]:
            micros = {name: median_ms(one[step]) * 1000 for name, one in taken.items()}
            report[f"call {step}"] = {f"{name}_us_per_object": round(value, 2) for name, value in micros.items()}
            print(f"{'L1 call':15} {step:13} maru {micros['maru']:6.2f} us   dram {micros['dram']:6.2f} us for each object")
        taken = copies(managers, 4 * rounds)
        for what in ("store", "retrieve"):
            speeds = {name: CHUNK_BYTES / statistics.median(one[what]) / 1e9 for name, one in taken.items()}
            report[f"L1 with copies {what}"] = {f"{name}_gb_s": round(value, 2) for name, value in speeds.items()}
            print(f"{'L1 with copies':15} {what:13} maru {speeds['maru']:6.2f} GB/s   dram {speeds['dram']:6.2f} GB/s of "
                  f"processor time   maru over dram {speeds['maru'] / speeds['dram']:5.2f}")
        for one in managers.values():
            one.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
