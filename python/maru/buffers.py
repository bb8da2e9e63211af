"""Memory for what an engine stores at once: one request to marud where all of it can be had, otherwise as much as there is."""
from __future__ import annotations

import logging
from typing import Sequence

from ._maru import Buffer, Client
from .errors import NoSpaceError, QuotaError

logger = logging.getLogger("maru")


def take_what_there_is(client: Client, sizes: Sequence[int], metadata_bytes: int = 0) -> list[Buffer]:
    """A buffer for each of the first sizes (bytes), with room for metadata behind it: for as many as there is room for, and the
    user may have. May wait for marud; raises what else hinders."""
    buffers: list[Buffer] = []
    try:
        if len(set(sizes)) == 1:
            return client.alloc_batch(sizes[0], len(sizes), metadata_bytes)
    except (NoSpaceError, QuotaError):
        pass
    try:
        for size in sizes:
            buffers.append(client.alloc(size, metadata_bytes))
    except (NoSpaceError, QuotaError) as error:
        logger.debug("maru: room for %d of %d: %s", len(buffers), len(sizes), error)
    return buffers
