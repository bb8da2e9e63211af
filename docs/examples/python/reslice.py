"""Four tensor-parallel ranks store a block of a prompt; eight ranks read it, each with its own heads."""
import maru
import numpy
from maru import layout

# The block of the whole model: one layout for all ranks of an engine is one block here, so blocks=1.
whole = layout.Layout(layers=32, heads=8, head_dim=128, page_tokens=16, blocks=1, dtype="float16", order="hnd")
four = [whole.slice(4, rank) for rank in range(4)]
eight = [whole.slice(8, rank) for rank in range(8)]


def key(block, rank, part):
    """Blocks of another layout have other keys."""
    return f"{block}/{rank}/{part.fingerprint.hex()}"


with maru.Client() as client:
    # Each of the four ranks stores what it has computed. Here each element is the number of its head in the model.
    for rank, part in enumerate(four):
        heads = numpy.arange(part.first_head, part.first_head + part.heads, dtype=numpy.float16)
        shape = (part.layers, part.outer, part.heads, part.page_tokens, part.head_dim)
        client.store_copy(key("block 7", rank, part), numpy.broadcast_to(heads[:, None, None], shape).copy())

    # An engine with eight ranks finds the parts of the four, and fills a buffer for each of its own.
    plan = layout.Reslice(four, eight)
    views = [client.retrieve(key("block 7", rank, part)) for rank, part in enumerate(four)]
    buffers = [numpy.empty(part.sizes.storage_bytes, numpy.uint8) for part in eight]
    plan.copy([view.data for view in views], buffers)

    print(f"{plan.bytes} bytes in {plan.runs} runs of {plan.run_bytes_min} bytes, {plan.moves} moves")
    print("heads of the eight ranks:", [float(buffer.view(numpy.float16).mean()) for buffer in buffers])
