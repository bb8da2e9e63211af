"""Copies of blocks of a KV cache between an engine's memory and a buffer, without torch: arrays of NumPy are the layers."""
import numpy
import pytest

from maru import _paged

BLOCKS = 16
# As dimensions of bytes, the blocks first; and in which order they lie in memory, the slowest first.
LAYOUTS = {
    "keys and values apart": ((BLOCKS, 1, 2, 4, 2, 16), (2, 0, 1, 3, 4, 5)),
    "keys and values in a block": ((BLOCKS, 1, 2, 4, 2, 16), (0, 1, 2, 3, 4, 5)),
    "latent": ((BLOCKS, 1, 4, 64), (0, 1, 2, 3)),
    "heads before tokens": ((BLOCKS, 1, 2, 4, 2, 16), (2, 0, 1, 4, 3, 5)),
    "smaller blocks": ((BLOCKS, 3, 2, 4, 16), (2, 0, 1, 3, 4)),
    "vLLM on a processor": ((BLOCKS, 1, 2, 2, 128, 32), (2, 0, 1, 3, 4, 5)),
    "vLLM on a processor, by block": ((BLOCKS, 1, 2, 2, 128, 32), (0, 1, 2, 3, 4, 5)),
    "the last blocks of more": ((BLOCKS, 1, 8), (0, 1, 2)),
    "one byte": ((BLOCKS, 1), (0, 1)),
}


def layer(name, seed):
    """An array of random bytes with the dimensions of a layout, that lie as it says."""
    shape, order = LAYOUTS[name]
    lying = numpy.random.default_rng(seed).integers(0, 256, [shape[i] for i in order], dtype=numpy.uint8)
    array = lying.transpose(numpy.argsort(order))
    assert array.shape == shape
    return array


def native(*arrays):
    return _paged.Layers([(array.ctypes.data, array.shape, array.strides) for array in arrays])


def block_bytes(*arrays):
    return sum(array[0].size for array in arrays)


def expected(arrays, blocks):
    return b"".join(numpy.ascontiguousarray(array[list(blocks)]).tobytes() for array in arrays)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("blocks", [[5], [5, 0, 9], [3, 4, 5, 6], [15, 14, 13], [0, 1, 2, 9, 10, 4, 5],
                                    list(range(BLOCKS)), []])
def test_bytes_are_those_of_the_layout_and_come_back(name, blocks):
    arrays = [layer(name, 1), layer(name, 2), layer("latent", 3)]
    buffer = bytearray(len(blocks) * block_bytes(*arrays))
    native(*arrays).gather(blocks, buffer)
    assert bytes(buffer) == expected(arrays, blocks)
    targets = [layer(name, 4), layer(name, 5), layer("latent", 6)]
    before = [target.copy() for target in targets]
    native(*targets).scatter(blocks, bytes(buffer))
    for target, old, source in zip(targets, before, arrays):
        assert (target[blocks] == source[blocks]).all()
        others = [block for block in range(BLOCKS) if block not in blocks]
        assert (target[others] == old[others]).all(), "nothing else is touched"


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_first_blocks_of_a_buffer_may_be_left_out(name):
    arrays, targets = [layer(name, 1), layer("latent", 2)], [layer(name, 3), layer("latent", 4)]
    buffer = bytearray(4 * block_bytes(*arrays))
    native(*arrays).gather([1, 2, 3, 4], buffer)
    native(*targets).scatter([7, 12], buffer, skip=1)
    for target, source in zip(targets, arrays):
        assert (target[[7, 12]] == source[[2, 3]]).all()


def test_layers_may_lie_within_a_larger_memory():
    whole = numpy.random.default_rng(1).integers(0, 256, (BLOCKS, 5, 8), dtype=numpy.uint8)
    part = whole[2:10, 1:3]
    buffer = bytearray(3 * 16)
    native(part).gather([7, 0, 1], buffer)
    assert bytes(buffer) == expected([part], [7, 0, 1])
    native(part).scatter([4], bytes(16))
    assert not part[4].any() and whole[6, 0].any() and whole[6, 3].any()


def test_what_cannot_be_copied_is_refused_and_nothing_is_written():
    array = layer("latent", 1)
    layers, size, before = native(array), array[0].size, array.copy()
    for block in (BLOCKS, -1):
        with pytest.raises(ValueError, match=f"no block {block} among 16"):
            layers.scatter([0, block], bytes(2 * size))
        with pytest.raises(ValueError, match=f"no block {block} among 16"):
            layers.gather([block], bytearray(size))
    for wrong in (lambda: layers.gather([0, 1], bytearray(size)), lambda: layers.gather([0], bytearray(size + 1)),
                  lambda: layers.scatter([0], bytes(size - 1))):
        with pytest.raises(ValueError, match="bytes is no whole number of blocks"):
            wrong()
    for blocks, skip in (([0, 1], 1), ([], 3), ([0], -1)):
        with pytest.raises(ValueError, match="are more than the 2 in the buffer"):
            layers.scatter(blocks, bytes(2 * size), skip)
    with pytest.raises((BufferError, TypeError)):
        layers.gather([0], bytes(size))  # not to be written to
    assert (array == before).all()
    for wrong in ([(0, (), ())], [(0, (1, 2), (2,))], [(0, (0, 2), (2, 1))], [(0, (1, 0), (2, 1))]):
        with pytest.raises(ValueError):
            _paged.Layers(wrong)
