"""Servers of LMCache as processes, and an engine's side of them: the client that LMCache's own benchmark uses."""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import torch

PATIENCE = 600  # seconds, for a server that begins; the machine may be slow
CHUNK = 256  # tokens
LAYERS, BLOCK, HEADS, HEAD = 8, 16, 4, 64
CHUNK_BYTES = 2 * LAYERS * CHUNK * HEADS * HEAD * 2  # 2 MiB


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(marud=None):
    return {**os.environ, "LMCACHE_TRACK_USAGE": "false", "OMP_NUM_THREADS": "1",
            **({} if marud is None else {"MARU_SOCKET": str(marud.socket)})}


OURS = ("-m", "maru_lmcache.mp", "--maru-timeout-ms", "60000")
LMCACHE = ("-c", "import sys; from lmcache.cli.main import main; sys.argv[0] = 'lmcache'; sys.exit(main())")
STOCK = (*LMCACHE, "server", "--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "LRU")


class Server:
    """program: OURS or STOCK; options: more of the command line."""

    def __init__(self, marud, log, *options, program=OURS, mode="auto"):
        self.port, self.http_port = free_port(), free_port()
        self.url, self.rpc_url = f"http://127.0.0.1:{self.http_port}", f"tcp://127.0.0.1:{self.port}"
        self.command = [sys.executable, *program, "--host", "127.0.0.1", "--port", str(self.port), "--http-port",
                        str(self.http_port), "--chunk-size", str(CHUNK), "--supported-transfer-mode", mode, *options]
        self.environment, self.log = environment(marud), log

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError("the server did not start:\n" + self.text())
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def text(self):
        return self.log.read_text(errors="replace")

    def answers(self):
        try:
            return self.ask("/healthcheck") is not None
        except OSError:
            return False

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        return json.loads(text) if text[:1] in "{[" else text

    def l1(self):
        return self.ask("/status")["storage_manager"]["l1_manager"]

    def wait_until_stored(self):
        """A store is answered before it is finished."""
        deadline = time.monotonic() + 60
        while self.l1()["staging_object_count"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)


class Engine:
    """One worker whose KV cache has known bytes: those of sequence n say n, and its layer and place."""

    def __init__(self, server, mode, chunks=2, blocks=None):
        from lmcache.cli.commands.bench.server_bench import helpers
        from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
        from lmcache.cli.commands.bench.server_bench.config import BenchConfig
        self.server, self.chunks, self.requests = server, chunks, 0
        helpers._wait_for_result.__defaults__ = PATIENCE, ()  # 10 s, too little for a busy machine
        blocks = blocks or 4 * chunks * CHUNK // BLOCK
        self.client = ServerBenchClient(BenchConfig(
            rpc_url=server.rpc_url, http_url=server.url, mode="cpu", transfer_mode=mode, tp_size=1, use_mla=False,
            num_tokens=chunks * CHUNK, kvcache_shape_spec=f"(2,{blocks},{BLOCK},{HEADS},{HEAD}):float16:{LAYERS}",
            num_blocks=blocks, block_size=BLOCK), log=lambda text: None)

    def __enter__(self):
        self.client.start()
        return self

    def __exit__(self, *_):
        self.client.close()

    def request(self, sequence):
        self.requests += 1
        return self.client.create_request(sequence, f"{os.getpid()}-{id(self)}-{sequence}-{self.requests}", "test")

    def blocks_of(self, request):
        layers = self.client._workers[0].kv_caches.values()
        return [layer[:, request.block_offset:request.block_offset + request.num_blocks] for layer in layers]

    def computed(self, sequence, layer, shape):
        values = torch.arange(shape.numel(), dtype=torch.int32) * 31 + sequence * 7919 + layer * 131
        return (values % 30011).to(torch.int16).view(torch.float16).reshape(shape)

    def store(self, sequence):
        request = self.request(sequence)
        for number, layer in enumerate(self.blocks_of(request)):
            layer.copy_(self.computed(sequence, number, layer.shape))
        assert self.client.store(request, 0, request.num_full_tokens).succeeded
        self.server.wait_until_stored()
        self.client.end_session(request)

    def look_up(self, sequence):
        """The request, and how many of its chunks are there; they stay locked."""
        request = self.request(sequence)
        found = self.client.lookup(request)
        assert found.succeeded
        return request, found.hit_chunks

    def load(self, sequence):
        """How many chunks were there and loaded; asserts that their bytes are right."""
        request, hits = self.look_up(sequence)
        wanted = [self.computed(sequence, number, layer.shape) for number, layer in enumerate(self.blocks_of(request))]
        for layer in self.blocks_of(request):
            layer.zero_()
        if hits:
            assert self.client.retrieve(request, 0, hits * CHUNK).succeeded
            for layer, right in zip(self.blocks_of(request), wanted):
                count = hits * CHUNK // BLOCK
                assert torch.equal(*(one[:, :count].contiguous().view(torch.int16) for one in (layer, right)))
        self.client.end_session(request)
        return hits
