"""Stands in for torch.cuda: streams that do what they are given in order, each on a thread of its own, and not before somebody
waits for it. So whatever is used without waiting for it is not there yet. The tensors are the processor's, and the memory that
is registered is mapped. It shows in which order things happen, and that the bytes are right. No GPU has run any of this."""
import contextlib
import threading
from collections import deque

import torch
from cuda_registrations import CudaRegistrations, mapping_at


class LateEvent:
    """Happens when its stream has come to its place; at once when it was never recorded, as CUDA's does."""

    def __init__(self):
        self.stream, self.place = None, 0

    def query(self):
        return self.stream is None or self.stream.reach(self.place, waits=False)

    def synchronize(self):
        if self.stream is not None:
            self.stream.reach(self.place)


class LateStream:
    def __init__(self, runtime, name):
        self.runtime, self.name = runtime, name
        runtime.made_streams.append(self)
        self.changed = threading.Condition()
        self.queue = deque()
        self.given = self.done = self.wanted = 0  # counts of what was, is done, and is waited for
        self.is_held = False  # nothing is done, whoever waits
        self.error = None
        self.fails = False  # what is given next, when it is done
        threading.Thread(target=self._work, name=f"stream {name}", daemon=True).start()

    def run(self, work):
        if self.runtime.refuses == self.name:
            self.runtime.raise_refusal()
        fails, self.fails = self.fails, False

        def do():
            if fails:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            work()

        self._give(do)

    def record(self, event):
        event.stream, event.place = self, self.given

    def wait(self, event):
        if event.stream is not None:
            self._give(lambda stream=event.stream, place=event.place: stream.reach(place))

    def synchronize(self):
        self.reach(self.given)

    @contextlib.contextmanager
    def held(self):
        """Does nothing meanwhile."""
        self.is_held = True
        yield
        self.let()

    def let(self):
        with self.changed:
            self.is_held = False
            self.changed.notify_all()

    def reach(self, place, waits=True):
        with self.changed:
            if self.done < place:
                self.wanted = max(self.wanted, place)
                self.changed.notify_all()
                if waits:
                    self.changed.wait_for(lambda: self.done >= place or self.error)
            if self.error:
                raise RuntimeError(self.error)
            return self.done >= place

    def _give(self, work):
        with self.changed:
            self.queue.append(work)
            self.given += 1

    def _work(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.wanted > self.done and not self.is_held and not self.error)
                work = self.queue.popleft()
            try:
                with self.runtime.checked_copies():
                    work()
            except BaseException as error:  # as CUDA: nothing that comes later in this stream is done
                with self.changed:
                    self.error = str(error)
                    self.queue.clear()
                    self.changed.notify_all()
                continue
            del work
            with self.changed:
                self.done += 1
                self.changed.notify_all()


class LateRuntime(CudaRegistrations):
    device = torch.device("cpu")

    def __init__(self, **registrations):
        super().__init__(**registrations)
        self.refuses = None  # the name of a stream that takes nothing
        self.made_streams = []
        self.copied = {"where it lies": 0, "elsewhere": 0}  # copies of streams
        self.wrong_copies = []
        self.compute = LateStream(self, "compute")

    @staticmethod
    def raise_refusal():
        raise RuntimeError("CUDA error: out of memory")

    def stream(self):
        return LateStream(self, ["stores", "loads"][(len(self.made_streams) - 1) % 2])

    def current_stream(self):
        return self.compute

    def event(self):
        return LateEvent()

    def empty(self, nbytes):
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)

    def host(self, nbytes):
        return torch.full((nbytes,), 0x5A, dtype=torch.uint8)

    def indices(self, numbers):
        return torch.tensor(numbers, dtype=torch.long)

    @contextlib.contextmanager
    def checked_copies(self):
        """CUDA refuses copies that are registered in part, or over the end of a registration; and memory of the pool that is
        not registered would be copied by the processor, while the thread that asked for it waits."""
        runtime, copy = self, torch.Tensor.copy_

        class Noting(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if function is copy:
                    for tensor in args[:2]:
                        runtime._note(tensor.data_ptr(), tensor.numel() * tensor.element_size())
                return function(*args, **(kwargs or {}))

        with Noting():
            yield

    def _note(self, address, nbytes):
        of_pool = ":pages" in mapping_at(address)[1]
        self.copied["where it lies" if of_pool else "elsewhere"] += 1
        if of_pool and not self.covers(address, nbytes) or not of_pool and self.touches(address, nbytes):
            self.wrong_copies.append((hex(address), nbytes))
