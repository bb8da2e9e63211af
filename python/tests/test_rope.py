"""maru.rope: frequencies of each scaling by formulas of their own, and keys moved against NumPy in double precision."""
import copy
import math
import pickle

import numpy
import pytest

from maru.errors import InvalidArgumentError
from maru.rope import Rope, rerotate


def turned(keys, shift, rope):
    """In double precision, of NumPy alone."""
    keys = keys.astype(numpy.float64)
    angles = shift * numpy.array(rope.frequencies())
    pairs = len(angles)
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs)) if rope.pairing == "neox" else (slice(0, 2 * pairs, 2),
                                                                                              slice(1, 2 * pairs, 2))
    out = keys.copy()
    out[..., first] = keys[..., first] * numpy.cos(angles) - keys[..., second] * numpy.sin(angles)
    out[..., second] = keys[..., first] * numpy.sin(angles) + keys[..., second] * numpy.cos(angles)
    return out


@pytest.mark.parametrize("pairing", ["neox", "gptj"])
@pytest.mark.parametrize("dtype, bound", [(numpy.float32, 2**-21), (numpy.float16, 2**-10)])
@pytest.mark.parametrize("rotary", [0, 24])
def test_keys_are_turned_by_the_difference_of_their_positions(pairing, dtype, bound, rotary):
    rope = Rope(head_dim=64, rotary_dim=rotary, pairing=pairing)
    random = numpy.random.default_rng(7)
    keys = random.standard_normal((2, 5, 3, 64)).astype(dtype)
    expected = turned(keys, 1000 - 12, rope)
    out = numpy.zeros_like(keys)
    before = keys.copy()
    assert rerotate(keys, 12, 1000, rope, out=out) is out
    assert (keys == before).all()
    assert numpy.abs(out - expected).max() <= bound * 8
    assert rerotate(keys, 12, 1000, rope) is keys
    assert (keys == out).all()


def test_heads_before_tokens_and_gaps_between():
    rope = Rope(head_dim=8)
    keys = numpy.arange(2 * 3 * 4 * 16, dtype=numpy.float32).reshape(2, 3, 4, 16)  # layer, head, token, and room
    expected = turned(keys[..., :8], 5, rope)
    rerotate(keys[..., :8].transpose(0, 2, 1, 3), 0, 5, rope)
    assert numpy.allclose(keys[..., :8], expected, rtol=1e-6, atol=1e-4)
    assert (keys[..., 8:] == numpy.arange(2 * 3 * 4 * 16).reshape(2, 3, 4, 16)[..., 8:]).all()


def test_bfloat16_in_an_array_of_uint16():
    rope = Rope(head_dim=4)
    values = numpy.array([[[1.0, 2.0, -3.0, 0.5]]], dtype=numpy.float32)
    keys = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    rerotate(keys, 0, 9, rope, dtype="bfloat16")
    result = (keys.astype(numpy.uint32) << 16).view(numpy.float32)
    assert numpy.abs(result - turned(values, 9, rope)).max() <= 2**-8 * 4


@pytest.mark.parametrize("keys, arguments, words", [
    (numpy.zeros((1, 1, 4), numpy.int32), {}, "int32"),
    (numpy.zeros((1, 4), numpy.float32), {}, "axes"),
    (numpy.zeros((1, 1, 6), numpy.float32), {}, "expected head_dim, 4"),
    (numpy.zeros((1, 1, 4), numpy.float32), {"out": numpy.zeros((1, 2, 4), numpy.float32)}, "different shapes"),
    (numpy.zeros((1, 1, 4), numpy.float32), {"out": numpy.zeros((1, 1, 4), numpy.float16)}, "float16"),
    (numpy.zeros((1, 1, 8), numpy.float32)[..., ::2], {}, "one behind the other"),
    (numpy.zeros((2, 1, 4), numpy.float32)[::-1], {}, "backwards"),
    (numpy.broadcast_to(numpy.float32(0), (1, 1, 4)), {}, "may be written"),
])
def test_what_cannot_be_turned_is_refused(keys, arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        rerotate(keys, 0, 1, Rope(head_dim=4), **arguments)


def test_positions_are_whole_numbers_in_their_range():
    keys = numpy.zeros((1, 1, 4), numpy.float32)
    for bad in (-1, 2**40 + 1, 1.5, "7"):
        with pytest.raises(InvalidArgumentError):
            rerotate(keys, bad, 1, Rope(head_dim=4))


@pytest.mark.parametrize("fields, words", [
    ({"head_dim": 5}, "even"), ({"head_dim": 4, "pairing": "other"}, "neox, gptj"),
    ({"head_dim": 4, "scaling": "x"}, "longrope"),
    ({"head_dim": 4, "base": 0}, "base"), ({"head_dim": "4"}, "field"), ({"head_dim": 4, "scaling": "longrope"}, "factors"),
    ({"head_dim": 4, "scaling": "longrope", "factors": [1, 2, 3]}, "expected 2"),
])
def test_ropes_that_cannot_be_are_refused(fields, words):
    with pytest.raises(InvalidArgumentError, match=words):
        Rope(**fields)


def test_a_rope_is_copied_and_pickled():
    rope = Rope(head_dim=8, scaling="longrope", factors=[1, 2, 3, 4])
    assert pickle.loads(pickle.dumps(rope)) == copy.deepcopy(rope) == rope
    assert pickle.loads(pickle.dumps(rope)).frequencies() == rope.frequencies()


def test_ropes_of_models_configurations():
    llama = Rope.from_config({"hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}})
    assert (llama.head_dim, llama.scaling, llama.factor) == (128, "llama3", 8)
    assert llama.frequencies()[0] == 1 and math.isclose(llama.frequencies()[63], 500000 ** (-63 / 64) / 8)
    partial = Rope.from_config({"head_dim": 80, "partial_rotary_factor": 0.4})
    assert partial.rotary_dim == 32
    phi = Rope.from_config({"head_dim": 4, "rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}},
                           is_long=True)
    assert phi.factors == (3, 4)
    yarn = Rope.from_config({"head_dim": 64, "max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 40}})
    assert yarn.original_positions == 4096
    with pytest.raises(InvalidArgumentError, match="mrope"):
        Rope.from_config({"head_dim": 64, "rope_scaling": {"type": "mrope"}})
