"""MaruL1Manager: the first tier of LMCache's server, in a pool of marud.

LMCache's server looks objects up, reads them, and stores them through an L1 manager. This one has the same calls as LMCache's
own (L1ManagerInterface), and the objects are blocks of a pool, read and written in place:

  reserve_read()   finds blocks and pins them         reserve_write()  gets pages to fill
  unsafe_read()    hands them out again               finish_write()   publishes them, visible to every server at once
  finish_read()    ends the pins                      delete()         deletes, clear() only what this server has stored

The pool outlives the server, and other servers use it. So this module has no index: each lookup goes to the pool. It has two
tables for the time of a request: the objects that are being read (held.py) and those that are being written (reserved.py). A
thread removes entries that have expired. A list names the blocks that this server has stored (stored.py). marud evicts.

Thread safety: everything. Each call that takes a list is one step to all others: one lock covers the tables, and with it the
calls that find and publish. Getting pages may wait for marud, and copying for a GPU takes time, so these happen without the
lock. Meanwhile a mark keeps other writers from the key.

Errors: as L1ManagerInterface has them. Where the pool refuses a call, the log (logger `maru`) says why. LMCache then
computes the chunk, or does not store it.
"""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Iterable, NamedTuple, Optional

from lmcache.v1.distributed.api import L1BackendType, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig
from lmcache.v1.distributed.error import L1Error, L1ReconfigureError
from lmcache.v1.distributed.internal_api import L1ManagerListener
from lmcache.v1.distributed.l1_manager import next_l1_manager_id, validate_read_locks
from lmcache.v1.memory_allocators.devdax_memory_allocator import DevDaxRemoveMode

from maru import Client, MaruError
from maru.pool_tier import Load, Switch

from .held import Held, HeldObjects
from .keys import Family, Keys, Layouts, Place
from .notices import BACKEND, Gauges, Notices
from .objects import PoolObject
from .pool import Pool, name_of
from .reserved import Reservations, Reserved
from .stored import Block, StoredBlocks

logger = logging.getLogger("maru")

Read = tuple[L1Error, Optional[PoolObject]]

_ABSENT: Read = (L1Error.KEY_NOT_EXIST, None)

# Of what this server has stored. A look holds the lock for about half a millisecond.
_LOOKED_AT_TOGETHER, _LOOKS_IN_A_SWEEP = 1024, 8


class _Wanted(NamedTuple):
    """Of reserve_write()."""

    key: ObjectKey
    family: Family
    place: Place
    is_private: bool


def config_for(client: Client, tag: str = "_default", read_ttl_seconds: int = 300, write_ttl_seconds: int = 600,
               ) -> L1ManagerConfig:
    """LMCache's description of an L1 in this client's pool: nothing that another process could open by a name, and no eviction
    by LMCache."""
    geometry = client.geometry()
    return L1ManagerConfig(
        L1MemoryManagerConfig(geometry.pages * geometry.page_bytes, False, shm_name=""), tag=tag,
        read_ttl_seconds=read_ttl_seconds, write_ttl_seconds=write_ttl_seconds,
        # A pool is full most of the time. A watermark that no usage reaches keeps LMCache from saying so each second.
        eviction=EvictionConfig("noop", trigger_watermark=2.0))


class MaruL1Manager:
    def __init__(self, client: Client, config: Optional[L1ManagerConfig] = None, *, tenant: str = "",
                 layouts: Optional[Layouts] = None, prefetch: Switch = False, compute_us: float = 0.0) -> None:
        """Takes the client over, and close() closes it. config: of config_for(), the default. tenant: of objects without a
        salt. layouts: see keys.py; may be given later with set_layouts(). prefetch: whether maru-tierd loads what has left the
        pool. compute_us: how long engines compute a chunk, so that it loads nothing more slowly; 0: not known."""
        self._client = client
        self._config = config_for(client) if config is None else config
        self._id: int = next_l1_manager_id()
        self._lock = threading.Lock()
        self._keys = Keys(client, tenant, layouts)
        self._held = HeldObjects(self._config.read_ttl_seconds)
        self._reservations = Reservations(self._config.write_ttl_seconds)
        self._stored = StoredBlocks(client)
        self._notices = Notices(self._config.tag)
        self._pool = Pool(client, self._id, prefetch, compute_us)
        self._is_closed = threading.Event()
        geometry = client.geometry()
        self._capacity = geometry.pages * geometry.page_bytes
        self._regions = geometry.pages // geometry.region_pages
        Gauges.add(self)
        ttl = min(self._config.read_ttl_seconds, self._config.write_ttl_seconds)
        self._sweeper = threading.Thread(target=self._sweep_until_closed, args=(min(1.0, ttl / 4),), name="maru-sweeper",
                                         daemon=True)
        self._sweeper.start()

    def set_layouts(self, layouts: Layouts) -> None:
        self._keys.layouts = layouts

    def worker_registered(self, model: str, workers: int) -> None:
        """To be called when the registry has the layout of a worker."""
        self._keys.worker_registered(model, workers)

    @property
    def l1_manager_id(self) -> int:
        return self._id

    @property
    def config(self) -> L1ManagerConfig:
        return self._config

    def register_listener(self, listener: L1ManagerListener) -> None:
        with self._lock:
            self._notices.add_listener(listener)

    # -- reading ------------------------------------------------------------------------------------------------------

    def reserve_read(self, keys: list[ObjectKey], read_locks: int = 1) -> dict[ObjectKey, Read]:
        """Pins what is there. KEY_NOT_EXIST: absent, or not to be read; the log says which. Waits for what storage below the
        pool has, where it is asked."""
        locks = validate_read_locks(read_locks)
        brought = self._bring(keys) if self._pool.has_tier else []
        with self._lock:
            now = time.monotonic()
            held = self._hold(keys, now)
            self._notices.read_reserved([key for key, one in zip(keys, held) if one is not None])
            answer: dict[ObjectKey, Read] = {
                key: _ABSENT if one is None else (L1Error.SUCCESS, self._held.lock(one, locks, now))
                for key, one in zip(keys, held)}
        for load in brought:
            load.release()
        return answer

    def _bring(self, keys: list[ObjectKey]) -> list[Load]:
        with self._lock:
            located = zip(keys, self._keys.located(keys))
            asked = [(key, of[1]) for key, of in located if of is not None and key not in self._held]
        return self._pool.bring(asked)  # without the lock: others go on meanwhile

    def unsafe_read(self, keys: list[ObjectKey]) -> dict[ObjectKey, Read]:
        """What reserve_read() has locked. Where the locks have expired, the block may still be there: then it is found again
        and gets one lock, which the reader's finish_read() ends. KEY_NOT_READABLE: no pinned memory for a GPU."""
        with self._lock:
            now = time.monotonic()
            found = [self._held.get(key) for key in keys]
            lapsed = [index for index, held in enumerate(found) if held is None or not held.is_locked(now)]
            for index, held in zip(lapsed, self._hold([keys[index] for index in lapsed], now)):
                found[index] = held
                if held is not None and not held.is_locked(now):
                    self._held.lock(held, 1, now)
        if self._pool.is_staged:
            for held in found:
                if held is not None and not held.is_staged:
                    held.is_staged = self._pool.copy_for_gpu(held.memory)
            return {key: _ABSENT if held is None else (L1Error.SUCCESS, held.memory) if held.is_staged else
                    (L1Error.KEY_NOT_READABLE, None) for key, held in zip(keys, found)}
        return {key: _ABSENT if held is None else (L1Error.SUCCESS, held.memory) for key, held in zip(keys, found)}

    def finish_read(self, keys: list[ObjectKey], read_locks: int = 1) -> dict[ObjectKey, L1Error]:
        locks = validate_read_locks(read_locks)
        answer: dict[ObjectKey, L1Error] = {}
        finished: list[ObjectKey] = []
        private: dict[ObjectKey, int] = {}
        gone: list[Held] = []
        with self._lock:
            now = time.monotonic()
            for key in keys:
                answer[key], held = self._held.release(key, locks, now)
                if answer[key] == L1Error.SUCCESS:
                    finished.append(key)
                else:
                    logger.warning("maru: %s ends a read that it has not begun, or that took longer than %d s.", name_of(key),
                                   self._config.read_ttl_seconds)
                if held is not None:
                    gone.append(held)
                    if held.is_private:
                        private[key] = held.memory.get_size()
            self._notices.read_finished(finished)
            self._notices.deleted(private)
        return answer

    def _hold(self, keys: list[ObjectKey], now: float) -> list[Optional[Held]]:
        """The entry of each key that is in the pool, without a lock where it is new. An entry of another layout makes room once
        it has no readers; until then its key is absent."""
        if not keys:
            return []
        answer: list[Optional[Held]] = [None] * len(keys)
        missing: list[tuple[tuple[int, ObjectKey, Family], Place]] = []
        for index, (key, located) in enumerate(zip(keys, self._keys.located(keys))):
            held = self._held.get(key)
            if held is None:
                if located is not None:
                    missing.append(((index, key, located[0]), located[1]))
            elif held.is_private or located is None or held.place == located[1]:
                answer[index] = held
            elif not held.is_locked(now):
                self._held.pop(key)
                missing.append(((index, key, located[0]), located[1]))
        for index, key, place, memory in self._pool.find(missing):
            answer[index] = self._held.add(key, Held(memory, place, None, 0, 0.0), now)
        return answer

    # -- writing ------------------------------------------------------------------------------------------------------

    def reserve_write(self, keys: list[ObjectKey], is_temporary: list[bool], layout_desc: MemoryLayoutDesc,
                      tag: str = "") -> dict[ObjectKey, Read]:
        """Pages for each key that is not there yet. KEY_NOT_WRITABLE: it is there, or this tag is writing it, or an earlier
        writer of this tag has not come back (reserved.py). OUT_OF_MEMORY, for all: marud has not enough, also after
        eviction."""
        if len(keys) != len(is_temporary):
            raise ValueError(f"reserve_write() takes as many flags as keys, not {len(is_temporary)} for {len(keys)} keys.")
        answer: dict[ObjectKey, Read] = {key: (L1Error.KEY_NOT_WRITABLE, None) for key in keys}
        with self._lock:
            now = time.monotonic()
            located = zip(keys, self._keys.located(keys, layout_desc, not all(is_temporary)), is_temporary)
            possible = [(_Wanted(key, of[0], of[1], is_private), of[1]) for key, of, is_private in located
                        if of is not None and key not in self._held]
            wanted = [one for one in self._pool.absent(possible) if self._reservations.claim(one.key, tag, now)]
        if not wanted:
            return answer
        try:
            memory = self._pool.pages(wanted[0].family, len(wanted))  # one layout, so one size
        except BaseException:
            with self._lock:
                for one in wanted:
                    self._reservations.unclaim(one.key, tag)
            raise
        with self._lock:
            now = time.monotonic()
            for index, one in enumerate(wanted):
                if memory is None:
                    self._reservations.unclaim(one.key, tag)
                    answer[one.key] = L1Error.OUT_OF_MEMORY, None
                    continue
                buffer, tensor = memory[index]
                made = self._pool.object(tensor, one.family)
                self._reservations.add(tag, Reserved(one.key, made, buffer, one.family, one.place, one.is_private, 0.0), now)
                answer[one.key] = L1Error.SUCCESS, made
            self._notices.write_reserved([key for key, (error, _) in answer.items() if error == L1Error.SUCCESS], tag)
        return answer

    def finish_write(self, keys: list[ObjectKey], tag: str = "") -> dict[ObjectKey, L1Error]:
        """Publishes. KEY_IN_WRONG_STATE: the reservation has expired, or the pool did not take the block; the log says
        which."""
        answer, taken = self._begin_finish(keys, tag)
        with self._lock:
            new, refused = self._publish(taken, tag)
            self._notices.write_finished(new)
        answer.update(dict.fromkeys(refused, L1Error.KEY_IN_WRONG_STATE))
        return answer

    def finish_write_and_reserve_read(self, keys: list[ObjectKey], read_locks: int = 1, tag: str = "",
                                      ) -> dict[ObjectKey, Read]:
        """Publishes, and locks what is under the keys then: this writer's object, or the one that was there first."""
        locks = validate_read_locks(read_locks)
        errors, taken = self._begin_finish(keys, tag)
        with self._lock:
            now = time.monotonic()
            private = {reserved.key for reserved in taken if reserved.is_temporary}
            sizes = {reserved.key: reserved.family.nbytes for reserved in taken}
            new, refused = self._publish(taken, tag)
            errors.update(dict.fromkeys(refused, L1Error.KEY_IN_WRONG_STATE))
            finished = [key for key, error in errors.items() if error == L1Error.SUCCESS]
            here = dict(zip(finished, self._hold(finished, now)))
            answer: dict[ObjectKey, Read] = {}
            for key, error in errors.items():
                if error != L1Error.SUCCESS:
                    answer[key] = error, None
                    continue
                held = here[key]  # None: marud has evicted it already
                answer[key] = _ABSENT if held is None else (L1Error.SUCCESS, self._held.lock(held, locks, now))
            locked = [key for key, (error, _) in answer.items() if error == L1Error.SUCCESS]
            others = [key for key in locked if key not in new and key not in private]
            if others:
                self._notices.read_reserved(others)
            self._notices.write_finished_and_read_reserved({key: sizes[key] for key in locked if key not in others})
        return answer

    def finish_write_and_delete(self, keys: list[ObjectKey], tag: str = "") -> dict[ObjectKey, L1Error]:
        """Gives the pages back. No reader ever sees them."""
        with self._lock:
            now = time.monotonic()
            answer: dict[ObjectKey, L1Error] = {}
            gone: list[ObjectKey] = []
            for key in keys:
                answer[key], reserved = self._reservations.begin_finish(key, tag, now)
                if reserved is not None:
                    self._reservations.end_finish(reserved, tag)
                    reserved.give_back()
                    if key not in self._held and key not in self._reservations and key not in self._stored:
                        gone.append(key)
            self._notices.never_written(gone)
        return answer

    def _begin_finish(self, keys: list[ObjectKey], tag: str) -> tuple[dict[ObjectKey, L1Error], list[Reserved]]:
        """What is to be published, complete: the pages have what the writer wrote."""
        answer: dict[ObjectKey, L1Error] = {}
        taken: list[Reserved] = []
        with self._lock:
            now = time.monotonic()
            for key in keys:
                answer[key], reserved = self._reservations.begin_finish(key, tag, now)
                if reserved is not None:
                    taken.append(reserved)
                elif answer[key] == L1Error.KEY_IN_WRONG_STATE:
                    logger.warning("maru: %s was written in more than %d s, and is not stored.", name_of(key),
                                   self._config.write_ttl_seconds)
        try:
            for reserved in taken:
                if not reserved.is_temporary:
                    self._pool.fill(reserved)
        except BaseException:
            with self._lock:
                for reserved in taken:
                    self._reservations.end_finish(reserved, tag)
                    reserved.give_back()
            raise
        return answer, taken

    def _publish(self, taken: list[Reserved], tag: str) -> tuple[dict[ObjectKey, int], list[ObjectKey]]:
        """The sizes of the objects that are new, and what the pool did not take. Temporary objects become private."""
        shared: list[Reserved] = []
        discarded: list[ObjectKey] = []
        for reserved in taken:
            self._reservations.end_finish(reserved, tag)
            if not reserved.buffer.is_held:  # by force, meanwhile
                discarded.append(reserved.key)
            elif not reserved.is_temporary:
                shared.append(reserved)
            elif reserved.key in self._held:
                reserved.give_back()
            else:
                self._held.add(reserved.key, Held(reserved.memory, None, reserved.buffer, 0, 0.0, self._pool.is_staged),
                               time.monotonic())
        new, refused = self._pool.store(shared)
        for reserved, number in new:
            self._stored.add(reserved.key, Block(reserved.place, number, reserved.family.nbytes))
        return {reserved.key: reserved.family.nbytes for reserved, _ in new}, refused + discarded

    # -- deleting -----------------------------------------------------------------------------------------------------

    def delete(self, keys: list[ObjectKey], force: bool = False) -> dict[ObjectKey, L1Error]:
        """Deletes the blocks under these keys, whichever server has stored them. KEY_IS_LOCKED: this server is
        reading or writing it, and force is False. Readers, here and in other servers, keep their blocks."""
        answer: dict[ObjectKey, L1Error] = {}
        to_delete: list[tuple[ObjectKey, Place]] = []
        gone: dict[ObjectKey, int] = {}
        never: list[ObjectKey] = []
        with self._lock:
            now = time.monotonic()
            for key, located in zip(keys, self._keys.located(keys)):
                discarded = self._reservations.discard(key, now, force)
                if not force and (self._held.is_locked(key, now) or self._reservations.is_live(key, now)):
                    answer[key] = L1Error.KEY_IS_LOCKED
                    continue
                held = self._held.pop(key)
                answer[key] = L1Error.SUCCESS if held is not None or discarded else L1Error.KEY_NOT_EXIST
                if held is not None:
                    gone[key] = held.memory.get_size()
                elif discarded:
                    never.append(key)
                place = held.place if held is not None and held.place is not None else located and located[1]
                if place is not None:
                    to_delete.append((key, place))
            was_there = set(self._pool.delete(to_delete))
            for key, _ in to_delete:
                block = self._stored.forget(key)
                if key in was_there:
                    family = self._keys.family(key)
                    answer[key] = L1Error.SUCCESS
                    gone.setdefault(key, block.nbytes if block is not None else 0 if family is None else family.nbytes)
            self._notices.deleted(gone)
            self._notices.never_written([key for key in never if key not in gone])
        return answer

    def clear(self, force: bool = False) -> None:
        """Deletes what this server has stored since it was started, and nothing of another server: `marudctl clear` empties a
        pool. Without force all that is being read or written stays. Readers keep what they have also with force."""
        with self._lock:
            now = time.monotonic()
            keys = [key for key in self._stored.keys() if force or not self._held.is_locked(key, now)]
            gone: dict[ObjectKey, int] = {}
            for key in [key for key in self._held if force or not self._held.is_locked(key, now)]:
                held = self._held.pop(key)
                if held is not None and held.is_private:
                    gone[key] = held.memory.get_size()
            try:
                gone.update((key, block.nbytes) for key, block in self._stored.delete(keys))
            except MaruError as error:
                self._pool.say("Not all is cleared", error)
            never = [key for key in {reserved.key for reserved in self._reservations}
                     if self._reservations.discard(key, now, force) and key not in gone]
            self._notices.deleted(gone)
            self._notices.never_written(never)
        logger.info("maru: cleared %d objects of this server; blocks of other servers stay.", len(gone))

    def touch_keys(self, keys: list[ObjectKey]) -> None:
        """For LMCache's own statistics; marud has heard of the use when the blocks were found."""
        self._notices.accessed(keys)

    def is_key_evictable(self, key: ObjectKey) -> bool:
        """Asked by eviction policies of LMCache, without the lock; marud evicts here, whatever they say."""
        now = time.monotonic()
        return key in self._stored and not self._held.is_locked(key, now)

    # -- expiry -------------------------------------------------------------------------------------------------------

    def _sweep_until_closed(self, period: float) -> None:
        while not self._is_closed.wait(period):
            try:
                self.sweep()
            except MaruError as error:
                self._pool.say("What marud has evicted is not known", error)

    def sweep(self) -> None:
        """Takes expired locks and reservations away, and hears of what marud has evicted. A thread does it, each second."""
        with self._lock:
            now = time.monotonic()
            unread = self._held.pop_expired(now)
            unwritten = self._reservations.pop_expired(now)
            private = {key: held.memory.get_size() for key, held in unread if held.is_private}
            self._notices.deleted(private)
            self._notices.never_written([reserved.key for reserved in unwritten if reserved.key not in self._stored])
        if unread or unwritten:
            logger.warning("maru: the locks of %d objects expired before they were read, and of %d before they were written.",
                           len(unread), len(unwritten))
            self._pool.wait_for_gpu()
        for _ in range(_LOOKS_IN_A_SWEEP):
            with self._lock:
                evicted = self._stored.pop_gone(_LOOKED_AT_TOGETHER)
                self._notices.deleted({key: block.nbytes for key, block in evicted})

    # -- what there is ------------------------------------------------------------------------------------------------

    def get_memory_usage(self) -> tuple[int, int]:
        """The bytes that this server has in the pool: stored here and still there, being written, private. And the pool's.
        The sum counts an evicted chunk until a sweep has come to it, but never more than the pool has."""
        used = self._stored.nbytes + self._reservations.nbytes + self._held.private_bytes
        return min(used, self._capacity), self._capacity

    def get_staging_memory_usage(self) -> int:
        return self._reservations.nbytes

    def get_capacity_bytes_by_backend(self) -> dict[L1BackendType, int]:
        return {BACKEND: self._capacity}

    def get_l1_memory_desc(self) -> None:
        """There is no one buffer to register: regions come and go, and blocks of others are mapped read-only."""
        return None

    def get_devdax_arena_statuses(self) -> list[Any]:
        raise self._not_devdax(409)

    def get_devdax_arena_status(self, device_path: str) -> Any:
        raise self._not_devdax(404)

    def owns_device(self, device_path: str) -> bool:
        """marud maps devices, and this process only the pool."""
        return False

    def memory_region_count(self) -> int:
        """More than 1, so LMCache itself refuses to add adapters that register one region."""
        return max(2, self._regions)

    def add_devdax_device(self, device_path: str, size_in_bytes: int) -> Any:
        raise self._not_devdax(409)

    def remove_devdax_device(self, device_path: str, mode: DevDaxRemoveMode = DevDaxRemoveMode.DRAIN) -> Any:
        raise self._not_devdax(404)

    @staticmethod
    def _not_devdax(status: int) -> L1ReconfigureError:
        return L1ReconfigureError(status, "This L1 is a pool of marud: `marudctl device add` and `marudctl device remove` "
                                          "change its devices.")

    def report_status(self) -> dict[str, Any]:
        with self._lock:
            now = time.monotonic()
            used, total = self.get_memory_usage()
            pool = self._client.statistics()
            private = self._held.private_count() + sum(reserved.is_temporary for reserved in self._reservations)
            return {
                "is_healthy": self._pool.is_readable(),
                "total_object_count": len(self._stored) + self._held.private_count() + len(self._reservations),
                "write_locked_count": self._reservations.live_count(now),
                "read_locked_count": self._held.locked_count(now),
                "temporary_count": private,
                "staging_object_count": len(self._reservations),
                "staging_bytes": self._reservations.nbytes,
                "memory_used_bytes": used,
                "memory_total_bytes": total,
                "memory_configured_bytes": total,
                "capacity_bytes_by_backend": {BACKEND.value: total},
                "memory_usage_ratio": used / total if total > 0 else 0.0,
                "write_ttl_seconds": self._config.write_ttl_seconds,
                "read_ttl_seconds": self._config.read_ttl_seconds,
                "maru": {"pins": pool.pins, "regions": pool.regions, "hits": pool.retrieve_hits,
                         "misses": pool.retrieve_misses, "stores": pool.stores, "duplicates": pool.duplicates,
                         "checksum_errors": pool.checksum_errors, "expired_reads": self._held.expired,
                         "expired_writes": self._reservations.expired,
                         "writers_not_back": self._reservations.overdue_count(), "is_copied_for_gpu": self._pool.is_staged},
            }

    def memcheck(self) -> bool:
        """Whether the totals are those of the tables."""
        with self._lock:
            return (self._reservations.nbytes == sum(reserved.buffer.nbytes for reserved in self._reservations)
                    and self._held.private_bytes == sum(held.buffer.nbytes for key in self._held
                                                        if (held := self._held.get(key)) and held.buffer is not None))

    def close(self) -> None:
        """Lets go of everything and leaves the pool. What is stored stays there. Tensors stay readable. May be called
        again."""
        self._is_closed.set()
        if self._sweeper is not threading.current_thread():
            self._sweeper.join()
        Gauges.remove(self)
        self._pool.wait_for_gpu()
        with self._lock:
            for key in list(self._held):
                self._held.pop(key)
            for reserved in list(self._reservations):
                self._reservations.discard(reserved.key, time.monotonic(), force=True)
        self._client.close()
