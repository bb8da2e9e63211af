"""What a set of blocks was computed with, so that no engine reads the blocks of another model, dtype or layout.

    manifest = Manifest(framework="vllm", framework_version="0.11.0", model="llama", layout=layout, page_size=16)
    with maru.Client() as client, AttachedManifest(client, "my-service", manifest):
        ...                              # ManifestMismatchError: the blocks there are of another model, dtype, ...

The first process that attaches to a namespace says what its blocks are, and the others must agree. The bytes and the keys are
those of maru/blocks/manifest.hpp, which describes them.
"""
from __future__ import annotations

import dataclasses
import struct
from types import TracebackType
from typing import Any, Optional, TypeVar, Union

import numpy

from . import tokens as _tokens
from ._maru import Client, View
from .errors import HasChildrenError, InvalidArgumentError, MaruError, NotFoundError, StillPinnedError, TryAgainError, shown
from .layout import DTYPES, KINDS, ORDERS, Layout

TEXT_BYTES_MAX = 1024
NAMESPACE_BYTES_MAX = 64
MANIFEST_BYTES_MAX = 7376
_VERSION = 1
_CHECKSUM_SALT = 0x6D61_7275_2D73_756D
_FINGERPRINT_SALT = 0x6D61_7275_2D66_7072
_TRIES = 64
_LAYOUT_BYTES = 128
_NUMBERS_AT = 16 + _LAYOUT_BYTES
_TEXTS_AT = 168
_PRIORITY = 0xFFFF_FFFF

_Self = TypeVar("_Self")


class DamagedBytesError(InvalidArgumentError):
    """These bytes are no manifest or block set, or are cut or damaged."""


class BytesVersionError(InvalidArgumentError):
    """These bytes are of another version."""


class ManifestMismatchError(MaruError):
    """The blocks were computed with another manifest; `field`, `found` and `expected` say in what."""

    def __init__(self, field: str, found: Union[str, int], expected: Union[str, int]) -> None:
        super().__init__(f"{field}: found {_shown(found)}, expected {_shown(expected)}")
        self.field = field
        self.found = found
        self.expected = expected

    def __reduce__(self) -> tuple[type[ManifestMismatchError], tuple[Any, ...]]:
        return ManifestMismatchError, (self.field, self.found, self.expected)


def _shown(value: Union[str, int]) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def hash_words(salt: int, data: bytes) -> int:
    """Of whole words of 32 bits."""
    words = numpy.frombuffer(data, dtype="<u4")
    for at in range(0, len(words), _tokens.BLOCK_TOKENS_MAX):
        some = words[at:at + _tokens.BLOCK_TOKENS_MAX]
        salt = int(_tokens.dynamo(some, len(some), salt=salt)[0][0])
    return salt


def closed(data: bytes) -> bytes:
    """Filled up to whole words of 64 bits, with the checksum behind."""
    filled = data + bytes(-len(data) % 8)
    return filled + struct.pack("<Q", hash_words(_CHECKSUM_SALT, filled))


def check_frame(what: str, magic: bytes, length_format: str, length_at: int, least: int, most: int, data: bytes) -> None:
    """The magic, the version, the length and the checksum. The version comes before all that another one may have changed."""
    if len(data) >= 8 and data[:8] != magic:
        raise DamagedBytesError(f'these {len(data)} bytes do not begin with "{magic.decode()}", so they are no {what}')
    if len(data) >= 12 and data[8:12] != struct.pack("<I", _VERSION):
        raise BytesVersionError(f"version: found {struct.unpack_from('<I', data, 8)[0]}, expected {_VERSION}: write the {what} "
                                "with the version of maru that reads it")
    if not least <= len(data) <= most:
        raise DamagedBytesError(f"length: found {len(data)} bytes, expected {least} to {most} for a {what}")
    length = struct.unpack_from(length_format, data, length_at)[0]
    if length != len(data) or length % 8 != 0:
        raise DamagedBytesError(f"length: found {len(data)} bytes, expected {length}: the {what} is cut or damaged")
    found, expected = struct.unpack_from("<Q", data, len(data) - 8)[0], hash_words(_CHECKSUM_SALT, data[:-8])
    if found != expected:
        raise DamagedBytesError(f"checksum: found {found:016x}, expected {expected:016x}: the {what} is damaged")


def check_text(field: str, text: object, least: int, most: int) -> str:
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{field}: found {shown(text)}, expected text")
    wrong = next((letter for letter in text if not " " <= letter <= "~"), None)
    if wrong is not None:
        raise InvalidArgumentError(f"{field}: found the letter {wrong!r}, expected printable ASCII: write other letters as %XX")
    if not least <= len(text) <= most:
        raise InvalidArgumentError(f"{field}: found {len(text)} bytes, expected {least} to {most}")
    return text


_TEXTS = ("framework", "framework_version", "model", "revision", "dtype", "quantisation", "lora")
_NUMBERS = ("tensor_ranks", "tensor_rank", "pipeline_ranks", "pipeline_rank", "page_size")
_OF_LAYOUT = ("kind", "order", "dtype", "outer", "layers", "page_tokens", "heads", "head_dim", "alignment", "heads_total",
              "first_head", "layers_total", "first_layer")
_NAMED = {"kind": KINDS, "order": ORDERS, "dtype": DTYPES}


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What blocks were computed with. Texts are printable ASCII of at most 1024 bytes; all but framework and model may be
    empty. The layout is that of one block, for this rank; its number of blocks does not count, and becomes 1.

    dtype     of the model's arithmetic; that of the elements is in the layout
    lora      name and revision of the adapter
    """

    framework: str
    model: str
    layout: Layout
    page_size: int  # tokens of the engine's pages
    framework_version: str = ""
    revision: str = ""
    dtype: str = ""
    quantisation: str = ""
    lora: str = ""
    tensor_ranks: int = 1
    tensor_rank: int = 0
    pipeline_ranks: int = 1
    pipeline_rank: int = 0

    def __post_init__(self) -> None:
        for name in _TEXTS:
            check_text(name, getattr(self, name), 1 if name in ("framework", "model") else 0, TEXT_BYTES_MAX)
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= 0xFFFF_FFFF:
                raise InvalidArgumentError(f"{name}: found {shown(value)}, expected a number of 32 bits")
        for rank, ranks in (("tensor_rank", "tensor_ranks"), ("pipeline_rank", "pipeline_ranks")):
            if getattr(self, rank) >= getattr(self, ranks):
                raise InvalidArgumentError(f"{rank}: found {getattr(self, rank)}, expected less than {ranks}, "
                                           f"{getattr(self, ranks)}")
        if self.page_size == 0:
            raise InvalidArgumentError("page_size: found 0, expected the tokens of a page, 1 or more")
        if not isinstance(self.layout, Layout):
            raise InvalidArgumentError(f"layout: found {shown(self.layout)}, expected a maru.layout.Layout")
        object.__setattr__(self, "layout", dataclasses.replace(self.layout, blocks=1))

    def encode(self) -> bytes:
        """The canonical bytes, with a version and a checksum."""
        texts = b"".join(struct.pack("<I", len(text)) + text.encode() for text in (getattr(self, name) for name in _TEXTS))
        numbers = struct.pack("<6I", *(getattr(self, name) for name in _NUMBERS), 0)
        body = self.layout.encode() + numbers + texts
        return closed(b"MARUMANI" + struct.pack("<II", _VERSION, 16 + len(body) + -len(body) % 8 + 8) + body)

    @staticmethod
    def decode(data: Any) -> Manifest:
        """The manifest in such bytes. DamagedBytesError, BytesVersionError."""
        data = bytes(data)
        least = (_TEXTS_AT + 4 * len(_TEXTS) + 7) // 8 * 8 + 8
        check_frame("manifest", b"MARUMANI", "<I", 12, least, MANIFEST_BYTES_MAX, data)
        try:
            manifest = Manifest._of(data[:-8])
        except DamagedBytesError:
            raise
        except InvalidArgumentError as error:
            raise DamagedBytesError(str(error)) from None
        if manifest.encode() != data:
            raise DamagedBytesError("padding: found other bytes, expected zeros and a layout of 1 block: the manifest is "
                                    "damaged")
        return manifest

    @staticmethod
    def _of(data: bytes) -> Manifest:
        try:
            layout = Layout.decode(data[16:_NUMBERS_AT])
        except InvalidArgumentError as error:
            raise DamagedBytesError(f"layout: {error}") from None
        fields: dict[str, Any] = dict(zip(_NUMBERS, struct.unpack_from("<5I", data, _NUMBERS_AT)))
        at = _TEXTS_AT
        for name in _TEXTS:
            length = int.from_bytes(data[at:at + 4], "little")
            found = data[at + 4:at + 4 + length]
            if len(found) != length:
                raise DamagedBytesError(f"{name}: found {len(found)} bytes, expected {length}: the manifest is damaged")
            fields[name] = found.decode("latin-1")
            at += 4 + length
        return Manifest(layout=layout, **fields)

    @property
    def fingerprint(self) -> bytes:
        """16 bytes, a hash of the canonical ones."""
        data = self.encode()
        return struct.pack("<QQ", hash_words(_FINGERPRINT_SALT, data),
                           hash_words(_FINGERPRINT_SALT ^ 0xFFFF_FFFF_FFFF_FFFF, data))

    @property
    def salt_hash(self) -> int:
        """For init_sequence(): with it, blocks of another manifest have other names."""
        return int.from_bytes(self.fingerprint[:8], "little")

    def expect(self, expected: Manifest) -> None:
        """ManifestMismatchError: this one differs from the expected one."""
        for name in (*_TEXTS, *_NUMBERS):
            if getattr(self, name) != getattr(expected, name):
                raise ManifestMismatchError(name, getattr(self, name), getattr(expected, name))
        for name in _OF_LAYOUT:
            found, wanted = getattr(self.layout, name), getattr(expected.layout, name)
            if found != wanted:
                raise ManifestMismatchError(f"layout.{name}", found, wanted)


def _manifest_key(fingerprint: bytes) -> str:
    return f"maru.manifest.{fingerprint.hex()}"


def _namespace_key(space: object) -> str:
    return f"maru.namespace.{check_text('namespace', space, 1, NAMESPACE_BYTES_MAX)}"


def _record(fingerprint: bytes) -> bytes:
    return closed(b"MARUNAME" + struct.pack("<II", _VERSION, 48) + fingerprint + bytes(8))


def _fingerprint_of(record: View) -> bytes:
    data = bytes(record.data)
    check_frame("namespace", b"MARUNAME", "<I", 12, 48, 48, data)
    return data[16:32]


def find_manifest(client: Client, which: Union[str, bytes], tenant: Union[None, str, int] = None) -> Optional[Manifest]:
    """The manifest of a namespace, or of a fingerprint (bytes); None where there is none."""
    if isinstance(which, bytes):
        if len(which) != 16:
            raise InvalidArgumentError(f"fingerprint: found {len(which)} bytes, expected 16")
        fingerprint = which
    else:
        record = client.retrieve(_namespace_key(which), tenant)
        if record is None:
            return None
        with record:
            fingerprint = _fingerprint_of(record)
    view = client.retrieve(_manifest_key(fingerprint), tenant)
    if view is None:
        return None
    with view:
        manifest = Manifest.decode(view.data)
    if manifest.fingerprint != fingerprint:
        raise DamagedBytesError(f"fingerprint: found {manifest.fingerprint.hex()}, expected {fingerprint.hex()}: delete the "
                                f"block {_manifest_key(fingerprint)}")
    return manifest


class AttachedManifest:
    """The manifest of a namespace, held in the pool. The first one that attaches stores it; a later one with another manifest
    gets ManifestMismatchError before it reads a block. Nothing else keeps a namespace: without holders the pool may evict it,
    and the next one begins it anew; Manifest.salt_hash keeps the names of blocks apart then. Release it before the client
    closes."""

    def __init__(self, client: Client, space: str, manifest: Manifest, tenant: Union[None, str, int] = None) -> None:
        self.manifest = manifest
        self._views: list[View] = []
        self._client, self._tenant = client, tenant
        new: list[int] = []
        try:
            self._hold(_namespace_key(space), manifest, new)
        except BaseException:
            self.release()
            for block in new:
                try:
                    client.delete_block(block, unpinned=True)
                except (StillPinnedError, HasChildrenError, NotFoundError):
                    pass  # others hold it by now
            raise

    def _hold(self, key: str, manifest: Manifest, new: list[int]) -> None:
        fingerprint, data = manifest.fingerprint, manifest.encode()
        name = self._client.retrieve(key, self._tenant)
        if name is not None:
            self._views.append(name)
            self._check(name, fingerprint)
        kept = self._stored(_manifest_key(fingerprint), data, None, new)
        if kept.data != data:
            raise DamagedBytesError(f"{_manifest_key(fingerprint)}: found other bytes than those of this manifest: delete this "
                                    "block")
        if name is None:
            self._check(self._stored(key, _record(fingerprint), kept.block, []), fingerprint)

    def _stored(self, key: str, data: bytes, parent: Optional[int], new: list[int]) -> View:
        for _ in range(_TRIES):
            view = self._client.retrieve(key, self._tenant)
            if view is not None:
                self._views.append(view)
                return view
            stored = self._client.store_copy(key, data, parent=parent, priority=_PRIORITY, tenant=self._tenant)
            if stored.is_new:
                new.append(stored.block)
        raise TryAgainError(f"{key}: the pool evicts it as soon as it is stored: make room")

    def _check(self, name: View, fingerprint: bytes) -> None:
        found = _fingerprint_of(name)
        if found == fingerprint:
            return
        theirs = find_manifest(self._client, found, self._tenant)
        if theirs is not None:
            theirs.expect(self.manifest)
        raise ManifestMismatchError("fingerprint", found.hex(), fingerprint.hex())

    def release(self) -> None:
        """Lets go. May be called again."""
        while self._views:
            self._views.pop().release()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.release()
