"""Storage traces (.lct): maru-replay reads those that LMCache records, and LMCache reads those that maru-replay writes.
MARU_TEST_REPLAY names maru-replay."""
import json
import os
import struct
import subprocess

import pytest
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.mp_observability.trace import codecs, format
from lmcache.v1.mp_observability.trace.reader import TraceReader

PREFIX = "lmcache.v1.distributed.storage_manager.StorageManager."
REPLAY = os.environ.get("MARU_TEST_REPLAY")
SCHEMA = format.TRACE_SCHEMA_VERSION  # of this LMCache
pytestmark = pytest.mark.skipif(not REPLAY, reason="MARU_TEST_REPLAY is not set")


def keys_of(numbers, rank=0):
    return [ObjectKey(chunk_hash=struct.pack(">I", n), model_name="org/model", kv_rank=rank) for n in numbers]


def prefetch(keys, layout):
    return PrefetchTaskSpec(key_groups=[GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=layout)], num_kv_readers=1)


def write(path):
    """A trace by LMCache's own encoder: two chunks are stored, and asked for with a third."""
    layout = MemoryLayoutDesc(shapes=[torch.Size([2, 16, 8])], dtypes=[torch.bfloat16])
    header = format.Header(magic=format.MAGIC, format_version=format.FORMAT_VERSION, level="storage", t_mono_start=5.0,
                           trace_schema_version=SCHEMA, t_wall_start=1.7e9, sm_config_json="", sm_config_digest="")
    calls = [("reserve_write", {"keys": keys_of([1, 2]), "layout_desc": layout}), ("finish_write", {"keys": keys_of([1, 2])}),
             ("submit_prefetch_task", {"spec": prefetch(keys_of([1, 2, 3]), layout), "external_request_id": "r"}),
             ("submit_prefetch_task", {"spec": prefetch(keys_of([1], rank=1), layout), "external_request_id": "r"}),
             ("read_prefetched_results.__enter__", {"keys": keys_of([1, 2])}),
             ("read_prefetched_results.__exit__", {"keys": keys_of([1, 2])}),
             ("finish_read_prefetched", {"keys": keys_of([1, 2]), "read_locks": 1})]
    frames = [format.encode_header(header)]
    frames += [format.encode_record(format.Record(t_mono=i / 100, t_wall=1.7e9 + i / 100, qualname=PREFIX + name,
                                                  args=codecs.encode_args(arguments)))
               for i, (name, arguments) in enumerate(calls)]
    path.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))


def replay(*words, **environment):
    return subprocess.run([REPLAY, *map(str, words)], check=True, capture_output=True, text=True,
                          env={**os.environ, **environment}).stdout


def test_a_trace_of_lmcache_is_played(marud, tmp_path):
    write(tmp_path / "run.lct")
    played = json.loads(replay("--recording", tmp_path / "run.lct", "--json", MARU_SOCKET=str(marud.socket)))
    of = played["operations"]
    assert (of["store"]["keys"], of["store"]["errors"]) == (2, 0)
    assert (of["match"]["calls"], of["match"]["keys"], of["match"]["found"]) == (2, 4, 2), "another rank is another key"
    assert (of["retrieve"]["keys"], of["retrieve"]["found"]) == (2, 2)
    assert all(of[name]["same_result"] == of[name]["calls"] for name in ("store", "match", "retrieve"))
    assert played["recorded"]["unknown"] == played["recorded"]["torn_bytes"] == 0


def test_lmcache_reads_what_is_written(tmp_path):
    write(tmp_path / "run.lct")
    replay("--recording", tmp_path / "run.lct", "--export", tmp_path / "back.lct", "--lct-schema", SCHEMA)
    with TraceReader(str(tmp_path / "back.lct")) as reader:
        assert reader.header.level == "storage" and reader.header.t_wall_start == pytest.approx(1.7e9)
        records = list(reader.records())
    names = [record.qualname.removeprefix(PREFIX) for record in records]
    assert names == ["reserve_write", "finish_write", "submit_prefetch_task", "submit_prefetch_task",
                     "read_prefetched_results.__enter__", "read_prefetched_results.__exit__"]
    arguments = [codecs.decode_args(record.args) for record in records]
    assert all(isinstance(key, ObjectKey) for one in arguments if "keys" in one for key in one["keys"])
    layout = arguments[0]["layout_desc"]
    assert layout.shapes == [torch.Size([2 * 16 * 8 * 2])] and layout.dtypes == [torch.uint8]
    assert [len(group.keys) for one in arguments[2:4] for group in one["spec"].key_groups] == [3, 1]
    assert set(arguments[2]) == ({"spec", "external_request_id", "skip_l2"} if SCHEMA == 1 else {"spec", "external_request_id"})
    assert arguments[0]["keys"] == arguments[4]["keys"] == arguments[2]["spec"].key_groups[0].keys[:2]
    assert [record.t_mono for record in records] == sorted(record.t_mono for record in records)


def test_the_other_schema_is_refused(tmp_path):
    write(tmp_path / "run.lct")
    replay("--recording", tmp_path / "run.lct", "--export", tmp_path / "back.lct", "--lct-schema", 3 - SCHEMA)
    with pytest.raises(ValueError, match="schema"):
        TraceReader(str(tmp_path / "back.lct"))
