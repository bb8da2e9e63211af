"""Spans of calls, for OpenTelemetry: how long each call took, as part of whose request. docs/tracing.md says what is traced,
and how maru-eventd sends the spans to a collector.

    maru.tracing.start(client)                                 # or MARU_TRACING=/run/maru-eventd/spans.sock in the environment
    client.match_prefix(keys, traceparent=headers["traceparent"])
    with maru.tracing.Request(client, headers.get("traceparent")):
        match = client.match_prefix(keys)                      # part of this request, as every call of this thread here
"""
from __future__ import annotations

import os
from types import TracebackType
from typing import Optional, Union

from . import _maru

_TRACEPARENT_BYTES = 56


def start(client: _maru.Client, socket_path: Union[str, os.PathLike[str], None] = None, *, spans: int = 0,
          one_in: int = 1) -> bool:
    """Traces the calls of this client. `spans`: that are kept until maru-eventd reads them; 0: 4096. `one_in`: of the calls
    without a traceparent one in so many is traced, 0: none. Returns whether maru-eventd takes them by now."""
    return _maru._set_tracing(client, socket_path, spans, one_in)


def stop(client: _maru.Client) -> None:
    """Traces them no more."""
    _maru._stop_tracing(client)


def current() -> str:
    """The traceparent that the calling thread works for; empty: none."""
    return _maru._get_traceparent()


class WorkingFor:
    """The calls of this thread inside of `with` are part of this request; None: of none. A task of asyncio that waits inside
    leaves it to other tasks: there, give each call its traceparent."""

    def __init__(self, traceparent: Optional[str]) -> None:
        self._traceparent = traceparent
        self._before = ""

    def __enter__(self) -> None:
        self._before = _maru._get_traceparent()
        _maru._set_traceparent(self._traceparent)

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        _maru._set_traceparent(self._before)


class Request:
    """A request's whole way: a span that begins here, and ends with end(), in any thread. Inside of `with` the calls of this
    thread are part of it, and the end of the block is its end."""

    def __init__(self, client: _maru.Client, traceparent: Optional[str] = None) -> None:
        self._client = client
        self._span: Optional[bytes] = _maru._begin_request(client, traceparent)
        self._inside: Optional[WorkingFor] = None
        self.traceparent = self._span[:_TRACEPARENT_BYTES].rstrip(b"\0").decode()  # empty: the client is not traced

    def end(self, result: int = 0) -> None:
        """`result`: 0, or -errno of what went wrong. May be called again, for nothing."""
        span, self._span = self._span, None
        if span is not None:
            _maru._end_request(self._client, span, result)

    def __enter__(self) -> Request:
        self._inside = WorkingFor(self.traceparent)
        self._inside.__enter__()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if self._inside is not None:
            self._inside.__exit__(kind, error, traceback)
        self.end(0 if kind is None else -(getattr(error, "errno", None) or 5))  # an input/output error: some error

