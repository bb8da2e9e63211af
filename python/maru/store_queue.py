"""A thread that stores what an engine has computed, while the engine computes its next steps.

It copies straight from the engine's memory into the pool's pages, and holds no copy in between. So nothing may write to the
blocks of a transfer that waits. The engine says before each step which blocks the step is about to overwrite. It waits here
until the thread has stored all transfers that it reads from these blocks. The bytes that wait are bounded: past the bound the
engine waits for its turn.

Thread safety: put(), wait_for() and close() are called by one thread, the engine's. The rest may be called by any.
"""
from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Callable, Collection, Generic, Optional, TypeVar

logger = logging.getLogger("maru")
Item = TypeVar("Item")
CLOSE_S = 60.0  # for what still waits when the engine ends


class StoreQueue(Generic[Item]):
    def __init__(self, store: Callable[[Item], None], bytes_max: int) -> None:
        """store: runs on the thread, for one item after another, and raises nothing. bytes_max: of all that waits; a single
        item may have more."""
        self._store = store
        self._bytes_max = bytes_max
        self._changed = threading.Condition()  # and the lock of the rest
        self._waiting: deque[tuple[Item, Collection[int], int]] = deque()  # with blocks and bytes; the first is being stored
        self._bytes = 0
        self._is_closed = False
        self._thread: Optional[threading.Thread] = None

    def put(self, item: Item, blocks: Collection[int], size: int) -> None:
        """blocks: those that the item is read from. Nothing writes to them before wait_for() has returned for them. size: their
        bytes. Waits while too much waits. Stores at once where the process can have no thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._bytes + size <= self._bytes_max)
            self._waiting.append((item, blocks, size))
            self._bytes += size
            self._changed.notify_all()
            if self._thread is None:
                try:
                    thread = threading.Thread(target=self._run, name="maru-store", daemon=True)
                    thread.start()
                    self._thread = thread
                except RuntimeError:
                    self._waiting.pop()
                    self._bytes -= size
                    thread = None
        if self._thread is None:
            self._store(item)

    def wait_for(self, blocks: Optional[Collection[int]]) -> None:
        """Until nothing that waits is read from any of these blocks; None: until nothing waits."""
        if not self._waiting:  # only this thread adds to it
            return
        wanted = None if blocks is None else frozenset(blocks)

        def is_read() -> bool:
            return any(wanted is None or not wanted.isdisjoint(read) for _, read, _ in self._waiting)

        with self._changed:
            self._changed.wait_for(lambda: not is_read())

    def close(self) -> None:
        """Stores what waits, for a bounded time, and ends the thread. Nothing is put after it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                item, _, size = self._waiting[0]
            try:
                self._store(item)
            except Exception:  # a mistake in what is called here; those that wait behind it are stored all the same
                logger.exception("maru: chunks were not stored")
            finally:
                with self._changed:
                    self._waiting.popleft()
                    self._bytes -= size
                    self._changed.notify_all()
