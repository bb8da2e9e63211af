"""LMCache's own storage manager over MaruL1Manager: with a lower tier of LMCache's, and two of them on one pool."""
import pytest
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, PrefetchTaskSpec
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig, SerdeConfig
from lmcache.v1.distributed.l2_adapters.mock_l2_adapter import MockL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager
from mp_objects import LAYOUT, chunk, key_of, manager, same, until


def storage_over(l1, *adapters, prefetch="default"):
    config = StorageManagerConfig(
        L1ManagerConfig(L1MemoryManagerConfig(1 << 20, False, shm_name="")), EvictionConfig("noop"),
        L2AdaptersConfig(list(adapters)), prefetch_policy=prefetch)
    return StorageManager(config, _l1_managers=(l1,))


def mock(serde=None):
    config = MockL2AdapterConfig(max_size_gb=1, mock_bandwidth_gb=100)
    config.serde_config = serde
    return config


def exact(number):
    """What is the same after LMCache has made eight bits of each number."""
    return torch.full(LAYOUT.shapes[0], number + 1, dtype=torch.bfloat16)


def store(storage, numbers, content=chunk):
    keys = [key_of(number) for number in numbers]
    objects = storage.reserve_write(keys, LAYOUT)
    assert list(objects) == keys
    for number, item in zip(numbers, objects.values()):
        item.tensor.copy_(content(number))
    storage.finish_write(keys)


def load(storage, numbers):
    """How many leading ones are there; asserts that their bytes are right."""
    keys = [key_of(number) for number in numbers]
    handle = storage.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, LAYOUT)]))
    assert storage.wait_prefetch_status(handle, 60)
    hits = storage.query_prefetch_status(handle).hit_cells[0].popcount()
    with storage.read_prefetched_results(keys[:hits]) as objects:
        for number, item in zip(numbers, objects or []):
            assert same(item.tensor, number)
        assert len(objects or []) == hits
    storage.finish_read_prefetched(keys[:hits])
    return hits


@pytest.mark.parametrize("serde", [None, SerdeConfig("fp8", {})])
@pytest.mark.parametrize("prefetch", ["default", "retain"])
def test_a_lower_tier_is_written_and_read_through_the_pool(marud, prefetch, serde):
    l1 = manager(marud.socket)
    storage = storage_over(l1, mock(serde), prefetch=prefetch)
    try:
        lower = storage.l2_adapters()[0][1]
        lower = getattr(lower, "_inner", lower)
        store(storage, range(4), chunk if serde is None else exact)
        until(lambda: lower.debug_get_stored_object_count() == 4 and l1.report_status()["read_locked_count"] == 0)
        l1.delete([key_of(number) for number in range(4)])
        keys = [key_of(number) for number in range(4)]
        handle = storage.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, LAYOUT)]))
        assert storage.wait_prefetch_status(handle, 60)
        result = storage.query_prefetch_status(handle)
        assert (result.l1_hit_count, result.l2_hit_count) == (0, 4)
        with storage.read_prefetched_results(keys) as objects:
            for number, item in zip(range(4), objects):
                assert same(item.tensor, number) if serde is None else torch.equal(item.tensor, exact(number))
            del item, objects
        storage.finish_read_prefetched(keys)
        until(lambda: l1.report_status()["temporary_count"] == 0)
        other = manager(marud.socket)
        found = [error.name for error, _ in other.reserve_read(keys).values()]
        assert found == (["SUCCESS"] * 4 if prefetch == "retain" else ["KEY_NOT_EXIST"] * 4)
        other.close()
    finally:
        storage.close()


def test_two_storage_managers_on_one_pool(marud):
    first, second = (storage_over(manager(marud.socket)) for _ in range(2))
    try:
        store(first, range(6))
        assert load(second, range(8)) == 6 and load(first, range(8)) == 6
        assert first.reserve_write([key_of(0), key_of(9)], LAYOUT).keys() == {key_of(9)}
        assert second.delete_l1_keys([key_of(5)]) == (1, 0) and load(first, range(8)) == 5
        first.clear()
        assert load(second, range(8)) == 0
        assert first.memcheck() and first.report_status()["is_healthy"]
    finally:
        first.close()
        second.close()


def test_what_one_stored_another_reads_while_both_evict(marud):
    first, second = (storage_over(manager(marud.socket)) for _ in range(2))
    try:
        for number in range(300):
            writer, reader = (first, second) if number % 2 else (second, first)
            store(writer, [number])
            assert load(reader, [number]) == 1
        assert load(first, [0]) == 0
    finally:
        first.close()
        second.close()


def test_status_and_usage_are_of_the_pool(marud):
    l1 = manager(marud.socket)
    storage = storage_over(l1)
    try:
        store(storage, range(3))
        used, total = storage.get_l1_usage()
        assert used == 3 * 128 * 1024 and total == l1.get_memory_usage()[1]
        assert storage.report_status()["l1_capacity_bytes_by_backend"] == {"dram": total}
        with pytest.raises(ValueError, match="no registerable memory buffer"):
            storage.l1_memory_desc
    finally:
        storage.close()
