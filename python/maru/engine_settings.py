"""What is set for an engine's connector, checked when the engine starts: a wrong value would end it at its first store."""
from __future__ import annotations

from typing import Any, Mapping, NoReturn, Optional, Union

from .errors import InvalidArgumentError, shown

_SMALL, _LARGE = (1 << 32) - 1, (1 << 64) - 1
_DIGITS_MAX = 20  # of _LARGE; Python itself reads no text of thousands of digits


class Settings:
    """The settings whose names begin with maru_, among those that an engine hands its connector."""

    def __init__(self, source: str, given: Mapping[str, Any], known: set[str]) -> None:
        """source: what holds them, in the engine's own words."""
        self._source = source
        self._given = given
        unknown = {name for name in given if name.startswith("maru_")} - known
        if unknown:
            raise InvalidArgumentError(f"{source} has {', '.join(sorted(unknown))}; what may be set is "
                                       f"{', '.join(sorted(known))}.")
        self.socket = self.text("maru_socket")
        self.pool = self.text("maru_pool")
        self.tenant = self.text("maru_tenant")
        self.model = self.text("maru_model")
        self.is_pool_required = self.flag("maru_required", False)
        self.timeout_ms = self.number("maru_timeout_ms", 0, 0, _SMALL)
        self.priority = self.number("maru_priority", 0, 0, _SMALL)
        self.ttl_ms = self.number("maru_ttl_ms", 0, 0, _LARGE)
        self.prefetch = self.switch("maru_prefetch")
        self.compute_us = self.number("maru_compute_us", 0, 0, _SMALL)  # of a token

    def text(self, name: str) -> Optional[str]:
        """None when it is not set, or empty."""
        value = self._given.get(name)
        if value is not None and not isinstance(value, str):
            self._refuse(name, value, "a text")
        return value or None

    def flag(self, name: str, default: bool) -> bool:
        value = self._given.get(name, default)
        if not isinstance(value, bool):
            self._refuse(name, value, "true or false")
        return value

    def switch(self, name: str) -> Union[bool, str]:
        """True, False, or the path of a socket, which says yes."""
        value = self._given.get(name, False)
        if isinstance(value, bool) or isinstance(value, str) and value.startswith("/"):
            return value
        self._refuse(name, value, "true, false, or the path of maru-tierd's socket, which begins with /")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        value = self._given.get(name, default)
        wanted = f"a whole number from {least} to {most}"
        if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) <= _DIGITS_MAX:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._refuse(name, value, wanted)
        return value

    def _refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        raise InvalidArgumentError(f"{name} in {self._source} is {shown(value)}: set it to {wanted}, or leave it out.")
