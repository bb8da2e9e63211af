"""Batches of texts as keys: few and short ones are copied for the call, others are read where they are. Both find the same."""
import itertools

import pytest

TENANT = "batch texts"
LENGTHS = [*range(1, 70), *range(94, 99), *range(126, 131), 255, 4096]


def text_of(length):
    return "".join(chr(ord("!") + (i * 7 + length) % 90) for i in range(length))


def unlike(text):
    """With another character at each end, in the middle, and where pieces of 8, 16, 32 and 64 bytes meet."""
    places = {0, len(text) // 2, len(text) - 1, *(n for n in (7, 8, 15, 16, 31, 32, 63, 64, 95, 96) if n < len(text))}
    return [text[:at] + "~" + text[at + 1:] for at in sorted(places)]


@pytest.fixture
def stored(client):
    """One text of each length, in the pool."""
    texts = [text_of(length) for length in LENGTHS]
    for text in texts:
        client.store_copy(text, text.encode(), tenant=TENANT)
    return texts


def test_texts_of_every_length_are_found_and_none_that_differs_in_one_place(client, stored):
    for text in stored:
        keys = [text, *unlike(text)]
        assert client.exists_batch(keys, TENANT) == [True] + [False] * (len(keys) - 1), len(text)
        assert client.exists_batch(keys[::-1], TENANT) == [False] * (len(keys) - 1) + [True], len(text)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 255, 256, 257, 1000])
@pytest.mark.parametrize("longest", [64, 65, 128, 129])
def test_as_many_texts_as_there_may_be(client, stored, n, longest):
    pairs = [key for text in stored if len(text) <= longest for key in (text, "?" + text[1:])]
    keys = list(itertools.islice(itertools.cycle(pairs), n))
    expected = [key in stored for key in keys]
    assert True in expected and client.exists_batch(keys, TENANT) == expected
    assert client.exists_batch(tuple(keys), TENANT) == client.exists_batch(iter(keys), TENANT) == expected


def test_each_batch_asks_for_its_own_tenant(client, stored):
    keys = stored[:64]
    client.store_copy(keys[5], b"x", tenant="another")
    for _ in range(2):
        assert client.exists_batch(keys, TENANT) == [True] * 64
        assert client.exists_batch(keys, "another") == [i == 5 for i in range(64)]
        assert client.exists_batch(keys[:9]) == [False] * 9


class Text(str):
    """Not a plain str."""


@pytest.mark.parametrize("other", ["Größe", "\u2028" * 9, b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), Text("text"),
                                   "x" * 4000])
@pytest.mark.parametrize("at", [0, 31, 63])
def test_one_key_of_another_kind_among_texts(client, stored, other, at):
    client.store_copy(other, b"x", tenant=TENANT)
    keys = stored[:63]
    keys.insert(at, other)
    assert client.exists_batch(keys, TENANT) == [True] * 64
    keys[at - 1] = "absent"
    assert client.exists_batch(keys, TENANT) == [i != (at - 1) % 64 for i in range(64)]
