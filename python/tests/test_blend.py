"""maru.blend: chunks found anywhere, second names, and the operations of LMCache's blend server."""
import gc
import random

import numpy
import pytest

import maru
from maru import blend
from maru.errors import ClosedError, HasChildrenError, InvalidArgumentError, MaruError

WINDOW = 16


@pytest.fixture
def spans(client, key):
    return blend.Spans(client, key, WINDOW)


@pytest.fixture
def reading(other, key):
    return blend.Spans(other, key, WINDOW)


def chunk_of(first):
    return numpy.arange(first, first + WINDOW, dtype=numpy.uint32)


def test_a_chunk_is_found_behind_other_tokens(spans, reading, other):
    assert spans.store(chunk_of(100), 320, b"its bytes", note=b"a note")
    assert not spans.store(chunk_of(100), 320, b"again")
    prompt = [1, 2, 3, *range(100, 100 + WINDOW), 4]
    with reading.find(prompt) as found:
        (span,) = found
        assert (span.old_start, span.old_end, span.new_start, span.new_end) == (320, 336, 3, 19)
        assert span.shift == -317 and found.tokens == WINDOW and not span.is_segment
        assert bytes(span.views[0].data) == b"its bytes" and span.note == b"a note"
        assert other.statistics().pins == 1
    assert other.statistics().pins == 0


def test_tokens_in_any_form(spans, reading):
    spans.store(chunk_of(7), 0, b"x")
    as_list = list(range(7, 7 + WINDOW))
    for tokens in (as_list, tuple(as_list), numpy.array(as_list), numpy.array(as_list, numpy.uint32),
                   numpy.array(as_list * 2, numpy.uint32)[::2][:0].tolist() + as_list, memoryview(chunk_of(7))):
        assert len(reading.find(tokens)) == 1
    for bad in ([-1], [2**32], ["1"], 5, [1.5], None):
        with pytest.raises(InvalidArgumentError):
            reading.find(bad)
    with pytest.raises(InvalidArgumentError, match="16"):
        spans.store([1, 2], 0, b"x")


def test_views_hold_what_they_show_after_all_else_is_gone(spans, reading, other):
    spans.store(chunk_of(300), 0, bytes(range(64)))
    found = reading.find(chunk_of(300))
    array = numpy.frombuffer(found[0].views[0].data, numpy.uint8)
    found.release()
    del found
    gc.collect()
    assert other.statistics().pins == 1 and array.tolist() == list(range(64))
    del array
    gc.collect()
    assert other.statistics().pins == 0


def test_a_second_name_leads_to_the_blocks_of_the_chain(client, spans, reading, key):
    parent = None
    for i in range(3):
        parent = client.store_copy(f"{key} {i}", f"block {i}".encode(), parent=parent).block
    assert spans.name(chunk_of(900), 48, parent, 2)
    with reading.find([5, *chunk_of(900)]) as found:
        assert [bytes(view.data) for view in found[0].views] == [b"block 1", b"block 2"]
    with pytest.raises(HasChildrenError):
        client.delete(f"{key} 2")
    assert spans.forget(chunk_of(900)) == 1
    assert client.delete(f"{key} 2")
    with pytest.raises(MaruError):
        spans.name(chunk_of(900), 48, parent, 2)


def test_the_prefix_comes_first_and_segments_follow(client, spans, reading, key):
    keys = [f"{key} {i}" for i in range(4)]
    for i in (0, 2):
        client.store_copy(keys[i], f"block {i}".encode())
    spans.store(chunk_of(5000), 0, b"moved")
    prompt = numpy.concatenate([numpy.arange(3 * WINDOW), chunk_of(5000)])
    with reading.find(prompt, prefix_keys=keys, prefix_key_tokens=WINDOW, segments=True) as found:
        assert found.prefix_tokens == WINDOW and bytes(found.prefix_views[0].data) == b"block 0"
        assert [(span.is_segment, span.new_start) for span in found] == [(True, 2 * WINDOW), (False, 3 * WINDOW)]
    with reading.find(prompt, prefix_keys=keys, prefix_key_tokens=WINDOW, skip_first=True) as found:
        assert len(found) == 0
    assert len(reading.find(prompt, step=WINDOW)) == 1 and len(reading.find(prompt, first=3 * WINDOW + 1)) == 0
    assert len(reading.find(prompt, tokens_min=WINDOW + 1)) == 0


def test_occupants_and_the_nearest_one(client, other, key):
    spans = blend.Spans(client, key, WINDOW, occupants=2)
    assert spans.store(chunk_of(1), 1000, b"far") and spans.store(chunk_of(1), 10, b"near")
    assert not spans.store(chunk_of(1), 5, b"third")
    with blend.Spans(other, key, WINDOW, occupants=2).find([0, *chunk_of(1)]) as found:
        assert bytes(found[0].views[0].data) == b"near"


def test_tenants_and_spaces_never_meet(client, other, key):
    blend.Spans(client, key, WINDOW, tenant="alice").store(chunk_of(1), 0, b"hers")
    for space, tenant, expected in ((key, "alice", 1), (key, "bob", 0), (key, None, 0), (key + ".", "alice", 0)):
        assert len(blend.Spans(other, space, WINDOW, tenant=tenant).find(chunk_of(1))) == expected


def test_what_cannot_be_is_refused(client, key):
    for space, window in (("", 16), ("x" * 4097, 16), (5, 16), (key, 0), (key, 16129), (key, "16")):
        with pytest.raises(InvalidArgumentError):
            blend.Spans(client, space, window)
    with pytest.raises(InvalidArgumentError, match="256"):
        blend.Spans(client, key, WINDOW).store(chunk_of(1), 0, b"x", note=b"n" * 257)
    with pytest.raises(ClosedError):
        maru._maru.Spans.__new__(maru._maru.Spans).find(chunk_of(1), (), 0, 0, 1, 0, 0, 0)


def test_a_closed_client_ends_its_spans(marud, key):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    spans = blend.Spans(client, key, WINDOW)
    spans.store(chunk_of(1), 0, b"x")
    found = spans.find(chunk_of(1))
    client.close()
    with pytest.raises(ClosedError):
        spans.find(chunk_of(1))
    found.release()


# -- the operations of LMCache's blend server --------------------------------------------------------------------------

LAYERS, HEADS, HEAD_DIM, ROOM = 2, 2, 8, 256
ROPE = blend.Rope(head_dim=HEAD_DIM)


def computed(tokens, at):
    """Keys and values as a model without attention between tokens would have them: of the token, keys turned to their place."""
    raw = numpy.stack([numpy.random.default_rng(token).standard_normal((LAYERS, 2, HEADS, HEAD_DIM)) for token in tokens],
                      axis=2)
    keys = numpy.ascontiguousarray(raw[:, 0]).astype(numpy.float32)
    for index in range(len(tokens)):
        blend.rerotate(keys[:, index:index + 1], 0, at + index, ROPE)
    return numpy.stack([keys, raw[:, 1].astype(numpy.float32)], axis=1)


class Engine:
    """With a KV cache of its own, registered with operations over one client."""

    def __init__(self, client, instance, model, **options):
        self.caches = [numpy.zeros((2, ROOM, HEADS, HEAD_DIM), numpy.float32) for _ in range(LAYERS)]
        self.instance = instance
        self.operations = blend.Operations(client, WINDOW, **options)
        self.operations.cb_register_kv_cache(instance, self.caches, model)
        self.operations.cb_register_rope(instance, ROPE)

    def compute(self, tokens, offset, at=0):
        for cache, layer in zip(self.caches, computed(tokens, at)):
            cache[:, offset:offset + len(tokens)] = layer

    def expect(self, tokens, offset, at):
        for cache, layer in zip(self.caches, computed(tokens, at)):
            assert numpy.allclose(cache[:, offset:offset + len(tokens)], layer, atol=1e-5)


def document(seed, chunks):
    return numpy.random.default_rng(seed).integers(0, 50_000, chunks * WINDOW).tolist()


def test_pre_computed_documents_are_retrieved_in_another_order(client, other, key):
    writer, reader = Engine(client, 1, key), Engine(other, 2, key)
    first, second = document(1, 3), document(2, 2)
    for tokens in (first, second):
        writer.compute(tokens, 8)
        assert writer.operations.cb_store_pre_computed(blend.Key(key, tokens), 8, 1, b"event") == (b"event", True)
    prompt = [11, 12, *second, 13, *first, 14]
    asked = blend.Key(key, prompt)
    expected = [(2 + i * WINDOW, 2 + (i + 1) * WINDOW) for i in range(2)] + [(35 + i * WINDOW, 35 + (i + 1) * WINDOW)
                                                                            for i in range(3)]
    assert reader.operations.cb_lookup_pre_computed(asked) == expected
    matches = reader.operations.cb_lookup_pre_computed_v2(asked)
    assert [(m.cur_st, m.cur_ed) for m in matches] == expected
    assert [m.old_st for m in matches] == [0, 16, 0, 16, 32]
    for ranges in (expected, matches):
        for cache in reader.caches:
            cache[:] = 0
        assert reader.operations.cb_retrieve_pre_computed(asked, ranges, 4, 2) == (b"", True)
        reader.expect(second, 4 + 2, 2)
        reader.expect(first, 4 + 35, 35)
    assert reader.operations.cb_retrieve_pre_computed_v2(asked, matches, 4, 2)[1]


def test_a_final_sequence_is_a_prefix_and_its_chunks_are_found_elsewhere(client, other, key):
    writer, reader = Engine(client, 1, key), Engine(other, 2, key)
    sequence = document(3, 4)
    writer.compute(sequence, 0)
    before = client.count_blocks()[0]
    writer.operations.cb_store_final(blend.Key(key, sequence), 0, 1)
    assert client.count_blocks()[0] - before == 8, "four chunks, and a name for each"
    longer = blend.Key(key, sequence + document(4, 1))
    result = reader.operations.cb_unified_lookup(longer)
    assert result.prefix_coverage_tokens == 4 * WINDOW and not result.non_prefix_segments
    assert reader.operations.retrieve(longer, 0, 2) == 4 * WINDOW
    reader.expect(sequence, 0, 0)
    elsewhere = blend.Key(key, [9, *sequence[WINDOW:]])
    result = reader.operations.cb_unified_lookup(elsewhere)
    assert result.prefix_coverage_tokens == 0
    assert [(m.old_st, m.cur_st) for m in result.non_prefix_segments] == [(16, 1), (32, 17), (48, 33)]
    assert reader.operations.cb_retrieve_pre_computed(elsewhere, result.non_prefix_segments, 0, 2)[1]
    reader.expect(sequence[WINDOW:], 1, 1)


def test_tenants_models_and_what_is_gone(client, key):
    engine = Engine(client, 1, key)
    tokens = document(5, 1)
    engine.compute(tokens, 0)
    engine.operations.cb_store_pre_computed(blend.Key(key, tokens, cache_salt="a"), 0, 1)
    assert engine.operations.cb_lookup_pre_computed(blend.Key(key, tokens)) == []
    asked = blend.Key(key, tokens, cache_salt="a")
    (match,) = engine.operations.cb_lookup_pre_computed_v2(asked)
    with pytest.raises(InvalidArgumentError, match="No engine"):
        engine.operations.cb_lookup_pre_computed(blend.Key("another", tokens))
    client.delete_block(int.from_bytes(match.hash, "little"))
    for cache in engine.caches:
        cache[:] = 7
    assert not engine.operations.cb_retrieve_pre_computed(asked, [match], 0, 1)[1]
    assert all((cache == 7).all() for cache in engine.caches), "nothing was written for a chunk that is gone"
    engine.operations.cb_unregister_rope(1)
    engine.operations.cb_unregister_kv_cache(1)
    with pytest.raises(InvalidArgumentError, match="No KV cache"):
        engine.operations.cb_store_pre_computed(asked, 0, 1)


def test_chunks_survive_their_client(marud, client, key):
    writer = maru.Client(str(marud.socket), timeout_ms=60_000)
    engine = Engine(writer, 1, key)
    tokens = document(6, 2)
    engine.compute(tokens, 0)
    engine.operations.cb_store_pre_computed(blend.Key(key, tokens), 0, 1)
    writer.close()
    assert len(Engine(client, 2, key).operations.cb_lookup_pre_computed(blend.Key(key, [1, *tokens]))) == 2


def test_random_prompts_equal_a_slow_search(spans, reading):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    stored = {}
    for _ in range(40):
        tokens = tuple(rng.randrange(4) for _ in range(WINDOW))
        position = rng.randrange(1000)
        assert spans.store(tokens, position, bytes(tokens)) == (tokens not in stored)
        stored.setdefault(tokens, position)
    for _ in range(50):
        prompt = []
        for _ in range(5):
            prompt += rng.choice(list(stored))
            prompt += [rng.randrange(4) for _ in range(rng.randrange(9))]
        expected, at = [], 0
        while at + WINDOW <= len(prompt):
            position = stored.get(tuple(prompt[at:at + WINDOW]))
            if position is not None:
                expected.append((position, at))
            at += WINDOW if position is not None else 1
        with reading.find(prompt) as found:
            assert [(span.old_start, span.new_start) for span in found] == expected
