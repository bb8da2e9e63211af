"""What a model is called in the keys: by its name, or by its weights where the name is a path.

A server is told the name with which the engine was started. A path does not tell the weights: files change in place, and a
path that begins where the engine was started stands for others elsewhere. In one server that is LMCache's affair. A pool
outlives servers and is shared by several, so here

  - a path from the root that exists is called by a digest of the files there (maru.weights). A thread reads them, and again
    when a worker registers, which may have loaded other files. Meanwhile the model's objects are absent and not stored;
  - any other path gets a name that no other server has, so its objects are not shared, and are not found after a restart.

Thread safety: everything.
"""
from __future__ import annotations

import logging
import os
import threading
import uuid
from typing import Optional

from maru import MaruError
from maru.weights import digest_of

logger = logging.getLogger("maru")

_WEIGHTS = "weights-"


class ModelNames:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Optional[str]] = {}
        self._own = f"of-one-server-{uuid.uuid4()}"

    def in_keys(self, name: str) -> Optional[str]:
        """None while the weights are being read. Never blocks for that."""
        if not name.startswith(("/", ".", "~")):
            return name
        with self._lock:
            if name in self._known:
                return self._known[name]
            if name.startswith("/") and os.path.exists(name):
                self._known[name] = None
                threading.Thread(target=self._read, args=(name,), name="maru-weights", daemon=True).start()
            else:
                self._keep_to_this_server(name, "this host has no such path from the root")
            return self._known[name]

    def look_again(self, name: str) -> None:
        """To be called when a worker has registered with this name. Files that have not changed are not read again."""
        with self._lock:
            if (self._known.get(name) or "").startswith(_WEIGHTS):
                del self._known[name]

    def _read(self, name: str) -> None:
        try:
            digest = digest_of(name)
        except (MaruError, OSError) as error:
            with self._lock:
                self._keep_to_this_server(name, str(error))
            return
        with self._lock:
            self._known[name] = _WEIGHTS + digest
        logger.info("maru: the model is weights-%s in the keys of LMCache, after the weights in %s", digest, name)

    def _keep_to_this_server(self, name: str, reason: str) -> None:
        self._known[name] = f"{self._own} {name}"
        logger.warning("maru: the model is called %s, and nothing tells its weights from others (%s). So no other server "
                       "finds what this server stores for it, nor does this server after a restart. Start the engine with "
                       "the name of a hub, or with the path of the folder from the root.", name, reason)
