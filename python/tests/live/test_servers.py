"""Two replicas of vLLM's OpenAI server behind one pool."""
import random
import threading

from conftest import loadable
from engines import transfer, until
from servers import Server


def test_two_replicas_answer_as_an_engine_that_computes_everything(model, folder, shared, tmp_path, tokens, right):
    prompts = [tokens(n) for n in (700, 1000, 1500)]
    expected = right(prompts, 12)
    switch = tmp_path / "nonsense"
    kv = transfer(shared.socket, module="watched_connectors", connector="WrongConnector")
    environ = {"MARU_LIVE_WRONG_WHILE": str(switch)}
    with Server(model, folder, "replica 1", kv, environ) as one, Server(model, folder, "replica 2", kv, environ) as two:
        one.wait_ready(), two.wait_ready()
        for prompt, answer in zip(prompts, expected):
            assert one.complete(prompt, 12) == (answer, 0)
        for prompt, answer in zip(prompts, expected):
            # A router may be faster than the thread that stores: then there is less to load, and the answer is the same.
            found, cached = two.complete(prompt, 12)
            assert found == answer and 0 <= cached <= loadable(prompt)

        def other_loads():
            """A prompt that is new to both, so the second can have it from the pool alone; its answer if it has all of it."""
            prompt = tokens(700)
            assert one.complete(prompt, 1)[1] == 0
            found, cached = two.complete(prompt, 12)
            return (prompt, found) if cached == loadable(prompt) else None

        prompt, answer = until(other_loads, "what one replica computed the other loads")
        assert [answer] == right([prompt], 12)
        talk_all_at_once(one, two, tokens, right)
        switch.touch()
        prompt, answer = until(other_loads, "and also when that is nonsense")
        assert [answer] != right([prompt], 12), "which shows: the control of this test"


def talk_all_at_once(one, two, tokens, right):
    """Three clients, each with one request at a time, to either replica."""
    talks = [tokens(600) for _ in range(6)]
    expected, wrong = right(talks, 12), []

    def client(number):
        chance = random.Random(number)
        for _ in range(6):
            at = chance.randrange(len(talks))
            answer, _ = (one, two)[chance.randrange(2)].complete(talks[at], 12)
            if answer != expected[at]:
                wrong.append((number, at, answer, expected[at]))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert not wrong
