"""maru-eventd passes on an engine's feed beside a pool: one stream for routers, which rebuild both. The engine is a publisher
as vLLM's, in its older and its newer forms. relay_test.py --marud M --eventd E --client C [--seed N] [--only NAME]"""
import struct
import threading
import time

from events_room import END, Chunk, hashes_of, msgpack, until, zmq
from zeromq_test import CONFIG, Room, main_of

RELAY = CONFIG + """
[zeromq.relay]
endpoint = "tcp://127.0.0.1:{engine}"
"""
WITH_REPLAY = RELAY + 'replay = "tcp://127.0.0.1:{engine_replay}"\n'


class Engine:
    """Publishes blocks in a GPU's memory, and keeps the last batches."""

    def __init__(self, context, ports, keeps=1000, as_arrays=False, rank=3):
        self.as_arrays, self.rank, self.keeps = as_arrays, rank, keeps
        self.sequence, self.blocks, self.batches, self.asked = 0, {}, [], []
        self.lock = threading.Lock()
        self.pub = context.socket(zmq.PUB)
        self.router = context.socket(zmq.ROUTER)
        for one, port in ((self.pub, "engine"), (self.router, "engine_replay")):
            one.linger = 0
            until(lambda: self.binds(one, ports[port]), "the engine's port")
        self.is_over = False
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()

    @staticmethod
    def binds(one, port):
        try:
            one.bind(f"tcp://127.0.0.1:{port}")
            return True
        except zmq.ZMQError:
            return False  # of the engine before

    def close(self):
        if self.is_over:
            return
        self.is_over = True
        self.thread.join()
        self.pub.close()
        self.router.close()

    def answer(self):
        while not self.is_over:
            if not self.router.poll(20):
                continue
            identity, empty, start = self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            with self.lock:
                kept = self.batches[-self.keeps:] if self.keeps else []
            for number, payload in kept:
                if number >= int.from_bytes(start, "big"):
                    self.router.send_multipart([identity, empty, b"", struct.pack(">Q", number), payload])
            self.router.send_multipart([identity, empty, b"", END, b""])

    def publish(self, *events, is_lost=False):
        if self.as_arrays:
            events = [[event["type"], *[value for name, value in event.items() if name != "type"]] for event in events]
        payload = msgpack.packb([time.time(), list(events), self.rank])
        with self.lock:
            self.batches.append((self.sequence, payload))
        if not is_lost:
            self.pub.send_multipart([b"", struct.pack(">Q", self.sequence), payload])
        self.sequence += 1

    def store(self, chunk, is_lost=False, **more):
        self.blocks.update(dict.fromkeys(chunk.hashes, chunk))
        self.publish({"type": "BlockStored", "block_hashes": chunk.hashes,
                      "parent_block_hash": chunk.parent.hashes[-1] if chunk.parent else None, "token_ids": chunk.tokens,
                      "block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None, **more}, is_lost=is_lost)

    def remove(self, chunk, is_lost=False):
        for one in chunk.hashes:
            self.blocks.pop(one, None)
        self.publish({"type": "BlockRemoved", "block_hashes": chunk.hashes[::-1], "medium": "GPU"}, is_lost=is_lost)

    def clear(self):
        self.blocks.clear()
        self.publish({"type": "AllBlocksCleared"})

    @property
    def hashes(self):
        return set(self.blocks)


class RelayRoom(Room):
    def __init__(self, arguments, config=WITH_REPLAY, **engine):
        super().__init__(arguments, config, ports=("engine", "engine_replay"))
        self.engine_shape = engine

    def __enter__(self):
        super().__enter__()
        self.engine = self.or_leave(lambda: Engine(self.context, self.eventd.ports, **self.engine_shape))
        return self

    def __exit__(self, *about):
        self.engine.close()
        super().__exit__(*about)

    def restart_engine(self, **shape):
        self.engine.close()
        self.engine = Engine(self.context, self.eventd.ports, **{**self.engine_shape, **shape})

    def joined(self, router):
        """Until the feed has a subscriber."""
        def is_there():
            self.engine.store(Chunk(self.rng))
            router.pump()
            return router.index.hashes("GPU")
        until(is_there, "the relay's subscription")
        self.engine.clear()  # with those that were published before, to nobody

    def settle(self, router, chunks, what):
        router.settles_on(hashes_of(chunks), what + ": the pool's blocks")
        router.settles_on(self.engine.hashes, what + ": the engine's blocks", medium="GPU")


def chain(room, count):
    chunks = []
    for _ in range(count):
        chunks.append(Chunk(room.rng, chunks[-1] if chunks else None, room.rng.choice((1, 2))))
    return chunks


def test_both_are_one_stream(arguments):
    for as_arrays in (False, True):
        with RelayRoom(arguments, as_arrays=as_arrays) as room, room.subscriber() as router:
            router.index.wants_parents = False  # they lie in the other medium
            room.joined(router)
            prompt = chain(room, 20)
            for chunk in prompt[:10]:
                room.engine.store(chunk)
            room.client.store(prompt)
            room.settle(router, prompt, "blocks of both")
            before = router.index.cleared
            for chunk in reversed(prompt[5:10]):
                room.engine.remove(chunk)
            room.client.delete(prompt[15:][::-1])
            room.settle(router, prompt[:15], "both lose some")
            assert router.index.rank == 3, "the engine's rank"
            assert router.index.cleared == before, "nothing was lost"


def test_fields_that_are_not_known_are_passed_on(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        chunk = Chunk(room.rng, blocks=2)
        more = {"extra_keys": [["image", 7], None], "group_idx": 1, "kv_cache_spec_kind": "sliding_window", "novel": {"a": [1]}}
        room.engine.store(chunk, **more)
        room.settle(router, [], "the block")
        event = router.index.blocks[chunk.hashes[0], "GPU"]["event"]
        assert {name: event[name] for name in more} == more, event


def test_the_engine_clears(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        prompt = chain(room, 10)
        for chunk in prompt:
            room.engine.store(chunk)
        room.client.store(prompt)
        room.settle(router, prompt, "blocks of both")
        before = router.index.cleared
        room.engine.clear()
        room.settle(router, prompt, "the engine's are gone, and the pool's are there")
        assert router.index.cleared == before, "the pool's were there all the time"


def test_a_gap_is_filled(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        for i, chunk in enumerate(chain(room, 40)):
            room.engine.store(chunk, is_lost=room.rng.random() < 0.4 and i < 39)
        room.settle(router, [], "what was lost was asked for")
        assert room.eventd.metric("maru_eventd_relay_gaps_total") >= 1
        assert room.eventd.metric("maru_eventd_relay_losses_total") == 0


def test_what_is_lost_is_never_guessed(arguments):
    for config, keeps in ((RELAY, 1000), (WITH_REPLAY, 0)):
        with RelayRoom(arguments, config, keeps=keeps) as room, room.subscriber() as router:
            room.joined(router)
            in_pool = chain(room, 5)
            room.client.store(in_pool)
            before = chain(room, 10)
            for chunk in before:
                room.engine.store(chunk)
            room.settle(router, in_pool, "blocks of both")
            room.engine.remove(before[-1], is_lost=True)
            after = Chunk(room.rng)
            room.engine.store(after)
            router.settles_on(set(after.hashes), "only what came after the loss", medium="GPU")
            router.settles_on(hashes_of(in_pool), "the pool's blocks stay")
            assert room.eventd.metric("maru_eventd_relay_losses_total") >= 1


def test_the_engine_begins_anew(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        in_pool = chain(room, 5)
        room.client.store(in_pool)
        for chunk in chain(room, 30):
            room.engine.store(chunk)
        room.settle(router, in_pool, "blocks of both")
        room.restart_engine()
        fresh = Chunk(room.rng)
        room.engine.store(fresh)

        def only_fresh():
            room.engine.publish()  # until the relay has subscribed again
            router.pump()
            return router.index.hashes("GPU") == set(fresh.hashes)
        until(only_fresh, "only what the new engine has")
        router.settles_on(hashes_of(in_pool), "the pool's blocks stay")


def test_the_engine_ends(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        in_pool = chain(room, 5)
        room.client.store(in_pool)
        for chunk in chain(room, 10):
            room.engine.store(chunk)
        room.settle(router, in_pool, "blocks of both")
        # Its next life has more behind it than this one had.
        room.restart_engine()
        for chunk in chain(room, 60):
            room.engine.store(chunk)

        def only_the_new_ones():
            room.engine.publish()
            router.pump()
            return router.index.hashes("GPU") == room.engine.hashes
        until(only_the_new_ones, "only the blocks of the new engine")
        room.engine.close()
        router.settles_on(set(), "no block of an engine that has ended", medium="GPU")
        router.settles_on(hashes_of(in_pool), "the pool's blocks stay")
        room.restart_engine()


def test_a_loss_of_the_pool_tells_the_engines_again(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        in_pool, in_engine = chain(room, 10), chain(room, 10)
        room.client.store(in_pool)
        for chunk in in_engine:
            room.engine.store(chunk)
        room.settle(router, in_pool, "blocks of both")
        room.marud.process.kill()
        room.marud.process.wait()
        room.marud.begin()
        until(lambda: (router.pump(), router.index.cleared > 1)[1], "a new snapshot")
        router.settles_on(lambda: room.truth(in_pool), "the pool's blocks")
        room.settle(router, room.client.present(in_pool), "and the engine's")


def test_eventd_begins_anew(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        in_pool = chain(room, 10)
        room.client.store(in_pool)
        for chunk in chain(room, 10):
            room.engine.store(chunk)
        room.settle(router, in_pool, "blocks of both")
        room.eventd.kill()
        room.eventd.begin()

        def is_there():
            room.engine.publish()
            router.pump()
            return router.index.hashes("GPU") == room.engine.hashes and router.index.hashes() == hashes_of(in_pool)
        until(is_there, "both, from the engine's replay and the pool")


def test_nonsense_of_the_engine(arguments):
    with RelayRoom(arguments) as room, room.subscriber() as router:
        room.joined(router)
        in_pool = chain(room, 10)
        room.client.store(in_pool)
        for frames in ([b"x"], [b"", b"1", b"2"], [b"", bytes(8), b""], [b"a", b"b", b"c", b"d", b"e"]):
            room.engine.pub.send_multipart(frames)
        for payload in (b"", b"\xc1", b"\x93\xcb", msgpack.packb([1, [["BlockStored", "x"]], 0]),
                        msgpack.packb([1, [{"type": 5}], 0]), msgpack.packb([1.0, [{"type": "Novel"}], 0]),
                        b"\xdd\xff\xff\xff\xff", b"\x91" * 1000):
            room.engine.pub.send_multipart([b"", struct.pack(">Q", room.engine.sequence), payload])
            room.engine.batches.append((room.engine.sequence, payload))
            room.engine.sequence += 1
        room.engine.blocks.clear()  # what cannot be read may have been anything
        room.engine.store(Chunk(room.rng))
        room.settle(router, in_pool, "the stream goes on")
        assert room.eventd.metric("maru_eventd_relay_bad_total") >= 8
        assert room.eventd.health()["status"] == "healthy", "a batch that can be read was the last"


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]

if __name__ == "__main__":
    main_of(TESTS)
