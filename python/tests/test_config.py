"""MaruConfig: the fields and defaults that programs for the older system rely on, what is refused, which socket is meant."""
import copy
import dataclasses
import logging
import pickle

import numpy
import pytest

import maru
from maru import address

MIB = 1 << 20

# As the older system documents them.
DEFAULTS = {
    "server_url": "tcp://localhost:5555", "pool_size": 100 * MIB, "chunk_size_bytes": MIB, "auto_connect": True,
    "timeout_ms": 2000, "use_async_rpc": True, "max_inflight": 64, "eager_map": True, "auto_expand": True,
    "expand_size": None, "rm_address": "127.0.0.1:9850", "enable_stats": False,
    "read_only": False, "prefetch": False,  # ours; last, so that the others keep their positions
}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(address, "_said", {})
    for name in ("MARU_EAGER_MAP", "MARU_STAT", "MARU_PREFETCH"):
        monkeypatch.delenv(name, raising=False)


def test_the_fields_and_their_defaults():
    config = maru.MaruConfig()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    assert [field.name for field in dataclasses.fields(config)] == ["server_url", "instance_id", *list(DEFAULTS)[1:]]


def test_values_given_are_kept():
    given = {**DEFAULTS, "server_url": "/run/x.sock", "instance_id": "me", "pool_size": 8 * MIB, "chunk_size_bytes": 4096,
             "expand_size": 2 * MIB, "timeout_ms": 7, "use_async_rpc": False, "max_inflight": 1, "rm_address": "a:1"}
    assert dataclasses.asdict(maru.MaruConfig(**given)) == given


def test_instances_are_named_apart():
    assert maru.MaruConfig().instance_id != maru.MaruConfig().instance_id
    assert maru.MaruConfig(instance_id=None).instance_id


@pytest.mark.parametrize("wrong", [
    {"chunk_size_bytes": 0}, {"chunk_size_bytes": -1}, {"chunk_size_bytes": "1X"}, {"pool_size": MIB - 1}, {"pool_size": 0},
    {"pool_size": True}, {"timeout_ms": 0}, {"timeout_ms": 1 << 32}, {"expand_size": MIB - 1},
    {"expand_size": 2 * MIB, "auto_expand": False},
    {"server_url": ""}, {"server_url": "http://host"}, {"server_url": 5}, {"server_url": "tcp://h?pol=x"},
    {"server_url": "/run/x?pol=x"}, {"server_url": "/run/x?y"},
    {"server_url": "tcp://h?pool=x&pool=y"}, {"server_url": "tcp://[::1"}, {"server_url": "maru:///run/x#tenant=y"},
    {"server_url": "/run/\ud800"}, {"server_url": "maru:///run/\ud800"}, {"server_url": "maru://?pool=\ud800"},
    {"server_url": "/run/a\0b"}, {"server_url": "maru:///run/a\tb"}, {"server_url": "maru:///run/a\nb"},
    {"server_url": "maru:///run/a%00b"}, {"server_url": "maru://?pool=a%00b"}, {"server_url": "maru:///run/%ff"},
    {"server_url": "maru://?tenant=%ff"}, {"auto_expand": "false"}, {"read_only": "no"}, {"auto_connect": None},
    {"pool_size": 1e9}, {"chunk_size_bytes": None}, {"pool_size": ""}, {"pool_size": "G"}, {"pool_size": "-4G"},
    {"pool_size": "0"}, {"pool_size": "1e9"}, {"pool_size": "4 G B"}, {"pool_size": "1.5.0G"}, {"pool_size": "\u0664G"},
    {"pool_size": "inf"}, {"pool_size": "4G\n"}, {"pool_size": b"4G"}, {"pool_size": "9" * 5000},
    {"prefetch": "yes"}, {"prefetch": 5}, {"prefetch": ""},
    {"chunk_size_bytes": "0.1"}, {"timeout_ms": "2K"}, {"timeout_ms": numpy.bool_(True)}, {"expand_size": "1K"},
])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(maru.InvalidArgumentError) as raised:
        maru.MaruConfig(**wrong)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("truth", [True, False, numpy.bool_(True), numpy.bool_(False), 1, 0])
def test_truths_of_numpy_are_truths(truth):
    made = maru.MaruConfig(auto_connect=truth, auto_expand=truth, read_only=truth)
    assert all(value is bool(truth) for value in (made.auto_connect, made.auto_expand, made.read_only))


@pytest.mark.parametrize("text, size", [
    ("4G", 4 << 30), ("512M", 512 << 20), ("1.5G", 3 << 29), ("512MB", 512 << 20), ("64GiB", 64 << 30), ("2t", 2 << 40),
    ("64kib", 64 << 10), ("8 MiB", 8 << 20), ("4096", 4096), ("4096B", 4096), ("0.3K", 307), ("1.1G", 1181116006)])
def test_sizes_may_be_texts(text, size):
    """With the units of 1024, whichever way they are written, and what is left of a byte dropped."""
    assert maru.MaruConfig(pool_size=text, chunk_size_bytes=1).pool_size == size
    assert maru.MaruConfig(pool_size=size, chunk_size_bytes=text).chunk_size_bytes == size
    assert maru.MaruConfig(chunk_size_bytes=1, expand_size=text).expand_size == size


@pytest.mark.parametrize("text, expected", [("1", True), ("true", True), (" ON ", True), ("0", False), ("No", False)])
def test_the_environment_overrides(monkeypatch, text, expected):
    monkeypatch.setenv("MARU_EAGER_MAP", text)
    monkeypatch.setenv("MARU_STAT", text)
    config = maru.MaruConfig(eager_map=not expected, enable_stats=not expected)
    assert (config.eager_map, config.enable_stats) == (expected, expected)


def test_nonsense_in_the_environment_leaves_the_default_and_is_said(monkeypatch, caplog):
    monkeypatch.setenv("MARU_EAGER_MAP", "perhaps")
    assert maru.MaruConfig().eager_map is True and maru.MaruConfig(eager_map=False).eager_map is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "perhaps" in caplog.text and "1, true, yes, on" in caplog.text


@pytest.mark.parametrize("url, expected", [
    ("/run/marud/marud.sock", ("/run/marud/marud.sock", None, None)),
    ("relative.sock", ("relative.sock", None, None)),
    ("unix:///run/a.sock", ("/run/a.sock", None, None)),
    ("maru:///run/a.sock?pool=big&tenant=alice", ("/run/a.sock", "big", "alice")),
    ("/run/a.sock?pool=big&tenant=a%20b", ("/run/a.sock", "big", "a b")),
    ("?pool=big", (None, "big", None)),
    ("tcp:///run/a.sock", ("/run/a.sock", None, None)),
    ("tcp://localhost:5555", (None, None, None)),
    ("maru://otherhost:1234?pool=big", (None, "big", None)),
    ("tcp://host:1/run/a.sock", ("/run/a.sock", None, None)),
    ("maru:///run/a%20b.sock?pool=a%20b", ("/run/a b.sock", "a b", None)),
    ("/run/a%20b#c.sock", ("/run/a%20b#c.sock", None, None)),
    ("maru:///run/schl%C3%BCssel%23.sock", ("/run/schlüssel#.sock", None, None)),
])
def test_which_socket_an_address_means(url, expected):
    assert address.parse(url) == expected


def test_a_host_is_warned_about_once(caplog):
    for _ in range(3):
        maru.MaruConfig(server_url="tcp://localhost:5556")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "localhost:5556" in caplog.text and "Unix socket" in caplog.text


def test_the_default_address_and_paths_are_not_warned_about(caplog):
    maru.MaruConfig()
    maru.MaruConfig(server_url="/run/a.sock")
    maru.MaruConfig(server_url="maru:///run/a.sock")
    assert not caplog.records


@pytest.mark.parametrize("chosen", ["".join(("tcp://local", "host:5555")), "maru://localhost:5555"])
def test_who_chose_what_is_the_default_is_warned_as_others_are(caplog, chosen):
    """LMCache's own examples do, for `maru_path`."""
    config = maru.MaruConfig(server_url=chosen)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "localhost:5555" in caplog.text
    assert maru.MaruConfig().server_url == "tcp://localhost:5555" and dataclasses.replace(config).server_url == chosen


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config)),
                                   lambda config: maru.MaruConfig(**dataclasses.asdict(config)), dataclasses.replace])
def test_a_default_that_went_to_another_process_is_chosen_by_nobody(caplog, again):
    config = maru.MaruConfig(chunk_size_bytes="2M")
    assert again(config) == config and dataclasses.replace(again(config)) == config
    assert not caplog.records
    chosen = maru.MaruConfig(server_url="".join(("tcp://local", "host:5555")), instance_id="x")
    assert again(chosen) == chosen and again(maru.MaruConfig(server_url="/run/a.sock")).server_url == "/run/a.sock"
    address._said.clear()
    caplog.clear()
    dataclasses.replace(again(chosen))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_does_nothing_is_explained_once(caplog, marud):
    caplog.set_level(logging.INFO, "maru")
    for _ in range(2):
        with maru.MaruHandler(maru.MaruConfig(server_url=str(marud.socket), use_async_rpc=False, max_inflight=3,
                                              rm_address="h:1", eager_map=False, enable_stats=True)):
            pass
    for name in ("use_async_rpc=False", "max_inflight=3", "rm_address='h:1'", "eager_map=False", "enable_stats=True"):
        assert sum(name + " is accepted and does nothing: " in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("text, means", [("1", True), ("no", False), ("/run/tier.sock", "/run/tier.sock"), ("", False)])
def test_the_environment_says_prefetch_where_the_program_does_not(monkeypatch, text, means):
    monkeypatch.setenv("MARU_PREFETCH", text)
    assert maru.MaruConfig().prefetch == means
    assert maru.MaruConfig(prefetch=False).prefetch is False and maru.MaruConfig(prefetch="/s").prefetch == "/s"
