"""maru-lmcache-server: LMCache's server, with a pool of marud as its L1.

LMCache's server makes its storage manager in one place, lmcache.v1.multiprocess.engine_context, under the name StorageManager.
The launcher puts a function there that makes LMCache's own storage manager with MaruL1Manager in it. LMCache's constructor has
a parameter for that, which is called internal. This is the one name that is replaced, in this process alone. Everything else,
options, transports, HTTP, transfers, lower tiers, is LMCache's code as it was released. guard.py refuses other releases.
"""
from __future__ import annotations

import argparse
import inspect
import sys
from typing import Any, Optional, Sequence

from maru import Client, MaruError
from maru.pool_tier import Switch

from . import message_memory
from .guard import UnsuitableError, expect_lmcache

_COMPANION = "maru_lmcache.mp.server_module"
_EPILOG = ("All options but those of the first group are those of `lmcache server`. --l1-size-gb and --eviction-policy may be "
           "left out. docs/python/lmcache-server.md says which are refused, and why.")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs until a signal ends it. 2: the command cannot be carried out, and the last line says why."""
    message_memory.keep()
    try:
        expect_lmcache()
        _run(sys.argv[1:] if argv is None else list(argv))
    except (UnsuitableError, ValueError) as error:
        print(f"maru-lmcache-server: {error}", file=sys.stderr)
        return 2
    except MaruError as error:
        print(f"maru-lmcache-server: the pool cannot be used: {error}", file=sys.stderr)
        return 2
    return 0


def _microseconds(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of microseconds, 0 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Of `lmcache server`, with marud's options."""
    from lmcache.cli.commands.server import ServerCommand
    made = argparse.ArgumentParser("maru-lmcache-server", description="LMCache's server with a pool of marud as its L1.",
                                   epilog=_EPILOG)
    group = made.add_argument_group("marud")
    group.add_argument("--maru-socket", metavar="PATH", help="marud's socket (default: MARU_SOCKET, or /run/marud/marud.sock)")
    group.add_argument("--maru-pool", metavar="NAME", help="the pool (default: the one called default)")
    group.add_argument("--maru-tenant", metavar="NAME", default="",
                       help="the tenant of requests without cache_salt; a request with one has a tenant of its own")
    group.add_argument("--maru-timeout-ms", metavar="N", type=int, default=5000, help="for requests to marud (default: 5000)")
    group.add_argument("--maru-prefetch", metavar="SOCKET", nargs="?", const=True, default=False,
                       help="maru-tierd loads what has left the pool (default of SOCKET: MARU_TIER_SOCKET, or the service's)")
    group.add_argument("--maru-compute-us", metavar="N", type=_microseconds, default=0,
                       help="in which engines compute a token: nothing is loaded that would take longer (default: not known)")
    group.add_argument("--maru-blend-matcher", action="store_true",
                       help="with --engine-type blend: LMCache's own L1, and a matcher of chunks in the pool, for all servers")
    ServerCommand().add_arguments(made)
    return made


def _run(argv: list[str]) -> None:
    from lmcache.v1.distributed.config import parse_args_to_config
    from lmcache.v1.mp_observability.config import parse_args_to_observability_config
    from lmcache.v1.multiprocess import http_server
    from lmcache.v1.multiprocess.config import (parse_args_to_coordinator_config, parse_args_to_http_frontend_config,
                                                parse_args_to_mp_server_config)
    from lmcache.v1.multiprocess.ext_server_module import ExtServerModuleSpec

    from .refused import refuse_adapters, refuse_options, say_unused
    options = parser()
    arguments, defaults = options.parse_args(argv), options.parse_args([])
    if arguments.maru_blend_matcher:
        return _run_blend(arguments)
    given = argparse.Namespace(**vars(arguments))
    refuse_options(given)
    arguments.l1_size_gb = arguments.l1_size_gb or 1.0  # LMCache wants one; config_for() says the pool's
    arguments.eviction_policy = arguments.eviction_policy or "noop"
    server, storage = parse_args_to_mp_server_config(arguments), parse_args_to_config(arguments)
    refuse_adapters(storage)
    server.server_modules.insert(0, ExtServerModuleSpec(_COMPANION))
    with Client(arguments.maru_socket, arguments.maru_pool, timeout_ms=arguments.maru_timeout_ms) as client:
        say_unused(given, defaults, client.geometry().pool_bytes)
        _put_into_lmcache(client, arguments.maru_tenant, arguments.maru_prefetch,
                          arguments.maru_compute_us * server.chunk_size)
        http_server.run_http_server(
            http_config=parse_args_to_http_frontend_config(arguments), mp_config=server, storage_manager_config=storage,
            obs_config=parse_args_to_observability_config(arguments),
            coordinator_config=parse_args_to_coordinator_config(arguments))


def _run_blend(arguments: argparse.Namespace) -> None:
    """LMCache's server as it is, but for the matcher of its blend module: one more name that is replaced, in this process
    alone."""
    from lmcache.v1.distributed.config import parse_args_to_config
    from lmcache.v1.mp_observability.config import parse_args_to_observability_config
    from lmcache.v1.multiprocess import http_server
    from lmcache.v1.multiprocess.config import (parse_args_to_coordinator_config, parse_args_to_http_frontend_config,
                                                parse_args_to_mp_server_config)
    from lmcache.v1.multiprocess.modules.blend import module

    from .matcher import PoolMatcher
    if arguments.engine_type != "blend":
        raise UnsuitableError("--maru-blend-matcher: it is the matcher of CacheBlend. Give --engine-type blend, too.")
    if list(inspect.signature(module.BlendTokenRangeMatcher).parameters) != ["chunk_size", "dedup_content"]:
        raise UnsuitableError("--maru-blend-matcher: this LMCache makes its matcher in another way. Install it anew: "
                              "pip install --force-reinstall lmcache.")
    with Client(arguments.maru_socket, arguments.maru_pool, timeout_ms=arguments.maru_timeout_ms) as client:
        def make(chunk_size: int = 256, dedup_content: bool = False) -> PoolMatcher:
            return PoolMatcher(client, chunk_size, dedup_content)

        module.BlendTokenRangeMatcher = make
        http_server.run_http_server(
            http_config=parse_args_to_http_frontend_config(arguments), mp_config=parse_args_to_mp_server_config(arguments),
            storage_manager_config=parse_args_to_config(arguments),
            obs_config=parse_args_to_observability_config(arguments),
            coordinator_config=parse_args_to_coordinator_config(arguments))


def _put_into_lmcache(client: Client, tenant: str, prefetch: Switch, compute_us: int) -> None:
    from lmcache.v1.distributed.storage_manager import StorageManager
    from lmcache.v1.multiprocess import engine_context

    from . import server_module
    from .first_tier import MaruL1Manager, config_for

    def make(config: Any) -> Any:
        wanted = config.l1_manager_config
        manager = MaruL1Manager(client, config_for(client, wanted.tag, wanted.read_ttl_seconds, wanted.write_ttl_seconds),
                                tenant=tenant, prefetch=prefetch, compute_us=compute_us)
        made = StorageManager(config, _l1_managers=(manager,))
        server_module.belongs_to(made, manager)
        return made

    engine_context.StorageManager = make
