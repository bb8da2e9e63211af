"""Under which keys the objects of LMCache's server lie: of two layouts, models, ranks, groups or salts no two meet."""
import types

import pytest
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.error import L1Error
from lmcache.v1.multiprocess.engine_context import LayoutDescRegistry
from mp_objects import HALF, LAYOUT, chunk, key_of, manager, read, reserve, same, until, write

import maru
from maru_lmcache.mp import server_module

SUCCESS, ABSENT = L1Error.SUCCESS, L1Error.KEY_NOT_EXIST


def test_objects_of_two_layouts_do_not_meet(marud, l1):
    write(l1, [1])
    half = manager(marud.socket, registry=lambda model, workers: {0: HALF})
    assert half.reserve_read([key_of(1)])[key_of(1)] == (ABSENT, None)
    item = half.reserve_write([key_of(1)], [False], HALF)[key_of(1)][1]
    item.tensor.zero_()
    del item
    half.finish_write([key_of(1)])
    assert half.reserve_read([key_of(1)])[key_of(1)][1].tensor.dtype == torch.float16
    assert read(l1, [1]) == [1]
    half.close()


def test_a_layout_that_is_registered_anew_counts_at_once(marud):
    now = {0: LAYOUT}
    l1 = manager(marud.socket, registry=lambda model, workers: now)
    key = key_of(1)
    write(l1, [1])
    held = l1.reserve_read([key])[key][1]
    now = {0: HALF}
    assert l1.reserve_read([key])[key] == (ABSENT, None), "the old one has a reader, and is nothing for a new one"
    assert same(held.tensor, 1) and l1.finish_read([key]) == {key: SUCCESS}
    now = None
    assert l1.reserve_read([key])[key] == (ABSENT, None), "the last that was known"
    now = {0: LAYOUT}
    assert read(l1, [1]) == [1]
    l1.close()


def test_without_a_registry_the_last_layout_that_was_written_counts(marud):
    l1 = manager(marud.socket, registry=None)
    assert l1.reserve_read([key_of(1)])[key_of(1)] == (ABSENT, None)
    write(l1, [1])
    bytes_alone = MemoryLayoutDesc([torch.Size([1000])], [torch.uint8])
    reserve(l1, 2, temporary=True, layout=bytes_alone)  # what LMCache serializes for a lower tier
    assert read(l1, [1]) == [1]
    l1.close()


@pytest.mark.parametrize("of", [dict(model="other"), dict(salt="tenant"), dict(rank=2 << 24 | 1 << 16 | 2 << 8 | 1),
                                dict(group=1)])
def test_what_is_in_the_name_tells_objects_apart(marud, of):
    l1 = manager(marud.socket, registry=lambda model, workers: {0: LAYOUT, 1: LAYOUT})
    write(l1, [1])
    assert read(l1, [1], **of) == []
    write(l1, [1], **of)
    assert read(l1, [1], **of) == [1] and l1.delete([key_of(1, **of)])[key_of(1, **of)] == SUCCESS
    assert read(l1, [1], **of) == [] and read(l1, [1]) == [1]
    l1.close()


def test_one_call_may_end_the_writes_of_several_groups(marud):
    """Of other sizes, too; a store of a model with several kinds of layers does so."""
    small = MemoryLayoutDesc([torch.Size([1000])], [torch.float32])
    l1 = manager(marud.socket, registry=lambda model, workers: both)
    both = {0: LAYOUT, 1: small}
    keys = [key_of(1), key_of(1, group=1)]
    first, second = (l1.reserve_write([key], [False], layout)[key][1] for key, layout in zip(keys, both.values()))
    first.tensor.copy_(chunk(1))
    second.tensor.fill_(7)
    assert list(l1.finish_write(keys).values()) == [SUCCESS, SUCCESS]
    found = l1.reserve_read(keys)
    assert same(found[keys[0]][1].tensor, 1) and torch.equal(found[keys[1]][1].tensor, torch.full((1000,), 7.0))
    l1.finish_read(keys)
    l1.close()


def test_a_block_is_described_where_that_costs_no_page(marud):
    """By a maru.Client and a marud that know metadata; without them the key says the same."""
    small = MemoryLayoutDesc([torch.Size([1000])], [torch.float32])
    registered = {0: small}
    l1 = manager(marud.socket, registry=lambda model, workers: registered)
    key = key_of(1)
    l1.reserve_write([key], [False], small)[key][1].tensor.fill_(7)
    l1.finish_write([key])
    family, place = l1._keys.located([key])[0]
    view = l1._client.retrieve(maru.Digest(place.digest))
    is_known = getattr(l1._client.geometry(), "metadata_bytes_max", 0) > 0
    assert getattr(view, "metadata", b"") == (b"lmcache model 01000100 0 float32[1000]" if is_known else b"")
    assert l1.reserve_read([key])[key][0] == SUCCESS
    l1.finish_read([key])
    if is_known:
        family.metadata = b"lmcache another 01000100 0 float32[1000]"
        assert l1.reserve_read([key])[key] == (ABSENT, None)
    l1.close()


def test_salts_are_tenants(marud, l1):
    long, similar = "s" * 128, "s" * 127 + "t"
    for salt in ("a", "b", long, similar):
        assert read(l1, [1], salt=salt) == []
        write(l1, [1], salt=salt)
    assert all(read(l1, [1], salt=salt) == [1] for salt in ("a", "b", long, similar))
    of_a_team = manager(marud.socket, tenant="team")
    assert read(of_a_team, [1]) == read(of_a_team, [1], salt="a") == []
    write(of_a_team, [1])
    of_team_as_salt = read(l1, [1], salt="team")
    assert of_team_as_salt == [1], "a tenant is a name, wherever it comes from"
    of_a_team.close()


def test_a_model_with_a_path_is_called_by_its_weights(marud, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, weights in (("one", "1"), ("copy", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(weights)
    l1 = manager(marud.socket)
    names = [str(tmp_path / name) for name in ("one", "copy", "two")]
    until(lambda: all(l1._keys.family(key_of(1, model=name)) for name in names))
    write(l1, [1], model=names[0])
    assert [read(l1, [1], model=name) for name in names] == [[1], [1], []]
    (tmp_path / "one" / "model.safetensors").write_text("3")
    l1.set_layouts(lambda model, workers: registered)
    registered = {0: LAYOUT}
    until(lambda: l1._keys.family(key_of(1, model=names[0])) and l1._keys.family(key_of(1, model=names[1])))
    assert read(l1, [1], model=names[0]) == [], "a worker has registered, and the files are others"
    l1.close()


def test_a_path_that_says_nothing_is_kept_to_one_server(marud, l1, caplog):
    write(l1, [1], model="./model")
    assert read(l1, [1], model="./model") == [1] and "nothing tells its weights" in caplog.text
    other = manager(marud.socket)
    assert read(other, [1], model="./model") == []
    other.close()


def test_the_weights_are_read_when_a_worker_registers(marud, tmp_path, monkeypatch, caplog):
    """And not when the first request comes, which would find nothing."""
    caplog.set_level("INFO", logger="maru")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_text("1")
    context = types.SimpleNamespace(layout_desc_registry=LayoutDescRegistry())
    l1 = manager(marud.socket)
    server_module.LayoutModule(context, l1)
    context.layout_desc_registry.register(str(tmp_path / "model"), 1, LAYOUT)
    until(lambda: "the model is weights-" in caplog.text)
    write(l1, [1], model=str(tmp_path / "model"))
    assert read(l1, [1], model=str(tmp_path / "model")) == [1]
    l1.close()
