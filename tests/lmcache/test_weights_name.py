"""What the model is called in LMCache's keys: two sets of weights under one path are two models."""
import types

import pytest
from kv_store import BACKEND, Storage, chunk, same
from lmcache.v1.token_database import ChunkedTokenDatabase

import maru
from maru_lmcache import weights_name

TOKENS = list(range(64))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def keys(storage):
    """As LMCache's engine makes them of a prompt, after the back-end is there."""
    database = ChunkedTokenDatabase(storage.config, storage.metadata)
    return [key for _, _, key in database.process_tokens(TOKENS)]


def test_two_fine_tunes_under_one_relative_path_do_not_meet(marud, monkeypatch, tmp_path):
    found = []
    for engine, weights in (("1", "one"), ("2", "two"), ("3", "one")):
        (tmp_path / engine / "m").mkdir(parents=True)
        (tmp_path / engine / "m" / "model.safetensors").write_text(weights)
        monkeypatch.chdir(tmp_path / engine)
        with Storage(str(marud.socket), model="./m") as storage:
            names = keys(storage)
            found.append(storage.manager.batched_contains(names)[0])
            if engine == "1":
                item, = storage.allocate(1)
                item.tensor.copy_(chunk(7))
                storage.manager.batched_put(names, [item])
                storage.settle()
            elif found[-1]:
                assert same(storage.manager.get(names[0], BACKEND).tensor, chunk(7))
    assert found == [0, 0, 1]


def test_weights_that_change_in_place_are_others_at_the_next_start(marud, tmp_path):
    names = []
    for weights in ("one", "two"):
        (tmp_path / "model.safetensors").write_text(weights)
        with Storage(str(marud.socket), model=str(tmp_path)) as storage:
            names.append(keys(storage)[0].to_string())
    assert names[0] != names[1] and not any(str(tmp_path) in name for name in names)


def test_a_name_of_a_hub_stays(marud):
    with Storage(str(marud.socket), model="owner/model") as storage:
        assert keys(storage)[0].model_name == "owner/model"


def test_a_path_without_files_is_refused(marud):
    with pytest.raises(maru.InvalidArgumentError, match="no such file or folder"):
        weights_name.put_into(types.SimpleNamespace(model_name="./nowhere"))


def test_an_lmcache_that_says_it_elsewhere_is_refused():
    program = compile("def make(find): return find(1)", "maru_backend.py", "exec")
    there = {"__name__": "lmcache.v1.storage_backend.maru_backend"}
    exec(program, there)
    with pytest.raises(maru.InvalidArgumentError, match="0.5.6"):
        there["make"](weights_name.metadata_of_caller)
