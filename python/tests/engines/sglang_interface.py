"""SGLang's own storage interface and factory, configuration and names of pages, imported from the installed package without
its __init__ and its kernels, which want packages that have nothing to do with storage. Its host memory pool needs those, too;
HostPool stands in for it: the same names, layouts and order of the parts of a page."""
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

import pytest
import torch
from model_folders import folder

found = importlib.util.find_spec("sglang")
if found is None:
    pytest.skip("SGLang is not here: scripts/test-engines installs it", allow_module_level=True)
root = pathlib.Path(found.submodule_search_locations[0])
for _name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
    _module = types.ModuleType(_name)
    _module.__path__ = [str(root.joinpath(*_name.split(".")[1:]))]
    sys.modules.setdefault(_name, _module)



class Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules in the place of SGLang's kernels and of Triton, with which they are written. Nothing calls them."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton" or f"{name}.".startswith("sglang.kernels."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        module.__getattr__ = Kernel.attribute


class Kernel:
    """Whatever one does with a kernel before it runs."""

    @staticmethod
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel()

    def __getattr__(self, name):
        return self.attribute(name)

    def __call__(self, *arguments, **named):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getitem__(self, index):
        return self


@contextlib.contextmanager
def without_kernels():
    """While SGLang is imported; the others in this process look whether there is a Triton, and must not find this one."""
    finder = Kernels()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
            del sys.modules[name]


with without_kernels():
    from sglang.srt import runtime_context
    from sglang.srt.lora.lora_registry import LoRARef  # noqa: F401
    from sglang.srt.mem_cache import utils as page_names  # noqa: F401
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo  # noqa: F401
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
    from sglang.srt.server_args import ServerArgs

PAGE, LAYERS, HEADS, HEAD = 16, 3, 2, 8


class HostPool:
    def __init__(self, pages=32, layout="page_first", dtype=torch.bfloat16, heads=HEADS):
        self.page_size, self.layer_num, self.head_num, self.head_dim = PAGE, LAYERS, heads, HEAD
        self.layout, self.dtype, self.size = layout, dtype, pages * PAGE
        shape = {"layer_first": (2, LAYERS, self.size, heads, HEAD), "page_first": (2, self.size, LAYERS, heads, HEAD)}[layout]
        self.kv_buffer = torch.zeros(shape, dtype=dtype)

    def fill(self, seed):
        self.kv_buffer.copy_(torch.randn(self.kv_buffer.shape, generator=torch.Generator().manual_seed(seed)))
        return self

    def page(self, number):
        tokens = slice(number * PAGE, (number + 1) * PAGE)
        return self.kv_buffer[:, :, tokens] if self.layout == "layer_first" else self.kv_buffer[:, tokens]

    def indices(self, pages):
        return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])

    def get_page_buffer_meta(self, indices):
        addresses, width = [], self.head_num * self.head_dim * self.dtype.itemsize
        begin, value = self.kv_buffer.data_ptr(), self.kv_buffer[0].numel() * self.dtype.itemsize
        for index in indices.tolist()[::PAGE]:
            if self.layout == "layer_first":
                keys = [begin + (layer * self.size + index) * width for layer in range(LAYERS)]
            else:
                keys = [begin + index * LAYERS * width]
            for address in keys:
                addresses += [address, address + value]
        size = PAGE * width * (1 if self.layout == "layer_first" else LAYERS)
        return addresses, [size] * len(addresses)

    def get_data_page(self, index, flat=True):
        page = self.page(index // PAGE)
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self):
        return torch.zeros(2 * LAYERS * PAGE * self.head_num * self.head_dim, dtype=self.dtype)

    def set_from_flat_data_page(self, index, data):
        page = self.page(index // PAGE)
        page.copy_(data.reshape(page.shape))


@contextlib.contextmanager
def started_with(**arguments):
    """As in a process of SGLang that was started with these arguments, which it has published; without what it derives from
    them and the model's files. Models are named by what their files hold, or by paths."""
    arguments = {"model_path": "small", **arguments}
    for name in ("model_path", "speculative_draft_model_path"):
        if name in arguments and not arguments[name].startswith(("/", ".")):
            arguments[name] = folder(arguments[name])
    context, derive = runtime_context.get_context(), runtime_context._install_derived_leaves
    before = context._server_args, context._config_bags
    runtime_context._install_derived_leaves = lambda *_: None
    try:
        context.set_server_args(ServerArgs(**arguments))
        yield
    finally:
        runtime_context._install_derived_leaves = derive
        context._server_args, context._config_bags = before


def backend(socket, host_pool, arguments=(), **changes):
    """As SGLang makes it from its arguments. arguments: those of the whole engine; None where it has published none."""
    with started_with(**dict(arguments)) if arguments is not None else contextlib.nullcontext():
        return _backend(socket, host_pool, **changes)


def _backend(socket, host_pool, **changes):
    extra = {"backend_name": "maru", "module_path": "maru.sglang", "class_name": "MaruHiCacheStorage", "interface_v1": 1,
             "maru_socket": str(socket), "maru_timeout_ms": 60_000, **changes.pop("extra", {})}
    config = HiCacheStorageConfig(**{
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
        "enable_storage_metrics": False, "is_page_first_layout": host_pool.layout == "page_first", "model_name": "small",
        "extra_config": extra, **changes})
    made = StorageBackendFactory.create_backend("dynamic", config, host_pool)
    made.register_mem_pool_host(host_pool)
    return made
