"""MaruConnector under vLLM's own scheduler: what it stores, finds, loads and reports, bit for bit."""
import itertools
import shutil
import subprocess
import sys
import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not here: scripts/test-engines installs it without its kernels")
from small_engine import BLOCK, CHUNK, Engine  # noqa: E402

import maru  # noqa: E402
from maru import engine_pool  # noqa: E402

PROMPT = list(range(100, 100 + 5 * CHUNK + 3))


@pytest.fixture
def answer(pool):
    """What an engine that never met a pool with anything in it generates, for a prompt."""
    answers = {}

    def compute(prompt, ranks=1, max_tokens=4):
        key = (tuple(prompt), ranks, max_tokens)
        if key not in answers:
            with Engine(pool.socket, ranks=ranks, role="kv_producer", maru_tenant=f"answer {len(answers)}") as engine:
                answers[key] = engine.run("answer", prompt, max_tokens)
        return answers[key]

    return compute


@pytest.mark.parametrize("layout", ["flash", "triton", "mla"])
def test_another_engine_loads_what_one_stored(pool, answer, layout):
    with Engine(pool.socket, layout=layout) as first, Engine(pool.socket, layout=layout) as second:
        generated = first.run("a", PROMPT, 4)
        assert first.computed == len(PROMPT) + 3
        assert second.run("b", PROMPT, 4) == generated
        assert second.computed == len(PROMPT) - 5 * CHUNK + 3
        if layout == "flash":
            assert generated == answer(PROMPT)


def test_an_engine_in_another_process_loads_it(pool, answer):
    code = ("import sys; sys.path[:0] = sys.argv[2:]; from small_engine import Engine; from test_vllm import PROMPT\n"
            "with Engine(sys.argv[1]) as engine: print(*engine.run('a', PROMPT, 4))")
    done = subprocess.run([sys.executable, "-c", code, str(pool.socket), *sys.path], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stderr
    generated = [int(token) for token in done.stdout.splitlines()[-1].split()]
    with Engine(pool.socket) as engine:
        assert engine.run("b", PROMPT, 4) == generated == answer(PROMPT)
        assert engine.computed == len(PROMPT) - 5 * CHUNK + 3


def test_a_prompt_that_is_wholly_there_leaves_a_token_to_compute(pool):
    with Engine(pool.socket) as first, Engine(pool.socket) as second:
        prompt = PROMPT[:4 * CHUNK]
        generated = first.run("a", prompt, 2)
        assert second.run("b", prompt, 2) == generated
        assert second.computed == BLOCK + 1


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("drafting", ["ngram", "dflash", "eagle", "eagle3", "mtp"])
def test_the_last_block_is_computed_where_it_follows_from_the_token_after_it(pool, answer, drafting, runner):
    """As vLLM computes it where its own prefix cache has it: a model that drafts from hidden states looks one token ahead."""
    with Engine(pool.socket, runner=runner, drafting=drafting) as first, \
            Engine(pool.socket, runner=runner, drafting=drafting) as second:
        first.run("a", PROMPT)
        other = PROMPT[:5 * CHUNK] + [1, 2, 3]
        assert second.run("b", other, 4) == answer(other)
        dropped = BLOCK if drafting in ("eagle", "eagle3", "mtp") else 0
        assert second.computed == len(PROMPT) - 5 * CHUNK + 3 + dropped
        assert second.scheduler.use_eagle_block_drop is bool(dropped)
        # Nor is what stands in the pool changed by it.
        assert second.run("c", PROMPT[:CHUNK] + [7] * CHUNK) == first.run("d", PROMPT[:CHUNK] + [7] * CHUNK)


@pytest.mark.parametrize("runner", [1, 2])
def test_asking_twice_changes_nothing_and_holds_nothing(pool, runner):
    """With vLLM's second model runner a request is loaded in a step before it is computed."""
    with Engine(pool.socket) as first, Engine(pool.socket, runner=runner) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        first.run("a", PROMPT)
        before = client.statistics()
        second.add("b", PROMPT)
        request = second.scheduler.requests["b"]
        answers = {second.connector.get_num_new_matched_tokens(request, 0) for _ in range(5)}
        assert answers == {(5 * CHUNK, runner == 2)}
        assert second.connector.get_num_new_matched_tokens(request, 2 * CHUNK) == (3 * CHUNK, runner == 2)
        assert second.connector.get_num_new_matched_tokens(request, 5 * CHUNK) == (0, False)
        assert second.connector._client.statistics().pins == 0
        assert client.statistics() == before
        for _ in range(runner):
            assert not request.output_token_ids
            second.step()
        assert second.computed == len(PROMPT) - 5 * CHUNK and request.output_token_ids


def test_what_follows_a_hit_is_stored(pool):
    """And what was generated: the next turn of a conversation begins with both."""
    longer = PROMPT + list(range(500, 500 + 4 * CHUNK))
    with Engine(pool.socket) as first, Engine(pool.socket) as second, Engine(pool.socket) as third:
        first.run("a", PROMPT)
        generated = second.run("b", longer, 3 * CHUNK)
        turn = longer + generated + [7] * CHUNK
        expected = (len(longer) + len(generated) - 1) // CHUNK * CHUNK
        third.add("c", turn)
        assert third.connector.get_num_new_matched_tokens(third.scheduler.requests["c"], 0)[0] == expected
        third.step()
        third.step()
        assert third.computed == len(turn) - expected


def test_chunks_that_vllm_itself_had_are_stored_as_well(pool):
    """vLLM's prefix cache has the first chunks from before the pool lost them."""
    with Engine(pool.socket) as first, Engine(pool.socket) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        first.run("a", PROMPT)
        cleared = [evicted for evicted in client.evicted()]
        assert not cleared
        for plan_key in _keys(first, PROMPT)[::-1]:
            assert client.delete(plan_key)
        longer = PROMPT + list(range(900, 900 + 2 * CHUNK))
        generated = first.run("b", longer, 2)
        assert first.computed < len(PROMPT) + len(longer), "vLLM's own cache was used"
        assert second.run("c", longer, 2) == generated
        assert second.computed == len(longer) - len(longer) // CHUNK * CHUNK + 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_whose_chunks_were_evicted_is_stored_from_its_beginning_again(pool, answer, ranks):
    with Engine(pool.socket, ranks=ranks) as engine, Engine(pool.socket, ranks=ranks) as other, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        engine.add("a", PROMPT, 3 * CHUNK)
        request = engine.scheduler.requests["a"]
        engine.step()
        keys = _keys(engine, PROMPT, ranks - 1)
        for key in keys[:1:-1]:  # of one rank
            assert client.delete(key)
        while not request.is_finished():
            engine.step()
        prompt = PROMPT + list(request.output_token_ids)
        assert other.run("b", prompt, 4) == answer(prompt, ranks)
        assert other.computed == (len(prompt) - 1) % CHUNK + 1 + 3


def _keys(engine, prompt, rank=0):
    """The keys of the whole chunks of a prompt."""
    from types import SimpleNamespace

    from maru import chunk_keys
    root = engine.connector._root(SimpleNamespace())
    hashes = chunk_keys.extend(prompt, CHUNK, root, {})
    return list(chunk_keys.of_rank(hashes, engine.workers[rank]._rank_digest))


@pytest.mark.parametrize("step_tokens", [5, 12, 30])
def test_prompts_that_are_computed_in_pieces(pool, answer, step_tokens):
    """Pieces that end within chunks and within blocks."""
    with Engine(pool.socket, step_tokens=step_tokens) as first, Engine(pool.socket, step_tokens=step_tokens) as second:
        assert first.run("a", PROMPT, 4) == answer(PROMPT)
        longer = PROMPT + list(range(50))
        assert second.run("b", longer, 4) == answer(longer)
        assert second.computed == len(longer) - 5 * CHUNK + 3


def test_a_hit_of_vllm_that_ends_within_a_chunk(pool, answer):
    with Engine(pool.socket) as first, Engine(pool.socket) as second:
        first.run("a", PROMPT)
        second.run("b", PROMPT[:CHUNK + BLOCK + 1])
        assert second.run("c", PROMPT, 4) == answer(PROMPT)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("lost", [0, 2, 4])
@pytest.mark.parametrize("runner", [1, 2])
def test_what_cannot_be_loaded_is_computed_and_no_nonsense_is_stored(pool, answer, ranks, lost, runner):
    expected = answer(PROMPT, ranks)
    with Engine(pool.socket, ranks=ranks) as first, Engine(pool.socket, ranks=ranks, runner=runner) as second, \
            Engine(pool.socket, ranks=ranks) as third, maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        assert first.run("a", PROMPT, 4) == expected
        keys = _keys(first, PROMPT)

        def lose():
            """Between the scheduler's promise and the load, where its hold on the chunks has failed."""
            second.connector._requests["b"].let_go()
            for key in keys[:lost - 1 if lost else None:-1]:
                client.delete(key)

        second.add("b", PROMPT, 4)
        request = second.scheduler.requests["b"]
        second.step(before_loads=lose)
        assert second.recomputed == 1
        while not request.is_finished():
            second.step()
        assert list(request.output_token_ids) == expected
        assert third.run("c", PROMPT, 4) == expected
        longer = PROMPT + [3] * 20
        assert third.run("d", longer, 4) == answer(longer, ranks)


@pytest.mark.parametrize("ranks, losing", [(1, 0), (2, 0), (2, 1)])
def test_nothing_of_a_step_is_stored_after_a_load_of_it_failed(pool, answer, ranks, losing):
    """Neither by the rank that could not load, nor by one that could and does not know of it. The rest of the prompt, two
    chunks, is computed in that step, from nonsense."""
    longer = PROMPT + [3] * 2 * CHUNK
    with Engine(pool.socket, ranks=ranks) as first, Engine(pool.socket, ranks=ranks, runner=1) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        first.run("a", PROMPT)
        keys = [_keys(first, longer, rank) for rank in range(ranks)]

        def lose():
            second.connector._requests["b"].let_go()
            for key in keys[losing][4:2:-1]:
                assert client.delete(key)
            for key, parent in zip(keys[losing][3:5], keys[losing][2:4]):  # what follows has somewhere to be stored
                client.store_copy(key, b"not a chunk", parent=parent)

        second.add("b", longer, 4)
        request = second.scheduler.requests["b"]
        second.step(before_loads=lose)
        assert second.recomputed == 1 and second.computed >= 2 * CHUNK, "the step did compute more"
        for rank, worker in enumerate(second.workers):
            assert worker._client.statistics().stores == 0
            assert client.exists_batch(keys[rank]) == [True] * 5 + [False] * 2
        while not request.is_finished():
            second.step()
        assert list(request.output_token_ids) == answer(longer, ranks)
    with Engine(pool.socket, ranks=ranks) as third:
        assert third.run("c", longer, 4) == answer(longer, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("failing", [(1,), (2,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("runner", [1, 2])
def test_nothing_wrong_is_stored_when_steps_are_scheduled_ahead(pool, answer, ranks, failing, runner):
    """One step ahead, as with asynchronous scheduling: what a step learns of a failure, the one after it was scheduled without.
    Each of three requests loads in a step of its own, and computes the rest of its prompt in pieces of one chunk."""
    loaded = 3 * CHUNK
    prompts = {name: [int(name)] + list(range(200, 200 + 9 * CHUNK)) for name in "123"}
    with Engine(pool.socket, ranks=ranks) as first, Engine(pool.socket, ranks=ranks, runner=runner) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        for name, prompt in prompts.items():
            first.run(f"before {name}", prompt[:loaded])
        second.scheduler.scheduler_config.long_prefill_token_threshold = CHUNK
        turn, requests = None, {}
        while len(requests) < 3 or not all(request.is_finished() for request in requests.values()):
            if len(requests) < 3:
                name = str(len(requests) + 1)
                second.add(name, prompts[name], 4)
                requests[name] = second.scheduler.requests[name]
            ahead = second.schedule()
            for transfer in ahead[0].kv_connector_metadata.loads:
                if int(transfer.request_id) in failing:
                    second.connector._requests[transfer.request_id].let_go()
                    for rank in range(ranks):
                        for key in _keys(first, prompts[transfer.request_id][:loaded], rank)[:0:-1]:
                            assert client.delete(key)
            if turn is not None:
                second.finish(turn)
            turn = ahead
        assert second.recomputed == len(failing)
        for name, prompt in prompts.items():
            assert list(requests[name].output_token_ids) == answer(prompt, ranks)
    with Engine(pool.socket, ranks=ranks) as third:
        for name, prompt in prompts.items():
            before = third.computed
            assert third.run(f"after {name}", prompt, 4) == answer(prompt, ranks), "what is in the pool is right"
            assert third.computed - before < len(prompt)


def test_ranks_load_their_own_part(pool, answer):
    with Engine(pool.socket, ranks=2) as first, Engine(pool.socket, ranks=2) as second, Engine(pool.socket) as single:
        assert first.run("a", PROMPT, 4) == second.run("b", PROMPT, 4) == answer(PROMPT, 2)
        assert second.computed == len(PROMPT) - 5 * CHUNK + 3
        assert single.run("c", PROMPT, 4) == answer(PROMPT, 1), "another number of ranks is another KV cache"
        assert single.computed == len(PROMPT) + 3


def test_a_hit_needs_the_chunks_of_all_ranks(pool, answer):
    with Engine(pool.socket, ranks=2) as first, Engine(pool.socket, ranks=2) as second, \
            maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        first.run("a", PROMPT)
        for key in _keys(first, PROMPT)[:2:-1]:
            assert client.delete(key)
        second.add("b", PROMPT)
        assert second.connector.get_num_new_matched_tokens(second.scheduler.requests["b"], 0)[0] == 3 * CHUNK


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_chunk_is_computed_and_those_before_are_loaded(marud_program, runner, damaged):
    from with_marud import Marud
    with Marud(marud_program, size="64MiB", more="checksums = true") as running, Engine(running.socket) as first, \
            Engine(running.socket, runner=runner) as second, maru.Client(str(running.socket), timeout_ms=60_000) as client:
        generated = first.run("a", PROMPT, 4)
        running.damage(bytes(client.retrieve(_keys(first, PROMPT)[damaged]).data))
        assert second.run("b", PROMPT, 4) == generated
        assert second.recomputed == 1
        rest = len(PROMPT) - 5 * CHUNK
        from_nonsense = rest if runner == 1 else 0
        assert second.computed == from_nonsense + (5 - damaged) * CHUNK + rest + 3, "from the damaged chunk on, and on"
        assert second.workers[0]._client.statistics().checksum_errors == 1


@pytest.mark.parametrize("n", [1, CHUNK - 1])
def test_a_prompt_without_a_whole_chunk_finds_nothing(pool, n):
    with Engine(pool.socket) as first, Engine(pool.socket) as second:
        generated = first.run("a", PROMPT[:n])
        assert first.workers[0]._client.statistics().stores == n // CHUNK
        assert second.run("b", PROMPT[:n]) == generated and second.computed == n


def test_blocks_that_are_allocated_twice_are_loaded_once(pool):
    """As vLLM may say it, the second time without tokens to load."""
    with Engine(pool.socket) as first, Engine(pool.socket) as second:
        generated = first.run("a", PROMPT, 2)
        allocated = second.connector.update_state_after_alloc

        def allocate(request, blocks, tokens):
            for n in (tokens, tokens, 0):
                allocated(request, blocks, n)
            assert second.connector._client.statistics().pins == 1

        second.connector.update_state_after_alloc = allocate
        assert second.run("b", PROMPT, 2) == generated
        assert second.computed == len(PROMPT) - 5 * CHUNK + 1
        assert second.workers[0]._client.statistics().retrieve_hits == 5
        assert second.connector._client.statistics().pins == 0


def test_one_block_of_the_pool_holds_a_chunk_of_all_layers(pool):
    with Engine(pool.socket) as first, Engine(pool.socket) as second:
        first.run("a", PROMPT)
        assert first.workers[0]._client.statistics().stores == 5
        second.run("b", PROMPT)
        assert second.workers[0]._client.statistics().retrieve_hits == 5
        assert second.workers[0]._client.statistics().stores == 0


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("n", [5 * CHUNK, 5 * CHUNK + 3])
def test_chunks_that_are_found_are_not_stored_again(pool, n, runner):
    """Loaded, or in the engine's own prefix cache; and the last of them, where it is not loaded whole."""
    with Engine(pool.socket) as first, Engine(pool.socket, runner=runner) as second:
        generated = first.run("a", PROMPT[:n])
        stores = second.workers[0]._stored
        put, asked = stores.put, []
        stores.put = lambda transfer: (asked.append(transfer.chunks), put(transfer))
        assert second.run("b", PROMPT[:n]) == second.run("c", PROMPT[:n]) == generated and asked == []
        # Chunks that have gone since are stored again, out of the engine's own prefix cache.
        for key in reversed(_keys(first, PROMPT)[:5]):
            second.workers[0]._client.delete(key)
        assert second.run("d", PROMPT[:n]) == generated and sum(asked) == 5
        assert second.workers[0]._client.statistics().stores == 5


def test_nothing_is_kept_of_requests_that_are_finished(pool):
    with Engine(pool.socket) as engine:
        for number in range(20):
            engine.run(str(number), [number * 31 + i for i in range(3 * CHUNK)])
        assert engine.connector._requests == {}
        assert engine.connector._client.statistics().pins == 0
        assert engine.workers[0]._client.statistics().pins == 0


def test_an_aborted_request_lets_go_of_what_it_held(pool):
    from vllm.v1.request import RequestStatus
    with Engine(pool.socket) as first, Engine(pool.socket, step_tokens=CHUNK) as second:
        first.run("a", PROMPT)
        second.add("b", PROMPT + list(range(200)))
        second.step()
        assert second.connector._client.statistics().pins == 1
        second.scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
        assert second.connector._client.statistics().pins == 0


def test_requests_that_were_preempted_go_on(pool, answer):
    """Too few blocks for both: one is thrown out, and comes back through the pool."""
    with Engine(pool.socket, blocks=26, prefix_caching=False) as engine:
        prompts = {"a": PROMPT, "b": [9] + PROMPT}
        for name, prompt in prompts.items():
            engine.add(name, prompt, 24)
        requests = dict(engine.scheduler.requests)
        while not all(request.is_finished() for request in requests.values()):
            engine.step()
        assert sum(request.num_preemptions for request in requests.values()) > 0
        for name, prompt in prompts.items():
            assert list(requests[name].output_token_ids) == answer(prompt, max_tokens=24)


def test_a_pool_that_is_full_is_no_error(marud_program, answer):
    from with_marud import Marud
    with Marud(marud_program, size="8MiB") as small:
        with Engine(small.socket) as engine, maru.Client(str(small.socket), timeout_ms=60_000) as client:
            held = []
            try:
                while True:
                    held.append(client.alloc(4096))
            except maru.NoSpaceError:
                pass
            assert engine.run("a", PROMPT, 4) == answer(PROMPT)
            assert engine.workers[0].dropped == 5


def test_roles(pool, answer):
    with Engine(pool.socket, role="kv_consumer") as reader, Engine(pool.socket, role="kv_producer") as writer, \
            Engine(pool.socket, role="kv_consumer") as other:
        reader.run("a", PROMPT)
        assert reader.workers[0]._client.statistics().stores == 0
        writer.run("b", PROMPT)
        other.run("c", PROMPT)
        assert other.computed == len(PROMPT) - 5 * CHUNK
        writer.scheduler.reset_prefix_cache()
        writer.run("d", PROMPT)
        assert writer.computed == 2 * len(PROMPT)


def test_without_marud_everything_is_computed(marud_program, answer):
    from with_marud import Marud
    with Marud(marud_program) as running:
        with Engine(running.socket) as engine:
            running.process.kill()
            running.process.wait()
            assert engine.run("a", PROMPT, 4) == answer(PROMPT)


@pytest.mark.parametrize("role", ["kv_both", "kv_consumer"])
def test_an_engine_starts_without_marud_and_attaches_later(marud_program, caplog, monkeypatch, answer, role):
    from with_marud import PATIENCE, Marud
    monkeypatch.setattr(engine_pool, "LOOK_S", 0)
    with Marud(marud_program, size="64MiB") as running:
        running.process.terminate()
        running.process.wait(PATIENCE)
        with pytest.raises(maru.MaruError):
            Engine(running.socket, maru_required=True)
        with Engine(running.socket, prefix_caching=False, role=role) as engine:
            halves = [engine.connector, *engine.workers]
            assert engine.run("without", PROMPT, 4) == answer(PROMPT)
            said = [record.message for record in caplog.records if record.name == "vllm.maru"]
            assert sum("no pool to attach to" in message for message in said) == len(halves) == len(said)
            running.begin()
            deadline = time.monotonic() + PATIENCE
            turns = itertools.count()
            while not all(half._pool.is_attached for half in halves):
                assert time.monotonic() < deadline
                assert engine.run(f"meanwhile {next(turns)}", PROMPT, 4) == answer(PROMPT)
            with Engine(running.socket) as other:
                other.run("stored by another", PROMPT)
            before = engine.computed
            assert engine.run("with", PROMPT, 4) == answer(PROMPT)
            assert engine.computed - before == len(PROMPT) - 5 * CHUNK + 3


def test_an_engine_goes_on_with_another_pool_of_the_name(marud_program, caplog, monkeypatch):
    from with_marud import PATIENCE, Marud
    monkeypatch.setattr(engine_pool, "LOOK_S", 0)
    with Marud(marud_program, size="64MiB") as running, Engine(running.socket, prefix_caching=False) as engine:
        generated = engine.run("a", PROMPT, 4)
        halves = [engine.connector, *engine.workers]
        before = [half._client for half in halves]
        running.process.terminate()
        running.process.wait(PATIENCE)
        shutil.rmtree(running.socket.parent / "state")  # else marud would make the old pool of what clients bring along
        running.begin()
        deadline = time.monotonic() + PATIENCE
        turns = itertools.count()
        while any(half._client is old for half, old in zip(halves, before)):
            assert time.monotonic() < deadline
            assert engine.run(f"meanwhile {next(turns)}", PROMPT, 4) == generated
        said = [record.message for record in caplog.records if record.name == "vllm.maru"]
        assert sum("pool is gone" in message for message in said) == len(halves)
        assert engine.run("b", PROMPT, 4) == generated  # and stored, if it was not
        with Engine(running.socket) as other:
            assert other.run("c", PROMPT, 4) == generated
            assert other.computed == len(PROMPT) - 5 * CHUNK + 3
