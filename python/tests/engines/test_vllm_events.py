"""Events of the pool in an engine's own stream: published by vLLM's own publisher, read by a subscriber with vLLM's classes."""
import itertools
import random
import time

import msgspec
import pytest
import zmq
from small_engine import BLOCK, CHUNK, Engine
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import KVEventBatch

import maru
from maru.follow import Follower, Kind
from maru.token_metadata import decode

PATIENCE = 120


def prompt_of(seed, chunks):
    chosen = random.Random(seed)
    return [chosen.randrange(1000) for _ in range(chunks * CHUNK + 1)]


class Router:
    """What an engine publishes, played into an index of (medium, block)."""

    def __init__(self, endpoint):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, "")
        self.socket.connect(endpoint)
        self.blocks = {}

    def read(self):
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        while self.socket.poll(20):
            _, _, payload = self.socket.recv_multipart()
            for event in decoder.decode(payload).events:
                for number, one in enumerate(getattr(event, "block_hashes", ())):
                    if type(event).__name__ == "BlockRemoved":
                        self.blocks.pop((event.medium, one), None)
                        continue
                    parent = event.block_hashes[number - 1] if number else event.parent_block_hash
                    tokens = event.token_ids[number * event.block_size:(number + 1) * event.block_size]
                    before = self.blocks[event.medium, parent][0] if parent is not None else ()
                    self.blocks[event.medium, one] = (*before, *tokens), event.lora_name, event.extra_keys

    def prompts(self):
        """The prompts of the blocks that lie in the pool."""
        return {tokens for (medium, _), (tokens, *_) in self.blocks.items() if medium == "CPU"}

    def close(self):
        self.socket.close(0)


@pytest.fixture
def endpoint(tmp_path):
    """vLLM binds to ipc; to an address of TCP it binds for all hosts alone, and else connects."""
    return f"ipc://{tmp_path}/events"


@pytest.fixture
def publishing(pool, endpoint):
    """An engine that publishes, and a router that reads it."""
    config = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint)
    router = Router(endpoint)
    with Engine(pool.socket, events=config) as engine:
        wait_for_first_event(engine, router)
        yield engine, router
        engine.scheduler.shutdown()
    router.close()


def wait_for_first_event(engine, router):
    """ZeroMQ drops messages until the publisher has heard of the subscriber."""
    deadline, turn = time.monotonic() + PATIENCE, 0
    while not router.blocks:
        assert time.monotonic() < deadline
        engine.run(f"hello {turn}", [turn % 1000] * (BLOCK + 1))
        router.read()
        turn += 1


def run_until(engine, router, expected):
    """vLLM publishes at the end of steps; these are of other prompts, shorter than a chunk, so that they store nothing."""
    deadline, turn = time.monotonic() + PATIENCE, 0
    while router.prompts() != expected:
        assert time.monotonic() < deadline, (len(router.prompts()), len(expected))
        engine.run(f"idle {turn}", [turn % 1000])
        router.read()
        turn += 1


def delete_all(pool):
    """Children first."""
    with maru.Client(str(pool.socket)) as client, Follower(str(pool.socket), timeout_ms=60_000) as follower:
        stored = itertools.takewhile(lambda event: event.kind != Kind.CURRENT, follower)
        keys = [event.key for event in stored if event.kind == Kind.STORED]
        client.delete_batch(keys[::-1])


def blocks_of(prompt):
    return {tuple(prompt[:end]) for end in range(BLOCK, len(prompt) // CHUNK * CHUNK + 1, BLOCK)}


def test_a_router_learns_from_one_engine_what_another_has_stored(pool, publishing):
    engine, router = publishing
    first, second = prompt_of(1, 3), prompt_of(2, 2)
    with Engine(pool.socket) as other:
        other.run("a", first)
        run_until(engine, router, blocks_of(first))
        other.run("b", second)
        run_until(engine, router, blocks_of(first) | blocks_of(second))
    delete_all(pool)
    run_until(engine, router, set())


def test_all_ranks_must_have_a_chunk(pool, endpoint):
    config = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint)
    router, prompt = Router(endpoint), prompt_of(3, 3)
    with Engine(pool.socket, ranks=2, events=config) as engine:
        with Engine(pool.socket, ranks=2) as other:
            wait_for_first_event(engine, router)
            other.run("a", prompt)
        run_until(engine, router, blocks_of(prompt))
        engine.scheduler.shutdown()
    router.close()


def test_another_salt_and_no_metadata(pool, publishing):
    engine, router = publishing
    salted, plain, hidden = prompt_of(4, 2), prompt_of(5, 1), prompt_of(6, 2)
    with Engine(pool.socket) as other, Engine(pool.socket, maru_metadata=False) as silent:
        other.run("a", salted, cache_salt="a salt")
        silent.run("b", hidden)
        other.run("c", plain)
    run_until(engine, router, blocks_of(salted) | blocks_of(plain))
    keys = {tokens: keys for tokens, _, keys in router.blocks.values()}
    assert [list(each or ()) for each in keys[tuple(salted[:BLOCK])]] == [["a salt"], []]
    assert keys[tuple(plain[:BLOCK])] is None


def test_a_reset_engine_tells_of_nothing_before(pool, publishing):
    engine, router = publishing
    before, after = prompt_of(7, 2), prompt_of(8, 2)
    engine.run("a", before)
    run_until(engine, router, blocks_of(before))
    assert engine.connector.reset_cache()
    run_until(engine, router, set())
    engine.run("b", after)
    run_until(engine, router, blocks_of(after))


def test_the_metadata_has_the_tokens_of_each_chunk(pool):
    prompt = prompt_of(9, 2)
    with Engine(pool.socket, ranks=2) as engine:
        engine.run("a", prompt)
    found = {}
    with Follower(str(pool.socket), timeout_ms=60_000) as follower:
        for event in follower:
            if event.kind == Kind.CURRENT:
                break
            if event.kind == Kind.STORED and event.metadata and (metadata := decode(event.metadata)):
                found[metadata.rank, metadata.tokens] = metadata
    tokens = [b"".join(token.to_bytes(4, "little") for token in prompt[begin:begin + CHUNK]) for begin in (0, CHUNK)]
    for rank in range(2):
        for part in tokens:
            assert (found[rank, part].block_size, found[rank, part].ranks) == (BLOCK, 2)
