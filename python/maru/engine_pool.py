"""The pool that an engine's connector uses: one attachment, and another when that pool was removed or replaced.

The keys of a connector carry no pool, so it goes on with any pool of the name. An engine also starts while marud or the pool is
not there, and attaches later. A short-lived thread looks for the pool every few seconds: the engine never waits.

Thread safety: everything may be called from any thread.
"""
from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple, NoReturn, Optional, cast

from ._maru import Client
from .engine_settings import Settings
from .errors import (DaemonUnreachableError, MaruError, NotFoundError, PoolLeavesError, PoolReplacedError,
                     PoolUnavailableError)
from .follow import Follower

LOOK_S = 10.0  # between two looks
QUIET_S = 60.0  # until it is said again that a pool takes nothing


class NotAttachedError(MaruError):
    """The engine has no pool yet."""


GONE = (PoolLeavesError, PoolReplacedError, NotAttachedError)
# Marud or the pool is not there. All other errors are mistakes in a configuration, which no waiting mends.
_NOT_THERE = (NotFoundError, DaemonUnreachableError, PoolUnavailableError, PoolLeavesError)


class _NoClient:
    """In the place of a client until there is a pool: no call can be made."""

    is_closed = False

    def close(self) -> None:
        """Nothing to close."""

    def __getattr__(self, call: str) -> NoReturn:
        raise NotAttachedError("This engine has no pool yet.")


class Attached(NamedTuple):
    """For one operation from its beginning to its end: numbers of blocks and of tenants are of one pool."""

    client: Client
    tenant: Optional[int]


class EnginePool:
    def __init__(self, settings: Settings, logger: logging.Logger, read_only: bool) -> None:
        self._settings = settings
        self._logger = logger
        self._is_read_only = read_only
        self._lock = threading.Lock()  # of what follows
        self._attached = self._attach_if_there()
        self._is_gone = not self.is_attached  # and said to be
        self._quiet_until = 0.0  # that it takes nothing was said: it may be drained, and that may be called off
        self._is_closed = False
        self._said: set[type[MaruError]] = set()  # of the thread that looks
        self._is_looking = threading.Lock()
        self._next_look = time.monotonic() + LOOK_S

    def _attach(self) -> Attached:
        settings = self._settings
        client = Client(settings.socket, settings.pool, timeout_ms=settings.timeout_ms, read_only=self._is_read_only)
        return Attached(client, client.tenant(settings.tenant) if settings.tenant else None)

    def _attach_if_there(self) -> Attached:
        try:
            return self._attach()
        except _NOT_THERE as error:
            if self._settings.is_pool_required:
                raise
            self._logger.warning("maru: there is no pool to attach to (%s at %s), and this engine starts without: nothing is "
                                 "found or stored until there is one, which it then attaches to. Set maru_required for an "
                                 "engine that does not start then. %s", self._settings.pool or "default",
                                 self._settings.socket or "the usual socket", error)
        return Attached(cast(Client, _NoClient()), None)

    @property
    def is_attached(self) -> bool:
        """False until there is a pool for the first time."""
        return not isinstance(self._attached.client, _NoClient)

    def attached(self) -> Attached:
        if time.monotonic() >= self._next_look and self._is_looking.acquire(blocking=False):
            self._next_look = time.monotonic() + LOOK_S
            try:
                threading.Thread(target=self._look, name="maru-pool", daemon=True).start()
            except BaseException as error:
                self._is_looking.release()
                if not isinstance(error, RuntimeError):  # no thread is to be had: later perhaps
                    raise
        return self._attached

    def follow(self) -> tuple[Follower, int]:
        """A follower of the pool, and the number of the engine's tenant, 0 for none. Raises NotAttachedError, and the errors of
        Follower()."""
        if not self.is_attached:
            raise NotAttachedError("This engine has no pool yet.")
        settings = self._settings
        return Follower(settings.socket, settings.pool, timeout_ms=settings.timeout_ms), self._attached.tenant or 0

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._attached.client.close()

    def warn(self, attached: Attached, error: Exception, sentence: str) -> None:
        """Logs what an error hinders; of a pool that takes nothing, which hinders everything, no more than that, and seldom."""
        if not isinstance(error, GONE):
            self._logger.warning("maru: %s: %s", sentence, error)
            return
        with self._lock:
            if self._is_gone or time.monotonic() < self._quiet_until or attached is not self._attached:
                return
            self._quiet_until = time.monotonic() + QUIET_S
        self._logger.warning("maru: the pool takes nothing now, since it is drained, removed or replaced: %s", error)

    def _note_gone(self, attached: Attached, error: Exception) -> None:
        with self._lock:
            if self._is_gone or attached is not self._attached:
                return
            self._is_gone = True
        self._logger.warning("maru: the pool is gone, and this engine goes on without: nothing is found or stored until there "
                             "is one of its name again, which it then attaches to. %s", error)

    def _look(self) -> None:
        try:
            attached = self._attached
            try:
                attached.client.reattach()  # what only looks for keys would not learn that marud has another pool
                attached.client.exists(b"-")  # which is an error once the pool goes, and none while it is drained
                with self._lock:
                    is_gone = self._is_gone = self._is_gone and attached is not self._attached
            except GONE as error:
                self._note_gone(attached, error)
                is_gone = True
            except MaruError:
                is_gone = self._is_gone  # marud is not there
            if is_gone:
                self._replace()
        finally:
            self._is_looking.release()

    def _replace(self) -> None:
        """What others still hold of the old attachment keeps it: it ends with the last of that."""
        try:
            attached = self._attach()
        except MaruError as error:
            self._say_why_not(error)
            return
        with self._lock:
            is_wanted = not self._is_closed
            if is_wanted:
                self._attached, self._is_gone, self._quiet_until = attached, False, 0.0
        if is_wanted:
            self._logger.warning("maru: there is a pool of this name now, and this engine has attached to it")
        else:
            attached.client.close()

    def _say_why_not(self, error: MaruError) -> None:
        """Once for each kind of mistake: waiting does not mend it."""
        if not isinstance(error, _NOT_THERE) and type(error) not in self._said:
            self._said.add(type(error))
            self._logger.warning("maru: there is a pool of this name now, and this engine cannot attach to it: %s", error)
