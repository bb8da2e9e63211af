"""maru-eventd by NATS: a real nats-server, a subscriber that speaks its text protocol, and the truth asked of the pool.
nats_test.py --marud M --eventd E --client C [--seed N] [--only NAME]"""
import base64
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

from events_room import PATIENCE, ROOT, Chunk, Index, hashes_of, msgpack, until
from relay_test import WITH_REPLAY
from zeromq_test import Room, delete_leaves, main_of

SERVER = shutil.which("nats-server") or "/usr/sbin/nats-server"
CONFIG = """
[[pool]]
socket = "{socket}"
[[nats]]
name = "pool"
url = "nats://127.0.0.1:{nats}"
subject = "maru.test"
batch_ms = 5
snapshot_pause_ms = 0
"""
DYNAMO = CONFIG.replace('subject = "maru.test"\n', '') + """
format = "dynamo"
namespace = "ns"
component = "backend"
endpoint = "generate"
worker_id = 42
publisher_id = 7
"""


class Server:
    def __init__(self, port, folder, *arguments):
        self.port, self.folder, self.arguments = port, pathlib.Path(folder), arguments
        self.begin()

    def begin(self):
        with open(self.folder / "nats.log", "ab") as log:
            self.process = subprocess.Popen([SERVER, "-a", "127.0.0.1", "-p", str(self.port), *self.arguments], stdout=log,
                                            stderr=log)
        until(self.answers, "an answer of nats-server")

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except OSError:
            return False

    def end(self):
        self.process.kill()
        self.process.wait()


class Nats:
    """A connection that speaks NATS's text protocol."""

    def __init__(self, port, *subjects, token=None):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(PATIENCE)
        self.rest = b""
        options = {"verbose": False, "pedantic": False, "lang": "test", "version": "0"}
        self.send(f"CONNECT {json.dumps({**options, 'auth_token': token} if token else options)}\r\n")
        for number, subject in enumerate(subjects):
            self.send(f"SUB {subject} {number + 1}\r\n")
        self.send("PING\r\n")
        self.messages = []
        while self.line() != b"PONG":
            pass

    def send(self, text, payload=b""):
        self.socket.sendall(text.encode() + payload)

    def more(self):
        got = self.socket.recv(1 << 16)
        if not got:
            raise ConnectionError("the server is gone")
        self.rest += got

    def line(self):
        while b"\r\n" not in self.rest:
            self.more()
        line, self.rest = self.rest.split(b"\r\n", 1)
        return line

    def take(self):
        """One message (subject, payload), or None for another line."""
        line = self.line()
        if line == b"PING":
            self.send("PONG\r\n")
        if line.startswith(b"-ERR"):
            raise ConnectionError(line.decode())
        words = line.split(b" ")
        if words[0] not in (b"MSG", b"HMSG"):
            return None
        size = int(words[-1])
        while len(self.rest) < size + 2:
            self.more()
        payload, self.rest = self.rest[:size], self.rest[size + 2:]
        return words[1].decode(), payload[int(words[-2]):] if words[0] == b"HMSG" else payload

    def pump(self, wait_s=0.05):
        """What has come."""
        found = []
        self.socket.settimeout(wait_s)
        try:
            while True:
                message = self.take()
                if message:
                    found.append(message)
                self.socket.settimeout(0.001)
        except (TimeoutError, BlockingIOError):
            pass
        finally:
            self.socket.settimeout(PATIENCE)
        return found

    def publish(self, subject, payload=b"", reply=""):
        self.send(f"PUB {subject} {reply} {len(payload)}\r\n", payload + b"\r\n")

    def request(self, subject, payload):
        self.send("SUB answers 99\r\n")
        self.publish(subject, json.dumps(payload).encode() if payload is not None else b"", "answers")
        while True:
            message = self.take()
            if message and message[0] == "answers":
                self.send("UNSUB 99\r\n")
                return json.loads(message[1])

    def close(self):
        self.socket.close()


class PoolIndex:
    """What a storage advisor knows after some messages in our format."""

    def __init__(self):
        self.index = Index()
        self.last = 0

    def apply(self, payload):
        message = msgpack.unpackb(payload)
        assert message["version"] == 1 and message["publisher"] == "pool", message
        assert message["sequence"] > self.last, "the sequence grows"
        self.last = message["sequence"]
        for event in message["events"]:
            self.event(event)

    def event(self, event):
        kind = event["event_type"]
        if kind != "clear" and self.index.cleared == 0:
            return  # of what came before there is nothing to know
        if kind == "clear":
            self.index.event({"type": "AllBlocksCleared"})
        elif kind == "remove":
            self.index.event({"type": "BlockRemoved", "block_hashes": [event["sequence_hash"]],
                              "medium": event["storage_location"]})
        else:
            assert kind == "store" and len(msgpack.packb(event)) < 150, event
            assert isinstance(event["extra_metadata"], dict)
            self.index.event({"type": "BlockStored", "block_hashes": [event["sequence_hash"]],
                              "parent_block_hash": event["prefix_hash"], "token_ids": [], "block_size": event["block_size"],
                              "lora_id": None, "lora_name": None, "medium": event["storage_location"]})

    def hashes(self):
        return self.index.hashes()


class DynamoIndex:
    """What Dynamo's router knows."""

    def __init__(self):
        self.blocks, self.last, self.last_event = {}, 0, 0

    def apply(self, payload):
        message = msgpack.unpackb(payload)
        assert set(message) == {"publisher_id", "sequence", "published_at", "topic", "payload"}, message
        assert message["publisher_id"] == 7 and message["topic"] == "kv-events" and message["sequence"] > self.last
        self.last = message["sequence"]
        for event in msgpack.unpackb(message["payload"]):
            assert set(event) == {"worker_id", "storage_tier", "residency_domain", "event"}, event
            assert (event["worker_id"], event["storage_tier"], event["residency_domain"]) == (42, "host_pinned", "worker")
            inner = event["event"]
            assert inner["event_id"] > self.last_event and inner["dp_rank"] == 0
            self.last_event = inner["event_id"]
            self.data(inner["data"])

    def data(self, data):
        if data == "cleared":
            self.blocks.clear()
        elif "removed" in data:
            for one in data["removed"]["block_hashes"]:
                del self.blocks[one]
        else:
            parent = data["stored"]["parent_hash"]
            for block in data["stored"]["blocks"]:
                assert set(block) == {"block_hash", "tokens_hash", "mm_extra_info"}
                self.blocks[block["block_hash"]] = (parent, block["tokens_hash"])
                parent = block["block_hash"]

    def hashes(self):
        return set(self.blocks)


class NatsRoom(Room):
    def __init__(self, arguments, config=CONFIG, server=(), serves=True, **shape):
        super().__init__(arguments, config, starts=False, ports=("nats",), **shape)
        self.server_arguments, self.serves, self.server = server, serves, None

    def __enter__(self):
        super().__enter__()
        self.port = self.eventd.ports["nats"]
        if self.serves:
            self.serve()
        self.eventd.begin()
        return self

    def serve(self):
        if self.server is None:
            self.server = Server(self.port, self.folder.name, *self.server_arguments)
        else:
            self.server.begin()

    def __exit__(self, *about):
        if self.server is not None:
            self.server.end()
        super().__exit__(*about)

    def settles(self, nats, index, wanted, what):
        def is_there():
            for _, payload in nats.pump():
                index.apply(payload)
            return index.hashes() == (wanted() if callable(wanted) else wanted)
        until(is_there, what)

    def subscriber(self, subject="maru.test", **more):
        """One that has asked for everything."""
        nats = Nats(self.port, subject, **more)
        nats.publish(subject + ".resync")
        return nats


def test_metrics_are_as_the_page_says(arguments):
    config = WITH_REPLAY + CONFIG[CONFIG.index("[[nats]]"):].replace('"pool"', '"other"')
    config += '[traces]\nsocket = "{folder}/spans.sock"\nendpoint = "http://127.0.0.1:9/v1/traces"\n'
    room = NatsRoom(arguments, config)
    room.ports += ("engine", "engine_replay")
    page = (ROOT / "docs/events.md").read_text()
    described = dict(re.findall(r"^\| `(maru_eventd_\w+)` \| (\w+) \|", page, re.MULTILINE))
    found = {}

    def is_same():
        found.update(re.findall(r"^# TYPE (maru_eventd_\w+) (\w+)$", room.eventd.ask("/metrics"), re.MULTILINE))
        return found == described
    with room:  # HTTP is answered before the streams begin
        until(is_same, f"the families of the page, {len(described)} of them")


def test_follows_what_comes_and_goes(arguments):
    with NatsRoom(arguments) as room:
        chunks = room.tree(200)
        room.client.store(chunks)
        nats, index = room.subscriber(), PoolIndex()
        room.settles(nats, index, hashes_of(chunks), "the snapshot")
        chunks = delete_leaves(room, chunks, 50) + room.tree(50)
        room.client.store(chunks[-50:])
        room.settles(nats, index, hashes_of(chunks), "changes")
        assert room.eventd.health()["status"] == "healthy"
        before = index.last
        room.eventd.kill()
        room.eventd.begin()
        room.settles(nats, index, lambda: hashes_of(chunks) if index.last > before else None, "after a restart of eventd")


def test_dynamos_envelope(arguments):
    with NatsRoom(arguments, DYNAMO) as room:
        chunks = room.tree(50)
        known = [Chunk(room.rng), Chunk(room.rng)]
        known[0].tokens, known[1].tokens, known[1].parent = [1, 2, 3, 4], [5, 6, 7, 8], known[0]
        room.client.store(chunks + known)
        alone, salted, adapted = Chunk(room.rng), Chunk(room.rng), Chunk(room.rng)
        room.client.store([alone], metadata=lambda chunk: b"")
        room.client.store([salted], metadata=lambda chunk: chunk.metadata(salt="s"))
        adapted.tokens = [1, 2, 3, 4]
        room.client.store([adapted], metadata=lambda chunk: chunk.metadata(lora="adapter"))
        known.append(adapted)
        nats, index = room.subscriber("namespace.ns.component.backend.endpoint.generate.kv-events"), DynamoIndex()
        room.settles(nats, index, hashes_of(chunks + known), "the snapshot, without the two that have no tokens or a salt")
        assert index.blocks[known[0].hashes[0]] == (None, 14643705804678351452)
        assert index.blocks[adapted.hashes[0]] == (None, 5402321046179341001), "as Dynamo 1.6.1 has it for this LoRA"
        assert index.blocks[known[1].hashes[0]] == (known[0].hashes[0], 16777012769546811212)
        until(lambda: room.eventd.metric("maru_eventd_left_out_total") >= 2, "they are counted")
        chunks = delete_leaves(room, chunks, 10)
        room.settles(nats, index, hashes_of(chunks + known), "removals")


def test_the_server_goes_and_comes_back(arguments):
    with NatsRoom(arguments, serves=False) as room:
        chunks = room.tree(100)
        room.client.store(chunks)
        until(lambda: room.eventd.health()["status"] == "degraded", "no server is said")
        for _ in range(2):
            room.serve()
            nats, index = room.subscriber(), PoolIndex()
            room.settles(nats, index, lambda: hashes_of(chunks), "with a server")
            until(lambda: room.eventd.health()["status"] == "healthy", "the server is there")
            room.server.end()
            nats.close()
            until(lambda: room.eventd.health()["status"] == "degraded", "the server is gone")
            more = room.tree(100)
            room.client.store(more)
            chunks = delete_leaves(room, chunks, 20) + more


def test_more_than_the_buffer_while_the_server_is_away(arguments):
    with NatsRoom(arguments, CONFIG + 'buffer_bytes = "8KiB"\n') as room:
        chunks = room.tree(50)
        room.client.store(chunks)
        nats, index = room.subscriber(), PoolIndex()
        room.settles(nats, index, hashes_of(chunks), "blocks")
        room.server.end()
        until(lambda: room.eventd.health()["status"] == "degraded", "the server is gone")
        while room.eventd.metric("maru_eventd_dropped_total") == 0:
            more = room.tree(100)
            room.client.store(more)
            chunks += more
        room.serve()
        nats, index = room.subscriber(), PoolIndex()
        room.settles(nats, index, lambda: room.truth(chunks), "after the server is back")


def test_the_server_stands_still(arguments):
    with NatsRoom(arguments) as room:
        chunks = room.tree(50)
        room.client.store(chunks)
        nats, index = room.subscriber(), PoolIndex()
        room.settles(nats, index, hashes_of(chunks), "blocks")
        room.server.process.send_signal(signal.SIGSTOP)
        more = room.tree(500)
        room.client.store(more)
        assert "maru_eventd_batches_total" in room.eventd.ask("/metrics"), "eventd goes on"
        room.server.process.send_signal(signal.SIGCONT)
        room.settles(nats, index, hashes_of(chunks + more), "after it goes on")


def test_more_than_a_message_holds(arguments):
    with NatsRoom(arguments, size="64MiB") as room:
        chunks = [Chunk(room.rng) for _ in range(12_000)]
        room.client.store(chunks, nbytes=1, metadata=lambda chunk: b"")
        nats, index = room.subscriber(), PoolIndex()
        room.settles(nats, index, {int.from_bytes(chunk.key[-8:], "big") for chunk in chunks}, "in several messages")
        assert room.eventd.metric("maru_eventd_dropped_total") == 0


def test_refusals(arguments):
    with NatsRoom(arguments, server=("--auth", "secret-token")) as room:
        until(lambda: any("refuses this program" in reason for reason in room.eventd.health()["reasons"]),
              "that the server refuses is said")
        assert room.eventd.process.poll() is None
        assert any("does not answer" not in reason for reason in room.eventd.health()["reasons"])


def test_a_token(arguments):
    config = CONFIG + 'token_file = "{folder}/token"\n'
    room = NatsRoom(arguments, config, server=("--auth", "secret-token"))
    begin = room.serve

    def with_token():
        (pathlib.Path(room.folder.name) / "token").write_text("secret-token\n")
        begin()
    room.serve = with_token
    with room:
        chunks = room.tree(20)
        room.client.store(chunks)
        nats, index = room.subscriber(token="secret-token"), PoolIndex()
        room.settles(nats, index, hashes_of(chunks), "with the token")


def test_jetstream_keeps_for_who_was_away(arguments):
    config = CONFIG + '[nats.jetstream]\nname = "MARU"\nbytes = "64MiB"\nhours = 1\n'
    with NatsRoom(arguments, config) as room:  # a server without JetStream
        until(lambda: "JetStream" in str(room.eventd.health()["reasons"]), "that the server has no JetStream is said")
        chunks = room.tree(20)
        room.client.store(chunks)
        nats, index = room.subscriber(), PoolIndex()
        room.settles(nats, index, hashes_of(chunks), "and events come all the same")
        room.server.end()
        room.server.arguments = ("-js", "-sd", room.folder.name)
        room.serve()
        nats = Nats(room.port)

        def is_kept():
            info = nats.request("$JS.API.STREAM.INFO.MARU", None)
            return info.get("state", {}).get("messages", 0) > 0
        until(is_kept, "a stream with messages")
        chunks = delete_leaves(room, chunks, 10) + room.tree(30)
        room.client.store(chunks[-30:])  # nobody subscribes

        def kept_contents():
            index, number = PoolIndex(), nats.request("$JS.API.STREAM.INFO.MARU", None)["state"]["first_seq"]
            while True:
                answer = nats.request("$JS.API.STREAM.MSG.GET.MARU", {"seq": number})
                if "error" in answer:
                    return index.hashes()
                index.apply(base64.b64decode(answer["message"]["data"]))
                number += 1
        until(lambda: kept_contents() == hashes_of(chunks), "what was kept rebuilds the pool")


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]

if __name__ == "__main__":
    if not pathlib.Path(SERVER).exists():
        print("skipped: no nats-server (Debian: nats-server)")
        sys.exit(77)
    main_of(TESTS)
