"""Keys moved to another position: the rotary embedding of a model, and turning stored keys by the difference of two positions.

    >>> from maru.rope import Rope, rerotate
    >>> rope = Rope(head_dim=128, base=500_000, scaling="llama3", factor=8, low_freq_factor=1, high_freq_factor=4,
    ...             original_positions=8192)
    >>> rerotate(keys, old=1024, new=7, rope=rope)            # in place; keys[layer, token, head, element]

Values carry no position and stay as they are. maru/rope.h states how near the result is to a rotation in exact arithmetic.
"""
from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence, TypeVar

from . import _rope
from .errors import InvalidArgumentError, shown

PAIRINGS = {"neox": 1, "gptj": 2}
SCALINGS = {"plain": 0, "linear": 1, "dynamic": 2, "ntk_alpha": 3, "yarn": 4, "llama3": 5, "longrope": 6}
DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3}

_POSITION_MAX = 1 << 40

T = TypeVar("T")


def _refuse(sentence: str) -> NoReturn:
    raise InvalidArgumentError(sentence)


def _asked(call: Callable[[], T]) -> T:
    """What the native module refuses, as an exception of the package."""
    try:
        return call()
    except _rope.Refused as refused:
        code, reason = refused.args
        raise InvalidArgumentError(f"{reason}.", code) from None
    except (TypeError, OverflowError) as error:
        raise InvalidArgumentError(f"A field has no value that it can have: {error}.") from None


def _one_of(value: str, names: Mapping[str, int], what: str) -> int:
    if value not in names:
        _refuse(f"{what} is {shown(value)}, expected one of {', '.join(names)}.")
    return names[value]


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rotary embedding of a model. maru/rope.h has the formula of each scaling.

    rotary_dim  elements of a head that are turned, the first ones; 0: all
    pairing     "neox": element i with element i + rotary_dim / 2. "gptj": element 2 i with element 2 i + 1
    scaling     "plain", "linear", "dynamic" (NTK), "ntk_alpha", "yarn", "llama3" or "longrope"
    factors     of longrope, one for each pair: the short or the long ones, whichever the engine used
    """
    head_dim: int
    base: float = 10_000.0
    rotary_dim: int = 0
    pairing: str = "neox"
    scaling: str = "plain"
    factor: float = 1.0
    original_positions: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation_factor: float = 1.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    factors: Sequence[float] = ()
    yarn_exact_range: bool = False

    def __post_init__(self) -> None:
        pairing = _one_of(self.pairing, PAIRINGS, "pairing")
        scaling = _one_of(self.scaling, SCALINGS, "scaling")
        object.__setattr__(self, "factors", tuple(self.factors))
        native = _asked(lambda: _rope.Rope(
            self.head_dim, self.rotary_dim, pairing, scaling, int(self.yarn_exact_range), self.base, self.factor,
            self.original_positions, self.beta_fast, self.beta_slow, self.extrapolation_factor, self.low_freq_factor,
            self.high_freq_factor, list(self.factors)))
        _asked(native.frequencies)
        object.__setattr__(self, "_native", native)

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, pairing: str = "neox", is_long: bool = False) -> "Rope":
        """Of the config.json of a model, as Hugging Face's transformers write it.

        pairing  of the model's code, which the file does not say
        is_long  of longrope: whether the engine uses the long factors, as vLLM does for a model that may go beyond the original
                 length
        """
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        fields: dict[str, Any] = {
            "head_dim": head_dim, "base": float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            "rotary_dim": int(head_dim * (scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor", 1.0))),
            "pairing": pairing}
        original = scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        if kind in ("linear", "dynamic"):
            fields.update(scaling=kind, factor=scaling["factor"])
            if kind == "dynamic" and "alpha" in scaling:
                fields.update(scaling="ntk_alpha", factor=scaling["alpha"])
        elif kind == "yarn":
            fields.update(scaling="yarn", factor=scaling["factor"],
                          original_positions=original or config["max_position_embeddings"],
                          beta_fast=scaling.get("beta_fast") or 32, beta_slow=scaling.get("beta_slow") or 1,
                          extrapolation_factor=scaling.get("extrapolation_factor") or 1,
                          yarn_exact_range=not scaling.get("truncate", True))
        elif kind == "llama3":
            fields.update(scaling="llama3", factor=scaling["factor"], original_positions=original,
                          low_freq_factor=scaling["low_freq_factor"], high_freq_factor=scaling["high_freq_factor"])
        elif kind in ("longrope", "su"):
            fields.update(scaling="longrope", factors=scaling["long_factor" if is_long else "short_factor"])
        elif kind != "default":
            _refuse(f"rope_type is {shown(kind)}, expected default, linear, dynamic, yarn, llama3 or longrope.")
        return cls(**fields)

    def frequencies(self) -> list[float]:
        """Of each pair, in radians a position."""
        return _asked(self._native.frequencies)  # type: ignore[attr-defined]


def _plain_array(keys: Any, dtype: Optional[str]) -> tuple[Any, str]:
    """An object with a buffer of four axes, and the name of its type. Tensors of torch show their memory."""
    if hasattr(keys, "data_ptr"):
        name = str(keys.dtype).removeprefix("torch.")
        if name == "bfloat16":  # NumPy has no such type
            import torch
            keys = keys.view(torch.int16)
        keys = keys.detach().numpy()
    else:
        name = getattr(getattr(keys, "dtype", None), "name", "")
    name = dtype or name
    if name not in DTYPES:
        _refuse(f"The type of the keys is {shown(name)}, expected one of {', '.join(DTYPES)}: say it with dtype, for instance"
                " of an array of uint16 that holds bfloat16.")
    if not hasattr(keys, "ndim") or keys.ndim not in (3, 4):
        _refuse("Keys have the axes layer, token, head, element, or all but the first.")
    return keys, name


def _with_layers(keys: Any) -> Any:
    """Four axes, of three where there is one layer."""
    if keys.ndim == 4:
        return keys
    if isinstance(keys, memoryview):
        _refuse("A memoryview of keys needs four axes: layer, token, head, element.")
    with_layers: Any = keys[None]
    return with_layers


def _position(value: Any, name: str) -> int:
    try:
        position = operator.index(value)
    except TypeError:
        _refuse(f"{name} is {shown(value)}, expected a whole number.")
    if not 0 <= position <= _POSITION_MAX:
        _refuse(f"{name} is {position}, expected 0 to 2^40.")
    return position


def rerotate(keys: Any, old: int, new: int, rope: Rope, out: Any = None, dtype: Optional[str] = None) -> Any:
    """Turns the keys of neighbouring tokens from position `old` of the first one to `new`, without the GIL.

    keys   a NumPy array or a tensor of torch on the CPU, with the axes layer, token, head, element, or without the first. Any
           strides will do, as long as the elements of a head lie one behind the other: transpose an array of another order
    out    an array of the same shape, apart from `keys`. None: in place
    dtype  "float16", "bfloat16" or "float32", where the array does not say it
    Returns `out`, or `keys`.
    """
    old, new = _position(old, "old"), _position(new, "new")
    source, name = _plain_array(keys, dtype)
    source = _with_layers(source)
    target = source
    if out is not None:
        target, target_name = _plain_array(out, dtype)
        if target_name != name:
            _refuse(f"out has the type {target_name}, expected that of the keys, {name}.")
        target = _with_layers(target)
    native: _rope.Rope = rope._native  # type: ignore[attr-defined]
    try:
        _asked(lambda: native.rerotate(source, target, DTYPES[name], old, new))
    except (BufferError, ValueError) as error:
        _refuse(f"The keys, or out, show no memory that may be written: {error}.")
    return keys if out is None else out
