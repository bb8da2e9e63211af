"""How long an engine computes a token of a prompt, measured where its steps are scheduled. Storage below the pool begins no
load that takes longer."""
from __future__ import annotations

import time
from collections import deque

_SHARE = 0.25  # of the newest step in what is known


class ComputePace:
    """Steps are computed one after the other, and several may be scheduled ahead.

    Thread safety: one thread, the scheduler's."""

    def __init__(self, least_tokens: int, steps_max: int) -> None:
        """least_tokens: a step of fewer tokens says nothing of a prompt. steps_max: that may be under way."""
        self._least_tokens = least_tokens
        self._under_way: deque[tuple[float, int]] = deque(maxlen=steps_max)
        self._ended = 0.0  # when the last one ended
        self.token_us = 0.0  # 0: not known yet

    def begin(self, tokens: int) -> None:
        """A step with so many tokens is scheduled. 0: its time says nothing, as it does something else, too."""
        self._under_way.append((time.perf_counter(), tokens))

    def end(self) -> None:
        """The outcome of the oldest step is there."""
        if not self._under_way:
            return
        scheduled, tokens = self._under_way.popleft()
        begun, self._ended = max(scheduled, self._ended), time.perf_counter()
        if tokens >= self._least_tokens:
            measured = (self._ended - begun) * 1e6 / tokens
            self.token_us += (measured - self.token_us) * (_SHARE if self.token_us else 1.0)
