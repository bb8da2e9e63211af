"""MaruHandler: the interface of connectors that were written for the older system of this name, on marud.

    with maru.MaruHandler(maru.MaruConfig(server_url="/run/marud/marud.sock")) as handler:
        handle = handler.alloc(4)
        handle.buf[:] = b"1234"
        handler.store("key", handle)
        bytes(handler.retrieve("key").view)

Where that system answers a failure with "absent" this raises a MaruError. Everything else that differs, and why, is in
docs/python/migration.md.

Thread safety: everything may be called from any thread. Fork: the child gets ForkedError until it calls connect() itself.
"""
from __future__ import annotations

import logging
import os
import threading
import weakref
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional, Sequence, Union, cast

from ._maru import Client, Finder, Pin, View
from .address import Address, parse
from .arguments import (ClientKey, Key, KeyName, client_key, client_keys, expect_possible, list_of, name_of, names_of,
                        whole)
from .config import UNCHOSEN, MaruConfig
from .errors import (UNREADABLE, ClosedError, ForkedError, HandleUsedError, InvalidArgumentError, LanesExhaustedError,
                     MaruError, NoSpaceError, NotConnectedError, PinsExhaustedError, PoolExhaustedError, PoolLeavesError,
                     PoolReplacedError, QuotaError, shown)
from .handler_stats import regions_of, statistics_of
from .places import RETRIEVED, Budget, Fresh, Place, Retrieved
from .pool_tier import PoolTier
from .records import Digest
from .results import (AllocHandle, FoundInOrder, MemoryInfo, OwnedRegions, PageAccount, PooledHandle, PoolHandle,
                      takes_slot_size)
from .stage import Stages

logger = logging.getLogger("maru")

# (region_id, page_count), or (region_id, page_count, slot_size) with the bytes of a page
RegionAdded = Union[Callable[[int, int], None], Callable[[int, int, int], None]]


class MaruHandler(Finder, Stages):
    """One attachment to one pool, with a budget of pages in hand."""

    def __init__(self, config: Optional[MaruConfig] = None) -> None:
        if config is not None and not isinstance(config, MaruConfig):
            raise InvalidArgumentError(f"A MaruHandler takes a MaruConfig, not {type(config).__name__}.")
        # A copy, checked again: its fields may have been changed, and may be later.
        self._config = MaruConfig() if config is None else config.checked_copy()
        self._client: Optional[Client] = None
        self._tenant: Optional[int] = None
        self._tier = PoolTier(self._config.prefetch or False, logger)
        self._is_forked = False
        # For a caller that would not survive an exception, and computes again what it is not given: LMCache.
        self._passes_over_unreadable = False
        # For one that ends no pins of what it has looked up, and then did not get or did not want: LMCache, too.
        self._ends_pins_of_unread = False
        self._on_region_added: Optional[RegionAdded] = None
        self._fresh_indexes, self._fresh_regions = Fresh(0), Fresh(RETRIEVED + 1)
        self._are_places_new = False
        self._renew()
        _handlers.add(self)

    def _renew(self) -> None:
        """What belongs to one attachment of one process."""
        # A thread that holds a lock may come again: from a signal's handler, or from what the garbage collector calls.
        self._connecting = threading.RLock()
        # A lock for each store that is under way, which its thread holds.
        self._stores: set[weakref.ref[Any]] = set()
        self._pins: dict[KeyName, list[Pin]] = {}
        self._pins_lock = threading.RLock()
        self._renew_loads()
        self._renew_places()

    def _renew_places(self) -> None:
        """Those of the attachment before lead to nothing."""
        if self._are_places_new:
            return
        self._retrieved = Retrieved(self._config.chunk_size_bytes, self._fresh_indexes)
        self._budget: Budget[PooledHandle] = Budget(self._config.chunk_size_bytes, self._config.pool_size, self._fresh_regions)
        self._are_places_new = True

    # -- connecting ---------------------------------------------------------------------------------------------------

    def connect(self, require_cuda_pin: bool = False) -> bool:
        """True when connected, also when it was already. False when that failed, or the callback of set_on_region_added()
        raised, or require_cuda_pin asks for memory that CUDA has registered, which a pool's is not; the log says why, and what
        to do."""
        try:
            if require_cuda_pin:
                raise InvalidArgumentError("require_cuda_pin=True, and a MaruHandler does not register the pool's memory with "
                                           "CUDA: leave it out. Copies go through pinned memory of their own.")
            self._open()
        except Exception as error:
            is_expected = isinstance(error, (MaruError, MemoryError))
            url = self._config.server_url
            where = "marud's socket ($MARU_SOCKET, or where maru.Client looks)" if url is UNCHOSEN else url
            logger.error("Not connected to %s: %s", where, error if is_expected else repr(error), exc_info=not is_expected)
            return False
        return True

    def _open(self) -> None:
        with self._connecting:
            if self._is_forked:  # everything else was renewed at the fork
                self._client, self._is_forked = None, False
            if self._client is not None:
                return
            self._config.explain_what_does_nothing()
            url = self._config.server_url
            address = Address(None, None, None) if url is UNCHOSEN else parse(url)
            client = Client(address.socket_path, address.pool, timeout_ms=self._config.timeout_ms,
                            read_only=self._config.read_only)
            shape = client.geometry()
            largest = shape.region_pages * shape.page_bytes
            if self._config.chunk_size_bytes > largest:
                client.close()
                raise InvalidArgumentError(f"chunk_size_bytes is {self._config.chunk_size_bytes}, and the pool takes values of "
                                           f"{largest} bytes at the most: set region_bytes of the pool to that or more.")
            self._address = address
            self._tenant = None if address.tenant is None else client.tenant(address.tenant)
            self._page_bytes, self._pool_bytes = shape.page_bytes, shape.pages * shape.page_bytes
            self._region_bytes = largest
            self._renew_attachment()
            self._client = client
        try:
            self._announce(self._budget.regions())
        except BaseException:
            self.close()
            raise

    def _renew_attachment(self) -> None:
        self._pins = {}
        self._has_said_leaving = False  # of the pool, to one who passes over it
        self._renew_places()
        self._are_places_new = False

    def close(self) -> None:
        """Waits for stores that are under way in other threads, refuses everything else, and detaches. Blocks stay in the pool,
        and memory that arrays or tensors still show stays readable. May be called again; where another thread is in close()
        it returns at once."""
        with self._connecting:
            client, self._client = self._client, None
            if client is None or self._is_forked:
                return
            self._pins = {}  # what is being pinned meanwhile goes with the old ones
            self._renew_loads()
        # Without the lock, which a thread that is storing may want: it may call close() itself.
        for reference in list(self._stores):
            store = reference()
            if store is not None:
                with store:
                    pass
        client.close()

    def __enter__(self) -> MaruHandler:
        """Connects, unless auto_connect is False. Raises what connect() logs."""
        if self._config.auto_connect:
            self._open()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def _refuse(self) -> NoReturn:
        raise NotConnectedError("Not connected: call connect() first, and look at its result. (A handler that was closed may "
                                "be connected again.)")

    def _ask(self) -> Client:
        client = self._client
        if client is None:
            self._refuse()
        if self._is_forked:
            raise ForkedError("This process is the child of a fork, and the connection is the parent's: call connect() here.")
        return client

    def _attachment(self) -> tuple[Client, Retrieved, Budget[PooledHandle]]:
        """The client, with the places of its attachment: another thread may close and connect in between, which renews these
        while there is no client."""
        while True:
            retrieved, budget = self._retrieved, self._budget
            client = self._ask()
            if self._retrieved is retrieved and self._budget is budget:
                return client, retrieved, budget

    def healthcheck(self) -> bool:
        """Whether this is connected and marud answers."""
        client = self._client
        if client is None:
            return False
        try:
            if self._config.read_only:
                self._attach_once_more(client)
            else:
                client.delete_tree(Digest(os.urandom(32)))  # nothing has this key: a request to marud and its answer, no more
        except MaruError as error:
            logger.warning("Not healthy: %s", error)
            return False
        return True

    def _attach_once_more(self, client: Client) -> None:
        """The one request that marud answers a reader. Raises what hinders; that there is no lane for it, or that this user is
        at a limit, is an answer, too."""
        client.reattach()
        try:
            with Client(self._address.socket_path, self._address.pool, timeout_ms=self._config.timeout_ms, read_only=True,
                        session_thread=False) as second:
                if second.geometry().uuid != client.geometry().uuid:
                    raise PoolReplacedError("marud has another pool of this name now: close() and connect().")
        except (LanesExhaustedError, QuotaError):
            pass

    # -- storing ------------------------------------------------------------------------------------------------------

    def alloc(self, size: int) -> AllocHandle:
        """Pages for one value of `size` bytes. Raises InvalidArgumentError for a size that cannot be, and PoolExhaustedError
        (both are ValueErrors) when there are none; DaemonUnreachableError when marud was needed and is not there;
        ReadOnlyError where the configuration says read_only."""
        chunk = self._config.chunk_size_bytes
        client, _, budget = self._attachment()
        size = whole(size)
        if size <= 0:
            raise InvalidArgumentError(f"A value has a whole number of bytes above 0, not {shown(size)}.")
        if size > chunk:
            raise InvalidArgumentError(f"The size is {shown(size)}, and chunk_size_bytes {chunk}: store less under one key, or "
                                       "set it higher.")
        seat = budget.take()
        while seat is None:
            if not self._config.auto_expand:
                raise PoolExhaustedError("The pool of this handler is exhausted and auto_expand is disabled: pool_size bytes "
                                         "are allocated and not stored. Store or free handles, or set auto_expand=True.")
            self._announce(budget.expand_if_full(self._config.expand_size or self._config.pool_size))
            seat = budget.take()
        try:
            buffer = client.alloc(size)
        except (NoSpaceError, QuotaError) as error:
            del seat  # whoever keeps the exception keeps this frame
            raise PoolExhaustedError(f"The pool is exhausted and expansion failed: {error}", error.errno, error.call) from None
        except BaseException:
            del seat
            raise
        handle = PooledHandle(buffer, budget, seat, size)
        seat.held = weakref.ref(handle)
        return handle

    def free(self, handle: AllocHandle) -> None:
        """Gives pages back that were not stored. Of a handle that was stored, ends nothing but the handle: what is in the pool
        is everybody's (delete() removes it). The second time it raises HandleUsedError, a ValueError."""
        self._ask()
        handle = self._expect_handle(handle)
        if not handle._end():
            raise HandleUsedError("This handle was freed already.")
        if handle._leave():
            handle._buffer.abort()

    def store(self, key: Key, handle: AllocHandle) -> bool:
        """Makes the value visible. True also when the key has a value already: that one stays, and these pages go back. False
        when the pool does not take it; the log says why, and the pages go back. The handle is used up either way."""
        client = self._ask()
        handle, plain = self._expect_handle(handle), client_key(key)
        if handle.is_spent:
            raise HandleUsedError("This handle was stored or freed already: allocate another one.")
        # Released whatever ends this, a Ctrl-C at any place too: `with` leaves no step between taking a lock and minding it.
        under_way = threading.RLock()
        with under_way:
            self._stores.add(weakref.ref(under_way, self._stores.discard))
            if self._client is not client:
                self._refuse()
            return self._store(client, plain, handle)

    def _store(self, client: Client, key: ClientKey, handle: PooledHandle) -> bool:
        try:
            handle._fill_now()
            # Arrays made from buf may live on; the block is pinned as long.
            client.store(key, handle._buffer, tenant=self._tenant, keep_views=True)
        except (InvalidArgumentError, ClosedError, ForkedError):
            raise
        except MaruError as error:
            self._give_up(key, handle, error)
            return False
        handle._leave()
        return True

    @staticmethod
    def _give_up(key: ClientKey, handle: PooledHandle, error: Exception) -> None:
        logger.warning("Not stored, %d bytes under %.100r: %s", handle.size, key, error)
        handle._leave()
        handle._buffer.abort()

    def batch_store(self, keys: Sequence[Key], handles: Sequence[AllocHandle]) -> list[bool]:
        """store() of each, in order; a wrong key or handle raises before anything is stored."""
        client = self._ask()
        plain, given = client_keys(list_of(keys, "keys")), list_of(handles, "handles")
        if len(plain) != len(given):
            raise InvalidArgumentError(f"{len(plain)} keys, but {len(given)} handles: keys and handles must have the same "
                                       "length.")
        mine = [self._expect_handle(handle) for handle in given]
        if any(handle.is_spent for handle in mine):
            raise HandleUsedError("A handle was stored or freed already; nothing of this batch is stored.")
        if len(set(map(id, mine))) != len(mine):
            raise HandleUsedError("A handle is there twice; nothing of this batch is stored.")
        under_way = threading.RLock()  # as in store()
        with under_way:
            self._stores.add(weakref.ref(under_way, self._stores.discard))
            if self._client is not client:
                self._refuse()
            return self._store_batch(client, plain, mine)

    def _store_batch(self, client: Client, keys: list[ClientKey], handles: list[PooledHandle]) -> list[bool]:
        try:
            client.exists_batch([key for key, handle in zip(keys, handles) if handle._fill is not None])  # copied for a key
            for handle in handles:
                handle._fill_now()
            errors = client.store_batch(keys, [handle._buffer for handle in handles], tenant=self._tenant,
                                        keep_views=True).errors
        except (InvalidArgumentError, ClosedError, ForkedError):
            raise
        except MaruError as error:
            errors = dict.fromkeys(range(len(keys)), error)
        for i, handle in enumerate(handles):
            if i in errors:
                self._give_up(keys[i], handle, errors[i])
            else:
                handle._leave()
        return [i not in errors for i in range(len(keys))]

    def _expect_handle(self, handle: AllocHandle) -> PooledHandle:
        if not isinstance(handle, PooledHandle):
            raise InvalidArgumentError(f"A handle from alloc() is wanted, not {type(handle).__name__}.")
        if handle._budget is not self._budget:
            raise HandleUsedError("This handle is of another MaruHandler, or of a connection that was closed.")
        return handle

    def delete(self, key: Key) -> bool:
        """Removes the value, whoever stored it. False when it is absent, or pinned through this handler."""
        client, key = self._ask(), client_key(key)
        name = name_of(key)
        with self._pins_lock:  # also while it is deleted: a pin comes before or after
            try:
                pins = self._pins.get(name)
                return False if pins and self._hold_what_is_there(client, key, pins) else client.delete(key, self._tenant)
            except PoolLeavesError as error:
                if not self._passes_over(error):
                    raise
                return False

    def _hold_what_is_there(self, client: Client, key: ClientKey, pins: Sequence[Pin]) -> bool:
        """Somebody else may have deleted what these pins hold, and stored another value under the key."""
        try:
            now = client.pin(key, self._tenant)
        except PinsExhaustedError:  # then nobody can tell
            return True
        return now is None or any(pin.block == now.block for pin in pins)  # None: its time to live is over, too

    # -- finding ------------------------------------------------------------------------------------------------------

    # exists(), batch_exists() and retrieve() are Finder's: a frame of Python would cost more than what is asked.

    def batch_retrieve(self, keys: Sequence[Key]) -> list[Optional[MemoryInfo]]:
        """retrieve() of each. A value that is damaged or lies in bad memory is None and logged, and deleted unless it has
        children or this handler only reads. get_stats()["native"] counts damaged ones (`checksum_errors`)."""
        try:
            client, retrieved, _ = self._attachment()
            found = client._find_batch(keys, self._tenant, retrieved)
        except UNREADABLE:
            if not self._passes_over_unreadable:
                raise
            found = [self.retrieve(key) for key in keys]
        return FoundInOrder(found, list(keys), self._end_pins) if self._ends_pins_of_unread else found

    def _end_pins(self, keys: Sequence[Key]) -> None:
        try:
            for key in keys:
                self.unpin(key)
        except MaruError as error:
            logger.debug("The pins went with their handler: %s", error)

    def _passes_over(self, error: MaruError) -> bool:
        """Whether a value that is unreadable counts as absent."""
        if not self._passes_over_unreadable:
            return False
        if not isinstance(error, PoolLeavesError):
            logger.error("Taken for absent: %s", error)
        elif not self._has_said_leaving:
            self._has_said_leaving = True
            logger.error("Taken for absent, and so is everything from now on: %s", error)
        return True

    def _pin(self, client: Client, key: ClientKey) -> Optional[Pin]:
        try:
            return client.pin(key, self._tenant)
        except UNREADABLE as error:
            if not self._passes_over(error):
                raise
            return None

    def pin(self, key: Key) -> bool:
        """Keeps a value in the pool until as many unpin(), or until close() or the death of this process. False when it is
        absent."""
        client, key = self._ask(), client_key(key)
        name = name_of(key)
        with self._pins_lock:
            pin = self._pin(client, key)
            if pin is None:
                return False
            self._keep_pins(client, [name], [pin])
        return True

    def _keep_pins(self, client: Client, names: Sequence[KeyName], pins: Sequence[Pin]) -> None:
        with self._pins_lock:
            of_key = self._pins
            if self._client is not client:  # closed meanwhile, which ended its pins
                self._refuse()
            for name, pin in zip(names, pins):
                mine = [pin]
                # Each of the two is one step, with nothing between finding the list and adding to it.
                while of_key.setdefault(name, mine) is not mine:
                    try:
                        of_key[name].append(pin)
                        break
                    except KeyError:
                        continue

    def unpin(self, key: Key) -> bool:
        """False when it was not pinned through this handler."""
        self._ask()
        [pin] = self._take_pins([client_key(key)])
        if pin is not None:
            pin.release()
        return pin is not None

    def _take_pins(self, keys: Sequence[ClientKey]) -> list[Optional[Pin]]:
        """What is no key raises before any is taken."""
        names = names_of(keys)
        taken: list[Optional[Pin]] = []
        with self._pins_lock:
            of_key = self._pins
            for key in [key for key, name in zip(keys, names) if name not in of_key]:
                expect_possible(key)
            for name in names:
                try:
                    taken.append(of_key[name].pop())
                except (KeyError, IndexError):
                    taken.append(None)
                    continue
                if name in of_key and not of_key[name]:
                    del of_key[name]
        return taken

    def batch_pin(self, keys: Sequence[Key]) -> list[bool]:
        """Pins the leading keys that are present, or that `prefetch` brings; False from the first that is absent."""
        client = self._ask()
        plain = client_keys(list_of(keys, "keys"))
        names = names_of(plain)
        taken = self._pin_and_keep(client, plain, names)
        brought = self._tier.bring(plain[taken:], self._tenant, compute_us=self._compute_us)
        if brought is not None:
            taken += self._pin_and_keep(client, plain[taken:], names[taken:])
            brought.release()
        return [True] * taken + [False] * (len(plain) - taken)

    def _pin_and_keep(self, client: Client, keys: Sequence[ClientKey], names: Sequence[KeyName]) -> int:
        """The leading keys that are present. Returns how many."""
        with self._pins_lock:
            pins = self._pin_leading(client, keys)
            self._keep_pins(client, names, pins)
        return len(pins)

    def _pin_leading(self, client: Client, keys: Sequence[ClientKey]) -> list[Pin]:
        try:
            pins = client.pin_batch(keys, self._tenant)
        except MaruError:  # one by one: it may be about what stands behind an absent key
            pins = []
            for key in keys:
                pins.append(self._pin(client, key))  # when this raises, what is taken ends with the list
                if pins[-1] is None:
                    break
        return cast("list[Pin]", pins[:pins.index(None)] if None in pins else pins)

    def batch_unpin(self, keys: Sequence[Key]) -> list[bool]:
        """unpin() of each, in order; what is no key raises before any is unpinned."""
        client = self._ask()
        pins = self._take_pins(client_keys(list_of(keys, "keys")))
        client.unpin_batch([pin for pin in pins if pin is not None])
        return [pin is not None for pin in pins]

    # -- places -------------------------------------------------------------------------------------------------------

    def get_chunk_size(self) -> int:
        return self._config.chunk_size_bytes

    def get_buffer_view(self, region_id: int, offset: int, size: int) -> Optional[memoryview]:
        """Bytes of something that is held: a handle to fill (writable), or a value that was retrieved (read-only), which stays
        pinned for as long as the result lives. None when nothing is held there, or less than that."""
        self._ask()
        region_id, offset, size = map(whole, (region_id, offset, size))
        if offset < 0 or size < 0:
            return None
        page_index, begin = divmod(offset, self._config.chunk_size_bytes)
        held: Union[View, PooledHandle, None]
        if region_id == RETRIEVED:
            held, first = self._retrieved.view(page_index)
            begin += (page_index - first) * self._config.chunk_size_bytes
            data = None if held is None else held.data
        else:
            held = self._budget.held(Place(region_id, page_index))
            data = None if held is None or held.is_spent else held.buf
        if data is None or begin + size > data.nbytes:
            return None
        return data[begin:begin + size]

    def _key_at(self, region_id: int, page_index: int) -> Optional[ClientKey]:
        return self._retrieved.key(page_index) if region_id == RETRIEVED else None

    def get_region_page_count(self, region_id: int) -> Optional[int]:
        """In chunks; of region 0, where retrieved values are, how many the pool has room for."""
        self._ask()
        region_id = whole(region_id)
        if region_id == RETRIEVED:
            return self._pool_bytes // self._config.chunk_size_bytes
        return dict(self._budget.regions()).get(region_id)

    def get_owned_region_ids(self) -> list[int]:
        return [] if not self.connected else [region_id for region_id, _ in self._budget.regions()]

    def is_region_mapped(self, region_id: int) -> bool:
        """Whether it is a region of this handler. All of its memory is mapped while it is connected."""
        return self.connected and self.get_region_page_count(region_id) is not None

    def set_on_region_added(self, callback: Optional[RegionAdded]) -> None:
        """callback(region_id, page_count), or callback(region_id, page_count, slot_size) where it takes three, for the
        regions of this handler's budget: at once for those that there are, later when alloc() adds one. slot_size is the bytes
        of a page. The callback may call the handler."""
        if callback is not None and not callable(callback):
            raise InvalidArgumentError(f"A callback or None is wanted, not {type(callback).__name__}.")
        self._on_region_added = callback
        if self.connected:
            self._announce(self._budget.regions())

    def _announce(self, regions: Sequence[tuple[int, int]]) -> None:
        callback = self._on_region_added
        if callback is None:
            return
        further = (self._config.chunk_size_bytes,) if takes_slot_size(callback) else ()
        for region_id, pages in regions:
            callback(region_id, pages, *further)

    def _present(self, keys: Sequence[Key]) -> list[bool]:
        return self.batch_exists(keys)

    # -- what it is ---------------------------------------------------------------------------------------------------

    def get_stats(self) -> dict[str, Any]:
        """What this handler has done and holds: `total_entries` and `total_size` count what it has stored since it connected.
        `marudctl status --json` has what the whole pool holds now."""
        return statistics_of(self._ask().statistics(), self._config, self._budget, self._region_bytes, self._pool_bytes)

    @property
    def instance_id(self) -> str:
        return str(self._config.instance_id)

    @property
    def connected(self) -> bool:
        return self._client is not None and not self._is_forked

    @property
    def pool_handle(self) -> Optional[PoolHandle]:
        """None when not connected."""
        return None if not self.connected else PoolHandle(self._budget.regions()[0][0], 0, self._config.pool_size, 0)

    @property
    def allocator(self) -> Optional[PageAccount]:
        """How full the first region of the budget is."""
        return None if not self.connected else PageAccount(self._budget, self._config.chunk_size_bytes)

    @property
    def owned_region_manager(self) -> Optional[OwnedRegions]:
        """Deprecated: the handler has get_owned_region_ids(), get_region_page_count() and get_stats() itself."""
        return None if not self.connected else OwnedRegions(self, lambda: regions_of(self._config, self._budget))

    @property
    def mapper(self) -> Optional[MaruHandler]:
        """Deprecated: the handler itself, which has get_buffer_view()."""
        return self if self.connected else None


_handlers: weakref.WeakSet[MaruHandler] = weakref.WeakSet()


def _note_fork() -> None:
    # Locks may have been held by threads that the child does not have. The parent's client raises ForkedError.
    for handler in list(_handlers):
        handler._is_forked = True
        handler._renew()


os.register_at_fork(after_in_child=_note_fork)
