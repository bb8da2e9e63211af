"""LMCache's own storage manager on a marud, without an engine: keys and values made from the number of a chunk.

Run as a program it is one of several processes:
    kv_store.py SOCKET load FIRST LAST      reads these chunks
    kv_store.py SOCKET share OWN THEIRS     stores chunks from OWN on and reads what another stores from THEIRS on: see share()
"""
import collections
import json
import pathlib
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
    def __init__(self, socket, model="model", **more):
        self.socket = socket
        settings = {**dict(chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=0, maru_path=f"maru://{socket}",
                           maru_pool_size=0.002,  # 2 MiB in hand; the rest is expansion
                           extra_config={"maru_timeout_ms": 60_000}), **more}
        self.config = LMCacheEngineConfig.from_defaults(**settings)
        self.metadata = LMCacheMetadata(model, 1, 1, 0, 0, DTYPE, (LAYERS, 2, TOKENS, HEADS, HEAD), chunk_size=TOKENS,
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


STORES, HITS = 160, 50  # of each of two processes that share; the pool has room for 128 chunks


def share(storage, own, theirs):
    """Stores and reads, says "enough" when there was enough of both, and goes on until the end of the standard input, so that
    the other one always has company. What was read is held for some turns and compared both at once and when it is let go.
    Hits count from when something was evicted. Prints what it has seen."""
    over = threading.Event()
    threading.Thread(target=lambda: [sys.stdin.read(), over.set()], daemon=True).start()
    seen = dict(stores=0, hits=0, wrong=0, gone=0)
    held = collections.deque()
    progress = pathlib.Path(f"{storage.socket}.{own}"), pathlib.Path(f"{storage.socket}.{theirs}")
    is_evicting = is_said = False
    while not over.is_set():
        number = own + seen["stores"]
        storage.store([number])
        seen["stores"] += 1
        progress[0].write_text(f"{number:8}")
        is_evicting = is_evicting or storage.manager.contains(key_of(own)) is None
        newest = progress[1].read_text() if progress[1].exists() else ""
        for behind in (0, 30) if len(newest) == 8 else ():  # one that is new, and one that may be evicted any time
            other = max(theirs, int(newest) - behind)
            item, = storage.load([other])
            if item is not None:
                seen["hits"] += is_evicting
                seen["wrong"] += not same(item.tensor, chunk(other))
                held.append((other, item))
            del item
        while len(held) > 6:
            let_go(held, seen)
        if not is_said and seen["stores"] >= STORES and seen["hits"] >= HITS:
            is_said = True
            print("enough", flush=True)
    while held:
        let_go(held, seen)
    seen["gone"] = sum(storage.manager.contains(key_of(own + i)) is None for i in range(seen["stores"]))
    print(json.dumps(seen), flush=True)


def let_go(held, seen):
    number, item = held.popleft()
    seen["wrong"] += not same(item.tensor, chunk(number))
    item.ref_count_down()


def main():
    socket, what, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with Storage(socket) as storage:
        if what == "share":
            share(storage, first, last)
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
