"""PoolMatcher beside LMCache's own matcher: the same calls and answers; then what the other cannot do."""
import hashlib
import inspect
import os
import random
import re
import subprocess
import sys
import time

import pytest
from lmcache.v1.multiprocess.modules.blend import lookup, module, store
from lmcache.v1.multiprocess.modules.blend.matcher import BlendTokenRangeMatcher
from mp_server import CHUNK as CHUNK_OF_SERVER
from mp_server import OURS, Engine, Server, environment
from with_marud import Marud

import maru
from maru_lmcache.mp.matcher import PoolMatcher

CHUNK = 16


@pytest.fixture
def marud():
    with Marud(os.environ["MARU_TEST_MARUD"], size="64MiB", region_bytes="8MiB") as running:
        yield running


@pytest.fixture
def clients(marud):
    with maru.Client(str(marud.socket), timeout_ms=60_000) as one, maru.Client(str(marud.socket), timeout_ms=60_000) as other:
        yield one, other


def hashes_of(tokens):
    """A hash for each full chunk, of everything before it."""
    return [hashlib.blake2b(str(tokens[:end]).encode(), digest_size=32).digest()
            for end in range(CHUNK, len(tokens) + 1, CHUNK)]


def places(results):
    return sorted((r.old_st, r.old_ed, r.cur_st, r.cur_ed, r.hash) for r in results)


def test_it_has_the_calls_that_lmcache_uses():
    for name in ("on_new_token_hashes", "match_sub_sequence", "remove_chunks"):
        theirs = inspect.signature(getattr(BlendTokenRangeMatcher, name)).parameters
        assert list(inspect.signature(getattr(PoolMatcher, name)).parameters) == list(theirs)
    parts = [module, lookup, store]
    used = re.findall(r"_token_range_matcher\.(\w+)", "".join(inspect.getsource(part) for part in parts))
    assert set(used) <= {"on_new_token_hashes", "match_sub_sequence", "remove_chunks", "chunk_size"}, used


def test_it_answers_as_lmcaches_own(clients):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    theirs, ours, reading = BlendTokenRangeMatcher(CHUNK), PoolMatcher(clients[0], CHUNK), PoolMatcher(clients[1], CHUNK)
    documents = [[rng.randrange(100_000) for _ in range(CHUNK * rng.randrange(1, 6) + rng.randrange(CHUNK))] for _ in range(30)]
    for document in documents:
        first, offset = rng.randrange(2), CHUNK * rng.randrange(4)
        arguments = (document, hashes_of(document), first, offset)
        assert ours.on_new_token_hashes(*arguments) == theirs.on_new_token_hashes(*arguments)
        assert ours.on_new_token_hashes(*arguments) == theirs.on_new_token_hashes(*arguments) == 0
    for _ in range(200):
        prompt = []
        for document in rng.sample(documents, rng.randrange(4)):
            prompt += [rng.randrange(100_000) for _ in range(rng.randrange(9))] + document
        assert places(reading.match_sub_sequence(prompt)) == places(theirs.match_sub_sequence(prompt))
    gone = hashes_of(documents[0])
    theirs.remove_chunks(gone)
    ours.remove_chunks(gone)
    assert places(reading.match_sub_sequence(documents[0])) == places(theirs.match_sub_sequence(documents[0])) == []


def test_another_text_of_one_hash_is_a_miss(clients):
    """LMCache's hash is public, and a polynomial modulo 2^64: this text and its complement have one hash under every base."""
    def thue_morse(bits):
        return [bin(i).count("1") % 2 for i in range(2**bits)]

    text = thue_morse(12)
    other = [1 - token for token in text]
    theirs, ours = BlendTokenRangeMatcher(len(text)), PoolMatcher(clients[0], len(text))
    for matcher in (theirs, ours):
        matcher.on_new_token_hashes(text, [b"h" * 32])
        assert len(matcher.match_sub_sequence(text)) == 1
    assert len(theirs.match_sub_sequence(other)) == 1, "LMCache's own takes one for the other"
    assert ours.match_sub_sequence(other) == []


BLEND = ("--engine-type", "blend", "--maru-blend-matcher", "--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy",
         "LRU")


def test_what_one_server_stores_is_known_to_others(marud, clients, tmp_path):
    """Stored by an engine through LMCache's own blend module; chunk 0 of a sequence is the prefix lookup's."""
    matcher = PoolMatcher(clients[0], CHUNK_OF_SERVER)
    with Server(marud, tmp_path / "server.log", *BLEND, mode="lmcache_driven") as server:
        with Engine(server, "lmcache_driven") as engine:
            request = engine.request(3)
            assert engine.client.store(request, 0, request.num_full_tokens).succeeded
            engine.client.end_session(request)
            deadline = time.monotonic() + 60
            while not matcher.match_sub_sequence(request.token_ids):
                assert time.monotonic() < deadline, server.text()
                time.sleep(0.05)
    prompt = [1, 2, 3, *request.token_ids]
    (match,) = matcher.match_sub_sequence(prompt)  # at the first place, for the benchmark's tokens repeat themselves
    assert (match.old_st, len(match.hash)) == (CHUNK_OF_SERVER, 32)
    assert prompt[match.cur_st:match.cur_ed] == list(request.token_ids[CHUNK_OF_SERVER:2 * CHUNK_OF_SERVER])


def test_the_option_wants_blend(marud):
    done = subprocess.run([sys.executable, *OURS, "--maru-blend-matcher"], env=environment(marud), capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 2 and "--engine-type blend" in done.stderr.splitlines()[-1]


def test_chunks_are_known_to_a_server_that_starts_later(marud, clients, tmp_path):
    document = list(range(CHUNK * 3))
    with maru.Client(str(marud.socket), timeout_ms=60_000) as first:
        PoolMatcher(first, CHUNK).on_new_token_hashes(document, hashes_of(document))
    assert [r.cur_st for r in PoolMatcher(clients[1], CHUNK).match_sub_sequence([7, *document])] == [1, 17, 33]
