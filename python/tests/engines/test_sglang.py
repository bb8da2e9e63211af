"""MaruHiCacheStorage through SGLang's own factory and interface."""
import hashlib
import shutil
import time

import pytest

torch = pytest.importorskip("torch")
from model_folders import folder  # noqa: E402
from sglang_interface import PAGE, HiCacheStorageExtraInfo, HostPool, LoRARef, backend, page_names  # noqa: E402

import maru  # noqa: E402
from maru import engine_pool, sglang  # noqa: E402
from with_marud import PATIENCE, Marud  # noqa: E402


@pytest.fixture
def names(request):
    return [hashlib.sha256(f"{request.node.nodeid} {i}".encode()).hexdigest() for i in range(8)]


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_where_they_lie(pool, names, layout):
    """What SGLang calls with interface_v1."""
    here, there = HostPool(layout=layout).fill(1), HostPool(layout=layout)
    first, second = backend(pool.socket, here), backend(pool.socket, there)
    assert second.batch_exists(names) == 0
    assert first.batch_set_v1(names[:5], here.indices([3, 1, 4, 0, 5])) == [True] * 5
    assert second.batch_exists(names, HiCacheStorageExtraInfo(prefix_keys=None)) == 5
    assert second.exists(names[4]) and not second.exists(names[5])
    assert second.batch_get_v1(names[:6], there.indices([7, 8, 9, 10, 11, 12])) == [True] * 5 + [False]
    for source, target in zip([3, 1, 4, 0, 5], [7, 8, 9, 10, 11]):
        assert torch.equal(here.page(source), there.page(target))
    assert not there.page(12).any() and not there.page(6).any() and not there.page(13).any()


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_as_tensors(pool, names, layout):
    """What SGLang calls without interface_v1."""
    here, there = HostPool(layout=layout).fill(2), HostPool(layout=layout)
    extra = {"interface_v1": 0}
    first, second = backend(pool.socket, here, extra=extra), backend(pool.socket, there, extra=extra)
    assert first.batch_set(names[:3], [here.get_data_page(page * PAGE) for page in range(3)])
    assert first.set(names[3], here.get_data_page(3 * PAGE))
    assert second.batch_exists(names) == 4
    found = second.batch_get(names[:5], [there.get_dummy_flat_data_page() for _ in range(5)])
    assert found[4] is None
    for page, data in enumerate(found[:4]):
        there.set_from_flat_data_page(page * PAGE, data)
        assert torch.equal(here.page(page), there.page(page))
    assert torch.equal(second.get(names[0]), found[0]) and second.get(names[5]) is None


def test_the_two_interfaces_do_not_meet(pool, names):
    here = HostPool(layout="layer_first").fill(3)
    zero_copy, tensors = backend(pool.socket, here), backend(pool.socket, here, extra={"interface_v1": 0})
    zero_copy.batch_set_v1(names[:1], here.indices([0]))
    assert zero_copy.exists(names[0]) and not tensors.exists(names[0])
    for call in (lambda: tensors.batch_get_v1(names[:1], here.indices([0])),
                 lambda: tensors.batch_set_v1(names[:1], here.indices([0])), lambda: zero_copy.get(names[0]),
                 lambda: zero_copy.set(names[0], here.get_data_page(0))):
        with pytest.raises(maru.InvalidArgumentError, match="interface_v1"):
            call()


@pytest.mark.parametrize("change", [
    {"tp_rank": 1, "tp_size": 2}, {"tp_size": 2}, {"pp_size": 2}, {"pp_rank": 1, "pp_size": 2}, {"attn_cp_size": 2},
    {"arguments": {"model_path": "other"}}, {"arguments": {"weight_version": "other"}},
    {"arguments": {"quantization": "fp8"}}, {"arguments": {"load_format": "dummy"}},
    {"arguments": {"json_model_override_args": '{"rope_scaling": null}'}},
    {"arguments": {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "draft"}},
    {"extra": {"maru_model": "other"}}, {"extra": {"maru_tenant": "other"}}, {"is_mla_model": True}])
def test_another_place_or_model_is_another_page(pool, names, change):
    here = HostPool().fill(4)
    first, other = backend(pool.socket, here), backend(pool.socket, here, **change)
    first.batch_set_v1(names, here.indices(range(8)))
    assert other.batch_exists(names) == 0
    assert other.batch_get_v1(names, here.indices(range(8))) == [False] * 8
    assert first.batch_exists(names) == 8


def test_the_name_under_which_a_model_is_served_says_nothing_of_its_pages(pool, names):
    """Two fine-tunes may be served under one name, and one model under two."""
    here = HostPool().fill(4)
    chat = backend(pool.socket, here, arguments={"model_path": "a"}, model_name="chat")
    chat.batch_set_v1(names, here.indices(range(8)))
    assert backend(pool.socket, here, arguments={"model_path": "b"}, model_name="chat").batch_exists(names) == 0
    for same in ("a", folder("elsewhere", weights="a")):
        assert backend(pool.socket, here, arguments={"model_path": same}, model_name="other").batch_exists(names) == 8


def test_two_fine_tunes_under_one_relative_path_do_not_meet(pool, names, monkeypatch, tmp_path):
    here = HostPool().fill(4)
    found = []
    for engine, weights in (("1", "one"), ("2", "two"), ("3", "one")):
        (tmp_path / engine / "m").mkdir(parents=True)
        (tmp_path / engine / "m" / "model.safetensors").write_text(weights)
        monkeypatch.chdir(tmp_path / engine)
        made = backend(pool.socket, here, arguments={"model_path": "./m"})
        found.append(made.batch_exists(names))
        if engine == "1":
            made.batch_set_v1(names, here.indices(range(8)))
    assert found == [0, 0, 8]


def test_weights_that_change_in_place_are_others_at_the_next_start(pool, names, tmp_path):
    here, path = HostPool().fill(4), folder("changes")
    backend(pool.socket, here, arguments={"model_path": path}).batch_set_v1(names, here.indices(range(8)))
    folder("changes", weights="CHANGES")
    assert backend(pool.socket, here, arguments={"model_path": path}).batch_exists(names) == 0
    named = {"maru_model": "n"}
    backend(pool.socket, here, arguments={"model_path": path}, extra=named).batch_set_v1(names, here.indices(range(8)))
    folder("changes")
    assert backend(pool.socket, here, arguments={"model_path": path}, extra=named).batch_exists(names) == 8


def test_adapters_and_scales_count_by_what_they_hold(pool, names):
    here = HostPool().fill(4)

    def adapters(weights):
        path = folder("lora", weights)
        return {"lora_paths": [LoRARef(lora_id=LoRARef.deterministic_id("l", path), lora_name="l", lora_path=path)]}

    def scales(weights):
        return {"quantization_param_path": folder("scales", weights) + "/model.safetensors"}

    for kind in (adapters, scales):
        backend(pool.socket, here, arguments=kind("1")).batch_set_v1(names, here.indices(range(8)))
        assert backend(pool.socket, here, arguments=kind("1")).batch_exists(names) == 8
        assert backend(pool.socket, here, arguments=kind("2")).batch_exists(names) == 0


@pytest.mark.parametrize("arguments", [{"model_path": "/nowhere/at/all"}, {"load_format": "remote"}])
def test_weights_that_are_not_to_be_had_have_to_be_named(pool, names, arguments):
    with pytest.raises(maru.InvalidArgumentError, match="set maru_model in hicache-storage-backend-extra-config"):
        backend(pool.socket, HostPool(), arguments=arguments)
    backend(pool.socket, HostPool(), arguments=arguments, extra={"maru_model": "n"})


def test_a_model_that_sglang_does_not_say_has_to_be_named(pool, names):
    here = HostPool().fill(4)
    for name in (None, "None", "chat"):
        with pytest.raises(maru.InvalidArgumentError, match="maru_model"):
            backend(pool.socket, here, arguments=None, model_name=name)
    backend(pool.socket, here, arguments=None, extra={"maru_model": "a"}).batch_set_v1(names, here.indices(range(8)))
    assert backend(pool.socket, here, arguments=None, extra={"maru_model": "b"}).batch_exists(names) == 0


def test_numbers_that_sglang_keeps_as_bytes_are_told_apart(pool, names):
    """Both kinds of FP8 are torch.uint8 in its host memory."""
    here = HostPool(dtype=torch.uint8)
    here.kv_buffer.random_(0, 255)
    first = backend(pool.socket, here, arguments={"kv_cache_dtype": "fp8_e4m3"})
    first.batch_set_v1(names, here.indices(range(8)))
    assert backend(pool.socket, here, arguments={"kv_cache_dtype": "fp8_e5m2"}).batch_exists(names) == 0
    assert backend(pool.socket, here, arguments={"kv_cache_dtype": "fp8_e4m3"}).batch_exists(names) == 8
    assert backend(pool.socket, here, extra={"maru_kv_dtype": "fp8_e4m3"}).batch_exists(names) == 8
    with pytest.raises(maru.InvalidArgumentError, match="maru_kv_dtype"):
        backend(pool.socket, here, arguments=None, extra={"maru_model": "small"})


def test_layers_of_a_model_that_drafts_are_those_of_that_model(pool, names):
    """SGLang packs them into the pages of the model."""
    def drafting(model):
        return {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": model}

    here = HostPool().fill(4)
    here.target_layer_num = here.layer_num - 1
    backend(pool.socket, here, arguments=drafting("a")).batch_set_v1(names, here.indices(range(8)))
    assert backend(pool.socket, here, arguments=drafting("b")).batch_exists(names) == 0
    assert backend(pool.socket, here, arguments=drafting("a")).batch_exists(names) == 8
    with pytest.raises(maru.InvalidArgumentError, match="drafts"):
        backend(pool.socket, here, arguments=None, extra={"maru_model": "small"})


class Prompt(list):
    """Of SGLang's RadixKey what its hash function reads."""

    extra_key = cache_salt = None


def test_a_request_with_a_lora_or_a_salt_does_not_find_the_pages_of_others(pool):
    """SGLang's own names of pages, which begin with what it calls the extra key: a LoRA's id, which is the same in engines that
    were started with the same name and path of one."""
    try:
        page_names.get_storage_hash_str(Prompt(range(PAGE)), page_size=PAGE)
    except RuntimeError as error:
        pytest.skip(f"SGLang's hash function is not to be had: {error.__cause__}")
    here = HostPool().fill(4)
    first, second = backend(pool.socket, here), backend(pool.socket, here)

    def pages(lora=None, salt=None):
        prompt = Prompt(range(2 * PAGE))
        prompt.extra_key, prompt.cache_salt = lora and LoRARef.deterministic_id(lora, f"/loras/{lora}"), salt
        return page_names.get_storage_hash_str(prompt, page_size=PAGE)

    first.batch_set_v1(pages(), here.indices([0, 1]))
    for other in ({"lora": "a"}, {"lora": "b"}, {"salt": "a"}, {"lora": "a", "salt": "a"}):
        assert second.batch_exists(pages(**other)) == 0
        first.batch_set_v1(pages(**other), here.indices([0, 1]))
        assert second.batch_exists(pages(**other)) == 2


def test_an_sglang_that_names_pages_by_their_tokens_alone_is_refused(pool, monkeypatch):
    monkeypatch.delattr(page_names, "get_storage_hash_str")  # as before 0.5.23
    with pytest.raises(maru.InvalidArgumentError, match="0.5.23"):
        backend(pool.socket, HostPool())


@pytest.mark.parametrize("other", [{"dtype": torch.float16}, {"heads": 4}, {"layout": "layer_first"}])
def test_another_layout_is_another_page(pool, names, other):
    here, there = HostPool().fill(5), HostPool(**other)
    backend(pool.socket, here).batch_set_v1(names, here.indices(range(8)))
    assert backend(pool.socket, there).batch_exists(names) == 0


def test_latent_attention_is_shared_by_ranks(pool, names):
    here = HostPool().fill(6)
    first, other = (backend(pool.socket, here, is_mla_model=True, tp_rank=rank, tp_size=2) for rank in (0, 1))
    first.batch_set_v1(names, here.indices(range(8)))
    assert other.batch_exists(names) == 8


def test_a_page_of_another_size_is_not_loaded_nor_cut(pool, names):
    here, there = HostPool().fill(7), HostPool().fill(8)
    first, second = backend(pool.socket, here), backend(pool.socket, there)
    with maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        client.store_copy(first._keys(names[:1])[0], b"short")
    before = there.kv_buffer.clone()
    assert second.batch_get_v1(names[:1], there.indices([0])) == [False]
    assert torch.equal(before, there.kv_buffer)


def test_pages_that_cannot_be_loaded_or_stored_are_counted_and_said_seldom(pool, names, caplog, monkeypatch):
    here = HostPool().fill(7)
    first = backend(pool.socket, here)
    for key in first._keys(names):
        first._client.store_copy(key, b"short")
    for _ in range(4):
        assert first.batch_get_v1(names, here.indices(range(8))) == [False] * 8
    assert [record.message.split("maru: ")[1].split(" so far")[0] for record in caplog.records] == [
        f"{n} pages were found and not loaded" for n in (1, 3, 7, 15, 31)]
    assert "computes them again" in caplog.text and "5 bytes in the pool" in caplog.text
    caplog.clear()

    def full(*_):
        raise maru.NoSpaceError("full")

    monkeypatch.setattr(first, "_store_chain", full)
    for turn in range(4):
        first.batch_set_v1([f"{turn}{name}" for name in names], here.indices(range(8)))
    assert [record.message.split("maru: ")[1] for record in caplog.records if "not stored" in record.message] == [
        f"{n} pages were not stored so far, so others compute them. The last reason: full" for n in (8, 24)]


def test_pages_for_which_there_is_no_room_are_counted(pool, names, caplog, monkeypatch):
    here = HostPool().fill(7)
    first = backend(pool.socket, here)
    take = sglang.take_what_there_is
    monkeypatch.setattr(sglang, "take_what_there_is", lambda client, sizes: take(client, sizes[:3]))
    assert first.batch_set_v1(names, here.indices(range(8))) == [True] * 3 + [False] * 5
    assert [record.message for record in caplog.records if "not stored" in record.message] == [
        "maru: 5 pages were not stored so far, so others compute them. The last reason: the pool has no room, or the pages "
        "before them went meanwhile"]


def test_pages_of_a_prefix_are_a_chain(pool, names):
    here = HostPool().fill(9)
    first = backend(pool.socket, here)
    first.batch_set_v1(names[:4], here.indices(range(4)))
    first.batch_set_v1(names[4:], here.indices(range(4, 8)), HiCacheStorageExtraInfo(prefix_keys=names[:4]))
    with maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        with pytest.raises(maru.HasChildrenError):
            client.delete(first._keys(names[3:4])[0])
        assert client.delete_tree(first._keys(names[:1])[0]) == 8


def test_it_is_said_once_that_sglang_does_not_say_what_is_before_a_page(pool, names, caplog):
    """Which is what it does unless it is told to: then later pages of a prompt begin a chain, and earlier ones may go first."""
    here = HostPool().fill(9)
    first = backend(pool.socket, here)
    first.batch_set_v1(names[:2], here.indices(range(2)), HiCacheStorageExtraInfo(prefix_keys=[]))
    first.batch_set_v1(names[2:4], here.indices(range(2, 4)), HiCacheStorageExtraInfo(prefix_keys=names[:2]))
    assert not caplog.records
    for page in range(4, 6):
        first.batch_set_v1([names[page]], here.indices([page]), HiCacheStorageExtraInfo(prefix_keys=None))
    said, = caplog.records
    assert "hicache_storage_pass_prefix_keys" in said.message and said.levelname == "WARNING"
    assert first.batch_exists(names) == 6


def test_clear_removes_the_pages_of_this_model_and_rank_and_no_others(pool, names):
    here = HostPool().fill(9)
    first, same, rank = backend(pool.socket, here), backend(pool.socket, here), backend(pool.socket, here, tp_rank=1, tp_size=2)
    first.clear()  # of nothing
    for stored in (first, rank):
        stored.batch_set_v1(names[:4], here.indices(range(4)))
    same.batch_set_v1(names[4:6], here.indices([4, 5]), HiCacheStorageExtraInfo(prefix_keys=names[:4]))
    same.batch_set_v1(names[7:], here.indices([7]), HiCacheStorageExtraInfo(prefix_keys=["lost"]))
    assert first.batch_exists(names) == 6 and first.exists(names[7])
    first.clear()
    assert not any(same.exists(name) for name in names) and rank.batch_exists(names) == 4
    with maru.Client(str(pool.socket), timeout_ms=60_000) as client:
        assert client.exists_batch(rank._keys(names)).tolist() == [True] * 4 + [False] * 4
    assert first.batch_set_v1(names, here.indices(range(8))) == [True] * 8 and same.batch_exists(names) == 8


def test_clear_says_what_it_could_not_remove(pool, names):
    here = HostPool().fill(9)
    first = backend(pool.socket, here)
    first.batch_set_v1(names[:4], here.indices(range(4)))
    with maru.Client(str(pool.socket), timeout_ms=60_000) as client, client.pin(first._keys(names[1:2])[0]):
        with pytest.raises(maru.StillPinnedError):
            first.clear()
        assert first.batch_exists(names) == 2
    first.clear()
    assert first.batch_exists(names) == 0


def test_the_end_of_a_long_prefix_is_held_by_one_pin(pool, names):
    here = HostPool().fill(9)
    first = backend(pool.socket, here)
    first.batch_set_v1(names, here.indices(range(8)))
    keys = first._keys(["root", *names])
    with maru.Client(str(pool.socket), timeout_ms=60_000) as client, client.match_prefix(keys) as match:
        assert match.blocks == 9 and client.statistics().pins == 1


def test_a_prefix_that_the_pool_has_lost_is_no_hindrance(pool, names):
    here = HostPool().fill(10)
    first = backend(pool.socket, here)
    assert first.batch_set_v1(names[4:], here.indices(range(4)), HiCacheStorageExtraInfo(prefix_keys=names[:4])) == [True] * 4
    assert first.batch_exists(names[4:]) == 4


def test_storing_again_stores_nothing_and_is_said_to_be_there(pool, names):
    here = HostPool().fill(11)
    first = backend(pool.socket, here)
    first.batch_set_v1(names[:4], here.indices(range(4)))
    stores = first._client.statistics().stores
    assert first.batch_set_v1(names[:6], here.indices(range(6))) == [True] * 6
    assert first._client.statistics().stores == stores + 2


def test_a_full_pool_stores_what_it_can(marud_program, names):
    from with_marud import Marud
    with Marud(marud_program, size="8MiB") as small, maru.Client(str(small.socket), timeout_ms=60_000) as client:
        here = HostPool().fill(12)
        first = backend(small.socket, here)
        held = []
        with pytest.raises(maru.NoSpaceError):
            while True:
                held.append(client.alloc(4096))
        assert first.batch_set_v1(names, here.indices(range(8))) == [False] * 8
        assert first.batch_exists(names) == 0


def test_memory_for_pages_is_asked_for_once(marud_program, names):
    from with_marud import Marud
    with Marud(marud_program, size="8MiB", more="high_watermark = 1") as small:
        here = HostPool(heads=8).fill(15)  # a page is several of the pool's
        first = backend(small.socket, here)
        for i in range(first._client.geometry().pages):
            first._client.store_copy(f"other {i}", bytes(3 * 4096))
        before = first._client.statistics()
        assert first.batch_set_v1(names, here.indices(range(8))) == [True] * 8
        after = first._client.statistics()
        assert after.evicted > before.evicted and after.rents == before.rents + 1


def test_a_damaged_page_is_not_loaded_and_the_others_are(marud_program, names):
    from with_marud import Marud
    with Marud(marud_program, size="64MiB", more="checksums = true") as running, \
            maru.Client(str(running.socket), timeout_ms=60_000) as client:
        here, there = HostPool().fill(14), HostPool()
        first, second = backend(running.socket, here), backend(running.socket, there)
        first.batch_set_v1(names[:4], here.indices(range(4)))
        running.damage(bytes(client.retrieve(first._keys(names[2:3])[0]).data))
        assert second.batch_get_v1(names[:4], there.indices(range(4))) == [True, True, False, True]
        assert [torch.equal(here.page(i), there.page(i)) for i in range(4)] == [True, True, False, True]
        assert not there.page(2).any()


def test_one_page_into_a_tensor_of_the_caller(pool, names):
    here = HostPool().fill(15)
    first = backend(pool.socket, here, extra={"interface_v1": 0})
    target = here.get_dummy_flat_data_page()
    assert first.set(names[0], here.get_data_page(0)) and first.get(names[0], target) is target
    assert torch.equal(target, here.get_data_page(0))
    for wrong in (None, "text", here.page(0)[:, :, :, :1]):
        with pytest.raises(maru.InvalidArgumentError):
            first.batch_get(names[:1], [wrong]) if wrong is not None else first.set(names[1], wrong)
    for call in (lambda: first.batch_set(names[1:3], [here.get_data_page(0)]), lambda: first.batch_get(names[:2], [target])):
        with pytest.raises(maru.InvalidArgumentError, match="1 tensors for 2 pages"):
            call()
    assert not first.exists(names[1])


@pytest.mark.parametrize("zero_copy", [0, 1])
def test_nothing_is_done_with_nothing(pool, zero_copy):
    here = HostPool()
    first = backend(pool.socket, here, extra={"interface_v1": zero_copy})
    assert first.batch_exists([]) == 0
    if zero_copy:
        assert first.batch_get_v1([], here.indices([0])[:0]) == first.batch_set_v1([], here.indices([0])[:0]) == []
    else:
        assert first.batch_get([]) == [] and first.batch_set([], [])


def test_after_close_nothing_is_there_and_nothing_is_stored(pool, names):
    here = HostPool().fill(16)
    first = backend(pool.socket, here)
    first.batch_set_v1(names[:2], here.indices([0, 1]))
    first.close()
    first.close()
    assert not first.exists(names[0]) and first.batch_exists(names) == 0
    assert first.batch_get_v1(names[:2], here.indices([2, 3])) == first.batch_set_v1(names[2:4], here.indices([2, 3])) == [
        False, False]


def test_what_cannot_work_is_refused(pool):
    host_pool = HostPool()
    with pytest.raises(maru.InvalidArgumentError, match="maru_pol"):
        backend(pool.socket, host_pool, extra={"maru_pol": "x"})
    for name, value in (("maru_priority", -1), ("maru_ttl_ms", -1), ("maru_timeout_ms", 1 << 32), ("maru_tenant", 5)):
        with pytest.raises(maru.InvalidArgumentError, match=f"{name} in hicache-storage-backend-extra-config"):
            backend(pool.socket, host_pool, extra={name: value})
    with pytest.raises(maru.InvalidArgumentError, match="heads"):
        backend(pool.socket, host_pool, should_split_heads=True)
    for rank in (0, 1):
        with pytest.raises(maru.InvalidArgumentError, match="dcp_size is 2"):
            backend(pool.socket, host_pool, is_mla_model=True, tp_rank=rank, tp_size=2, dcp_size=2, dcp_rank=rank,
                    logical_page_size=2 * PAGE)
    with pytest.raises(maru.NotFoundError):
        backend("/nonexistent/socket", host_pool, extra={"maru_required": True})


def test_an_engine_starts_without_marud_and_attaches_later(marud_program, names, caplog, monkeypatch):
    monkeypatch.setattr(engine_pool, "LOOK_S", 0)
    here = HostPool().fill(10)
    with Marud(marud_program) as running:
        running.process.terminate()
        running.process.wait(PATIENCE)
        first = backend(running.socket, here)
        assert first.batch_exists(names) == 0
        assert first.batch_get_v1(names, here.indices(range(8))) == [False] * 8
        assert first.batch_set_v1(names, here.indices(range(8)), HiCacheStorageExtraInfo(prefix_keys=[])) == [False] * 8
        said, = caplog.records
        assert "no pool to attach to" in said.message
        running.begin()
        deadline = time.monotonic() + PATIENCE
        while not first._pool.is_attached:
            assert time.monotonic() < deadline
            first.batch_exists(names)
            time.sleep(0.01)
        assert first.batch_set_v1(names, here.indices(range(8)), HiCacheStorageExtraInfo(prefix_keys=[])) == [True] * 8
        assert first.batch_exists(names) == 8 and len(caplog.records) == 2
        first.close()


def test_no_marud_is_a_miss_and_no_crash(marud_program, names):
    from with_marud import Marud
    with Marud(marud_program) as running:
        here = HostPool().fill(13)
        first = backend(running.socket, here)
        first.batch_set_v1(names[:2], here.indices([0, 1]))
        running.process.kill()
        running.process.wait()
        assert first.batch_exists(names) == 2
        assert first.batch_get_v1(names[:3], here.indices([4, 5, 6])) == [True, True, False]
        first.close()


def test_an_engine_goes_on_with_another_pool_of_the_name(marud_program, names, caplog, monkeypatch):
    monkeypatch.setattr(engine_pool, "LOOK_S", 0)
    here, there = HostPool().fill(10), HostPool()
    with Marud(marud_program) as running:
        first = backend(running.socket, here)
        first.batch_set_v1(names[:4], here.indices(range(4)), HiCacheStorageExtraInfo(prefix_keys=[]))
        before = first._client
        running.process.terminate()
        running.process.wait(PATIENCE)
        shutil.rmtree(running.socket.parent / "state")  # else marud would make the old pool of what clients bring along
        running.begin()
        deadline = time.monotonic() + PATIENCE
        while first._client is before:
            assert time.monotonic() < deadline
            first.batch_exists(names)
            first.batch_set_v1(names[4:], here.indices(range(4, 8)), HiCacheStorageExtraInfo(prefix_keys=names[:4]))
            first.batch_get_v1(names[4:], here.indices(range(4, 8)))
            time.sleep(0.01)
        assert len([record for record in caplog.records if "pool is gone" in record.message]) == 1
        assert len(caplog.records) == 2
        assert first.batch_set_v1(names, here.indices(range(8)), HiCacheStorageExtraInfo(prefix_keys=[])) == [True] * 8
        second = backend(running.socket, there)
        assert second.batch_get_v1(names, there.indices(range(8))) == [True] * 8
        assert all(torch.equal(here.page(page), there.page(page)) for page in range(8))
        first.close()
        second.close()


def test_pages_that_have_left_the_pool_are_loaded(marud_program, names, monkeypatch):
    """With maru_prefetch and a real maru-tierd; without either, or with a dead one, they are absent."""
    from tier_process import Tierd, push_out

    from maru import pool_tier
    prefetch, asked = pool_tier.tier.prefetch, []
    monkeypatch.setattr(pool_tier.tier, "prefetch",
                        lambda *keys, **how: (asked.append(how["compute_us"]), prefetch(*keys, **how))[1])
    pool_bytes = 4 << 20
    with Marud(marud_program, size=f"{pool_bytes >> 20}MiB") as small, Tierd(small.socket) as tierd:
        here, there = HostPool().fill(7), HostPool()
        backend(small.socket, here).batch_set_v1(names[:5], here.indices([3, 1, 4, 0, 5]),
                                                 HiCacheStorageExtraInfo(prefix_keys=[]))
        tierd.wait_for_entries(6)  # with the root
        push_out(small.socket, pool_bytes)
        assert backend(small.socket, there).batch_exists(names) == 0
        with_tier = backend(small.socket, there, extra={"maru_prefetch": tierd.socket, "maru_compute_us": 3})
        assert with_tier.batch_exists(names) == 5 and asked == [3 * there.page_size]
        assert with_tier.batch_get_v1(names[:5], there.indices([7, 8, 9, 10, 11])) == [True] * 5
        for source, target in zip([3, 1, 4, 0, 5], [7, 8, 9, 10, 11]):
            assert torch.equal(here.page(source), there.page(target))
        tierd.kill()
        assert with_tier.batch_exists(names) == 5 and with_tier.batch_exists(["0" * 64]) == 0
