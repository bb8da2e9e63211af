"""How fast chunks go between an engine's KV cache and the pool: gather and scatter beside one plain copy of the same bytes.

A chunk of 4 MiB, of two layers, is copied in pieces of 4 KiB, 16 KiB and 256 KiB, which lie anywhere in the cache: a piece is
the keys or the values of a block in a layer. Copies take turns. A row has the medians in GiB/s of processor time, so that
other work on the machine shows less, and the ratio of these times. The last columns have times on the clock: of gather, and
of an indexed copy by torch with two threads, where there is torch.

    scripts/test-python --bench [--rounds N]
"""
import argparse
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
    rounds = arguments.parse_args().rounds
    print(f"{'pieces of':>12}{'gather':>9}{'scatter':>9}{'plain':>9} GiB/s {'gather':>9}{'scatter':>9} times plain"
          f"{'gather':>11}{'torch':>8} ms on the clock")
    for piece in (4 << 10, 16 << 10, 256 << 10):
        blocks_of_chunk = CHUNK // LAYERS // 2 // piece
        blocks = blocks_of_chunk * CACHE
        # As engines have them: the keys of all blocks, then the values.
        lying = [numpy.random.default_rng(i).integers(0, 256, (2, blocks, piece), dtype=numpy.uint8) for i in range(LAYERS)]
        arrays = [array.transpose(1, 0, 2) for array in lying]
        layers = _paged.Layers([(array.ctypes.data, array.shape, array.strides) for array in arrays])
        chosen = numpy.random.default_rng(9).permutation(blocks)[:blocks_of_chunk].tolist()
        buffer, plain = numpy.zeros(CHUNK, numpy.uint8), numpy.concatenate([array.ravel() for array in lying])
        turns = iter(range(1 << 30))

        def copy():
            begin = next(turns) % CACHE * CHUNK
            numpy.copyto(buffer, plain[begin:begin + CHUNK])

        works = {"gather": lambda: layers.gather(chosen, buffer), "scatter": lambda: layers.scatter(chosen, buffer),
                 "plain": copy, "torch": by_torch(arrays, chosen, buffer)}
        times = {name: [] for name, work in works.items() if work}
        for _ in range(rounds):
            for name, its in times.items():
                its.append(seconds_of(works[name]))
        own = {name: statistics.median(mine for mine, _ in its) for name, its in times.items()}
        wall = {name: statistics.median(wall for _, wall in its) * 1e3 for name, its in times.items()}
        gib = {name: CHUNK / (1 << 30) / seconds for name, seconds in own.items()}
        print(f"{piece >> 10:>8} KiB{gib['gather']:9.2f}{gib['scatter']:9.2f}{gib['plain']:9.2f}       "
              f"{own['gather'] / own['plain']:9.2f}{own['scatter'] / own['plain']:9.2f}            "
              f"{wall['gather']:11.2f}" + (f"{wall['torch']:8.2f}" if "torch" in wall else ""))


if __name__ == "__main__":
    main()
