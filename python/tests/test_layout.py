"""maru.layout: sizes and places, refusals, and re-slicing against NumPy's own indexing."""
import copy
import errno
import json
import pickle
import random
import threading

import numpy
import pytest

from maru import layout
from maru.errors import InvalidArgumentError

WHOLE = layout.Layout(layers=3, heads=8, head_dim=4, page_tokens=16, blocks=5, dtype="float16")


def of_order(order, **fields):
    usual = dict(layers=3, heads=8, head_dim=4, page_tokens=16, blocks=5, dtype="float16", order=order)
    return layout.Layout(**{**usual, **fields})


def values(blocks):
    """A number for each element: block, layer, outer, token, head, dim."""
    return numpy.arange(blocks * 3 * 2 * 16 * 8 * 4, dtype=numpy.uint16).reshape(blocks, 3, 2, 16, 8, 4)


def held(of, whole):
    """The bytes that a rank with this layout holds of the whole model."""
    heads = slice(of.first_head, of.first_head + of.heads)
    layers = slice(of.first_layer, of.first_layer + of.layers)
    part = whole[:, layers, :, :, heads, :]
    if of.order == "hnd":
        part = part.transpose(0, 1, 2, 4, 3, 5)
    if of.kind == "contiguous":
        return [bytearray(numpy.ascontiguousarray(part).tobytes())]
    axes = (1, 0, 2, 3, 4) if of.kind == "separate_outer" else (0, 1, 2, 3, 4)
    return [bytearray(numpy.ascontiguousarray(part[:, layer].transpose(axes)).tobytes()) for layer in range(of.layers)]


def storages_of(layouts, whole):
    return [storage for of in layouts for storage in held(of, whole)]


def ranks(whole, tensor_ranks, pipeline_ranks=1):
    return [whole.slice(tensor_ranks, rank, pipeline_ranks, stage) for stage in range(pipeline_ranks)
            for rank in range(tensor_ranks)]


@pytest.mark.parametrize("source, target", [
    (ranks(of_order("nhd"), 4), ranks(of_order("nhd"), 8)),
    (ranks(of_order("nhd"), 8), ranks(of_order("nhd"), 4)),
    (ranks(of_order("hnd"), 4), ranks(of_order("hnd"), 8)),
    ([of_order("nhd")], [of_order("hnd")]),
    ([of_order("nhd", kind="separate_outer")], [of_order("nhd")]),
    (ranks(of_order("hnd", kind="separate_block"), 2, 3), ranks(of_order("nhd", kind="separate_outer"), 16)),
])
def test_resliced_equals_numpys_indexing(source, target):
    whole = values(5)
    plan = layout.Reslice(source, target)
    targets = [bytearray(len(storage)) for storage in storages_of(target, whole)]
    plan.copy(storages_of(source, whole), targets)
    assert targets == storages_of(target, whole)
    assert plan.bytes == sum(map(len, targets))
    assert sum(run.bytes for run in plan) == plan.bytes and sum(1 for run in plan) == plan.runs
    assert (plan.source_storages, plan.target_storages) == (len(storages_of(source, whole)), len(targets))


def test_chosen_blocks_go_where_they_are_told():
    whole = values(5)
    plan = layout.Reslice([WHOLE], ranks(WHOLE, 2), source_blocks=[4, 0], target_blocks=[1, 3])
    targets = [bytearray(len(storage)) for storage in storages_of(ranks(WHOLE, 2), whole)]
    plan.copy(storages_of([WHOLE], whole), targets)
    expected = numpy.zeros_like(whole)
    expected[1], expected[3] = whole[4], whole[0]
    assert targets == storages_of(ranks(WHOLE, 2), expected)


def test_threads_share_a_plan():
    whole, source, target = values(5), ranks(WHOLE, 4), ranks(WHOLE, 8)
    plan, results = layout.Reslice(source, target), []

    def run():
        targets = [bytearray(len(storage)) for storage in storages_of(target, whole)]
        plan.copy(storages_of(source, whole), targets)
        results.append(targets == storages_of(target, whole))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_sizes_and_places():
    assert WHOLE.sizes == layout.Sizes(2, 1024, 1024, 2048, 6144, 6144, 1, 5 * 6144, 5 * 6144)
    assert WHOLE.locate(2, 1, 1) == layout.Part(0, 2 * 6144 + 2048 + 1024, 1024)
    assert WHOLE.locate_element(0, 0, 0, 1, 2, 3) == layout.Part(0, 64 + 16 + 6, 2)
    assert WHOLE.block_parts(4) == [layout.Part(0, 4 * 6144, 6144)]
    apart = of_order("nhd", kind="separate_outer", alignment=2048)
    assert apart.sizes.storages == 3 and len(apart.block_parts(0)) == 6
    part = WHOLE.slice(16, 5)
    assert (part.heads, part.first_head, part.heads_total) == (1, 2, 8)


def test_a_layout_goes_through_bytes_json_and_pickle():
    part = WHOLE.slice(4, 3, 3, 1)
    for again in (layout.Layout.decode(part.encode()), layout.Layout.from_json(part.to_json()),
                  pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert again == part and hash(again) == hash(part) and again.fingerprint == part.fingerprint
    assert len(part.encode()) == 128 and len(part.fingerprint) == 16
    members = json.loads(part.to_json())
    assert (members["heads"], members["first_head"], members["fingerprint"]) == (2, 6, part.fingerprint.hex())
    assert layout.Layout.from_json(json.dumps(dict(reversed(members.items())), indent=2)) == part
    assert WHOLE == of_order("nhd", heads_total=8, layers_total=3, alignment=0)
    assert WHOLE.fingerprint == of_order("nhd", blocks=99).fingerprint != of_order("hnd").fingerprint


@pytest.mark.parametrize("call, number, words", [
    (lambda: of_order("nhd", layers=0), errno.EINVAL, "layers is 0, expected 1 to"),
    (lambda: of_order("nhd", outer=3), None, "outer is 3, expected 1 to 2"),
    (lambda: of_order("dhn"), None, "order is 'dhn', expected one of nhd, hnd"),
    (lambda: of_order("nhd", dtype="float17"), None, "dtype is 'float17'"),
    (lambda: of_order("nhd", blocks=-1), None, "blocks is a whole number of 64 bits, not -1"),
    (lambda: of_order("nhd", blocks=True), None, "blocks is a whole number of 64 bits, not True"),
    (lambda: of_order("nhd", blocks=1 << 40, page_tokens=1 << 20), errno.EOVERFLOW, "more than"),
    (lambda: WHOLE.locate(5, 0), errno.ERANGE, "there is no block 5; the layout has 5, from 0"),
    (lambda: WHOLE.locate_element(0, 0, 0, 0, 8, 0), errno.ERANGE, "there is no head 8"),
    (lambda: WHOLE.block_parts(5), errno.ERANGE, "there is no block 5"),
    (lambda: WHOLE.slice(3, 0), errno.EINVAL, "3 ranks cannot share 8 heads evenly"),
    (lambda: layout.Layout.decode(b""), errno.EBADMSG, "found 0 bytes, expected 128"),
    (lambda: layout.Layout.decode("x"), None, "read from bytes"),
    (lambda: layout.Layout.from_json("{"), errno.EBADMSG, "the JSON text ends at byte 1"),
    (lambda: layout.Layout.from_json("{\"\udc80\": 1}"), errno.EBADMSG, "which no layout has"),
    (lambda: layout.Layout.from_json(b"{}"), None, "JSON is text"),
    (lambda: layout.choose_kind("layer_separate", [2, 2], 2), errno.ENOTUNIQ, "wish for separate_outer or separate_block"),
    (lambda: layout.choose_kind("separate_outer", [100, 2], 100), errno.EINVAL, "contradicts a shape"),
    (lambda: layout.choose_kind("sideways", [100, 2], 100), errno.EINVAL, "found the kind \"sideways\""),
    (lambda: layout.Reslice([WHOLE], [of_order("nhd", dtype="float32")]), errno.EINVAL, "dtype of target 0 is 7, expected 5"),
    (lambda: layout.Reslice(ranks(WHOLE, 4)[:3], [WHOLE]), errno.ENODATA, "no source has head 6 of layer 0"),
    (lambda: layout.Reslice([], [WHOLE]), errno.EINVAL, "there are 0 sources"),
    (lambda: layout.Reslice([WHOLE], ["x"]), None, "targets are layouts"),
    (lambda: layout.Reslice([WHOLE], [WHOLE], [], []), errno.EINVAL, "there are 0 source blocks"),
    (lambda: layout.Reslice([WHOLE], [WHOLE], [0, 1], [2, 2]), errno.EINVAL, "the target block 2 is to be filled twice"),
])
def test_refusals_say_what_was_found(call, number, words):
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert words in str(raised.value) and raised.value.errno == number


@pytest.mark.parametrize("wish, shape, kind", [
    ("Layer-Separate", [100, 2, 16], "separate_block"), ("layer_separate", [2, 100, 16], "separate_outer"),
    ("layer_separate", [], "separate_outer"), ("FullyContiguous", [1], "contiguous"),
])
def test_a_kind_is_found(wish, shape, kind):
    assert layout.choose_kind(wish, shape, 100) == kind


def test_storages_that_do_not_fit_are_refused_and_let_go():
    plan = layout.Reslice([WHOLE], ranks(WHOLE, 2))
    source, small = bytearray(WHOLE.sizes.storage_bytes), bytearray(10)
    half = bytearray(WHOLE.sizes.storage_bytes // 2)
    gaps = numpy.zeros(WHOLE.sizes.storage_bytes, numpy.uint8)[::2]
    for sources, targets in (([source], [half]), ([source], [half, small]), ([source], [half, half]),
                             ([source], [half, bytes(half)]), ([source], [half, gaps]), ([source], [half, None]),
                             ([7], [half, bytearray(half)])):
        with pytest.raises(InvalidArgumentError):
            plan.copy(sources, targets)
    for each in (source, half, small):
        each.append(0)  # nothing holds it


def test_any_bytes_are_read_or_refused():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, good = random.Random(seed), WHOLE.encode()
    for _ in range(2000):
        changed = bytearray(good)
        for _ in range(chance.randrange(4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            assert layout.Layout.decode(bytes(changed)) == WHOLE
        except InvalidArgumentError as error:
            assert str(error)
