"""MaruL2Adapter: a pool of marud as the second tier of LMCache's own server, of any version, by its official plug-in.

    lmcache server ... --l2-adapter '{"type": "plugin", "module_path": "maru_lmcache.l2", "class_name": "MaruL2Adapter",
                                      "adapter_params": {"socket": "/run/marud/marud.sock", "pool": "default"}}'

LMCache keeps objects in memory of its own, its L1. It asks this adapter to store copies, and to copy objects back. An object
is copied once in each direction, between the two memories, by threads that hold no lock of Python's meanwhile. A lookup pins
what it finds, and the load reads what the lookup has pinned.

An object lies under the same key as one of a server whose L1 is the pool (maru_lmcache.mp), so the two find each other's. What
LMCache has serialized (`serde`) has keys of its own.

Usage, listing and deletion know the objects that this server has stored or found, and ask the pool each time whether it still
has them: marud evicts, and other servers delete.

Thread safety: everything. No call waits but close().
"""
from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Callable, Iterable, Optional

import numpy
import torch
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier
from numpy.typing import NDArray

from maru import Client, MaruError, View
from maru.errors import InvalidArgumentError
from maru.pool_tier import PoolTier, Switch

from .mp.blocks import Blocks
from .mp.keys import Family, Keys, Place
from .mp.objects import tensor_of
from .mp.said import Sayings
from .mp.stored import Block, StoredBlocks, by_tenant

logger = logging.getLogger("maru")

_HELP = """maru_lmcache.l2.MaruL2Adapter, adapter_params:
- socket (str): marud's socket (default: MARU_SOCKET, or /run/marud/marud.sock)
- pool (str): the pool (default: the pool called default)
- tenant (str): the tenant of objects without cache_salt (default: none)
- timeout_ms (int): for requests to marud (default: 5000)
- load_threads (int): how many loads copy at a time (default: 2)
- prefetch (bool, or the path of a socket): whether maru-tierd loads what has left the pool (default: false)"""


class MaruL2AdapterConfig(L2AdapterConfigBase):  # type: ignore[misc]
    """adapter_params, checked. LMCache finds this class by its name."""

    def __init__(self, socket: Optional[str] = None, pool: Optional[str] = None, tenant: str = "", timeout_ms: int = 5000,
                 load_threads: int = 2, prefetch: Switch = False) -> None:
        self.socket = socket
        self.pool = pool
        self.tenant = tenant
        self.timeout_ms = timeout_ms
        self.load_threads = load_threads
        self.prefetch = prefetch

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> MaruL2AdapterConfig:
        """Raises InvalidArgumentError, a ValueError, where a parameter is unknown or of another type."""
        kinds = {"socket": str, "pool": str, "tenant": str, "timeout_ms": int, "load_threads": int, "prefetch": bool}
        for name, value in d.items():
            if name not in kinds:
                raise InvalidArgumentError(f"adapter_params has {name!r}, and MaruL2Adapter knows {', '.join(kinds)}.")
            if name == "prefetch" and isinstance(value, str) and value.startswith("/"):
                continue
            if not isinstance(value, kinds[name]) or isinstance(value, bool) != (name == "prefetch"):
                raise InvalidArgumentError(f"adapter_params has {name} {value!r}: a {kinds[name].__name__} is wanted.")
        if d.get("timeout_ms", 1) <= 0 or d.get("load_threads", 1) <= 0:
            raise InvalidArgumentError("adapter_params: timeout_ms and load_threads are 1 at the least.")
        return cls(**d)

    @classmethod
    def help(cls) -> str:
        return _HELP


class _Task:
    """Its result is taken once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._done: dict[int, Any] = {}

    def begin(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def end(self, number: int, result: Any) -> None:
        with self._lock:
            self._done[number] = result

    def take(self, number: int) -> Any:
        with self._lock:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        with self._lock:
            done, self._done = self._done, {}
            return done


class MaruL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    def __init__(self, config: MaruL2AdapterConfig, l1_memory_desc: Any = None) -> None:
        """l1_memory_desc: where LMCache's L1 lies, which is of no use here. Raises MaruError where there is no pool."""
        self._client = Client(config.socket, config.pool, timeout_ms=config.timeout_ms)
        geometry = self._client.geometry()
        super().__init__(max_capacity_bytes=geometry.pages * geometry.page_bytes)
        self._blocks = Blocks(self._client)
        self._tier = PoolTier(config.prefetch, logger)
        self._keys = Keys(self._client, config.tenant)
        self._serialized: dict[tuple[str, int, int], Family] = {}
        self._said = Sayings()
        self._known_lock = threading.Lock()  # covers the next two
        self._known = StoredBlocks(self._client)
        self._locked: dict[ObjectKey, list[View]] = {}
        self._stores, self._lookups, self._loads = _Task(), _Task(), _Task()
        self._store_event, self._lookup_event, self._load_event = (create_event_notifier() for _ in range(3))
        # Stores wait for marud when it evicts; lookups and loads do not wait for stores.
        self._store_thread = ThreadPoolExecutor(1, "maru-l2-store")
        self._lookup_thread = ThreadPoolExecutor(1, "maru-l2-lookup")
        self._load_threads = ThreadPoolExecutor(config.load_threads, "maru-l2-load")

    def get_store_event_fd(self) -> int:
        return self._store_event.fileno()  # type: ignore[no-any-return]

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookup_event.fileno()  # type: ignore[no-any-return]

    def get_load_event_fd(self) -> int:
        return self._load_event.fileno()  # type: ignore[no-any-return]

    # -- storing ------------------------------------------------------------------------------------------------------

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        return self._submit(self._store_thread, self._stores, self._store_event, self._store, L2StoreResult(False, 0), keys,
                            objects)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return self._stores.take_all()

    def _store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2StoreResult:
        """A success when all of them are there afterwards. Those that were there already were not transferred."""
        groups: dict[bytes, list[tuple[tuple[ObjectKey, MemoryObj, Family], Place]]] = {}
        for key, item in zip(keys, objects, strict=True):
            located = self._place_of(key, MemoryLayoutDesc(item.get_shapes(), item.get_dtypes()))
            if located is None:
                return L2StoreResult(False, 0)
            groups.setdefault(located[0].metadata, []).append(((key, item, located[0]), located[1]))
        transferred, is_complete = 0, True
        for group in groups.values():
            for tenant, items, rows in by_tenant(group):
                stored = self._blocks.store_copies(rows, [item.byte_array for _, item, _ in items], tenant,
                                                   items[0][2].metadata)
                for error in stored.errors.values():
                    self._said.error("store", "An object is not stored: %s", error)
                is_complete = is_complete and not stored.errors
                new = [(key, item.get_size(), int(number), row) for (key, item, _), number, is_new, row in
                       zip(items, stored.blocks, stored.is_new, rows) if is_new]
                transferred += sum(size for _, size, _, _ in new)
                with self._known_lock:
                    for key, size, number, row in new:
                        self._known.add(key, Block(Place(tenant, row.tobytes()), number, size))
                if new:
                    self._notify_keys_stored([key for key, *_ in new], [size for _, size, *_ in new])
        return L2StoreResult(is_complete, transferred)

    # -- looking up ---------------------------------------------------------------------------------------------------

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]) -> int:
        return self._submit(self._lookup_thread, self._lookups, self._lookup_event, self._look_up, Bitmap(len(keys)), keys,
                            group_layout_descs)

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Ends the pins; nothing can fail."""
        with self._known_lock:
            for key in keys:
                views = self._locked.get(key)
                if views:
                    views.pop()
                    if not views:
                        del self._locked[key]

    def _look_up(self, keys: list[ObjectKey], layouts: dict[int, MemoryLayoutDesc]) -> Bitmap:
        found = Bitmap(len(keys))
        missing = list(range(len(keys)))
        for is_serialized in (False, True):
            asked = []
            for index in missing:
                located = (self._serialized_place(keys[index]) if is_serialized else
                           self._place_of(keys[index], layouts.get(keys[index].object_group_id)))
                if located is not None:
                    asked.append((index, located[1]))
            for tenant, indices, rows in by_tenant(asked):
                try:
                    views = self._views(rows, tenant)
                except MaruError as error:  # what is locked already stays so: the caller unlocks what the answer has
                    self._said.error("lookup", "%d objects count as absent: %s", len(indices), error)
                    continue
                for index, row, view in zip(indices, rows, views):
                    if isinstance(view, View):
                        self._lock(keys[index], Place(tenant, row.tobytes()), view)
                        found.set(index)
                        missing.remove(index)
                    elif view is not None:
                        self._said.error("unreadable", "A block counts as absent: %s", view)
        return found

    def _views(self, rows: NDArray[numpy.uint8], tenant: int) -> list[Any]:
        """Pinned, with what maru-tierd brings meanwhile: a lookup has a thread of its own."""
        views = list(self._client.retrieve_batch(rows, tenant))
        missing = [i for i, view in enumerate(views) if view is None]
        brought = self._tier.bring(rows[missing], tenant, is_sparse=True)
        if brought is not None:
            for i, view in zip(missing, self._client.retrieve_batch(rows[missing], tenant)):
                views[i] = view
            brought.release()
        return views

    def _lock(self, key: ObjectKey, place: Place, view: View) -> None:
        with self._known_lock:
            self._locked.setdefault(key, []).append(view)
            if key not in self._known:
                self._known.add(key, Block(place, view.block, len(view)))

    # -- loading ------------------------------------------------------------------------------------------------------

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        return self._submit(self._load_threads, self._loads, self._load_event, self._load, Bitmap(len(keys)), keys, objects)

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        return self._loads.take(task_id)

    def _load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> Bitmap:
        loaded = Bitmap(len(keys))
        for index, (key, item) in enumerate(zip(keys, objects, strict=True)):
            view = self._view_of(key, item)
            is_serialized = _is_serialized(item.get_shapes(), item.get_dtypes())
            if view is None:
                continue
            if len(view) > item.get_size() if is_serialized else len(view) != item.get_size():
                self._said.error("size", "An object of %d bytes is not loaded into memory for %d.", len(view), item.get_size())
                continue
            item.raw_tensor[:len(view)].copy_(tensor_of(view.data))
            loaded.set(index)
        if loaded.popcount():
            self._notify_keys_accessed([key for index, key in enumerate(keys) if loaded.test(index)])
        return loaded

    def _view_of(self, key: ObjectKey, item: MemoryObj) -> Optional[View]:
        """What the lookup has pinned; without a lookup, what is there now."""
        with self._known_lock:
            views = self._locked.get(key)
            if views:
                return views[-1]
        located = self._place_of(key, MemoryLayoutDesc(item.get_shapes(), item.get_dtypes()))
        if located is None:
            return None
        for tenant, _, rows in by_tenant([(key, located[1])]):
            view = self._client.retrieve_batch(rows, tenant)[0]
            return view if isinstance(view, View) else None
        return None

    # -- deleting, listing, usage -------------------------------------------------------------------------------------

    def delete(self, keys: list[ObjectKey]) -> None:
        """The blocks under these keys, whichever server has stored them. Readers keep what they have."""
        asked: list[tuple[ObjectKey, Place]] = []
        with self._known_lock:
            for key in keys:
                block = self._known.get(key)
                if block is not None:
                    asked.append((key, block.place))
                    continue
                asked += [(key, located[1]) for located in (self._place_of(key, None), self._serialized_place(key))
                          if located is not None]
            gone: dict[ObjectKey, int] = {}
            for tenant, items, rows in by_tenant(asked):
                for key, was_there in zip(items, self._client.delete_batch(rows, tenant)):
                    block = self._known.forget(key)
                    if was_there or block is not None:
                        gone[key] = gone.get(key, 0) + (block.nbytes if block is not None else 0)
        if gone:
            self._notify_keys_deleted(list(gone), list(gone.values()))

    def list_l2_keys(self, model_name: Optional[str] = None, page_size: int = 500,
                     cursor: Optional[str] = None) -> KeyListPage:
        """What this server has stored or found here, and is there, in the order of its names."""
        if page_size <= 0:
            raise InvalidArgumentError(f"A page has 1 key or more, not {page_size}.")
        self._forget_gone()
        with self._known_lock:
            sizes = {_name(key): (key, block.nbytes) for key, block in self._known.items()
                     if model_name is None or key.model_name == model_name}
        names = sorted(name for name in sizes if cursor is None or name > cursor)
        page = names[:page_size]
        return KeyListPage(tuple(KeyEntry(sizes[name][0].to_encoded_object_key(), sizes[name][1]) for name in page),
                           page[-1] if len(names) > page_size else None)

    def get_usage(self) -> AdapterUsage:
        """The bytes of what this server has stored or found here, and is there; of the pool's bytes."""
        self._forget_gone()
        salts: dict[str, int] = {}
        with self._known_lock:
            for key, block in self._known.items():
                salts[key.cache_salt] = salts.get(key.cache_salt, 0) + block.nbytes
        return AdapterUsage(sum(salts.values()), self._max_capacity_bytes, MappingProxyType(salts))

    def _forget_gone(self) -> None:
        with self._known_lock:
            gone = self._known.pop_gone(len(self._known), from_start=True)
        if gone:
            self._notify_keys_deleted([key for key, _ in gone], [block.nbytes for _, block in gone])

    def report_status(self) -> dict[str, Any]:
        usage = self.get_usage()
        pool = self._client.statistics()
        with self._known_lock:
            locked = len(self._locked)
        return {"is_healthy": not self._client.is_closed, "type": type(self).__name__, "stored_object_count": len(self._known),
                "locked_key_count": locked, "current_size_bytes": usage.total_bytes_used,
                "max_capacity_bytes": usage.total_capacity_bytes, "pins": pool.pins, "duplicates": pool.duplicates,
                "checksum_errors": pool.checksum_errors}

    def close(self) -> None:
        """Waits for tasks that have begun. What is stored stays in the pool."""
        for threads in (self._store_thread, self._lookup_thread, self._load_threads):
            threads.shutdown(wait=True, cancel_futures=True)
        with self._known_lock:
            self._locked.clear()
        for event in (self._store_event, self._lookup_event, self._load_event):
            event.close()
        self._client.close()

    # -- what the tasks have in common --------------------------------------------------------------------------------

    def _submit(self, threads: ThreadPoolExecutor, tasks: _Task, event: Any, work: Callable[..., Any], failure: Any,
                *arguments: Any) -> int:
        number = tasks.begin()

        def run() -> None:
            result = failure
            try:
                result = work(*arguments)
            except MaruError as error:
                self._said.error(work.__name__, "The pool could not do what LMCache asked: %s", error)
            except Exception:
                logger.exception("maru: a task of the second tier failed")
            tasks.end(number, result)
            event.notify()
        threads.submit(run)
        return number

    def _place_of(self, key: ObjectKey, layout: Optional[MemoryLayoutDesc]) -> Optional[tuple[Family, Place]]:
        if layout is not None and _is_serialized(layout.shapes, layout.dtypes):
            return self._serialized_place(key)
        return self._keys.located([key], layout)[0]

    def _serialized_place(self, key: ObjectKey) -> Optional[tuple[Family, Place]]:
        name = self._keys.model_name(key)
        if name is None:
            return None
        of = name, key.kv_rank, key.object_group_id
        family = self._serialized.get(of)
        if family is None:
            family = self._serialized[of] = Family(*of, MemoryLayoutDesc([], []), b"serialized")
        return family, Place(self._keys.tenant(key.cache_salt), family.digest(key.chunk_hash))


def _is_serialized(shapes: Iterable[torch.Size], dtypes: Iterable[torch.dtype]) -> bool:
    """Whether LMCache has made one run of bytes of the object."""
    return [len(shape) for shape in shapes] == [1] and list(dtypes) == [torch.uint8]


def _name(key: ObjectKey) -> str:
    return f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id}@{key.chunk_hash.hex()}@{key.cache_salt}"
