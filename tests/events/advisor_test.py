"""The storage advisor of docs/examples against a pool: its tree must answer as maru_which() does, and sort prefixes rightly.

  advisor_test.py --marud PROGRAM --eventd PROGRAM --client PROGRAM [--seed N]
"""
import argparse
import importlib.util
import pathlib
import sys
import tempfile
import time

from events_room import BLOCK_TOKENS, Chunk, Client, Eventd, run_tests, seeded, until
from with_marud import Marud

import msgpack
import zmq

CONFIG = """
[eventd]
state_dir = "{folder}/state"

[[pool]]
name = "default"
socket = "{socket}"

[[zeromq]]
name = "advisor"
endpoint = "tcp://127.0.0.1:{events}"
replay = "tcp://127.0.0.1:{replay}"
"""
ADVISOR = pathlib.Path(__file__).resolve().parents[2] / "docs/examples/events/storage_advisor.py"


def load():
    about = importlib.util.spec_from_file_location("storage_advisor", ADVISOR)
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


def chain(rng, length, parent=None):
    chunks = []
    for _ in range(length):
        parent = Chunk(rng, parent, blocks=2)
        chunks.append(parent)
    return chunks


def known(tree, chunks):
    """Leading chunks whose blocks all hang together from the beginning of the prompt."""
    parent, count = None, 0
    for chunk in chunks:
        for one in chunk.hashes:
            if one not in tree.blocks or tree.blocks[one].parent != parent:
                return count
            parent = one
        count += 1
    return count


def test_the_tree_answers_as_the_pool(arguments):
    rng, advisor = seeded(arguments.seed), load()
    with tempfile.TemporaryDirectory() as folder, Marud(arguments.marud) as marud:
        (pathlib.Path(folder) / "state").mkdir()
        with Eventd(arguments.eventd, marud, CONFIG, folder) as eventd, Client(arguments.client, marud) as client:
            tree = advisor.Tree()
            stream = advisor.Stream(zmq.Context.instance(), eventd.events, eventd.replay, tree)
            prompts = [chain(rng, rng.randrange(1, 6)) for _ in range(20)]
            prompts += [prompt + chain(rng, 2, prompt[-1]) for prompt in prompts[:5]]

            def agrees():
                stream.read(time.monotonic() + 0.02)
                return all(known(tree, prompt) == client.which(prompt) for prompt in prompts)

            for turn in range(12):
                prompt = rng.choice(prompts)
                if rng.random() < 0.6:
                    client.store(prompt)
                else:
                    client.delete(prompt[:rng.randrange(len(prompt)):-1])
                if turn == 6:
                    eventd.kill()
                    client.store(rng.choice(prompts))
                    eventd.begin()
                until(agrees, "an advisor that answers as the pool")
            longest = max(prompts, key=len)  # whatever was chosen, something is stored, and goes
            client.store(longest)
            until(agrees, "an advisor that knows a prompt")
            client.delete(longest[:0:-1])
            until(agrees, "an advisor that knows that most of a prompt has gone")
            there = {one for prompt in prompts for chunk in prompt[:client.which(prompt)] for one in chunk.hashes}
            advice = tree.advice(time.time(), window_s=3600)
            assert sum(blocks for _, blocks, _ in advice["hot"]) == len(there), advice
            assert sum(tokens for _, _, tokens in advice["hot"]) == len(there) * BLOCK_TOKENS, advice
            assert not advice["cold"] and not advice["orphaned"], advice
            assert len(tree.advice(time.time() + 7200, window_s=3600)["cold"]) == len(advice["hot"])
            stream.close()


def test_orphans_are_told_apart(_arguments):
    """A pool's own stream has none; that of an engine may, whose router did not see the beginning."""
    tree = load().Tree()

    def stored(names, parent):
        return {"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "block_size": 4,
                "token_ids": [0] * 4 * len(names), "lora_id": None, "medium": "GPU", "lora_name": None}

    tree.apply(msgpack.packb([100.0, [stored([1, 2], None), stored([8, 9], 7), stored([3], 2)], 0]))
    tree.apply(msgpack.packb([200.0, [stored([20], None)], 0]))
    assert tree.advice(210.0, 60) == {"hot": [(20, 1, 4)], "cold": [(1, 3, 12)], "orphaned": [(8, 2, 8)]}
    tree.apply(msgpack.packb([220.0, [stored([7], None), {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}], 0]))
    assert tree.advice(230.0, 60) == {"hot": [(7, 3, 12), (20, 1, 4)], "cold": [(1, 2, 8)], "orphaned": []}
    tree.apply(msgpack.packb([230.0, [{"type": "AllBlocksCleared"}], 0]))
    assert not any(tree.advice(230.0, 60).values())


def main():
    parser = argparse.ArgumentParser()
    for name in ("marud", "eventd", "client"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only")
    run_tests([test_orphans_are_told_apart, test_the_tree_answers_as_the_pool], parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
