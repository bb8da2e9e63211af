"""Objects as LMCache's server has them, made from the number of a chunk, and an L1 manager in a pool. Run as a program it is
another server's manager: mp_objects.py SOCKET read|write|clear FIRST LAST."""
import json
import sys
import time

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.error import L1Error

import maru
from maru_lmcache.mp.first_tier import MaruL1Manager, config_for

torch.set_num_threads(1)  # the tests run several processes at once

SHAPE = torch.Size([2, 4, 64, 128])  # 128 KiB of bfloat16
NBYTES = 128 << 10
LAYOUT = MemoryLayoutDesc([SHAPE], [torch.bfloat16])
HALF = MemoryLayoutDesc([SHAPE], [torch.float16])  # as many bytes
RANK = ObjectKey.ComputeKVRank(1, 0, 1, 0)


def key_of(number, model="model", salt="", rank=RANK, group=0):
    return ObjectKey(number.to_bytes(32, "big"), model, rank, group, salt)


def chunk(number):
    values = torch.arange(NBYTES // 2, dtype=torch.int32) * 31 + number * 7919
    return (values % 65521).to(torch.int16).view(torch.bfloat16).reshape(SHAPE)


def same(tensor, number):
    return torch.equal(tensor.view(torch.int16), chunk(number).view(torch.int16))


REGISTERED = {0: LAYOUT}


def layouts(model, workers):
    """As the server's registry answers: with another dictionary only when a worker has registered."""
    return REGISTERED


def manager(socket, read_ttl=300, write_ttl=600, tenant="", registry=layouts, **more):
    client = maru.Client(str(socket), timeout_ms=60_000)
    return MaruL1Manager(client, config_for(client, read_ttl_seconds=read_ttl, write_ttl_seconds=write_ttl), tenant=tenant,
                         layouts=registry, **more)


def reserve(l1, *numbers, tag="", temporary=False, layout=LAYOUT):
    return l1.reserve_write([key_of(n) for n in numbers], [temporary] * len(numbers), layout, tag)


def write(l1, numbers, tag="", **of):
    """Reserves, fills and finishes; returns what finish_write() says."""
    keys = [key_of(number, **of) for number in numbers]
    reserved = l1.reserve_write(keys, [False] * len(keys), LAYOUT, tag)
    for key, number in zip(keys, numbers):
        error, item = reserved[key]
        assert error == L1Error.SUCCESS, (number, error)
        item.tensor.copy_(chunk(number))
    del item, reserved
    return l1.finish_write(keys, tag)


def read(l1, numbers, locks=1, **of):
    """The numbers that are there with the right bytes; asserts that none has wrong ones."""
    keys = [key_of(number, **of) for number in numbers]
    found = [number for key, number in zip(keys, numbers) if l1.reserve_read([key], locks)[key][0] == L1Error.SUCCESS]
    for number in found:
        error, item = l1.unsafe_read([key_of(number, **of)])[key_of(number, **of)]
        assert error == L1Error.SUCCESS and same(item.tensor, number), number
        del item
        l1.finish_read([key_of(number, **of)], locks)
    return found


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pins(l1):
    return l1.report_status()["maru"]["pins"]


def main():
    l1 = manager(sys.argv[1])
    numbers = range(int(sys.argv[3]), int(sys.argv[4]))
    if sys.argv[2] == "clear":  # of what it has stored itself
        write(l1, numbers)
        l1.clear()
    elif sys.argv[2] == "write":
        write(l1, numbers)
    print(json.dumps(read(l1, numbers)))
    l1.close()


if __name__ == "__main__":
    main()
