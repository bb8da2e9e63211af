"""maru.tokens: the golden values through Python, and what it refuses. tests/unit/tokens_test.cc tests the hashes themselves."""
import hashlib
import pathlib
import pickle

import numpy
import pytest

import maru
from maru import tokens

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "token_hashes.tsv"


def golden():
    return [line.split("\t") for line in GOLDEN.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def test_every_golden_chain():
    chains = [fields for fields in golden() if fields[0] in tokens.ALGORITHMS]
    assert len(chains) > 50
    for algorithm, block, parent, form, lora, path, salt, prompt, hashes in chains:
        given = {"lora_name": lora, "lora_path": path, "cache_salt": salt}
        keywords = {} if algorithm == "blake3" else {
            "extra_keys": form, **{name: None if text == "-" else text for name, text in given.items()}}
        call = tokens.lmcache if algorithm == "blake3" else tokens.vllm
        found = call([int(token) for token in prompt.split(",")], int(block), algorithm=algorithm,
                     parent=bytes.fromhex(parent), **keywords)
        assert [bytes(row).hex() for row in found] == hashes.split(","), (algorithm, block, form, lora, path, salt)


def test_every_golden_root():
    roots = [fields for fields in golden() if fields[0] == "root"]
    assert roots
    for _, algorithm, seed, value in roots:
        assert tokens.root(algorithm, None if seed == "-" else seed).hex() == value


def test_dynamos_golden_blocks_and_their_continuation():
    [(_, salt, block, prompt, blocks, sequences)] = [fields for fields in golden() if fields[0] == "dynamo"]
    prompt = [int(token) for token in prompt.split(",")]
    found = tokens.dynamo(prompt, int(block), salt=int(salt))
    assert [list(map(str, row)) for row in found] == [blocks.split(","), sequences.split(",")]
    rest = tokens.dynamo(prompt[4:], 4, salt=int(salt), parent=int(found[1][0]))
    assert rest[1][0] == found[1][1]


def test_the_golden_chunks_of_lmcache_within_an_engine():
    chains = [fields for fields in golden() if fields[0] == "lmcache_engine"]
    assert len(chains) > 30
    for _, algorithm, parent, chunk, prompt, hashes in chains:
        found = tokens.lmcache_engine(list(map(int, prompt.split(","))), int(chunk), algorithm=algorithm, parent=int(parent))
        assert list(map(str, found)) == hashes.split(",")


def test_the_root_of_the_engine_is_folded_as_any_hash():
    root = tokens.root("sha256_cbor", seed="0")
    found = tokens.lmcache_engine(range(512), parent=root)
    assert (found == tokens.lmcache_engine(range(512), parent=int.from_bytes(root[:8], "big"))).all()
    assert tokens.lmcache_engine(range(256, 512), parent=found[0]) == found[1]


@pytest.mark.parametrize("wrong", [{"parent": b"1234567"}, {"parent": -1}, {"parent": 1 << 64}, {"parent": None},
                                   {"parent": 0, "algorithm": "blake3"}, {"parent": 0, "algorithm": "builtin"},
                                   {"parent": 0, "chunk_tokens": 0}])
def test_what_lmcache_within_an_engine_does_not_hash_is_refused(wrong):
    with pytest.raises(maru.InvalidArgumentError):
        tokens.lmcache_engine(range(16), **{"chunk_tokens": 4, **wrong})


@pytest.mark.parametrize("whole", [int, numpy.int64, numpy.uint64, numpy.uint16])
def test_whatever_is_a_whole_number_counts(whole):
    """Dynamo's hashes come as NumPy's numbers, and the last of them is the parent of what follows."""
    blocks, sequences = tokens.dynamo(range(16), whole(4), salt=whole(1337))
    assert (tokens.dynamo(range(16), 4)[1] == sequences).all()
    assert tokens.dynamo(range(4, 16), 4, parent=sequences[0])[1].tolist() == sequences[1:].tolist()
    assert (tokens.lmcache(range(16), whole(16)) == tokens.lmcache(range(16), 16)).all()
    assert (tokens.vllm(range(16), whole(16), parent=b"p") == tokens.vllm(range(16), 16, parent=b"p")).all()


def test_lmcache_begins_with_its_own_root():
    assert (tokens.lmcache(range(512)) == tokens.lmcache(range(512), parent=tokens.root("blake3"))).all()


def test_pickles_of_this_python_are_the_ones_that_are_hashed():
    """The interpreter that runs the engine decides how a pickle looks."""
    parent, block = bytes(range(32)), tuple(range(0, 40000, 2500))
    whole = (parent, block, (("lora", "name", "/path"),))
    expected = hashlib.sha256(pickle.dumps(whole, protocol=pickle.HIGHEST_PROTOCOL)).digest()
    assert bytes(tokens.vllm(block, 16, algorithm="sha256", parent=parent, lora_name="name", lora_path="/path")[0]) == expected


def test_equal_texts_whose_pickle_is_not_known_are_hashed_where_that_is_no_matter():
    """The same as one object or as two: what is refused for "sha256" is not for its CBOR."""
    parent, tag = bytes(32), "".join(("lo", "ra"))
    as_one, as_two = ((parent, (1,), (("lora", name, "/path"),)) for name in ("lora", tag))
    assert pickle.dumps(as_one, 5) != pickle.dumps(as_two, 5)
    with pytest.raises(maru.InvalidArgumentError, match="sha256_cbor"):
        tokens.vllm([1], 1, algorithm="sha256", parent=parent, lora_name="lora", lora_path="/path")
    assert tokens.vllm([1], 1, algorithm="sha256_cbor", parent=parent, lora_name="lora", lora_path="/path").shape == (1, 32)
    assert tokens.vllm([1], 1, algorithm="sha256", parent=parent, lora_name="lora", extra_keys="bare").shape == (1, 32)
    assert tokens.vllm([1], 1, algorithm="sha256", parent=parent, cache_salt="lora").shape == (1, 32)  # no tag of one there
    assert tokens.vllm([1], 1, algorithm="sha256", parent=parent, lora_name="cache_salt", lora_path="/p").shape == (1, 32)


@pytest.mark.parametrize("prompt", [list(range(40)), tuple(range(40)), range(40), numpy.arange(40),
                                    numpy.arange(40, dtype=numpy.uint32), numpy.arange(80, dtype=numpy.uint32)[::2] // 2,
                                    numpy.arange(40, dtype=numpy.uint8)])
def test_whatever_holds_the_same_tokens_has_the_same_hashes(prompt):
    assert (tokens.lmcache(prompt, 16) == tokens.lmcache(numpy.arange(40, dtype=numpy.uint32), 16)).all()
    assert tokens.lmcache(prompt, 16).shape == (2, 32)


def test_no_whole_block_is_no_hash():
    assert tokens.lmcache([], 16).shape == (0, 32)
    assert tokens.lmcache(range(15), 16).shape == (0, 32)
    assert [row.shape for row in tokens.dynamo([1], 2)] == [(0,), (0,)]


@pytest.mark.parametrize("call", [
    lambda: tokens.lmcache([-1] * 16, 16), lambda: tokens.lmcache([1 << 32] * 16, 16), lambda: tokens.lmcache([0.5] * 16, 16),
    lambda: tokens.lmcache("text", 16), lambda: tokens.lmcache([[1, 2], [3, 4]], 2), lambda: tokens.lmcache([1 << 70], 1),
    lambda: tokens.lmcache([1], 0), lambda: tokens.lmcache([1], 4097), lambda: tokens.lmcache([1], "16"),
    lambda: tokens.lmcache([1], 1, parent=b""), lambda: tokens.lmcache([1], 1, parent=bytes(256)),
    lambda: tokens.lmcache([1], 1, parent="text"), lambda: tokens.vllm([1], 1, parent=b"x", cache_salt="s" * 256),
    lambda: tokens.vllm([1], 1, parent=b"x", lora_name="a\0b", lora_path="/p"),
    lambda: tokens.vllm([1], 1, parent=b"x", lora_name="a"), lambda: tokens.vllm([1], 1, parent=b"x", lora_path="/p"),
    lambda: tokens.vllm([1], 1, parent=b"x", lora_name="a", lora_path="/p", extra_keys="bare"),
    lambda: tokens.vllm([1], 1, parent=b"x", lora_name="a", lora_path="p" * 4097),
    lambda: tokens.vllm([1], 1, parent=b"x", lora_name=0), lambda: tokens.vllm([1], 1, parent=b"x", extra_keys="new"),
    lambda: tokens.vllm([1], 1, parent=b"x", algorithm="md5"),
    lambda: tokens.vllm([1], 1, parent=b"x", algorithm="builtin"),
    lambda: tokens.vllm([1], 1, parent=b"x", algorithm="sha256", lora_name="a", lora_path="a"),
    lambda: tokens.vllm([1], 1, parent=b"x", algorithm="xxhash", cache_salt="cache_salt"),
    lambda: tokens.vllm([1], 1, parent=b"x", algorithm="sha256", lora_name="a", cache_salt="a", extra_keys="bare"),
    lambda: tokens.vllm([1], 1, parent=b"x", algorithm="blake3", lora_name="lora"), lambda: tokens.root("blake3", "0"),
    lambda: tokens.root("sha256", "x" * 256), lambda: tokens.dynamo([1], 0), lambda: tokens.dynamo([1], 1, salt=-1),
    lambda: tokens.dynamo([1], 1, parent=1 << 64), lambda: tokens.dynamo([1], 1, parent=1.0),
    lambda: tokens.dynamo([1], True), lambda: tokens.dynamo([1], 1, salt=True), lambda: tokens.dynamo([1], 1, parent=True),
    lambda: tokens.dynamo([1], 1, salt=None), lambda: tokens.lmcache([1], True), lambda: tokens.lmcache([1], 1.0),
    lambda: tokens.lmcache([1], numpy.bool_(True)), lambda: tokens.vllm([1], True, parent=b"p")])
def test_what_cannot_be_hashed_is_refused_by_name(call):
    with pytest.raises(maru.InvalidArgumentError):
        call()
