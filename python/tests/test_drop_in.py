"""Names that programs for the older system use beside the calls: statistics, newer calls, and the module maru_handler."""
import mmap

import pytest

import maru
import maru_handler
from maru_handler.memory import AllocHandle, MappedRegion, MemoryInfo
from maru_handler.memory import types
from test_handler import CHUNK, config, put


@pytest.fixture
def handler(marud):
    with maru.MaruHandler(config(marud, instance_id="drop-in")) as connected:
        yield connected


def test_statistics_have_the_names_that_monitors_read(handler, key):
    held = handler.alloc(100)
    put(handler, key, b"value")
    stats = handler.get_stats()
    regions = stats["store_regions"]
    assert {name: regions[name] for name in ("total_pool_size", "total_page_count", "total_free_pages",
                                             "total_allocated_pages", "utilization")} == {
        "total_pool_size": 64 * CHUNK, "total_page_count": 64, "total_free_pages": 63, "total_allocated_pages": 1,
        "utilization": 1 / 64}
    assert stats["stats_manager"]["clients"] == {"drop-in": stats["stats_manager"]["drop-in"]}
    assert stats["stats_manager"]["clients"]["drop-in"]["store"]["count"] == 1
    pool = stats["cxl_pool"]
    assert 0 < pool["free_size"] < pool["total_size"] == handler._client.geometry().pages * 4096
    assert pool["total_size"] - pool["free_size"] == stats["allocation_manager"]["total_allocated"]
    assert handler.owned_region_manager.get_stats() == handler.get_stats()["store_regions"]
    assert handler.owned_region_manager.get_stats()["num_regions"] == 1
    handler.free(held)
    assert handler.owned_region_manager.get_stats()["total_allocated_pages"] == 0


def test_prefetch_and_stage_look_and_move_nothing(handler, key):
    keys = [f"{key} {i}" for i in range(3)]
    put(handler, keys[0], b"x")
    put(handler, keys[1], b"x")
    assert handler.prefetch_batch(keys) is None
    assert handler.stage_batch(keys) == maru_handler.StageResult(requested_keys=3, found_keys=2, eligible_keys=2)
    assert not handler.stage_batch(keys).ready and handler.stage_batch(keys[:2]).ready
    assert handler.stage_batch([]).ready and handler.get_stats()["native"]["pins"] == 0
    for call in (handler.prefetch_batch, handler.stage_batch):
        with pytest.raises(maru.InvalidArgumentError):
            call([None])


def test_a_stage_says_why_the_pool_could_not_be_asked(handler):
    handler.close()
    result = handler.stage_batch(["a", "b"])
    assert result.requested_keys == 2 and result.found_keys == 0 and not result.ready and "connect()" in result.error


def test_a_callback_gets_the_bytes_of_a_page_when_it_takes_them(handler):
    class Watcher:
        def __init__(self):
            self.seen = []

        def with_three(self, region_id, pages, slot_size):
            self.seen.append((region_id, pages, slot_size))

        def with_two(self, region_id, pages):
            self.seen.append((region_id, pages))

        def with_any(self, *given):
            self.seen.append(given)

        def with_default(self, region_id, pages, slot_size=None):
            self.seen.append((region_id, pages, slot_size))

    watcher = Watcher()
    for callback in (watcher.with_three, watcher.with_two, watcher.with_any, watcher.with_default):
        handler.set_on_region_added(callback)
    assert watcher.seen == [(1, 64, CHUNK), (1, 64), (1, 64, CHUNK), (1, 64, CHUNK)]


def test_regions_are_mapped_while_the_handler_is_connected(handler):
    assert handler.is_region_mapped(0) and handler.is_region_mapped(1) and not handler.is_region_mapped(2)
    handler.close()
    assert not handler.is_region_mapped(1)


def test_memory_that_must_be_registered_with_cuda_is_not_to_be_had(marud, caplog):
    one = maru.MaruHandler(config(marud))
    assert one.connect(require_cuda_pin=True) is False and not one.connected
    assert "require_cuda_pin" in caplog.text
    assert one.connect(require_cuda_pin=False)
    one.close()


def test_an_offset_says_where_a_value_lies_in_its_region(handler, key):
    put(handler, key, b"a")
    put(handler, key + " too", b"b")
    found = [handler.retrieve(key), handler.retrieve(key + " too")]
    assert [info.kv_offset for info in found] == [info.page_index * CHUNK for info in found]
    assert found[0].kv_offset != found[1].kv_offset


# -- maru_handler -----------------------------------------------------------------------------------------------------------

def test_the_module_has_what_the_handler_gives(handler, key):
    assert maru_handler.MaruHandler is maru.MaruHandler and maru_handler.MaruConfig is maru.MaruConfig
    assert isinstance(handler.alloc(1), AllocHandle) and types.AllocHandle is maru.AllocHandle
    put(handler, key, b"x")
    assert isinstance(handler.retrieve(key), MemoryInfo) and types.MemoryInfo is maru.MemoryInfo


def test_a_stand_in_makes_what_a_handler_gives():
    memory = mmap.mmap(-1, 4 * 4096)
    region = MappedRegion(region_id=100, handle=object(), size=4 * 4096, _mmap_obj=memory)
    assert region.is_mapped and region.get_buffer_view(4096, 8).nbytes == 8
    assert region.get_buffer_view(-1, 1) is None and region.get_buffer_view(4 * 4096, 1) is None
    assert MappedRegion(region_id=1, handle=None, size=4096).get_buffer_view(0, 1) is None
    handle = AllocHandle(buf=region.get_buffer_view(4096, 8), _region_id=100, _page_index=1, _size=8)
    handle.buf[:] = b"12345678"
    assert (handle.region_id, handle.page_index, handle.size, handle.is_spent) == (100, 1, 8, False)
    assert (handle._region_id, handle._page_index, handle._size) == (100, 1, 8) and "region_id=100" in repr(handle)
    info = MemoryInfo(view=region.get_buffer_view(4096, 8), region_id=100, page_index=1)
    assert bytes(info.view) == b"12345678" and (info.region_id, info.page_index, info.kv_offset) == (100, 1, 0)
    assert len(info) == 8 and bytes(MemoryInfo(view=b"abc").view) == b"abc"


def test_a_handler_takes_handles_of_its_own_alone(handler):
    stranger = AllocHandle(buf=memoryview(bytearray(8)), _region_id=1, _page_index=0, _size=8)
    for call in (handler.free, lambda handle: handler.store("key", handle),
                 lambda handle: handler.batch_store(["key"], [handle])):
        with pytest.raises(maru.InvalidArgumentError, match=r"alloc\(\)"):
            call(stranger)


@pytest.mark.parametrize("wrong", [{"view": 5}, {"view": b"", "region_id": -1}, {"view": b"", "page_index": "1"}, {}])
def test_a_memory_info_of_nonsense_is_refused(wrong):
    with pytest.raises((TypeError, maru.InvalidArgumentError)):
        MemoryInfo(**wrong)
