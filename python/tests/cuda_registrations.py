"""Stands in for CUDA where memory is registered: checks what CUDA checks, at memory that is really mapped, and notes each call.
No GPU has run any of this."""
import threading

ALREADY_REGISTERED, NOT_REGISTERED, INVALID_VALUE, MEMORY_ALLOCATION, NOT_SUPPORTED = 712, 713, 1, 2, 801
READ_ONLY = 8


def mapping_at(address):
    """The rights and the name of what is mapped there."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            begin, end = (int(text, 16) for text in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split()[1], " ".join(line.split()[5:])
    return "", ""


class CudaRegistrations:
    def __init__(self, has_read_only=True, refusal=0, call_bytes_max=1 << 39):
        self.has_read_only = has_read_only
        self.refusal = refusal  # the error of every call that registers
        self.call_bytes_max = call_bytes_max
        self.registered = {}  # by address: bytes, flags
        self.calls = []  # what, address, bytes, flags, error
        self.threads = set()
        self.unregistered_from = []  # what was mapped at the address then
        self.begun = set()

    def begin_thread(self):
        self.begun.add(threading.current_thread().name)

    def register(self, address, nbytes, flags):
        assert threading.current_thread().name in self.begun, "CUDA would use its first GPU"
        self.threads.add(threading.current_thread().name)
        error = self._error(address, nbytes, flags)
        self.calls.append(("register", address, nbytes, flags, error))
        if error == 0:
            self.registered[address] = nbytes, flags
        return error

    def _error(self, address, nbytes, flags):
        if self.refusal:
            return self.refusal
        if nbytes >= self.call_bytes_max:
            return MEMORY_ALLOCATION
        if flags == READ_ONLY and not self.has_read_only:
            return NOT_SUPPORTED
        if any(begin < address + nbytes and address < begin + size for begin, (size, _) in self.registered.items()):
            return ALREADY_REGISTERED
        rights = {mapping_at(at)[0] for at in range(address, address + nbytes, 4096)}
        return INVALID_VALUE if flags != READ_ONLY and rights != {"rw-s"} or "" in rights else 0

    def unregister(self, address):
        self.threads.add(threading.current_thread().name)
        self.calls.append(("unregister", address, 0, 0, 0))
        self.unregistered_from.append(mapping_at(address)[1])
        return 0 if self.registered.pop(address, None) else NOT_REGISTERED

    def error_text(self, code):
        return {INVALID_VALUE: "invalid argument", NOT_SUPPORTED: "operation not supported"}.get(code, "an error")

    def covers(self, address, nbytes):
        """Whether one copy of these bytes is one that CUDA takes without the processor."""
        return any(begin <= address and address + nbytes <= begin + size for begin, (size, _) in self.registered.items())

    def touches(self, address, nbytes):
        return any(begin < address + nbytes and address < begin + size for begin, (size, _) in self.registered.items())

    @property
    def flags(self):
        return [flags for what, _, _, flags, error in self.calls if what == "register" and error == 0]
