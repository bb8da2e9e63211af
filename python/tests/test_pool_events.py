"""What a connector tells routers of a pool: maru.pool_events with a real marud."""
import hashlib
import logging
import time

import numpy
import pytest
from with_marud import Marud

import maru
from maru.follow import Event, Follower, Kind
from maru.pool_events import PoolEvents, block_hashes
from maru.token_metadata import TokenMetadata

PATIENCE = 120
BLOCK = 4
FAMILY = b"family of engine"
RANKS = [hashlib.sha256(bytes([rank])).digest() for rank in range(2)]


class Pool:
    """A pool, an engine with so many ranks that stores chains of chunks, and its events."""

    def __init__(self, marud, ranks=1):
        self.marud, self.ranks = marud, RANKS[:ranks]
        self.client = maru.Client(str(marud.socket), timeout_ms=60_000)
        self.events = PoolEvents(lambda: (Follower(str(marud.socket), timeout_ms=60_000), 0), logging.getLogger("test"))
        self.index, self.told = {}, 0

    def start(self, family=FAMILY):
        self.events.start(family, self.ranks)

    @staticmethod
    def chunks(name, count):
        return [hashlib.sha256(f"{name} {number}".encode()).digest() for number in range(count)]

    @staticmethod
    def keys(chunks, rank):
        rows = numpy.frombuffer(b"".join(chunks), dtype=numpy.uint8).reshape(-1, 32)
        return rows ^ numpy.frombuffer(rank, dtype=numpy.uint8)

    def store(self, chunks, rank=0, family=FAMILY, layout=None, tenant=None, known=0):
        """known: chunks at the front that are there."""
        digest = RANKS[rank]
        metadata = [TokenMetadata(BLOCK, self.tokens(chunk), lora="lora", family=family, layout=layout or digest[:16]).encode()
                    for chunk in chunks[known:]]
        keys = self.keys(chunks, digest)
        buffers = self.client.alloc_batch(64, len(metadata), max(map(len, metadata)))
        self.client.store_chain(keys[known:], buffers, parent=keys[known - 1] if known else None, metadata=metadata,
                                tenant=tenant)

    @staticmethod
    def tokens(chunk):
        return hashlib.shake_128(b"tokens" + chunk).digest(4 * 2 * BLOCK)

    def take(self):
        """Plays the news into an index, as a router does: a parent must be there before its child, a child must go first."""
        for told in self.events.take():
            key = tuple(told.hashes)
            self.told += 1
            if told.is_stored:
                assert key not in self.index
                assert told.parent is None or any(told.parent == hashes[-1] for hashes in self.index)
                self.index[key] = told
            else:
                del self.index[key]
                assert not any(other.parent == key[-1] for other in self.index.values())

    def wait_for(self, chunks):
        expected = {tuple(block_hashes(chunk, 2)) for chunk in chunks}
        deadline = time.monotonic() + PATIENCE
        while set(self.index) != expected:
            assert time.monotonic() < deadline, (len(self.index), len(expected))
            self.take()
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.events.close()
        self.client.close()


@pytest.fixture
def fresh(marud_program):
    with Marud(marud_program) as running:
        yield running


def test_chunks_of_others_are_told_with_their_tokens(fresh):
    with Pool(fresh) as pool:
        before, after = pool.chunks("before", 3), pool.chunks("after", 2)
        pool.store(before)
        pool.start()
        pool.store(after)
        pool.wait_for(before + after)
        told = pool.index[tuple(block_hashes(before[1], 2))]
        assert told.tokens == numpy.frombuffer(pool.tokens(before[1]), dtype="<u4").tolist()
        assert (told.block_size, told.lora, told.parent) == (BLOCK, "lora", block_hashes(before[0], 2)[-1])
        assert pool.index[tuple(block_hashes(before[0], 2))].parent is None


def test_what_goes_is_told_from_the_end(fresh):
    with Pool(fresh) as pool:
        chain = pool.chunks("chain", 4)
        pool.store(chain)
        pool.start()
        pool.wait_for(chain)
        pool.client.delete_batch(pool.keys(chain[:1:-1], RANKS[0]))
        pool.wait_for(chain[:2])
        pool.store(chain, known=2)
        pool.wait_for(chain)


def test_a_chunk_is_there_when_all_ranks_have_stored_it(fresh):
    with Pool(fresh, ranks=2) as pool:
        both, one = pool.chunks("both", 3), pool.chunks("one", 2)
        pool.start()
        pool.store(both, rank=0)
        pool.store(one, rank=0)
        pool.store(both, rank=1)
        pool.wait_for(both)
        pool.client.delete_batch(pool.keys(both, RANKS[1])[2:])
        pool.wait_for(both[:2])


def test_what_this_engine_cannot_load_is_not_told(fresh):
    with Pool(fresh) as pool:
        pool.start()
        pool.store(pool.chunks("another family", 2), family=b"another")
        pool.store(pool.chunks("another layout", 2), layout=b"another layout 1")
        pool.store(pool.chunks("another tenant", 2), tenant=pool.client.tenant("another"))
        pool.client.store_copy(b"no metadata", b"1")
        pool.client.store_copy(b"cut metadata", b"1", metadata=TokenMetadata(BLOCK, bytes(64)).encode()[:40])
        last = pool.chunks("last", 1)
        pool.store(last)  # events come in order
        pool.wait_for(last)


def test_what_came_and_went_between_two_steps_is_not_told(fresh):
    with Pool(fresh) as pool:
        pool.start()
        short, last = pool.chunks("short", 2), pool.chunks("last", 1)
        pool.store(short)
        pool.client.delete_batch(pool.keys(short[::-1], RANKS[0]))
        pool.store(last)
        pool.wait_for(last)


def test_after_a_restart_of_marud_only_what_is_new_is_told(fresh):
    with Pool(fresh) as pool:
        chain, later = pool.chunks("chain", 3), pool.chunks("later", 1)
        pool.store(chain)
        pool.start()
        pool.wait_for(chain)
        fresh.process.kill()
        fresh.process.wait(PATIENCE)
        fresh.begin()
        pool.store(later)  # this client has brought the pool's memory back to the new marud
        pool.wait_for(chain + later)
        assert pool.told == 4


def test_nothing_is_told_between_a_loss_and_the_end_of_the_snapshot(fresh):
    with Pool(fresh) as pool:
        chain = pool.chunks("chain", 2)
        pool.store(chain)
        pool.start()
        pool.wait_for(chain)
        blank = Event(**{name: 0 for name in Event._fields})
        with pool.events._lock:
            pool.events._note(blank._replace(kind=Kind.RESET))
        assert pool.events.take() == []
        with pool.events._lock:
            pool.events._note(blank._replace(kind=Kind.CURRENT))
        pool.take()
        assert pool.index == {}


def test_a_chunk_stays_while_any_block_of_it_is_there(fresh):
    with Pool(fresh) as pool:
        pool.events._family, pool.events._ranks = FAMILY, {RANKS[0][:16]: RANKS[0]}
        chunk, = pool.chunks("chunk", 1)
        blank = Event(**{name: 0 for name in Event._fields})
        stored = blank._replace(
            kind=Kind.STORED, key=pool.keys([chunk], RANKS[0]).tobytes(), parent_key=None,
            metadata=TokenMetadata(BLOCK, pool.tokens(chunk), family=FAMILY, layout=RANKS[0][:16]).encode())
        is_there = []
        for event in (blank._replace(kind=Kind.CURRENT), stored._replace(block=5), stored._replace(block=6),
                      blank._replace(kind=Kind.REMOVED, block=5), blank._replace(kind=Kind.REMOVED, block=6)):
            pool.events._note(event)
            pool.take()
            is_there.append(len(pool.index))
        assert is_there == [0, 1, 1, 1, 0]


def test_another_family_takes_the_place_of_the_first(fresh):
    with Pool(fresh) as pool:
        old, new = pool.chunks("old", 2), pool.chunks("new", 2)
        pool.store(old)
        pool.store(new, family=b"reset")
        pool.start()
        pool.wait_for(old)
        pool.start(b"reset")
        pool.wait_for(new)


def test_a_marud_that_is_not_there_is_said_and_tried_again(fresh, caplog):
    with caplog.at_level(logging.WARNING), Pool(fresh) as pool:
        chain = pool.chunks("chain", 1)
        pool.store(chain)
        open_follower = pool.events._open
        attempts = []

        def open_at_the_second_attempt():
            attempts.append(None)
            if len(attempts) < 2:
                return Follower(str(fresh.socket) + ".not", timeout_ms=100), 0
            return open_follower()

        pool.events._open = open_at_the_second_attempt
        pool.start()
        pool.wait_for(chain)
        assert any("tried again every" in record.getMessage() for record in caplog.records)
