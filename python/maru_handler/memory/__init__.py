"""What a MaruHandler gives, by the older system's names."""
from .types import AllocHandle, MappedRegion, MemoryInfo

__all__ = ["AllocHandle", "MappedRegion", "MemoryInfo"]
