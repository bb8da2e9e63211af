"""How a worker of the vLLM connector loads chunks: at once, or on a stream of a GPU beside the forward pass.

On a GPU a load ends when its event has happened: a thread waits for that, and then lets the pages go. The forward pass waits
on the GPU, layer by layer, for a load of its own step. vLLM asks for each layer (wait_for_layer_load) where it calls its
attention layer by layer. It does not while it replays the graph of a whole step, and models that call attention by themselves
may never ask. So the whole forward pass waits for all layers unless every layer was asked for before, and this step has no
such graph.
"""
from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Iterable, Optional, Sequence

import numpy
from numpy.typing import NDArray

from . import chunk_keys, tracing
from .cuda_runtime import runtime_of
from .device_copies import Chunk, DeviceCopies, DeviceCopyError, Loading
from .engine_pool import GONE, Attached, EnginePool
from .errors import BadMemoryError, MaruError
from .paged_layers import PagedLayers
from .tally import Tally
from .vllm_plan import Transfer

CLOSE_S = 60.0  # for what is under way when the engine ends
# A view of a chunk, or None; its blocks of the KV cache; and how many blocks of it come before.
Part = tuple[Any, list[int], int]


class Loads:
    """Loads at once. Thread safety: one thread uses it, the worker's."""

    def __init__(self, pool: EnginePool, layers: PagedLayers, rank_digest: bytes, chunk_blocks: int, not_loaded: Tally,
                 logger: logging.Logger) -> None:
        self._pool = pool
        self._layers = layers
        self._rank_digest = rank_digest
        self._chunk_blocks = chunk_blocks
        self._not_loaded = not_loaded
        self._logger = logger
        self._ended: list[tuple[str, set[int]]] = []

    def load(self, transfers: Iterable[Transfer], forward_context: Any, is_apart: bool) -> None:
        """is_apart: the step does not compute what it loads."""
        for transfer in transfers:
            failed: set[int] = set()
            _, parts, reason = self._parts(transfer)
            for view, blocks, skip in parts:
                if view is None:
                    failed.update(blocks)
                    continue
                with view:
                    self._layers.scatter(blocks, view.data, skip)
                    reason = self._check(view, blocks, failed, reason)
            self._end(transfer, failed, reason)

    def take_ended(self, waits: bool) -> list[tuple[str, set[int]]]:
        """Requests of which a load has ended, and the blocks that were not loaded; each is returned once. waits: for all."""
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Waits for what is under way."""

    def _check(self, view: Any, blocks: list[int], failed: set[int], reason: object) -> object:
        try:
            view.check_memory()  # it may have gone bad meanwhile, in an engine that handles memory errors
        except BadMemoryError as error:
            failed.update(blocks)
            return error
        return reason

    def _end(self, transfer: Transfer, failed: set[int], reason: object) -> None:
        if failed:
            self._not_loaded.add(len(failed), 1, reason=reason)
        self._ended.append((transfer.request_id, failed))

    def _parts(self, transfer: Transfer) -> tuple[Attached, list[Part], object]:
        """With the reason for which some have no view."""
        keys = chunk_keys.of_rank(transfer.hashes, self._rank_digest)
        attached = self._pool.attached()
        with tracing.WorkingFor(transfer.traceparent):
            views, reason = self._views(attached, keys)
        parts: list[Part] = []
        nbytes = self._chunk_blocks * self._layers.block_bytes
        for i, view in enumerate(views):
            skip = transfer.skip if i == 0 else 0
            begin = i * self._chunk_blocks - transfer.skip + skip
            blocks = transfer.blocks[begin:begin + self._chunk_blocks - skip]
            parts.append((view if view is not None and len(view) == nbytes else None, blocks, skip))
        return attached, parts, reason

    def _views(self, attached: Attached, keys: NDArray[numpy.uint8]) -> tuple[Sequence[Any], object]:
        reason: object = "a chunk was evicted or deleted after the scheduler found it, or it has another size"
        try:
            found: Iterable[Any] = attached.client.retrieve_batch(keys, attached.tenant)
        except MaruError:
            found = [self._view(attached, key) for key in keys]  # as many as can be held
        for view in found:
            if isinstance(view, GONE):
                self._pool.warn(attached, view, "a chunk is not loaded")
            if isinstance(view, MaruError):
                reason = view
        return [None if isinstance(view, MaruError) else view for view in found], reason

    @staticmethod
    def _view(attached: Attached, key: NDArray[numpy.uint8]) -> Any:
        try:
            return attached.client.retrieve(key, attached.tenant)
        except MaruError as error:
            return error


@dataclass
class _Pending:
    transfer: Transfer
    loading: Optional[Loading]  # None: nothing was begun
    parts: list[Part]
    failed: set[int]
    reason: object


class DeviceLoads(Loads):
    """Loads beside what is computed. Thread safety: one thread uses it, the worker's; a thread of its own ends the loads."""

    def __init__(self, copies: DeviceCopies, *rest: Any) -> None:
        super().__init__(*rest)
        self._copies = copies
        self._unseen = set(self._layers.numbers)  # vLLM has not asked for these yet
        self._before: Any = None  # an event of this step, before it computes
        self._waits: dict[str, Any] = {}  # for which event a layer has to wait in this step
        self._changed = threading.Condition()  # and the lock of the rest
        self._pending: deque[_Pending] = deque()  # the thread is at the first
        self._is_closed = False
        self._thread: Optional[threading.Thread] = None

    def begin_step(self) -> None:
        """Before anything of a step with loads is computed."""
        # The stream may still read or clear blocks for requests that had them before.
        self._before = self._copies.now()

    def load(self, transfers: Iterable[Transfer], forward_context: Any, is_apart: bool) -> None:
        before, self._before = self._before, None
        begun = []
        for transfer in transfers:
            pending = self._begin(transfer, before if before is not None else self._copies.now(), not is_apart)
            if pending.loading is not None:
                begun.append(pending.loading)
            self._hand_over(pending)
        if is_apart or not begun:
            return
        # A stream does one thing after the other, so the last load stands for all.
        last = begun[-1]
        if self._unseen or _replays_whole_graph(forward_context):
            self._copies.hold_back(last.done)
        else:
            self._waits = {name: last.layers[number] for name, number in self._layers.numbers.items()}

    def wait_for_layer(self, name: str) -> None:
        """What is computed from here on may use this layer."""
        self._unseen.discard(name)
        event = self._waits.pop(name, None)
        if event is not None:
            self._copies.hold_back(event)

    def end_step(self) -> None:
        """What is computed from here on may use any layer."""
        for event in self._waits.values():  # of layers that this step did not ask for
            self._copies.hold_back(event)
        self._waits = {}

    def take_ended(self, waits: bool) -> list[tuple[str, set[int]]]:
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: not self._pending)
            ended, self._ended = self._ended, []
            return ended

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _begin(self, transfer: Transfer, before: Any, by_layer: bool) -> _Pending:
        attached, parts, reason = self._parts(transfer)
        failed = {block for view, blocks, _ in parts if view is None for block in blocks}
        held = [part for part in parts if part[0] is not None]
        loading = None
        try:
            if held:
                loading = self._copies.load(attached.client, before,
                                            [Chunk.at(blocks, view.data, skip) for view, blocks, skip in held],
                                            self._chunk_blocks, by_layer)
        except DeviceCopyError as error:
            failed, reason = set(transfer.blocks), error
        return _Pending(transfer, loading, held, failed, reason)

    def _hand_over(self, pending: _Pending) -> None:
        with self._changed:
            self._pending.append(pending)
            self._changed.notify_all()
            if self._thread is None:
                try:
                    thread = threading.Thread(target=self._run, name="maru-load", daemon=True)
                    thread.start()
                    self._thread = thread
                except RuntimeError:
                    thread = None
        if self._thread is None:  # this process can have none
            self._end_first()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # then waiting for an event says what is wrong
            self._copies.begin_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._is_closed)
                if not self._pending:
                    return
            self._end_first()

    def _end_first(self) -> None:
        pending = self._pending[0]
        failed, reason = pending.failed, pending.reason
        try:
            if pending.loading is not None:
                pending.loading.wait()
            for view, blocks, _ in pending.parts:
                reason = self._check(view, blocks, failed, reason)
        except Exception as error:
            if not isinstance(error, DeviceCopyError):  # a mistake in what is called here; those behind it end all the same
                self._logger.exception("maru: chunks were not loaded")
            failed, reason = set(pending.transfer.blocks), error
        for view, *_ in pending.parts:
            view.release()
        with self._changed:
            self._pending.popleft()
            self._end(pending.transfer, failed, reason)
            self._changed.notify_all()


def copies_of(layers: PagedLayers, chunk_blocks: int, logger: logging.Logger) -> Optional[DeviceCopies]:
    """None where the layers are not on a GPU, or no streams can be had there."""
    runtime = runtime_of(layers.by_block)
    if runtime is None:
        return None
    try:
        return DeviceCopies(layers.by_block, runtime, chunk_blocks)
    except RuntimeError as error:
        logger.warning("maru: chunks are copied between the steps, not beside them: the GPU has no memory for the copies. A "
                       "lower --gpu-memory-utilization leaves it some. %s", error)
        return None


def _replays_whole_graph(forward_context: Any) -> bool:
    mode = getattr(forward_context, "cudagraph_runtime_mode", None)
    return str(getattr(mode, "name", "")) == "FULL"
