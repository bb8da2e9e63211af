"""vLLM takes LoRA adapters from the pool: a resolver, and the weights.

pip registers this module among vLLM's general plug-ins, so that each process of an engine loads it. It does nothing unless
MARU_ADAPTERS is "1". Then

* the resolver finds a name in the register, or in the folder MARU_ADAPTERS_ROOT, and gives vLLM the adapter's folder;
* a worker that loads an adapter from a folder takes the weights from the pool, which reads the file once for all processes.
  Where the pool cannot have it, the worker reads the file as ever, and says why.

MARU_SOCKET, MARU_ADAPTERS_POOL, MARU_ADAPTERS_REGISTER and MARU_ADAPTERS_BASE name what maru.adapters.Adapters is opened
with. vLLM asks resolvers when VLLM_ALLOW_RUNTIME_LORA_UPDATING is set.
"""
from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import threading
from typing import Any, Optional

from .adapters import AdapterError, Adapters, Info
from .errors import MaruError

_logger = logging.getLogger(__name__)
_A, _B = 1, 2
_OWN_NAME = "folder:"  # begins the names that name_of() makes


class PoolAdapters:
    """The adapters of this process, opened when the first is asked for. A child of a fork opens anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: Optional[Adapters] = None
        self._pid = 0

    def get(self) -> Adapters:
        with self._lock:
            if self._opened is None or self._pid != os.getpid():
                ask = os.environ.get
                self._opened = Adapters(ask("MARU_SOCKET"), ask("MARU_ADAPTERS_POOL"),
                                        register_path=ask("MARU_ADAPTERS_REGISTER"), base_model=ask("MARU_ADAPTERS_BASE"))
                self._pid = os.getpid()
            return self._opened

    def find(self, name: str) -> Optional[Info]:
        """An adapter of the register, or of the root's folder of this name, which is loaded then."""
        try:
            return self.get()[name]
        except KeyError:
            root = os.environ.get("MARU_ADAPTERS_ROOT")
            if not root or name in ("", ".", "..") or "/" in name:
                return None
            folder = os.path.join(root, name)
            if not os.path.isdir(folder):
                return None
            self.get().load(name, os.path.realpath(folder), lazy=True)
            return self.get()[name]

    def name_of(self, folder: str) -> str:
        """The name under which the files that a folder has now are loaded; they are loaded where they have none."""
        folder = os.path.realpath(folder)
        for info in self.get():
            if info.folder != folder:
                continue
            with contextlib.suppress(AdapterError):
                self.get().load(info.name, folder, lazy=True)  # refused where the files have changed since
                return info.name
            if info.name.startswith(_OWN_NAME):
                with contextlib.suppress(AdapterError):
                    self.get().unload(info.name)
        weights = os.stat(os.path.join(folder, "adapter_model.safetensors"))
        version = repr((folder, weights.st_ino, weights.st_size, weights.st_mtime_ns))
        name = _OWN_NAME + hashlib.sha256(version.encode()).hexdigest()[:32]
        self.get().load(name, folder, lazy=True)
        return name

    def tensors(self, folder: str) -> "dict[str, Any]":
        """The tensors of an adapter, bit for bit those of its file."""
        import torch
        types = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
        found: "dict[str, Any]" = {}
        with self.get().acquire(self.name_of(folder), exact=True) as adapter:
            for number, module in enumerate(adapter):
                for matrix, letter in ((_A, "A"), (_B, "B")):
                    bits = torch.from_numpy(adapter.matrix(number, matrix, raw=True))
                    found[f"base_model.model.{module.name}.lora_{letter}.weight"] = bits.view(types[module.dtype])
        return found


pool_adapters = PoolAdapters()


def number_of(name: str) -> int:
    """vLLM wants a number for each name, the same in all processes."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % (2 ** 31 - 2)


def _own_checkpoint(original: Any) -> Any:
    """vLLM's LoRAModel.from_local_checkpoint, with the tensors of the pool."""

    def from_local_checkpoint(cls: Any, lora_dir: str, expected_lora_modules: Any, peft_helper: Any, **options: Any) -> Any:
        from vllm.lora.utils import get_lora_id, parse_fine_tuned_lora_name
        try:
            tensors = pool_adapters.tensors(lora_dir)
        except (MaruError, OSError) as error:
            _logger.warning("maru: vLLM reads the LoRA adapter in %s itself: %s", lora_dir, error)
            return original(cls, lora_dir, expected_lora_modules, peft_helper, **options)
        modules = {parse_fine_tuned_lora_name(name, options.get("weights_mapper"))[0].rsplit(".", 1)[-1] for name in tensors}
        if not modules <= set(expected_lora_modules):
            return original(cls, lora_dir, expected_lora_modules, peft_helper, **options)  # which says what is wrong
        if options.get("lora_model_id") is None:
            options["lora_model_id"] = get_lora_id()
        taken = inspect.signature(cls.from_lora_tensors).parameters
        return cls.from_lora_tensors(tensors=tensors, peft_helper=peft_helper,
                                     **{name: value for name, value in options.items() if name in taken})

    return classmethod(from_local_checkpoint)


def register() -> None:
    """vLLM calls this in each of its processes; more than once changes nothing."""
    if os.environ.get("MARU_ADAPTERS") != "1":
        return
    try:
        from vllm.lora.lora_model import LoRAModel
    except ImportError:  # as older versions have it
        from vllm.lora.models import LoRAModel
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    class PoolResolver(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Optional[LoRARequest]:
            try:
                info = pool_adapters.find(lora_name)
            except AdapterError as error:
                _logger.warning("maru: the LoRA adapter %s is refused: %s", lora_name, error)
                return None
            if info is None:
                return None
            return LoRARequest(lora_name=lora_name, lora_int_id=number_of(lora_name), lora_path=info.folder)

    LoRAResolverRegistry.register_resolver("maru", PoolResolver())
    if not hasattr(LoRAModel, "maru_original_checkpoint"):
        original = LoRAModel.from_local_checkpoint.__func__
        LoRAModel.maru_original_checkpoint = original
        LoRAModel.from_local_checkpoint = _own_checkpoint(original)
