"""The storage back-end that keeps pages of SGLang's hierarchical cache (HiCache) in a pool of marud. docs/python/sglang.md
says how to configure it.

    --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "maru", "module_path": "maru.sglang",
                                             "class_name": "MaruHiCacheStorage", "interface_v1": 1,
                                             "hicache_storage_pass_prefix_keys": true}'

A page of SGLang, in all layers of one rank, is one block of the pool. SGLang names a page by a hash of its tokens and of the
pages before; a key here is a digest of that name and of everything else that the bytes depend on. Pages of a prefix are stored
as a chain, and all chains of one model and rank under one block, the root, so that all of them can be removed. What is absent,
of another size or damaged is not loaded, and said to be so.
"""
from __future__ import annotations

import ctypes
import hashlib
import logging
from typing import Any, Optional, Sequence

import numpy
import torch
from numpy.typing import NDArray
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from . import chunk_keys
from ._maru import Client
from .buffers import take_what_there_is
from .distribution import expect_this_package
from .engine_pool import GONE, Attached, EnginePool
from .engine_settings import Settings
from .errors import BadMemoryError, InvalidArgumentError, MaruError, ParentGoneError
from .paged_layers import writable
from .pool_tier import PoolTier
from .sglang_model import dtype_of, identify, refuse_an_unknown_draft, refuse_names_of_tokens_alone
from .tally import Tally

expect_this_package()
logger = logging.getLogger("sglang.maru")

SETTINGS = {"maru_socket", "maru_pool", "maru_tenant", "maru_priority", "maru_ttl_ms", "maru_model", "maru_kv_dtype",
            "maru_timeout_ms", "maru_read_only", "maru_required", "maru_prefetch", "maru_compute_us"}
# Places in memory and sizes; a page is what lies there, one after the other.
Parts = list[tuple[int, int]]
_ROOT = "root"  # no page has this name: SGLang's are hexadecimal


class MaruHiCacheStorage(HiCacheStorage):
    def __init__(self, storage_config: Any, kwargs: Optional[dict[str, Any]] = None) -> None:
        extra: dict[str, Any] = dict(storage_config.extra_config or {})
        settings = Settings("hicache-storage-backend-extra-config", extra, SETTINGS)
        if getattr(storage_config, "should_split_heads", False):
            raise InvalidArgumentError("Pages that are split by heads (tp_lcm_size) cannot be shared: leave that out.")
        if getattr(storage_config, "dcp_size", 1) != 1:
            raise InvalidArgumentError(f"dcp_size is {storage_config.dcp_size}: pages of ranks that share the decoding of a "
                                       "context are not told apart here. Leave decode context parallelism out.")
        refuse_names_of_tokens_alone()
        self._config = storage_config
        self._knows_prefixes = True  # until SGLang has been seen not to say them
        self._is_zero_copy = bool(extra.get("interface_v1", 0))
        self._model = identify(settings.model)
        self._kv_dtype = settings.text("maru_kv_dtype")
        self._not_loaded = Tally(logger, "maru: %d pages were found and not loaded so far, and SGLang computes them again. The "
                                         "last reason: %s")
        self._not_stored = Tally(logger, "maru: %d pages were not stored so far, so others compute them. The last reason: %s")
        self._options: dict[str, Any] = {"priority": settings.priority, "ttl_ms": settings.ttl_ms}
        self._identity = b""  # until the memory is registered
        self._is_read_only = settings.flag("maru_read_only", False)
        self._pool = EnginePool(settings, logger, self._is_read_only)
        self._tier = PoolTier(settings.prefetch, logger)
        self._token_us = settings.compute_us

    @property
    def _client(self) -> Client:
        return self._pool.attached().client

    def close(self) -> None:
        self._pool.close()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        config, pool = self._config, mem_pool_host

        def shape(*names: str) -> list[chunk_keys.Value]:
            sizes = [getattr(pool, name, None) for name in names]
            return [None if size is None else int(size) for size in sizes]

        refuse_an_unknown_draft(pool)
        # Latent attention (MLA) has the same pages on all ranks of a tensor-parallel group, whatever their number.
        is_shared = bool(config.is_mla_model)
        self._identity = chunk_keys.digest({
            "version": 4, "engine": "sglang", "model": self._model, "zero_copy": self._is_zero_copy,
            "tensor": None if is_shared else [config.tp_rank, config.tp_size],
            "pipeline": [getattr(config, "pp_rank", 0), getattr(config, "pp_size", 1)],
            "context": [getattr(config, "attn_cp_rank", 0), getattr(config, "attn_cp_size", 1)],
            "pool": type(pool).__name__, "dtype": dtype_of(pool, self._kv_dtype),
            "layout": _text(getattr(pool, "layout", None)), "format": _text(getattr(pool, "storage_format_tag", None)),
            "page_tokens": int(pool.page_size),
            "shape": shape("start_layer", "end_layer", "target_layer_num", "layer_num", "head_num", "head_dim", "v_head_dim",
                           "kv_lora_rank", "qk_rope_head_dim")})

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _keys(self, names: Sequence[str]) -> NDArray[numpy.uint8]:
        if not self._identity:
            raise InvalidArgumentError("SGLang has not registered its host memory with this back-end.")
        joined = b"".join(hashlib.sha256(self._identity + name.encode()).digest() for name in names)
        return numpy.frombuffer(joined, dtype=numpy.uint8).reshape(-1, chunk_keys.HASH_BYTES)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        attached = self._pool.attached()
        # With the root, from which the pool counts how deep a page lies: then the end of a prefix is searched for.
        rows = self._keys([_ROOT, *keys])
        try:
            with attached.client.match_prefix(rows, attached.tenant) as match:
                found = match.blocks
                # The match holds what is there, under which the others are published. SGLang asks on a thread of its own.
                brought = self._tier.bring(rows[found:], attached.tenant,
                                           compute_us=self._token_us * self.mem_pool_host.page_size)
            if brought is not None:
                with attached.client.match_prefix(rows, attached.tenant) as match:
                    found = match.blocks
                brought.release()
            return max(0, found - 1)
        except InvalidArgumentError:
            raise
        except MaruError as error:
            self._pool.warn(attached, error, "nothing can be looked up")
            return 0

    # -- memory -------------------------------------------------------------------------------------------------------

    def _load(self, names: Sequence[str], pages: Sequence[Parts]) -> list[bool]:
        keys = self._keys(names)
        attached = self._pool.attached()
        try:
            views: list[Any] = list(attached.client.retrieve_batch(keys, attached.tenant))
        except MaruError:
            views = [self._view(attached, key) for key in keys]  # as many as can be held
        loaded = []
        for name, view, parts in zip(names, views, pages):
            if view is None or isinstance(view, MaruError):
                if isinstance(view, GONE):
                    self._pool.warn(attached, view, "a page is not loaded")
                elif view is not None:
                    self._not_loaded.add(1, reason=view)
                loaded.append(False)
                continue
            with view:
                size = sum(part for _, part in parts)
                loaded.append(len(view) == size)
                if len(view) != size:
                    self._not_loaded.add(1, reason=f"page {name} has {len(view)} bytes in the pool and {size} here")
                    continue
                source = writable(view.data).ctypes.data
                for address, part in parts:
                    ctypes.memmove(address, source, part)
                    source += part
                try:
                    view.check_memory()  # it may have gone bad meanwhile, in an engine that handles memory errors
                except BadMemoryError as error:
                    self._not_loaded.add(1, reason=error)
                    loaded[-1] = False
        return loaded

    @staticmethod
    def _view(attached: Attached, key: NDArray[numpy.uint8]) -> Any:
        try:
            return attached.client.retrieve(key, attached.tenant)
        except MaruError as error:
            return error

    def _store(self, names: Sequence[str], pages: Sequence[Parts], prefix: Optional[Sequence[str]]) -> list[bool]:
        if self._is_read_only:
            return [False] * len(names)
        keys = self._keys([_ROOT, *names])
        root, keys = keys[0], keys[1:]
        done = 0
        attached = self._pool.attached()
        try:
            with attached.client.match_prefix(keys, attached.tenant) as match:
                done = match.blocks
                parents: list[Any] = [match.deepest] if done else []
                if prefix and not done:
                    parents = [self._keys(prefix[-1:])[0]]
                # SGLang may know a prefix that the pool does not have any more, or never had: then this begins a chain. The
                # root itself goes when all pages are gone, perhaps between these two lines.
                for _ in range(3):
                    try:
                        above = parents.pop() if parents else self._store_root(attached, root)
                        done += self._store_chain(attached, keys[done:], pages[done:], above)
                        break
                    except ParentGoneError:
                        continue
        except InvalidArgumentError:
            raise
        except MaruError as error:
            if isinstance(error, GONE):
                self._pool.warn(attached, error, "pages are not stored")
            else:
                self._not_stored.add(len(names) - done, reason=error)
        else:
            if done < len(names):
                self._not_stored.add(len(names) - done, reason="the pool has no room, or the pages before them went meanwhile")
        return [i < done for i in range(len(names))]

    @staticmethod
    def _store_root(attached: Attached, key: NDArray[numpy.uint8]) -> int:
        return attached.client.store_copy(key, b"root of SGLang's pages", tenant=attached.tenant).block

    def clear(self) -> None:
        """Removes the pages of this model, rank and layout, whoever stored them. Raises when some are being read, which stay,
        or when marud does not answer."""
        attached = self._pool.attached()
        gone = attached.client.delete_tree(self._keys([_ROOT])[0], attached.tenant)
        logger.info("maru: %d pages were removed", max(0, gone - 1))

    def _store_chain(self, attached: Attached, keys: NDArray[numpy.uint8], pages: Sequence[Parts], parent: Any) -> int:
        """As many as there is room for."""
        buffers = take_what_there_is(attached.client, [sum(size for _, size in parts) for parts in pages])
        if not buffers:
            return 0
        try:
            for buffer, parts in zip(buffers, pages):
                target = numpy.frombuffer(buffer.data, dtype=numpy.uint8)
                offset = 0
                for address, size in parts:
                    ctypes.memmove(target.ctypes.data + offset, address, size)
                    offset += size
                del target
            attached.client.store_chain(keys[:len(buffers)], buffers, parent=parent, tenant=attached.tenant, **self._options)
        finally:
            for buffer in buffers:
                buffer.abort()  # what was stored has none left to give back
        return len(buffers)

    # -- pages of the registered memory -------------------------------------------------------------------------------

    def _parts(self, names: Sequence[str], host_indices: Any) -> list[Parts]:
        if not self._is_zero_copy:
            raise InvalidArgumentError('Set "interface_v1": 1 in hicache-storage-backend-extra-config: pages are laid out in '
                                       "another way without it.")
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if not names or len(addresses) % len(names) or len(addresses) != len(sizes):
            raise InvalidArgumentError(f"{len(addresses)} parts of memory for {len(names)} pages.")
        each = len(addresses) // len(names)
        parts = list(zip(map(int, addresses), map(int, sizes)))
        return [parts[i:i + each] for i in range(0, len(parts), each)]

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._load(keys, self._parts(keys, host_indices)) if keys else []

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        prefix = getattr(extra_info, "prefix_keys", None)
        if prefix is None and self._knows_prefixes:
            self._knows_prefixes = False
            logger.warning('maru: SGLang does not say which pages are before the ones it stores, so the beginning of a prompt '
                           'may be evicted before its end: set "hicache_storage_pass_prefix_keys": true in '
                           "hicache-storage-backend-extra-config.")
        return self._store(keys, self._parts(keys, host_indices), prefix) if keys else []

    # -- pages as tensors ---------------------------------------------------------------------------------------------

    def get(self, key: str, target_location: Optional[Any] = None, target_sizes: Optional[Any] = None) -> Any:
        found = self.batch_get([key], None if target_location is None else [target_location])
        return found[0]

    def batch_get(self, keys: list[str], target_locations: Optional[Any] = None, target_sizes: Optional[Any] = None) -> Any:
        """Into the tensors given, which are returned; None for what is not there."""
        self._refuse_zero_copy()
        targets = target_locations or [self.mem_pool_host.get_dummy_flat_data_page() for _ in keys]
        if len(targets) != len(keys):
            raise InvalidArgumentError(f"{len(targets)} tensors for {len(keys)} pages.")
        loaded = self._load(keys, [_tensor_parts(target) for target in targets]) if keys else []
        return [target if is_loaded else None for target, is_loaded in zip(targets, loaded)]

    def set(self, key: str, value: Optional[Any] = None, target_location: Optional[Any] = None,
            target_sizes: Optional[Any] = None) -> bool:
        return self.batch_set([key], None if value is None else [value])

    def batch_set(self, keys: list[str], values: Optional[Any] = None, target_locations: Optional[Any] = None,
                  target_sizes: Optional[Any] = None) -> bool:
        self._refuse_zero_copy()
        if values is None or len(values) != len(keys):
            raise InvalidArgumentError(f"{0 if values is None else len(values)} tensors for {len(keys)} pages.")
        kept = [value.contiguous() for value in values]
        return not keys or all(self._store(keys, [_tensor_parts(value) for value in kept], None))

    def _refuse_zero_copy(self) -> None:
        if self._is_zero_copy:
            raise InvalidArgumentError('With "interface_v1": 1 pages are read and written where they lie: use batch_get_v1 and '
                                       "batch_set_v1.")


def _tensor_parts(tensor: Any) -> Parts:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise InvalidArgumentError("A page is a contiguous tensor in host memory.")
    return [(tensor.data_ptr(), tensor.numel() * tensor.element_size())]


def _text(value: Any) -> Optional[str]:
    return None if value is None else str(value)
