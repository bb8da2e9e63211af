"""Two replicas of vLLM's OpenAI server behind one pool."""
import random
import threading

from conftest import loadable
from engines import transfer
from servers import Server
from test_pool_changes import until


def test_two_replicas_answer_as_one_that_computes_everything(model, folder, shared, tokens, right):
    prompts = [tokens(n) for n in (700, 1000, 1500)]
    expected = right(prompts, 12)
    kv = transfer(shared.socket)
    with Server(model, folder, "replica 1", kv) as one, Server(model, folder, "replica 2", kv) as two:
        one.wait_ready(), two.wait_ready()
        for prompt, answer in zip(prompts, expected):
            assert one.complete(prompt, 12) == (answer, 0)
        for prompt, answer in zip(prompts, expected):
            # A router may be faster than the thread that stores: then there is less to load, and the answer is the same.
            found, cached = two.complete(prompt, 12)
            assert found == answer and cached in range(0, loadable(prompt) + 1)
        def other_finds():
            prompt = tokens(700)  # new to both, so the second can only have it from the pool
            assert one.complete(prompt, 1)[1] == 0
            return two.complete(prompt, 1)[1] > 0
        until(other_finds, "what one replica computed the other loads")

        talks = [tokens(600) for _ in range(6)]
        right_talks, wrong = right(talks, 20), []
        chance = random.Random(2)

        def client(number):
            for _ in range(6):
                at = chance.randrange(len(talks))
                answer, _ = (one, two)[chance.randrange(2)].complete(talks[at], 20)
                if answer != right_talks[at]:
                    wrong.append((number, at, answer))
        clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        assert not wrong
