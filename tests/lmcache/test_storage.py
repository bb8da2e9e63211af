"""LMCache's storage manager stores, finds and reads keys and values through marud: across processes, with eviction."""
import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest
import torch
from kv_store import BACKEND, HITS, STORES, Storage, chunk, key_of, same
from lmcache.v1.config import LMCacheEngineConfig
from with_marud import Marud

import maru
from maru_lmcache import staging

PROGRAM = pathlib.Path(__file__).with_name("kv_store.py")
ROOM = 128  # chunks of 128 KiB in the 16 MiB of conftest.py


def run(marud, *arguments):
    done = subprocess.run([sys.executable, PROGRAM, str(marud.socket), *map(str, arguments)], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


def test_the_back_end_is_lmcaches_own(storage):
    assert type(storage.backend).__module__ == "lmcache.v1.storage_backend.maru_backend"
    assert storage.manager.allocator_backend is storage.backend


def test_stored_found_and_read_back(storage):
    numbers = list(range(8))
    assert storage.manager.batched_contains([key_of(n) for n in numbers])[0] == 0
    storage.store(numbers)
    assert storage.manager.batched_contains([key_of(n) for n in (*numbers, 99)])[0] == 8
    items = storage.load(numbers)
    assert all(same(item.tensor, chunk(number)) for item, number in zip(items, numbers))
    assert storage.pins() == 8
    for item in items:
        item.ref_count_down()
    assert storage.pins() == 0
    assert storage.load([99]) == [None]
    one = storage.manager.get(key_of(3), BACKEND)
    assert same(one.tensor, chunk(3))


def test_as_with_cuda_through_memory_that_is_not_the_pools(marud, monkeypatch):
    """All of the way through LMCache; only that the memory is not pinned here, where there is no CUDA."""
    monkeypatch.setattr(staging, "is_wanted", lambda: True)
    monkeypatch.setattr(staging, "_pinned", lambda nbytes: torch.full((nbytes,), 0xEE, dtype=torch.uint8))
    monkeypatch.setattr(staging, "device", lambda: 0)
    monkeypatch.setattr(staging, "wait_for", lambda gpu: None)
    with Storage(str(marud.socket)) as storage:
        storage.store(range(4))
        storage.store([4], tokens=17)
        items = storage.load(range(4))
        assert all(same(item.tensor, chunk(i)) for i, item in enumerate(items)) and storage.pins() == 0
        partial, = storage.load([4])
        assert same(partial.tensor, chunk(4, 17))
        loading = look_up_and_load(storage, [key_of(n) for n in range(4)])
        _, loaded = asyncio.run_coroutine_threadsafe(loading, storage.manager.loop).result(60)
        assert all(same(item.tensor, chunk(i)) for i, item in enumerate(loaded)) and storage.pins() == 4  # of the lookup
        drop(loaded)
        assert storage.pins() == 0
        for number in range(10, 260):  # twice what the pool has room for
            storage.store([number])
        assert same(storage.load([259])[0].tensor, chunk(259)) and same(items[0].tensor, chunk(0))
    assert run(marud, "load", 250, 260) == "found 10 wrong 0"


@pytest.mark.parametrize("local_cpu", [False, True])
def test_through_lmcaches_own_memory(marud, local_cpu):
    """Where it has some, it allocates there and copies into the pool; with local_cpu it keeps chunks there, too."""
    with Storage(str(marud.socket), local_cpu=local_cpu, max_local_cpu_size=0.05) as storage:
        assert storage.manager.allocator_backend is not storage.backend
        storage.store(range(4))
        storage.store([4], tokens=17)
        assert storage.backend.batched_contains([key_of(n) for n in range(6)]) == 5
        items = storage.load(range(5))
        assert all(same(item.tensor, chunk(i)) for i, item in enumerate(items[:4])) and same(items[4].tensor, chunk(4, 17))
        assert storage.pins() == 5
        if local_cpu:
            near = storage.manager.get(key_of(3))
            assert same(near.tensor, chunk(3)) and storage.pins() == 5
            near.ref_count_down()
        for item in items:
            item.ref_count_down()
        del item, items
        assert storage.pins() == 0
        for number in range(10, 260):  # twice what the pool has room for, and more than LMCache's own memory has
            storage.store([number])
        assert same(storage.load([259])[0].tensor, chunk(259))
    assert run(marud, "load", 250, 260) == "found 10 wrong 0"


def test_partial_chunks(storage):
    storage.store([1], tokens=17)
    item, = storage.load([1])
    assert item.tensor.shape[2] == 17 and same(item.tensor, chunk(1, 17))


def test_storing_again_keeps_the_first(storage):
    storage.store([1])
    objects = storage.allocate(1)
    objects[0].tensor.copy_(chunk(2))
    storage.manager.batched_put([key_of(1)], objects)
    storage.settle()
    assert same(objects[0].tensor, chunk(2))
    item, = storage.load([1])
    assert same(item.tensor, chunk(1))


def test_a_damaged_chunk_is_absent_and_computed_again(caplog):
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="2MiB", more="checksums = true") as running, \
            Storage(str(running.socket)) as storage:
        storage.store(range(4))
        for number in (1, 2):
            running.damage(chunk(number).view(torch.uint8).numpy().tobytes())
        assert storage.manager.get(key_of(1), BACKEND) is None and "checksum" in caplog.text
        items = storage.load(range(4))
        assert [item is not None for item in items] == [True, False, False, True]
        assert same(items[0].tensor, chunk(0)) and same(items[3].tensor, chunk(3))
        for item in items[::3]:
            item.ref_count_down()
        del item, items
        assert storage.pins() == 0
        storage.store([1])
        assert same(storage.load([1])[0].tensor, chunk(1))


def test_a_pool_that_is_removed_holds_nothing_any_more(marud, storage, caplog):
    """LMCache computes on its own from then on; what it is reading it goes on reading, and marud waits for that."""
    storage.store(range(4))
    keys, (held,) = [key_of(n) for n in range(4)], storage.load([0])
    marudctl = pathlib.Path(os.environ["MARU_TEST_MARUD"]).with_name("marudctl")
    removing = subprocess.Popen([marudctl, "--socket", str(marud.socket), "device", "remove", "default", "--deadline", "300",
                                 "--yes"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while storage.manager.batched_contains(keys)[0]:
            assert time.monotonic() < deadline and removing.poll() is None
            time.sleep(0.01)
        assert storage.manager.batched_contains(keys, None, True)[0] == 0
        assert not storage.manager.contains(keys[0]) and not storage.backend.pin(keys[0])
        assert not storage.backend.remove(keys[0])
        assert storage.manager.get(keys[0], BACKEND) is None and storage.load(range(4)) == [None] * 4
        assert storage.allocate(200) is None

        async def look_up():
            assert await storage.backend.batched_async_contains("id", keys, True) == 0
            return await storage.backend.batched_get_non_blocking("id", keys)

        assert asyncio.run_coroutine_threadsafe(look_up(), storage.manager.loop).result(60) == []
        assert same(held.tensor, chunk(0)) and removing.poll() is None
        said = [record for record in caplog.records if record.name == "maru" and record.levelname == "ERROR"]
        assert len(said) == 1 and "everything from now on" in said[0].message
        with pytest.raises(maru.PoolLeavesError):
            storage.handler._client.exists("a")  # others are told
        held.ref_count_down()
        del held
        assert removing.wait(120) == 0
    finally:
        removing.kill()
        removing.wait()


def test_what_the_pool_does_not_take_is_dropped(caplog):
    """store() is False: the chunks are absent, and their pages the pool's again."""
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="2MiB", more='tenants = "listed"') as running, \
            Storage(f"{running.socket}?tenant=nobody") as storage:
        objects = storage.allocate(3)
        assert storage.handler.allocator.num_allocated == 3
        storage.manager.batched_put([key_of(n) for n in range(3)], objects)
        storage.settle()
        assert caplog.text.count("Not stored") == 3 and storage.load(range(3)) == [None] * 3
        for item in objects:
            item.ref_count_down()
        assert storage.handler.allocator.num_allocated == 0 and not any(item.is_valid() for item in objects)
        statistics = storage.handler.get_stats()["native"]
        assert statistics["pins"] == 0 and statistics["stores"] == 0


def test_lookup_pins_end(storage):
    keys = [key_of(n) for n in range(4)]
    storage.store(range(4))
    hits, mapping = storage.manager.batched_contains(keys, None, True)
    assert hits == 4 and list(mapping) == [BACKEND] and storage.pins() == 4
    storage.manager.batched_unpin(keys, [BACKEND])
    assert storage.pins() == 0
    assert storage.manager.remove(key_of(0)) and not storage.manager.contains(key_of(0))


def test_the_pins_of_the_asynchronous_path_end(storage):
    keys = [key_of(n) for n in range(4)]
    storage.store(range(4))

    async def look_up():
        assert await storage.backend.batched_async_contains("id", [*keys, key_of(9)], True) == 4
        return await storage.backend.batched_get_non_blocking("id", keys)

    items = asyncio.run_coroutine_threadsafe(look_up(), storage.manager.loop).result(60)
    assert all(same(item.tensor, chunk(i)) and item.is_pinned for i, item in enumerate(items))
    for item in items:
        item.unpin()
        item.ref_count_down()
    assert storage.pins() == 0


async def look_up_and_load(storage, keys):
    """As LMCache's asynchronous path does: what it found and pinned, and the objects that it could load."""
    found = await storage.backend.batched_async_contains("id", keys, True)
    return found, await storage.backend.batched_get_non_blocking("id", keys[:found])


def drop(items):
    for item in items:
        item.unpin()
        item.ref_count_down()
    items.clear()


@pytest.mark.parametrize("unreadable", ["damaged", "another layout"])
def test_the_pins_of_chunks_that_are_not_loaded_end(unreadable):
    """Of one that cannot be read, and of those behind it, which LMCache then does not look at."""
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="2MiB", more="checksums = true") as running, \
            Storage(str(running.socket)) as storage:
        numbers = [0, 1, 3, 4, 5] if unreadable == "another layout" else range(6)
        storage.store(numbers)
        if unreadable == "damaged":
            running.damage(chunk(2).view(torch.uint8).numpy().tobytes())
        else:
            assert storage.handler.store(key_of(2).to_string(), storage.handler.alloc(7))
        loading = look_up_and_load(storage, [key_of(n) for n in range(6)])
        found, items = asyncio.run_coroutine_threadsafe(loading, storage.manager.loop).result(60)
        assert (found, len(items)) == (6, 2) and storage.pins() == 4  # two lookup pins and what they are of
        drop(items)
        assert storage.pins() == 0


def test_the_pin_of_a_last_chunk_that_is_not_loaded_ends(storage):
    storage.store(range(3))
    assert storage.handler.store(key_of(3).to_string(), storage.handler.alloc(7))  # another model's layout
    loading = look_up_and_load(storage, [key_of(n) for n in range(4)])
    found, items = asyncio.run_coroutine_threadsafe(loading, storage.manager.loop).result(60)
    assert (found, len(items)) == (4, 3)
    drop(items)
    assert storage.pins() == 0


def test_pins_of_the_synchronous_path_are_ended_by_lmcache_alone():
    """Also when a chunk in the middle cannot be read: others may have looked up the same ones."""
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="2MiB", more="checksums = true") as running, \
            Storage(str(running.socket)) as storage:
        storage.store(range(4))
        running.damage(chunk(1).view(torch.uint8).numpy().tobytes())
        keys = [key_of(n) for n in range(4)]
        assert storage.manager.batched_contains(keys, None, True)[0] == 4
        items = storage.load(range(4))
        assert [item is not None for item in items] == [True, False, True, True]
        for item in items:
            if item is not None:
                item.ref_count_down()
        del item, items
        assert storage.pins() == 4
        storage.manager.batched_unpin(keys, [BACKEND])
        assert storage.pins() == 0


def test_chunks_that_were_loaded_and_not_needed_are_let_go(storage):
    """LMCache drops them without ending their pins: the engine had computed their tokens before."""
    storage.store(range(3))
    loading = look_up_and_load(storage, [key_of(n) for n in range(3)])
    _, items = asyncio.run_coroutine_threadsafe(loading, storage.manager.loop).result(60)
    for item in items[:2]:
        item.ref_count_down()
    assert storage.pins() == 2 and not items[0].is_pinned and not items[0].is_valid() and same(items[2].tensor, chunk(2))
    drop(items[2:])
    assert storage.pins() == 0


def test_eviction_runs_and_what_is_read_stays(storage):
    storage.store([0])
    held, = storage.load([0])
    for number in range(1, 250):  # twice what the pool has room for
        storage.store([number])
        item, = storage.load([number])
        assert same(item.tensor, chunk(number))
        item.ref_count_down()
        del item
    assert same(held.tensor, chunk(0)) and storage.manager.contains(key_of(0)) == BACKEND
    present = [storage.manager.contains(key_of(n)) is not None for n in range(1, 250)]
    assert not all(present) and present[-1]
    held.ref_count_down()
    assert storage.pins() == 0


def test_a_pool_full_of_what_is_read_gives_nothing_and_recovers(storage):
    held = []
    for number in range(400):
        objects = storage.allocate(1)
        if objects is None:
            break
        objects[0].tensor.copy_(chunk(number))
        storage.manager.batched_put([key_of(number)], objects)
        storage.settle()
        held += storage.load([number])
    assert objects is None and 50 < len(held) < 130
    assert all(same(item.tensor, chunk(i)) for i, item in enumerate(held))
    for item in held:
        item.ref_count_down()
    held.clear()
    del item
    storage.store([1000])
    assert same(storage.load([1000])[0].tensor, chunk(1000))


def test_another_process_reads_what_this_one_stored(marud, storage):
    storage.store(range(20))
    assert run(marud, "load", 0, 25) == "found 20 wrong 0"


def test_two_processes_read_what_the_other_stores_while_both_evict(marud):
    """Bit for bit, also what was read before the memory around it was given to other chunks."""
    processes = [subprocess.Popen([sys.executable, PROGRAM, str(marud.socket), "share", str(own), str(theirs)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                 for own, theirs in ((0, 30_000), (30_000, 0))]
    watchdog = threading.Timer(1800, lambda: [process.kill() for process in processes])
    watchdog.start()
    try:
        for process in processes:
            assert next((line for line in process.stdout if line == "enough\n"), None), "it ended, or took too long"
        for process in processes:
            process.stdin.close()
        seen = [json.loads(process.stdout.readlines()[-1]) for process in processes]
        assert [process.wait(300) for process in processes] == [0, 0]
    finally:
        watchdog.cancel()
        for process in processes:
            process.kill()
            process.wait()
    stored = sum(one["stores"] for one in seen)
    assert all(one["wrong"] == 0 and one["stores"] >= STORES and one["hits"] >= HITS for one in seen), seen
    assert all(one["gone"] >= STORES - ROOM for one in seen) and stored - sum(one["gone"] for one in seen) <= ROOM, seen


def test_close_ends_the_attachment(marud):
    with Storage(str(marud.socket)) as storage:
        storage.store([1])
        item, = storage.load([1])
        tensor = item.tensor
        assert storage.handler.connected
    assert not storage.handler.connected and same(tensor, chunk(1))


def test_the_configuration_of_the_page_is_lmcaches(tmp_path):
    page = (PROGRAM.parents[2] / "docs" / "python" / "lmcache.md").read_text()
    written = tmp_path / "lmcache.yaml"
    written.write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    config = LMCacheEngineConfig.from_file(str(written))
    assert (config.maru_path, config.maru_pool_size, config.local_cpu, config.max_local_cpu_size) == (
        "maru:///run/marud/marud.sock", 4, False, 0)
    assert config.extra_config == {"maru_timeout_ms": 5000} and config.pre_caching_hash_algorithm == "sha256_cbor"
