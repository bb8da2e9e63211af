"""An event loop that does not come to look at a request: a 503, which says that nothing was done.

  late_test.py --marud PROGRAM
"""
import argparse
import contextlib
import ctypes
import http.client
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import Findings, ObservedMarud, Reply, UnixConnection, wait_for  # noqa: E402

findings = Findings()
expect = findings.expect


@contextlib.contextmanager
def first_thread_stopped(pid):
    """Of a child, by ptrace(2); its other threads go on."""
    seize, interrupt, detach, all_kinds = 0x4206, 0x4207, 17, 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)

    def ptrace(request):
        if libc.ptrace(request, pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    ptrace(seize)
    ptrace(interrupt)
    os.waitpid(pid, all_kinds)
    try:
        yield
    finally:
        ptrace(detach)


def late(reply):
    expect(reply.status == 503 and "event loop is late" in reply.json["error"], reply)


def a_late_event_loop_is_said(program):
    """What comes late is a 503, which says that nothing was done, and the rest is answered."""
    with ObservedMarud(program, http_more="timeout_ms = 10\n") as marud:
        with first_thread_stopped(marud.process.pid):
            for path in ("/healthcheck", "/status"):
                reply = marud.http("GET", path)
                late(reply)
                expect(reply.headers["Retry-After"] == "1", reply.headers)
        wait_for(lambda: marud.http("GET", "/healthcheck").status == 200, "health when the loop goes on")


def a_first_request_may_wait_as_long_as_any(program):
    """However long after the connection it came: it gets its 503, and is not taken for one that is never finished."""
    with ObservedMarud(program, http_more="timeout_ms = 60000\n") as marud:
        connection = UnixConnection(marud.http_socket)
        connection.connect()
        time.sleep(5)  # not for something else: the age of the connection is what this is about
        with first_thread_stopped(marud.process.pid):
            try:
                connection.request("GET", "/status")
                late(Reply(connection.getresponse()))
            except (http.client.HTTPException, OSError) as why:
                expect(False, f"a first request that waits for as long as timeout_ms says is dropped: {why!r}")
        expect("has not finished a request" not in marud.log.read_text(), "a request that waits for marud is blamed")
        connection.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--marud", required=True)
    arguments = parser.parse_args()
    a_late_event_loop_is_said(arguments.marud)
    a_first_request_may_wait_as_long_as_any(arguments.marud)
    return findings.end()


if __name__ == "__main__":
    sys.exit(main())
