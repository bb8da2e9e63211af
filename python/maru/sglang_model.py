"""What SGLang's own configuration says of the model whose pages it keeps, in the keys of which it belongs. SGLang hands a
storage back-end only the name under which the model is served; the rest is read from what SGLang has published in this
process."""
from __future__ import annotations

from typing import Any, Optional

from . import chunk_keys
from .errors import InvalidArgumentError

_MODEL = ("model_path", "revision", "weight_version", "quantization", "quantization_param_path", "modelopt_quant",
          "rl_quant_profile", "json_model_override_args", "model_impl", "dtype")
# The model that drafts: SGLang keeps its layers in the same pages, behind those of the model.
_DRAFT = ("speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision",
          "speculative_draft_load_format", "speculative_draft_model_quantization", "speculative_draft_kv_cache_dtype",
          "uno_lora_path")


def refuse_names_of_tokens_alone() -> None:
    """Raises InvalidArgumentError where SGLang names pages by their tokens and nothing else: requests with a LoRA or a salt
    would be given the pages of those without."""
    from sglang.srt.mem_cache import utils
    if not hasattr(utils, "get_storage_hash_str"):
        raise InvalidArgumentError("This SGLang names pages by their tokens alone, so a request with a LoRA would find the "
                                   "pages of requests without. Use SGLang 0.5.23 or newer.")


def identify(name: Optional[str]) -> chunk_keys.Value:
    """What two engines must have in common besides what lies in their host memory. name: the model's, instead of SGLang's
    --model-path. Raises InvalidArgumentError where neither is known."""
    configured = {setting: _configured(setting) for setting in _MODEL}
    if name is None and configured["model_path"] is None:
        raise InvalidArgumentError("SGLang does not say here which model it runs (--model-path), only under which name: set "
                                   "maru_model in hicache-storage-backend-extra-config to what says which weights these are.")
    drafts = _configured("speculative_algorithm") is not None
    return {**configured, "model_path": name or configured["model_path"],
            # Weights that are made up are not those of the model.
            "load_format": "dummy" if _configured("load_format") == "dummy" else None,
            "draft": {setting: _configured(setting) for setting in _DRAFT} if drafts else None}


def dtype_of(pool: Any, given: Optional[str]) -> str:
    """What the numbers in a host pool are. SGLang keeps those of 8 bits and fewer as plain bytes, in which several kinds look
    the same, so there it is what it was told (--kv-cache-dtype), or `given`. Raises InvalidArgumentError where that is not
    known."""
    stored = str(pool.dtype)
    if pool.dtype.itemsize > 1:
        return stored
    told = given or _configured("kv_cache_dtype")
    if told is None:
        raise InvalidArgumentError(f"SGLang's host memory is {stored}, which may stand for several kinds of numbers, and "
                                   "SGLang does not say here for which (--kv-cache-dtype): set maru_kv_dtype in "
                                   'hicache-storage-backend-extra-config, for instance to "fp8_e4m3".')
    return f"{told} as {stored}"


def refuse_an_unknown_draft(pool: Any) -> None:
    """Raises InvalidArgumentError where pages hold layers of a model that drafts, and SGLang does not say of which."""
    of_model = getattr(pool, "target_layer_num", None)
    if of_model is not None and pool.layer_num > of_model and _configured("speculative_algorithm") is None:
        raise InvalidArgumentError("SGLang's host memory holds layers of a model that drafts, and SGLang does not say here of "
                                   "which: start it without --speculative-algorithm, or without this back-end.")


def _configured(setting: str) -> Optional[str]:
    """As SGLang has it after resolving its arguments; None where it is not set, or this SGLang does not say."""
    try:
        from sglang.srt.runtime_context import get_context
        value = get_context().config_leaf(setting)
    except (ImportError, AttributeError, LookupError, ValueError):
        return None
    return None if value is None else str(value)
