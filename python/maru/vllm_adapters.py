"""LoRA adapters of vLLM, and which of them the keys of chunks may name.

vLLM loads an adapter from its folder when the first request asks for it, keeps it under a number, and may load it from there
again. So the connector reads the folder when the first request of a number comes. When the files change afterwards it does not
know which of them a worker has loaded. From then on it leaves requests with this number alone: it finds and stores nothing.
"""
from __future__ import annotations

import logging
import os
from typing import Any, NamedTuple, Optional

from .errors import InvalidArgumentError
from .weights import FileState, digest_of, states_of

KNOWN_MAX = 1024  # far more than an engine keeps loaded


class _Files(NamedTuple):
    folder: str
    states: dict[str, FileState]
    digest: str


class Adapters:
    """Used by the scheduler's thread alone."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._known: dict[tuple[int, str], Optional[_Files]] = {}  # None: left alone

    def weights(self, lora: Any) -> Optional[str]:
        """The name of an adapter in keys; None for an adapter that is left alone. Looks at its files, and reads new ones."""
        if getattr(lora, "load_inplace", False):
            return None  # other weights under the same number
        name = int(getattr(lora, "lora_int_id", 0)), str(getattr(lora, "lora_path", ""))
        try:
            if name not in self._known:
                if len(self._known) >= KNOWN_MAX:
                    del self._known[next(iter(self._known))]
                self._known[name] = None
                self._known[name] = self._read(lora)
            files = self._known[name]
            if files is not None and states_of(files.folder) != files.states:
                raise InvalidArgumentError("its files have changed since this engine first used it. Load it again, which gives "
                                           "it a new number.")
        except InvalidArgumentError as error:
            files = self._known[name] = None
            self._logger.warning("maru: requests with the LoRA %s are computed without the pool: %s", lora.lora_name, error)
        if files is None:
            return None
        # vLLM may be told how the same files lie.
        return f"{files.digest} in 3 dimensions" if getattr(lora, "is_3d_lora_weight", False) else files.digest

    @staticmethod
    def _read(lora: Any) -> _Files:
        folder = os.path.abspath(os.path.expanduser(lora.lora_path))
        if not os.path.exists(folder):
            raise InvalidArgumentError(f"{lora.lora_path} is no folder of this machine, and it is not known which revision of "
                                       "a hub a worker loads. Give the adapter as the path of a folder.")
        states = states_of(folder)
        return _Files(folder, states, digest_of(folder))
