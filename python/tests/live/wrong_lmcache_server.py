"""maru-lmcache-server as the negative control: while the file that MARU_LIVE_WRONG_WHILE names is there, engines read other
bytes than were stored."""
import copy
import os
import sys

import torch

from maru_lmcache.mp import first_tier, launcher

_SHIFT = 256  # bytes: as many numbers as two heads of the small model have


class WrongL1Manager(first_tier.MaruL1Manager):
    def unsafe_read(self, keys):
        return {key: (error, memory if memory is None else wrong(memory))
                for key, (error, memory) in super().unsafe_read(keys).items()}


def wrong(memory):
    if not os.path.exists(os.environ["MARU_LIVE_WRONG_WHILE"]):
        return memory
    other = copy.copy(memory)
    other.raw_data = torch.roll(memory.raw_data, _SHIFT)
    return other


if __name__ == "__main__":
    first_tier.MaruL1Manager = WrongL1Manager
    sys.exit(launcher.main())
