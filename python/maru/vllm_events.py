"""The pool's chunks as events of vLLM, in the stream of the engine that can load them."""
from __future__ import annotations

import logging
from typing import Any, Iterable, Optional

from .engine_pool import EnginePool
from .pool_events import PoolEvents, Told

_MEDIUM = "CPU"  # vLLM's own name of the processor's memory


def pool_events(vllm_config: Any, pool: EnginePool, logger: logging.Logger) -> Optional[PoolEvents]:
    """None where vLLM publishes no events (--kv-events-config)."""
    config = getattr(vllm_config, "kv_events_config", None)
    return PoolEvents(pool.follow, logger) if getattr(config, "enable_kv_cache_events", False) else None


def as_vllm_has_them(news: Iterable[Told]) -> list[Any]:
    from vllm.distributed.kv_events import BlockRemoved  # an engine that publishes nothing may be of a vLLM without
    return [_stored(told) if told.is_stored else BlockRemoved(block_hashes=list(told.hashes), medium=_MEDIUM) for told in news]


def _stored(told: Told) -> Any:
    from vllm.distributed.kv_events import BlockStored
    fields: dict[str, Any] = {"block_hashes": list(told.hashes), "parent_block_hash": told.parent,
                              "token_ids": told.tokens, "block_size": told.block_size, "lora_id": None, "medium": _MEDIUM,
                              "lora_name": told.lora or None, "extra_keys": _extra_keys(told)}
    return BlockStored(**{name: value for name, value in fields.items() if name in BlockStored.__struct_fields__})


def _extra_keys(told: Told) -> Optional[list[Optional[tuple[Any, ...]]]]:
    """What vLLM hashes beside the tokens of each block: the LoRA's name, and the salt with the first block of a prompt."""
    each: tuple[Any, ...] = (told.lora,) if told.lora else ()
    first = (*each, told.salt) if told.salt and told.parent is None else each
    keys = [first or None, *[each or None] * (len(told.hashes) - 1)]
    return keys if any(keys) else None
