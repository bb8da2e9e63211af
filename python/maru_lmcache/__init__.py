"""What LMCache loads for `maru_path`: the allocator of its Maru back-end. docs/python/lmcache.md has the configuration."""
from maru.distribution import expect_this_package

expect_this_package()

from .adapter import CxlMemoryAdapter

__all__ = ["CxlMemoryAdapter"]
