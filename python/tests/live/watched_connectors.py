"""Connectors for tests alone: maru.vllm's, with one thing done to them. An engine loads them by this module's name."""
import json
import os
import signal
import threading

import torch

from maru.vllm import MaruConnector


def say(what):
    os.write(int(os.environ["MARU_LIVE_ANSWERS"]), json.dumps(what).encode() + b"\n")


class WrongConnector(MaruConnector):
    """Loads nonsense in place of what was stored: the negative control. A comparison that does not see it sees nothing.
    MARU_LIVE_WRONG_WHILE names a file: then only while this file is there."""

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        layers = self._layers
        right = layers.scatter
        switch = os.environ.get("MARU_LIVE_WRONG_WHILE")

        def scatter(blocks, data, skip=0):
            right(blocks, data, skip)
            for layer in layers._layers if switch is None or os.path.exists(switch) else ():
                layer[blocks] = torch.roll(layer[blocks], 64, dims=-1)
        layers.scatter = scatter


class StoppingConnector(MaruConnector):
    """Copies a chunk, says so, and waits there to be killed. MARU_LIVE_STOP names the kind of copy, gather or scatter, and
    MARU_LIVE_STOP_AT its number, from 0."""

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        kind, at = os.environ["MARU_LIVE_STOP"], int(os.environ.get("MARU_LIVE_STOP_AT", "0"))
        copy = getattr(self._layers, kind)
        copies = iter(range(1 << 30))

        def stopping(*arguments):
            copy(*arguments)
            if next(copies) == at:
                say({"stopped": kind})
                signal.pause() if threading.current_thread() is threading.main_thread() else threading.Event().wait()
        setattr(self._layers, kind, stopping)
