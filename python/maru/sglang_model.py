"""What SGLang's own configuration says of the model whose pages it keeps, in the keys of which it belongs. SGLang hands a
storage back-end only the name under which the model is served; the rest is read from what SGLang has published in this
process."""
from __future__ import annotations

from typing import Any, Optional

from . import chunk_keys
from .errors import InvalidArgumentError
from .weights import digest_of, folder_of

_MODEL = ("weight_version", "quantization", "modelopt_quant", "rl_quant_profile", "json_model_override_args", "model_impl",
          "dtype", "model_loader_extra_config")
# The model that drafts: SGLang keeps its layers in the same pages, behind those of the model.
_DRAFT = ("speculative_algorithm", "speculative_draft_load_format", "speculative_draft_model_quantization",
          "speculative_draft_kv_cache_dtype")
# How weights are loaded that lie elsewhere than in the model's folder.
_LOADED_FROM_ELSEWHERE = ("expert_pack", "ipc_cache", "presharded", "private", "rdma", "remote", "remote_instance")


def refuse_names_of_tokens_alone() -> None:
    """Raises InvalidArgumentError where SGLang names pages by their tokens and nothing else: requests with a LoRA or a salt
    would be given the pages of those without."""
    from sglang.srt.mem_cache import utils
    if not hasattr(utils, "get_storage_hash_str"):
        raise InvalidArgumentError("This SGLang names pages by their tokens alone, so a request with a LoRA would find the "
                                   "pages of requests without. Use SGLang 0.5.23 or newer.")


def identify(name: Optional[str]) -> chunk_keys.Value:
    """Two engines must have this in common, and the layout of their host memory. name: a name for the weights that the
    engine's owner gives; without a name the engine's files are read. Raises InvalidArgumentError where these cannot be read."""
    path = _configured("model_path")
    if name is None and path is None:
        raise InvalidArgumentError("SGLang does not say here which model it runs (--model-path), only under which name: set "
                                   "maru_model in hicache-storage-backend-extra-config to what says which weights these are.")
    # Made-up weights are not the model's, and no file holds them.
    is_dummy = _is_dummy()
    scales = _configured("quantization_param_path")
    weights = name or _weights_of(str(path), _configured("revision"))
    return {**{setting: _configured(setting) for setting in _MODEL}, "model": weights,
            "scales": digest_of(scales) if scales else None, "load_format": "dummy" if is_dummy else None,
            "loras": _loras(), "draft": _draft(is_named=name is not None)}


def _is_dummy() -> bool:
    return _configured("load_format") == "dummy"


def _weights_of(path: str, revision: Optional[str]) -> str:
    if _is_dummy():
        return path
    try:
        load_format = _configured("load_format")
        if load_format in _LOADED_FROM_ELSEWHERE:
            raise InvalidArgumentError(f"With --load-format {load_format} the weights of {path} do not come from its folder, "
                                       "so nothing tells them from others.")
        return digest_of(folder_of(path, revision, _configured("download_dir"), None))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error} Or set maru_model in hicache-storage-backend-extra-config to a name that stands "
                                   "for these weights alone.") from None


def _loras() -> chunk_keys.Value:
    """Digests of the adapters that an engine is started with. SGLang's name of a page carries the id of an adapter, which
    follows from its name and path, and the name does not tell this id. So all adapters count for all pages. An adapter that
    is loaded later has a random id, which no other engine has."""
    try:
        return {str(lora.lora_id): digest_of(folder_of(str(lora.lora_path), None, None, None))
                for lora in _published("lora_paths") or ()} or None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--lora-paths: {error}") from None


def _draft(is_named: bool) -> chunk_keys.Value:
    if _configured("speculative_algorithm") is None:
        return None
    path, adapter = _configured("speculative_draft_model_path"), _configured("uno_lora_path")
    try:
        weights = path and _weights_of(path, _configured("speculative_draft_model_revision"))
    except InvalidArgumentError:
        if not is_named:
            raise
        weights = path  # maru_model stands for the draft, too
    return {**{setting: _configured(setting) for setting in _DRAFT}, "model": weights,
            "adapter": adapter and _weights_of(adapter, None)}


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
    value = _published(setting)
    return None if value is None else str(value)


def _published(setting: str) -> Any:
    try:
        from sglang.srt.runtime_context import get_context
        return get_context().config_leaf(setting)
    except (ImportError, AttributeError, LookupError, ValueError):
        return None
