"""What the tests of events share: a maru-eventd and a client of their own, subscribers as routers are, and the truth."""
import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import time
import urllib.request

DEBIAN_PYTHON = "/usr/bin/python3"  # has Debian's python3-zmq and python3-msgpack, which another Python in $PATH may lack

try:
    import msgpack
    import zmq
except ImportError as missing:
    if os.path.exists(DEBIAN_PYTHON) and os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON):
        os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
    print(f"skipped: {missing} (Debian: python3-zmq, python3-msgpack)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "tests/api"), str(ROOT / "python/maru")]
import token_metadata  # noqa: E402  # as connectors write it
from with_marud import Marud  # noqa: E402

PATIENCE = int(os.environ.get("MARU_EVENTS_PATIENCE", 120))  # seconds; the machine may be slow
BLOCK_TOKENS = 4
END = b"\xff" * 8


class NeverCame(AssertionError):
    """What was waited for."""


def until(condition, what, patience=PATIENCE):
    """Waits until condition() is true, and returns what it returns."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise NeverCame(f"{what} did not come about in {patience} s")
        time.sleep(0.01)


_given = set()  # ports that this process has for one purpose each


def free_port():
    """One below those that the kernel gives to connections, which could take it before it is used."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                _given.add(port)
                return port
            except OSError:
                continue


class Eventd:
    """A maru-eventd with this configuration, which ends when the block does. {socket} is marud's; {NAME} a port, the same for
    each start."""

    def __init__(self, program, marud, config, folder, **ports):
        self.program = program
        self.folder = pathlib.Path(folder)
        self.ports = {name: free_port() for name in ("events", "replay", "old_replay", "http")} | ports
        self.path = self.folder / "eventd.toml"
        self.path.write_text(('[http]\nlisten = "127.0.0.1:%(http)d"\n' % self.ports)
                             + config.format(socket=marud.socket, folder=folder, **self.ports))
        self.log = self.folder / "eventd.log"
        self.process = None
        self.user = None  # that it runs as, instead of the test's own

    def __enter__(self):
        self.begin()
        return self

    def begin(self):
        self.log.touch()
        with open(self.log, "ab", buffering=0) as log:
            self.process = subprocess.Popen([self.program, "--config", self.path], stdout=log, stderr=log,
                                            user=self.user, group=self.user, extra_groups=None if self.user is None else [])
        until(lambda: self.process.poll() is not None or self.answers(), "an answer of eventd")
        assert self.process.poll() is None, self.log.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            status = self.process.wait(PATIENCE)
            assert status == 0, f"eventd ended with {status}:\n{self.log.read_text()}"

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['http']}{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()

    def answers(self):
        try:
            return bool(self.ask("/healthcheck"))
        except OSError:
            return False

    def health(self):
        return json.loads(self.ask("/healthcheck"))

    def metric(self, name):
        """The sum of all samples of a family."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.ask("/metrics").splitlines()
                   if line.split("{")[0].split(" ")[0] == name)

    @property
    def replay(self):
        return f"tcp://127.0.0.1:{self.ports['replay']}"

    @property
    def old_replay(self):
        return f"tcp://127.0.0.1:{self.ports['old_replay']}"

    @property
    def events(self):
        return f"tcp://127.0.0.1:{self.ports['events']}"


class Chunk:
    """A block of the pool with `blocks` of the engine's, below another chunk or none."""

    def __init__(self, rng, parent=None, blocks=1):
        self.key = rng.randbytes(32)
        self.parent = parent
        self.tokens = [rng.randrange(1 << 17) for _ in range(blocks * BLOCK_TOKENS)]
        self.hashes = [rng.getrandbits(64) for _ in range(blocks)]

    def metadata(self, **more):
        parent = self.parent.hashes[-1] if self.parent else None
        return token_metadata.encode(self.tokens, BLOCK_TOKENS, **{"hashes": self.hashes, "parent": parent, **more})


class Client:
    """A process that stores and deletes."""

    def __init__(self, program, marud):
        self.program, self.marud = program, marud
        until(self.attaches, "an attached client")

    def attaches(self):
        """Whether a new process answers; marud may not be there yet."""
        self.process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "MARU_SOCKET": str(self.marud.socket)})
        try:
            return bool(self.ask(["traceparent -"]))  # no call of its client, which may be traced
        except (ValueError, BrokenPipeError):
            self.kill()
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, lines):
        """The result of each; all are sent before any is read, a few at a time."""
        results = []
        for first in range(0, len(lines), 64):
            some = lines[first:first + 64]
            self.process.stdin.write("\n".join(some) + "\n")
            self.process.stdin.flush()
            results += [int(self.process.stdout.readline()) for _ in some]
        return results

    def store(self, chunks, nbytes=1000, metadata=None, tenant=""):
        return self.ask([f"store {chunk.key.hex()} {nbytes} {chunk.parent.key.hex() if chunk.parent else '-'} "
                         f"{(chunk.metadata() if metadata is None else metadata(chunk)).hex() or '-'} {tenant}"
                         for chunk in chunks])

    def delete(self, chunks, tenant=""):
        return self.ask([f"delete {chunk.key.hex()} {tenant}" for chunk in chunks])

    def which(self, chunks):
        """How many leading ones the pool has."""
        return self.ask(["which " + " ".join(chunk.key.hex() for chunk in chunks)])[0]

    def present(self, chunks, tenant=""):
        """Those that the pool has: the truth."""
        return [chunk for chunk, there in zip(chunks, self.ask([f"exists {chunk.key.hex()} {tenant}" for chunk in chunks]))
                if there == 1]


class Index:
    """What a router knows after some batches. Fails where the stream breaks its promises."""

    def __init__(self):
        self.blocks = {}  # (hash, medium) -> event fields
        self.children = {}  # (hash, medium) -> how many of its children are there
        self.cleared = 0
        self.log = []
        self.empty_batches = 0
        self.wants_parents = True

    def apply(self, payload):
        batch = msgpack.unpackb(payload)
        assert isinstance(batch, list) and len(batch) == 3, batch
        assert isinstance(batch[0], float) and isinstance(batch[1], list), batch
        self.rank = batch[2]
        self.empty_batches += not batch[1]
        for event in batch[1]:
            self.event(event)

    def event(self, event):
        assert isinstance(event, dict), event
        self.log.append(event)
        if event["type"] == "AllBlocksCleared":
            self.blocks.clear()
            self.children.clear()
            self.cleared += 1
        elif event["type"] == "BlockRemoved":
            for one in event["block_hashes"]:
                where = one, event["medium"]
                assert where in self.blocks, f"{one} was removed and was not there"
                assert not self.wants_parents or not self.children.get(where), f"{one} was removed before its child"
                parent = self.blocks.pop(where)["parent"], event["medium"]
                self.children[parent] = self.children.get(parent, 1) - 1
        else:
            assert event["type"] == "BlockStored", event
            self.stored(event)

    def stored(self, event):
        size, hashes, tokens = event["block_size"], event["block_hashes"], event["token_ids"]
        assert len(tokens) in (0, size * len(hashes)), event
        for name in ("lora_id", "lora_name", "medium", "parent_block_hash"):
            assert name in event, event  # vLLM's own decoder wants them
        parent = event["parent_block_hash"]
        if parent is not None and self.wants_parents:
            assert (parent, event["medium"]) in self.blocks, f"{hashes[0]} was stored before its parent"
        for i, one in enumerate(hashes):
            assert isinstance(one, int) and 0 <= one < 1 << 64
            assert (one, event["medium"]) not in self.blocks, f"{one} was stored twice"
            above = parent, event["medium"]
            self.children[above] = self.children.get(above, 0) + 1
            self.blocks[one, event["medium"]] = {"parent": parent, "tokens": tokens[i * size:(i + 1) * size], "event": event}
            parent = one

    def hashes(self, medium="CPU"):
        return {one for one, where in self.blocks if where == medium}


class Subscriber:
    """A router: subscribes, asks for what it missed in one of the two forms, and keeps an index."""

    def __init__(self, context, events, replay=None, with_topic=True, topic=b""):
        self.index = Index()
        self.context = context
        self.replay_endpoint, self.with_topic = replay, with_topic
        self.next = 0
        self.replays = 0
        self.sub = context.socket(zmq.SUB)
        self.sub.linger = 0
        self.sub.subscribe(topic)
        self.sub.connect(events)
        self.topics = set()

    def close(self):
        self.sub.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def pump(self, wait_ms=50):
        """Takes what has come."""
        while self.sub.poll(wait_ms):
            frames = self.sub.recv_multipart()
            assert len(frames) == 3, frames
            self.topics.add(frames[0])
            self.take(*frames[1:])
            wait_ms = 0

    def take(self, sequence, payload):
        assert len(sequence) == 8
        number = int.from_bytes(sequence, "big")
        if number < self.next:
            return  # a replay had it
        if number > self.next and self.replay_endpoint:
            self.catch_up()
        if number >= self.next:
            self.index.apply(payload)
            self.next = number + 1

    def catch_up(self):
        self.replays += 1
        for number, payload in ask_replay(self.context, self.replay_endpoint, self.next, self.with_topic):
            if number >= self.next:
                self.index.apply(payload)
                self.next = number + 1

    def settles_on(self, hashes, what, medium="CPU"):
        """Until the index is exactly this; hashes: a set, or a function that returns it."""
        wanted = hashes if callable(hashes) else lambda: hashes

        def is_there():
            self.pump()
            return self.index.hashes(medium) == wanted()
        try:
            until(is_there, what)
        except NeverCame as error:
            have, want = self.index.hashes(medium), wanted()
            raise AssertionError(f"{what}: {len(have - want)} too many, {len(want - have)} missing of {len(want)}") from error


def ask_replay(context, endpoint, start, with_topic, delimiter=True):
    """The batches that a publisher gives again, as (sequence, payload)."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    try:
        dealer.connect(endpoint)
        dealer.send_multipart(([b""] if delimiter else []) + [struct.pack(">Q", start)])
        batches = []
        while True:
            assert dealer.poll(PATIENCE * 1000), "no end of the replay"
            frames = dealer.recv_multipart()
            if delimiter:
                assert frames.pop(0) == b""
            if with_topic:
                frames.pop(0)
            sequence, payload = frames
            if sequence == END:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(sequence, "big"), payload))
    finally:
        dealer.close()


def hashes_of(chunks):
    return {one for chunk in chunks for one in chunk.hashes}


def seeded(argument):
    seed = argument if argument is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    return random.Random(seed)


def run_tests(tests, arguments):
    """Each gets the arguments by their names; the first that fails ends all."""
    for test in tests:
        if arguments.only and arguments.only not in test.__name__:
            continue
        begin = time.monotonic()
        test(arguments)
        print(f"ok   {test.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
