"""maru-eventd by ZeroMQ: real marud, real clients, subscribers that rebuild the pool's contents from the stream, and the truth
asked of the pool. zeromq_test.py --marud M --eventd E --client C [--seed N] [--only NAME]"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from events_room import (BLOCK_TOKENS, ROOT, Chunk, Client, Eventd, Marud, Subscriber, ask_replay, free_port, hashes_of,
                         msgpack, run_tests, seeded, until, zmq)

CONFIG = """
[[pool]]
socket = "{socket}"
[[zeromq]]
name = "pool"
endpoint = "tcp://127.0.0.1:{events}"
replay = "tcp://127.0.0.1:{replay}"
replay_without_topic = "tcp://127.0.0.1:{old_replay}"
"""


class Room:
    """A marud, an eventd, a client and a ZeroMQ context."""

    def __init__(self, arguments, config=CONFIG, starts=True, ports=(), **shape):
        self.arguments, self.config, self.starts, self.ports, self.shape = arguments, config, starts, ports, shape
        self.rng = seeded(arguments.seed)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="maru-test-")
        self.marud = Marud(self.arguments.marud, **self.shape).__enter__()
        self.client = Client(self.arguments.client, self.marud)
        self.eventd = Eventd(self.arguments.eventd, self.marud, self.config, self.folder.name,
                             **{name: free_port() for name in self.ports})
        self.context = zmq.Context()
        if self.starts:
            self.or_leave(self.eventd.begin)
        return self

    def or_leave(self, begin):
        """Ends what has begun when the rest of a room does not come about."""
        try:
            return begin()
        except BaseException as error:
            Room.__exit__(self, type(error))
            raise

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.eventd.log.read_text()[-4000:])
        self.context.destroy(linger=0)
        if self.eventd.process is not None and (kind is None or self.eventd.process.poll() is None):
            self.eventd.__exit__()
        self.client.__exit__()
        self.marud.__exit__()
        self.folder.cleanup()

    def subscriber(self, **more):
        return Subscriber(self.context, self.eventd.events, **{"replay": self.eventd.replay, **more})

    def tree(self, count, blocks=lambda rng: rng.choice((1, 1, 4))):
        """Chunks, some below others."""
        chunks = []
        for _ in range(count):
            parent = self.rng.choice(chunks) if chunks and self.rng.random() < 0.8 else None
            chunks.append(Chunk(self.rng, parent, blocks(self.rng)))
        return chunks

    def truth(self, chunks):
        return hashes_of(self.client.present(chunks))


def delete_leaves(room, chunks, count):
    """Deletes some that have no children, and returns the others."""
    parents = {id(chunk.parent) for chunk in chunks}
    leaves = [chunk for chunk in chunks if id(chunk) not in parents]
    gone = room.rng.sample(leaves, min(count, len(leaves)))
    assert room.client.delete(gone) == [0] * len(gone)
    return [chunk for chunk in chunks if chunk not in gone]


def test_follows_what_comes_and_goes(arguments):
    with Room(arguments, starts=False) as room:
        chunks = room.tree(200)
        assert room.client.store(chunks) == [0] * 200
        room.eventd.begin()
        with room.subscriber() as router:
            router.settles_on(hashes_of(chunks), "the snapshot")
            assert router.index.cleared == 1
            more = room.tree(100)
            room.client.store(more)
            router.settles_on(hashes_of(chunks + more), "blocks stored later")
            chunks = delete_leaves(room, chunks, 50)
            router.settles_on(hashes_of(chunks + more), "blocks deleted")
            assert router.index.cleared == 1, "nothing was lost"
            for chunk in chunks:
                for i, one in enumerate(chunk.hashes):
                    known = router.index.blocks[one, "CPU"]
                    assert known["tokens"] == chunk.tokens[i * BLOCK_TOKENS:(i + 1) * BLOCK_TOKENS]
                    above = chunk.hashes[i - 1] if i else chunk.parent.hashes[-1] if chunk.parent else None
                    assert known["parent"] == above
            assert router.index.rank == 0


def test_knows_blocks_without_tokens_by_their_hash(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        root = Chunk(room.rng)
        child = Chunk(room.rng, root)
        damaged = Chunk(room.rng)
        other = Chunk(room.rng)
        room.client.store([root, child], metadata=lambda chunk: b"")
        room.client.store([damaged], metadata=lambda chunk: msgpack.packb({"maru": 1, "block_size": 0}))
        room.client.store([other], metadata=lambda chunk: b"{\"maru\": 1}")
        by_key = {int.from_bytes(chunk.key[-8:], "big"): chunk for chunk in (root, child, damaged, other)}
        router.settles_on(set(by_key), "blocks that are known by their keys")
        of_child = router.index.blocks[int.from_bytes(child.key[-8:], "big"), "CPU"]
        assert of_child["parent"] == int.from_bytes(root.key[-8:], "big")
        assert of_child["tokens"] == [] and of_child["event"]["block_size"] == 0
        assert room.eventd.metric("maru_eventd_without_tokens_total") == 4
        assert room.eventd.metric("maru_eventd_damaged_metadata_total") == 1
        room.client.delete([child, root])
        router.settles_on({int.from_bytes(chunk.key[-8:], "big") for chunk in (damaged, other)}, "and they go")


def test_computes_hashes_where_there_are_none(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        root, child = Chunk(room.rng), Chunk(room.rng)
        child.parent = root
        root.tokens, child.tokens = [1, 2, 3, 4], [5, 6, 7, 8]
        room.client.store([root, child], metadata=lambda chunk: chunk.metadata(hashes=None, parent=None))
        # Dynamo's sequence hashes of these tokens, as its own indexer has them.
        router.settles_on({14643705804678351452, 4945711292740353085}, "hashes that are computed")


def test_tells_what_all_ranks_have(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        parts = []
        chunk = Chunk(room.rng, blocks=2)
        for rank in range(3):
            part = Chunk(room.rng, blocks=2)
            part.hashes, part.tokens, part.rank = chunk.hashes, chunk.tokens, rank
            parts.append(part)
        lone = Chunk(room.rng)

        def ranked(part):
            return part.metadata(rank=part.rank, ranks=3)
        room.client.store(parts[:2], metadata=ranked)
        room.client.store([lone])
        router.settles_on(set(lone.hashes), "a block of which a rank lacks is not told")
        room.client.store(parts[2:], metadata=ranked)
        router.settles_on(hashes_of([lone, chunk]), "all ranks have it")
        room.client.delete(parts[1:2])
        router.settles_on(set(lone.hashes), "a rank has lost it")


def test_tells_of_some_tenants_alone(arguments):
    config = CONFIG + 'tenants = ["alice"]\n'
    named = '[[pool.tenant]]\nname = "alice"\nhard = "16MiB"\n'  # so that marud is told the name
    with Room(arguments, config, more=named) as room, room.subscriber() as router:
        of_alice, of_bob, of_nobody = Chunk(room.rng), Chunk(room.rng), Chunk(room.rng)
        room.client.store([of_bob], tenant="bob")
        room.client.store([of_nobody])
        room.client.store([of_alice], tenant="alice")
        router.settles_on(set(of_alice.hashes), "the tenant's blocks")
        room.client.delete([of_bob], tenant="bob")
        room.client.delete([of_alice], tenant="alice")
        router.settles_on(set(), "and they go")


def test_one_block_in_two_chunks_is_told_once(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        long = Chunk(room.rng, blocks=4)
        short = Chunk(room.rng, blocks=2)
        short.hashes, short.tokens = long.hashes[:2], long.tokens[:2 * BLOCK_TOKENS]
        room.client.store([long])
        room.client.store([short])
        router.settles_on(set(long.hashes), "four blocks")
        room.client.delete([long])
        router.settles_on(set(short.hashes), "the two that the other chunk has")
        room.client.delete([short])
        router.settles_on(set(), "none")


def test_evictions(arguments):
    with Room(arguments, size="8MiB", region_bytes="256KiB", more="high_watermark = 0.6\nlow_watermark = 0.4") as room:
        with room.subscriber() as router:
            chunks = []
            for _ in range(20):
                some = room.tree(200, blocks=lambda rng: 1)
                room.client.store(some)
                chunks += some
                router.pump(0)
            router.settles_on(lambda: room.truth(chunks), "evicted blocks go")
            assert len(router.index.blocks) < len(chunks), "some were evicted"


def test_numbers_grow_over_restarts(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        chunks = room.tree(100)
        room.client.store(chunks)
        router.settles_on(hashes_of(chunks), "blocks")
        for _ in range(3):
            before = router.next
            room.eventd.kill()
            more = room.tree(20)
            room.client.store(more)
            chunks = delete_leaves(room, chunks, 10) + more
            room.eventd.begin()
            router.settles_on(hashes_of(chunks), "after a restart of eventd")
            until(lambda: (router.pump(), router.next > before)[1], "a greater number")


def test_marud_dies_and_comes_back(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        chunks = room.tree(200)
        room.client.store(chunks)
        router.settles_on(hashes_of(chunks), "blocks")
        for _ in range(2):
            room.marud.process.kill()
            room.marud.process.wait()
            until(lambda: room.eventd.health()["status"] == "degraded", "eventd says that marud is gone")
            room.marud.begin()
            more = room.tree(50)
            until(lambda: room.client.store(more[:1])[0] in (0, 1), "the client is served again")
            room.client.store(more)
            chunks = delete_leaves(room, chunks, 20) + more
            router.settles_on(lambda: room.truth(chunks), "after a restart of marud")
            until(lambda: room.eventd.health()["status"] == "healthy", "eventd says that marud is back")


def test_a_client_dies(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        chunks = room.tree(100)
        room.client.store(chunks)
        room.client.kill()
        room.client = Client(arguments.client, room.marud)
        more = room.tree(100)
        room.client.store(more)
        router.settles_on(lambda: room.truth(chunks + more), "after the death of a client")


def test_replay_is_what_was_published(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        chunks = room.tree(30)
        for chunk in chunks:
            room.client.store([chunk])
        router.settles_on(hashes_of(chunks), "blocks")
        for endpoint, with_topic in ((room.eventd.replay, True), (room.eventd.old_replay, False)):
            for delimiter in (True, False):
                batches = ask_replay(room.context, endpoint, 0, with_topic, delimiter)
                numbers = [number for number, _ in batches]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
                last = ask_replay(room.context, endpoint, numbers[-2], with_topic, delimiter)
                assert last[:2] == batches[-2:], "from the number that was asked for"
            assert ask_replay(room.context, endpoint, numbers[-1] + 1000, with_topic) == []
            assert ask_replay(room.context, endpoint, (1 << 64) - 1, with_topic) == []
            with room.subscriber(replay=endpoint, with_topic=with_topic) as late:
                late.settles_on(hashes_of(chunks), "who comes late learns of all")
                assert late.replays >= 1 and late.index.cleared == 1


def test_what_is_not_kept_is_told_again(arguments):
    config = CONFIG + "replay_batches = 6\nsnapshot_pause_ms = 0\nbatch_ms = 0\n"
    with Room(arguments, config) as room, room.subscriber() as router:
        chunks = room.tree(12)
        for i, chunk in enumerate(chunks):
            room.client.store([chunk])
            router.settles_on(hashes_of(chunks[:i + 1]), "each in a batch of its own")
        before = room.eventd.metric("maru_eventd_announcements_total")
        with room.subscriber() as late:
            late.settles_on(hashes_of(chunks), "who comes late, though the beginning is not kept")
            assert late.index.cleared >= 1
        assert room.eventd.metric("maru_eventd_announcements_total") > before
        assert room.eventd.metric("maru_eventd_replay_incomplete_total") >= 1
        router.settles_on(hashes_of(chunks), "and the others still know all")


def test_without_replay_newcomers_are_told_all(arguments):
    config = "\n".join(line for line in CONFIG.splitlines() if not line.startswith("replay")) + "\nsnapshot_pause_ms = 0\n"
    with Room(arguments, config) as room:
        chunks = room.tree(50)
        room.client.store(chunks)
        for _ in range(3):
            with room.subscriber(replay=None) as router:
                router.settles_on(hashes_of(chunks), "a newcomer")


def test_hostile_requests(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        chunks = room.tree(100)
        room.client.store(chunks)
        router.settles_on(hashes_of(chunks), "blocks")
        hostile = room.context.socket(zmq.DEALER)
        hostile.linger = 0
        hostile.connect(room.eventd.replay)
        requests = [[b""], [b"", b""], [b"", b"1234567"], [b"", b"123456789"], [b"", bytes(8), b"more"],
                    [b"x", b"y", b"z", b"w"], [b"", b"x" * 900], [b"x"] * 9]
        for request in requests:
            hostile.send_multipart(request)
        until(lambda: room.eventd.metric("maru_eventd_replay_refused_total") == len(requests), "they are refused")
        # Many who ask for all and read nothing; and one whose message is longer than any request.
        crowd = []
        for _ in range(200):
            one = room.context.socket(zmq.DEALER)
            one.linger = 0
            one.rcvhwm = 1
            one.connect(room.eventd.replay)
            one.send_multipart([b"", bytes(8)])
            crowd.append(one)
        hostile.send_multipart([b"", b"x" * 100_000])
        more = room.tree(50)
        room.client.store(more)
        router.settles_on(hashes_of(chunks + more), "the stream goes on")
        with room.subscriber() as late:
            late.settles_on(hashes_of(chunks + more), "others are answered")
        for one in crowd:
            one.close()
        hostile.close()


def memory_of(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def test_a_subscriber_stands_still(arguments):
    config = CONFIG + 'hwm = 4\nbatch_bytes = "16KiB"\nreplay_bytes = "64MiB"\nsnapshot_pause_ms = 0\n'
    big = 256  # blocks of a chunk: 4 KiB of tokens
    with Room(arguments, config) as room, room.subscriber() as router:
        still = Subscriber(room.context, room.eventd.events, room.eventd.replay)
        still.sub.close()
        still.sub = room.context.socket(zmq.SUB)
        still.sub.linger, still.sub.rcvhwm, still.sub.rcvbuf = 0, 1, 4096
        still.sub.subscribe(b"")
        still.sub.connect(room.eventd.events)
        still.pump(2000)
        chunks = []
        # Until the one that does not read is passed over, and then some more, which it loses.
        while len(chunks) < 4000 and (room.eventd.metric("maru_eventd_stalls_total") == 0 or len(chunks) < 1500):
            some = [Chunk(room.rng, blocks=big) for _ in range(50)]
            room.client.store(some)
            chunks += some
            router.pump(0)
        router.settles_on(lambda: room.truth(chunks), "the subscriber that reads")
        assert room.eventd.metric("maru_eventd_stalls_total") >= 1
        used = memory_of(room.eventd.process)
        assert used < 1 << 30, f"{used} bytes of memory"
        still.settles_on(lambda: room.truth(chunks), "the one that stood still catches up")
        assert still.replays >= 1
        still.close()


def test_eventd_stands_still(arguments):
    with Room(arguments, size="64MiB") as room, room.subscriber() as router:
        chunks = room.tree(100)
        room.client.store(chunks)
        router.settles_on(hashes_of(chunks), "blocks")
        kept = []
        for _ in range(20):  # the feed is not told of a block that goes before marud looks, on a busy machine of most
            room.eventd.process.send_signal(signal.SIGSTOP)
            kept += [Chunk(room.rng) for _ in range(50)]
            room.client.store(kept[-50:])
            for _ in range(6):  # more than the feed's ring of 1 MiB has room for
                some = [Chunk(room.rng) for _ in range(2500)]
                room.client.store(some)
                room.client.delete(some)
            room.eventd.process.send_signal(signal.SIGCONT)
            router.settles_on(hashes_of(chunks + kept), "after an overrun")
            if room.eventd.metric("maru_eventd_overruns_total") >= 1:
                break
        assert room.eventd.metric("maru_eventd_overruns_total") >= 1

        def is_told_again():
            router.pump()
            return router.index.cleared >= 2
        until(is_told_again, "everything is told again")
        router.settles_on(hashes_of(chunks + kept), "after everything was told again")


def test_topics_of_pods(arguments):
    config = CONFIG + 'topic = "kv@{{pod}}@{{model}}"\npods = ["10.0.0.1:8000", "10.0.0.2:8000"]\nmodel = "llama"\n'
    with Room(arguments, config) as room:
        chunks = room.tree(20)
        room.client.store(chunks)
        first, second = room.subscriber(topic=b"kv@10.0.0.1:8000@"), room.subscriber(topic=b"kv@10.0.0.2:8000@")
        for router in (first, second):
            router.settles_on(hashes_of(chunks), "blocks of a pod")
        assert first.topics == {b"kv@10.0.0.1:8000@llama"} and second.topics == {b"kv@10.0.0.2:8000@llama"}
        for router in (first, second):
            router.close()


def test_what_is_wrong_is_said(arguments):
    with Room(arguments) as room:
        taken = Eventd(arguments.eventd, room.marud, CONFIG, tempfile.mkdtemp(dir=room.folder.name),
                       events=room.eventd.ports["events"])
        try:
            taken.begin()
        except AssertionError:
            pass
        assert taken.process.wait() == 1
        said = taken.log.read_text()
        assert f"listen on tcp://127.0.0.1:{room.eventd.ports['events']}" in said and "another program listens there" in said
        config = CONFIG.replace("[[pool]]", '[[pool]]\nname = "nothing"')
        with Eventd(arguments.eventd, room.marud, config, tempfile.mkdtemp(dir=room.folder.name)) as lost:
            until(lambda: "no such pool" in str(lost.health()["reasons"]), "a pool that is not there is said")
        config = CONFIG + 'medium = "CXL"\n'
        with Eventd(arguments.eventd, room.marud, config, tempfile.mkdtemp(dir=room.folder.name)) as odd:
            # HTTP answers before the streams begin.
            until(lambda: 'found the medium "CXL", which Dynamo drops' in odd.log.read_text(), "a warning of the medium")


def test_a_user_without_rights(arguments):
    if os.getuid() != 0:
        print("skipped: another user takes root")
        return
    nobody, somebody = 65534, 65533
    with Room(arguments, starts=False, more=f"readers = [{somebody}]") as room:
        for folder in (room.folder.name, room.marud.directory.name):
            os.chmod(folder, 0o755)
        eventd = pathlib.Path(room.folder.name) / "maru-eventd"  # where every user may run it
        eventd.write_bytes(pathlib.Path(arguments.eventd).read_bytes())
        eventd.chmod(0o755)
        room.eventd.program, room.eventd.user = eventd, nobody
        chunks = room.tree(10)
        room.client.store(chunks)
        room.eventd.begin()
        until(lambda: "do not name this program's user" in str(room.eventd.health()["reasons"]), "the missing right is said")
        room.eventd.kill()
        room.eventd.user = somebody
        room.eventd.begin()
        with room.subscriber() as router:
            router.settles_on(hashes_of(chunks), "who may read the pool may publish it")


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]


def main_of(tests):
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--eventd", "--client"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only")
    run_tests(tests, parser.parse_args())


if __name__ == "__main__":
    main_of(TESTS)
