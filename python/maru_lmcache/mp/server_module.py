"""The companion of MaruL1Manager among the modules of LMCache's server, loaded by LMCache's own option --server-module.

LMCache makes the L1 before there is a registry of layouts, and gives the registry to modules. So this module hands it to the
L1, and says in the server's /status what the pool is. It also has the registry tell the L1 of each worker that registers.
"""
from __future__ import annotations

import weakref
from typing import Any

from lmcache.v1.multiprocess.ext_server_module import ExtServerModuleBuildContext

from .first_tier import MaruL1Manager

# The L1 of each storage manager that the launcher has made.
_managers: weakref.WeakKeyDictionary[Any, MaruL1Manager] = weakref.WeakKeyDictionary()


def belongs_to(storage_manager: Any, manager: MaruL1Manager) -> None:
    """To be called by the launcher, before LMCache builds its modules."""
    _managers[storage_manager] = manager


class LayoutModule:
    """What LMCache takes for a module: a context, a status, an end."""

    def __init__(self, context: Any, manager: MaruL1Manager) -> None:
        self._context = context
        self._manager = manager
        registry = context.layout_desc_registry
        manager.set_layouts(registry.find_group_layout_descs)
        register = registry.register

        def register_and_tell(model_name: str, world_size: int, *more: Any, **named: Any) -> None:
            register(model_name, world_size, *more, **named)
            manager.worker_registered(model_name, world_size)

        registry.register = register_and_tell

    @property
    def context(self) -> Any:
        return self._context

    def report_status(self) -> dict[str, Any]:
        return {"maru": self._manager.report_status()["maru"]}

    def close(self) -> None:
        """LMCache closes the L1 by itself."""


def build_server_modules(build: ExtServerModuleBuildContext) -> LayoutModule:
    """LMCache calls this."""
    context = build.server_context
    return LayoutModule(context, _managers[context.storage_manager])
