"""Integers as keys of a MaruHandler: of any size and sign, each another key than its digits, in every call and in mixed
batches. The empty text is a key, too."""
import enum

import numpy
import pytest

import maru
from maru.arguments import client_key
from test_handler import config, put, read

INTEGERS = [0, 1, -1, 42, 127, 128, -128, -129, 255, 256, 2**31, -2**31, 2**63 - 1, 2**63, -2**63, -2**63 - 1, 2**64, 2**200,
            -2**200, 2**1000 - 1]


@pytest.fixture
def handler(marud, request):
    tenant = f"integers {abs(hash(request.node.name)) % 10**9}"  # keys of one test are not those of another
    address = f"maru://{marud.socket}?tenant={tenant.replace(' ', '%20')}"
    with maru.MaruHandler(config(marud, server_url=address)) as connected:
        yield connected


def test_an_integer_and_its_digits_are_two_keys(handler):
    assert put(handler, 42, b"number") and put(handler, "42", b"digits")
    assert read(handler, 42) == b"number" and read(handler, "42") == b"digits" == read(handler, b"42")
    assert handler.delete("42") and handler.exists(42) and not handler.exists("42")
    assert handler.delete(42) and not handler.exists(42)


def test_every_integer_is_a_key_of_its_own(handler):
    for i, key in enumerate(INTEGERS):
        assert not handler.exists(key), key
        assert put(handler, key, i.to_bytes(2, "little"))
    assert [int.from_bytes(read(handler, key), "little") for key in INTEGERS] == list(range(len(INTEGERS)))
    assert handler.batch_exists(INTEGERS) == [True] * len(INTEGERS)


def test_an_integer_of_more_bytes_than_a_key_has_is_a_key(handler):
    large = 1 << 8 * 4096
    keys = [large, large + 1, -large, -large - 1]
    assert all(put(handler, key, repr(i).encode()) for i, key in enumerate(keys))
    assert [read(handler, key) for key in keys] == [b"0", b"1", b"2", b"3"]
    # One below the limit is bytes that can be looked at, and above it a digest.
    assert type(client_key((1 << 8 * 4091 - 1) - 1)) is bytes and len(client_key((1 << 8 * 4091 - 1) - 1)) == 4096
    assert type(client_key(1 << 8 * 4091 - 1)) is maru.Digest


def test_every_call_takes_integers(handler):
    assert handler.store(key=7, handle=handler.alloc(size=1)) is True
    assert handler.exists(key=7) and handler.retrieve(key=7) is not None
    assert handler.pin(key=7) and handler.delete(key=7) is False  # pinned through this handler
    assert handler.unpin(key=7) and not handler.unpin(key=7)
    assert handler.batch_pin(keys=[7, 8]) == [True, False] and handler.batch_unpin(keys=[7, 8]) == [True, False]
    assert handler.batch_store(keys=[8, 9], handles=[handler.alloc(1), handler.alloc(1)]) == [True, True]
    assert [found is not None for found in handler.batch_retrieve(keys=[7, 8, 9, 10])] == [True, True, True, False]
    assert handler.delete(key=7) and handler.batch_exists(keys=[7, 8, 9]) == [False, True, True]


def test_a_batch_may_mix_all_kinds(handler):
    digest = maru.Digest(bytes(range(16)))
    keys = ["text", b"bytes", 5, digest, -5, "5", "", numpy.int64(6), "x" * 4096, 2**100]
    assert handler.batch_store(keys, [handler.alloc(1) for _ in keys]) == [True] * len(keys)
    assert handler.batch_exists(keys + ["6", 7]) == [True] * len(keys) + [False, False]
    assert handler.batch_exists(iter(keys)) == [True] * len(keys)
    assert all(found is not None for found in handler.batch_retrieve(keys))
    assert handler.batch_pin(keys) == [True] * len(keys)
    assert handler.batch_unpin(list(reversed(keys))) == [True] * len(keys)


def test_equal_integers_are_one_key_whatever_their_class(handler):
    class Color(enum.IntEnum):
        RED = 3

    class Odd(int):
        def to_bytes(self, *_, **__):
            return b""

        def __index__(self):
            return 99

    assert put(handler, 3, b"three") and put(handler, 2**70, b"large")
    for three in (Color.RED, numpy.int8(3), numpy.uint64(3), Odd(3)):
        assert read(handler, three) == b"three"
    assert read(handler, Odd(2**70)) == b"large"


def test_the_empty_text_is_a_key(handler):
    assert not handler.exists("") and put(handler, "", b"empty")
    assert read(handler, "") == b"empty" == read(handler, b"") and handler.batch_exists(["", b"", "0"]) == [True, True, False]
    assert handler.pin("") and handler.unpin(b"") and handler.delete("") and not handler.exists(b"")


def test_a_client_finds_what_a_handler_stored(marud, handler):
    assert put(handler, 42, b"number")
    name = client_key(42)
    assert name == b"\xff\xfeint\x2a" and client_key(-1) == b"\xff\xfeint\xff" and client_key(128) == b"\xff\xfeint\x80\x00"
    with maru.Client(str(marud.socket)) as client:
        assert client.exists(name, handler._tenant)
        with pytest.raises(maru.InvalidArgumentError):
            client.exists(42)  # where an int is a block


@pytest.mark.parametrize("wrong", [True, False, numpy.True_, 1.0, None, [1], numpy.array([1, 2]), numpy.float32(1), object()])
def test_what_is_no_integer_is_refused(handler, wrong):
    handle = handler.alloc(1)
    for call in (handler.exists, handler.retrieve, handler.pin, handler.unpin, handler.delete,
                 lambda key: handler.store(key, handle), lambda key: handler.batch_exists(["a", key]),
                 lambda key: handler.batch_retrieve([key]), lambda key: handler.batch_pin([1, key]),
                 lambda key: handler.batch_store([key], [handle])):
        with pytest.raises(maru.InvalidArgumentError, match="[Kk]ey"):
            call(wrong)
    assert handler.store("a", handle)  # nothing used it up


# The four programs that the older system shows to newcomers, in words of our own.

def test_one_process_stores_and_retrieves(handler):
    data = b"A" * 4096
    handle = handler.alloc(size=len(data))
    handle.buf[:] = data
    handler.store(key=42, handle=handle)
    assert handler.exists(key=42)
    found = handler.retrieve(key=42)
    assert found is not None and bytes(found.view[:4]) == b"AAAA" and len(found.view) == 4096
    handler.delete(key=42)
    assert not handler.exists(key=42)


def test_another_process_reads_what_one_has_stored(marud):
    import os
    import signal
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with maru.MaruHandler(config(marud)) as producer:
                for key in range(1000, 1004):
                    handle = producer.alloc(64)
                    handle.buf[:] = bytes([key % 256]) * 64
                    producer.store(key=key, handle=handle)
                os.write(ready_write, b"1")
                os.read(done_read, 1)
            status = 0
        finally:
            os._exit(status)
    os.close(ready_write)  # so that a child that fails ends the wait
    try:
        assert os.read(ready_read, 1) == b"1"
        with maru.MaruHandler(config(marud)) as consumer:
            for key in range(1000, 1004):
                assert bytes(consumer.retrieve(key=key).view) == bytes([key % 256]) * 64
        os.write(done_write, b"1")
        assert os.waitpid(child, 0)[1] == 0
        child = 0
    finally:
        if child != 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for end in (ready_read, done_read, done_write):
            os.close(end)


def test_batches_of_integers(handler):
    keys = list(range(2000, 2032))
    handles = [handler.alloc(32) for _ in keys]
    for key, handle in zip(keys, handles):
        handle.buf[:] = key.to_bytes(32, "little")
    assert all(handler.batch_store(keys, handles)) and all(handler.batch_exists(keys))
    assert [int.from_bytes(found.view, "little") for found in handler.batch_retrieve(keys)] == keys


def test_the_second_value_of_an_integer_is_a_duplicate(handler):
    assert put(handler, 5, b"first") and put(handler, 5, b"second") and read(handler, 5) == b"first"
