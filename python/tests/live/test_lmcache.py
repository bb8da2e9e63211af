"""LMCache's own connector in vLLM, on maru-lmcache-server: two engines answer as one without connector, in both of LMCache's
ways to bring keys and values to its server and back. The pool has room for about 35 chunks, so later tests evict what earlier
ones stored."""
import pathlib
import random
import sys

import pytest
from conftest import CHUNK, Pool
from engines import until

pytest.importorskip("lmcache")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "lmcache"))
from mp_server import OURS, Server  # noqa: E402

SERVER = pathlib.Path(__file__).with_name("wrong_lmcache_server.py")
MODES = ["engine_driven", "lmcache_driven"]  # the engine sends and gets copies; the server uses the engine's memory
LOCKED_S = 5  # what a lookup has found, when no load follows


class Serving(Server):
    def __init__(self, pool, folder, name, switch):
        super().__init__(pool, folder / f"{name}.log", *OURS[2:], "--l1-read-ttl-seconds", str(LOCKED_S), program=(SERVER,))
        self.environment["MARU_LIVE_WRONG_WHILE"] = str(switch)

    def begin(self):
        """Again, on the same port."""
        self.__enter__()

    def stored(self):
        """Chunks, since it began."""
        return self.l1()["maru"]["stores"]


def transfer(server, mode, connector="LMCacheMPConnector", module="lmcache.integration.vllm.lmcache_mp_connector"):
    """kv_transfer_config of an engine. It notices within some seconds that its server has gone, and that it is back. module:
    None for vLLM's own copy of the connector."""
    extra = {"host": "tcp://127.0.0.1", "port": server.port, "mp_transfer_mode": mode, "save_decode_cache": True,
             "heartbeat_interval": 5, "mq_timeout": 30}
    return {"kv_connector": connector, "kv_connector_module_path": module, "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {f"lmcache.mp.{name}": value for name, value in extra.items()}}


def loadable(prompt):
    """How many of its tokens are loaded when all of its chunks are there. One token is left to compute."""
    return min(len(prompt) // CHUNK * CHUNK, len(prompt) - 1)


@pytest.fixture(scope="module", params=MODES)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def pool(marud_program, mode):
    with Pool(marud_program, size="16MiB", region_bytes="2MiB") as running:
        yield running


@pytest.fixture(scope="module")
def switch(folder):
    """While this file is there the server hands out wrong bytes."""
    return folder / "wrong"


@pytest.fixture(scope="module")
def server(pool, folder, switch, mode):
    with Serving(pool, folder, f"server {mode}", switch) as running:
        yield running


@pytest.fixture(scope="module")
def pair(start, server, mode):
    """The second has no prefix cache of its own, so it asks the server each time."""
    engines = [start(f"lmcache {mode} {number}", kv=transfer(server, mode), enable_prefix_caching=number == 1)
               for number in (1, 2)]
    for engine in engines:
        engine.wait_ready()  # an engine does not start while its server is away
    yield engines
    for engine in engines:
        engine.end()


@pytest.fixture
def computed(pair, server, right):
    """computed(PROMPTS): the first engine has computed them, and the server has stored them."""
    def compute(prompts):
        before = server.stored()
        assert pair[0].answers(prompts)["tokens"] == right(prompts)
        wanted = before + sum(len(prompt) // CHUNK for prompt in prompts)
        until(lambda: server.stored() >= wanted, f"{wanted - before} chunks are stored")
    return compute


@pytest.fixture
def shared_again(pair, server, tokens, right):
    """Whether the second engine loads what the first one stores now."""
    one, two = pair

    def ask():
        prompts = [tokens(600)]
        assert one.answers(prompts)["tokens"] == right(prompts)
        server.l1()  # meanwhile the server may store it
        answer = two.answers(prompts)
        assert answer["tokens"] == right(prompts)
        return answer["cached"] == [loadable(prompts[0])]
    return ask


def test_another_process_loads_what_one_computed(pair, computed, switch, tokens, right):
    one, two = pair
    prompts = [tokens(n) for n in (CHUNK, CHUNK + 1, 300, 1000, 2 * CHUNK, 2500)]
    computed(prompts)
    again = two.answers(prompts)
    assert again["tokens"] == right(prompts)
    assert again["cached"] == [loadable(prompt) for prompt in prompts]
    switch.touch()
    again = two.answers(prompts)
    switch.unlink()
    assert again["cached"] == [loadable(prompt) for prompt in prompts]
    assert all(answer != correct for answer, correct in zip(again["tokens"], right(prompts))), "the negative control"
    assert two.answers(prompts)["tokens"] == right(prompts)


def test_the_copy_of_the_connector_that_vllm_has(start, server, mode, computed, tokens, right):
    prompts = [tokens(n) for n in (1000, 2500)]
    computed(prompts)
    with start(f"vllm's {mode}", kv=transfer(server, mode, module=None)) as engine:
        again = engine.answers(prompts)
    assert again["tokens"] == right(prompts) and again["cached"] == [loadable(prompt) for prompt in prompts]


def test_the_turns_of_a_conversation_go_to_one_engine_and_the_other(pair, server, tokens, right):
    prompt, before = tokens(700), 0
    for turn in range(4):
        n, stored = 70, server.stored()
        answer = pair[turn % 2].answers([prompt], n)
        assert answer["tokens"] == right([prompt], n)
        known = len(prompt) + n - 1  # the last token that was generated has left nothing in the cache
        until(lambda: server.stored() - stored >= known // CHUNK - before // CHUNK, "the new chunks are stored")
        if turn:
            assert answer["cached"][0] >= before // CHUNK * CHUNK > 0, "the other engine stored its answer"
        prompt, before = prompt + answer["tokens"][0] + tokens(200), known


def test_a_pool_that_is_smaller_than_what_is_asked(pair, pool, tokens, right):
    chance = random.Random(3)
    beginnings = [tokens(CHUNK * chance.randrange(2, 5)) for _ in range(10)]
    evicted, cached = pool.status()["evicted_blocks"], 0
    for _ in range(5):
        orders = []
        for engine in pair:
            prompts = [chance.choice(beginnings) + tokens(chance.randrange(10, 700)) for _ in range(6)]
            orders.append((engine, prompts))
            engine.send("generate", prompts=prompts, tokens=4, together=chance.random() < 0.5)
        for engine, prompts in orders:
            answer = engine.reply()
            assert answer["tokens"] == right(prompts, 4)
        cached += sum(answer["cached"])
    assert cached > 0 and pool.status()["evicted_blocks"] > evicted


def test_an_engine_that_is_killed_while_it_stores(start, server, pair, mode, pool, tokens, right):
    prompts = [tokens(n) for n in (1000, 1500, 900, 1200)]
    with start(f"killed {mode}", kv=transfer(server, mode)) as engine:
        engine.wait_ready()
        before = server.stored()
        engine.send("generate", prompts=prompts, tokens=8, together=False)
        until(lambda: server.stored() > before, "it stores")
        engine.kill()
    assert pair[0].answers(prompts)["tokens"] == right(prompts)
    until(lambda: server.l1()["staging_object_count"] == 0, "nothing waits for it")
    states = pool.status()["page_states"]
    assert (states["reserved"], states["sealed"]) == (0, 0)


@pytest.mark.parametrize("call", ["commit_store", "prepare_retrieve"])
def test_an_engine_that_is_killed_before_it_sends_or_gets_a_copy(start, server, pair, mode, pool, computed, tokens, right,
                                                                 call):
    if mode != "engine_driven":
        pytest.skip("the server copies")
    prompts = [tokens(1000)]
    if call == "prepare_retrieve":
        computed(prompts)
    kv = transfer(server, mode, "LMCacheStoppingConnector", "watched_lmcache")
    with start(f"stops at {call}", kv=kv, environ={"MARU_LIVE_STOP": call}) as engine:
        engine.send("generate", prompts=prompts, tokens=1)
        while engine.reply() != {"stopped": call}:
            pass
        if call == "prepare_retrieve":
            assert any(pin["pid"] == server.process.pid for pin in pool.pins()), "what is to be loaded is pinned"
        engine.kill()
    until(lambda: not pool.pins(), "the server ends the pins")
    answer = pair[1].answers(prompts)
    assert answer["tokens"] == right(prompts)
    assert answer["cached"] == [loadable(prompts[0]) if call == "prepare_retrieve" else 0]


def test_the_server_is_killed_while_engines_compute_and_comes_back(pair, server, computed, shared_again, tokens, right):
    one, two = pair
    kept, meanwhile = [tokens(1000)], [tokens(n) for n in (2100, 1700, 2100)]
    computed(kept)
    expected = right(meanwhile)
    for engine in pair:
        engine.send("generate", prompts=meanwhile, tokens=8, together=False)
    server.kill()
    for engine in pair:
        assert engine.reply()["tokens"] == expected
    alone = [tokens(1000)]
    assert two.answers(kept)["tokens"] == right(kept) and one.answers(alone)["tokens"] == right(alone), "without a server"
    server.begin()
    until(shared_again, "what one stores the other loads, once the server is back")
    found = two.answers(kept)
    assert found["tokens"] == right(kept) and found["cached"] == [loadable(kept[0])], "the restart lost nothing"


def test_the_pool_is_cleared_while_engines_store_and_load(pair, pool, computed, shared_again, tokens, right):
    beginnings = [tokens(900) for _ in range(2)]
    cached = removed = 0
    for _ in range(4):
        prompts = [beginning + tokens(300) for beginning in beginnings for _ in range(3)]
        expected = right(prompts)
        for engine in pair:
            engine.send("generate", prompts=prompts, tokens=8, together=False)
        for _ in range(10):
            removed += pool.ctl("clear", "--yes")["deleted_blocks"]
        for engine in pair:
            answer = engine.reply()
            assert answer["tokens"] == expected
        cached += sum(answer["cached"])
    assert removed > 0 and cached > 0
    gone = [tokens(1000)]
    computed(gone)
    pool.ctl("clear", "--yes")
    answer = pair[1].answers(gone)
    assert answer["tokens"] == right(gone) and answer["cached"] == [0]
    assert shared_again()


def test_marud_is_killed_while_engines_compute_and_comes_back(pair, pool, computed, shared_again, tokens, right):
    one, two = pair
    kept, meanwhile = [tokens(1000)], [tokens(n) for n in (2100, 1700)]
    computed(kept)
    expected = right(meanwhile)
    one.send("generate", prompts=meanwhile, tokens=8, together=False)
    pool.kill()
    found = two.answers(kept)
    assert found["tokens"] == right(kept) and found["cached"] == [loadable(kept[0])], "the pool is there without marud"
    assert one.reply()["tokens"] == expected
    pool.begin()
    until(shared_again, "what one stores the other loads, once marud is back")
