"""LMCache's own storage manager on a marud, without an engine: keys and values made from the number of a chunk.

Run as a program it is one of several processes: kv_store.py SOCKET store|load FIRST LAST
"""
import sys
import threading
import time

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventManager
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.pin_monitor import PinMonitor
from lmcache.v1.storage_backend.storage_manager import StorageManager

torch.set_num_threads(1)  # the tests run several processes at once

TOKENS, LAYERS, HEADS, HEAD = 64, 4, 2, 64
SHAPE = torch.Size([2, LAYERS, TOKENS, HEADS * HEAD])  # 128 KiB of bfloat16
DTYPE = torch.bfloat16
BACKEND = "MaruBackend"


def chunk(number, tokens=TOKENS):
    """What a model would have computed."""
    values = torch.arange(2 * LAYERS * tokens * HEADS * HEAD, dtype=torch.int32) * 31 + number * 7919
    return (values % 65521).to(torch.int16).view(DTYPE).reshape(2, LAYERS, tokens, HEADS * HEAD)


def same(left, right):
    return torch.equal(left.view(torch.int16), right.view(torch.int16))


def key_of(number):
    return CacheEngineKey("model", 1, 0, number, DTYPE)


class Storage:
    def __init__(self, socket, **more):
        settings = dict(chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=0, maru_path=f"maru://{socket}",
                        maru_pool_size=0.002,  # 2 MiB in hand; the rest is expansion
                        extra_config={"maru_timeout_ms": 60_000}, **more)
        self.config = LMCacheEngineConfig.from_defaults(**settings)
        self.metadata = LMCacheMetadata("model", 1, 1, 0, 0, DTYPE, (LAYERS, 2, TOKENS, HEADS, HEAD), chunk_size=TOKENS,
                                        role="worker")
        PinMonitor.GetOrCreate(self.config)
        self.events = EventManager()
        self.manager = StorageManager(self.config, self.metadata, self.events)
        self.backend = self.manager.storage_backends[BACKEND]
        self.adapter = self.backend.get_memory_allocator()
        self.handler = self.backend._handler

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.manager.close()

    def allocate(self, count, shape=SHAPE):
        return self.manager.batched_allocate(shape, DTYPE, count, fmt=MemoryFormat.KV_2LTD)

    def store(self, numbers, tokens=TOKENS):
        shape = torch.Size([2, LAYERS, tokens, HEADS * HEAD])
        objects = self.allocate(len(numbers), shape)
        assert objects is not None, "no memory"
        for number, item in zip(numbers, objects):
            item.tensor.copy_(chunk(number, tokens))
        self.manager.batched_put([key_of(number) for number in numbers], objects)
        del item, objects
        self.settle()

    def settle(self):
        """Until nothing is being stored."""
        deadline = time.monotonic() + 60
        while self.backend.put_tasks:
            assert time.monotonic() < deadline
            threading.Event().wait(0.002)

    def load(self, numbers):
        return self.manager.batched_get([key_of(number) for number in numbers], BACKEND)

    def pins(self):
        return self.handler.get_stats()["native"]["pins"]


def main():
    socket, what, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with Storage(socket) as storage:
        if what == "store":
            for number in range(first, last):
                storage.store([number])
            return 0
        found = wrong = 0
        for number in range(first, last):
            item, = storage.load([number])
            if item is None:
                continue
            found += 1
            wrong += not same(item.tensor, chunk(number))
            item.ref_count_down()
        print(f"found {found} wrong {wrong}")
        return wrong


if __name__ == "__main__":
    sys.exit(main())
