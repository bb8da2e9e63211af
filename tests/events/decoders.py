"""Decodes batches with msgspec as vLLM's and SGLang's own classes do: their structures, declared again from their lists of
fields. decoders.py reads one batch a line, in hexadecimal digits, and writes the events as JSON, one batch a line."""
import json
import sys
from typing import Any, Optional, Union

import msgspec


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[Union[int, bytes]]
    parent_block_hash: Optional[Union[int, bytes]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[list[Optional[tuple[Any, ...]]]] = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[int] = None
    locality: Optional[str] = None


class BlockRemoved(Event):
    block_hashes: list[Union[int, bytes]]
    medium: Optional[str]
    group_idx: Optional[int] = None
    locality: Optional[str] = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


class SglangStored(Event, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str] = None
    cache_salt: Optional[str] = None
    session_id: Optional[str] = None
    lora_name: Optional[str] = None


class SglangRemoved(Event, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: Optional[str] = None


class SglangBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[Union[SglangStored, SglangRemoved, AllBlocksCleared]]
    attn_dp_rank: Optional[int] = None


def main():
    decoders = [msgspec.msgpack.Decoder(Batch), msgspec.msgpack.Decoder(SglangBatch)]
    for line in sys.stdin:
        batches = [decoder.decode(bytes.fromhex(line.strip())) for decoder in decoders]
        stored = [[(event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size, event.medium)
                   for event in batch.events if isinstance(event, (BlockStored, SglangStored))] for batch in batches]
        print(json.dumps(stored), flush=True)


if __name__ == "__main__":
    main()
