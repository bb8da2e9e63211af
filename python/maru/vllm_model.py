"""What vLLM's configuration says of a model and its KV cache: which of it cannot be shared in chunks, and is refused when an
engine starts, and which of it the keys of chunks carry. All of it runs once, when a connector is made."""
from __future__ import annotations

import dataclasses
import platform
from typing import Any, Iterable, Mapping, Optional

import torch
from vllm import envs
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

from . import chunk_keys
from .chunk_keys import Value
from .errors import InvalidArgumentError
from .weights import digest_of, folder_of

# Of a model's config.json: what names a copy of it or those who read it.
_NAMES = {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "_attn_implementation",
          "_attn_implementation_internal", "_attn_implementation_autoset", "_experts_implementation_internal"}
# What is in the keys anyway, where it is said of a model or of a part of one: elsewhere it may be of a quantization.
_DTYPES = {"torch_dtype", "dtype"}
# Settings of multi-modal inputs that vLLM's hash of an input does not cover.
_INPUTS = ("mm_processor_kwargs", "media_io_kwargs", "mm_device_do_normalize", "mm_encoder_attn_dtype",
           "mm_encoder_fp8_scale_path", "video_pruning_rate", "video_pruning_method")
# How weights are loaded that lie elsewhere than in the model's folder.
_LOADED_FROM_ELSEWHERE = ("tensorizer", "ipc_cache", "modelexpress")
# Kinds of positions that follow from the longest prompt that an engine takes.
_POSITIONS_BY_LENGTH = {"longrope", "dynamic"}


def attention_of(kv_cache_config: Any) -> list[Any]:
    """What vLLM keeps of each layer, all in one group of blocks. Raises InvalidArgumentError where blocks are not all kept, or
    do not follow from the tokens up to their end: they would be stored and found as what they are not."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise InvalidArgumentError(f"This model has {len(groups)} groups of KV cache (attention of several kinds, or none); "
                                   "one can be shared. Start vLLM with --disable-hybrid-kv-cache-manager, or without "
                                   "--kv-transfer-config.")
    whole = groups[0].kv_cache_spec
    specs: list[Any] = list(whole.kv_cache_specs.values()) if type(whole) is UniformTypeKVCacheSpecs else [whole]
    for spec in specs:
        # Not what derives from these: vLLM frees blocks of some kinds, and keeps other things than keys and values in others.
        if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
            _refuse(f"This model keeps a {type(spec).__name__}", "only attention to all tokens before can be shared in chunks")
        if getattr(spec, "non_causal", False):
            _refuse("Tokens of this model attend to tokens after them",
                    "its KV cache does not follow from what a key stands for")
        if getattr(spec, "tokens_per_state", 1) != 1:
            _refuse(f"This model keeps {spec.tokens_per_state} tokens in one state", "that cannot be shared in chunks")
    return specs


def refuse_what_cannot_be_shared(vllm_config: Any) -> None:
    """Raises InvalidArgumentError where equal keys could stand for different bytes."""
    parallel, cache, model = vllm_config.parallel_config, vllm_config.cache_config, vllm_config.model_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise InvalidArgumentError(f"{name} is {getattr(parallel, name)}: blocks that are spread over ranks by token "
                                       "cannot be shared; use 1.")
    if getattr(cache, "calculate_kv_scales", False):
        raise InvalidArgumentError("calculate_kv_scales is set: every engine would scale its KV cache by the first prompt that "
                                   "it happens to get. Start vLLM without --calculate-kv-scales, with scales from the "
                                   "model's checkpoint.")
    if (parallel.pipeline_parallel_size > 1 and getattr(vllm_config, "speculative_config", None) is not None
            and not schedules_ahead(vllm_config)):
        raise InvalidArgumentError("Without asynchronous scheduling vLLM computes drafts in a pipeline before it knows the "
                                   "token that they follow (its issue 52071): what is answered and stored would be wrong. "
                                   "Start vLLM without --no-async-scheduling, with its second model runner, or without "
                                   "speculative decoding.")
    if getattr(model, "is_diffusion", False):
        _refuse("This model generates by diffusion", "what it keeps of a token changes until its whole block is there")
    inputs = getattr(model, "multimodal_config", None)
    if inputs is not None and getattr(inputs, "mm_processor_cache_gb", 1) == 0 and not cache.enable_prefix_caching:
        raise InvalidArgumentError("With --mm-processor-cache-gb 0 and without prefix caching vLLM numbers images and other "
                                   "inputs instead of hashing them, and another engine counts as well. Set one of "
                                   "--enable-prefix-caching and --mm-processor-cache-gb to what is not 0.")


def schedules_ahead(vllm_config: Any) -> bool:
    """Whether a request is scheduled before what its step before has sampled is known: vLLM's asynchronous scheduling."""
    return bool(getattr(getattr(vllm_config, "scheduler_config", None), "async_scheduling", False))


def drafts_ahead(vllm_config: Any) -> bool:
    """Whether steps with drafts are scheduled before it is known which drafts of the step before were right."""
    return getattr(vllm_config, "speculative_config", None) is not None and schedules_ahead(vllm_config)


def _refuse(found: str, why: str) -> None:
    raise InvalidArgumentError(f"{found}: {why}. Start vLLM without --kv-transfer-config for it.")


def identify(vllm_config: Any, name: Optional[str], block_tokens: int, chunk_tokens: int) -> dict[str, Value]:
    """All ranks and requests of an engine share this, and two engines must have it in common. name: a name for the weights
    that the engine's owner gives; without a name the engine's files are read. Raises InvalidArgumentError where these cannot
    be read."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    config = _config_of(model)
    load = getattr(vllm_config, "load_config", None)
    return {
        "version": 3, "model": name or _weights_of(vllm_config, model),
        # Made-up weights are not the model's.
        "load": "dummy" if _load_format(vllm_config) == "dummy" else None,
        "loader": _plain(getattr(load, "model_loader_extra_config", None) or None),
        "dtype": str(model.dtype), "cache_dtype": str(cache.cache_dtype),
        "code_revision": _text(getattr(model, "code_revision", None)),
        "quantization": _text(getattr(model, "quantization", None)),
        "quantization_config": _plain(getattr(model, "quantization_config", None)),
        "implementation": _text(getattr(model, "model_impl", None)),
        "classes": _plain(getattr(model, "model_class_overrides", None) or None),
        # With what --hf-overrides and others changed in it.
        "config": _hex(config),
        "length": getattr(model, "max_model_len", None) if _names(config) & _POSITIONS_BY_LENGTH else None,
        "inputs": _hex(_inputs_of(model)), "draft": _draft(vllm_config, is_named=name is not None),
        "block_tokens": block_tokens, "chunk_tokens": chunk_tokens,
    }


def _load_format(vllm_config: Any) -> str:
    return str(getattr(getattr(vllm_config, "load_config", None), "load_format", ""))


def _weights_of(vllm_config: Any, model: Any) -> str:
    load, load_format = getattr(vllm_config, "load_config", None), _load_format(vllm_config)
    if load_format == "dummy":
        return str(model.model)  # no file holds them
    try:
        if load_format in _LOADED_FROM_ELSEWHERE:
            raise InvalidArgumentError(f"With --load-format {load_format} the weights of {model.model} do not come from its "
                                       "folder, so nothing tells them from others.")
        # vLLM copies the configuration of a model in an object store into a folder, and keeps the store's address here.
        name = getattr(model, "model_weights", None) or str(model.model)
        return digest_of(folder_of(name, getattr(model, "revision", None), getattr(load, "download_dir", None),
                                   getattr(getattr(model, "hf_config", None), "_commit_hash", None)))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error} Or set maru_model in kv_connector_extra_config to a name that stands for these "
                                   "weights alone.") from None


def attention_backends(vllm_config: Any, layers: Mapping[str, Any]) -> Value:
    """What reads and writes the KV cache of the layers: two back-ends may put other things into blocks of the same shape.
    layers: their tensors by name."""
    known = getattr(getattr(vllm_config, "compilation_config", None), "static_forward_context", None) or {}
    names = [known[layer].get_attn_backend().get_name() for layer in layers if layer in known]
    # Under ROCm one back-end has two orders within a block.
    backends: list[Value] = [names[:1] if len(set(names)) == 1 else names,
                             bool(getattr(envs, "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", False))]
    if any(getattr(tensor, "is_cpu", False) for tensor in layers.values()):
        backends.append(_processor())
    return backends


def _processor() -> Value:
    """On a processor one back-end has several orders within a block, each for the instructions that the processor has. Hosts of
    several kinds may share a pool."""
    features = (getattr(torch.cpu, name, None) for name in ("_is_avx512_supported", "_is_amx_tile_supported"))
    return [platform.machine(), *(feature is not None and bool(feature()) for feature in features)]


def _config_of(model: Any) -> Value:
    config = getattr(model, "hf_config", None)
    return _plain(config.to_dict()) if config is not None else None


def _inputs_of(model: Any) -> Value:
    inputs = getattr(model, "multimodal_config", None)
    if inputs is None:
        return None
    scales = getattr(inputs, "mm_encoder_fp8_scale_path", None)
    return _plain({**{name: getattr(inputs, name, None) for name in _INPUTS},
                   "mm_encoder_fp8_scale_path": digest_of(str(scales)) if scales else None})


# What looks for its drafts in the tokens. To some of these vLLM gives the model's own configuration as that of a draft model.
_DRAFTS_WITHOUT_LAYERS = frozenset(("ngram", "ngram_gpu", "suffix"))


def _draft(vllm_config: Any, is_named: bool) -> Value:
    """The model that drafts: vLLM keeps its layers beside those of the model."""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or getattr(speculative, "method", None) in _DRAFTS_WITHOUT_LAYERS:
        return None
    try:
        weights = _weights_of(vllm_config, draft)
    except InvalidArgumentError:
        if not is_named:
            raise
        weights = str(draft.model)  # maru_model stands for the draft, too
    return [_text(getattr(speculative, "method", None)), weights, _hex(_config_of(draft))]


def _plain(value: Any) -> Value:
    """As JSON, without names that say nothing of what is computed."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        left_out = _NAMES | _DTYPES if "model_type" in value else _NAMES
        return {str(name): _plain(one) for name, one in value.items() if name not in left_out}
    if isinstance(value, (set, frozenset)):
        return sorted(str(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)


def _names(value: Value) -> set[str]:
    """All texts in it."""
    if isinstance(value, str):
        return {value}
    inside: Iterable[Value] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    return set().union(*(_names(one) for one in inside))


def _hex(value: Value) -> Optional[str]:
    return None if value is None else chunk_keys.digest({"": value}).hex()


def _text(value: Any) -> Optional[str]:
    return None if value is None else str(value)
