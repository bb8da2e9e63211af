"""Whether this LMCache is one into which MaruL1Manager fits.

LMCache has no official way to bring an L1 manager along. The launcher uses its internal one, which may change with any
version. So it starts with versions alone that it was tested with, and looks at the names and signatures that it uses there,
too.
"""
from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from typing import Any

from maru import MaruError

TESTED_VERSIONS = ("0.5.6",)

_INSTEAD = ("Or run LMCache's own server, of any version, with the pool as its second tier: lmcache server ... --l2-adapter "
            "'{\"type\": \"plugin\", \"module_path\": \"maru_lmcache.l2\", \"class_name\": \"MaruL2Adapter\"}'.")


class UnsuitableError(MaruError):
    """This LMCache is not one for the launcher, or was asked for what it cannot do here. The message is for the user."""


def expect_lmcache() -> None:
    """Raises UnsuitableError, whose sentence says what is there, what is wanted, and what to do."""
    try:
        version = importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        raise UnsuitableError("LMCache is not installed in this environment: pip install "
                              f"lmcache=={TESTED_VERSIONS[-1]}.") from None
    if version not in TESTED_VERSIONS:
        raise UnsuitableError(f"This is LMCache {version}, and maru-lmcache-server, which replaces a part of it, is made for "
                              f"{' and '.join(TESTED_VERSIONS)}: pip install lmcache=={TESTED_VERSIONS[-1]}. {_INSTEAD}")
    try:
        importlib.import_module("lmcache.v1.multiprocess.http_server")
    except ImportError as error:
        raise UnsuitableError(f"LMCache's server cannot be loaded here ({error}): install what it needs, which are among "
                              "others uvicorn, fastapi, and for metrics opentelemetry-exporter-prometheus.") from error
    difference = _difference()
    if difference:
        raise UnsuitableError(f"This LMCache calls itself {version}, and is not as that version was released: {difference}. "
                              f"Install it anew: pip install --force-reinstall lmcache=={version}. {_INSTEAD}")


def _difference() -> str:
    """The first that is found between this LMCache and the one that the launcher is made for; "" for none."""
    from lmcache.v1.distributed import internal_api, storage_manager
    from lmcache.v1.multiprocess import engine_context

    from .first_tier import MaruL1Manager
    if getattr(engine_context, "StorageManager", None) is not storage_manager.StorageManager:
        return "lmcache.v1.multiprocess.engine_context has another StorageManager"
    parameters = list(inspect.signature(storage_manager.StorageManager.__init__).parameters)
    if parameters != ["self", "config", "_l1_managers", "_write_policy"]:
        return f"StorageManager takes {', '.join(parameters)}"
    registered = list(inspect.signature(engine_context.LayoutDescRegistry.register).parameters)
    if registered[:3] != ["self", "model_name", "world_size"]:
        return f"the registry of layouts takes {', '.join(registered)}"
    interface = internal_api.L1ManagerInterface
    for name, theirs in vars(interface).items():
        if name.startswith("_"):
            continue
        ours = inspect.getattr_static(MaruL1Manager, name, None)
        if ours is None:
            return f"an L1 manager has {name} there"
        if _parameters(ours) != _parameters(theirs):
            return f"{name}() of an L1 manager takes {', '.join(_parameters(theirs))}"
    return ""


def _parameters(member: Any) -> list[str]:
    return list(inspect.signature(member).parameters) if inspect.isfunction(member) else []
