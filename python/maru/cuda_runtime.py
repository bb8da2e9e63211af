"""What the package calls of torch.cuda, and nothing else does: streams, events, memory that CUDA knows.

Tests put another object with these calls in its place, which copies late and on threads of its own. So all work on a device is
handed over as a function (`run`): here torch queues what it calls, there the function itself waits in a queue.

Thread safety: any.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, Iterable, Optional, Sequence

import torch


class CudaStream:
    """Does what it is given in order, beside other streams."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def run(self, work: Callable[[], object]) -> None:
        """work: starts copies and kernels on tensors, waits for none of them, and uses nothing but tensors."""
        with torch.cuda.stream(self._stream):
            work()

    def record(self, event: Any) -> None:
        """The event happens when all is done that the stream has been given so far."""
        event.record(self._stream)

    def wait(self, event: Any) -> None:
        """What the stream is given from here on begins after the event. No thread waits."""
        self._stream.wait_event(event)

    def synchronize(self) -> None:
        """Until all is done. Raises RuntimeError when something of it failed."""
        self._stream.synchronize()


class CudaRuntime:
    """Of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._threads = threading.local()

    def begin_thread(self) -> None:
        """In each thread of our own: CUDA would use its first GPU there, and make a context on it."""
        if not hasattr(self._threads, "has_begun"):
            torch.cuda.set_device(self.device)
            self._threads.has_begun = True

    def stream(self) -> CudaStream:
        return CudaStream(torch.cuda.Stream(self.device))

    def current_stream(self) -> CudaStream:
        """The stream on which the calling thread computes."""
        return CudaStream(torch.cuda.current_stream(self.device))

    def event(self) -> Any:
        """With query() and synchronize(), which raise RuntimeError when what was before it failed."""
        return torch.cuda.Event(blocking=True)  # a thread that waits sleeps

    def empty(self, nbytes: int) -> torch.Tensor:
        """On the GPU, of the stream on which it is called."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def host(self, nbytes: int) -> torch.Tensor:
        """Memory of the processor, page-locked where it can be had: then a GPU copies it without the processor."""
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            return torch.empty(nbytes, dtype=torch.uint8)

    def indices(self, numbers: Sequence[int]) -> torch.Tensor:
        """In page-locked memory where it can be had, from where copying them waits for nothing."""
        try:
            return torch.tensor(numbers, dtype=torch.long, pin_memory=True)
        except RuntimeError:
            return torch.tensor(numbers, dtype=torch.long)

    def register(self, address: int, nbytes: int, flags: int) -> int:
        """CUDA's error, 0 for none, which the runtime also keeps for this thread's next call."""
        return int(torch.cuda.cudart().cudaHostRegister(address, nbytes, flags))

    def unregister(self, address: int) -> int:
        return int(torch.cuda.cudart().cudaHostUnregister(address))

    def error_text(self, code: int) -> str:
        cudart = torch.cuda.cudart()
        return str(cudart.cudaGetErrorString(cudart.cudaError(code)))


def runtime_of(tensors: Iterable[Any]) -> Optional[CudaRuntime]:
    """None unless all tensors lie on one GPU of CUDA's or ROCm's."""
    devices = {getattr(tensor, "device", None) for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    return CudaRuntime(device) if device is not None and device.type == "cuda" else None
