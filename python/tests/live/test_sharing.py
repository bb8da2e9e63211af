"""Engines that share a pool: what one computed the other loads, and answers as an engine that computes all of it."""
import random

from conftest import CHUNK, loadable


def test_another_process_loads_what_one_computed(first, second, tokens, right):
    prompts = [tokens(n) for n in (CHUNK, CHUNK + 1, 300, 1000, 2 * CHUNK, 2500)]
    expected = right(prompts)
    assert first.answers(prompts)["tokens"] == expected
    first.ask("settle")
    again = second.answers(prompts)
    assert again["tokens"] == expected
    assert again["cached"] == [loadable(prompt) for prompt in prompts]


def test_an_engine_that_loads_nonsense_is_seen(first, start, shared, tokens, right):
    """The negative control of all tests here."""
    prompts = [tokens(n) for n in (300, 1000, 2500)]
    expected = right(prompts)
    assert first.answers(prompts)["tokens"] == expected
    first.ask("settle")
    with start("wrong", shared, "WrongConnector", role="kv_consumer") as wrong:
        again = wrong.answers(prompts)
    assert again["cached"] == [loadable(prompt) for prompt in prompts]
    assert all(answer != correct for answer, correct in zip(again["tokens"], expected))


def test_the_turns_of_a_conversation_go_to_one_engine_and_the_other(first, second, tokens, right):
    prompt, before = tokens(700), 0
    for turn in range(4):
        engine, n = (first, second)[turn % 2], 70
        answer = engine.answers([prompt], n)
        assert answer["tokens"] == right([prompt], n)
        if turn:
            assert answer["cached"][0] >= before // CHUNK * CHUNK > 0, "the other engine stored what it generated"
        engine.ask("settle")
        prompt = prompt + answer["tokens"][0]
        before = len(prompt) - 1  # the last token that was generated has left nothing in the cache
        prompt = prompt + tokens(200)


def test_two_engines_at_once_on_the_same_prompts(first, second, tokens, right):
    beginnings = [tokens(600) for _ in range(3)]
    chance = random.Random(1)
    for _ in range(2):
        prompts = [beginning + tokens(200) for beginning in beginnings for _ in range(2)]
        expected = dict(zip(map(tuple, prompts), right(prompts)))
        orders = [chance.sample(prompts, len(prompts)) for _ in range(2)]
        for engine, order in zip((first, second), orders):
            engine.send("generate", prompts=order, tokens=8, together=chance.random() < 0.5)
        for engine, order in zip((first, second), orders):
            assert engine.reply()["tokens"] == [expected[tuple(prompt)] for prompt in order]
    first.ask("settle"), second.ask("settle")


def test_after_its_prefix_cache_was_emptied_an_engine_loads_from_the_pool(second, tokens, right):
    prompts = [tokens(1000)]
    assert second.answers(prompts)["tokens"] == right(prompts)
    second.ask("settle")
    assert second.ask("forget") == {"done": True}
    again = second.answers(prompts)
    assert again["tokens"] == right(prompts) and again["cached"] == [loadable(prompts[0])]


def test_an_engine_that_computes_in_small_pieces_and_is_reset(start, shared, first, tokens, right):
    pieces, prompts = [tokens(n) for n in (900, 1500)], [tokens(1000)]
    assert first.answers(pieces[:1])["tokens"] == right(pieces[:1])
    first.ask("settle")
    with start("pieces", shared, max_num_batched_tokens=384) as engine:
        answer = engine.answers(pieces)
        assert answer["tokens"] == right(pieces) and answer["cached"] == [loadable(pieces[0]), 0]
        engine.ask("settle")
        assert first.answers(pieces)["cached"][1] == loadable(pieces[1])
        assert engine.answers(prompts)["tokens"] == right(prompts)
        engine.ask("settle")
        assert engine.ask("forget", connector=True) == {"done": True}
        assert engine.answers(prompts)["tokens"] == right(prompts)
        assert engine.ask("forget") == {"done": True}
        engine.ask("settle")
        again = engine.answers(prompts)
        assert again["tokens"] == right(prompts) and again["cached"] == [loadable(prompts[0])], "of after the reset"
        later = [tokens(1000)]
        engine.answers(later)
        engine.ask("settle")
        assert first.answers(later)["cached"] == [0], "which others do not find"


def test_prompts_that_are_computed_at_once(start, shared, first, tokens, right):
    prompts, fresh = [tokens(n) for n in (900, 1700)], [tokens(n) for n in (900, 1700)]
    assert first.answers(prompts)["tokens"] == right(prompts)
    first.ask("settle")
    with start("at once", shared, enable_chunked_prefill=False, max_num_batched_tokens=4096) as engine:
        again = engine.answers(prompts)
        assert again["tokens"] == right(prompts) and again["cached"] == [loadable(prompt) for prompt in prompts]
        assert engine.answers(fresh)["tokens"] == right(fresh)
        engine.ask("settle")
    back = first.answers(fresh)
    assert back["tokens"] == right(fresh) and back["cached"] == [loadable(prompt) for prompt in fresh]


def test_a_drafting_engine_shares_with_one_that_does_not_draft(start, shared, first, tokens, right):
    part = tokens(40)
    prompts = [tokens(600) + part + tokens(20) + part]
    assert first.answers(prompts, 40)["tokens"] == right(prompts, 40)
    first.ask("settle")
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    with start("drafting", shared, speculative_config=drafts) as engine:
        again = engine.answers(prompts, 40)
        assert again["tokens"] == right(prompts, 40) and again["cached"] == [loadable(prompts[0])]
