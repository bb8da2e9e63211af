"""How soon vLLM answers: the time to the first token of prompts that are cold, in the engine's own prefix cache, in marud from
another process, and in the caches of others that run on a processor.

A small Llama with random weights computes in bfloat16. The engines are processes, and take turns; each prompt is new. A row has
medians. The first columns are seconds on the clock, the rest what the same prompt took of processors, in all threads.

    scripts/bench-engines [--rounds N] [--tokens N,N,...] [--only NAME,NAME,...] [--svg FILE] [--json FILE]
                          [--turns] [--steps]

--turns   also conversations of several turns between two engines, with a working set larger than the cache of each
--steps   also what the connector adds to a step in which nothing is stored or loaded, and where the time of a hit goes
"""
import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "python" / "tests" / "live"), str(TREE / "python" / "bench"), str(TREE / "tests" / "api")]
import small_llama  # noqa: E402
from engines import Engine, EngineFailed, transfer  # noqa: E402
from engines_picture import picture  # noqa: E402
from with_marud import Marud  # noqa: E402

VOCABULARY, CHUNK = 8192, 256
MODEL = dict(hidden=512, layers=8, heads=8, kv_heads=4, inner=1536, vocabulary=VOCABULARY, tokens=16384, dtype="bfloat16",
             spread=1.0)
SHOWN = {"cold": "cold, no connector", "own": "own prefix cache", "marud": "marud, stored by another process",
         "storing": "cold, and stored in marud", "files": "vLLM's ExampleConnector, files in /dev/shm, another process",
         "lmcache": "LMCache's server with its own DRAM, another process"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Bench:
    def __init__(self, folder, running, model, options):
        self.folder, self.running, self.model, self.options = folder, running, model, options
        self.chance = random.Random(options.seed)
        self.engines = contextlib.ExitStack()
        self.missing = {}

    def start(self, name, kv=None, environ=None, **more):
        path = os.pathsep.join([str(TREE / "python" / "bench"), str(TREE / "python" / "tests" / "live")])
        return self.engines.enter_context(
            Engine(self.model, self.folder, name, kv, dtype="bfloat16", environ={"PYTHONPATH": path, **(environ or {})},
                   **{"max_model_len": 12288, "max_num_batched_tokens": 4096, **more}))

    def maru(self, name, **more):
        kv = transfer(self.running.socket, module="measured_connectors", connector="MeasuredConnector")
        return self.start(name, kv, **more)

    def prompt(self, n):
        return [self.chance.randrange(VOCABULARY) for _ in range(n)]

    def peers(self):
        """By name: the engine that stores, and the one that loads."""
        wanted = {"files": self.files, "lmcache": self.lmcache}
        found = {}
        for name, begin in wanted.items():
            if self.options.only and name not in self.options.only:
                continue
            try:
                found[name] = begin()
                prompt = self.prompt(600)
                answers = self.through(found[name], prompt)
                if not answers[1]["cached"][0]:
                    raise EngineFailed("it finds nothing of what was stored")
                if answers[0]["tokens"] != answers[1]["tokens"]:
                    raise EngineFailed("it answers otherwise from its cache")
            except EngineFailed as error:
                found.pop(name, None)
                self.missing[name] = str(error).strip().splitlines()[-1][:200]
        return found

    def files(self):
        kv = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
              "kv_connector_extra_config": {"shared_storage_path": tempfile.mkdtemp(dir="/dev/shm", prefix="maru-bench-")}}
        self.engines.callback(subprocess.run, ["rm", "-r", kv["kv_connector_extra_config"]["shared_storage_path"]])
        return self.start("files 1", kv), self.start("files 2", kv)

    def lmcache(self):
        """A server beside the engines, as its users have it."""
        if importlib.util.find_spec("lmcache") is None:
            raise EngineFailed("the package lmcache is not in this environment")
        port, http_port = free_port(), free_port()
        log = open(self.folder / "lmcache-server.log", "wb")
        program = pathlib.Path(sys.executable).with_name("lmcache")
        server = subprocess.Popen(
            [program, "server", "--l1-size-gb", "2", "--no-l1-use-lazy", "--eviction-policy", "LRU",
             "--supported-transfer-mode", "auto", "--chunk-size", str(CHUNK), "--port", str(port),
             "--http-port", str(http_port)], stdout=log, stderr=log, env={**os.environ, "LMCACHE_TRACK_USAGE": "false"})
        self.engines.callback(server.wait)
        self.engines.callback(server.terminate)
        deadline = time.monotonic() + 120
        while not is_open(http_port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise EngineFailed("its server did not start: " + pathlib.Path(log.name).read_text()[-300:])
            time.sleep(0.2)
        kv = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
              "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": port}}
        return self.start("lmcache 1", kv), self.start("lmcache 2", kv)

    def through(self, pair, prompt):
        """Answers of the one that stores, and of the one that loads."""
        one, other = pair
        stored = one.answers([prompt], 1)
        if not one.ask("settle")["known"]:
            one.answers([self.prompt(16)], 1)  # a step more, in which others learn of what they have stored
            time.sleep(0.5)
        return stored, other.answers([prompt], 1)

    def first_tokens(self):
        """By tokens of a prompt and name: lists of seconds, and of seconds of processors."""
        names = ["cold", "own", "marud", "storing"]
        plain, marud = self.start("plain"), (self.maru("maru 1"), self.maru("maru 2"))
        peers = self.peers()
        for engine in (plain, *marud):
            engine.answers([self.prompt(max(self.options.tokens))], 1)  # what a first prompt costs alone
            engine.ask("settle")
        found = {n: {name: [] for name in [*names, *peers]} for n in self.options.tokens}

        def note(n, name, answer):
            found[n][name].append((answer["seconds"], answer["processor_seconds"]))
            if self.options.verbose:
                print(f"# {n} {name} {answer['seconds']:.3f} {answer['processor_seconds']:.3f} {answer['cached'][0]}",
                      file=sys.stderr, flush=True)

        for _ in range(self.options.rounds):
            for n in self.options.tokens:
                turns = ["plain", "marud", *peers]
                self.chance.shuffle(turns)
                for turn in turns:
                    prompt = self.prompt(n)
                    if turn == "plain":
                        note(n, "cold", plain.answers([prompt], 1))
                        note(n, "own", plain.answers([prompt], 1))
                    elif turn == "marud":
                        stored, loaded = self.through(marud, prompt)
                        note(n, "storing", stored)
                        note(n, "marud", loaded)
                    else:
                        note(n, turn, self.through(peers[turn], prompt)[1])
        return found

    def steps(self):
        """What of a step is spent in the connector when nothing is stored or loaded, and what of a hit."""
        one, other = self.maru("steps 1"), self.maru("steps 2")
        one.answers([self.prompt(64)], 20)
        one.ask("spent")
        shares = []
        for _ in range(self.options.rounds):
            answer = one.answers([self.prompt(64)], 180)  # less than a chunk in all
            spent = one.ask("spent")["spent"]
            own = sum(processor for _, _, processor in spent.values())
            shares.append((own / answer["processor_seconds"], own / 180, answer["processor_seconds"] / 180))
        share, own, step = (statistics.median(column) for column in zip(*shares))
        print(f"\na step in which nothing is stored or loaded: of {step * 1e6:.0f} us of processors the connector takes "
              f"{own * 1e6:.0f}, {100 * share:.2f} %")
        n = max(self.options.tokens)
        totals = {}
        for _ in range(self.options.rounds):
            answers = self.through((one, other), self.prompt(n))
            for name, (_, seconds, _) in other.ask("spent")["spent"].items():
                totals.setdefault(name, []).append(seconds)
            totals.setdefault("all of the answer", []).append(answers[1]["seconds"])
        print(f"where a hit of {n} tokens goes, in ms on the clock:")
        for name, seconds in sorted(totals.items(), key=lambda item: -statistics.median(item[1])):
            print(f"  {name:34}{statistics.median(seconds) * 1e3:9.2f}")

    def turns(self):
        """Conversations that go to one of two engines by chance: tokens of prompts and answers a second."""
        few = dict(num_gpu_blocks_override=72, max_model_len=6144)
        rates = {}
        for name, begin in {"no connector": self.start, "marud": self.maru}.items():
            pair = [begin(f"turns {name} {i}", **few) for i in range(2)]
            chance, talks, seconds, tokens, cached = random.Random(5), [self.prompt(1500) for _ in range(12)], 0.0, 0, 0
            for engine in pair:
                engine.answers([self.prompt(1000)], 4)
            for _ in range(3 * len(talks)):
                at = chance.randrange(len(talks))
                answer = chance.choice(pair).answers([talks[at]], 32)
                seconds, tokens = seconds + answer["seconds"], tokens + len(talks[at]) + 32
                cached += answer["cached"][0]
                talks[at] = talks[at] + answer["tokens"][0] + self.prompt(200)
                for engine in pair:
                    engine.ask("settle")
            rates[name] = tokens / seconds
            print(f"conversations, {name:14} {tokens / seconds:9.0f} tokens/s, {100 * cached / tokens:.0f} % of them cached")
            for engine in pair:
                engine.end()
        print(f"conversations: {rates['marud'] / rates['no connector']:.2f} times as fast with marud")


def table(found, missing):
    medians = {n: {name: tuple(statistics.median(column) for column in zip(*noted)) for name, noted in of.items()}
               for n, of in found.items()}
    sizes = list(found)
    print(f"{'':62}" + "".join(f"{n:>10}" for n in sizes) + "  tokens")
    for name in next(iter(found.values())):
        print(f"{SHOWN[name]:62}" + "".join(f"{medians[n][name][0] * 1e3:10.1f}" for n in sizes) + "  ms to the first token")
    ratios = [("marud", "own", 0), ("marud", "cold", 0), ("storing", "cold", 0), ("storing", "cold", 1)]
    for one, other, column in ratios + [("marud", peer, 0) for peer in ("files", "lmcache") if peer in medians[sizes[0]]]:
        # Of each round by itself: the machine may have had other work in some.
        text = "".join("{:10.2f}".format(statistics.median(
            a[column] / b[column] for a, b in zip(found[n][one], found[n][other]))) for n in sizes)
        print(f"{SHOWN[one]} / {SHOWN[other]}"[:61].ljust(62) + text + ("  of processors" if column else ""))
    for name, reason in missing.items():
        print(f"not run: {SHOWN[name]}: {reason}")
    return {n: {name: values[0] for name, values in of.items()} for n, of in medians.items()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=[1024, 2048, 4096, 8192])
    arguments.add_argument("--only", type=lambda text: text.split(","), help="of the peers: files, lmcache, none")
    arguments.add_argument("--svg")
    arguments.add_argument("--json")
    arguments.add_argument("--verbose", action="store_true", help="each answer, at once")
    arguments.add_argument("--turns", action="store_true")
    arguments.add_argument("--steps", action="store_true")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="maru-bench-engines-") as folder, \
            Marud(os.environ["MARU_TEST_MARUD"], size="3GiB", page_bytes="256KiB", region_bytes="64MiB") as running:
        bench = Bench(pathlib.Path(folder), running, small_llama.make(pathlib.Path(folder) / "model", **MODEL), options)
        with bench.engines:
            found = bench.first_tokens()
            medians = table(found, bench.missing)
            if options.steps:
                bench.steps()
        if options.turns:
            bench.engines = contextlib.ExitStack()
            with bench.engines:
                bench.turns()
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(medians))
    if options.svg:
        pathlib.Path(options.svg).write_text(picture(medians, SHOWN))


if __name__ == "__main__":
    main()
