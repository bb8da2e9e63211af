"""Spans of calls, from real clients through maru-eventd to a collector, decoded by protobuf itself.
tracing_test.py --marud M --marudctl T --eventd E --client C [--decoder PYTHON] [--seed N] [--only NAME]

Without --decoder the declarations in otlp.proto decode, by Debian's protobuf; with it the package opentelemetry-proto of that
Python."""
import array
import fcntl
import http.server
import json
import mmap
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from events_room import DEBIAN_PYTHON, PATIENCE, Chunk, Client, Eventd, Marud, free_port, run_tests, seeded, until
from with_marud import listens_on

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = """
[traces]
socket = "{folder}/spans.sock"
endpoint = "http://127.0.0.1:{collector}/v1/traces"
headers = ["Authorization: Bearer secret"]
batch_ms = 5
timeout_ms = 300000
"""
MAGIC = int.from_bytes(b"MARUSPAN", "little")
RING_SPANS = 4096
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INTERNAL, SERVER, CLIENT = 1, 2, 3


class Decoder:
    """A process that decodes."""

    def __init__(self, python, folder):
        if python is None:
            made = subprocess.run(["protoc", f"--proto_path={HERE}", f"--python_out={folder}", "otlp.proto"], cwd=HERE)
            assert made.returncode == 0
        self.process = subprocess.Popen([python or DEBIAN_PYTHON, HERE / "otlp_decoder.py", "real" if python else folder],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def decode(self, body):
        self.process.stdin.write(body.hex() + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the decoder refuses a request"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


class Collector:
    """Takes requests by HTTP. `answer` says how: a status, and a body."""

    def __init__(self, decoder):
        self.decoder, self.spans, self.requests, self.answer = decoder, [], 0, lambda: (200, b"")
        # The kernel gives this port to no connection while the collector is away.
        self.headers, self.lock, self.port, self.server = {}, threading.Lock(), free_port(), None

    def begin(self):
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = collector.take(self, body)
                self.send_response(status)
                if status == 503:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request, body):
        with self.lock:
            self.requests += 1
            assert request.path == "/v1/traces", request.path
            self.headers = dict(request.headers)
        status, answer = self.answer()
        if status == 200:
            with self.lock:
                self.spans += self.decoder.decode(body)
        return status, answer

    def end(self):
        self.server.shutdown()
        self.server.server_close()

    def named(self, name):
        with self.lock:
            return [span for span in self.spans if span["name"] == name]

    def count(self):
        with self.lock:
            return len(self.spans)


class Room:
    """A marud with a small pool, a collector, a maru-eventd between clients and collector."""

    def __init__(self, arguments, config=CONFIG, traces_marud=False, **pool):
        self.arguments, self.config, self.traces_marud = arguments, config, traces_marud
        self.pool = {"size": "16MiB", "page_bytes": "4KiB", "region_bytes": "1MiB"} | pool

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="maru-test-"))
        self.decoder = Decoder(self.arguments.decoder, self.folder)
        self.collector = Collector(self.decoder)
        self.collector.begin()
        daemon = f'tracing_socket = "{self.folder}/spans.sock"' if self.traces_marud else ""
        self.marud = Marud(self.arguments.marud, daemon=daemon, **self.pool)
        self.marud.__enter__()
        self.eventd = Eventd(self.arguments.eventd, self.marud, self.config, self.folder, collector=self.collector.port)
        self.eventd.begin()
        until(lambda: listens_on(self.folder / "spans.sock", socket.SOCK_SEQPACKET), "the socket for spans")
        os.environ["MARU_TRACING"] = str(self.folder / "spans.sock")
        os.environ["OTEL_SERVICE_NAME"] = "an engine"
        return self

    def __exit__(self, *_):
        for name in ("MARU_TRACING", "MARU_TRACING_ONE_IN", "OTEL_SERVICE_NAME"):
            os.environ.pop(name, None)
        self.eventd.__exit__()
        self.marud.__exit__(None, None, None)
        self.collector.end()
        self.decoder.close()
        shutil.rmtree(self.folder)

    def client(self):
        return Client(self.arguments.client, self.marud)


def key(rng):
    return rng.randbytes(32).hex()


def call(client, traceparent, line):
    assert client.ask([f"traceparent {traceparent}"]) == [0]
    return client.ask([line])[0]


def of_request(room, names, trace=CALLER[3:35]):
    """The spans of a trace, when all of these are there."""
    def found():
        with room.collector.lock:
            spans = [span for span in room.collector.spans if span["trace"] == trace]
        return spans if names <= {span["name"] for span in spans} else None
    return until(found, f"spans {names}")


def inside(outer, inner):
    slack = 100_000_000  # two clocks of one machine, and marud's is another process
    assert outer["begin"] - slack <= inner["begin"] <= inner["end"] <= outer["end"] + slack, (outer, inner)


def the_whole_way_of_a_request(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments) as room, room.client() as client:
        one = key(rng)
        assert call(client, CALLER, f"match {one}") == 0
        assert call(client, CALLER, f"store {one} 1000 - -") == 0
        assert call(client, CALLER, f"store {one} 1000 - -") == 1
        assert call(client, CALLER, f"match {one} {key(rng)}") == 1
        assert call(client, CALLER, f"retrieve {one}") == 0
        assert call(client, CALLER, f"retrieve {key(rng)}") < 0
        assert call(client, CALLER, f"delete {one}") == 0
        names = {"maru.match", "maru.store", "maru.rent", "marud.rent", "maru.retrieve", "maru.delete"}
        spans = of_request(room, names)
        spans = until(lambda: (found := of_request(room, names)) and len(found) >= 9 and found, "all of them")
        by_id = {span["id"]: span for span in spans}
        assert len(by_id) == len(spans) == 9, [span["name"] for span in spans]
        store, rent, serve = (next(span for span in spans if span["name"] == name)
                              for name in ("maru.store", "maru.rent", "marud.rent"))
        assert rent["parent"] == store["id"] and serve["parent"] == rent["id"]
        inside(store, rent)
        inside(rent, serve)
        assert (store["kind"], rent["kind"], serve["kind"]) == (INTERNAL, CLIENT, SERVER)
        for span in spans:
            if span not in (rent, serve):
                assert span["parent"] == CALLER[36:52], span
            assert span["flags"] == 1 and span["end"] >= span["begin"] and not span["error"], span
        resource = store["resource"]
        assert resource["service.name"] == "an engine" and resource["process.pid"] == client.process.pid, resource
        assert resource["maru.pool"] == "default" and resource["maru.lane"] > 0, resource
        assert serve["resource"]["service.name"] == "marud" and serve["attributes"]["maru.turns"] >= 1, serve
        assert store["attributes"]["maru.keys"] == 1 and store["attributes"]["maru.bytes"] == 1000, store
        spans.sort(key=lambda span: span["begin"])
        blocks = {name: [span["attributes"].get("maru.blocks") for span in spans if span["name"] == name] for name in names}
        assert blocks["maru.match"] == [0, 1] and blocks["maru.store"] == [1, 0], blocks  # the second was there already
        assert blocks["maru.retrieve"] == [1, 0] and blocks["maru.delete"] == [1], blocks
        assert room.collector.headers["Authorization"] == "Bearer secret"
        assert room.collector.headers["Content-Type"] == "application/x-protobuf"


def evictions_are_part_of_the_request(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments, more="high_watermark = 1.0") as room, room.client() as client:
        assert client.ask([f"traceparent {CALLER}"]) == [0]
        while not room.collector.named("marud.evict"):
            assert set(client.ask([f"store {key(rng)} 60000 - -" for _ in range(64)])) == {0}
        evict = room.collector.named("marud.evict")[0]
        serve = until(lambda: [span for span in room.collector.named("marud.rent") if span["id"] == evict["parent"]],
                      "the request that evicted")[0]
        inside(serve, evict)
        assert evict["trace"] == CALLER[3:35] and evict["attributes"]["maru.blocks"] > 0, evict


def evictions_without_a_request_are_roots(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments, traces_marud=True, more="high_watermark = 0.5\nlow_watermark = 0.25") as room, room.client() as client:
        stored = []

        def of_reason(reason):
            return [span for span in room.collector.named("marud.evict") if span["attributes"].get("maru.reason") == reason]

        def store_until(condition):
            while not condition():
                chunks = [Chunk(rng) for _ in range(64)]
                assert set(client.store(chunks, nbytes=10_000, metadata=lambda _: b"")) == {0}
                stored.extend(chunks)

        def all_are_told():
            gone = len(stored) - len(client.present(stored))
            told = sum(span["attributes"]["maru.blocks"] for span in room.collector.named("marud.evict"))
            return gone == told and gone

        store_until(lambda: of_reason("background"))
        before = until(all_are_told, "spans of all evictions")
        first = len(of_reason("background"))
        # Spans without an answer come again, from the next maru-eventd.
        until(lambda: room.eventd.metric("maru_eventd_spans_total") == room.collector.count(), "the collector's answers")
        room.eventd.kill()  # the next one gets the ring, with what was written meanwhile
        store_until(lambda: len(stored) - len(client.present(stored)) > before + 2000)
        room.eventd.begin()
        gone = until(all_are_told, "spans of all evictions, by another maru-eventd")
        assert gone > before + 2000 and len(of_reason("background")) > first
        assert subprocess.run([arguments.marudctl, "--socket", room.marud.socket, "evict", "30"],
                              stdout=subprocess.DEVNULL).returncode == 0
        until(lambda: of_reason("admin"), "the evictions of an administrator")
        until(all_are_told, "spans of all evictions, with an administrator's")
        assert client.ask(["ttl 100"]) == [0]
        short_lived = [Chunk(rng) for _ in range(20)]
        assert set(client.store(short_lived, nbytes=10_000, metadata=lambda _: b"")) == {0}
        stored.extend(short_lived)
        # A lookup of a block that has expired tells marud of it.
        until(lambda: not client.present(short_lived) and of_reason("expired"), "the evictions of blocks that have expired")
        until(all_are_told, "spans of all evictions, with those of blocks that have expired")
        assert sum(span["attributes"]["maru.blocks"] for span in of_reason("expired")) <= len(short_lived)
        for span in of_reason("background") + of_reason("admin") + of_reason("expired"):
            about = span["attributes"]
            assert not span["parent"] and not span["error"] and span["kind"] == INTERNAL and span["flags"] == 1, span
            assert 3 * about["maru.blocks"] == about["maru.pages"] and about["maru.turns"] > 0, span
            assert span["resource"]["service.name"] == "marud" and span["resource"]["maru.pool"] == "default", span
            assert "maru.keys" not in about and "thread.id" not in about, span
        ids = [span["id"] for span in room.collector.named("marud.evict")]
        assert len(set(ids)) == len(ids)


def marud_sleeps_while_eventd_is_away(arguments):
    """It tries to reach a maru-eventd once a second, and wakes for nothing else."""
    with Room(arguments, traces_marud=True) as room:
        room.eventd.kill()
        status = pathlib.Path(f"/proc/{room.marud.process.pid}/status")

        def times_it_slept():
            return int(status.read_text().split("voluntary_ctxt_switches:")[1].split()[0])

        before = times_it_slept()
        time.sleep(3)
        assert times_it_slept() - before < 150, f"{times_it_slept() - before} times in 3 s"


def each_way_to_ask_for_keys(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments) as room, room.client() as client:
        keys = [key(rng) for _ in range(4)]
        assert client.ask([f"store {one} 1000 - -" for one in (keys[0], keys[2])]) == [0, 0]
        assert call(client, CALLER, f"exists {keys[0]}") == 1
        assert call(client, CALLER, f"exists {keys[1]}") == 0
        assert call(client, CALLER, f"batch {keys[0]} {keys[1]}") == 1
        assert call(client, CALLER, f"rows {keys[0]} {keys[1]} {keys[2]}") == 2
        assert call(client, CALLER, f"which {keys[0]} {keys[2]} {keys[1]}") == 2  # one range of two
        assert call(client, CALLER, f"which {keys[1]} {keys[3]}") == 0
        spans = until(lambda: (found := of_request(room, {"maru.exists"})) and len(found) >= 6 and found, "all of them")
        spans.sort(key=lambda span: span["begin"])
        about = [(span["attributes"]["maru.keys"], span["attributes"]["maru.blocks"]) for span in spans]
        assert about == [(1, 1), (1, 0), (2, 1), (3, 2), (3, 2), (2, 0)], about
        for span in spans:
            assert span["name"] == "maru.exists" and span["kind"] == INTERNAL and span["parent"] == CALLER[36:52], span
            assert not span["error"] and span["resource"]["service.name"] == "an engine", span


def only_what_asks_for_it_is_traced(arguments):
    rng = seeded(arguments.seed)
    os.environ["MARU_TRACING_ONE_IN"] = "0"
    with Room(arguments) as room, room.client() as client:
        client.ask([f"delete {key(rng)}", f"exists {key(rng)}", f"rows {key(rng)}"])  # without a request
        call(client, CALLER[:-1] + "0", f"exists {key(rng)}")
        call(client, CALLER[:-1] + "0", f"delete {key(rng)}")  # its caller does not trace it
        for bad in ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01", CALLER.replace("0a", "0G"), "ff" + CALLER[2:],
                    "00-" + "0" * 32 + CALLER[35:], CALLER[:36] + "0" * 16 + "-01", CALLER + "-x", "x"):
            assert client.ask([f"traceparent {bad}"]) == [-22], bad
        assert client.ask([f"traceparent 01{CALLER[2:]}-more"]) == [0]  # of a later version
        call(client, CALLER, f"delete {key(rng)}")
        call(client, "-", f"delete {key(rng)}")
        assert client.ask(["request -", f"delete {key(rng)}", "end 0"]) == [0, -2, 0]
        spans = of_request(room, {"maru.delete"})
        assert len(spans) == room.collector.count() == 1, room.collector.spans


def a_request_is_a_span_above_its_calls(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments) as room, room.client() as client:
        assert client.ask([f"request {CALLER}", f"delete {key(rng)}", "end -5"]) == [0, -2, 0]
        spans = of_request(room, {"maru.request", "maru.delete"})
        request, erase = (next(span for span in spans if span["name"] == name) for name in ("maru.request", "maru.delete"))
        assert erase["parent"] == request["id"] and request["parent"] == CALLER[36:52], spans
        assert request["error"] == "Input/output error" and request["attributes"]["error.type"] == "EIO", request
        assert not erase["error"], "an absent key is no error"
        inside(request, erase)
        assert client.ask(["request -", f"delete {key(rng)}", "end 0"]) == [0, -2, 0]
        roots = until(lambda: [span for span in room.collector.named("maru.request") if not span["parent"]], "a root")
        assert len(roots[0]["trace"]) == 32 and roots[0]["trace"] != CALLER[3:35]


def many(client, rng, n):
    client.ask([f"delete {key(rng)}" for _ in range(n)])


def all_came_once(room, n):
    until(lambda: room.collector.count() >= n, f"{n} spans")
    with room.collector.lock:
        ids = {span["id"] for span in room.collector.spans}
        assert len(room.collector.spans) == len(ids) == n, f"{len(room.collector.spans)} spans, {len(ids)} different, not {n}"


def a_collector_that_is_away_gets_them_later(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments) as room, room.client() as client:
        room.collector.end()
        many(client, rng, 300)
        until(lambda: room.eventd.metric("maru_eventd_span_failures_total") >= 1, "a failure")
        until(lambda: "traces" in json.dumps(said := room.eventd.health()) and said["status"] == "degraded", "bad health")
        many(client, rng, 300)
        refusals = iter([(503, b"later"), (429, b"")])
        room.collector.answer = lambda: next(refusals, (200, b""))
        room.collector.begin()
        all_came_once(room, 600)
        until(lambda: room.eventd.health()["status"] == "healthy", "good health")
        until(lambda: room.eventd.metric("maru_eventd_spans_total") == 600, "the collector's answers")
        assert room.eventd.metric("maru_eventd_span_failures_total") >= 3
        # maru-eventd drops a request that the collector refuses, and counts the spans that it refuses of another one.
        room.collector.answer = lambda: (400, b"no such tenant")
        many(client, rng, 10)
        until(lambda: room.eventd.metric("maru_eventd_spans_rejected_total") == 10, "a refusal")
        assert "no such tenant" in json.dumps(room.eventd.health())
        partial = bytes([0x0A, 4, 0x08, 2, 0x12, 0])  # two of them
        room.collector.answer = lambda: (200, partial)
        many(client, rng, 10)
        until(lambda: room.eventd.metric("maru_eventd_spans_rejected_total") >= 12, "a part refused")


def a_collector_that_hangs_costs_spans_and_nothing_else(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments) as room, room.client() as client:
        hangs = threading.Event()
        room.collector.answer = lambda: (hangs.wait(PATIENCE) and 200, b"")
        n = 3 * RING_SPANS
        many(client, rng, n)  # it returns, whatever the collector does
        hangs.set()
        until(lambda: room.eventd.metric("maru_eventd_spans_total") + room.eventd.metric("maru_eventd_spans_lost_total") == n,
              f"{n} spans that came or are counted")
        assert room.eventd.metric("maru_eventd_spans_lost_total") >= n - 2 * RING_SPANS
        all_came_once(room, n - int(room.eventd.metric("maru_eventd_spans_lost_total")))


def each_death(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments) as room, room.client() as client:
        many(client, rng, 100)
        all_came_once(room, 100)
        until(lambda: room.eventd.metric("maru_eventd_spans_total") == 100, "an answer of the collector")
        room.eventd.kill()
        many(client, rng, 200)
        room.eventd.begin()
        all_came_once(room, 300)
        # A client that dies leaves its spans.
        room.collector.answer = lambda: (503, b"")
        dying = room.client()
        many(dying, rng, 50)
        dying.kill()
        room.collector.answer = lambda: (200, b"")
        all_came_once(room, 350)
        until(lambda: room.eventd.metric("maru_eventd_span_clients") == 1, "the end of one client")
        # marud's death is none of a reader's business.
        room.marud.process.kill()
        room.marud.process.wait()
        many(client, rng, 20)
        all_came_once(room, 370)


def hello(magic=MAGIC, version=1):
    return struct.pack("<QIIQ64s64s", magic, version, 3, os.getpid(), b"p", b"s\xff\n")


def ring(slots=64, magic=MAGIC, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, nbytes=None, written=0):
    """A memfd with a ring's header."""
    fd = os.memfd_create("ring", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096 + 128 * 64 if nbytes is None else nbytes)
    head = struct.pack("<QIIII", magic, 1, 4096, slots, 128)
    if nbytes is None or nbytes >= 4096:
        os.pwrite(fd, head, 0)
        os.pwrite(fd, struct.pack("<Q", written), 128)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def knock(room, message, *descriptors):
    """The connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE)
    connection.connect(str(room.folder / "spans.sock"))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([message], rights if descriptors else [])
    return connection


def hostile_clients_are_refused(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments, CONFIG + "clients = 4\nuser_clients = 4\n") as room, room.client() as client:
        plain = os.open(room.folder, os.O_TMPFILE | os.O_RDWR)
        rings = [plain, ring(seals=0), ring(magic=1), ring(slots=128), ring(slots=63), ring(slots=0), ring(nbytes=0),
                 ring(nbytes=4096)]
        wrong = [(b"x",), (hello(),), (hello(magic=1), ring()), (hello(version=2), ring()), (hello(), ring(), ring()),
                 (rng.randbytes(152), ring()), *[(hello(), one) for one in rings]]
        for message, *descriptors in wrong:
            with knock(room, message, *descriptors) as connection:
                assert connection.recv(1) == b"", "it is refused"
        refused = room.eventd.metric("maru_eventd_span_clients_refused_total")
        assert refused == len(wrong), refused
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
        for one in silent:
            one.connect(str(room.folder / "spans.sock"))
        # A ring with a number of spans that cannot be, and a ring full of random bytes.
        with knock(room, hello(), ring(written=1 << 50)) as liar:
            assert liar.recv(1) == b""
        fd = ring(written=64)
        with mmap.mmap(fd, 4096 + 128 * 64) as memory:
            for i in range(64):
                memory[4096 + 128 * i:4096 + 128 * (i + 1)] = struct.pack("<Q", i + 1) + rng.randbytes(120)
            with knock(room, hello(), fd):
                until(lambda: room.eventd.metric("maru_eventd_spans_lost_total") >= 40, "what is no span is counted")
        until(lambda: room.eventd.metric("maru_eventd_span_clients") == 1, "the honest client alone")
        keep = [knock(room, hello(), ring()) for _ in range(3)]
        until(lambda: room.eventd.metric("maru_eventd_span_clients") == 4, "four clients")
        with knock(room, hello(), ring()) as late:
            assert late.recv(1) == b"", "one too many"
        for connection in [*silent, *keep]:
            connection.close()
        before = room.collector.count()
        many(client, rng, 10)
        until(lambda: room.collector.count() >= before + 10, "spans of an honest client")


def one_user_leaves_room_for_others(arguments):
    rng = seeded(arguments.seed)
    with Room(arguments, CONFIG + "clients = 4\nuser_clients = 3\n") as room, room.client() as client:
        many(client, rng, 10)
        all_came_once(room, 10)
        keep = [knock(room, hello(), ring()) for _ in range(2)]
        until(lambda: room.eventd.metric("maru_eventd_span_clients") == 3, "three clients")
        with knock(room, hello(), ring()) as late:
            assert late.recv(1) == b"", "one too many of this user"
        said = f"user {os.geteuid()} has 3 already; traces.user_clients"
        until(lambda: said in room.eventd.log.read_text(), "the reason in the log")  # another thread writes it
        keep[0].close()
        until(lambda: room.eventd.metric("maru_eventd_span_clients") == 2, "two clients")
        with knock(room, hello(), ring()):
            until(lambda: room.eventd.metric("maru_eventd_span_clients") == 3, "another one in the place of the first")
        keep[1].close()


TESTS = [the_whole_way_of_a_request, evictions_are_part_of_the_request, evictions_without_a_request_are_roots,
         marud_sleeps_while_eventd_is_away, each_way_to_ask_for_keys, only_what_asks_for_it_is_traced,
         a_request_is_a_span_above_its_calls, a_collector_that_is_away_gets_them_later,
         a_collector_that_hangs_costs_spans_and_nothing_else, each_death, hostile_clients_are_refused,
         one_user_leaves_room_for_others]


def main():
    import argparse
    parser = argparse.ArgumentParser()
    for name in ("marud", "marudctl", "eventd", "client"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--decoder")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    if arguments.decoder is None and (shutil.which("protoc") is None or subprocess.run(
            [DEBIAN_PYTHON, "-c", "import google.protobuf"], stderr=subprocess.DEVNULL).returncode != 0):
        print("skipped: no protobuf (Debian: protobuf-compiler, python3-protobuf)")
        return 77
    run_tests(TESTS, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
