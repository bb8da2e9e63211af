"""SGLang's own storage interface and factory, imported from the installed package without its __init__, which wants kernels and
packages that have nothing to do with storage. Its host memory pool needs those, too; HostPool stands in for it: the same names,
layouts and order of the parts of a page."""
import importlib.util
import pathlib
import sys
import types

import pytest
import torch

found = importlib.util.find_spec("sglang")
if found is None:
    pytest.skip("SGLang is not here: scripts/test-engines installs it", allow_module_level=True)
root = pathlib.Path(found.submodule_search_locations[0])
for _name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
    _module = types.ModuleType(_name)
    _module.__path__ = [str(root.joinpath(*_name.split(".")[1:]))]
    sys.modules.setdefault(_name, _module)

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo  # noqa: E402, F401
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

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


def backend(socket, host_pool, **changes):
    """As SGLang makes it from its arguments."""
    extra = {"backend_name": "maru", "module_path": "maru.sglang", "class_name": "MaruHiCacheStorage", "interface_v1": 1,
             "maru_socket": str(socket), "maru_timeout_ms": 60_000, **changes.pop("extra", {})}
    config = HiCacheStorageConfig(**{
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
        "enable_storage_metrics": False, "is_page_first_layout": host_pool.layout == "page_first", "model_name": "small",
        "extra_config": extra, **changes})
    made = StorageBackendFactory.create_backend("dynamic", config, host_pool)
    made.register_mem_pool_host(host_pool)
    return made
