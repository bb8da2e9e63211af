"""Connectors for benchmarks alone: as they are, with the time noted that each call of vLLM's takes in them."""
import functools
import time

from maru.vllm import MaruConnector

CALLS = ("get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta", "update_connector_output",
         "request_finished", "handle_preemptions", "bind_connector_metadata", "clear_connector_metadata", "start_load_kv",
         "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_finished", "get_block_ids_with_load_errors",
         "build_connector_worker_meta", "on_new_request", "take_events")
spent = {}  # by call: how many, seconds by the clock, seconds of the thread's processor time
inside = [0]


def timed(name, call):
    @functools.wraps(call)
    def measure(*arguments, **named):
        if inside[0]:
            return call(*arguments, **named)
        inside[0] = 1
        clock, own = time.perf_counter(), time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            inside[0] = 0
            count, seconds, processor = spent.get(name, (0, 0.0, 0.0))
            spent[name] = count + 1, seconds + time.perf_counter() - clock, processor + time.thread_time() - own
    return measure


class MeasuredConnector(MaruConnector):
    """maru.vllm's. Both of its halves are in one process here."""


for _name in CALLS:
    if hasattr(MaruConnector, _name):
        setattr(MeasuredConnector, _name, timed(_name, getattr(MaruConnector, _name)))
