"""Calls of newer connectors that tell a handler which keys they will read soon."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from .arguments import Key, list_of
from .errors import MaruError


@dataclass(frozen=True)
class StageResult:
    """requested_keys, found_keys   how many keys were asked for, and how many of them are in the pool
    eligible_keys                how many of these could be brought nearer: all of them
    issued_ranges                how many transfers this began: none, as the pool is memory
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
    """Base of MaruHandler. All that a pool holds lies in memory, so these calls look and move nothing."""

    def prefetch_batch(self, keys: Sequence[Key]) -> None:
        """A hint that the keys will be read soon. Checks the keys, and returns at once."""
        self._present(keys)

    def stage_batch(self, keys: Sequence[Key]) -> StageResult:
        """How many of the keys can be read at once. Pins nothing: a value may be evicted before it is read. Does not raise for
        the state of the pool: `error` has that."""
        try:
            present = self._present(keys)
        except MaruError as error:
            if isinstance(error, ValueError):  # the caller's mistake
                raise
            return StageResult(requested_keys=len(list_of(keys, "keys")), error=str(error))
        found = sum(present)
        return StageResult(requested_keys=len(present), found_keys=found, eligible_keys=found)

    def _present(self, keys: Sequence[Key]) -> list[bool]:
        raise NotImplementedError
