"""What LMCache's listeners, event bus and gauges hear of an L1: the same words at the same occasions as of its own L1 manager.

Listeners are called under the manager's lock, as there, and must not call back.
"""
from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Iterable, Protocol, Union

from lmcache.v1.distributed.api import L1BackendType, ObjectKey
from lmcache.v1.distributed.internal_api import L1ManagerListener, L1ObjectMeta
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import get_event_bus
from lmcache.v1.mp_observability.otel_init import register_gauge

# LMCache has a closed list of media, and this one is the nearest: memory that the CPU reads and writes.
BACKEND = L1BackendType.DRAM

Keys = list[ObjectKey]


class Notices:
    def __init__(self, l1_tag: str) -> None:
        self._l1_tag = l1_tag
        self._listeners: list[L1ManagerListener] = []
        self._bus = get_event_bus()

    def add_listener(self, listener: L1ManagerListener) -> None:
        self._listeners.append(listener)

    def read_reserved(self, keys: Keys) -> None:
        self._tell("on_l1_keys_reserved_read", keys)
        self._publish(EventType.L1_READ_RESERVED, keys)

    def read_finished(self, keys: Keys) -> None:
        self._tell("on_l1_keys_read_finished", keys)
        self._publish(EventType.L1_READ_FINISHED, keys)

    def write_reserved(self, keys: Keys, tag: str) -> None:
        self._tell("on_l1_keys_reserved_write", keys)
        self._publish(EventType.L1_WRITE_RESERVED, keys, tag=tag)

    def write_finished(self, sizes: dict[ObjectKey, int]) -> None:
        """Of what has become visible: temporary objects and duplicates are not told of."""
        if sizes:
            self._tell("on_l1_keys_write_finished", list(sizes))
            self._publish(EventType.L1_WRITE_FINISHED, list(sizes), meta=_meta(sizes.values()))

    def write_finished_and_read_reserved(self, sizes: dict[ObjectKey, int]) -> None:
        self._tell("on_l1_keys_finish_write_and_reserve_read", list(sizes))
        self._publish(EventType.L1_WRITE_FINISHED_AND_READ_RESERVED, list(sizes), meta=_meta(sizes.values()))

    def deleted(self, sizes: dict[ObjectKey, int]) -> None:
        """Also of what marud has evicted, some time later."""
        if sizes:
            self._tell("on_l1_keys_deleted_by_manager", list(sizes))
            self._publish(EventType.L1_KEYS_EVICTED, list(sizes), meta=_meta(sizes.values()))

    def never_written(self, keys: Keys) -> None:
        """Of keys that were reserved and never became visible: no event, since nothing was evicted."""
        if keys:
            self._tell("on_l1_keys_deleted_by_manager", keys)

    def accessed(self, keys: Keys) -> None:
        self._tell("on_l1_keys_accessed", keys)
        if self._bus.has_subscribers(EventType.L1_KEYS_ACCESSED):
            self._publish(EventType.L1_KEYS_ACCESSED, keys)

    def _tell(self, method: str, keys: Keys) -> None:
        for listener in self._listeners:
            getattr(listener, method)(keys)

    def _publish(self, kind: EventType, keys: Keys, **more: Any) -> None:
        self._bus.publish(Event(event_type=kind, metadata={"l1_tag": self._l1_tag, "keys": keys, **more}))


def _meta(sizes: Iterable[int]) -> list[L1ObjectMeta]:
    return [L1ObjectMeta(size_bytes=size, backend=BACKEND) for size in sizes]


class Measured(Protocol):
    """What the gauges read."""

    @property
    def config(self) -> Any: ...
    def get_memory_usage(self) -> tuple[int, int]: ...
    def get_staging_memory_usage(self) -> int: ...


class Gauges:
    """OpenTelemetry knows a gauge once, and asks it about every manager that there is."""

    _lock = threading.Lock()
    _is_registered = False
    _managers: weakref.WeakSet[Measured] = weakref.WeakSet()

    @classmethod
    def add(cls, manager: Measured) -> None:
        with cls._lock:
            cls._managers.add(manager)
            if cls._is_registered:
                return
            cls._is_registered = True
        for name, description, value in (
                ("l1_memory_usage_bytes", "Bytes that this server has in L1", lambda m: m.get_memory_usage()[0]),
                ("l1_usage_ratio", "Bytes that this server has in L1, over the pool's", _ratio),
                ("l1_staging_bytes", "Bytes of L1 that are reserved for writers", lambda m: m.get_staging_memory_usage())):
            register_gauge("lmcache.l1_manager", f"lmcache_mp.{name}", description, cls._reader(value))

    @classmethod
    def remove(cls, manager: Measured) -> None:
        with cls._lock:
            cls._managers.discard(manager)

    @classmethod
    def _reader(cls, value: Callable[[Measured], Union[int, float]],
                ) -> Callable[[], list[tuple[Union[int, float], dict[str, object]]]]:
        def read() -> list[tuple[Union[int, float], dict[str, object]]]:
            with cls._lock:
                managers = list(cls._managers)
            return [(value(manager), {"l1_tag": manager.config.tag, "backend": "maru"}) for manager in managers]
        return read


def _ratio(manager: Measured) -> float:
    used, total = manager.get_memory_usage()
    return used / total if total > 0 else 0.0
