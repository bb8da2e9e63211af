"""MaruHandler: what is a key, and which of them are the same one."""
import subprocess
import sys
import time

import numpy
import pytest

import maru
from test_handler import config, handler, peer, put, read
from with_marud import Marud


class Text(str):
    """With ideas of its own, which do not count."""

    __hash__ = None

    def __eq__(self, other):
        raise AssertionError("compared")

    def __str__(self):
        return "another"


class Bytes(bytes):
    def __hash__(self):
        raise AssertionError("hashed")

    def __bytes__(self):
        return b"another"

    def __buffer__(self, flags):
        return memoryview(b"another")

    def __len__(self):
        return 0


def test_a_text_and_its_bytes_are_one_key(handler, key):
    key += " é"
    same = [key, key.encode(), Text(key), Bytes(key.encode())]
    for stored, deleted in zip(same, reversed(same)):
        assert put(handler, stored, b"value")
        assert all(handler.exists(one) and handler.batch_exists([one]) == [True] for one in same)
        assert all(read(handler, one) == b"value" for one in same)
        assert all(handler.pin(one) for one in same) and handler.batch_pin(same) == [True] * 4
        assert not any(handler.delete(one) for one in same)
        assert all(handler.unpin(one) for one in reversed(same)) and handler.batch_unpin(same) == [True] * 4
        assert not any(handler.unpin(one) for one in same) and handler.batch_unpin(same) == [False] * 4
        assert handler.delete(deleted)
        assert not any(handler.exists(one) or handler.pin(one) for one in same)


@pytest.mark.parametrize("one", [Text, lambda key: Bytes(key.encode())])
def test_what_a_class_makes_of_a_key_does_not_count(handler, key, one):
    put(handler, key, b"value")
    assert not handler.unpin(one(key)) and handler.batch_unpin([one(key)]) == [False]
    assert handler.pin(one(key)) and not handler.unpin("another") and not handler.delete(key) and handler.unpin(key)
    assert handler.pin(key) and not handler.unpin(b"another") and not handler.delete(one(key)) and handler.unpin(one(key))


def test_the_longest_keys_are_pinned(handler):
    for longest in ("x" * 4096, "é" * 2048, b"\xff" * 4096):
        assert not handler.unpin(longest) and put(handler, longest, b"value") and handler.pin(longest)
        assert not handler.delete(longest) and handler.unpin(longest) and handler.delete(longest)


def test_bytes_are_not_compared_with_texts():
    """Which Python can be told to refuse (-bb), and which meet where their hashes do."""
    asked = r"""
import maru
from maru.arguments import name_of
names = {name_of(key): key for key in ("\u00ff", b"\xff", bytes(16), maru.Digest(bytes(16)), "\0" * 16)}
assert len(names) == 4, names
"""
    subprocess.run([sys.executable, "-bb", "-c", asked], check=True, timeout=120)


@pytest.mark.parametrize("raw", [bytes(range(16)), bytes(range(240, 256)) * 2])
def test_a_digest_is_another_key_than_its_bytes(handler, raw):
    digest = maru.Digest(raw)
    assert put(handler, raw, b"bytes") and put(handler, digest, b"digest")
    assert read(handler, raw) == b"bytes" and read(handler, digest) == b"digest"
    assert handler.pin(digest) and not handler.unpin(raw) and handler.delete(raw)
    assert not handler.delete(digest) and handler.exists(digest) and not handler.exists(raw)
    assert handler.batch_pin([digest, raw]) == [True, False] and handler.batch_unpin([digest, raw]) == [True, False]
    assert handler.unpin(digest) and handler.delete(digest) and not handler.exists(digest)


@pytest.mark.parametrize("wrong", [None, 5.0, bytearray(b"x"), memoryview(b"x"), numpy.zeros(16, numpy.uint8), ["x"]])
def test_what_is_no_key_pins_and_deletes_nothing(handler, key, wrong):
    put(handler, key, b"value")
    for call in (handler.pin, handler.unpin, handler.delete, lambda one: handler.batch_pin([key, one]),
                 lambda one: handler.batch_unpin([key, one])):
        assert handler.pin(key)
        with pytest.raises(maru.InvalidArgumentError, match="str of up to 4096 bytes, bytes, an int or a Digest"):
            call(wrong)
        assert handler.unpin(key) and not handler.unpin(key)


@pytest.mark.parametrize("impossible, said", [("x" * 4097, "4097 bytes"), ("é" * 2049, "4098 bytes"),
                                              (b"\xff" * 4097, "4097 bytes"), ("\ud800", "surrogates")],
                         ids=["long", "long in UTF-8", "long bytes", "surrogate"])
def test_what_nothing_can_be_stored_under_is_refused(handler, key, impossible, said):
    put(handler, key, b"value")
    for call in (handler.pin, handler.unpin, handler.delete, lambda one: handler.batch_pin([key, one]),
                 lambda one: handler.batch_unpin([key, one])):
        assert handler.pin(key)
        with pytest.raises(maru.InvalidArgumentError, match=said):
            call(impossible)
        assert handler.unpin(key) and not handler.unpin(key)


def test_pins_of_what_was_there_before_hold_nothing_that_came_after(handler, peer, key):
    put(handler, key, b"old")
    assert handler.pin(key) and not handler.delete(key)
    assert peer.delete(key) and not handler.delete(key)  # absent
    put(peer, key, b"new")
    assert handler.delete(key) and not peer.exists(key)
    put(peer, key, b"newest")
    assert handler.pin(key) and not handler.delete(key) and read(peer, key) == b"newest"
    assert handler.unpin(key) and handler.delete(key)  # the pin that is left is the oldest one's
    assert handler.unpin(key) and not handler.unpin(key)


def test_a_pin_holds_what_has_outlived_its_time(handler, client, key):
    client.store_copy(key, b"value", ttl_ms=1)
    assert handler.pin(key)
    deadline = time.monotonic() + 60
    while handler.retrieve(key) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not handler.delete(key) and handler.unpin(key)


def test_pins_and_deletes_are_of_the_tenant(marud, handler, key):
    with maru.MaruHandler(config(marud, server_url=f"{marud.socket}?tenant=of-the-keys")) as its:
        put(its, key, b"its")
        assert its.pin(key) and not handler.pin(key)
        put(handler, key, b"nobody's")
        assert not its.delete(key) and read(its, key) == b"its" and handler.delete(key)
        assert its.unpin(key) and its.delete(key)


def test_where_no_pin_is_left_to_look_with_what_is_pinned_is_not_deleted(marud_program, key):
    with Marud(marud_program, size="16MiB", pins=256) as own, maru.MaruHandler(config(own)) as handler:
        stored = [f"{key} {i}" for i in range(1000)]  # pins are given out beyond the limit while there is room
        assert all(put(handler, one, b"value") for one in stored)
        held = []
        with pytest.raises(maru.PinsExhaustedError):
            for one in stored:
                assert handler.pin(one)
                held.append(one)
        with maru.MaruHandler(config(own)) as other:
            assert other.delete(held[0]) and put(other, held[0], b"new")
        assert not handler.delete(held[0]) and handler.exists(held[0])  # whether a pin holds it takes a pin to find out
        assert handler.batch_unpin(held[1:]) == [True] * (len(held) - 1) and handler.delete(held[0])
