"""Tests against the engines' own packages, which scripts/test-engines installs; without them they are skipped.

The fixtures of ../conftest.py are here, too.
"""
import pytest


@pytest.fixture
def pool(marud_program):
    """A marud with a pool of this test alone."""
    from with_marud import Marud
    with Marud(marud_program, size="64MiB") as running:
        yield running
