"""MaruHandler: that a thread calls it again from within a call, as a signal's handler and the garbage collector do, and that an
interrupt comes at any place."""
import subprocess
import sys
import textwrap
import threading

import pytest

import maru
from test_handler import config, put

BEGIN = """
    import gc, signal, sys, threading, weakref
    import maru

    handler = maru.MaruHandler(maru.MaruConfig(server_url=sys.argv[1], timeout_ms=60_000, chunk_size_bytes=4096,
                                               pool_size=64 * 4096))
    assert handler.connect()

    def put(key):
        handle = handler.alloc(4)
        handle.buf[:] = b"1234"
        return handler.store(key, handle)

    def at_each_line(of, call):
        '''call() at each line of the package's function, as a signal's handler and the garbage collector may come.'''
        def local(frame, event, argument):
            if event == "line":
                sys.settrace(None)
                try:
                    call(frame.f_lineno)
                finally:
                    sys.settrace(trace)
            return local
        def trace(frame, event, argument):
            return local if frame.f_code.co_name in of and "/maru/" in frame.f_code.co_filename else None
        sys.settrace(trace)
"""

AGAIN = {
    "close by the end of a view in a store": """
        handle = handler.alloc(4)
        end = weakref.ref(handle.buf, lambda _: handler.close())
        assert handler.store("again", handle) and not handler.connected and handler.connect() and handler.exists("again")
    """,
    "close at each line of a store": """
        lines = set()
        def close(line):
            if line not in lines:
                lines.add(line)
                handler.close()
        for turn in range(50):
            assert handler.connect()
            at_each_line(("store", "_store"), close)
            try:
                put("again")
            except maru.MaruError:
                pass
            sys.settrace(None)
        assert len(lines) > 8 and handler.connect() and put("again")
    """,
    "an interrupt at each line of a store": """
        lines = set()
        def interrupt(line):
            if line not in lines:
                lines.add(line)
                raise KeyboardInterrupt
        for turn in range(50):
            handle = handler.alloc(4)
            at_each_line(("store", "_store"), interrupt)
            try:
                handler.store("again", handle)
            except KeyboardInterrupt:
                pass
            sys.settrace(None)
        assert len(lines) > 8
        closing = threading.Thread(target=handler.close)  # it waits for the stores of other threads
        closing.start()
        closing.join()
        assert handler.connect() and put("again")
    """,
    "pin and unpin at each line of pin and unpin": """
        calls = ("pin", "unpin", "batch_unpin", "_take_pins", "_keep_pins", "delete")
        def again(line):
            for key in ("again", "once"):
                assert handler.pin(key) and handler.unpin(key)
        put("again"), put("once")
        at_each_line(calls, again)
        for turn in range(3):
            assert handler.pin("again") and handler.pin("again") and not handler.delete("again")
            assert handler.unpin("again") and handler.batch_unpin(["again", "again"]) == [True, False]
        sys.settrace(None)
        assert handler.get_stats()["native"]["pins"] == 0 and not handler._pins and handler.delete("again")
    """,
    "close at each line of pin and unpin": """
        def close(line):
            handler.close()
            assert handler.connect()
        put("again")
        for turn in range(3):
            at_each_line(("pin", "unpin", "batch_unpin", "_take_pins", "_keep_pins", "delete"), close)
            for call in (handler.pin, handler.unpin, lambda key: handler.batch_unpin([key]), handler.delete):
                try:
                    call("again")
                except maru.ClosedError:
                    pass
            sys.settrace(None)
            assert put("again") and handler.get_stats()["native"]["pins"] == 0
    """,
    "an interrupt at each line that takes and leaves a place": """
        lines = set()
        def interrupt(line):
            if line not in lines:
                lines.add(line)
                raise KeyboardInterrupt
        put("again")
        for turn in range(200):
            at_each_line(("enter", "__init__", "take", "_see_out", "alloc", "held", "_leave", "free"), interrupt)
            try:
                handler.retrieve("again").page_index
                handler.free(handler.alloc(1))
            except KeyboardInterrupt:
                pass
            sys.settrace(None)
        assert len(lines) > 40
        kept = [handler.alloc(1) for _ in range(64)]
        assert {(one.region_id, one.page_index) for one in kept} == {(1, i) for i in range(64)}
        info = handler.retrieve("again")
        assert bytes(handler.get_buffer_view(0, info.page_index * 4096, 4)) == b"1234"
    """,
    "what takes and leaves places at each line that does": """
        put("again")
        kept, lines = [], set()
        def again(line):
            if line in lines:
                return
            lines.add(line)
            info = handler.retrieve("again")
            assert bytes(handler.get_buffer_view(0, info.page_index * 4096, 4)) == b"1234"
            one, other = handler.alloc(1), handler.alloc(1)
            handler.free(one)
            kept.append(other)
            del kept[:-3]
        for turn in range(20):
            lines.clear()
            at_each_line(("enter", "take", "alloc", "held", "view", "in_use"), again)
            info, held = handler.retrieve("again"), [handler.alloc(1) for _ in range(turn)]
            place = info.page_index
            sys.settrace(None)
            assert place == handler.retrieve("again").page_index
            places = [(one.region_id, one.page_index) for one in held + kept]
            assert len(set(places)) == len(places) and max(places)[0] == 1
        held.clear(), kept.clear()
        assert handler.allocator.num_allocated == 0
    """,
    "what expands at each line that does": """
        handler.close()
        for turn in range(3):
            small = maru.MaruHandler(maru.MaruConfig(server_url=sys.argv[1], timeout_ms=60_000, chunk_size_bytes=4096,
                                                     pool_size=(turn + 1) * 4096))
            assert small.connect()
            kept, lines = [], set()
            def again(line):
                if line not in lines:
                    lines.add(line)
                    kept.append(small.alloc(1))
            at_each_line(("take", "alloc", "expand_if_full"), again)
            for _ in range(30):
                kept.append(small.alloc(1))
                place = kept[-1].region_id, kept[-1].page_index
            sys.settrace(None)
            assert len(lines) > 20
            assert len({(one.region_id, one.page_index) for one in kept}) == len(kept)
            for one in kept:
                assert small.get_buffer_view(one.region_id, one.page_index * 4096, 1) is not None, small._budget.regions()
            stats = small.get_stats()["store_regions"]
            assert stats["total_allocated"] == len(kept), (stats, len(kept))
            assert len(kept) <= stats["total_pages"] <= len(kept) + turn + 1, (stats, len(kept))
            small.close()
        assert handler.connect()
    """,
    "a signal's handler": """
        put("again")
        count = 0
        def again(*_):
            global count
            count += 1
            handler.unpin("again"), handler.retrieve("again").page_index, handler.get_stats(), handler.free(handler.alloc(1))
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
        signal.signal(signal.SIGALRM, again)
        again()
        while count < 2000:
            handler.pin("again"), handler.retrieve("again").page_index, handler.free(handler.alloc(1))
        signal.setitimer(signal.ITIMER_REAL, 0)
        kept = [handler.alloc(1) for _ in range(64)]
        assert {(one.region_id, one.page_index) for one in kept} == {(1, i) for i in range(64)}
    """,
    "the garbage collector": """
        put("again")
        class Cycle:
            def __init__(self):
                self.me = self
                handler.pin("again")
                self.handle = handler.alloc(1)
            def __del__(self):
                handler.unpin("again"), handler.retrieve("again").page_index, handler.free(self.handle), handler.alloc(1)
        gc.set_threshold(1, 1, 1)
        for turn in range(500):
            Cycle(), handler.retrieve("again").page_index, handler.get_stats()
    """,
}


@pytest.mark.parametrize("what", AGAIN.values(), ids=AGAIN)
def test_a_thread_may_call_again_from_within_a_call(marud, what):
    script = textwrap.dedent(BEGIN) + textwrap.dedent(what) + "handler.close()\nprint('done')\n"
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script, str(marud.socket)], capture_output=True,
                           text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_threads_that_are_storing_may_all_close(marud, key):
    """From what their stores call: each would wait for the other."""
    both, ended = threading.Barrier(2), []

    class Closing(maru.MaruHandler):
        def _store(self, *arguments):
            is_stored = super()._store(*arguments)
            both.wait(60)
            self.close()
            ended.append(is_stored)
            return is_stored

    handler = Closing(config(marud))
    assert handler.connect()
    threads = [threading.Thread(target=put, args=(handler, f"{key} {i}", b"x"), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended == [True, True] and not handler.connected
