"""What may be set for an engine's connector; the connectors themselves are tested in engines/."""
import pytest

import maru
from maru.engine_settings import Settings

KNOWN = {"maru_socket", "maru_pool", "maru_tenant", "maru_model", "maru_timeout_ms", "maru_priority", "maru_ttl_ms",
         "maru_chunk_tokens", "maru_store_generated", "maru_required", "maru_prefetch"}


def settings(**given):
    return Settings("extra_config", given, KNOWN)


def test_what_is_not_set_has_its_default():
    read = settings(other="of somebody else")
    assert (read.socket, read.pool, read.tenant, read.model) == (None, None, None, None)
    assert (read.timeout_ms, read.priority, read.ttl_ms, read.is_pool_required) == (0, 0, 0, False)
    assert read.number("maru_chunk_tokens", 256, 1, 4096) == 256 and read.flag("maru_store_generated", True) is True


def test_what_is_set_is_read():
    read = settings(maru_socket="/s", maru_pool="p", maru_tenant="", maru_model="m", maru_timeout_ms=7, maru_ttl_ms=2**64 - 1,
                    maru_priority="4294967295", maru_chunk_tokens=1, maru_store_generated=False)
    assert (read.socket, read.pool, read.tenant, read.model) == ("/s", "p", None, "m")
    assert (read.timeout_ms, read.priority, read.ttl_ms) == (7, 2**32 - 1, 2**64 - 1)
    assert read.number("maru_chunk_tokens", 256, 1, 4096) == 1 and read.flag("maru_store_generated", True) is False


@pytest.mark.parametrize("name, value", [
    ("maru_socket", 5), ("maru_pool", ["p"]), ("maru_tenant", False), ("maru_model", b"m"),
    ("maru_timeout_ms", -1), ("maru_timeout_ms", 1 << 32), ("maru_timeout_ms", 1.5), ("maru_timeout_ms", True),
    ("maru_priority", -1), ("maru_priority", 1 << 32), ("maru_priority", "high"), ("maru_priority", None),
    ("maru_priority", "9" * 5000),
    ("maru_ttl_ms", -1), ("maru_ttl_ms", 1 << 64),
])
def test_a_value_that_cannot_be_is_refused_by_name(name, value):
    with pytest.raises(maru.InvalidArgumentError, match=f"^{name} in extra_config is .* or leave it out"):
        settings(**{name: value})


@pytest.mark.parametrize("value", [0, 4097, "-1", 256.0])
def test_a_number_has_its_range(value):
    with pytest.raises(maru.InvalidArgumentError, match="a whole number from 1 to 4096"):
        settings(maru_chunk_tokens=value).number("maru_chunk_tokens", 256, 1, 4096)


@pytest.mark.parametrize("value", ["false", 0, 1, None])
def test_a_flag_is_true_or_false(value):
    with pytest.raises(maru.InvalidArgumentError, match="maru_required in extra_config is .* true or false"):
        settings(maru_required=value)
    assert settings(maru_required=True).is_pool_required
    with pytest.raises(maru.InvalidArgumentError, match="true or false"):
        settings(maru_store_generated=value).flag("maru_store_generated", True)


def test_a_name_that_is_not_known_is_refused():
    with pytest.raises(maru.InvalidArgumentError, match="extra_config has maru_chunk; what may be set is maru_chunk_tokens, "):
        settings(maru_chunk=1)


def test_prefetch_is_on_off_or_a_socket():
    assert settings().prefetch is False
    assert [settings(maru_prefetch=value).prefetch for value in (True, False, "/run/t.sock")] == [True, False, "/run/t.sock"]
    for value in ("yes", "", 1, None):
        with pytest.raises(maru.InvalidArgumentError, match="maru_prefetch in extra_config is .* path of maru-tierd's socket"):
            settings(maru_prefetch=value)
