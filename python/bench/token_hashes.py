"""How long the hashes of a prompt of 128 thousand tokens take, from Python: the best of many runs, one JSON object a line.

    python token_hashes.py      with the package maru installed
"""
import json
import time

import numpy

from maru import tokens

PROMPT = numpy.random.default_rng(1).integers(0, 128000, 131072, dtype=numpy.uint32)
ROWS = {
    "lmcache blake3, chunks of 256": lambda: tokens.lmcache(PROMPT),
    "vllm sha256_cbor, blocks of 16": lambda: tokens.vllm(PROMPT, parent=bytes(32)),
    "vllm sha256, blocks of 16": lambda: tokens.vllm(PROMPT, parent=bytes(32), algorithm="sha256"),
    "lmcache sha256_cbor, chunks of 256": lambda: tokens.lmcache(PROMPT, parent=bytes(32), algorithm="sha256_cbor"),
    "vllm xxhash_cbor, blocks of 16": lambda: tokens.vllm(PROMPT, parent=bytes(16), algorithm="xxhash_cbor"),
    "dynamo, blocks of 16": lambda: tokens.dynamo(PROMPT, 16),
}


def best_ms(call, runs=50):
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


for name, call in ROWS.items():
    print(json.dumps({"name": name, "value": round(best_ms(call), 3), "unit": "ms"}), flush=True)
