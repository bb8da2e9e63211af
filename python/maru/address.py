"""Which marud an address means. marud is reached through a Unix socket of this host only, so of a URL with a host nothing is
used but its query; that is said once, as a warning."""
from __future__ import annotations

import logging
from typing import NamedTuple, Optional
from urllib.parse import parse_qs, unquote, urlsplit

from .errors import InvalidArgumentError

logger = logging.getLogger("maru")

_SCHEMES = ("tcp", "maru", "unix")
_said: dict[str, object] = {}


class Address(NamedTuple):
    """The socket (None: where maru.Client looks by itself), the pool and the tenant (None: the default, none)."""

    socket_path: Optional[str]
    pool: Optional[str]
    tenant: Optional[str]


def say_once(level: int, subject: str, sentence: str) -> None:
    """Logs a sentence the first time that this process comes to the subject."""
    mine = object()
    # One step. A lock could be held by another thread at a fork, and then by nobody in the child.
    if _said.setdefault(subject, mine) is mine:
        logger.log(level, "%s", sentence)


def _one(query: dict[str, list[str]], name: str, url: str) -> Optional[str]:
    values = query.pop(name, [])
    if len(values) > 1:
        raise InvalidArgumentError(f"server_url {url!r} names {name} {len(values)} times: name it once.")
    return values[0] if values else None


def _pool_and_tenant(text: str, url: str) -> tuple[Optional[str], Optional[str]]:
    """Of the query of a URL."""
    try:
        query = parse_qs(text, keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise InvalidArgumentError(f"server_url {url!r} is no URL: {error}.") from None
    pool, tenant = _one(query, "pool", url), _one(query, "tenant", url)
    if query or (text and pool is None and tenant is None):
        raise InvalidArgumentError(f"server_url {url!r} has the unknown parameters {', '.join(sorted(query)) or text!r}: pool "
                                   "and tenant are known.")
    for name in (pool, tenant):
        _expect_characters(name, url)
    return pool, tenant


def _expect_characters(text: Optional[str], url: str) -> None:
    if text is not None and any(character < " " or character == "\x7f" or "\ud800" <= character <= "\udfff"
                                for character in text):
        raise InvalidArgumentError(f"server_url {url!r} has a control character, or half of a surrogate pair: paths and names "
                                   "have neither.")


def parse(url: str) -> Address:
    """A path of a socket, or SCHEME://[HOST[:PORT]][/PATH/OF/SOCKET], SCHEME tcp, maru or unix; then [?pool=NAME&tenant=NAME].
    %XX is a byte of UTF-8 in all but the path of a socket alone."""
    if not isinstance(url, str) or not url:
        raise InvalidArgumentError(f"server_url is a path of a Unix socket or a URL, not {url!r}.")
    _expect_characters(url, url)
    scheme, separator, _ = url.partition("://")
    if not separator:
        path, _, query = url.partition("?")
        return Address(path or None, *_pool_and_tenant(query, url))
    if scheme not in _SCHEMES:
        raise InvalidArgumentError(f"server_url {url!r} has the scheme {scheme!r}: use a path of a Unix socket, or one of "
                                   f"{', '.join(name + '://' for name in _SCHEMES)}.")
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
    except ValueError as error:  # UnicodeDecodeError is one
        raise InvalidArgumentError(f"server_url {url!r} is no URL: {error}.") from None
    if "#" in url:
        raise InvalidArgumentError(f"server_url {url!r} has a fragment, which means nothing here: write %23 for a #.")
    pool, tenant = _pool_and_tenant(parts.query, url)
    _expect_characters(path, url)
    if parts.netloc:
        say_once(logging.WARNING, "server_url",
                 f"server_url {url!r}: the host and port {parts.netloc!r} are not used. marud is asked on "
                 f"{path or 'its Unix socket on this host ($MARU_SOCKET, or where maru.Client looks)'}; write the path of the "
                 "socket to say so.")
    return Address(None if path in ("", "/") else path, pool, tenant)
