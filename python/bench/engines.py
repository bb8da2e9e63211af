"""How soon vLLM answers: the time to the first token of prompts that are cold, in the engine's own prefix cache, in marud from
another process, and in the caches of others that run on a processor.

A small Llama with random weights computes in bfloat16. The engines are processes, and take turns; each prompt is new. A row has
medians; a ratio is the median of the rounds' ratios. "Of processors" is the time of all threads of the engine, with what it
stores after the answer.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "python" / "tests" / "live"), str(TREE / "python" / "bench"), str(TREE / "tests" / "api")]
import engine_peers  # noqa: E402
import small_llama  # noqa: E402
from engines import Engine, transfer  # noqa: E402
from engines_picture import markdown, picture  # noqa: E402
from with_marud import Marud  # noqa: E402

VOCABULARY = 8192
MODEL = dict(hidden=512, layers=8, heads=8, kv_heads=4, inner=1536, vocabulary=VOCABULARY, tokens=16384, dtype="bfloat16",
             spread=1.0)
SHOWN = {"cold": "cold, no connector", "storing": "cold, and stored in marud", "own": "own prefix cache",
         "marud": "marud, stored by another process", **{name: peer.words for name, peer in engine_peers.PEERS.items()}}

STEPS = 180  # of an answer in which nothing is stored or loaded
EMPTY = "save_kv_layer"  # returns at once: what a call of it takes is the looks at the clocks, which all calls have


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

    def through(self, pair, prompt):
        """Answers of the one that stores, and of the one that loads."""
        one, other = pair
        stored = one.answers([prompt], 1)
        settled = one.ask("settle")
        stored["processor_seconds"] += settled["processor_seconds"]  # what is stored beside the answer, and after it
        if not settled["known"]:
            one.answers([self.prompt(16)], 1)  # a step more, in which others learn of what they have stored
            time.sleep(0.5)
        if one is other:
            one.ask("forget")
        return stored, other.answers([prompt], 1)

    def first_tokens(self):
        """By tokens of a prompt and name: lists of seconds, and of seconds of processors."""
        names = ["cold", "storing", "own", "marud"]
        plain, marud = self.start("plain"), (self.maru("maru 1"), self.maru("maru 2"))
        peers, self.missing = engine_peers.begin(self, self.options.only)
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
        shares, methods = [], {}
        for _ in range(self.options.rounds):
            answer = one.answers([self.prompt(64)], STEPS)  # less than a chunk in all
            spent = one.ask("spent")["spent"]
            looking = spent[EMPTY][2] / spent[EMPTY][0]
            own = {name: (processor - calls * looking) / STEPS for name, (calls, _, processor) in spent.items()}
            step = answer["processor_seconds"] / STEPS
            shares.append((sum(own.values()) / step, sum(own.values()), step))
            for name, seconds in own.items():
                methods.setdefault(name, []).append(seconds)
        share, own, step = (statistics.median(column) for column in zip(*shares))
        print(f"\na step in which nothing is stored or loaded: of {step * 1e6:.0f} us of processors the connector takes "
              f"{own * 1e6:.0f}, {100 * share:.2f} %")
        for name, seconds in sorted(methods.items(), key=lambda item: -statistics.median(item[1])):
            print(f"  {name:34}{statistics.median(seconds) * 1e6:9.1f} us")
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
        """Conversations that go to one of two engines by chance: tokens of prompts and answers a second. Two without connector
        and two with marud take turns."""
        few = dict(num_gpu_blocks_override=72, max_model_len=6144)
        pairs = {name: [begin(f"turns {name} {i}", **few) for i in range(2)]
                 for name, begin in {"no connector": self.start, "marud": self.maru}.items()}
        for engine in sum(pairs.values(), []):
            engine.answers([self.prompt(1000)], 4)
        beginnings = [self.prompt(1500) for _ in range(12)]
        talks = {name: list(beginnings) for name in pairs}
        spent = {name: [0.0, 0, 0] for name in pairs}  # seconds, tokens, those of them that were cached
        for _ in range(3 * len(beginnings)):
            at, which, more = self.chance.randrange(len(beginnings)), self.chance.randrange(2), self.prompt(200)
            for name in self.chance.sample(list(pairs), len(pairs)):
                prompt = talks[name][at]
                answer = pairs[name][which].answers([prompt], 32)
                noted = answer["seconds"], len(prompt) + 32, answer["cached"][0]
                spent[name] = [total + one for total, one in zip(spent[name], noted)]
                talks[name][at] = prompt + answer["tokens"][0] + more
                pairs[name][which].ask("settle")
        rates = {name: tokens / seconds for name, (seconds, tokens, _) in spent.items()}
        for name, (_, tokens, cached) in spent.items():
            print(f"conversations, {name:14} {rates[name]:9.0f} tokens/s, {100 * cached / tokens:.0f} % of them cached")
        print(f"conversations: {rates['marud'] / rates['no connector']:.2f} times as fast with marud")


def table(found, missing):
    medians = {n: {name: tuple(statistics.median(column) for column in zip(*noted)) for name, noted in of.items()}
               for n, of in found.items()}
    sizes = list(found)
    print(f"{'':62}" + "".join(f"{n:>10}" for n in sizes) + "  tokens")
    for name in next(iter(found.values())):
        print(f"{SHOWN[name]:62}" + "".join(f"{medians[n][name][0] * 1e3:10.1f}" for n in sizes) + "  ms to the first token")
    ratios = [("marud", "own", 0), ("marud", "cold", 0), ("storing", "cold", 0), ("storing", "cold", 1)]
    for one, other, column in ratios + [("marud", peer, 0) for peer in engine_peers.PEERS if peer in medians[sizes[0]]]:
        # Of each round by itself: the machine may have had other work in some.
        text = "".join("{:10.2f}".format(statistics.median(
            a[column] / b[column] for a, b in zip(found[n][one], found[n][other]))) for n in sizes)
        print(f"{SHOWN[one]} / {SHOWN[other]}"[:61].ljust(62) + text + ("  of processors" if column else ""))
    for name, reason in missing.items():
        print(f"not run: {SHOWN[name]}: {reason}")
    return {n: {name: values[0] for name, values in of.items()} for n, of in medians.items()}


def main():
    arguments = argparse.ArgumentParser("bench-engines", description=__doc__,
                                        formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=[1024, 4096, 8192])
    arguments.add_argument("--only", type=lambda text: text.split(","), metavar="PEER,...",
                           help="of the peers: " + ", ".join([*engine_peers.PEERS, "none"]))
    arguments.add_argument("--svg", metavar="FILE", help="a picture, and beside it the table in Markdown, FILE with .md")
    arguments.add_argument("--json", metavar="FILE")
    arguments.add_argument("--verbose", action="store_true", help="each answer, at once")
    arguments.add_argument("--turns", action="store_true", help="also conversations of several turns between two engines, with "
                           "a working set larger than the cache of each")
    arguments.add_argument("--steps", action="store_true", help="also what the connector adds to a step in which nothing is "
                           "stored or loaded, and where the time of a hit goes")
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
        pathlib.Path(options.svg).with_suffix(".md").write_text(markdown(medians, SHOWN))


if __name__ == "__main__":
    main()
