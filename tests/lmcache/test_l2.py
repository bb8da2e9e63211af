"""MaruL2Adapter: the pool as the second tier of LMCache's own server, by LMCache's plug-in."""
import json
import os
import select

import pytest
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig, SerdeConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd
from mp_objects import HALF, LAYOUT, NBYTES, chunk, key_of, manager, read, same, until, write
from mp_server import CHUNK_BYTES, STOCK, Engine, Server
from test_mp_storage import load, store
from with_marud import Marud

import maru


class Heard(L2AdapterListener):
    def __init__(self):
        self.all = []

    def on_l2_keys_stored(self, keys, sizes): self.all += [("stored", number_of(key)) for key in keys]
    def on_l2_keys_accessed(self, keys): self.all += [("accessed", number_of(key)) for key in keys]
    def on_l2_keys_deleted(self, keys): self.all += [("deleted", number_of(key)) for key in keys]


def number_of(key):
    return int.from_bytes(key.chunk_hash, "big")


def item_of(number=None, layout=LAYOUT):
    memory = torch.zeros(NBYTES, dtype=torch.uint8)
    made = TensorMemoryObj(memory, MemoryObjMetadata(
        layout.shapes[0], layout.dtypes[0], 0, NBYTES, 1, fmt=MemoryFormat.UNDEFINED, shapes=layout.shapes,
        dtypes=layout.dtypes), None)
    if number is not None:
        made.tensor.copy_(chunk(number))
    return made


def plugin(marud, **params):
    return PluginL2AdapterConfig("maru_lmcache.l2", "MaruL2Adapter",
                                 {"socket": str(marud.socket), "timeout_ms": 60_000, **params})


class Tier:
    """The calls, each with its wait for the descriptor."""

    def __init__(self, marud, **params):
        self.adapter = create_l2_adapter(plugin(marud, **params), None)
        self.adapter.set_backend_identity("plugin")
        self.heard = Heard()
        self.adapter.register_listener(self.heard)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.adapter.close()

    @staticmethod
    def wait(descriptor):
        assert select.select([descriptor], [], [], 60)[0]
        consume_fd(descriptor)

    def store(self, numbers, **of):
        task = self.adapter.submit_store_task([key_of(n, **of) for n in numbers], [item_of(n) for n in numbers])
        self.wait(self.adapter.get_store_event_fd())
        return self.adapter.pop_completed_store_tasks()[task]

    def look_up(self, numbers, layout=LAYOUT, **of):
        task = self.adapter.submit_lookup_and_lock_task([key_of(n, **of) for n in numbers], {0: layout})
        self.wait(self.adapter.get_lookup_and_lock_event_fd())
        found = self.adapter.query_lookup_and_lock_result(task)
        assert self.adapter.query_lookup_and_lock_result(task) is None, "a result is taken once"
        return [n for index, n in enumerate(numbers) if found.test(index)]

    def load(self, numbers, layout=LAYOUT, **of):
        items = [item_of(layout=layout) for _ in numbers]
        task = self.adapter.submit_load_task([key_of(n, **of) for n in numbers], items)
        self.wait(self.adapter.get_load_event_fd())
        loaded = self.adapter.query_load_result(task)
        assert self.adapter.query_load_result(task) is None
        found = [n for index, n in enumerate(numbers) if loaded.test(index)]
        assert all(same(item.tensor, n) for index, (n, item) in enumerate(zip(numbers, items)) if loaded.test(index))
        return found

    def unlock(self, numbers):
        self.adapter.submit_unlock([key_of(n) for n in numbers])

    def pins(self):
        return self.adapter.report_status()["pins"]


@pytest.fixture
def tier(marud):
    with Tier(marud) as made:
        yield made


def test_three_descriptors(tier):
    descriptors = {tier.adapter.get_store_event_fd(), tier.adapter.get_lookup_and_lock_event_fd(),
                   tier.adapter.get_load_event_fd()}
    assert len(descriptors) == 3 and not select.select(list(descriptors), [], [], 0)[0]


def test_stored_found_loaded_and_unlocked(tier):
    result = tier.store([1, 2])
    assert result.is_successful() and result.bytes_transferred() == 2 * NBYTES
    assert tier.adapter.pop_completed_store_tasks() == {}
    assert tier.look_up([1, 9, 2]) == [1, 2] and tier.pins() == 2
    assert tier.look_up([1]) == [1] and tier.pins() == 3
    assert tier.load([1, 2, 9]) == [1, 2]
    tier.unlock([1, 2])
    assert tier.pins() == 1
    tier.unlock([1, 1, 5])
    assert tier.pins() == 0 and tier.load([1]) == [1]
    assert tier.heard.all == [("stored", 1), ("stored", 2), ("accessed", 1), ("accessed", 2), ("accessed", 1)]


def test_storing_again_is_a_success_and_transfers_nothing(marud, tier):
    tier.store([1])
    assert (tier.store([1, 2]).bytes_transferred(), tier.store([1]).bytes_transferred()) == (NBYTES, 0)
    with Tier(marud) as other:
        assert other.store([1]).is_successful() and other.heard.all == []


def test_what_is_locked_stays_while_everything_else_is_evicted(tier):
    tier.store([1])
    assert tier.look_up([1]) == [1]
    for number in range(10, 250):  # twice what the pool has room for
        assert tier.store([number]).is_successful()
    assert tier.load([1]) == [1]
    tier.unlock([1])
    for number in range(250, 500):
        tier.store([number])
    assert tier.look_up([1]) == []


def test_a_store_that_finds_no_room_fails(tier):
    assert not tier.store(range(200)).is_successful()
    assert tier.store([1]).is_successful()


def test_usage_and_listing_are_exact_after_eviction(marud, tier):
    tier.store([1, 2], salt="a")
    tier.store([1])
    usage = tier.adapter.get_usage()
    assert usage.total_bytes_used == 3 * NBYTES and dict(usage.bytes_by_cache_salt) == {"a": 2 * NBYTES, "": NBYTES}
    for number in range(10, 250):
        tier.store([number])
    keys = [key_of(n) for n in [1, *range(10, 250)]] + [key_of(n, salt="a") for n in (1, 2)]
    with maru.Client(str(marud.socket)) as client:
        there = [key for key in keys if client.exists_batch(*rows_of(tier, key))[0]]
        until(lambda: sorted(map(repr, listed(tier))) == sorted(map(repr, [  # marud may be evicting meanwhile
            key for key in keys if client.exists_batch(*rows_of(tier, key))[0]])))
    assert 50 < len(there) < 129
    usage = tier.adapter.get_usage()
    assert usage.total_bytes_used == len(listed(tier)) * NBYTES
    assert len([what for what, _ in tier.heard.all if what == "deleted"]) == 243 - len(listed(tier))
    assert tier.adapter.list_l2_keys(model_name="another").entries == ()
    with pytest.raises(ValueError):
        tier.adapter.list_l2_keys(page_size=0)


def listed(tier):
    pages, cursor = [], None
    while True:
        page = tier.adapter.list_l2_keys(page_size=50, cursor=cursor)
        pages += [entry.key.to_object_key() for entry in page.entries]
        assert len(page.entries) <= 50 and all(entry.size_bytes == NBYTES for entry in page.entries)
        cursor = page.next_page_token
        if cursor is None:
            return pages


def rows_of(tier, key):
    import numpy
    place = tier.adapter._keys.located([key], LAYOUT)[0][1]
    return numpy.frombuffer(place.digest, dtype=numpy.uint8).reshape(1, 32), place.tenant


def test_deleting(marud, tier):
    tier.store([1, 2, 3])
    tier.look_up([1])
    tier.adapter.delete([key_of(1), key_of(2), key_of(9)])
    assert tier.load([1]) == [1], "what is locked stays readable"
    assert tier.look_up([1, 2, 3]) == [3] and tier.adapter.get_usage().total_bytes_used == NBYTES
    assert [number for what, number in tier.heard.all if what == "deleted"] == [1, 2]
    with Tier(marud) as other:
        other.look_up([3])
        assert other.adapter.get_usage().total_bytes_used == NBYTES, "what was found is known, too"
        other.adapter.delete([key_of(3)])
    tier.unlock([1])
    assert tier.look_up([3]) == [] and tier.adapter.get_usage().total_bytes_used == 0


def test_another_layout_of_one_size_is_absent(tier):
    tier.store([1])
    assert tier.look_up([1], HALF) == [] and tier.load([1], HALF) == []


def test_what_it_stores_a_server_with_the_pool_as_l1_finds_and_the_other_way(marud, tier):
    tier.store([1])
    l1 = manager(marud.socket)
    assert read(l1, [1]) == [1]
    write(l1, [2])
    assert tier.look_up([2]) == [2] and tier.load([2]) == [2]
    l1.close()


def test_a_damaged_block_is_absent():
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="2MiB", more="checksums = true") as running, \
            Tier(running) as tier:
        tier.store([1, 2])
        running.damage(chunk(1).view(torch.uint8).numpy().tobytes())
        assert tier.look_up([1, 2]) == [2] and tier.load([1, 2]) == [2]
        assert tier.adapter.report_status()["checksum_errors"] > 0


@pytest.mark.parametrize("params, said", [({"sockets": "x"}, "sockets"), ({"pool": 1}, "a str is wanted"),
                                          ({"timeout_ms": True}, "an int|a int"), ({"load_threads": 0}, "1 at the least")])
def test_parameters_are_checked(marud, params, said):
    with pytest.raises(ValueError, match=said):
        Tier(marud, **params)


def test_no_pool_is_said(marud):
    with pytest.raises(maru.MaruError, match="no such pool"):
        Tier(marud, pool="none")


@pytest.mark.parametrize("serde", [None, SerdeConfig("fp8", {})])
def test_under_lmcaches_own_storage_manager(marud, serde):
    """Its L1 is emptied, and all comes back from the pool; also what it serializes."""
    adapter = plugin(marud)
    adapter.serde_config = serde
    l1 = L1ManagerConfig(L1MemoryManagerConfig(64 << 20, False, shm_name=""))
    storage = StorageManager(StorageManagerConfig(l1, EvictionConfig("LRU"), L2AdaptersConfig([adapter])))
    try:
        store(storage, range(4))
        until(lambda: storage.get_l2_usages_by_type()["plugin"][0].total_bytes_used >= 4 * NBYTES // 2)
        until(lambda: storage.report_status()["l1_manager"]["read_locked_count"] == 0)
        storage.clear()
        if serde is None:
            assert load(storage, range(6)) == 4
        else:
            from lmcache.v1.distributed.api import GroupedObjectKeys, PrefetchTaskSpec
            keys = [key_of(n) for n in range(6)]
            handle = storage.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, LAYOUT)]))
            assert storage.wait_prefetch_status(handle, 60)
            assert storage.query_prefetch_status(handle).l2_hit_count == 4
            storage.finish_read_prefetched(keys[:4])
        assert storage.get_usage_bytes_by_cache_salt()[""] > 0
    finally:
        storage.close()


@pytest.mark.parametrize("mode", ["engine_driven", "lmcache_driven"])
def test_under_a_stock_server_that_is_restarted(tmp_path, mode):
    with Marud(os.environ["MARU_TEST_MARUD"], size="64MiB", region_bytes="8MiB") as marud:
        spec = json.dumps({"type": "plugin", "module_path": "maru_lmcache.l2", "class_name": "MaruL2Adapter",
                           "adapter_params": {"socket": str(marud.socket), "timeout_ms": 60_000}})
        options = dict(program=STOCK, mode="auto")
        with Server(None, tmp_path / "first.log", "--l2-adapter", spec, **options) as server, Engine(server, mode) as engine:
            engine.store(1)
            engine.store(2)
            until(lambda: usage(server) == 4 * CHUNK_BYTES)
            server.kill()
            engine.client._req_client.close()
            engine.client._req_client = None
        with Server(None, tmp_path / "second.log", "--l2-adapter", spec, **options) as server, Engine(server, mode) as engine:
            assert server.l1()["total_object_count"] == 0
            assert engine.load(1) == 2 and engine.load(2) == 2 and engine.load(3) == 0
            assert usage(server) == 4 * CHUNK_BYTES


def usage(server):
    return server.ask("/status")["storage_manager"]["l2_adapters"][0]["current_size_bytes"]
