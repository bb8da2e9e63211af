"""maru.tracing: what the calls of a client write into their ring, as maru-eventd would get it."""
import asyncio
import errno
import mmap
import socket
import struct
import threading

import pytest

import maru
from maru import aio, tracing

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT = int(CALLER[3:35], 16), int(CALLER[36:52], 16)
REQUEST, ALLOC, STORE, MATCH, RETRIEVE, DELETE, RENT, SERVE = range(1, 9)
HEADER_BYTES, SLOT_BYTES = 4096, 128


class Ring:
    """A client's ring, read by this test: the layout is include/maru/format/spans.h's, once more."""

    def __init__(self, fd):
        self.memory = mmap.mmap(fd, 0)
        magic, version, header, self.slots, slot = struct.unpack_from("<8sIIII", self.memory)
        assert (magic, version, header, slot) == (b"MARUSPAN", 1, HEADER_BYTES, SLOT_BYTES)
        self.next = 0

    def take(self):
        """The spans since the last look: (operation, trace, parent, id, result, keys, blocks)."""
        written = struct.unpack_from("<Q", self.memory, 128)[0]
        found = []
        for number in range(self.next, written):
            at = HEADER_BYTES + SLOT_BYTES * (number % self.slots)
            state, high, low, span, parent, begin, end = struct.unpack_from("<7Q", self.memory, at)
            operation, flags, result = struct.unpack_from("<BBxxi", self.memory, at + 56)
            keys, blocks = struct.unpack_from("<Q8xQ", self.memory, at + 72)
            assert state == number + 1 and 0 < begin <= end and flags == 1
            found.append((operation, high << 64 | low, parent, span, result, keys, blocks))
        self.next = written
        return found


class Receiver:
    """What maru-eventd is to a client."""

    def __init__(self, folder):
        self.path = str(folder / "spans.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()

    def take(self):
        self.connection, _ = self.listener.accept()
        hello, (fd,), _, _ = socket.recv_fds(self.connection, 4096, 1)
        assert len(hello) == 152 and hello[:8] == b"MARUSPAN"
        return Ring(fd)


@pytest.fixture
def receiver(tmp_path):
    made = Receiver(tmp_path)
    yield made
    made.listener.close()


@pytest.fixture
def ring(client, receiver):
    assert tracing.start(client, receiver.path, one_in=0)
    yield receiver.take()
    tracing.stop(client)


def test_each_call_takes_a_traceparent(client, ring, key):
    client.store_copy(key, b"text", traceparent=CALLER)
    client.match_prefix([key], traceparent=CALLER).release()
    client.retrieve(key, traceparent=CALLER).release()
    [view] = client.retrieve_batch([key], traceparent=CALLER)
    view.release()
    buffer = client.alloc(64, traceparent=CALLER)
    client.store(key + "2", buffer, traceparent=CALLER)
    [buffer] = client.alloc_batch(64, 1, traceparent=CALLER)
    client.store_chain([key + "3"], [buffer], traceparent=CALLER)
    client.store_batch([key + "4"], client.alloc_batch(64, 1), traceparent=CALLER)
    client.store_copy_batch([key + "5"], [b"x"], traceparent=CALLER)
    client.delete(key, traceparent=CALLER)
    client.delete_batch([key + "2"], traceparent=CALLER)
    client.delete(key + "3")  # not traced: no request asks for it
    spans = ring.take()
    calls = [span for span in spans if span[0] not in (RENT, SERVE)]
    assert [span[0] for span in calls] == [STORE, MATCH, RETRIEVE, RETRIEVE, ALLOC, STORE, ALLOC, STORE, STORE, STORE, DELETE,
                                           DELETE]
    assert all(span[1:3] == (TRACE, PARENT) for span in calls)
    assert len({span[3] for span in spans}) == len(spans)
    assert calls[1][5:] == (1, 1), "one key, one block found"
    below = [span for span in spans if span[0] in (RENT, SERVE)]
    assert all(span[1] == TRACE and span[2] != PARENT for span in below)


def test_a_block_of_code_works_for_a_request(client, ring, key):
    with tracing.WorkingFor(CALLER):
        assert tracing.current() == CALLER
        client.delete(key)
        with tracing.WorkingFor(None):
            client.delete(key)
        client.delete(key)
    assert tracing.current() == ""
    client.delete(key)
    assert [(span[0], span[2]) for span in ring.take()] == [(DELETE, PARENT)] * 2


def test_a_request_is_a_span_above_its_calls(client, ring, key):
    with pytest.raises(maru.HasChildrenError), tracing.Request(client, CALLER) as request:
        client.store_copy(key, b"1")
        client.store_copy(key + "2", b"2", parent=key)
        thread = threading.Thread(target=lambda: client.delete(key + "3", traceparent=request.traceparent))
        thread.start()
        thread.join()
        client.delete(key)
    spans = [span for span in ring.take() if span[0] not in (RENT, SERVE)]
    assert [span[0] for span in spans] == [STORE, STORE, DELETE, DELETE, REQUEST]
    whole = spans[-1]
    assert whole[1:3] == (TRACE, PARENT) and whole[4] == -errno.ENOTEMPTY
    assert all(span[1] == TRACE and span[2] == whole[3] for span in spans[:-1])
    assert f"{whole[3]:016x}" == request.traceparent[36:52]
    request.end()  # again, for nothing
    assert ring.take() == []


def test_tasks_give_each_call_its_own(receiver, marud, key):
    async def run():
        async with aio.Client(str(marud.socket), timeout_ms=60_000) as client:
            assert tracing.start(client.sync, receiver.path, one_in=0)
            ring = receiver.take()
            await asyncio.gather(client.store_copy(key, b"1", traceparent=CALLER), client.store_copy(key + "2", b"2"))
            assert client.retrieve(key, traceparent=CALLER) is not None
            return ring.take()

    spans = asyncio.run(run())
    assert [span[0] for span in spans if span[0] not in (RENT, SERVE)] == [STORE, RETRIEVE]


def test_a_share_of_the_calls_without_a_request(client, receiver, key):
    assert tracing.start(client, receiver.path, one_in=4)
    ring = receiver.take()
    for _ in range(40):
        client.delete(key)
    spans = ring.take()
    assert len(spans) == 10 and len({span[1] for span in spans}) == 10 and {span[2] for span in spans} == {0}
    tracing.stop(client)
    client.delete(key)
    assert ring.take() == []


def test_nobody_listens(client, tmp_path, key):
    assert not tracing.start(client, tmp_path / "none.sock")
    client.delete(key)  # traced all the same
    tracing.stop(client)


@pytest.mark.parametrize("wrong", ["x", CALLER[:-1], CALLER.replace("-", "_"), CALLER.upper(), "ff" + CALLER[2:], CALLER + "-",
                                   3, b"bytes"])
def test_what_is_no_traceparent(client, key, wrong):
    for call in (lambda: client.retrieve(key, traceparent=wrong), lambda: client.delete(key, traceparent=wrong),
                 lambda: tracing.Request(client, wrong)):
        with pytest.raises(maru.InvalidArgumentError):
            call()
    assert tracing.current() == ""
