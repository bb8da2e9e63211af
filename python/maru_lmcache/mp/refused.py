"""Options of LMCache's server that cannot work with an L1 in marud's pool, each with the reason.

All other options are LMCache's affair. Some that only shape LMCache's own memory are of no use here; a log line says so.
"""
from __future__ import annotations

import argparse
import logging
from typing import Any, Iterator

from lmcache.v1.distributed.config import requires_single_l1_memory_region
from lmcache.v1.distributed.l2_adapters.config import get_type_name_for_config

from .guard import UnsuitableError

logger = logging.getLogger("maru")

# Of these LMCache does not say by itself that they register L1's memory with a device or a network.
_REGISTERING_ADAPTERS = ("nixl_native", "p2p")

_UNUSED = {"l1_size_gb": "--l1-size-gb", "l1_init_size_gb": "--l1-init-size-gb", "l1_align_bytes": "--l1-align-bytes",
           "l1_use_lazy": "--l1-use-lazy"}


def refuse_options(arguments: argparse.Namespace) -> None:
    """arguments: parsed, of `lmcache server`. Raises UnsuitableError for the first that cannot be."""
    for reason in _of_options(arguments):
        raise UnsuitableError(reason)


def refuse_adapters(storage: Any) -> None:
    """storage: LMCache's configuration of its tiers. Raises UnsuitableError for the first adapter that cannot be."""
    for adapter in storage.l2_adapter_config.adapters:
        kind = requires_single_l1_memory_region(adapter) or get_type_name_for_config(_innermost(adapter))
        if requires_single_l1_memory_region(adapter) or kind in _REGISTERING_ADAPTERS:
            raise UnsuitableError(f"--l2-adapter of type {kind}: it registers all of L1 as one buffer, and the pool is not "
                                  "one. Use an adapter that takes objects one by one (fs, s3, resp, raw_block, "
                                  "mooncake_store by tcp).")


def _of_options(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.l1_manager or arguments.gds_l1_path or arguments.l1_devdax_path or arguments.l1_use_hugepages:
        yield ("--l1-manager, --gds-l1-path, --l1-devdax-path and --l1-use-hugepages make an L1 of LMCache's own. Here the L1 "
               "is the pool, whose memory marud.toml describes (backend, device, page_bytes): leave them out.")
    if arguments.eviction_policy not in (None, "noop"):
        yield (f"--eviction-policy {arguments.eviction_policy}: marud evicts, by the policy of the pool, and for all servers "
               "that share it. Leave the option out, or say noop; marud.toml chooses the policy of the pool.")
    if arguments.p2p_advertise_url or arguments.p2p_listen_url:
        yield ("--p2p-*: peers read L1 through one buffer that a network card has registered. The pool is no such buffer: its "
               "regions come and go, and blocks of other servers are mapped read-only. Servers on one pool share without P2P.")
    if arguments.shm_name != "":
        yield ("--shm-name: workers would open the pool's memory by name and write anywhere into it. And LMCache publishes "
               "pages that a worker has not written when the worker dies (its issue 4068), here to all servers. "
               "Leave it out: workers then send their chunks, or the server copies them (--supported-transfer-mode).")
    if arguments.engine_type == "blend":
        yield ("--engine-type blend: CacheBlend copies from memory of LMCache's own allocator alone, and would find every "
               "chunk and load none of them. Give --maru-blend-matcher, too: then L1 is LMCache's own, and only the matcher is "
               "in the pool.")


def _innermost(adapter: Any) -> Any:
    while getattr(adapter, "inner_config", None) is not None:
        adapter = adapter.inner_config
    return adapter


def say_unused(arguments: argparse.Namespace, defaults: argparse.Namespace, capacity: int) -> None:
    """Logs which given options shape memory that this server does not have."""
    given = [option for name, option in _UNUSED.items() if getattr(arguments, name) != getattr(defaults, name)]
    if given:
        logger.warning("maru: %s: of no use here, since L1 is the pool, of %d bytes.", ", ".join(given), capacity)
