"""maru.tokens against LMCache's own classes. vLLM, whose functions they call, is not here: what it computes of a tuple is
written out, and python/tests/engines compares that with vLLM."""
import hashlib
import random

import blake3  # noqa: F401  (LMCache's server imports it when it is asked for it)
import cbor2
from lmcache.v1 import token_database
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.multiprocess.token_hasher import TokenHasher

from maru import tokens

SEED = random.randrange(1 << 32)


def prompt(chunks):
    print("seed", SEED)
    draw = random.Random(SEED)
    return [draw.randrange(150000) for _ in range(256 * chunks)]


def test_the_multiprocess_server_has_the_same_hashes():
    hasher = TokenHasher(256, "blake3")
    assert hasher.none_hash == tokens.root("blake3")
    text = prompt(4)
    assert hasher.compute_chunk_hashes(text) == [bytes(row) for row in tokens.lmcache(text)]


def test_lmcache_within_an_engine_has_the_same_hashes(monkeypatch):
    config = LMCacheEngineConfig.from_defaults(chunk_size=256, pre_caching_hash_algorithm="sha256_cbor")
    database = token_database.ChunkedTokenDatabase(config, None)
    monkeypatch.setattr(database, "hash_func", lambda block: hashlib.sha256(cbor2.dumps(block, canonical=True)).digest())
    text = prompt(4)
    for root in (0, tokens.root("sha256_cbor", seed="17")):
        monkeypatch.setattr(token_database, "NONE_HASH", token_database._normalize_hash_to_int(root))
        found = [chunk for _, _, chunk in database.process_tokens(text, make_key=False)]
        assert found == tokens.lmcache_engine(text, parent=root).tolist()


def test_what_is_behind_the_last_whole_chunk(monkeypatch):
    config = LMCacheEngineConfig.from_defaults(chunk_size=256, pre_caching_hash_algorithm="sha256_cbor",
                                               save_unfull_chunk=True)
    database = token_database.ChunkedTokenDatabase(config, None)
    monkeypatch.setattr(database, "hash_func", lambda block: hashlib.sha256(cbor2.dumps(block, canonical=True)).digest())
    monkeypatch.setattr(token_database, "NONE_HASH", 0)
    text = prompt(2)[:400]
    found = [chunk for _, _, chunk in database.process_tokens(text, make_key=False)]
    [whole] = tokens.lmcache_engine(text, parent=0)
    assert found == [whole, *tokens.lmcache_engine(text[256:], 144, parent=whole).tolist()]
