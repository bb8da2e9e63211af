"""MaruConnector as on a GPU, under vLLM's own scheduler: a stand-in for torch.cuda does everything as late as it may
(late_runtime.py). The order of what happens, and the bytes. No GPU has run any of this."""
import random
import threading
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from vllm.v1.request import RequestStatus  # noqa: E402

from late_runtime import LateRuntime  # noqa: E402
from small_engine import BLOCK, CHUNK, Engine, drafter  # noqa: E402
from test_vllm import PROMPT, answer  # noqa: E402, F401

from maru import registered_pool  # noqa: E402

OTHER = [token + 500 for token in PROMPT]
FOUND = len(PROMPT) - 5 * CHUNK + 3  # tokens that are computed of a prompt whose chunks are all found, with three generated
PATIENCE = 120  # seconds


def until(is_done):
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def devices():
    made = []

    def make(**more):
        made.append(LateRuntime(**more))
        return made[-1]

    yield make
    for device in made:
        assert not device.wrong_copies


def client_of(worker):
    return worker._pool.attached().client


def pins(worker):
    return client_of(worker).statistics().pins


def side(worker, name):
    return getattr(worker._stored._copies, f"_{name}").stream


def registered(worker):
    return registered_pool.of(client_of(worker), None)


def store(pool, *prompts):
    """By one client, whose pages lie in one region."""
    with Engine(pool.socket) as engine:
        for prompt in prompts:
            engine.run(str(prompt[0]), prompt)


@pytest.mark.parametrize("kind", ["registered", "refused", "no read-only"])
@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("layout", ["flash", "triton", "mla"])
def test_another_engine_loads_what_one_stored(pool, answer, devices, caplog, layout, runner, kind):  # noqa: F811
    more = {"registered": {}, "refused": {"refusal": 2}, "no read-only": {"has_read_only": False}}[kind]
    with Engine(pool.socket, layout=layout, runner=runner, device=devices(**more)) as first, \
            Engine(pool.socket, layout=layout, runner=runner, device=devices(**more)) as second:
        for prompt in (PROMPT, OTHER):  # the first time nothing is registered
            before = second.computed
            generated = first.run(f"a {prompt[0]}", prompt, 4)
            assert second.run(f"b {prompt[0]}", prompt, 4) == generated
            assert second.computed - before == FOUND
            if layout == "flash":
                assert generated == answer(prompt)
            for engine in (first, second):
                registered(engine.workers[0]).wait_until_idle()
        assert [bool(engine.device.copied["where it lies"]) for engine in (first, second)] == {
            "registered": [True, True], "refused": [False, False], "no read-only": [True, False]}[kind]
        assert second.workers[0].not_loaded == 0
    warned = [record.getMessage() for record in caplog.records if "CUDA" in record.getMessage()]
    assert len(warned) == {"registered": 0, "refused": 2, "no read-only": 1}[kind], "once for each engine"


@pytest.mark.parametrize("runner", [1, 2])
def test_requests_at_random_answer_as_they_would_alone(pool, answer, devices, runner):  # noqa: F811
    chance = random.Random(7)
    prompts = [PROMPT[:CHUNK * chance.randrange(1, 6)] + [chance.randrange(1000) for _ in range(chance.randrange(1, 20))]
               for _ in range(6)]
    expected = [answer(prompt, max_tokens=3) for prompt in prompts]
    with Engine(pool.socket, runner=runner, blocks=40, prefix_caching=False, device=devices()) as one, \
            Engine(pool.socket, runner=runner, blocks=40, device=devices()) as other:
        for turn in range(20):
            engine, begun = chance.choice((one, other)), []
            for i in chance.sample(range(len(prompts)), 2):
                engine.add(f"{turn} {i}", prompts[i], 3)
                begun.append((engine.scheduler.requests[f"{turn} {i}"], expected[i]))
            while not all(request.is_finished() for request, _ in begun):
                engine.step()
            assert all(list(request.output_token_ids) == tokens for request, tokens in begun)


def test_drafts_and_two_ranks(pool, devices):
    with Engine(pool.socket, ranks=2, device=devices()) as first:
        generated = first.run("a", PROMPT, 9)
    drafts = drafter(random.Random(1), lambda prompt: generated)
    with Engine(pool.socket, ranks=2, device=devices(), drafts=drafts) as second:
        assert second.run("b", PROMPT, 9) == generated
        assert second.computed < len(PROMPT)


def test_nothing_is_published_before_its_event(pool, devices):
    with Engine(pool.socket, device=devices()) as engine, Engine(pool.socket) as other:
        worker = engine.workers[0]
        with side(worker, "stores").held():
            worker.wait_until_stored = lambda: None
            engine.run("a", PROMPT)
            assert other.run("b", PROMPT[:-1]) and other.computed == len(PROMPT) - 1, "nothing is found"
        type(worker).wait_until_stored(worker)
        fresh = [token + 1 for token in PROMPT]
        engine.run("c", fresh)
        type(worker).wait_until_stored(worker)
        before = other.computed
        other.run("d", fresh, 4)
        assert other.computed - before == FOUND


@pytest.mark.parametrize("runner", [1, 2])
def test_blocks_that_another_request_gets_are_stored_first(pool, answer, devices, runner):  # noqa: F811
    with Engine(pool.socket, blocks=12, runner=runner, prefix_caching=False, device=devices()) as engine, \
            Engine(pool.socket) as other:
        worker = engine.workers[0]
        worker.wait_until_stored = lambda: None
        for prompt in (PROMPT, OTHER, PROMPT[::-1]):
            engine.run(str(prompt[0]), prompt)
        type(worker).wait_until_stored(worker)
        for prompt in (PROMPT, OTHER):
            before = other.computed
            assert other.run(str(prompt[0]), prompt, 4) == answer(prompt)
            assert other.computed - before == FOUND


@pytest.mark.parametrize("known", [False, True], ids=["staged", "registered"])
def test_pins_end_with_the_event_and_without_a_step(pool, devices, known):
    """Also of a request that nobody wants any more."""
    store(pool, PROMPT, OTHER)
    with Engine(pool.socket, device=devices()) as engine:
        worker = engine.workers[0]
        if known:
            engine.run("first", OTHER)
            registered(worker).wait_until_idle()
        with side(worker, "loads").held():
            engine.add("a", PROMPT[:CHUNK * 2 + 1])
            for _ in range(10):  # the scheduler lets its own go after some steps
                engine.step()
            assert pins(worker) > 0 and not engine.scheduler.requests["a"].is_finished()
            engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
        until(lambda: pins(worker) == 0)
        engine.step()
        engine.step()
        assert engine.scheduler.kv_cache_manager.usage == 0, "vLLM has its blocks back"


@pytest.mark.parametrize("runner, asks_early", [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("how", ["refuses", "fails"])
def test_a_load_that_fails_is_a_miss(pool, answer, devices, runner, asks_early, how):  # noqa: F811
    store(pool, PROMPT)
    with Engine(pool.socket, runner=runner, device=devices()) as engine:
        engine.asks_early = asks_early
        worker = engine.workers[0]
        if how == "refuses":
            engine.device.refuses = "loads"
        else:
            side(worker, "loads").fails = True
        assert engine.run("a", PROMPT, 4) == answer(PROMPT)
        assert engine.computed >= len(PROMPT) + 3 and worker.not_loaded == 5 * CHUNK // BLOCK
        until(lambda: pins(worker) == 0)


@pytest.mark.parametrize("how", ["refuses", "fails"])
def test_a_store_that_fails_publishes_nothing(pool, answer, devices, caplog, how):  # noqa: F811
    with Engine(pool.socket, device=devices()) as engine, Engine(pool.socket) as other:
        worker = engine.workers[0]
        if how == "refuses":
            engine.device.refuses = "stores"
        else:
            side(worker, "stores").fails = True
        assert engine.run("a", PROMPT, 4) == answer(PROMPT)
        assert other.run("b", PROMPT, 4) == answer(PROMPT) and other.computed == len(PROMPT) + 3
        assert worker.dropped >= 5 and "CUDA error" in caplog.text
        assert client_of(worker).statistics().pins == 0


def test_the_end_of_a_load_is_known_at_the_end_of_the_step_that_computes_from_it(pool, answer, devices):  # noqa: F811
    """Here memory has gone bad, which is seen when the load has ended: nothing that was computed from it is stored."""
    store(pool, PROMPT)
    with Engine(pool.socket, runner=1, device=devices()) as engine:
        worker, is_asked = engine.workers[0], threading.Event()
        reader, take = worker._reader, worker._reader.take_ended

        def bad(view, blocks, failed, reason):
            is_asked.wait(PATIENCE)
            failed.update(blocks)
            return "bad memory"

        reader._check = bad
        reader.take_ended = lambda waits: (is_asked.set(), take(waits))[1]
        put, steps = worker._stored.put, []
        worker._stored.put = lambda transfer: (steps.append(engine.recomputed), put(transfer))
        longer = PROMPT + PROMPT
        assert engine.run("a", longer, 4) == answer(longer)
        assert engine.recomputed == 1 and worker.not_loaded == 5 * CHUNK // BLOCK
        assert steps and set(steps) == {1}, "nothing is stored of the step that failed"


def test_a_load_runs_beside_the_forward_pass_of_its_step(pool, devices):
    store(pool, PROMPT, OTHER)
    with Engine(pool.socket, device=devices()) as engine:
        worker, compute = engine.workers[0], engine.device.compute
        engine.run("first", OTHER)
        registered(worker).wait_until_idle()
        engine.add("a", PROMPT)
        output, *_ = engine.schedule()
        worker.bind_connector_metadata(output.kv_connector_metadata)
        compute.synchronize()
        with compute.held():
            compute.run(lambda: None)  # the forward pass: vLLM begins such a load when it has put the pass there
            worker.start_load_kv(None)
            worker.wait_for_save()
            until(lambda: worker.get_finished(set())[1] == {"a"})
        worker.clear_connector_metadata()


class Context:
    """What vLLM tells of a forward pass."""

    def __init__(self, mode):
        self.cudagraph_runtime_mode = type("Mode", (), {"name": mode})


@pytest.mark.parametrize("asks, mode, by_layer", [(True, "PIECEWISE", True), (True, "NONE", True), (True, "FULL", False),
                                                  (False, "PIECEWISE", False)])
def test_a_forward_pass_waits_on_the_device_for_each_layer(pool, devices, asks, mode, by_layer):
    """And the thread that puts it there waits for nothing."""
    store(pool, PROMPT, OTHER)
    with Engine(pool.socket, runner=1, device=devices()) as engine:
        worker, compute = engine.workers[0], engine.device.compute
        engine.run("first", OTHER)
        registered(worker).wait_until_idle()
        names = engine.kv_configs[0].kv_cache_groups[0].layer_names
        worker._reader._unseen = set() if asks else set(names)  # whether vLLM has been seen to ask for each
        engine.add("a", PROMPT)
        output, pieces, _ = engine.schedule()
        worker.bind_connector_metadata(output.kv_connector_metadata)
        block, last = pieces[0][2][0], worker._layers.by_block[-1]
        before, given, seen = last[block].clone(), compute.given, []
        with side(worker, "loads").held():
            worker.start_load_kv(Context(mode))
            waits = [compute.given - given]
            for name in names if mode != "FULL" else ():
                worker.wait_for_layer_load(name)
                waits.append(compute.given - given)
            compute.run(lambda: seen.append(last[block].clone()))
            assert (last[block] == before).all(), "nothing is loaded so far"
        assert waits == ([0, 1, 2, 3] if by_layer else [1] if mode == "FULL" else [1, 1, 1, 1])
        compute.synchronize()
        assert not (seen[0] == before).all(), "the forward pass has seen what was loaded"
        worker.wait_for_save()
        assert (last[block] == seen[0]).all() and worker.get_block_ids_with_load_errors() == set()
        worker.clear_connector_metadata()


def test_a_layer_that_a_step_does_not_ask_for_is_waited_for_at_its_end(pool, devices):
    store(pool, PROMPT)
    with Engine(pool.socket, runner=1, device=devices()) as engine:
        worker, compute = engine.workers[0], engine.device.compute
        names = engine.kv_configs[0].kv_cache_groups[0].layer_names
        for name in names:
            worker.wait_for_layer_load(name)
        engine.add("a", PROMPT)
        output, *_ = engine.schedule()
        worker.bind_connector_metadata(output.kv_connector_metadata)
        given = compute.given
        worker.start_load_kv(Context("NONE"))
        worker.wait_for_layer_load(names[0])
        assert compute.given - given == 1
        worker.wait_for_save()
        assert compute.given - given == len(names)
        worker.clear_connector_metadata()
