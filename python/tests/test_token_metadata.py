"""The metadata that tells the tokens of a block."""
import random

import pytest

from maru.token_metadata import TokenMetadata, decode, encode


def tokens(*numbers):
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_the_bytes_are_those_that_the_documentation_shows():
    made = TokenMetadata(2, tokens(1, 2, 3, 70000), lora="x", rank=1, ranks=2)
    assert made.encode().hex() == ("86" "a46d617275" "01" "aa626c6f636b5f73697a65" "02" "a6746f6b656e73" "c410"
                                   "01000000" "02000000" "03000000" "70110100" "a472616e6b" "01" "a572616e6b73" "02"
                                   "a46c6f7261" "a178")


def test_numbers_make_the_same_bytes():
    made = TokenMetadata(2, tokens(1, 2, 3, 4), bytes(7) + b"\x09" + b"\xff" * 8, (1 << 64) - 2, "lora", "salt", 1, 200)
    assert encode([1, 2, 3, 4], 2, hashes=[(5 << 64) | 9, -1], parent=-2, lora="lora", salt="salt", rank=1,
                  ranks=200) == made.encode()


@pytest.mark.parametrize("arguments, more, said", [
    (([1, 2, 3], 2), {}, "whole number of blocks"), (([], 2), {}, "whole number of blocks"), (([1], 0), {}, "block_size 0"),
    (([1, 2], 1), {"hashes": [1]}, "number of hashes"), (([1], 1), {"rank": 1}, "rank 1 of 1"),
    (([1, 2], 1), {"hashes": [7, 7]}, "one hash twice"), (([1, 2], 1), {"hashes": [7, 8], "parent": 8}, "one hash twice"),
])
def test_numbers_that_would_be_refused_are_refused(arguments, more, said):
    with pytest.raises(ValueError, match=said):
        encode(*arguments, **more)


def test_every_field_comes_back():
    chosen = random.Random(20)
    for _ in range(300):
        size, blocks = chosen.choice([1, 2, 16, 128]), chosen.randrange(1, 9)
        ranks = chosen.choice([1, 2, 300])
        made = TokenMetadata(
            size, chosen.randbytes(4 * size * blocks), chosen.choice([b"", chosen.randbytes(8 * blocks)]),
            chosen.choice([None, 0, 127, 128, (1 << 64) - 1]), chosen.choice(["", "an adapter", "ä" * 512]),
            chosen.choice(["", "s" * 31, "s" * 32, "s" * 1024]), chosen.randrange(ranks), ranks, chosen.randbytes(16),
            b"layout")
        if ranks == 1:
            made = made._replace(rank=0)
        assert decode(made.encode()) == made


@pytest.mark.parametrize("other", [b"", b"lmcache model 0 0 float16[2]", b"\x81\xa5other\x01", b"\x80", b"\x93\x01\x02\x03"])
def test_metadata_of_another_kind_is_none(other):
    assert decode(other) is None


def test_keys_that_are_not_known_are_ignored():
    made = TokenMetadata(1, tokens(7)).encode()
    assert made[0] == 0x83
    assert decode(b"\x84" + made[1:] + b"\xa5later\xcb" + bytes(8)) == TokenMetadata(1, tokens(7))


@pytest.mark.parametrize("wrong, said", [
    (TokenMetadata(0, tokens(1)), "block_size 0"), (TokenMetadata(4097, tokens(1)), "block_size 4097"),
    (TokenMetadata(2, tokens(1)), "whole number of blocks"), (TokenMetadata(1, b""), "whole number of blocks"),
    (TokenMetadata(1, tokens(1), hashes=bytes(16)), "another number of hashes"),
    (TokenMetadata(1, tokens(1), rank=2, ranks=2), "rank 2 of 2"), (TokenMetadata(1, tokens(1), ranks=2000), "of 2000"),
    (TokenMetadata(1, tokens(1), lora="x" * 1025), "lora"),
])
def test_what_is_out_of_range_is_said(wrong, said):
    with pytest.raises(ValueError, match=said):
        decode(wrong.encode())


def test_no_damage_is_taken_for_tokens():
    """Cut anywhere, or with any byte changed: an error, metadata of another kind, or values in range."""
    made = TokenMetadata(4, tokens(*range(16)), bytes(range(32)), 5, "lora", "salt", 1, 2, b"f" * 16, b"l" * 16).encode()
    for end in range(len(made)):
        try:
            assert decode(made[:end]) is None
        except ValueError:
            pass
    chosen = random.Random(21)
    for _ in range(20000):
        changed = bytearray(made)
        for _ in range(chosen.randrange(1, 4)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        try:
            found = decode(bytes(changed))
        except ValueError:
            continue
        assert found is None or (found.tokens and len(found.tokens) % (4 * found.block_size) == 0)
