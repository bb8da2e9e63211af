"""The calls of maru/tokens.h; maru.tokens is what to use."""
from typing import Optional

import numpy
from numpy.typing import NDArray

def hash(algorithm: int, tokens: NDArray[numpy.uint32], block_tokens: int, parent: bytes, lora_name: Optional[str],
         cache_salt: Optional[str]) -> NDArray[numpy.uint8]: ...
def root(algorithm: int, seed: Optional[str]) -> bytes: ...
def dynamo(salt: int, parent: Optional[int], block_tokens: int,
           tokens: NDArray[numpy.uint32]) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]: ...
