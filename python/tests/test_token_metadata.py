"""The metadata that tells routers of tokens; that maru-eventd reads it is seen in tests/events."""
import struct

import pytest

from maru import token_metadata


def test_bytes_are_as_documented():
    assert token_metadata.encode([1, 2, 3, 4], 2) == (
        b"\x83\xa4maru\x01\xaablock_size\x02\xa6tokens\xc5\x00\x10" + struct.pack("<4I", 1, 2, 3, 4))
    whole = token_metadata.encode([7], 1, hashes=[(5 << 64) | 9], parent=-1, lora="l" * 40, salt="s", rank=1, ranks=200)
    assert whole.startswith(b"\x89")
    for part in (b"\xa6hashes\xc5\x00\x08" + bytes(7) + b"\x09", b"\xa6parent\xcf" + b"\xff" * 8,
                 b"\xa4lora\xda\x00\x28" + b"l" * 40, b"\xa4salt\xa1s", b"\xa4rank\x01", b"\xa5ranks\xcd\x00\xc8"):
        assert part in whole


@pytest.mark.parametrize("arguments, more, said", [
    (([1, 2, 3], 2), {}, "3 tokens in blocks of 2"), (([], 2), {}, "0 tokens"), (([1], 0), {}, "blocks of 0"),
    (([1] * 5000, 5000), {}, "blocks of 5000"), (([1, 2], 1), {"hashes": [1]}, "1 hashes for 2 blocks"),
    (([1], 1), {"rank": 1}, "rank 1 of 1"), (([1], 1), {"lora": "x" * 1025}, "lora has 1025 bytes"),
])
def test_what_would_be_refused_is_refused(arguments, more, said):
    with pytest.raises(ValueError, match=said):
        token_metadata.encode(*arguments, **more)
