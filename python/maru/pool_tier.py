"""What a connector asks of storage below its pool: blocks that the pool has not, loaded before they are needed.

maru-tierd loads them (tier.py). Where it is not there, breaks off, or does not answer in time, the connector goes on as
without tiers, and leaves maru-tierd alone for some seconds. So a tier that hangs delays one request by DEADLINE_S, and not each
of them.

Thread safety: PoolTier: everything. A Load: one thread at a time.
"""
from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from . import tier
from .errors import MaruError

DEADLINE_S = 2.0  # then a question ends with the blocks that are there
LATE_S = 0.5  # after its deadline; then maru-tierd does not answer
HANGING_S = 1.5  # so long a question takes that ends with nothing only where a tier hangs
QUIET_S = 5.0  # in which nothing is asked after a failure
KEYS_MAX = 2048  # of one question, which a socket takes at once also where maru-tierd does not read
_US_MAX = (1 << 32) - 1
_GONE = "maru: storage below the pool does not answer, and is asked again every %g s; until then what it has is computed. %s"

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Keys = Union[Sequence[Union[str, bytes]], NDArray[numpy.uint8]]
Switch = Union[bool, str]  # a text: the socket of maru-tierd


class PoolTier:
    def __init__(self, switch: Switch, logger: logging.Logger) -> None:
        """switch: False: nothing is ever asked. True: $MARU_TIER_SOCKET, else the service's socket."""
        self.is_on = bool(switch)
        self._socket = switch if isinstance(switch, str) else None
        self._logger = logger
        self._quiet_until = 0.0
        self._has_failed = False  # and that was said

    def ask(self, keys: Keys, tenant: Optional[int], *, is_sparse: bool = False, compute_us: float = 0.0) -> Optional[Load]:
        """Has the keys loaded in their order, the first KEYS_MAX of them: rows of an array, which are digests, or keys of a
        client. Returns at once; None where there is nothing to wait for. is_sparse: also what stands behind a key that is
        nowhere. compute_us: microseconds in which the engine would compute a block; loads that promise to be slower do not
        begin. 0: not known, load in any case."""
        if not self.is_on or len(keys) == 0 or time.monotonic() < self._quiet_until:
            return None
        asked: Any = keys[:KEYS_MAX]
        are_rows = hasattr(asked, "tobytes")
        listed: list[Any] = [row.tobytes() if are_rows else row for row in asked]
        try:
            ticket = tier.prefetch(listed, tenant=tenant or 0, digests=are_rows, sparse=is_sparse, deadline=DEADLINE_S,
                                   compute_us=whole_us(compute_us), socket_path=self._socket)
        except ValueError:
            return None  # among them is one that nothing can be stored under
        except (MaruError, MemoryError) as error:
            self.note_failure(error)
            return None
        return Load(self, ticket)

    def bring(self, keys: Keys, tenant: Optional[int], *, is_sparse: bool = False, compute_us: float = 0.0) -> Optional[Load]:
        """ask(), and waits until nothing more comes."""
        load = self.ask(keys, tenant, is_sparse=is_sparse, compute_us=compute_us)
        if load is not None:
            load.wait()
        return load

    def note_failure(self, reason: object) -> None:
        self._quiet_until = time.monotonic() + QUIET_S
        if not self._has_failed:
            self._has_failed = True
            self._logger.warning(_GONE, QUIET_S, reason)

    def note_answer(self) -> None:
        if self._has_failed:
            self._has_failed = False
            self._logger.warning("maru: storage below the pool answers again")


def whole_us(microseconds: float) -> int:
    """As maru-tierd takes them: 0 stays what is not known, and nothing else becomes 0."""
    return min(math.ceil(microseconds), _US_MAX)


class Load:
    """One question. What maru-tierd has found or loaded for it stays in the pool until release(), as far as its bounds
    allow."""

    def __init__(self, owner: PoolTier, ticket: tier.Ticket) -> None:
        self._owner = owner
        self._ticket: Optional[tier.Ticket] = ticket
        self._late_at = time.monotonic() + DEADLINE_S + LATE_S
        self.loaded = 0  # blocks, once it is settled

    def is_settled(self) -> bool:
        """Whether nothing more comes. Never waits."""
        return self._settle(0.0)

    def wait(self) -> None:
        """Until nothing more comes, which takes DEADLINE_S and LATE_S at the most."""
        self._settle(self._late_at - time.monotonic())

    def release(self) -> None:
        """May be called again."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.release()

    def _settle(self, patience: float) -> bool:
        if self._ticket is None:
            return True
        try:
            status = self._ticket.wait(patience) if patience > 0 else self._ticket.status()
        except MaruError as error:
            self._fail(error)
            return True
        if status.is_done:
            self.loaded = status.loaded
            if status.loaded == 0 and status.took_us >= HANGING_S * 1e6:
                self._owner.note_failure("a tier hangs")  # the next request would wait as long for nothing
            else:
                self._owner.note_answer()
        elif time.monotonic() >= self._late_at:
            self._fail("it is late")
        else:
            return False
        return True

    def _fail(self, reason: object) -> None:
        self.release()
        self._owner.note_failure(reason)
