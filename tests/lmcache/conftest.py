"""A marud of its own for these tests, and LMCache configured for it as docs/python/lmcache.md says."""
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))
sys.path.insert(0, str(HERE))
from with_marud import Marud  # noqa: E402


@pytest.fixture
def marud():
    """A pool of 16 MiB, in which a few dozen chunks fit."""
    program = os.environ.get("MARU_TEST_MARUD")
    assert program, "MARU_TEST_MARUD must name the marud to test with; scripts/test-lmcache sets it"
    with Marud(program, size="16MiB", region_bytes="2MiB") as running:
        yield running


@pytest.fixture
def storage(marud):
    from kv_store import Storage
    with Storage(str(marud.socket)) as made:
        yield made


@pytest.fixture
def l1(marud):
    """The first tier of a server of LMCache, in that pool."""
    from mp_objects import manager
    made = manager(marud.socket)
    yield made
    assert made.memcheck()
    made.close()
