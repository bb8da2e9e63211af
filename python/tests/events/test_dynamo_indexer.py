"""maru-eventd's stream in Dynamo's own indexer: after each change the indexer must know just the prefixes that the pool has.

Chunks are stored under the metadata that the vLLM connector writes. The indexer hashes the tokens itself.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy
import pytest
from with_marud import Marud

import maru
from maru.token_metadata import TokenMetadata

PATIENCE = 120
BLOCK, CHUNK = 4, 16  # tokens of the engine's blocks, and of a chunk in the pool
CONFIG = """
[eventd]
state_dir = "{folder}/state"

[http]
listen = "127.0.0.1:{http}"

[[pool]]
name = "default"
socket = "{socket}"

[[zeromq]]
name = "routers"
endpoint = "tcp://127.0.0.1:{events}"
replay = "tcp://127.0.0.1:{replay}"
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.05)
    return found


def ask(port, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Content-Type": "application/json"},
                                     data=None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text = answer.read()
    return json.loads(text) if text[:1] in b"[{" and text else text.decode()


def answers(port, path):
    try:
        ask(port, path)
    except OSError:
        return False
    return True


class Process:
    """Ends with its block."""

    def __init__(self, *command):
        self.command, self.process = command, None

    def begin(self):
        self.process = subprocess.Popen(self.command)

    def has_ended(self):
        return self.process.poll() is not None

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()


class Room:
    """marud, maru-eventd, the indexer, and a client that stores prompts as the vLLM connector does."""

    def __init__(self, marud_program, folder):
        self.marud = Marud(marud_program)
        self.folder = pathlib.Path(folder)
        self.ports = {name: free_port() for name in ("events", "replay", "http", "indexer")}
        self.prompts = {}  # tokens of each chunk's end -> the digest of its key

    def __enter__(self):
        with contextlib.ExitStack() as begun:
            self._begin(begun)
            self._begun = begun.pop_all()
        return self

    def __exit__(self, *_):
        self._begun.close()

    def _begin(self, begun):
        begun.enter_context(self.marud)
        (self.folder / "state").mkdir()
        path = self.folder / "eventd.toml"
        path.write_text(CONFIG.format(folder=self.folder, socket=self.marud.socket, **self.ports))
        self.eventd = Process(os.environ["MARU_TEST_EVENTD"], "--config", str(path))
        begun.callback(self.eventd.end)
        self.begin_eventd()
        self.indexer = Process(sys.executable, "-m", "dynamo.indexer", "--block-size", str(BLOCK), "--port",
                               str(self.ports["indexer"]))
        begun.callback(self.indexer.end)
        self.begin_indexer()
        self.client = begun.enter_context(maru.Client(str(self.marud.socket), timeout_ms=60_000))

    def begin_eventd(self):
        self.eventd.begin()
        until(lambda: self.eventd.has_ended() or answers(self.ports["http"], "/healthcheck"), "maru-eventd does not answer")
        assert not self.eventd.has_ended()

    def begin_indexer(self):
        self.indexer.begin()
        until(lambda: answers(self.ports["indexer"], "/workers"), "the indexer does not answer")
        for instance in (1, 2):  # two workers of one host, to which one feed belongs
            ask(self.ports["indexer"], "/register", {
                "instance_id": instance, "endpoint": f"tcp://127.0.0.1:{self.ports['events']}", "model_name": "model",
                "replay_endpoint": f"tcp://127.0.0.1:{self.ports['replay']}", "block_size": BLOCK, "dp_rank": 0})

    def store(self, prompt, lora=""):
        """The chunks of a prompt that are not there yet."""
        ends = range(CHUNK, len(prompt) + 1, CHUNK)
        keys = numpy.frombuffer(b"".join(hashlib.sha256(json.dumps([lora, prompt[:end]]).encode()).digest() for end in ends),
                                dtype=numpy.uint8).reshape(-1, 32)
        metadata = [TokenMetadata(BLOCK, numpy.array(prompt[end - CHUNK:end], dtype="<u4").tobytes(), lora=lora).encode()
                    for end in ends]
        with self.client.match_prefix(keys) as match:
            known = match.blocks
            buffers = self.client.alloc_batch(64, len(keys) - known, max(map(len, metadata)))
            self.client.store_chain(keys[known:], buffers, parent=keys[known - 1] if known else None,
                                    metadata=metadata[known:])
        for end, key in zip(ends, keys):
            self.prompts[lora, tuple(prompt[:end])] = key

    def delete(self, prompt, keep):
        """The chunks of a prompt behind `keep` tokens."""
        ends = range(len(prompt) // CHUNK * CHUNK, keep, -CHUNK)
        self.client.delete_batch(numpy.array([self.prompts["", tuple(prompt[:end])] for end in ends]))

    def truth(self, prompt, lora=""):
        """Leading tokens that the pool has."""
        found = 0
        for end in range(CHUNK, len(prompt) + 1, CHUNK):
            key = self.prompts.get((lora, tuple(prompt[:end])))
            if key is None or not self.client.exists_batch(key.reshape(1, 32))[0]:
                break
            found = end
        return found

    def matched(self, prompt, **more):
        """Leading tokens that the indexer knows, for each worker in the processor's memory."""
        answer = ask(self.ports["indexer"], "/query", {"token_ids": prompt, "model_name": "model", **more})
        found = []
        for instance in ("1", "2"):
            worker = answer["instances"].get(instance, {})
            longest, cpu = worker.get("longest_matched", 0), worker.get("cpu", 0)
            assert cpu == longest and worker.get("gpu", 0) == 0, worker  # its figure of disk has what is nearer, too
            found.append(longest)
        return found

    def agrees_on(self, prompts):
        until(lambda: all(self.matched(prompt) == [self.truth(prompt)] * 2 for prompt in prompts),
              lambda: [(self.matched(prompt), self.truth(prompt)) for prompt in prompts])


@pytest.fixture
def room(marud_program, tmp_path):
    with Room(marud_program, tmp_path) as made:
        yield made


def conversations(seed, count=12):
    """Prompts of which many begin alike."""
    print(f"seed {seed}")
    chosen = random.Random(seed)
    prompts = [[chosen.randrange(1 << 17) for _ in range(CHUNK * 2)] for _ in range(3)]
    while len(prompts) < count:
        prompts.append(chosen.choice(prompts) + [chosen.randrange(1 << 17) for _ in range(CHUNK * chosen.randrange(1, 4))])
    return prompts


def test_what_is_stored_and_deleted_is_known(room):
    prompts = conversations(1)
    for prompt in prompts[:8]:
        room.store(prompt)
    room.agrees_on(prompts)
    assert room.truth(prompts[0]) == 2 * CHUNK
    longest = max(prompts[:8], key=len)
    room.delete(longest, keep=len(longest) - CHUNK)
    room.agrees_on(prompts)
    for prompt in prompts:
        room.store(prompt)
    room.agrees_on(prompts)


def test_after_deaths_of_each_process(room):
    prompts = conversations(2)
    for prompt in prompts[:6]:
        room.store(prompt)
    room.agrees_on(prompts)
    room.eventd.kill()
    for prompt in prompts[6:]:
        room.store(prompt)
    longest = max(prompts, key=len)
    room.delete(longest, keep=len(longest) - CHUNK)
    room.begin_eventd()
    room.agrees_on(prompts)
    room.marud.process.kill()
    room.marud.process.wait(PATIENCE)
    room.marud.begin()
    room.store(longest)
    room.agrees_on(prompts)
    room.indexer.kill()
    room.begin_indexer()
    room.agrees_on(prompts)


def test_eviction_is_seen(room):
    """Other blocks need the whole pool; the prompts go, the indexer hears of it."""
    prompts = conversations(3)
    for prompt in prompts:
        room.store(prompt)
    room.agrees_on(prompts)
    number = 0
    while any(room.truth(prompt) for prompt in prompts):
        room.client.store_copy(f"filler {number}", bytes(256 << 10))
        number += 1
        assert number < 10_000
    room.agrees_on(prompts)


def test_an_adapter_has_prefixes_of_its_own(room):
    prompt = conversations(4)[0]
    room.store(prompt, lora="an adapter")
    until(lambda: room.matched(prompt, lora_name="an adapter") == [len(prompt)] * 2, "the adapter's prefix is not known")
    assert room.matched(prompt) == [0, 0]
