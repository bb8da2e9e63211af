"""Copies between the memory of a GPU and the pool, with a stand-in for torch.cuda that does everything as late as it may, and a
real marud: the order of what happens, and the bytes. No GPU has run any of this."""
import concurrent.futures
import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not here: scripts/test-engines installs it")
import numpy  # noqa: E402
from late_runtime import LateRuntime  # noqa: E402

import maru  # noqa: E402
from maru import device_copies, registered_pool  # noqa: E402
from maru.device_copies import Chunk, DeviceCopies, DeviceCopyError  # noqa: E402
from maru.paged_layers import PagedLayers  # noqa: E402

BLOCKS, PER_CHUNK = 24, 4
LAYOUTS = {  # of a layer, whose bytes are numbers of this kind
    "keys and values apart": ((2, BLOCKS, 4, 2, 8), torch.float32),
    "keys and values in a block": ((BLOCKS, 2, 4, 2, 8), torch.bfloat16),
    "latent": ((BLOCKS, 4, 9), torch.bfloat16),
    "no whole number of which is a page": ((2, BLOCKS, 4, 2, 12), torch.float32),
    "one byte": ((BLOCKS, 3, 5), torch.uint8),
}
A, B, C = [3, 4, 5, 6], [20, 1, 17, 9], [0, 23, 11, 10]


class Kv:
    """A KV cache of three layers, the last of which has two names."""

    def __init__(self, runtime, layout, seed):
        kinds = [layout] * 3 if layout in LAYOUTS else ["one byte", "keys and values in a block", "latent"]
        torch.manual_seed(seed)
        self.tensors = [torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8).view(dtype)
                        for shape, dtype in map(LAYOUTS.get, kinds)]
        self.layers = PagedLayers({**dict(zip("abc", self.tensors)), "d": self.tensors[2]}, BLOCKS)
        self.copies = DeviceCopies(self.layers.by_block, runtime, PER_CHUNK)
        self.nbytes = PER_CHUNK * self.layers.block_bytes

    def bytes_of(self, blocks):
        into = bytearray(len(blocks) * self.layers.block_bytes)
        self.layers.gather(blocks, into)
        return bytes(into)


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    """So that layers and chunks do not all fit in at once."""
    monkeypatch.setattr(device_copies, "BUFFER_BYTES", 2000)


@pytest.fixture
def runtime():
    made = LateRuntime()
    yield made
    for stream in made.made_streams:
        stream.error = stream.error or "the test is over"
        stream.let()
    assert not made.wrong_copies


def know(kv, client, data, writes):
    """Has these bytes registered, as the second copy finds them."""
    pool = kv.copies.registered(client)
    found = pool.use(Chunk.at([], data).address, len(data), writes)
    pool.wait_until_idle()
    if found is not None:
        found.release()


def store(kv, client, key, blocks, is_known, after=None):
    buffer = client.alloc(kv.nbytes)
    if is_known:
        know(kv, client, buffer.data, True)
    else:
        kv.copies._runtime.refusal = 2
    kv.copies.store(client, after or kv.copies.now(), [Chunk.at(blocks, buffer.data)])
    client.store(key, buffer)


@pytest.mark.parametrize("is_known", [True, False], ids=["registered", "staged"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "layers of several kinds"])
def test_bytes_are_those_of_the_processor_and_come_back(runtime, client, other, key, layout, is_known):
    refusal = {} if is_known else {"refusal": 2}
    runtime.refusal = 0 if is_known else 2
    source, target = Kv(runtime, layout, 1), Kv(LateRuntime(**refusal), layout, 2)
    before = target.bytes_of(range(BLOCKS))
    for name, blocks in (("a", A), ("b", B), ("c", C)):
        store(source, client, key + name, blocks, is_known)
    views = [other.retrieve(key + name) for name in "abc"]
    assert [bytes(view.data) for view in views] == [source.bytes_of(blocks) for blocks in (A, B, C)]
    know(target, other, views[0].data, False)
    loading = target.copies.load(other, target.copies.now(), [
        Chunk.at([2, 0, 7], views[0].data, 1), Chunk.at([8, 9, 10, 11], views[1].data), Chunk.at([23], views[2].data)],
        PER_CHUNK, True)
    if is_known:
        assert target.bytes_of(range(BLOCKS)) == before, "nothing waits for it yet"
    loading.wait()
    assert target.bytes_of([2, 0, 7]) == source.bytes_of(A[1:])
    assert target.bytes_of([8, 9, 10, 11, 23]) == source.bytes_of([*B, C[0]])
    untouched = [block for block in range(BLOCKS) if block not in (2, 0, 7, 8, 9, 10, 11, 23)]
    assert target.bytes_of(untouched) == Kv(runtime, layout, 2).bytes_of(untouched)
    for view in views:
        view.release()
    for device in (runtime, target.copies._runtime):
        assert bool(device.copied["where it lies"]) is is_known and not device.wrong_copies


def test_a_kv_cache_may_have_been_made_in_inference_mode(runtime, client, key):
    """As vLLM's. A thread that stores is in no such mode, which would be refused."""
    with torch.inference_mode():
        kv = Kv(runtime, "latent", 1)
    runtime.refusal = 2
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        for i in range(3):  # the last is staged where the first was
            other.submit(store, kv, client, f"{key} {i}", A, False).result()
    with client.retrieve(f"{key} 2") as view, torch.inference_mode():
        kv.copies.load(client, kv.copies.now(), [Chunk.at(B, view.data)] * 3, PER_CHUNK, True).wait()
    assert kv.bytes_of(B) == kv.bytes_of(A)


def test_many_chunks_are_staged_one_after_the_other(runtime, client, key):
    """There are fewer places in page-locked memory than chunks."""
    source, target = Kv(runtime, "latent", 1), Kv(runtime, "latent", 2)
    runtime.refusal = 2
    blocks = [[(7 * i + k) % BLOCKS for k in range(PER_CHUNK)] for i in range(6)]
    buffers = client.alloc_batch(source.nbytes, 6)
    chunks = [Chunk.at(each, buffer.data) for each, buffer in zip(blocks, buffers)]
    source.copies.store(client, source.copies.now(), chunks)
    assert [bytes(buffer.data) for buffer in buffers] == [source.bytes_of(each) for each in blocks]
    into = [[4 * i + k for k in range(PER_CHUNK)] for i in range(6)]
    target.copies.load(client, target.copies.now(), [Chunk(to, chunk.address) for to, chunk in zip(into, chunks)], PER_CHUNK,
                       False).wait()
    assert [target.bytes_of(to) for to in into] == [source.bytes_of(each) for each in blocks]
    for buffer in buffers:
        buffer.abort()


def test_a_copy_is_cut_where_a_registration_ends(runtime, client, key, monkeypatch):
    monkeypatch.setattr(registered_pool, "RegisteredPool",
                        functools.partial(registered_pool.RegisteredPool, piece_bytes_max=4096))
    source, target = (Kv(runtime, "no whole number of which is a page", seed) for seed in (1, 2))
    assert source.nbytes == 9216
    store(source, client, key, A, True)
    with client.retrieve(key) as view:
        know(target, client, view.data, False)
        target.copies.load(client, target.copies.now(), [Chunk.at(B[1:], view.data, 1)], PER_CHUNK, True).wait()
    assert target.bytes_of(B[1:]) == source.bytes_of(A[1:])
    assert runtime.copied["where it lies"] == 2 * (3 + 2), "two of three layers go over the end of a piece"


def test_a_store_takes_what_the_engine_computes_before_it_and_not_what_comes_later(runtime, client, key):
    kv = Kv(runtime, "latent", 1)
    runtime.compute.run(lambda: [tensor.fill_(3) for tensor in kv.tensors])
    after = kv.copies.now()
    store(kv, client, key, A, True, after)
    with client.retrieve(key) as view:
        assert bytes(view.data) == kv.bytes_of(A) and bytes(view.data[:18]) == torch.full((9,), 3.0).bfloat16().view(
            torch.uint8).numpy().tobytes()


def test_a_load_waits_until_the_engine_has_done_with_the_blocks(runtime, client, key):
    source, target = Kv(runtime, "latent", 1), Kv(runtime, "latent", 2)
    store(source, client, key, A, True)
    runtime.compute.run(lambda: [tensor.fill_(3) for tensor in target.tensors])  # of the request that had these blocks
    with client.retrieve(key) as view:
        loading = target.copies.load(client, target.copies.now(), [Chunk.at(B, view.data)], PER_CHUNK, False)
        loading.wait()
        runtime.compute.synchronize()
        assert target.bytes_of(B) == source.bytes_of(A)


def test_what_uses_a_layer_waits_on_the_device_for_that_layer(runtime, client, key):
    source, target = Kv(runtime, "latent", 1), Kv(runtime, "latent", 2)
    store(source, client, key, A, True)
    with client.retrieve(key) as view:
        loading = target.copies.load(client, target.copies.now(), [Chunk.at(B, view.data)], PER_CHUNK, True)
        seen = {}
        with target.copies._loads.stream.held():
            for number in range(3):
                target.copies.hold_back(loading.layers[number])  # returns at once
                runtime.compute.run(lambda number=number: seen.update({number: target.bytes_of(B)}))
            assert not seen
        runtime.compute.synchronize()
        ends = numpy.cumsum([0, *(PER_CHUNK * size for size in target.copies._sizes)])
        for number in range(3):
            assert seen[number][:ends[number + 1]] == source.bytes_of(A)[:ends[number + 1]]
        assert seen[0] != source.bytes_of(A), "the first layer waited for no other"
        loading.wait()


def test_memory_stays_in_use_until_the_event(runtime, client, key):
    kv = Kv(runtime, "latent", 1)
    store(kv, client, key, A, True)
    pool = kv.copies.registered(client)
    with client.retrieve(key) as view:
        loading = kv.copies.load(client, kv.copies.now(), [Chunk.at(B, view.data)], PER_CHUNK, False)
        assert [piece.users for piece in pool._pieces.values()] == [1]
        loading.wait()
        assert [piece.users for piece in pool._pieces.values()] == [0]


@pytest.mark.parametrize("is_known", [True, False], ids=["registered", "staged"])
@pytest.mark.parametrize("how", ["refused", "fails"])
@pytest.mark.parametrize("what", ["stores", "loads"])
def test_a_copy_that_fails_leaves_nothing_under_way(runtime, client, key, what, how, is_known):
    kv = Kv(runtime, "latent", 1)
    store(kv, client, key, A, is_known)
    side = {"stores": kv.copies._stores, "loads": kv.copies._loads}[what]
    buffers = client.alloc_batch(kv.nbytes, 3)
    if how == "refused":
        given = []
        run = side.stream.run
        side.stream.run = lambda work: run(work) if not given.append(1) and len(given) < 3 else runtime.raise_refusal()
    else:
        side.stream.fails = True
    with client.retrieve(key) as view:
        with pytest.raises(DeviceCopyError, match="CUDA error"):
            if what == "stores":
                kv.copies.store(client, kv.copies.now(), [Chunk.at(A, buffer.data) for buffer in buffers])
            else:
                kv.copies.load(client, kv.copies.now(), [Chunk.at(A, view.data)] * 3, PER_CHUNK, True).wait()
    assert side.stream.error or side.stream.done == side.stream.given, "what was begun has ended"
    assert all(piece.users == 0 for piece in kv.copies.registered(client)._pieces.values())
    for buffer in buffers:
        buffer.abort()


def test_a_pool_that_has_gone_is_copied_from_all_the_same(runtime, marud, key):
    kv = Kv(runtime, "latent", 1)
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    store(kv, client, key, A, False)
    view = client.retrieve(key)
    data = view.data
    client.close()
    registered_pool._of_client.clear()
    kv.copies.load(client, kv.copies.now(), [Chunk.at(B, data)], PER_CHUNK, False).wait()
    assert kv.bytes_of(B) == kv.bytes_of(A) and kv.copies.registered(client) is None
    view.release()
