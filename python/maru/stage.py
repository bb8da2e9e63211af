"""Calls of newer connectors that tell a handler which keys they will read soon."""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Optional, Sequence

from .arguments import Key, client_keys, list_of
from .errors import MaruError
from .pool_tier import Load, PoolTier

KEPT_LOADS = 4  # whose blocks are held until as many newer ones are kept


@dataclass(frozen=True)
class StageResult:
    """requested_keys, found_keys   how many keys were asked for, and how many of them are in the pool
    eligible_keys                how many of these could be brought nearer: all of them
    issued_ranges                how many blocks this has loaded from storage below the pool
    error                        why the pool could not be asked; None when it was"""

    requested_keys: int = 0
    found_keys: int = 0
    eligible_keys: int = 0
    issued_ranges: int = 0
    error: Optional[str] = None

    @property
    def ready(self) -> bool:
        """Whether every key that was asked for can be read at once."""
        return self.error is None and self.found_keys == self.requested_keys


class Stages:
    """Base of MaruHandler. All that a pool holds lies in memory. So these calls move nothing but what storage below the pool
    has (`prefetch` of the configuration)."""

    _tier: PoolTier
    _tenant: Optional[int]
    _compute_us: float = 0.0  # to make one value without the pool; 0: not known

    def prefetch_batch(self, keys: Sequence[Key]) -> None:
        """A hint that the keys will be read soon. Checks the keys, and returns at once."""
        if not all(self._present(keys)):
            self._ask_tier(keys)

    def stage_batch(self, keys: Sequence[Key]) -> StageResult:
        """How many of the keys can be read at once. Pins nothing: a value may be evicted before it is read. Waits for what
        storage below the pool has. Does not raise for the state of the pool: `error` has that."""
        loaded = 0
        try:
            present = self._present(keys)
            coming = None if all(present) else self._ask_tier(keys)
            if coming is not None:
                coming.wait()
                loaded, present = coming.loaded, self._present(keys)
        except MaruError as error:
            if isinstance(error, ValueError):  # the caller's mistake
                raise
            return StageResult(requested_keys=len(list_of(keys, "keys")), error=str(error))
        found = sum(present)
        return StageResult(requested_keys=len(present), found_keys=found, eligible_keys=found, issued_ranges=loaded)

    def _renew_loads(self) -> None:
        self._loads: deque[Load] = deque(maxlen=KEPT_LOADS)

    def _ask_tier(self, keys: Sequence[Key]) -> Optional[Load]:
        load = self._tier.ask(client_keys(list_of(keys, "keys")), self._tenant, is_sparse=True,
                              compute_us=self._compute_us)
        if load is not None:
            self._loads.append(load)
        return load

    def _present(self, keys: Sequence[Key]) -> list[bool]:
        raise NotImplementedError
