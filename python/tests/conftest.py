"""A marud of its own for the tests, and clients of it. MARU_TEST_MARUD names the program."""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "api"))
from with_marud import Marud  # noqa: E402

import maru  # noqa: E402

PAGE = 4096


@pytest.fixture(scope="session")
def marud_program():
    program = os.environ.get("MARU_TEST_MARUD")
    assert program, "MARU_TEST_MARUD must name the marud to test with; scripts/test-python sets it"
    return program


@pytest.fixture(scope="session")
def marud(marud_program):
    with Marud(marud_program) as running:
        yield running


@pytest.fixture
def client(marud):
    with maru.Client(str(marud.socket), timeout_ms=60_000) as attached:
        yield attached


@pytest.fixture
def other(marud):
    """A second client of the same pool."""
    with maru.Client(str(marud.socket), timeout_ms=60_000) as attached:
        yield attached


@pytest.fixture
def key(request):
    """A key of this test alone: the pool is shared."""
    return request.node.nodeid


@pytest.fixture
def digests(request):
    """64 digests of this test alone."""
    import hashlib

    import numpy
    rows = [hashlib.blake2b(f"{request.node.nodeid} {i}".encode(), digest_size=16).digest() for i in range(64)]
    return numpy.frombuffer(b"".join(rows), dtype=numpy.uint8).reshape(64, 16).copy()
