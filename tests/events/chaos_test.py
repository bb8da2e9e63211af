"""Everything dies at random while blocks come and go, and routers end with exactly what the pool has: marud, maru-eventd
and clients are killed, eventd is stopped for a while, routers leave and come back. One router reads as llm-d does.
chaos_test.py --marud M --eventd E --client C [--seed N]"""
import signal

from events_room import Client, hashes_of, msgpack, until
from zeromq_test import CONFIG, Room, delete_leaves, main_of

STEPS = 40


class LlmdIndex:
    """What llm-d's router makes of batches, by its rules of acceptance: a tag that it does not know loses the batch, a block
    under a parent that it does not know is skipped, and a block stays until it was removed as often as it was stored."""

    def __init__(self):
        self.counts = {}  # (hash, tier) -> how often it was stored

    def apply(self, payload):
        batch = msgpack.unpackb(payload)
        assert isinstance(batch, list) and len(batch) >= 2, "the batch is refused"
        for event in batch[1]:
            tag = event["type"] if isinstance(event, dict) else event[0]
            assert tag in ("BlockStored", "BlockRemoved", "AllBlocksCleared"), "the whole batch is refused"
            if tag == "AllBlocksCleared":
                self.counts.clear()
            else:
                self.change(event, 1 if tag == "BlockStored" else -1)

    def change(self, event, by):
        tier = (event["medium"] or "gpu").lower()
        parent = event.get("parent_block_hash")
        if by > 0 and parent is not None and (parent, tier) not in self.counts:
            return  # nothing is indexed below what is not known
        for one in event["block_hashes"]:
            count = self.counts.get((one, tier), 0) + by
            if count > 0:
                self.counts[one, tier] = count
            else:
                self.counts.pop((one, tier), None)

    def hashes(self, medium):
        return {one for one, tier in self.counts if tier == medium.lower()}


class Chaos:
    def __init__(self, room):
        self.room, self.rng = room, room.rng
        self.chunks = []  # as far as is known
        self.keeper = Client(room.arguments.client, room.marud)  # has the pool's memory while marud and the other are dead
        self.routers = [room.subscriber(), room.subscriber(replay=room.eventd.old_replay, with_topic=False), room.subscriber()]
        self.routers[2].index = LlmdIndex()

    def store(self):
        more = self.room.tree(self.rng.randrange(1, 60))
        self.room.client.store(more)
        self.chunks += more

    def delete(self):
        self.chunks = self.room.client.present(self.chunks)
        self.chunks = delete_leaves(self.room, self.chunks, self.rng.randrange(1, 20))

    def kill_client(self):
        self.room.client.kill()
        self.room.client = Client(self.room.arguments.client, self.room.marud)

    def kill_marud(self):
        self.room.marud.process.kill()
        self.room.marud.process.wait()
        self.room.marud.begin()
        probe = self.room.tree(1)
        until(lambda: self.room.client.store(probe)[0] in (0, 1), "the client is served again")
        self.chunks += probe

    def kill_eventd(self):
        self.room.eventd.kill()
        self.store()
        self.room.eventd.begin()

    def stop_eventd(self):
        self.room.eventd.process.send_signal(signal.SIGSTOP)
        for _ in range(self.rng.randrange(1, 10)):
            self.store()
        self.delete()
        self.room.eventd.process.send_signal(signal.SIGCONT)

    def change_router(self):
        self.routers[0].close()
        self.routers[0] = self.room.subscriber()

    def pump(self):
        for router in self.routers:
            router.pump(5)

    def compare(self):
        for router in self.routers:
            if isinstance(router.index, LlmdIndex):
                until(lambda: (router.pump(), router.index.hashes("CPU") == self.room.truth(self.chunks))[1], "llm-d's index")
            else:
                router.settles_on(lambda: self.room.truth(self.chunks), "a router's index")

    def close(self):
        for router in self.routers:
            router.close()
        self.keeper.__exit__()


def test_whatever_dies(arguments):
    config = CONFIG + "snapshot_pause_ms = 100\nheartbeat_ms = 200\n"
    with Room(arguments, config) as room:
        chaos = Chaos(room)
        steps = [chaos.store] * 4 + [chaos.delete, chaos.pump, chaos.compare] * 2 + [
            chaos.kill_client, chaos.kill_marud, chaos.kill_eventd, chaos.stop_eventd, chaos.change_router]
        for _ in range(STEPS):
            room.rng.choice(steps)()
        chaos.compare()
        assert hashes_of(chaos.chunks)
        chaos.close()


TESTS = [test_whatever_dies]

if __name__ == "__main__":
    main_of(TESTS)
