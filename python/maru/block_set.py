"""Blocks for another process of the pool, as bytes: these lives of these blocks, their keys and lengths, and their manifest.

    data = export_blocks(pool, manifest, [registered])         # keep the handles until the other process has imported it
    with import_blocks(pool, manifest, data) as imported:      # in the other process
        bytes(imported.blocks[0].data[:4])

What cannot be imported raises an error with a name, and nothing stays pinned. The bytes are those of
maru/blocks/block_set.hpp, which describes them.
"""
from __future__ import annotations

import dataclasses
import struct
from types import TracebackType
from typing import Any, Optional, Sequence, TypeVar

from ._maru import View
from .blocks import BlockHash, BlockPool, ImmutableBlock
from .errors import InvalidArgumentError, MaruError
from .manifest import MANIFEST_BYTES_MAX, DamagedBytesError, Manifest, check_frame, closed

BLOCKS_MAX = 1 << 20
_HEAD = struct.Struct("<8sIIQ16s16sQQQ")
_BLOCK = struct.Struct("<QQQQ")
_VERSION = 1

_Self = TypeVar("_Self")


class BlockSetError(MaruError):
    """A block set cannot be imported here."""


class OtherPoolError(BlockSetError):
    """The set is of another pool."""


class OtherTenantError(BlockSetError):
    """The blocks of the set are of another tenant."""


class OwnBlockSetError(BlockSetError):
    """This BlockPool exported the set: use the handles that it has."""


class BlockSetImportedError(BlockSetError):
    """This BlockPool has imported the set, and still has that import."""


class BlocksGoneError(BlockSetError):
    """Blocks of the set are gone: `gone` says which, counted from 0."""

    gone: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class BlockSet:
    """What is in the bytes. A block is its life, its hash, and its bytes."""

    pool_uuid: bytes
    exporter: bytes
    serial: int
    tenant: int
    manifest: Manifest
    blocks: tuple[tuple[int, BlockHash, int], ...]

    def encode(self) -> bytes:
        if not 1 <= len(self.blocks) <= BLOCKS_MAX:
            raise InvalidArgumentError(f"blocks: found {len(self.blocks)}, expected 1 to {BLOCKS_MAX}")
        manifest = self.manifest.encode()
        total = _HEAD.size + len(self.blocks) * _BLOCK.size + len(manifest) + 8
        head = _HEAD.pack(b"MARUBSET", _VERSION, len(manifest), total, self.pool_uuid, self.exporter, self.serial, self.tenant,
                          len(self.blocks))
        table = b"".join(_BLOCK.pack(block, hash.sequence, hash.check, size) for block, hash, size in self.blocks)
        return closed(head + table + manifest)

    @staticmethod
    def decode(data: Any) -> BlockSet:
        """DamagedBytesError, BytesVersionError."""
        data = bytes(data)
        most = _HEAD.size + BLOCKS_MAX * _BLOCK.size + MANIFEST_BYTES_MAX + 8
        check_frame("block set", b"MARUBSET", "<Q", 16, _HEAD.size + _BLOCK.size + 16, most, data)
        _, _, manifest_bytes, _, uuid, exporter, serial, tenant, count = _HEAD.unpack_from(data)
        room = len(data) - _HEAD.size - 8
        if not 1 <= count <= BLOCKS_MAX or count * _BLOCK.size + manifest_bytes != room:
            raise DamagedBytesError(f"blocks: found {count} and a manifest of {manifest_bytes} bytes, expected {room} bytes of "
                                    "both: the block set is damaged")
        end = _HEAD.size + count * _BLOCK.size
        try:
            manifest = Manifest.decode(data[end:-8])
        except InvalidArgumentError as error:
            raise type(error)(f"manifest: {error}") from None
        blocks = tuple((block, BlockHash(sequence, check), size)
                       for block, sequence, check, size in _BLOCK.iter_unpack(data[_HEAD.size:end]))
        return BlockSet(uuid, exporter, serial, tenant, manifest, blocks)


def export_blocks(pool: BlockPool, manifest: Manifest, blocks: Sequence[ImmutableBlock]) -> bytes:
    """The bytes of a set of registered blocks of this pool. Of a duplicate the set has the block that is in the pool."""
    entries = []
    for block in blocks:
        block._use()
        if block._pool is not pool:
            raise InvalidArgumentError("A block is of another BlockPool: export it from that one.")
        entries.append((block.block, block.hash, _bytes_in_pool(block)))
    with pool._lock:
        serial = pool._sets_exported = pool._sets_exported + 1
    return BlockSet(pool.client.geometry().uuid, pool._exporter, serial, pool.tenant or 0, manifest, tuple(entries)).encode()


def _bytes_in_pool(block: ImmutableBlock) -> int:
    return block._view.data.nbytes


class ImportedBlocks:
    """The blocks of a set, held. While this is not released, the same set cannot be imported again into this BlockPool."""

    def __init__(self, pool: BlockPool, id: tuple[bytes, int]) -> None:
        self.blocks: list[ImmutableBlock] = []
        self._pool = pool
        self._id: Optional[tuple[bytes, int]] = id

    def release(self) -> None:
        """Lets the blocks go, and forgets the set. May be called again."""
        while self.blocks:
            self.blocks.pop().release()
        self._forget()

    def _forget(self) -> None:
        if self._id is not None:
            self._pool._sets_imported.discard(self._id)
            self._id = None

    def __del__(self) -> None:
        self._forget()  # and no more: the collector may run where the pool's lock is held

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.release()


def import_blocks(pool: BlockPool, expected: Manifest, data: Any) -> ImportedBlocks:
    """Holds exactly the lives of the set, all or none. A set of another manifest than the expected one is refused before any
    block is looked at. Errors: DamagedBytesError, BytesVersionError, OtherPoolError, ManifestMismatchError, OtherTenantError,
    OwnBlockSetError, BlockSetImportedError, BlocksGoneError; those of Client.retrieve_batch."""
    found = BlockSet.decode(data)
    uuid = pool.client.geometry().uuid
    if found.pool_uuid != uuid:
        raise OtherPoolError(f"pool: found the uuid {found.pool_uuid.hex()}, expected {uuid.hex()}: import the set in a "
                             "process of its pool")
    found.manifest.expect(expected)
    if found.tenant != (pool.tenant or 0):
        raise OtherTenantError(f"tenant: found {found.tenant:016x}, expected {pool.tenant or 0:016x}: import it into a "
                               "BlockPool of its tenant")
    imported = _claimed(pool, found)
    try:
        _pin(pool, found, imported)
    except BaseException:
        imported.release()
        raise
    return imported


def _claimed(pool: BlockPool, found: BlockSet) -> ImportedBlocks:
    id = (found.exporter, found.serial)
    with pool._lock:
        if found.exporter == pool._exporter:
            raise OwnBlockSetError(f"set {found.serial} is this BlockPool's own: use the handles that it was made of")
        if id in pool._sets_imported:
            raise BlockSetImportedError(f"set {found.serial} of this exporter is imported: use that import, or release it "
                                        "first")
        pool._sets_imported.add(id)
    return ImportedBlocks(pool, id)


def _pin(pool: BlockPool, found: BlockSet, imported: ImportedBlocks) -> None:
    views = pool.client.retrieve_batch([hash.key() for _, hash, _ in found.blocks], pool.tenant)
    gone = []
    for index, (view, (life, hash, size)) in enumerate(zip(views, found.blocks)):
        # Another life under the key is not what the exporter has.
        if isinstance(view, View) and view.block == life and view.nbytes == size:
            imported.blocks.append(ImmutableBlock(pool, view, hash, False))
        else:
            gone.append(index)
    if not gone:
        return
    for view in views:
        if isinstance(view, View):
            view.release()
    imported.blocks.clear()
    error = BlocksGoneError(f"found {len(views) - len(gone)} of {len(views)} blocks; block {gone[0]} of the set is gone: "
                            "compute it again, or ask for another set")
    error.gone = tuple(gone)
    raise error
