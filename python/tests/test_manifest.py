"""maru.manifest and maru.block_set. tests/blocks has the same of manifest.hpp and block_set.hpp, and more processes."""
import dataclasses
import gc
import struct
import subprocess
import sys
import textwrap

import pytest

import maru
from maru.block_set import (BlockSet, BlockSetImportedError, BlocksGoneError, OtherPoolError, OtherTenantError,
                            OwnBlockSetError, export_blocks, import_blocks)
from maru.blocks import BlockHash, BlockPool
from maru.layout import Layout
from maru.manifest import (AttachedManifest, BytesVersionError, DamagedBytesError, Manifest, ManifestMismatchError,
                           find_manifest, hash_words)

PAGE_SIZE = 4
BLOCK_BYTES = 8192
CHECKSUM_SALT = 0x6D61_7275_2D73_756D


def manifest_of(model, **more):
    layout = Layout(layers=6, heads=2, head_dim=128, page_tokens=PAGE_SIZE, blocks=1000, dtype="uint8")
    return Manifest(**{**dict(framework="vllm", framework_version="0.11.0", model=model, layout=layout, dtype="bfloat16",
                              revision="8c22764a7e3675c50d4c7c9a4edb474456022b16", quantisation="fp8", page_size=PAGE_SIZE,
                              tensor_ranks=4, tensor_rank=1), **more})


def forged(data, at, value):
    """Other bytes at a place, and the right checksum."""
    data = data[:at] + value + data[at + len(value):-8]
    return data + struct.pack("<Q", hash_words(CHECKSUM_SALT, data))


def test_bytes_are_those_of_cpp():
    manifest = manifest_of("llama")
    assert len(manifest.encode()) == 272
    assert manifest.fingerprint.hex() == "0c3e40339bc258672cef966af2b5a1ee"
    assert manifest.salt_hash == int.from_bytes(bytes.fromhex("0c3e40339bc25867"), "little")
    blocks = ((12, BlockHash(13, 14), 15), ((1 << 64) - 1, BlockHash(16, 17), 18))
    found = BlockSet(bytes(range(16)), struct.pack("<QQ", 0x0102030405060708, 9), 10, 11, manifest, blocks)
    assert struct.unpack("<Q", found.encode()[-8:])[0] == 1963147944054341833
    assert BlockSet.decode(found.encode()) == found


def test_manifest_has_one_form():
    manifest = manifest_of("llama")
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest_of("llama", layout=dataclasses.replace(manifest.layout, blocks=7)) == manifest


@pytest.mark.parametrize("of_set", [False, True])
def test_damage_anywhere_is_refused(of_set):
    data, decode = manifest_of("m").encode(), Manifest.decode
    if of_set:
        data = BlockSet(bytes(16), bytes(16), 1, 0, manifest_of("m"), ((1, BlockHash(2, 3), 4),)).encode()
        decode = BlockSet.decode
    decode(data)
    for n in range(len(data)):
        with pytest.raises(DamagedBytesError, match=f"length: found {n} bytes"):
            decode(data[:n])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedBytesError, BytesVersionError)):
            decode(flipped)
    with pytest.raises(BytesVersionError, match="version: found 2, expected 1"):
        decode(forged(data, 8, struct.pack("<I", 2)))


def test_what_is_wrong_is_named():
    data = manifest_of("llama").encode()
    with pytest.raises(DamagedBytesError, match="tensor_rank: found 4, expected less than tensor_ranks, 4"):
        Manifest.decode(forged(data, 148, struct.pack("<I", 4)))
    with pytest.raises(DamagedBytesError, match="framework: found 92 bytes, expected 4294967295"):
        Manifest.decode(forged(data, 168, struct.pack("<I", 0xFFFF_FFFF)))
    with pytest.raises(DamagedBytesError, match="padding"):
        Manifest.decode(forged(data, 164, b"\1"))
    for wrong, words in (({"model": ""}, "model: found 0 bytes"), ({"model": "mod\u00e8le"}, "model: found the letter"),
                         ({"page_size": 0}, "page_size: found 0"), ({"tensor_rank": 4}, "tensor_rank: found 4"),
                         ({"lora": "l" * 1025}, "lora: found 1025 bytes"), ({"layout": None}, "layout: found None")):
        with pytest.raises(maru.InvalidArgumentError, match=words):
            manifest_of(**{"model": "llama", **wrong})


def test_namespace_refuses_another_manifest(client, other):
    with AttachedManifest(client, "python", manifest_of("llama")), AttachedManifest(other, "python", manifest_of("llama")):
        with pytest.raises(ManifestMismatchError, match='model: found "llama", expected "qwen"') as refused:
            AttachedManifest(other, "python", manifest_of("qwen"))
        assert (refused.value.field, refused.value.found, refused.value.expected) == ("model", "llama", "qwen")
        layout = dataclasses.replace(manifest_of("llama").layout, order="hnd")
        with pytest.raises(ManifestMismatchError, match='layout.order: found "nhd", expected "hnd"'):
            AttachedManifest(other, "python", manifest_of("llama", layout=layout))
        assert find_manifest(other, manifest_of("qwen").fingerprint) is None, "what is refused is not stored"
        assert find_manifest(other, "python") == manifest_of("llama")
        assert other.statistics().pins == 2
    assert other.statistics().pins == 0
    assert find_manifest(client, "elsewhere") is None


def test_no_manifest_under_its_key(client):
    client.store_copy("maru.namespace.python-wrong", b"x" * 48)
    with pytest.raises(DamagedBytesError, match="MARUNAME"):
        AttachedManifest(client, "python-wrong", manifest_of("llama"))
    assert client.statistics().pins == 0


@pytest.fixture
def pool(client):
    return BlockPool(client, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES)


def registered(pool, first):
    block = pool.allocate(1).blocks[0]
    block.init_sequence(4711)
    block.add_tokens(range(first, first + PAGE_SIZE))
    block.data[:4] = struct.pack("<I", first)
    return block.commit().register()


IMPORTER = """
    import sys
    import maru
    from maru.block_set import import_blocks
    from maru.blocks import BlockPool
    from maru.manifest import Manifest

    expected, data = (bytes.fromhex(line) for line in sys.stdin.read().split())
    with maru.Client(sys.argv[1], timeout_ms=60_000) as client:
        try:
            with import_blocks(BlockPool(client, page_size=4, block_bytes=8192), Manifest.decode(expected), data) as imported:
                print([int.from_bytes(block.data[:4], "little") for block in imported.blocks], client.statistics().pins)
        except maru.MaruError as error:
            print(type(error).__name__, error)
        print(client.statistics().pins)
"""


def imported_elsewhere(marud, expected, data):
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(IMPORTER), str(marud.socket)], text=True,
                         stdout=subprocess.PIPE, input=f"{expected.encode().hex()} {data.hex()}", timeout=120, check=True)
    return ran.stdout.splitlines()


def test_second_process_imports(marud, pool):
    blocks = [registered(pool, 1000), registered(pool, 2000)]
    data = export_blocks(pool, manifest_of("llama"), blocks)
    assert imported_elsewhere(marud, manifest_of("llama"), data) == ["[1000, 2000] 2", "0"]
    assert imported_elsewhere(marud, manifest_of("qwen"), data) == [
        'ManifestMismatchError model: found "llama", expected "qwen"', "0"]
    blocks[0].unregister()
    assert imported_elsewhere(marud, manifest_of("llama"), data) == [
        "BlocksGoneError found 1 of 2 blocks; block 0 of the set is gone: compute it again, or ask for another set", "0"]


def test_import_has_its_errors(pool, other):
    blocks = [registered(pool, 3000), registered(pool, 4000)]
    manifest = manifest_of("llama")
    data = export_blocks(pool, manifest, blocks)
    importer = BlockPool(other, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES)
    with pytest.raises(OwnBlockSetError, match="set 1 is this BlockPool's own"):
        import_blocks(pool, manifest, data)
    with import_blocks(importer, manifest, data) as imported:
        assert [block.block for block in imported.blocks] == [block.block for block in blocks]
        assert imported.blocks[0].data.readonly
        with pytest.raises(BlockSetImportedError, match="set 1 of this exporter is imported"):
            import_blocks(importer, manifest, data)
        assert other.statistics().pins == 2
    with pytest.raises(OtherTenantError, match="tenant: found 0000000000000000, expected 0000000000000005"):
        import_blocks(BlockPool(other, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES, tenant=5), manifest, data)
    with pytest.raises(OtherPoolError, match="pool: found the uuid ff"):
        import_blocks(importer, manifest, forged(data, 24, b"\xff" * 16))
    with pytest.raises(BlocksGoneError) as refused:
        import_blocks(importer, manifest, forged(data, 112, struct.pack("<Q", 1 << 40)))
    assert refused.value.gone == (1,)
    with pytest.raises(DamagedBytesError, match="blocks: found 18446744073709551615"):
        import_blocks(importer, manifest, forged(data, 72, b"\xff" * 8))
    with pytest.raises(maru.HandleUsedError):
        blocks[0].release()
        export_blocks(pool, manifest, blocks)
    with pytest.raises(maru.InvalidArgumentError, match="another BlockPool"):
        export_blocks(importer, manifest, blocks[1:])
    with pytest.raises(maru.InvalidArgumentError, match="blocks: found 0"):
        export_blocks(pool, manifest, [])
    del refused
    gc.collect()
    assert other.statistics().pins == 0, "something stayed pinned"
