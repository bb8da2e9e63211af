"""Spans of an engine's requests: of the scheduler, below the span of the caller that vLLM was told of, and of its worker."""
import pathlib
import sys

from small_engine import CHUNK, Engine

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from test_tracing import ALLOC, CALLER, MATCH, PARENT, REQUEST, RETRIEVE, STORE, TRACE, Receiver  # noqa: E402

PROMPT = list(range(3 * CHUNK + 1))


def test_a_request_is_a_span_above_what_scheduler_and_worker_do(pool, tmp_path, monkeypatch):
    receiver = Receiver(tmp_path)
    monkeypatch.setenv("MARU_TRACING", receiver.path)
    monkeypatch.setenv("MARU_TRACING_ONE_IN", "0")
    with Engine(pool.socket, prefix_caching=False) as engine:
        rings = [receiver.take(), receiver.take()]
        engine.run("first", PROMPT, trace_headers={"traceparent": CALLER})
        engine.run("again", PROMPT, trace_headers={"traceparent": CALLER})
        engine.run("nobody's", PROMPT)
        engine.run("wrong", PROMPT, trace_headers={"traceparent": "none"})
        spans = [span for ring in rings for span in ring.take()]
    requests = {span[3] for span in spans if span[0] == REQUEST}
    assert len(requests) == 2 and all(span[2] == PARENT for span in spans if span[0] == REQUEST)
    assert {span[1] for span in spans} == {TRACE}
    calls = [span for span in spans if span[0] in (MATCH, RETRIEVE, STORE, ALLOC)]
    assert {span[2] for span in calls} == requests
    assert {MATCH, RETRIEVE, STORE} <= {span[0] for span in calls}
    receiver.listener.close()
