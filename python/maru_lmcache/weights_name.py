"""The model's name in LMCache's keys: a digest of its weights, where the engine was given a path.

LMCache's keys carry the name that the engine was given, and of the weights nothing else. The same path stands for other weights
in another folder, or once its files are others. LMCache reads the name from its metadata whenever it makes a key. So it is put
there when the back-end makes its adapter, before there are keys. A name of a hub stays: LMCache does not say its revision.
"""
from __future__ import annotations

import logging
import os
import sys
from typing import Any

from maru.errors import InvalidArgumentError
from maru.weights import digest_of

logger = logging.getLogger("maru")


def put_into(metadata: Any) -> None:
    """metadata: LMCache's. Raises InvalidArgumentError where the name is a path whose files cannot be read."""
    name = getattr(metadata, "model_name", None)
    if not isinstance(name, str):
        return
    if name.startswith((".", "/", "~")) and not os.path.exists(name):
        raise InvalidArgumentError(f"The model is called {name}, and there is no such file or folder, so nothing tells its "
                                   "weights from others: start the engine with the path of its folder.")
    if os.path.exists(name):
        metadata.model_name = f"weights-{digest_of(name)}"
        logger.info("maru: the model is %s in the keys of LMCache, after the weights in %s", metadata.model_name, name)


def metadata_of_caller(depth: int) -> Any:
    """LMCache's metadata, from the method of its back-end that makes an adapter and does not pass them on. None where no
    back-end makes it. depth: of that method, from here. Raises InvalidArgumentError where this LMCache has them elsewhere."""
    frame = sys._getframe(depth)
    metadata = frame.f_locals.get("metadata")
    if metadata is None and str(frame.f_globals.get("__name__")).startswith("lmcache."):
        raise InvalidArgumentError("This LMCache does not tell here how it names the model, so its keys might stand for other "
                                   "weights: use version 0.5.6.")
    return metadata
