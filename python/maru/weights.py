"""Digests that tell the weights of two models apart, for the keys of their KV cache.

The name of a model does not tell its weights, nor does a path: engines start in other folders, and files change in place. Two
fine-tunes of one architecture have files of equal names, sizes and headers. So an engine reads every byte, once. A cache folder
keeps the digest of a file for as long as the file keeps its device, inode, size and times. A digest holds no path and no time:
copies of a model have the same digest on all machines and under all spellings of their paths.

Several threads hash a file in pieces: SHA-256 of the SHA-256 of each piece, which is as strong and not bound to one core.

Thread safety: everything. Processes that start together wait for the first of them, and then find what it kept.
"""
from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import logging
import os
import pathlib
import re
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator, Mapping, NamedTuple, Optional

from .errors import InvalidArgumentError, shown

logger = logging.getLogger("maru")

PIECE_BYTES = 32 << 20
READ_BYTES = 1 << 20
THREADS_MAX = 8
# A file may change twice within one tick of its file system's clock, the second time unseen: younger ones are not kept.
SETTLED_NS = 2_000_000_000
SAID_FROM_BYTES = 1 << 30

# The KV cache of given tokens does not follow from these files. All others in a folder count, also those that no engine reads.
_PASSED_OVER = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tokenizer.model.v*", "tekken.json", "vocab.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.json", "generation_config.json", "*.jinja", "*.md", "*.txt",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.log", "*.lock", "LICENSE*", "NOTICE*", "USE_POLICY*",
    # Training leaves these beside the weights. The last are other formats, which no engine here loads.
    "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt", "rng_state*.pth", "trainer_state.json",
    "training_args.bin", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data")
_FOLDERS_PASSED_OVER = ("__pycache__", "checkpoint-[0-9]*", "global_step[0-9]*", "original")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


class FileState(NamedTuple):
    """Equal as long as a file is the same and unchanged."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def digest_of(path: str) -> str:
    """Of a folder that holds a model or an adapter, or of a file of weights. Raises InvalidArgumentError where there is no such
    file, and where a file cannot be read or changes meanwhile."""
    files = _files_of(path)
    cache = _Cache()
    with cache.turn(path):
        digests = _read(path, files, cache)
    whole = hashlib.sha256(json.dumps(sorted(digests.items()), separators=(",", ":")).encode())
    return whole.hexdigest()


def states_of(path: str) -> dict[str, FileState]:
    """Of the files that digest_of() reads. Reads none of them."""
    return {name: _state(_stat(file)) for name, file in _files_of(path).items()}


def folder_of(name: str, revision: Optional[str], downloads: Optional[str], commit: Optional[str]) -> str:
    """The folder of a model that an engine has loaded under a name: the name itself, where it is a path, or the engine's
    download from a hub. downloads: the engine's folder for downloads, where it is not the usual folder. commit: the revision
    of the configuration that the engine has read. Raises InvalidArgumentError where there is no such folder."""
    if os.path.exists(name):
        return name
    if "://" in name:
        raise InvalidArgumentError(f"The weights of {name} are not in a folder of this machine, so nothing tells them from "
                                   "others.")
    try:
        from huggingface_hub import snapshot_download
        folder = str(snapshot_download(name, revision=revision, cache_dir=downloads, local_files_only=True))
    except Exception as error:  # of many kinds: no such package, no name of a hub, nothing downloaded
        raise InvalidArgumentError(f"The weights of {shown(name)} are found neither at this path nor among the downloads from "
                                   f"a hub, so nothing tells them from others: {error}") from None
    found = os.path.basename(folder)
    if commit is not None and found != commit and re.fullmatch("[0-9a-f]{40}", found):
        raise InvalidArgumentError(f"The configuration of {name} is of the revision {commit}, and {found} "
                                   "came in a later download, so it is not known which of them the engine has loaded. Start "
                                   "the engine again, with a revision that does not move.")
    return folder


def _files_of(path: str) -> dict[str, str]:
    """Paths by what they are called within."""
    if not os.path.isdir(path):
        return _with_its_shards(path)
    files: dict[str, str] = {}
    seen: set[str] = set()

    def refuse(error: OSError) -> None:
        raise _unreadable(str(error.filename), error)

    for folder, below, names in os.walk(path, onerror=refuse, followlinks=True):
        if os.path.realpath(folder) in seen:
            below.clear()
            continue
        seen.add(os.path.realpath(folder))
        # In order: of two ways to a folder the same one is taken everywhere.
        below[:] = sorted(name for name in below if not _is_passed_over(name, _FOLDERS_PASSED_OVER))
        for name in names:
            file = os.path.join(folder, name)
            if not _is_passed_over(name, _PASSED_OVER) and stat.S_ISREG(_stat(file).st_mode):
                files[os.path.relpath(file, path)] = file
    if not files:
        raise InvalidArgumentError(f"{path} has no file of a model.")
    return files


def _with_its_shards(path: str) -> dict[str, str]:
    """A file of weights, with the other parts of it. Alone it is the same under any name."""
    if not stat.S_ISREG(_stat(path).st_mode):
        raise InvalidArgumentError(f"{path} is no file of weights and no folder with any.")
    folder, name = os.path.split(path)
    begin = _SHARD.sub("", name)
    try:
        beside = os.listdir(folder or ".") if name.endswith(".gguf") else []
    except OSError as error:
        raise _unreadable(folder, error) from None
    others = [other for other in beside if other.endswith(".gguf") and other != name and
              ("mmproj" in other or (begin != name and _SHARD.sub("", other) == begin))]
    return {name if begin != name else "": path, **{other: os.path.join(folder, other) for other in others}}


def _is_passed_over(name: str, patterns: tuple[str, ...]) -> bool:
    return name.startswith(".") or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _stat(file: str) -> os.stat_result:
    try:
        return os.stat(file)
    except OSError as error:
        raise _unreadable(file, error) from None


def _state(found: os.stat_result) -> FileState:
    return FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _unreadable(file: str, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(f"{file} cannot be read, so nothing tells these weights from others: {error.strerror}. Let the "
                                "engine's user read it, or take it away where it does not belong to the model.")


# -- reading ------------------------------------------------------------------------------------------------------------


class _File:
    """Open while it is read."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(path, error) from None
        self.opened_ns = time.time_ns()
        self.state = _state(os.fstat(self.descriptor))  # once it is open: a file system over a network looks again then

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    @property
    def is_settled(self) -> bool:
        return self.opened_ns - max(self.state.ctime_ns, self.state.mtime_ns) >= SETTLED_NS

    def hash_with(self, pool: ThreadPoolExecutor) -> str:
        whole = hashlib.sha256(self.state.size.to_bytes(8, "little"))
        for piece in pool.map(self._hash_piece, range(0, self.state.size, PIECE_BYTES)):
            whole.update(piece)
        if _state(os.fstat(self.descriptor)) != self.state:
            raise InvalidArgumentError(f"{self.path} was changed while it was read, so it is not known which contents the "
                                       "engine has loaded. Start the engine again.")
        return whole.hexdigest()

    def _hash_piece(self, begin: int) -> bytes:
        if not hasattr(_buffers, "bytes"):
            _buffers.bytes = bytearray(READ_BYTES)
        view, digest = memoryview(_buffers.bytes), hashlib.sha256()
        end = min(begin + PIECE_BYTES, self.state.size)
        while begin < end:
            try:
                read = os.preadv(self.descriptor, [view[:min(READ_BYTES, end - begin)]], begin)
            except OSError as error:
                raise _unreadable(self.path, error) from None
            if read == 0:
                break  # it is shorter than it was, which hash_with() sees
            digest.update(view[:read])
            begin += read
        return digest.digest()


_buffers = threading.local()


def _read(path: str, files: Mapping[str, str], cache: _Cache) -> dict[str, str]:
    digests: dict[str, str] = {}
    unread: dict[str, str] = {}
    total = 0
    for name, at in files.items():
        with _File(at) as file:
            kept = cache.find(file)
            if kept is None:
                unread[name] = at
                total += file.state.size
            else:
                digests[name] = kept
    is_said = total >= SAID_FROM_BYTES
    if is_said:
        logger.info("maru: reading the %.1f GB of %s once, so that no other model's KV cache is taken for its own", total / 1e9,
                    path)
    begun = time.monotonic()
    with ThreadPoolExecutor(min(THREADS_MAX, len(os.sched_getaffinity(0))), "maru-weights") as pool:
        for name, at in unread.items():
            with _File(at) as file:
                digests[name] = file.hash_with(pool)
                cache.keep(file, digests[name])
    if is_said:
        logger.info("maru: read %.1f GB in %.1f s", total / 1e9, time.monotonic() - begun)
    return digests


# -- keeping ------------------------------------------------------------------------------------------------------------


def cache_folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "maru", "weights")


class _Cache:
    """One entry for each path: the state of the file that was there, and its digest. An entry that is damaged or of another
    state counts as none. A folder that others may write to is not used."""

    def __init__(self) -> None:
        self._folder: Optional[pathlib.Path] = cache_folder()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise PermissionError(0, "others may write there")
        except OSError as error:
            logger.warning("maru: digests of weights are not kept in %s, so weights are read at each start: %s",
                           self._folder, error.strerror)
            self._folder = None

    def _entry(self, file: _File) -> Optional[pathlib.Path]:
        return self._folder and self._folder / hashlib.sha256(os.path.realpath(file.path).encode()).hexdigest()

    def find(self, file: _File) -> Optional[str]:
        entry = self._entry(file)
        if entry is None:
            return None
        try:
            state, digest = json.loads(entry.read_text())
        except (OSError, ValueError, TypeError):
            return None
        is_kept = state == list(file.state) and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)
        return digest if is_kept else None

    def keep(self, file: _File, digest: str) -> None:
        entry = self._entry(file)
        if entry is None or not file.is_settled:
            return
        try:
            with tempfile.NamedTemporaryFile("w", dir=entry.parent, prefix=".", delete=False) as written:
                written.write(json.dumps([file.state, digest]))
            os.replace(written.name, entry)
        except OSError as error:
            logger.warning("maru: the digest of %s is not kept: %s", file.path, error.strerror)

    @contextlib.contextmanager
    def turn(self, path: str) -> Iterator[None]:
        """Workers of an engine start together: the first reads a path, and the others wait for the digests that it keeps."""
        name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest() + ".lock"
        with contextlib.ExitStack() as held:
            try:
                if self._folder is not None:
                    lock = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    held.callback(os.close, lock)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks: several read at once, which is slower and no worse
            yield
