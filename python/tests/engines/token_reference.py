"""Token hashes as the engines' own libraries compute them, and the file of golden values that was made with it.

    python token_reference.py ../../../tests/data/token_hashes.tsv      writes the file

Needs the packages blake3, cbor2 and xxhash, and Python's own pickle and hashlib. The hashes of Dynamo are those that were
verified with libxxhash by hand; this does not compute them.
"""
import hashlib
import pickle
import random
import struct
import sys

ALGORITHMS = ("blake3", "sha256_cbor", "sha256", "xxhash_cbor", "xxhash")
HEADER = "algorithm block_tokens parent extra_keys lora_name lora_path cache_salt tokens hashes".split()


def reference(algorithm):
    """The function that an engine calls with the tuple (hash before, tuple of tokens, extra keys)."""
    import blake3
    import cbor2
    import xxhash

    def of_blake3(block):
        before, tokens, _ = block
        before = before if isinstance(before, bytes) else before.to_bytes(8, "big", signed=True)
        return blake3.blake3(before + struct.pack(f">{len(tokens)}I", *tokens)).digest()

    def pickled(block):
        return pickle.dumps(block, protocol=pickle.HIGHEST_PROTOCOL)

    def cbor(block):
        return cbor2.dumps(block, canonical=True)

    return {
        "blake3": of_blake3,
        "sha256_cbor": lambda block: hashlib.sha256(cbor(block)).digest(),
        "sha256": lambda block: hashlib.sha256(pickled(block)).digest(),
        "xxhash_cbor": lambda block: xxhash.xxh3_128_digest(cbor(block)),
        "xxhash": lambda block: xxhash.xxh3_128_digest(pickled(block)),
    }[algorithm]


def chain(algorithm, tokens, block_tokens, parent, lora_name=None, lora_path=None, cache_salt=None, extra_keys="tagged"):
    """Tagged as vLLM 0.33 has them, bare as before the middle of 2026: test_token_hashes.py asks vLLM itself."""
    call, hashes, is_tagged = reference(algorithm), [], extra_keys == "tagged"
    for begin in range(0, len(tokens) - block_tokens + 1, block_tokens):
        extra = [("lora", lora_name, lora_path) if is_tagged else lora_name] if lora_name else []
        extra += [("cache_salt", cache_salt) if is_tagged else cache_salt] if cache_salt and begin == 0 else []
        parent = call((parent, tuple(tokens[begin:begin + block_tokens]), tuple(extra) or None))
        hashes.append(parent)
    return hashes


def lmcache_engine(algorithm, tokens, chunk_tokens, parent):
    """As ChunkedTokenDatabase in LMCache 0.5 does: tests/lmcache compares with that itself."""
    call, hashes = reference(algorithm), []
    for begin in range(0, len(tokens) - chunk_tokens + 1, chunk_tokens):
        parent = int.from_bytes(call((parent, tuple(tokens[begin:begin + chunk_tokens]), ()))[:8], "big")
        hashes.append(parent)
    return hashes


def cases():
    """Every length of a number, of a tuple and of a text that the serialised forms write in another way."""
    draw = random.Random(6)
    limits = (24, 1 << 8, 1 << 16, 1 << 17, 1 << 31, 1 << 32)
    for algorithm in ALGORITHMS:
        for block_tokens in (1, 2, 3, 4, 16, 23, 24, 256, 300):
            tokens = [draw.randrange(draw.choice(limits)) for _ in range(2 * block_tokens)] + [7] * (block_tokens > 1)
            extras = [("tagged", None, None, None)]
            if algorithm != "blake3" and block_tokens == 4:
                extras += [("tagged", "sql-lora", "/adapters/sql", None), ("tagged", None, None, "tenant ä"),
                           ("tagged", "l" * 24, "p" * 255, "s" * 255), ("tagged", "l" * 255, "p" * 256, "s"),
                           ("tagged", "l", "/ä" + "p" * 4093, "s" * 23),
                           ("bare", "sql-lora", None, None), ("bare", None, None, "tenant ä"),
                           ("bare", "l" * 24, None, "s" * 255)]
            for extra in extras:
                yield algorithm, block_tokens, draw.randbytes(32 if block_tokens != 3 else 8), *extra, tokens


def write(path):
    with open(path, "w", encoding="utf-8") as file:
        print("# See README.md. - stands for none.", file=file)
        print("#", *HEADER, sep="\t", file=file)
        for algorithm, block_tokens, parent, form, lora_name, lora_path, cache_salt, tokens in cases():
            hashes = chain(algorithm, tokens, block_tokens, parent, lora_name, lora_path, cache_salt, form)
            print(algorithm, block_tokens, parent.hex(), form, lora_name or "-", lora_path or "-", cache_salt or "-",
                  ",".join(map(str, tokens)), ",".join(value.hex() for value in hashes), sep="\t", file=file)
        for algorithm in ALGORITHMS:
            for seed in (None,) if algorithm == "blake3" else (None, "0", "a seed"):
                value = reference(algorithm)((0, (0,), None) if seed is None else seed)
                print("root", algorithm, seed or "-", value.hex(), sep="\t", file=file)
        draw = random.Random(7)
        for algorithm in ALGORITHMS[1:]:
            for parent in (0, 23, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 39) - 1, 1 << 39, (1 << 64) - 1):
                tokens = [draw.randrange(150000) for _ in range(8)]
                print("lmcache_engine", algorithm, parent, 4, ",".join(map(str, tokens)),
                      ",".join(map(str, lmcache_engine(algorithm, tokens, 4, parent))), sep="\t", file=file)
        print("dynamo", 1337, 4, "1,2,3,4,5,6,7,8", "14643705804678351452,16777012769546811212",
              "14643705804678351452,4945711292740353085", sep="\t", file=file)


if __name__ == "__main__":
    write(sys.argv[1])
