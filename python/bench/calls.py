"""What a call from Python costs beside the same call from C, on one pool and interleaved: exists, retrieve with release,
exists_batch of 256 digests; blocks stored (and deleted again: both sides take the memory and delete in batches) and pinned in
256 calls and in one; and MaruHandler's calls, which take texts, beside the C calls for the same texts where they lie in
Python's memory (for a batch of them maru_exists_batch). Times are medians of rounds, in nanoseconds of processor time for each
call (of 256 keys where it says 256), so that other work on the machine shows less.

Batches take turns, 16 of them, so their texts come from as far down the caches as 4096 strs reach. "At hand" one batch is
asked for over and over: its texts lie as near as those that a caller made for this call. LMCache's connector does that, from
its own keys, each time.

A neighbour who shares a core or the caches still makes everything slower, C too; so beside what Python adds to the median of
C stands, as "at rest", what its quickest round adds to the quickest one of C. Beside a batch of texts stands, as "of it", how
much of that its texts and its list of bools take from Python, whoever asks: each text looked up in memory, the GIL given up
once, the list made and dropped. The first row comes on top.

    scripts/test-python --bench [--rounds N]

The C side is a loop in C (calls_floor.c, compiled here), so that neither side pays for the other.
"""
import argparse
import ctypes
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

import numpy

import maru

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "api"))
from with_marud import Marud  # noqa: E402

BLOCKS, BATCH, PAGE = 4096, 256, 4096
CALLS, BATCHES, STORES, PINS = 4 * BLOCKS, 60 * BLOCKS // BATCH, 20, 100  # in a round: of single keys, and of batches
utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize  # where a str has its text
utf8.argtypes, utf8.restype = (ctypes.py_object, ctypes.c_void_p), ctypes.c_void_p
KEY_BYTES, KEY_DIGEST128 = 0, 1  # of maru.h


def floor_library(directory, libmaru):
    built = pathlib.Path(directory) / "calls_floor.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-I", ROOT / "include", "-I", sysconfig.get_path("include"),
                    HERE / "calls_floor.c", libmaru, f"-Wl,-rpath,{libmaru.parent}", "-o", built], check=True)
    library = ctypes.CDLL(str(built))
    for name in ("floor_exists", "floor_retrieve", "floor_exists_batch", "floor_store", "floor_pin"):
        getattr(library, name).restype = ctypes.c_double
    library.floor_attach.restype = library.floor_keys.restype = ctypes.c_void_p
    library.floor_texts = ctypes.PyDLL(str(built)).floor_texts  # with the GIL
    library.floor_texts.argtypes, library.floor_texts.restype = (ctypes.py_object, ctypes.c_int), ctypes.c_double
    return library


def c_keys(library, addresses, size, kind):
    return ctypes.c_void_p(library.floor_keys((ctypes.c_void_p * len(addresses))(*addresses), len(addresses), size, kind))


def per_call(work, calls):
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / calls


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=100)
    rounds = arguments.parse_args().rounds
    marud = pathlib.Path(os.environ["MARU_TEST_MARUD"])
    libmaru = marud.parent.parent / "libmaru" / "libmaru.so"
    with Marud(str(marud), size="96MiB") as running, tempfile.TemporaryDirectory() as directory:
        library = floor_library(directory, libmaru)
        c = ctypes.c_void_p(library.floor_attach(str(running.socket).encode()))
        client = maru.Client(str(running.socket))
        digests = numpy.random.default_rng(1).integers(0, 256, (BLOCKS, 16), dtype=numpy.uint8)
        for row in digests:
            client.store_copy(row, b"x" * 100)
        keys = [maru.Digest(row) for row in digests]
        batches = [digests[i:i + BATCH] for i in range(0, BLOCKS, BATCH)]
        handler = maru.MaruHandler(maru.MaruConfig(server_url=str(running.socket)))
        assert handler.connect()
        texts = [f"model@1@0@{i:016x}@bfloat16" for i in range(BLOCKS)]
        long_texts = [f"vllm@meta-llama/Llama-3.1-8B-Instruct@1@0@{i:064x}@bfloat16" for i in range(BLOCKS)]  # as LMCache's
        for text in texts + long_texts:
            client.store_copy(text, b"x" * 100)
        text_batches, long_batches = ([some[i:i + BATCH] for i in range(0, BLOCKS, BATCH)] for some in (texts, long_texts))
        out = numpy.empty(BATCH, numpy.uint8)
        # The same bytes at the same addresses: what of a key has to be fetched from memory, both sides fetch.
        c_digests = c_keys(library, [row.ctypes.data for row in digests], 16, KEY_DIGEST128)
        c_texts, c_long = (c_keys(library, [utf8(text, None) for text in some], len(some[0]), KEY_BYTES)
                           for some in (texts, long_texts))
        fresh = numpy.random.default_rng(2).integers(0, 256, (BATCH, 16), dtype=numpy.uint8)  # stored, and deleted again
        fresh_keys = [maru.Digest(row) for row in fresh]
        rows = numpy.zeros((BATCH, PAGE), numpy.uint8)
        c_fresh = c_keys(library, [row.ctypes.data for row in fresh], 16, KEY_DIGEST128)
        c_rows = (ctypes.c_void_p * BATCH)(*(row.ctypes.data for row in rows))
        c_sizes = (ctypes.c_uint64 * BATCH)(*[PAGE] * BATCH)
        exists, retrieve, exists_batch = client.exists, client.retrieve, client.exists_batch

        def floors(keys):
            return (lambda: library.floor_exists(c, keys, BLOCKS, CALLS),
                    lambda: library.floor_retrieve(c, keys, BLOCKS, CALLS),
                    lambda: library.floor_exists_batch(c, keys, BLOCKS, BATCH, BATCHES),
                    lambda: library.floor_exists_batch(c, keys, BATCH, BATCH, BATCHES))

        def floor_store(data, is_batch):
            return lambda: library.floor_store(c, c_fresh, BATCH, data, c_sizes, is_batch, STORES)

        def least(some):
            return lambda: library.floor_texts(some, BATCHES)

        def floor_pin(is_batch, keys=c_digests):
            return lambda: library.floor_pin(c, keys, BATCH, is_batch, PINS)

        def store_each(_):
            for key, buffer in zip(fresh_keys, client.alloc_batch(PAGE, BATCH)):
                client.store(key, buffer)
            client.delete_batch(fresh)

        def store_at_once(_):
            client.store_batch(fresh, client.alloc_batch(PAGE, BATCH))
            client.delete_batch(fresh)

        def copy_each(_):
            for key, row in zip(fresh_keys, rows):
                client.store_copy(key, row)
            client.delete_batch(fresh)

        def copy_at_once(_):
            client.store_copy_batch(fresh, rows)
            client.delete_batch(fresh)

        def pin_and_unpin(some):
            handler.batch_pin(some)
            handler.batch_unpin(some)

        # The arguments of all calls stand in a list, so that finding the next one costs next to nothing.
        def loop(call, arguments=keys, times=CALLS):
            given = (arguments * (times // len(arguments) + 1))[:times]

            def work():
                for argument in given:
                    call(argument)
            return work

        def texts_batch(some, floor):
            return loop(handler.batch_exists, some, BATCHES), BATCHES, floor, least(some)

        floor_exists, floor_retrieve, floor_batch, _ = floors(c_digests)
        text_exists, text_retrieve, text_batch, text_at_hand = floors(c_texts)
        _, _, long_batch, long_at_hand = floors(c_long)
        table = {
            "an empty Python call": (loop(lambda key: None), CALLS, None),
            "exists": (loop(exists), CALLS, floor_exists),
            "retrieve, release": (loop(retrieve), CALLS, floor_retrieve),
            "retrieve, .data, release": (loop(lambda key: retrieve(key).data), CALLS, floor_retrieve),
            "exists_batch of 256": (loop(exists_batch, batches, BATCHES), BATCHES, floor_batch),
            "exists_batch of 256, out=": (loop(lambda keys: exists_batch(keys, None, out), batches, BATCHES), BATCHES,
                                         floor_batch),
            "256 x store": (loop(store_each, [None], STORES), STORES, floor_store(None, 0)),
            "store_batch of 256": (loop(store_at_once, [None], STORES), STORES, floor_store(None, 1)),
            "256 x store_copy": (loop(copy_each, [None], STORES), STORES, floor_store(c_rows, 0)),
            "store_copy_batch of 256": (loop(copy_at_once, [None], STORES), STORES, floor_store(c_rows, 1)),
            "256 x pin": (loop(lambda some: [client.pin(key) for key in some], [keys[:BATCH]], PINS), PINS, floor_pin(0)),
            "pin_batch of 256": (loop(client.pin_batch, batches[:1], PINS), PINS, floor_pin(1)),
            "MaruHandler.exists": (loop(handler.exists, texts), CALLS, text_exists),
            "MaruHandler.retrieve, drop": (loop(handler.retrieve, texts), CALLS, text_retrieve),
            "MaruHandler.batch_exists, 256": texts_batch(text_batches, text_batch),
            "the same, at hand": texts_batch(text_batches[:1], text_at_hand),
            f"256 of {len(long_texts[0])} characters": texts_batch(long_batches, long_batch),
            f"256 of {len(long_texts[0])}, at hand": texts_batch(long_batches[:1], long_at_hand),
            "MaruHandler.batch_(un)pin, 256": (loop(pin_and_unpin, text_batches[:1], PINS), PINS, floor_pin(1, c_texts)),
        }
        times = {name: ([], [], []) for name in table}
        for _ in range(rounds):
            for name, (work, calls, *floors) in table.items():
                times[name][0].append(per_call(work, calls))
                for floor, its in zip(floors, times[name][1:]):
                    its.append(floor() if floor else 0.0)
        print(f"{'':30}{'Python ns':>11}{'C ns':>9}{'ratio':>8}{'added ns':>10}{'at rest':>9}{'of it':>7}")
        for name, (python, floor, lowest) in times.items():
            mine, its = statistics.median(python), statistics.median(floor)
            ratio = f"{mine / its:8.2f}" if its else " " * 8
            of_it = f"{min(lowest):7.0f}" if lowest else ""
            print(f"{name:30}{mine:11.0f}{its:9.0f}{ratio}{mine - its:10.0f}{min(python) - min(floor):9.0f}{of_it}")
        for some in (c_digests, c_texts, c_long, c_fresh):
            library.floor_drop_keys(some)
        handler.close()
        client.close()
        library.floor_detach(c)


if __name__ == "__main__":
    main()
