"""CxlMemoryAdapter against LMCache's classes."""
import gc
import os
import warnings
import weakref

import pytest
import torch
from kv_store import DTYPE, HEAD, HEADS, LAYERS, SHAPE, TOKENS, chunk, key_of, same
from lmcache.v1.memory_management import (MemoryAllocatorInterface, MemoryFormat, MemoryObj, MemoryObjMetadata,
                                          TensorMemoryObj)

import maru
from with_marud import Marud
from maru_lmcache import CxlMemoryAdapter, staging

CHUNK = SHAPE.numel() * 2
TOKEN = CHUNK // TOKENS


def config(marud):
    return maru.MaruConfig(server_url=str(marud.socket), pool_size=4 * CHUNK, chunk_size_bytes=CHUNK, timeout_ms=60_000)


@pytest.fixture
def handler(marud):
    with maru.MaruHandler(config(marud)) as made:
        yield made


@pytest.fixture
def adapter(handler):
    made = CxlMemoryAdapter(handler, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK)
    yield made
    made.close()


def put(handler, adapter, key, number, tokens=TOKENS):
    item = adapter.allocate(torch.Size([2, LAYERS, tokens, HEADS * HEAD]), DTYPE)
    item.tensor.copy_(chunk(number, tokens))
    assert handler.store(key, adapter.create_store_handle(item))
    return item


def get(handler, adapter, key):
    info = handler.retrieve(key)
    return adapter.get_by_location(info.region_id, info.page_index, len(info.view), TOKEN)


def pins(handler):
    return handler.get_stats()["native"]["pins"]


def test_it_is_an_allocator_and_gives_tensor_objects(adapter):
    assert isinstance(adapter, MemoryAllocatorInterface)
    item = adapter.allocate(SHAPE, DTYPE, MemoryFormat.KV_2LTD)
    assert isinstance(item, MemoryObj) and isinstance(item, TensorMemoryObj)
    assert item.tensor.shape == SHAPE and item.tensor.dtype == DTYPE and item.get_memory_format() == MemoryFormat.KV_2LTD
    assert (item.get_ref_count(), item.get_size(), item.get_physical_size(), item.get_num_tokens()) == (1, CHUNK, CHUNK, TOKENS)
    assert len(item.byte_array) == CHUNK and item.parent() is adapter


def test_addresses_go_both_ways(adapter):
    for pair in ((0, 0), (1, 5), (7, (1 << 32) - 1), ((1 << 31), 3)):
        assert CxlMemoryAdapter.decode_address(CxlMemoryAdapter.encode_address(*pair)) == pair
    assert CxlMemoryAdapter.encode_address(3, 4) == 3 << 32 | 4
    items = adapter.batched_allocate(SHAPE, DTYPE, 3)
    assert [CxlMemoryAdapter.decode_address(item.metadata.address) for item in items] == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("wrong", [
    (None, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK), ("handler", [], [], MemoryFormat.KV_2LTD, CHUNK),
    ("handler", [SHAPE], [DTYPE, DTYPE], MemoryFormat.KV_2LTD, CHUNK), ("handler", None, None, MemoryFormat.KV_2LTD, CHUNK),
    ("handler", [(2, 4)], [DTYPE], MemoryFormat.KV_2LTD, CHUNK), ("handler", [SHAPE], [DTYPE], None, CHUNK),
    ("handler", [torch.Size([2, 4])], [DTYPE], MemoryFormat.KV_2LTD, CHUNK),
    ("handler", [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, "large")])
def test_what_no_adapter_is_made_of_is_refused(handler, wrong):
    with pytest.raises(maru.InvalidArgumentError):
        CxlMemoryAdapter(handler if wrong[0] == "handler" else wrong[0], *wrong[1:])


def test_what_is_no_chunk_and_no_place_is_refused(handler, adapter):
    put(handler, adapter, "k", 1)
    info = handler.retrieve("k")
    for wrong in ((None, None), ([SHAPE, SHAPE], [DTYPE]), ([], []), ((2, 4, 16, 64), DTYPE), (SHAPE, "bfloat16")):
        with pytest.raises(maru.InvalidArgumentError, match="torch.Size"):
            adapter.allocate(*wrong)
    for size in (-1, None, 1.5, "3", True):
        with pytest.raises(maru.InvalidArgumentError):
            adapter.batched_allocate(SHAPE, DTYPE, size)
    with pytest.raises(maru.InvalidArgumentError, match="MemoryFormat"):
        adapter.allocate(SHAPE, DTYPE, "KV_2LTD")
    assert adapter.batched_allocate(SHAPE, DTYPE, 0) == [] and handler.allocator.num_allocated == 0
    for wrong in ((None,) * 4, ("0", 0, CHUNK, TOKEN), (0, 0, CHUNK, 1.5), (0, 0, CHUNK, None)):
        with pytest.raises(maru.InvalidArgumentError):
            adapter.get_by_location(*wrong)
    for token in (0, -1):
        assert adapter.get_by_location(info.region_id, info.page_index, CHUNK // 2, token) is None
    assert same(adapter.get_by_location(info.region_id, info.page_index, CHUNK, TOKEN).tensor, chunk(1))


def test_nothing_is_copied(handler, adapter):
    item = adapter.allocate(SHAPE, DTYPE)
    handle = adapter.create_store_handle(item)
    assert item.data_ptr == torch.frombuffer(handle.buf, dtype=torch.uint8).data_ptr()
    put(handler, adapter, "k", 1)
    info = handler.retrieve("k")
    found = adapter.get_by_location(info.region_id, info.page_index, len(info.view), TOKEN)
    assert found.data_ptr == torch.frombuffer(info.view, dtype=torch.uint8).data_ptr()
    assert same(found.tensor, chunk(1))


def test_reading_a_block_is_not_warned_about(handler, adapter):
    put(handler, adapter, "k", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        assert get(handler, adapter, "k") is not None


def test_a_partial_chunk_has_fewer_tokens(handler, adapter):
    put(handler, adapter, "k", 3, tokens=10)
    found = get(handler, adapter, "k")
    assert found.tensor.shape == torch.Size([2, LAYERS, 10, HEADS * HEAD]) and same(found.tensor, chunk(3, 10))
    assert found.get_num_tokens() == 10 and found.get_size() == 10 * TOKEN


def test_a_block_of_another_model_is_passed_over_and_said(handler, adapter, caplog):
    """Also of somebody with larger chunks, who would have other keys, if all were well."""
    handle = handler.alloc(TOKEN + 2)
    handler.store("odd", handle)
    assert get(handler, adapter, "odd") is None and "another model" in caplog.text
    with maru.MaruHandler(maru.MaruConfig(server_url=handler._config.server_url, chunk_size_bytes=2 * CHUNK,
                                          pool_size=2 * CHUNK)) as larger:
        for tokens in (TOKENS + 1, 2 * TOKENS):
            assert larger.store(f"k {tokens}", larger.alloc(tokens * TOKEN))
            caplog.clear()
            assert get(handler, adapter, f"k {tokens}") is None and "another model" in caplog.text
    assert pins(handler) == 0


@pytest.fixture
def marud_with_few_pins():
    with Marud(os.environ["MARU_TEST_MARUD"], size="16MiB", region_bytes="2MiB", pins=64) as running:
        yield running


def test_keys_for_which_no_pin_is_left_are_absent_to_lookups_and_said(marud_with_few_pins, caplog):
    with maru.MaruHandler(config(marud_with_few_pins)) as handler:
        adapter = CxlMemoryAdapter(handler, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK)
        names = [f"k {i}" for i in range(400)]
        for name in names:
            assert handler.store(name, handler.alloc(4))
        found = handler.batch_pin(names)
        pinned = sum(found)
        assert 0 < pinned < 400 and found == [True] * pinned + [False] * (400 - pinned)
        assert handler.pin(names[-1]) is False
        assert "every pin slot of this client is taken" in caplog.text
        assert handler.batch_unpin(names) == found and pins(handler) == 0
        assert handler.batch_pin(names[-2:]) == [True, True]
        adapter.close()


def test_what_is_not_of_here_is_left_alone(handler, adapter):
    metadata = MemoryObjMetadata(torch.Size([8]), torch.uint8, 0, 8, 1)
    stranger = TensorMemoryObj(torch.zeros(8, dtype=torch.uint8), metadata, None)
    adapter.free(stranger)
    assert stranger.is_valid() and stranger.raw_data.numel() == 8
    with pytest.raises(maru.HandleUsedError):
        adapter.create_store_handle(stranger)
    put(handler, adapter, "k", 1)
    with pytest.raises(maru.HandleUsedError):
        adapter.create_store_handle(get(handler, adapter, "k"))


def test_it_is_well_while_marud_answers(marud, adapter):
    assert adapter.memcheck()
    marud.process.kill()
    marud.process.wait()
    assert not adapter.memcheck()


def test_the_format_of_latent_attention(handler):
    full = torch.Size([1, LAYERS, TOKENS, HEADS * HEAD])
    adapter = CxlMemoryAdapter(handler, [full], [DTYPE], MemoryFormat.KV_MLA_FMT, CHUNK)
    for tokens in (TOKENS, 7):
        item = adapter.allocate(torch.Size([1, LAYERS, tokens, HEADS * HEAD]), DTYPE)
        item.tensor.copy_(chunk(tokens, tokens)[:1])
        assert item.get_memory_format() == MemoryFormat.KV_MLA_FMT
        assert handler.store(f"k {tokens}", adapter.create_store_handle(item))
        info = handler.retrieve(f"k {tokens}")
        found = adapter.get_by_location(info.region_id, info.page_index, len(info.view), TOKEN // 2)
        assert same(found.tensor, chunk(tokens, tokens)[:1]) and found.get_num_tokens() == tokens
    adapter.close()


def test_several_shapes(handler):
    shapes, dtypes = [SHAPE, torch.Size([1, LAYERS, TOKENS, 8])], [DTYPE, torch.float32]
    size = CHUNK + LAYERS * TOKENS * 8 * 4
    with maru.MaruHandler(maru.MaruConfig(server_url=handler._config.server_url, chunk_size_bytes=size,
                                          pool_size=size)) as one:
        adapter = CxlMemoryAdapter(one, shapes, dtypes, MemoryFormat.KV_2LTD, size)
        item = adapter.allocate(shapes, dtypes)
        item.get_tensor(0).copy_(chunk(1))
        item.get_tensor(1).fill_(2.5)
        assert one.store("k", adapter.create_store_handle(item))
        info = one.retrieve("k")
        found = adapter.get_by_location(info.region_id, info.page_index, size, size // TOKENS)
        assert same(found.get_tensor(0), chunk(1)) and bool((found.get_tensor(1) == 2.5).all())
        adapter.close()


def test_a_chunk_larger_than_the_handlers_is_an_error(handler):
    with pytest.raises(maru.InvalidArgumentError, match=f"chunk_size_bytes={2 * CHUNK}"):
        CxlMemoryAdapter(handler, [SHAPE, SHAPE], [DTYPE, DTYPE], MemoryFormat.KV_2LTD, CHUNK)


def test_nothing_asked_for_is_none(adapter):
    assert adapter.allocate(torch.Size([0]), DTYPE) is None


def test_a_batch_is_all_or_nothing(handler, adapter):
    assert adapter.batched_allocate(SHAPE, DTYPE, 1000) is None
    assert handler.allocator.num_allocated == 0
    assert len(adapter.batched_allocate(SHAPE, DTYPE, 20)) == 20


def test_a_handler_that_is_closed_meanwhile_is_no_memory(handler):
    class ClosedByAnotherThread(maru.MaruHandler):
        allocations = 0

        def alloc(self, size):
            self.allocations += 1
            if self.allocations == 3:
                self.close()
            return super().alloc(size)

    closing = ClosedByAnotherThread(handler._config)
    assert closing.connect()
    adapter = CxlMemoryAdapter(closing, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK)
    assert adapter.batched_allocate(SHAPE, DTYPE, 4) is None and not closing.connected


def test_regions_are_noted_as_they_come(handler, adapter):
    assert adapter.get_capacity_bytes() == 4 * CHUNK and adapter.ensure_region_pool(1) and not adapter.ensure_region_pool(2)
    held = adapter.batched_allocate(SHAPE, DTYPE, 5)
    assert adapter.get_capacity_bytes() == 8 * CHUNK and adapter.ensure_region_pool(2)
    assert CxlMemoryAdapter.decode_address(held[4].metadata.address) == (2, 0)
    del held
    handler.close()
    assert handler.connect() and adapter.get_capacity_bytes() == 4 * CHUNK and not adapter.ensure_region_pool(1)


def test_the_last_reference_gives_the_page_back(handler, adapter):
    first, second, third = adapter.batched_allocate(SHAPE, DTYPE, 3)
    first.ref_count_up()
    first.ref_count_down()
    assert handler.allocator.num_allocated == 3
    first.ref_count_down()
    assert handler.allocator.num_allocated == 2 and not first.is_valid() and first.tensor is None
    adapter.batched_free([second, second])
    assert handler.allocator.num_allocated == 1
    with pytest.raises(maru.HandleUsedError):
        adapter.create_store_handle(first)
    del third
    assert handler.allocator.num_allocated == 0


def test_a_found_block_is_pinned_until_its_last_reference(handler, adapter):
    put(handler, adapter, "k", 1)
    found = get(handler, adapter, "k")
    assert found.get_ref_count() == 0
    found.ref_count_up()
    assert pins(handler) == 1
    tensor = found.tensor
    found.ref_count_down()
    assert pins(handler) == 1 and same(tensor, chunk(1))  # the tensor still looks
    del tensor
    assert pins(handler) == 0
    dropped = get(handler, adapter, "k")
    dropped.ref_count_up()
    del dropped
    assert pins(handler) == 0


def test_a_stored_object_stays_until_it_is_dropped(handler, adapter):
    item = put(handler, adapter, "k", 5)
    assert pins(handler) == 1 and handler.delete("k")
    for i in range(300):
        put(handler, adapter, f"k {i}", 6)
    assert same(item.tensor, chunk(5))
    del item
    gc.collect()
    assert pins(handler) == 0


def test_a_duplicate_leaves_the_object_its_memory(handler, adapter):
    put(handler, adapter, "k", 1)
    second = put(handler, adapter, "k", 2)
    others = [put(handler, adapter, f"o {i}", 3) for i in range(10)]
    assert same(second.tensor, chunk(2)) and same(get(handler, adapter, "k").tensor, chunk(1)) and others


def test_what_is_not_held_is_not_found(handler, adapter):
    put(handler, adapter, "k", 1)
    info = handler.retrieve("k")
    place = info.region_id, info.page_index
    del info
    assert adapter.get_by_location(*place, CHUNK, TOKEN) is None
    assert adapter.get_by_location(99, 0, CHUNK, TOKEN) is None


def test_close_lets_go_of_everything_but_tensors(handler, adapter):
    put(handler, adapter, "k", 1)
    found, kept = get(handler, adapter, "k"), adapter.allocate(SHAPE, DTYPE)
    tensor = get(handler, adapter, "k").tensor
    adapter.close()
    adapter.close()
    assert pins(handler) == 1 and handler.allocator.num_allocated == 0 and not found.is_valid() and not kept.is_valid()
    assert same(tensor, chunk(1)) and adapter.allocate(SHAPE, DTYPE) is None


def test_objects_may_outlive_the_handler(marud):
    handler = maru.MaruHandler(config(marud))
    assert handler.connect()
    adapter = CxlMemoryAdapter(handler, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK)
    item, stored = adapter.allocate(SHAPE, DTYPE), put(handler, adapter, "k", 1)
    found = get(handler, adapter, "k")
    found.ref_count_up()
    handler.close()
    assert same(found.tensor, chunk(1)) and same(stored.tensor, chunk(1))
    found.ref_count_down()
    item.ref_count_down()
    adapter.close()


@pytest.fixture
def staged(monkeypatch, handler):
    """An adapter on a machine that has CUDA, of which nothing is here: memory that would be pinned is not."""
    made = []

    def pinned(nbytes):
        made.append(torch.full((nbytes,), 0xEE, dtype=torch.uint8))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(staging, "_pinned", pinned)
    monkeypatch.setattr(staging, "device", lambda: 3)
    monkeypatch.setattr(staging, "wait_for", lambda gpu: None)
    adapter = CxlMemoryAdapter(handler, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK)
    adapter.pinned = made
    yield adapter
    adapter.close()


def test_with_cuda_a_gpu_is_given_pinned_memory_only(handler, staged):
    """The kernels of LMCache take host memory that CUDA knows, and no other."""
    for tokens in (TOKENS, 10):
        item = staged.allocate(torch.Size([2, LAYERS, tokens, HEADS * HEAD]), DTYPE)
        assert item.data_ptr == staged.pinned[-1].data_ptr() and item.tensor.shape[2] == tokens
        item.tensor.copy_(chunk(tokens, tokens))
        assert handler.store(f"k {tokens}", staged.create_store_handle(item))
        assert bytes(handler.retrieve(f"k {tokens}").view) == chunk(tokens, tokens).view(torch.uint8).numpy().tobytes()
        found = get(handler, staged, f"k {tokens}")
        assert found.data_ptr == staged.pinned[-1].data_ptr() != item.data_ptr
        assert same(found.tensor, chunk(tokens, tokens)) and found.get_num_tokens() == tokens
        assert same(item.tensor, chunk(tokens, tokens))


def test_with_cuda_nothing_in_the_pool_is_held(handler, staged):
    item = put(handler, staged, "k", 1)
    found = get(handler, staged, "k")
    assert pins(handler) == 0 and handler.allocator.num_allocated == 0
    found.tensor.zero_()
    assert same(get(handler, staged, "k").tensor, chunk(1)) and same(item.tensor, chunk(1))


def test_with_cuda_a_chunk_that_was_not_stored_gives_its_page_back(handler, staged):
    first, second = staged.batched_allocate(SHAPE, DTYPE, 2)
    assert handler.allocator.num_allocated == 2
    first.ref_count_down()
    del second
    assert handler.allocator.num_allocated == 0 and first.tensor is None
    with pytest.raises(maru.HandleUsedError):
        staged.create_store_handle(first)


def test_with_cuda_a_handle_is_stored_whole_also_without_its_object(handler, staged):
    item = staged.allocate(SHAPE, DTYPE)
    item.tensor.copy_(chunk(3))
    handle = staged.create_store_handle(item)
    del item
    assert handler.store("k", handle) and same(get(handler, staged, "k").tensor, chunk(3))


def test_with_cuda_the_engines_inference_mode_does_not_matter(handler, staged):
    """In which LMCache allocates and fills; it stores and prefetches in threads of its own, without."""
    with torch.inference_mode():
        item = staged.allocate(SHAPE, DTYPE)
        item.tensor.copy_(chunk(1))
    assert handler.store("k", staged.create_store_handle(item))
    found = get(handler, staged, "k")
    with torch.inference_mode():
        assert same(found.tensor, chunk(1)) and same(get(handler, staged, "k").tensor, chunk(1))
    found.tensor.copy_(item.tensor)


def test_with_cuda_a_kernel_that_still_runs_is_waited_for(monkeypatch, handler, staged):
    """Some of LMCache's connectors leave one that writes what is then stored, or reads what is then let go."""
    item = staged.allocate(SHAPE, DTYPE)
    waited = []

    def wait_for(gpu):
        waited.append((gpu, found.is_valid() if found else None, found.tensor is not None if found else None))
        item.tensor.copy_(chunk(7))

    found = None
    monkeypatch.setattr(staging, "wait_for", wait_for)
    assert handler.store("k", staged.create_store_handle(item)) and waited == [(3, None, None)]
    found = get(handler, staged, "k")
    assert same(found.tensor, chunk(7)) and len(waited) == 1
    memory = weakref.ref(found.raw_data)
    staged.pinned.clear()  # as torch's own memory, which the next who asks is given
    still_there = []
    monkeypatch.setattr(staging, "wait_for", lambda gpu: still_there.append(memory() is not None))
    found.ref_count_down()
    assert still_there == [True] and found.tensor is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_with_cuda_the_memory_is_pinned(handler, adapter):
    item = adapter.allocate(SHAPE, DTYPE)
    item.tensor.copy_(chunk(1).cuda())
    assert item.tensor.is_pinned() and handler.store("k", adapter.create_store_handle(item))
    found = get(handler, adapter, "k")
    assert found.tensor.is_pinned() and same(found.tensor.cuda().cpu(), chunk(1))


def test_where_no_memory_can_be_pinned_a_chunk_is_absent_and_said(monkeypatch, handler, adapter, caplog):
    put(handler, adapter, "k", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(staging, "device", lambda: 0)
    refused = CxlMemoryAdapter(handler, [SHAPE], [DTYPE], MemoryFormat.KV_2LTD, CHUNK)  # there is no CUDA to pin it
    assert get(handler, refused, "k") is None and "pinned" in caplog.text and pins(handler) == 0
    caplog.clear()
    in_use = handler.allocator.num_allocated
    assert refused.batched_allocate(SHAPE, DTYPE, 2) is None and "pinned" in caplog.text
    assert handler.allocator.num_allocated == in_use
    refused.close()


def test_keys_of_lmcache_are_keys(handler):
    assert handler.exists(key_of(12345).to_string()) is False
