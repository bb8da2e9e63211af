"""The pages of a pool, registered with CUDA: then the copy engines of a GPU read and write them where they lie.

A pool is mapped once, for reading, and region by region for writing, as the client gets pages there. So it is registered in
*pieces*: a region, or 64 GiB of a larger one. Drivers refuse 512 GiB in one call. CUDA refuses a copy that goes over the end of
one registration, also where the next bytes are registered, too. A block lies within a region. So its copy goes over the end of
a piece only where regions are larger than 64 GiB, and is cut there (`Registered.parts`).

A piece is registered when a copy first wants it, by a thread of its own: 1 GiB takes a tenth of a second. That copy, and others
until then, go another way. A piece that is read is registered read-only, since CUDA refuses memory that is mapped for reading
otherwise. It is registered anew once this client fills pages in it. That waits for the copies under way, as does its end.

CUDA remembers a call that failed, for the thread that made it, and reports it from that thread's next kernel. So all of these
calls are made by the thread of this, which starts no kernel.

The library says when the memory goes (maru_before_unmap). No registration outlives it: copies would reach the pages that lay
there before, which are another pool's by then, or the addresses have got other memory.

Thread safety: any.
"""
from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from typing import Any, Optional, Protocol

from .errors import MaruError

logger = logging.getLogger("maru")

PIECE_BYTES_MAX = 64 << 30
# cudaHostRegister's flags. Memory is mapped into the GPU's addresses, and portable, without either flag: 64-bit Linux has one
# space of addresses for both.
DEFAULT, READ_ONLY = 0x00, 0x08
EXIT_S = 10.0  # for the copies that are under way when the process ends
NOT_SUPPORTED = 801  # cudaErrorNotSupported: of READ_ONLY on this device
_UNLOADING = 4  # cudaErrorCudartUnloading: the process ends, and what was registered with it


class Registrar(Protocol):
    """What this needs of maru.cuda_runtime.CudaRuntime."""

    def begin_thread(self) -> None: ...
    def register(self, address: int, nbytes: int, flags: int) -> int: ...
    def unregister(self, address: int) -> int: ...
    def error_text(self, code: int) -> str: ...


class _Piece:
    __slots__ = ("address", "nbytes", "flags", "is_filled", "is_wanted", "is_changing", "is_lost", "refused", "users")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.flags: Optional[int] = None  # under which it is registered
        self.is_filled = False  # this client has had pages here, so it is mapped for writing
        self.is_wanted = False  # it waits for the thread
        self.is_changing = False  # the thread is at it
        self.is_lost = False  # CUDA has not ended its registration when it was asked to
        self.refused: set[bool] = set()  # by is_filled
        self.users = 0

    def serves(self, writes: bool) -> bool:
        is_usable = not self.is_changing and not self.is_lost and self.flags is not None
        return is_usable and (not writes or self.flags == DEFAULT)


class Registered:
    """Some bytes of the pool that copies may use until release(), or until nothing refers to this."""

    def __init__(self, pool: RegisteredPool, pieces: list[_Piece], address: int, nbytes: int) -> None:
        self._pool = pool
        self._pieces = pieces
        # Each is a copy of its own: where it begins, from the first byte, and its bytes.
        self.parts: list[tuple[int, int]] = []
        for piece in pieces:
            begin, end = max(piece.address, address), min(piece.address + piece.nbytes, address + nbytes)
            self.parts.append((begin - address, end - begin))

    def release(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._pool._release(pieces)

    def __del__(self) -> None:
        self.release()


class RegisteredPool:
    """Of one client."""

    def __init__(self, client: Any, runtime: Registrar, piece_bytes_max: int = PIECE_BYTES_MAX) -> None:
        """Raises the errors of a client that has no memory (any more)."""
        shape = client.geometry()
        self._runtime = runtime
        self._region_bytes = shape.region_pages * shape.page_bytes
        self._bytes = shape.pages * shape.page_bytes
        self._piece_bytes_max = piece_bytes_max
        self._changed = threading.Condition()  # and the lock of what follows
        self._pieces: dict[int, _Piece] = {}  # by where they begin, from the first page
        self._waiting: deque[_Piece] = deque()
        self._said: set[int] = set()  # errors
        self._has_read_only = True  # until this device has said that it has not
        self._is_closed = False
        self._is_done = False  # and nothing is registered
        self._thread: Optional[threading.Thread] = None
        self._process = os.getpid()
        self._client = weakref.ref(client)
        self._base = client._before_unmap(self.close)
        _all.add(self)

    def use(self, address: int, nbytes: int, writes: bool) -> Optional[Registered]:
        """writes: into a buffer of this client. None: copies of these bytes have to go another way, this time."""
        with self._changed:
            if self._is_closed:
                return None
            pieces = self._pieces_of(address, nbytes)
            for piece in pieces:
                piece.is_filled |= writes
            missing = [piece for piece in pieces if not piece.serves(writes)]
            if not missing:
                for piece in pieces:
                    piece.users += 1
                return Registered(self, pieces, address, nbytes)
            for piece in missing:
                self._want(piece)
            return None

    def wait_until_idle(self) -> None:
        """Until what copies have wanted so far is registered, or refused."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_done or not self._waiting and not self._at_work())

    def close(self, wait_s: Optional[float] = None) -> None:
        """Waits for the copies under way, and ends all registrations. The library calls it before the memory goes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._thread is None:
                self._is_done = True
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._is_done, wait_s)
                return
        self._end()  # what the garbage collector found there may have been the last that held the client

    def _release(self, pieces: list[_Piece]) -> None:
        if os.getpid() != self._process:
            return  # another thread may have held the lock at the fork
        with self._changed:
            for piece in pieces:
                piece.users -= 1
            self._changed.notify_all()

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _pieces_of(self, address: int, nbytes: int) -> list[_Piece]:
        pieces, begin = [], address - self._base
        end = begin + nbytes
        if not 0 <= begin < end <= self._bytes:
            raise ValueError(f"{nbytes} bytes at {address:#x} are not of this pool")
        while begin < end:
            region = begin // self._region_bytes * self._region_bytes
            first = region + (begin - region) // self._piece_bytes_max * self._piece_bytes_max
            size = min(self._piece_bytes_max, region + self._region_bytes - first, self._bytes - first)
            piece = self._pieces.get(first)
            if piece is None:
                piece = self._pieces[first] = _Piece(self._base + first, size)
            pieces.append(piece)
            begin = first + size
        return pieces

    def _want(self, piece: _Piece) -> None:
        if piece.is_wanted or piece.is_changing or piece.is_filled in piece.refused:
            return
        piece.is_wanted = True
        self._waiting.append(piece)
        self._changed.notify_all()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="maru-cuda", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:  # no thread is to be had: nothing is registered
                self._waiting.clear()
                piece.refused.update((False, True))

    def _at_work(self) -> bool:
        return any(piece.is_changing for piece in self._pieces.values())

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._runtime.begin_thread()
        except RuntimeError as error:
            logger.warning("maru: the pool is not registered with CUDA, and is copied through pinned memory: %s", error)
            with self._changed:
                self._is_closed = True
        try:
            while (piece := self._next()) is not None:
                self._register(piece)
                with self._changed:
                    piece.is_changing = False
                    self._changed.notify_all()
        except Exception:  # close() waits for the end all the same
            logger.exception("maru: nothing more of the pool is registered with CUDA")
            with self._changed:
                self._is_closed = True
        self._end()

    def _next(self) -> Optional[_Piece]:
        """The next to register, which no copy uses; None once it is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            piece = self._waiting.popleft()
            piece.is_wanted, piece.is_changing = False, True
            self._changed.wait_for(lambda: piece.users == 0 or self._is_closed)
            return None if self._is_closed else piece

    def _register(self, piece: _Piece) -> None:
        is_filled = piece.is_filled
        errors = []
        if piece.flags is None or self._unregister(piece):
            for flags in (DEFAULT,) if is_filled or not self._has_read_only else (READ_ONLY, DEFAULT):
                code = self._runtime.register(piece.address, piece.nbytes, flags)
                if code == 0:
                    piece.flags = flags
                    return
                self._has_read_only = self._has_read_only and not (flags == READ_ONLY and code == NOT_SUPPORTED)
                errors.append((code, " as read-only" if flags == READ_ONLY else ""))
        piece.refused.add(is_filled)
        self._say(f"does not register {piece.nbytes} bytes of the pool", errors)

    def _unregister(self, piece: _Piece) -> bool:
        code = self._runtime.unregister(piece.address)
        if code in (0, _UNLOADING):
            piece.flags = None
        else:
            piece.is_lost = True  # the end tries once more
            self._say(f"does not end the registration of {piece.nbytes} bytes of the pool", [(code, "")])
        return code == 0

    def _say(self, what: str, errors: list[tuple[int, str]]) -> None:
        """Each error once."""
        if self._said.issuperset(code for code, _ in errors):
            return
        self._said.update(code for code, _ in errors)
        logger.warning("maru: CUDA %s: %s. These are copied through pinned memory of torch's.", what,
                       ", ".join(f"error {code}{how} ({self._runtime.error_text(code)})" for code, how in errors))

    def _end(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: all(piece.users == 0 for piece in self._pieces.values()))
        for piece in self._pieces.values():
            if piece.flags is not None:
                self._unregister(piece)
        with self._changed:
            self._waiting.clear()
            self._is_done = True
            self._changed.notify_all()


_all: weakref.WeakSet[RegisteredPool] = weakref.WeakSet()
_of_client: weakref.WeakKeyDictionary[Any, Optional[RegisteredPool]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()  # of the one before


def of(client: Any, runtime: Registrar) -> Optional[RegisteredPool]:
    """The one of a client, made now or before: CUDA takes memory once. None when its pool has gone."""
    with _lock:
        if client not in _of_client:
            try:
                _of_client[client] = RegisteredPool(client, runtime)
            except MaruError:
                _of_client[client] = None
        return _of_client[client]


def _forget() -> None:
    """In a child of fork(), which has neither the memory nor the thread."""
    global _lock
    _lock = threading.Lock()
    _all.clear()
    _of_client.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _close_all() -> None:
    """While the threads still run: afterwards nobody could end what is registered, and the library asks nobody."""
    for pool in list(_all):
        pool.close(EXIT_S)
        client = pool._client()
        if client is not None:
            with contextlib.suppress(MaruError):
                client._before_unmap(None)
