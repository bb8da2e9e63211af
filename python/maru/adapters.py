"""LoRA adapters in the pool that also holds KV cache.

    >>> from maru.adapters import Adapters
    >>> with Adapters() as adapters:
    ...     adapters.load("sql", "/srv/adapters/sql")             # a folder as PEFT writes it
    ...     with adapters.acquire("sql", exact=True) as adapter:  # its weights stay in the pool meanwhile
    ...         a, b = adapter.a("model.layers.0.self_attn.q_proj"), adapter.b("model.layers.0.self_attn.q_proj")
    ...     adapters.rebalance()                                  # every few seconds, by one process or several

All processes of a user share a register, and each adapter lies in the pool once. docs/adapters.md has the forms and the rules.
What the library refuses raises an AdapterError, whose text says what was found and expected.
"""
from __future__ import annotations

import enum
import os
import time
from types import TracebackType
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Sequence, Type

import numpy as np
import numpy.typing as npt

from . import _adapters
from .errors import MaruError


class AdapterError(MaruError):
    """An adapter, its files, or its register were refused. `errno` says which kind of error it is, as adapters.h names them."""


class Tier(enum.IntEnum):
    COLD = 0  # the file alone
    WARM = 1  # 8-bit integers in the pool
    HOT = 2   # the weights of the file in the pool


_DTYPES = {1: "float32", 2: "float16", 3: "bfloat16", 4: "int8"}
_A, _B, _FLOAT32 = 1, 2, 1


class Info(NamedTuple):
    """What the register knows of an adapter."""

    name: str
    folder: str
    tier: Tier
    rank: int  # the largest of its modules
    modules: int
    dtype: str  # of the file
    alpha: float
    file_bytes: int
    hot_bytes: int  # of pages that the form takes, or would take
    warm_bytes: int
    checksum: bytes  # of the weights; zeros until they were read once
    window_uses: int


class Module(NamedTuple):
    """What an adapter adds to a linear module: y += scaling * B (A x)."""

    name: str
    in_features: int
    out_features: int
    rank: int
    scaling: float
    dtype: str  # of the form that is held


def _error(refused: Exception) -> AdapterError:
    code, reason = refused.args
    return AdapterError(reason or os.strerror(code), code)


def _info(fields: "dict[str, Any]") -> Info:
    values: "dict[str, Any]" = {**fields, "tier": Tier(fields["tier"]), "dtype": _DTYPES[fields["dtype"]]}
    return Info(**values)


class Adapter:
    """An adapter that is held. Release it, or use it in a `with`; its arrays are copies, and stay."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._numbers: Optional["dict[str, int]"] = None

    def release(self) -> None:
        self._held.release()

    def __enter__(self) -> "Adapter":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.release()

    @property
    def info(self) -> Info:
        return _info(_call(self._held.info))

    def __len__(self) -> int:
        return int(_call(self._held.modules))

    def __iter__(self) -> Iterator[Module]:
        return (self.module(number) for number in range(len(self)))

    def module(self, number: int) -> Module:
        name, in_features, out_features, rank, scaling, dtype = _call(self._held.module, number)
        return Module(name, in_features, out_features, rank, scaling, _DTYPES[dtype])

    def number(self, name: str) -> int:
        """Of a module, by its path in the base model."""
        if self._numbers is None:
            self._numbers = {module.name: number for number, module in enumerate(self)}
        return self._numbers[name]

    def a(self, name: str) -> npt.NDArray[np.float32]:
        """A, of shape [rank, in_features]."""
        return self.matrix(self.number(name), _A)

    def b(self, name: str) -> npt.NDArray[np.float32]:
        """B, of shape [out_features, rank]."""
        return self.matrix(self.number(name), _B)

    def matrix(self, number: int, matrix: int, raw: bool = False) -> npt.NDArray[Any]:
        """`raw`: the bits of 16-bit weights, as unsigned integers."""
        dtype = _FLOAT32
        if raw:
            dtype = {text: code for code, text in _DTYPES.items()}[self.module(number).dtype]
        array: npt.NDArray[Any] = _call(self._held.matrix, number, matrix, dtype)
        return array


class Adapters:
    """The adapters of a pool. Options are those of maru_adapters_options: register_path, root, base_model, base_fingerprint,
    entries_max, window_ms, hot_enter_uses, hot_leave_uses, stay_ms, hot_adapters_max, warm_adapters_max, hot_bytes_max,
    warm_bytes_max, part_bytes, timeout_ms, tier_socket."""

    _OPTIONS = frozenset({"register_path", "root", "base_model", "base_fingerprint", "entries_max", "window_ms",
                          "hot_enter_uses", "hot_leave_uses", "stay_ms", "hot_adapters_max", "warm_adapters_max",
                          "hot_bytes_max", "warm_bytes_max", "part_bytes", "timeout_ms", "tier_socket"})

    def __init__(self, socket_path: Optional[str] = None, pool: Optional[str] = None, **options: Any) -> None:
        unknown = sorted(set(options) - self._OPTIONS)
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}; expected one of {', '.join(sorted(self._OPTIONS))}")
        paths = ("register_path", "root", "tier_socket")
        given = {name: os.fspath(value) if name in paths else value for name, value in options.items() if value is not None}
        self._set = _call(_adapters.Set, socket_path, pool, given)

    def close(self) -> None:
        """Detaches when the last adapter is released."""
        self._set.close()

    def __enter__(self) -> "Adapters":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def load(self, name: str, folder: "str | os.PathLike[str]", lazy: bool = False) -> None:
        """Checks an adapter, and enters it into the register. `lazy`: reads the headers alone."""
        _call(self._set.load, name, os.fspath(folder), lazy)

    def unload(self, name: str) -> None:
        _call(self._set.unload, name)

    def acquire(self, name: str, exact: bool = False) -> Adapter:
        """Holds an adapter. `exact`: with the weights of the file, bit for bit."""
        return Adapter(_call(self._set.acquire, name, exact))

    def prefetch(self, names: Iterable[str], exact: bool = False) -> "dict[str, Optional[str]]":
        """Makes adapters resident. What went wrong for each name, or None."""
        wanted = list(names)
        return {name: os.strerror(-status) if status < 0 else None
                for name, status in zip(wanted, _call(self._set.prefetch, wanted, exact))}

    def rebalance(self, moves_max: int = 16) -> int:
        """How many adapters got another form."""
        return int(_call(self._set.rebalance, moves_max))

    def __getitem__(self, name: str) -> Info:
        try:
            return _info(_call(self._set.find, name))
        except AdapterError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[Info]:
        return map(_info, _call(self._set.all))

    def statistics(self) -> "dict[str, int]":
        """Totals of all processes since the register was made, and what is resident now."""
        return dict(_call(self._set.statistics))

    def metrics(self) -> str:
        """The same in Prometheus' text format, for the program's own exporter."""
        totals = self.statistics()
        lines = []
        for tier in ("hot", "warm", "cold"):
            lines.append(f'maru_adapter_acquires_total{{tier="{tier}"}} {totals["acquires_" + tier]}')
        for tier in ("hot", "warm"):
            lines.append(f'maru_adapters_resident{{tier="{tier}"}} {totals[tier + "_adapters"]}')
            lines.append(f'maru_adapter_resident_bytes{{tier="{tier}"}} {totals[tier + "_bytes"]}')
        lines.append(f'maru_adapters_registered {totals["adapters"]}')
        for name in ("loads", "loaded_bytes", "tier_loads", "promotions", "demotions", "evicted", "waits", "refusals",
                     "repairs"):
            lines.append(f"maru_adapter_{name}_total {totals[name]}")
        return "\n".join(lines) + "\n"


class Bgmv:
    """Batched products: y[i] += scaling * B (A x[i]), with an adapter for each row, or None. `instructions`: "fastest",
    "plain", "avx2", "avx512"."""

    _INSTRUCTIONS = ("fastest", "plain", "avx2", "avx512")

    def __init__(self, threads: int = 0, instructions: str = "fastest") -> None:
        self._bgmv = _call(_adapters.Bgmv, threads, self._INSTRUCTIONS.index(instructions))

    @property
    def instructions(self) -> str:
        return self._INSTRUCTIONS[self._bgmv.uses()]

    def add(self, adapters: Sequence[Optional[Adapter]], module: int, x: npt.NDArray[np.float32],
            y: npt.NDArray[np.float32]) -> None:
        """`module`: its number, of all adapters; x and y: a row for each adapter, in C order."""
        held = [adapter._held if adapter is not None else None for adapter in adapters]
        _call(self._bgmv.add, held, module, x, y)


class BatchFormer:
    """Which waiting requests run together: fair between tenants, old ones first. `policy`: "fair", or "popular" to compare."""

    def __init__(self, policy: str = "fair", requests_max: int = 256, adapters_max: int = 32, ranks_max: int = 4096,
                 old_ms: int = 1000) -> None:
        self._former = _call(_adapters.BatchFormer, ("fair", "popular").index(policy), requests_max, adapters_max, ranks_max,
                             old_ms)
        self._requests_max = requests_max or 256

    def set_weight(self, tenant: int, weight: float) -> None:
        _call(self._former.set_weight, tenant, weight)

    def add(self, id: int, tenant: int = 0, adapter: int = 0, tokens: int = 1, rank: int = 0, tier: Tier = Tier.COLD,
            now_ms: Optional[int] = None) -> None:
        """`adapter`: the caller's number, 0 for the base model."""
        _call(self._former.add, id, tenant, adapter, tokens, rank, int(tier), _now_ms(now_ms))

    def cancel(self, id: int) -> None:
        _call(self._former.cancel, id)

    def next(self, now_ms: Optional[int] = None) -> "list[int]":
        """The ids of the next batch."""
        return list(_call(self._former.next, _now_ms(now_ms), self._requests_max))

    def __len__(self) -> int:
        return int(self._former.waiting())


def _now_ms(given: Optional[int]) -> int:
    return time.monotonic_ns() // 1_000_000 if given is None else given


def _call(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except _adapters.Refused as refused:
        raise _error(refused) from None


def _main() -> None:
    import argparse
    parser = argparse.ArgumentParser(prog="python3 -m maru.adapters", description="Lists the LoRA adapters of a pool.")
    parser.add_argument("--socket", help="marud's; default: $MARU_SOCKET, or where libmaru looks")
    parser.add_argument("--pool")
    parser.add_argument("--register", help="default: the user's register of this pool")
    parser.add_argument("--metrics", action="store_true", help="prints totals for Prometheus instead")
    asked = parser.parse_args()
    with Adapters(asked.socket, asked.pool, register_path=asked.register) as adapters:
        if asked.metrics:
            print(adapters.metrics(), end="")
            return
        print(f"{'adapter':32} {'tier':4} {'rank':>4} {'uses':>6} {'file MiB':>9}  folder")
        for info in adapters:
            print(f"{info.name:32} {info.tier.name:4} {info.rank:4} {info.window_uses:6} {info.file_bytes / 2 ** 20:9.1f}  "
                  f"{info.folder}")


if __name__ == "__main__":
    _main()
