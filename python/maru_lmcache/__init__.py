"""What LMCache loads for `maru_path`: the allocator of its Maru back-end. docs/python/lmcache.md has the configuration."""
from .adapter import CxlMemoryAdapter

__all__ = ["CxlMemoryAdapter"]
