"""MaruL1Manager keeps LMCache's contract of an L1 manager, and what docs/python/lmcache-server.md promises beyond it."""
import json
import pathlib
import subprocess
import sys
import threading
import time

import pytest
import torch
from lmcache.v1.distributed.error import L1Error, L1ReconfigureError
from lmcache.v1.distributed.internal_api import L1ManagerInterface, L1ManagerListener
from mp_objects import LAYOUT, NBYTES, SHAPE, chunk, key_of, manager, pins, read, reserve, same, until, write

from maru_lmcache import staging

PROGRAM = pathlib.Path(__file__).with_name("mp_objects.py")
SUCCESS, ABSENT = L1Error.SUCCESS, L1Error.KEY_NOT_EXIST


class Heard(L1ManagerListener):
    """What a listener was told, in order."""

    def __init__(self):
        self.all = []

    def on_l1_keys_reserved_read(self, keys): self.hear("reserved_read", keys)
    def on_l1_keys_read_finished(self, keys): self.hear("read_finished", keys)
    def on_l1_keys_reserved_write(self, keys): self.hear("reserved_write", keys)
    def on_l1_keys_write_finished(self, keys): self.hear("write_finished", keys)
    def on_l1_keys_finish_write_and_reserve_read(self, keys): self.hear("write_finished_and_reserved_read", keys)
    def on_l1_keys_deleted_by_manager(self, keys): self.hear("deleted", keys)
    def on_l1_keys_accessed(self, keys): self.hear("accessed", keys)

    def hear(self, what, keys):
        self.all += [(what, int.from_bytes(key.chunk_hash, "big")) for key in keys]

    def take(self):
        heard, self.all = self.all, []
        return heard


def other_server(marud, what, first, last):
    done = subprocess.run([sys.executable, PROGRAM, str(marud.socket), what, str(first), str(last)], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# -- the contract -----------------------------------------------------------------------------------------------------

def test_it_is_an_l1_manager(l1):
    assert isinstance(l1, L1ManagerInterface)
    assert l1.config.memory_config.shm_name == "" and l1.config.eviction.eviction_policy == "noop"


def test_written_committed_read_and_released(l1):
    heard, key = Heard(), key_of(1)
    l1.register_listener(heard)
    item = reserve(l1, 1)[key][1]
    assert item.get_size() == NBYTES and item.get_l1_manager() == l1.l1_manager_id
    item.tensor.copy_(chunk(1))
    assert l1.reserve_read([key])[key] == (ABSENT, None), "what is being written is not there"
    assert l1.finish_write([key]) == {key: SUCCESS}
    error, found = l1.reserve_read([key])[key]
    assert error == SUCCESS and same(found.tensor, 1) and pins(l1) == 1
    assert l1.unsafe_read([key])[key][1] is found
    del found
    assert l1.finish_read([key]) == {key: SUCCESS} and pins(l1) == 0
    assert heard.take() == [("reserved_write", 1), ("write_finished", 1), ("reserved_read", 1), ("read_finished", 1)]


def test_a_write_that_is_given_up_is_never_readable(l1):
    heard, key = Heard(), key_of(1)
    l1.register_listener(heard)
    reserve(l1, 1)[key][1].tensor.copy_(chunk(1))
    used = l1.get_staging_memory_usage()
    assert used == NBYTES == l1.get_memory_usage()[0]
    assert l1.finish_write_and_delete([key]) == {key: SUCCESS}
    assert l1.reserve_read([key])[key] == (ABSENT, None) and l1.get_memory_usage()[0] == 0
    assert heard.take() == [("reserved_write", 1), ("deleted", 1)]
    assert l1.finish_write([key]) == {key: ABSENT}


def test_a_write_that_ends_locked(l1):
    heard, keys = Heard(), [key_of(1), key_of(2)]
    l1.register_listener(heard)
    for number, (_, item) in zip((1, 2), reserve(l1, 1, 2).values()):
        item.tensor.copy_(chunk(number))
    del item
    answer = l1.finish_write_and_reserve_read(keys, 2)
    assert [error for error, _ in answer.values()] == [SUCCESS, SUCCESS]
    assert all(same(item.tensor, number) for number, (_, item) in zip((1, 2), answer.values()))
    assert heard.take() == [("reserved_write", 1), ("reserved_write", 2), ("write_finished_and_reserved_read", 1),
                            ("write_finished_and_reserved_read", 2)]
    assert l1.finish_read(keys) == {key: SUCCESS for key in keys} and l1.delete(keys) == {
        key: L1Error.KEY_IS_LOCKED for key in keys}
    assert l1.finish_read(keys) == {key: SUCCESS for key in keys}
    assert l1.finish_read(keys) == {key: ABSENT for key in keys}


def test_writers_with_different_tags_do_not_see_each_other(l1):
    key = key_of(1)
    first, second = reserve(l1, 1, tag="a")[key][1], reserve(l1, 1, tag="b")[key][1]
    assert first.data_ptr != second.data_ptr
    assert reserve(l1, 1, tag="a")[key] == (L1Error.KEY_NOT_WRITABLE, None)
    second.tensor.copy_(chunk(1))
    assert l1.finish_write([key], "b") == {key: SUCCESS} and l1.finish_write([key], "c") == {key: ABSENT}
    first.tensor.copy_(chunk(2))
    assert l1.finish_write([key], "a") == {key: SUCCESS}, "there already: the own copy is dropped"
    assert read(l1, [1]) == [1] and l1.get_staging_memory_usage() == 0
    assert reserve(l1, 1, tag="d")[key] == (L1Error.KEY_NOT_WRITABLE, None)


def test_out_of_memory_is_of_all_or_of_none(l1):
    """16 MiB hold 128 objects at the most."""
    answer = reserve(l1, *range(200))
    assert {error for error, _ in answer.values()} == {L1Error.OUT_OF_MEMORY}
    assert l1.get_staging_memory_usage() == 0
    answer = reserve(l1, *range(60))
    assert {error for error, _ in answer.values()} == {SUCCESS}
    answer = reserve(l1, *range(50, 160))
    assert {answer[key_of(n)][0] for n in range(50, 60)} == {L1Error.KEY_NOT_WRITABLE}
    assert {answer[key_of(n)][0] for n in range(60, 160)} == {L1Error.OUT_OF_MEMORY}
    answer = reserve(l1, 60)
    assert answer[key_of(60)][0] == SUCCESS


def test_a_batch_that_meets_what_is_there(l1):
    write(l1, [1, 3])
    answer = reserve(l1, 1, 2, 3, 2)
    assert [answer[key_of(n)][0] for n in (1, 2, 3)] == [L1Error.KEY_NOT_WRITABLE, SUCCESS, L1Error.KEY_NOT_WRITABLE]
    with pytest.raises(ValueError, match="1 for 2 keys"):
        l1.reserve_write([key_of(8), key_of(9)], [False], LAYOUT)


def test_locks_are_counted(l1):
    key = key_of(1)
    write(l1, [1])
    l1.reserve_read([key], 2)
    l1.reserve_read([key])
    assert l1.report_status()["read_locked_count"] == 1
    assert [l1.finish_read([key])[key] for _ in range(4)] == [SUCCESS, SUCCESS, SUCCESS, ABSENT]
    l1.reserve_read([key], 3)
    assert l1.finish_read([key], 3) == {key: SUCCESS} and pins(l1) == 0


def test_deleting_under_a_pin(l1):
    heard, key = Heard(), key_of(1)
    write(l1, [1])
    item = l1.reserve_read([key])[key][1]
    l1.register_listener(heard)
    assert l1.delete([key, key_of(2)]) == {key: L1Error.KEY_IS_LOCKED, key_of(2): ABSENT}
    assert l1.delete([key], force=True) == {key: SUCCESS}
    assert l1.reserve_read([key])[key] == (ABSENT, None) and heard.take() == [("deleted", 1)]
    for number in range(10, 200):  # more than the pool has: the block that is still read is not written over
        write(l1, [number])
    assert same(item.tensor, 1)
    assert l1.finish_read([key]) == {key: ABSENT}


def test_temporary_objects_stay_private(marud, l1):
    heard, key = Heard(), key_of(1)
    l1.register_listener(heard)
    item = reserve(l1, 1, temporary=True)[key][1]
    item.tensor.copy_(chunk(1))
    assert l1.finish_write_and_reserve_read([key])[key] == (SUCCESS, item)
    assert l1.reserve_read([key])[key] == (SUCCESS, item), "others of this server share it"
    assert other_server(marud, "read", 1, 2) == []
    assert l1.report_status()["temporary_count"] == 1 and l1.get_memory_usage()[0] == NBYTES
    heard.take()
    assert l1.finish_read([key], 2) == {key: SUCCESS}
    assert heard.take() == [("read_finished", 1), ("deleted", 1)]
    assert l1.reserve_read([key])[key] == (ABSENT, None) and l1.get_memory_usage()[0] == 0
    assert reserve(l1, 1)[key][0] == SUCCESS, "its key is free"


def test_a_temporary_write_is_not_told_as_finished(l1):
    heard = Heard()
    l1.register_listener(heard)
    reserve(l1, 1, temporary=True)
    l1.finish_write([key_of(1)])
    assert heard.take() == [("reserved_write", 1)]


# -- expiry -----------------------------------------------------------------------------------------------------------

def test_locks_whose_reader_does_not_come_end(marud):
    l1 = manager(marud.socket, read_ttl=1)
    write(l1, [1, 2])
    item = l1.reserve_read([key_of(1), key_of(2)])[key_of(1)][1]
    assert pins(l1) == 2
    until(lambda: pins(l1) == 1)  # the one that a reader still has
    for number in range(10, 200):
        write(l1, [number])
    assert same(item.tensor, 1), "expiry takes no memory from a reader"
    assert l1.report_status()["maru"]["expired_reads"] == 2
    l1.close()


def test_a_reader_that_comes_late_finds_the_block_again(marud):
    l1 = manager(marud.socket, read_ttl=1)
    key = key_of(1)
    write(l1, [1])
    l1.reserve_read([key])
    until(lambda: pins(l1) == 0)
    error, item = l1.unsafe_read([key])[key]
    assert error == SUCCESS and same(item.tensor, 1)
    assert l1.finish_read([key]) == {key: SUCCESS}
    assert l1.unsafe_read([key_of(2)])[key_of(2)] == (ABSENT, None)
    l1.close()


def test_what_is_written_too_late_is_never_seen(marud):
    """And no other writer gets its pages, which the late one may still be writing, or its place, which the late one would
    publish half written: LMCache's stores all have one tag."""
    heard, key, l1 = Heard(), key_of(1), manager(marud.socket, write_ttl=1)
    l1.register_listener(heard)
    late = reserve(l1, 1, tag="stores")[key][1]
    until(lambda: l1.get_staging_memory_usage() == 0)
    assert heard.take() == [("reserved_write", 1), ("deleted", 1)]
    assert reserve(l1, 1, tag="stores")[key] == (L1Error.KEY_NOT_WRITABLE, None)
    other = reserve(l1, 1, tag="another")[key][1]
    taken = [item for _, item in reserve(l1, *range(10, 130), tag="x").values() if item is not None]
    ours = range(late.data_ptr, late.data_ptr + NBYTES)
    assert all(item.data_ptr not in ours for item in (other, *taken)), "no other writer gets its pages until it lets go"
    late.tensor.copy_(chunk(1))
    assert l1.finish_write([key], "stores") == {key: L1Error.KEY_IN_WRONG_STATE}
    assert l1.reserve_read([key])[key] == (ABSENT, None)
    del late
    assert reserve(l1, 1, tag="stores")[key][0] == SUCCESS, "the late one has called, so its place is free"
    assert l1.report_status()["maru"]["writers_not_back"] == 0
    del taken
    l1.close()


def test_what_is_written_too_late_is_never_seen_before_the_sweep_either(marud):
    key, l1 = key_of(1), manager(marud.socket, write_ttl=1)
    l1._is_closed.set()  # so its thread sweeps no more
    l1._sweeper.join()
    begun = time.monotonic()
    reserve(l1, 1)[key][1].tensor.copy_(chunk(1))
    until(lambda: time.monotonic() > begun + 1.1)
    assert l1.finish_write([key]) == {key: L1Error.KEY_IN_WRONG_STATE}
    assert l1.reserve_read([key])[key] == (ABSENT, None) and l1.get_staging_memory_usage() == 0
    assert reserve(l1, 1)[key][0] == SUCCESS
    l1.close()


def test_a_private_object_without_readers_ends(marud):
    l1 = manager(marud.socket, read_ttl=1)
    reserve(l1, 1, temporary=True)
    l1.finish_write([key_of(1)])
    until(lambda: l1.get_memory_usage()[0] == 0)
    l1.close()


def test_a_writer_that_keeps_a_tensor_writes_into_nothing_that_others_read(l1):
    key = key_of(1)
    item = reserve(l1, 1)[key][1]
    kept = item.tensor
    kept.copy_(chunk(1))
    assert l1.finish_write([key]) == {key: SUCCESS}
    kept.zero_()
    assert read(l1, [1]) == [1] and item.tensor is None


# -- sharing ----------------------------------------------------------------------------------------------------------

def test_another_server_reads_what_this_one_stored_and_the_other_way(marud, l1):
    write(l1, range(20))
    assert other_server(marud, "read", 0, 25) == list(range(20))
    assert other_server(marud, "write", 30, 40) == list(range(30, 40))
    assert read(l1, range(25, 45)) == list(range(30, 40))
    assert reserve(l1, 30)[key_of(30)] == (L1Error.KEY_NOT_WRITABLE, None)


def test_a_server_finds_everything_after_a_restart(marud):
    first = manager(marud.socket)
    write(first, range(5))
    first.reserve_read([key_of(0)])
    reserve(first, 9)
    first.close()
    second = manager(marud.socket)
    assert read(second, range(10)) == list(range(5)) and pins(second) == 0
    second.close()


def test_clear_touches_nothing_of_another_server(marud, l1):
    write(l1, range(4))
    other_server(marud, "write", 10, 14)
    held = l1.reserve_read([key_of(3)])[key_of(3)][1]
    assert other_server(marud, "clear", 20, 24) == []
    assert read(l1, (0, 1, 2, 10, 11, 12, 13)) == [0, 1, 2, 10, 11, 12, 13]
    l1.clear()
    assert read(l1, (0, 1, 2, 10, 11, 12, 13)) == [10, 11, 12, 13] and same(held.tensor, 3)
    l1.finish_read([key_of(3)])
    assert read(l1, [3]) == [3]
    l1.clear(force=True)
    assert read(l1, range(20)) == [10, 11, 12, 13]


def test_clear_leaves_a_block_that_another_server_stored_after_this_ones_went(marud, l1):
    l1._is_closed.set()  # so its thread does not hear of it
    l1._sweeper.join()
    write(l1, range(2))
    maru_client_deletes(marud, l1, 0)
    assert other_server(marud, "write", 0, 1) == [0]
    l1.clear()
    assert read(l1, range(2)) == [0]


def maru_client_deletes(marud, l1, number):
    """Behind the manager's back, as marud's eviction does."""
    deleter = manager(marud.socket)
    assert deleter.delete([key_of(number)]) == {key_of(number): SUCCESS}
    deleter.close()


def test_what_marud_evicts_is_told_some_time_later(l1):
    heard = Heard()
    l1.register_listener(heard)
    for number in range(200):
        write(l1, [number])
    def told():
        return {number for what, number in heard.all if what == "deleted"}

    until(lambda: told() and l1.report_status()["total_object_count"] == 200 - len(told()) == len(read(l1, range(200))))
    assert len(told()) >= 200 - 128 and read(l1, told()) == [] and l1.get_memory_usage()[0] == (200 - len(told())) * NBYTES


def test_usage_never_exceeds_the_pool_before_an_eviction_is_told(l1, monkeypatch):
    monkeypatch.setattr(l1, "sweep", lambda: None)
    for number in range(200):
        write(l1, [number])
    used, pool = l1.get_memory_usage()
    assert used == pool <= 128 * NBYTES and l1.report_status()["memory_usage_ratio"] == 1
    assert l1.config.eviction.trigger_watermark > 1, "LMCache would say each second that it evicts"
    monkeypatch.undo()
    until(lambda: l1.report_status()["total_object_count"] <= 128)


# -- the rest ---------------------------------------------------------------------------------------------------------

def test_there_is_no_buffer_to_register_and_no_device(l1):
    assert l1.get_l1_memory_desc() is None and l1.memory_region_count() > 1 and not l1.owns_device("/dev/dax0.0")
    for call, status in ((l1.get_devdax_arena_statuses, 409), (lambda: l1.get_devdax_arena_status("/dev/dax0.0"), 404),
                         (lambda: l1.add_devdax_device("/dev/dax0.0", 1), 409),
                         (lambda: l1.remove_devdax_device("/dev/dax0.0"), 404)):
        with pytest.raises(L1ReconfigureError, match="marudctl") as raised:
            call()
        assert raised.value.status_code == status


def test_the_status_has_what_lmcaches_own_has(marud, l1):
    from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
    from lmcache.v1.distributed.l1_manager import L1Manager
    stock = L1Manager(L1ManagerConfig(L1MemoryManagerConfig(1 << 20, False, shm_name="")))
    assert set(stock.report_status()) == set(l1.report_status()) - {"maru"}
    stock.close()
    write(l1, [1])
    reserve(l1, 2)
    status = l1.report_status()
    assert status["is_healthy"] and status["total_object_count"] == 2 and status["staging_bytes"] == NBYTES
    assert status["memory_used_bytes"] == 2 * NBYTES and 0 < status["memory_usage_ratio"] < 1
    assert status["capacity_bytes_by_backend"] == {"dram": status["memory_total_bytes"]}


def test_the_events_of_lmcaches_own_are_published(marud):
    """Both managers do the same things, and each publishes the same events with the same words."""
    from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
    from lmcache.v1.distributed.l1_manager import L1Manager
    stock = L1Manager(L1ManagerConfig(L1MemoryManagerConfig(16 << 20, False, shm_name="")))
    ours = manager(marud.socket)
    said = {}
    for l1 in (stock, ours):
        published = []
        bus = l1._event_bus if l1 is stock else l1._notices._bus
        original = bus.publish
        bus.publish = published.append
        try:
            heard = Heard()
            l1.register_listener(heard)
            write(l1, [1, 2])
            read(l1, [1], 2)
            reserve(l1, 3, temporary=True)
            l1.finish_write_and_reserve_read([key_of(3)])
            l1.finish_read([key_of(3)])
            reserve(l1, 4)
            l1.finish_write_and_delete([key_of(4)])
            reserve(l1, 5)
            l1.finish_write_and_reserve_read([key_of(5)])
            l1.finish_read([key_of(5)])
            l1.delete([key_of(1)])
            l1.touch_keys([key_of(2)])
            l1.clear()
        finally:
            bus.publish = original
        said[l1] = heard.all, [
            (event.event_type, {name: [(meta.size_bytes, meta.backend) for meta in value] if name == "meta" else value
                                for name, value in event.metadata.items()})
            for event in published if event.metadata["keys"]]
        l1.close()
    assert said[ours][0][:-2] == said[stock][0][:-2] and said[ours][1][:-1] == said[stock][1][:-1]
    assert sorted(said[ours][0][-2:]) == sorted(said[stock][0][-2:]), "clear() has no order"


def test_the_gauges_are_lmcaches(marud, l1):
    from maru_lmcache.mp.notices import Gauges
    write(l1, [1])
    values = Gauges._reader(lambda one: one.get_memory_usage()[0])()
    assert (NBYTES, {"l1_tag": "_default", "backend": "maru"}) in values


def test_lists_are_one_step_to_others(marud):
    """A thread reserves both of two objects over and over, another deletes both and writes both: never one of them."""
    l1 = manager(marud.socket)
    keys, over, seen = [key_of(1), key_of(2)], threading.Event(), []

    def reads():
        while not over.is_set():
            found = [key for key, (error, _) in l1.reserve_read(keys).items() if error == SUCCESS]
            if found:
                l1.finish_read(found)
            seen.append(len(found))

    reader = threading.Thread(target=reads)
    reader.start()
    try:
        deadline = time.monotonic() + 60
        while (seen.count(2) < 50 or seen.count(0) < 50) and 1 not in seen:
            assert time.monotonic() < deadline
            if all(error == SUCCESS for error, _ in reserve(l1, 1, 2).values()):
                l1.finish_write(keys)
            l1.delete(keys)
    finally:
        over.set()
        reader.join()
    partly = seen.count(1)
    l1.close()
    assert partly == 0


def test_a_pool_that_is_gone_is_a_miss(marud, l1, caplog):
    write(l1, [1])
    held = l1.reserve_read([key_of(1)])[key_of(1)][1]
    l1._client.close()
    assert l1.reserve_read([key_of(2)])[key_of(2)] == (ABSENT, None)
    assert reserve(l1, 3)[key_of(3)][1] is None
    assert same(held.tensor, 1)
    assert "count as absent" in caplog.text


# -- with a GPU -------------------------------------------------------------------------------------------------------

@pytest.fixture
def as_with_cuda(monkeypatch):
    """All of the way; only that the memory is not pinned here, where there is no CUDA."""
    waits = []
    monkeypatch.setattr(staging, "is_wanted", lambda: True)
    monkeypatch.setattr(staging, "_pinned", lambda nbytes: torch.full((nbytes,), 0xEE, dtype=torch.uint8))
    monkeypatch.setattr(staging, "device", lambda: 0)
    monkeypatch.setattr(staging, "wait_for", waits.append)
    return waits


def test_as_with_cuda_through_memory_that_is_not_the_pools(as_with_cuda, marud):
    l1 = manager(marud.socket, read_ttl=1)
    key = key_of(1)
    item = reserve(l1, 1)[key][1]
    assert bytes(item.byte_array[:4]) == b"\xee" * 4
    item.tensor.copy_(chunk(1))
    kept = item.tensor
    l1.finish_write([key])
    kept.zero_()
    l1.reserve_read([key])
    error, item = l1.unsafe_read([key])[key]
    assert error == SUCCESS and same(item.tensor, 1) and pins(l1) == 0, "a copy holds nothing in the pool"
    item.tensor.zero_()
    assert other_server(marud, "read", 1, 2) == [1]
    del item
    until(lambda: as_with_cuda == [0])  # the lock expires, and kernels may be using its memory
    l1.close()


def test_as_with_cuda_and_no_memory_to_pin(as_with_cuda, marud, monkeypatch):
    def nothing(nbytes):
        raise RuntimeError("out of memory")
    l1 = manager(marud.socket)
    write(l1, [1])
    monkeypatch.setattr(staging, "_pinned", nothing)
    assert reserve(l1, 2)[key_of(2)] == (L1Error.OUT_OF_MEMORY, None) and l1.get_staging_memory_usage() == 0
    l1.reserve_read([key_of(1)])
    assert l1.unsafe_read([key_of(1)])[key_of(1)] == (L1Error.KEY_NOT_READABLE, None)
    l1.finish_read([key_of(1)])
    assert SHAPE.numel() and pins(l1) == 0
    l1.close()
