"""How fast chunks go between an engine's KV cache and the pool: gather and scatter beside one plain copy of the same bytes.

A chunk of 4 MiB, of two layers, is copied in pieces of 4 KiB to 256 KiB, which lie anywhere in the cache. A piece is the keys
or the values of a block in a layer. On a processor vLLM keeps both in one piece, with 128 tokens inside each head.
Copies take turns in an order that changes, and each copies another chunk than the one before. A row has medians in GiB/s of
processor time, so that other work on the machine shows less, and the ratios of these times. The last columns have times on the
clock: of gather, and of an indexed copy by torch with two threads, where there is torch.

    scripts/test-python --bench [--rounds N]
"""
import argparse
import random
import statistics
import time

import numpy

from maru import _paged

CHUNK, LAYERS, CACHE = 4 << 20, 2, 8  # a cache has room for this many chunks


def seconds_of(work):
    """By the clock of this thread, and by that on the wall."""
    begun, wall = time.thread_time_ns(), time.perf_counter_ns()
    work()
    return (time.thread_time_ns() - begun) / 1e9, (time.perf_counter_ns() - wall) / 1e9


def by_torch(arrays, blocks, buffer):
    """As an engine's own indexed copy, or None where there is no torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(2)
    tensors = [torch.from_numpy(array) for array in arrays]
    flat = torch.from_numpy(buffer).view(LAYERS, len(blocks), *arrays[0].shape[1:])

    def work():
        for tensor, part in zip(tensors, flat):
            part.copy_(tensor.index_select(0, torch.tensor(blocks)))
    return work


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=200)
    rounds, chance = arguments.parse_args().rounds, random.Random(1)
    print(f"{'pieces of':>16}{'gather':>9}{'scatter':>9}{'plain':>9} GiB/s {'gather':>9}{'scatter':>9} times plain"
          f"{'gather':>11}{'torch':>8} ms on the clock")
    for piece, shape in ((4 << 10, None), (16 << 10, None), (64 << 10, None), (256 << 10, None),
                         (128 << 10, (4, 128, 256))):  # heads, tokens, bytes of keys and values of a token in a head
        blocks_of_chunk = CHUNK // LAYERS // (1 if shape else 2) // piece
        blocks = blocks_of_chunk * CACHE
        # As engines have them on a GPU: the keys of all blocks, then the values.
        lies = (blocks, *shape) if shape else (2, blocks, piece)
        lying = [numpy.random.default_rng(i).integers(0, 256, lies, dtype=numpy.uint8) for i in range(LAYERS)]
        arrays = lying if shape else [array.transpose(1, 0, 2) for array in lying]
        layers = _paged.Layers([(array.ctypes.data, array.shape, array.strides) for array in arrays])
        anywhere = numpy.random.default_rng(9).permutation(blocks).reshape(CACHE, blocks_of_chunk).tolist()
        buffer, plain = numpy.zeros(CHUNK, numpy.uint8), numpy.concatenate([array.ravel() for array in lying])
        turns = iter(range(1 << 30))

        def copy():
            begin = next(turns) % CACHE * CHUNK
            numpy.copyto(buffer, plain[begin:begin + CHUNK])

        works = {"gather": lambda: layers.gather(anywhere[next(turns) % CACHE], buffer),
                 "scatter": lambda: layers.scatter(anywhere[next(turns) % CACHE], buffer),
                 "plain": copy}
        times = {name: [] for name in works}
        for _ in range(rounds):
            for name in chance.sample(sorted(works), len(works)):
                times[name].append(seconds_of(works[name]))
        torchs = by_torch(arrays, anywhere[0], buffer)
        if torchs is not None:  # after the others, as its threads would keep them from their caches
            times["torch"] = [seconds_of(torchs) for _ in range(rounds // 10 + 1)]
        own = {name: statistics.median(mine for mine, _ in its) for name, its in times.items()}
        wall = {name: statistics.median(wall for _, wall in its) * 1e3 for name, its in times.items()}
        gib = {name: CHUNK / (1 << 30) / seconds for name, seconds in own.items()}
        print(f"{piece >> 10:>7} KiB{', CPU' if shape else '':5}"
              f"{gib['gather']:9.2f}{gib['scatter']:9.2f}{gib['plain']:9.2f}       "
              f"{own['gather'] / own['plain']:9.2f}{own['scatter'] / own['plain']:9.2f}            "
              f"{wall['gather']:11.2f}" + (f"{wall['torch']:8.2f}" if "torch" in wall else ""))


if __name__ == "__main__":
    main()
