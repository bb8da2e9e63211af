"""maru-eventd and Dynamo's own indexer (ai-dynamo-runtime, from Python's package index): it is told of endpoints, asked for
prefixes, and what it answers is compared with the pool, over evictions, restarts and a relay. Then the decoders of vLLM and
SGLang (decoders.py), and Dynamo's own publisher (dynamo_publisher.py). Skipped (77) without the packages.
dynamo_test.py --marud M --eventd E --client C --python PYTHON [--seed N] [--only NAME]"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

import nats_test
from events_room import BLOCK_TOKENS, PATIENCE, Chunk, ask_replay, free_port, hashes_of, msgpack, run_tests, until
from relay_test import RelayRoom
from zeromq_test import CONFIG, Room

MODEL = "test-model"


class Indexer:
    def __init__(self, python, folder):
        self.port = free_port()
        with open(pathlib.Path(folder) / "indexer.log", "ab") as log:
            self.process = subprocess.Popen([python, "-m", "dynamo.indexer", "--port", str(self.port), "--threads", "1"],
                                            stdout=log, stderr=log)
        until(self.answers, "an answer of the indexer")

    def answers(self):
        assert self.process.poll() is None, "the indexer has ended"
        try:
            self.ask("/workers")
            return True
        except OSError:
            return False

    def ask(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Content-Type": "application/json"},
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")

    def register(self, eventd, instance=1):
        self.ask("/register", {"instance_id": instance, "endpoint": eventd.events, "replay_endpoint": eventd.replay,
                               "model_name": MODEL, "block_size": BLOCK_TOKENS, "dp_rank": 0})

    def tokens(self, prompt, tier="longest_matched", instance=1):
        """How many tokens of a prompt the worker has, of all tiers or of one."""
        answer = self.ask("/query", {"token_ids": prompt, "model_name": MODEL})
        return found_in(answer, str(instance), tier)

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE)


def found_in(answer, instance, tier):
    """Wherever the answer has the instance."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name == instance and isinstance(value, dict) and tier in value:
                return value[tier] or 0
        if str(answer.get("instance_id")) == instance and tier in answer:
            return answer[tier] or 0
        return max((found_in(value, instance, tier) for value in answer.values()), default=0)
    if isinstance(answer, list):
        return max((found_in(value, instance, tier) for value in answer), default=0)
    return 0


def prompt_of(chunks):
    return [token for chunk in chunks for token in chunk.tokens]


def chain(room, count, parent=None):
    chunks = []
    for _ in range(count):
        chunks.append(Chunk(room.rng, chunks[-1] if chunks else parent, room.rng.choice((1, 2))))
    return chunks


def matched(chunks, present):
    """Tokens of the leading chunks that are there: the truth."""
    there = {chunk.key for chunk in present}
    tokens = 0
    for chunk in chunks:
        if chunk.key not in there:
            break
        tokens += len(chunk.tokens)
    return tokens


def agrees(room, indexer, prompts, what, tier="cpu"):
    def all_agree():
        return all(indexer.tokens(prompt_of(prompt)) == indexer.tokens(prompt_of(prompt), tier)
                   == matched(prompt, room.client.present(prompt)) for prompt in prompts)
    try:
        until(all_agree, what)
    except AssertionError:
        for prompt in prompts:
            print(indexer.ask("/query", {"token_ids": prompt_of(prompt), "model_name": MODEL}),
                  matched(prompt, room.client.present(prompt)))
        raise


class DynamoRoom(Room):
    def __enter__(self):
        super().__enter__()
        self.indexer = Indexer(self.arguments.python, self.folder.name)
        return self

    def __exit__(self, *about):
        self.indexer.end()
        super().__exit__(*about)


def test_prefixes_are_found(arguments):
    with DynamoRoom(arguments) as room:
        prompts = [chain(room, 10) for _ in range(5)]
        for prompt in prompts[:3]:
            room.client.store(prompt)
        room.indexer.register(room.eventd)
        agrees(room, room.indexer, prompts, "blocks that were there")
        for prompt in prompts[3:]:
            room.client.store(prompt)
        agrees(room, room.indexer, prompts, "blocks that came")
        for prompt in prompts:
            room.client.delete(prompt[4:][::-1])
        agrees(room, room.indexer, prompts, "blocks that went")
        assert room.indexer.tokens(prompt_of(prompts[0])) > 0


def test_restarts(arguments):
    with DynamoRoom(arguments) as room:
        prompts = [chain(room, 8) for _ in range(3)]
        for prompt in prompts:
            room.client.store(prompt)
        room.indexer.register(room.eventd)
        agrees(room, room.indexer, prompts, "blocks")
        room.eventd.kill()
        room.client.delete(prompts[0][3:][::-1])
        prompts.append(chain(room, 5))
        room.client.store(prompts[-1])
        room.eventd.begin()
        agrees(room, room.indexer, prompts, "after a restart of eventd")
        room.marud.process.kill()
        room.marud.process.wait()
        room.client.delete(prompts[1][3:][::-1])
        room.marud.begin()
        agrees(room, room.indexer, prompts, "after a restart of marud")


def test_evictions(arguments):
    with DynamoRoom(arguments, size="8MiB", region_bytes="256KiB", more="high_watermark = 0.6\nlow_watermark = 0.4") as room:
        room.indexer.register(room.eventd)
        prompts = []
        for _ in range(40):
            prompts.append(chain(room, 50))
            room.client.store(prompts[-1])
        agrees(room, room.indexer, prompts, "what was not evicted")
        assert any(room.indexer.tokens(prompt_of(prompt)) < len(prompt_of(prompt)) for prompt in prompts)


def test_two_workers_of_one_host(arguments):
    with DynamoRoom(arguments) as room:
        prompt = chain(room, 10)
        room.client.store(prompt)
        for instance in (1, 2):
            room.indexer.register(room.eventd, instance)
        until(lambda: all(room.indexer.tokens(prompt_of(prompt), "cpu", instance) == len(prompt_of(prompt))
                          for instance in (1, 2)), "both have the pool's blocks")


def test_engine_and_pool_are_one_worker(arguments):
    with RelayRoom(arguments, rank=0) as room:
        indexer = Indexer(arguments.python, room.folder.name)
        try:
            indexer.register(room.eventd)
            with room.subscriber() as router:
                room.joined(router)
            prompt = chain(room, 10)
            for chunk in prompt[:5]:
                room.engine.store(chunk)
            room.client.store(prompt)
            whole, in_gpu = prompt_of(prompt), prompt_of(prompt[:5])
            until(lambda: (indexer.tokens(whole), indexer.tokens(whole, "gpu")) == (len(whole), len(in_gpu)), "both tiers")
            for chunk in reversed(prompt[:5]):
                room.engine.remove(chunk)
            until(lambda: (indexer.tokens(whole), indexer.tokens(whole, "gpu"), indexer.tokens(whole, "cpu"))
                  == (len(whole), 0, len(whole)), "the pool's tier alone")
        finally:
            indexer.end()


def test_decoders_of_engines_read_the_batches(arguments):
    with Room(arguments) as room, room.subscriber() as router:
        chunks = chain(room, 20)
        room.client.store(chunks, metadata=lambda chunk: chunk.metadata(lora="adapter", salt="salt"))
        router.settles_on(hashes_of(chunks), "blocks")
        room.client.delete(chunks[10:][::-1])
        router.settles_on(hashes_of(chunks[:10]), "fewer of them")
        batches = [payload for _, payload in ask_replay(room.context, room.eventd.replay, 0, True)]
        decoded = subprocess.run([arguments.python, pathlib.Path(__file__).parent / "decoders.py"], check=True, text=True,
                                 stdout=subprocess.PIPE, input="".join(batch.hex() + "\n" for batch in batches)).stdout
        of_vllm, of_sglang = [], []
        for line in decoded.splitlines():
            one, other = json.loads(line)
            of_vllm += one
            of_sglang += other
        assert of_vllm == of_sglang
        stored = [one for event in of_vllm for one in event[0]]
        assert stored == [one for chunk in chunks for one in chunk.hashes]
        assert [token for event in of_vllm for token in event[2]] == prompt_of(chunks)


class Publisher:
    """An engine under Dynamo, with Dynamo's own KvEventPublisher."""

    def __init__(self, python, port):
        script = pathlib.Path(__file__).resolve().parent / "dynamo_publisher.py"
        self.process = subprocess.Popen([python, script, "42", str(BLOCK_TOKENS)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env={**os.environ, "NATS_SERVER": f"nats://127.0.0.1:{port}"})
        self.expect("ready")

    def expect(self, word):
        line = self.process.stdout.readline().strip()
        assert line == word, f"the publisher says {line!r}, not {word!r}"

    def publish(self, **event):
        self.process.stdin.write(json.dumps(event) + "\n")
        self.process.stdin.flush()
        self.expect("done")

    def end(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


def without_what_differs(subject, message):
    """A message without its sender, its time and its numbers: the names stay, in their order."""
    envelope = msgpack.unpackb(message, object_pairs_hook=list)
    outer = dict(envelope)
    inner = msgpack.unpackb(outer["payload"], object_pairs_hook=list)
    for event in inner:
        event[1] = (event[1][0], {"device": "a tier", "host_pinned": "a tier"}[event[1][1]])
        event[3] = (event[3][0], [(name, type(value) if name == "event_id" else value) for name, value in event[3][1]])
    assert all(isinstance(outer[name], int) for name in ("publisher_id", "sequence", "published_at"))
    return subject, [name for name, _ in envelope], outer["topic"], inner


def test_messages_are_those_of_dynamos_own_publisher(arguments):
    with nats_test.NatsRoom(arguments, nats_test.DYNAMO) as room:
        nats = nats_test.Nats(room.port, "namespace.>")
        # What maru-eventd publishes at its start is everything, which is nothing here.
        until(lambda: [payload for _, payload in nats.pump()], "a first message of maru-eventd")
        parent = Chunk(room.rng, blocks=2)
        chunk = Chunk(room.rng, parent, blocks=1)
        publisher = Publisher(arguments.python, room.port)

        def next_messages(count):
            found = []
            until(lambda: found.extend(nats.pump()) or len(found) >= count, f"{count} messages")
            return [without_what_differs(*one) for one in found]

        for one in (parent, chunk):
            room.client.store([one])
            of_eventd = next_messages(1)
            above = one.parent.hashes[-1] if one.parent else None
            publisher.publish(kind="stored", tokens=one.tokens, hashes=one.hashes, parent=above)
            assert next_messages(1) == of_eventd
        room.client.delete([chunk])
        of_eventd = next_messages(1)
        publisher.publish(kind="removed", hashes=chunk.hashes)
        assert next_messages(1) == of_eventd
        publisher.end()


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--eventd", "--client", "--python"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    if subprocess.run([arguments.python, "-c", "import dynamo.indexer, msgspec"], capture_output=True).returncode != 0:
        print(f"skipped: {arguments.python} lacks dynamo.indexer (ai-dynamo-runtime) or msgspec")
        sys.exit(77)
    run_tests(TESTS, arguments)


if __name__ == "__main__":
    main()
