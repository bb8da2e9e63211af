"""What the log says, not more than once in a while for each subject: a pool that is gone is met at each request."""
from __future__ import annotations

import logging
import time

logger = logging.getLogger("maru")

_SECONDS = 60.0


class Sayings:
    """Thread safety: everything."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def error(self, subject: str, sentence: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._said.get(subject, -_SECONDS) < _SECONDS:
            logger.debug("maru: " + sentence, *arguments)
            return
        self._said[subject] = now
        # As text: a log handler that keeps an exception keeps its frames, and they hold blocks of the pool.
        plain = (str(argument) if isinstance(argument, Exception) else argument for argument in arguments)
        logger.error("maru: " + sentence + " (said once a minute)", *plain)
