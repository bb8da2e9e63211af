"""Counts of events that an engine's connector puts up with, for its log.

A pool that is too small, or evicts much, makes the same event happen in every step. So the log has the counts the first time,
and whenever the first of them has doubled since.

Thread safety: everything.
"""
from __future__ import annotations

import logging
import threading


class Tally:
    def __init__(self, logger: logging.Logger, sentence: str, counts: int = 1) -> None:
        """sentence: has a %d for each count, and a %s for the last reason."""
        self._logger = logger
        self._sentence = sentence
        self._lock = threading.Lock()  # of the rest
        self._counts = [0] * counts
        self._said = 0

    @property
    def count(self) -> int:
        return self._counts[0]

    def add(self, *amounts: int, reason: object) -> None:
        """amounts: for each count, in order."""
        with self._lock:
            self._counts = [count + amount for count, amount in zip(self._counts, amounts, strict=True)]
            counts = tuple(self._counts)
            if counts[0] <= 2 * self._said:
                return
            self._said = counts[0]
        self._logger.warning(self._sentence, *counts, reason)
