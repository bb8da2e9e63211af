"""LMCache's own tests give the adapter a stand-in for the handler: an object with its methods, over memory of the test. So do
programs that wrap a handler."""
import mmap
from unittest.mock import MagicMock

import pytest
import torch
from lmcache.v1.memory_management import MemoryFormat

import maru
from maru_handler.memory import AllocHandle
from maru_handler.memory.types import MappedRegion
from maru_lmcache.adapter import CxlMemoryAdapter

CHUNK, REGION = 1024, 100
SHAPE = torch.Size([256])  # flat, of float32: 1024 bytes


def stand_in():
    region = MappedRegion(region_id=REGION, handle=None, size=4 * CHUNK, _mmap_obj=mmap.mmap(-1, 4 * CHUNK))
    handler = MagicMock()
    taken = []

    def alloc(size):
        taken.append(size)
        index = len(taken) - 1
        return AllocHandle(buf=region.get_buffer_view(index * CHUNK, size), _region_id=REGION, _page_index=index, _size=size)

    handler.alloc.side_effect = alloc
    handler.get_buffer_view.side_effect = lambda wanted, offset, size: (
        region.get_buffer_view(offset, size) if wanted == REGION else None)
    handler.get_region_page_count.side_effect = lambda wanted: 4 if wanted == REGION else None
    handler.get_owned_region_ids.return_value = [REGION]
    handler.set_on_region_added.side_effect = lambda callback: callback and callback(REGION, 4)
    return handler


@pytest.fixture
def adapter():
    return CxlMemoryAdapter(handler=stand_in(), shapes=[SHAPE], dtypes=[torch.float32], fmt=MemoryFormat.KV_2LTD,
                            chunk_size=CHUNK)


def test_what_is_allocated_lies_in_the_memory_of_the_stand_in(adapter):
    made = adapter.allocate(SHAPE, torch.float32)
    made.tensor.fill_(2.5)
    handle = adapter.create_store_handle(made)
    assert (handle.region_id, handle.page_index, handle.size) == (REGION, 0, CHUNK)
    found = adapter.get_by_location(REGION, 0, CHUNK, 4)
    assert found.tensor.shape == SHAPE and torch.equal(found.tensor, torch.full(SHAPE, 2.5))
    assert adapter.get_capacity_bytes() == 4 * CHUNK


def test_a_part_of_a_flat_chunk_has_fewer_tokens(adapter):
    found = adapter.get_by_location(REGION, 1, 400, 4)
    assert found.tensor.shape == torch.Size([100])
    assert adapter.get_by_location(REGION, 1, 402, 4) is None and adapter.get_by_location(REGION + 1, 0, 400, 4) is None


def test_freed_objects_free_their_handles(adapter):
    objects = adapter.batched_allocate(SHAPE, torch.float32, 3)
    adapter.batched_free(objects)
    assert adapter._handler.free.call_count == 3


def test_an_object_without_a_handlers_methods_is_refused():
    with pytest.raises(maru.InvalidArgumentError, match="object has no alloc"):
        CxlMemoryAdapter(handler=object(), shapes=[SHAPE], dtypes=[torch.float32], fmt=MemoryFormat.KV_2LTD, chunk_size=CHUNK)


def test_a_shape_that_its_format_does_not_describe_is_refused():
    with pytest.raises(maru.InvalidArgumentError, match="format"):
        CxlMemoryAdapter(handler=stand_in(), shapes=[torch.Size([16, 16])], dtypes=[torch.float32],
                         fmt=MemoryFormat.KV_2LTD, chunk_size=CHUNK)
