"""A load that failed, and what becomes of the blocks meanwhile: nobody may find nonsense in vLLM's prefix cache, in the pool or
in an answer."""
import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import CHUNK, Engine  # noqa: E402
from test_vllm import PROMPT, _keys, answer  # noqa: E402, F401
from vllm.v1.request import RequestStatus  # noqa: E402

import maru  # noqa: E402


@pytest.fixture(params=[1, 2], ids=["first runner", "second runner"])
def engines(pool, request):
    """Makes engines that share a pool, with vLLM's first model runner, which can take a request back, or the second, which
    cannot. Their requests are scheduled a step ahead where they are `asynchronous`."""
    opened = []

    def make(**options):
        opened.append(Engine(pool.socket, runner=request.param, **options))
        return opened[-1]

    make.runner = request.param

    yield make
    for engine in opened:
        engine.close()


def lose(pool, engine, keys, kept=0):
    """Between the scheduler's promise and the load, where its hold on the chunks has failed."""
    for plan in engine.connector._requests.values():
        plan.let_go()
    with maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        for key in keys[:kept - 1 if kept else None:-1]:
            assert client.delete(key)


def lookahead(engine, turn, until):
    """Turns of the engine, the next scheduled before the last is finished, until they are done."""
    for _ in range(200):
        if until():
            break
        ahead = engine.schedule()
        if turn is not None:
            engine.finish(turn)
        turn = ahead
    assert until()
    engine.finish(turn)


def right_everywhere(make, engine, answer, prompt=PROMPT):  # noqa: F811
    """The engine that lost something answers right, and so does one that loads what there is in the pool."""
    assert engine.run("after", prompt, 4) == answer(prompt)
    assert make().run("elsewhere", prompt, 4) == answer(prompt)


@pytest.mark.parametrize("kept", [0, 3])
def test_a_request_that_is_aborted_leaves_no_block_that_was_not_loaded(pool, engines, answer, kept):  # noqa: F811
    """vLLM's engine takes in what is to be aborted right before what a step returned."""
    first, second = engines(), engines()
    first.run("a", PROMPT)
    longer = PROMPT + list(range(600, 600 + 3 * CHUNK))
    second.add("b", longer, 4)
    turn = second.schedule()
    lose(pool, second, _keys(first, PROMPT), kept)
    returned = second.execute(turn)
    assert returned.kv_connector_output.invalid_block_ids
    second.scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
    second.update(turn, returned)
    right_everywhere(engines, second, answer, longer)


@pytest.mark.parametrize("kept", [0, 3])
def test_a_request_that_is_preempted_meanwhile_answers_right(pool, engines, answer, kept):  # noqa: F811
    if engines.runner == 2:
        pytest.skip("it loads before it runs, and only what runs is preempted")
    first, second = engines(), engines(asynchronous=True)
    first.run("a", PROMPT)
    second.add("b", PROMPT, 4)
    request = second.scheduler.requests["b"]
    turn = second.schedule()
    lose(pool, second, _keys(first, PROMPT), kept)
    second.scheduler.running.remove(request)
    second.scheduler._preempt_request(request, 0.0)
    lookahead(second, turn, request.is_finished)
    assert request.num_preemptions == 1 and second.recomputed == 1
    assert list(request.output_token_ids) == answer(PROMPT)
    right_everywhere(engines, second, answer)


@pytest.mark.parametrize("max_tokens", [1, 4])
@pytest.mark.parametrize("kept", [0, 3])
def test_what_was_sampled_ahead_of_the_report_is_not_answered(pool, engines, answer, kept, max_tokens):  # noqa: F811
    first, second = engines(), engines(asynchronous=True)
    first.run("a", PROMPT)
    second.add("b", PROMPT, max_tokens)
    request = second.scheduler.requests["b"]
    turn = second.schedule()
    lose(pool, second, _keys(first, PROMPT), kept)
    lookahead(second, turn, request.is_finished)
    assert second.recomputed == 1
    assert list(request.output_token_ids) == answer(PROMPT, max_tokens=max_tokens)
    right_everywhere(engines, second, answer)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("arriving", ["with it", "after the report"])
def test_others_do_not_wait_for_a_block_that_is_computed_later(pool, engines, answer, arriving, asynchronous):  # noqa: F811
    """The request whose load failed computes its prompt in pieces; another with the same beginning must not read what is not
    computed yet."""
    first, second = engines(), engines(asynchronous=asynchronous)
    first.run("a", PROMPT)
    # One chunk of each request in a step.
    second.scheduler.scheduler_config.long_prefill_token_threshold = CHUNK
    other = PROMPT + [9] * CHUNK
    second.add("b", PROMPT, 4)
    requests = {"b": second.scheduler.requests["b"]}
    if arriving == "with it":
        second.add("c", other, 4)
    turn = second.schedule()
    lose(pool, second, _keys(first, PROMPT))
    second.finish(turn)
    assert second.recomputed == 1
    if arriving != "with it":
        second.add("c", other, 4)
    requests["c"] = second.scheduler.requests["c"]
    for _ in range(100):
        second.step()
    assert all(request.is_finished() for request in requests.values())
    assert list(requests["b"].output_token_ids) == answer(PROMPT)
    assert list(requests["c"].output_token_ids) == answer(other)
    right_everywhere(engines, second, answer, other)


def said(caplog):
    return [record.message for record in caplog.records if record.name == "vllm.maru"]


@pytest.mark.parametrize("policy", [None, "fail", "recompute"])
def test_a_chunk_may_vanish_whatever_vllm_is_told(pool, engines, answer, caplog, policy):  # noqa: F811
    """vLLM's default is to end it with an empty answer."""
    engines().run("a", PROMPT)
    engine = engines(failure_policy=policy)
    assert sum("kv_load_failure_policy" in message for message in said(caplog)) == (policy != "recompute")
    engine.add("b", PROMPT, 4)
    request = engine.scheduler.requests["b"]
    engine.step(lambda: lose(pool, engine, _keys(engine, PROMPT), kept=3))
    while not request.is_finished():
        engine.step()
    assert engine.recomputed == 1 and list(request.output_token_ids) == answer(PROMPT)


def test_failed_loads_are_counted_and_said_to_be_computed_seldom(pool, engines, answer, caplog):  # noqa: F811
    first, engine = engines(), engines(prefix_caching=False)
    for number in range(8):
        prompt = [number, *PROMPT]
        first.run(f"a {number}", prompt)
        engine.add(f"b {number}", prompt, 4)
        request = engine.scheduler.requests[f"b {number}"]
        engine.step(lambda: lose(pool, engine, _keys(engine, prompt)))  # noqa: B023
        while not request.is_finished():
            engine.step()
        assert list(request.output_token_ids) == answer(prompt)
    messages = [message for message in said(caplog) if "not loaded" in message]
    assert len(messages) == 3 and all("vLLM computes them again" in message for message in messages)
    blocks = engine.workers[0].not_loaded // 8
    assert [f"{blocks * n} blocks of {n} requests" in message for n, message in zip((1, 3, 7), messages)] == [True] * 3
