"""What tells the weights of two models apart. No engine, no marud."""
import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

import maru
from maru import weights
from maru.weights import digest_of, folder_of, states_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Of this test alone, for files of this moment, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "SETTLED_NS", -1 << 62)
    return tmp_path / "cache" / "maru" / "weights"


@pytest.fixture
def reads(monkeypatch):
    """The files that are read, in order."""
    found = []
    hash_with = weights._File.hash_with
    monkeypatch.setattr(weights._File, "hash_with",
                        lambda file, pool: (found.append(os.path.basename(file.path)), hash_with(file, pool))[1])
    return found


def safetensors(value, count=1000):
    """The file of one tensor: files of two values differ in nothing but the tensor."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack("<f", value) * count


def model(folder, value=1.0, **more):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model-00001-of-00002.safetensors").write_bytes(safetensors(value))
    (folder / "model-00002-of-00002.safetensors").write_bytes(safetensors(2.0))
    for name, content in more.items():
        (folder / name).write_bytes(content)
    return folder


def digest(path):
    return digest_of(str(path))


def test_two_fine_tunes_of_one_architecture_differ(tmp_path):
    assert digest(model(tmp_path / "a" / "m", 1.0)) != digest(model(tmp_path / "b" / "m", 1.5))


def test_a_single_byte_anywhere_in_many_pieces_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES", 100)
    monkeypatch.setattr(weights, "READ_BYTES", 30)
    content = bytes(1050)
    found = set()
    for place in (0, 29, 30, 99, 100, 555, 1049, None):
        file = tmp_path / "w.gguf"
        changed = bytearray(content)
        if place is not None:
            changed[place] = 1
        file.write_bytes(changed)
        found.add(digest(file))
    assert len(found) == 8
    for size in (1000, 1049, 1051):
        file.write_bytes(bytes(size))
        found.add(digest(file))
    assert len(found) == 11


def test_a_copy_is_the_same_however_its_path_is_spelled(tmp_path, monkeypatch):
    first = model(tmp_path / "a" / "m")
    shutil.copytree(first, tmp_path / "b")
    (tmp_path / "c").symlink_to(first)
    os.utime(tmp_path / "b" / "config.json", (1, 1))
    monkeypatch.chdir(tmp_path / "a")
    assert len({digest(path) for path in (first, tmp_path / "b", tmp_path / "c", "m", "./m", "../a/m/", "m/.")}) == 1


def test_the_snapshot_of_a_hub_is_what_its_links_lead_to(tmp_path):
    """Files of a snapshot are links to blobs, which are named by what they hold."""
    plain, snapshot = model(tmp_path / "m"), tmp_path / "models--o--m" / "snapshots" / ("0" * 40)
    blobs = tmp_path / "models--o--m" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(plain.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert digest(snapshot) == digest(plain)
    (blobs / "0").unlink()
    with pytest.raises(maru.InvalidArgumentError, match="config.json cannot be read.*No such file"):
        digest(snapshot)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "config.json", "model.gguf", "modeling_own.py",
                                  "hf_quant_config.json", "adapter_model.safetensors", "preprocessor_config.json",
                                  "speech_tokenizer.safetensors", "model.safetensors.index.json", "scheduler.py"])
def test_whatever_an_engine_may_load_counts(tmp_path, name):
    first = model(tmp_path / "a", **{name: b"1"})
    second = model(tmp_path / "b", **{name: b"2"})
    assert digest(first) != digest(second)
    assert digest(first) != digest(model(tmp_path / "c", **({} if name == "config.json" else {"other": b""})))


def test_what_a_folder_below_holds_counts(tmp_path):
    first, second = model(tmp_path / "a"), model(tmp_path / "b")
    for folder, content in ((first, b"1"), (second, b"2")):
        (folder / "audio" / "deep").mkdir(parents=True)
        (folder / "audio" / "deep" / "model.safetensors").write_bytes(content)
        (folder / "audio" / "loop").symlink_to("..")
    assert digest(first) != digest(second)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "README.md", "merges.txt",
                                  "generation_config.json", "chat_template.jinja", "optimizer.pt", "trainer_state.json",
                                  ".gitattributes", ".cache/x", "checkpoint-500/model.safetensors", "original/a.pth"])
def test_what_the_kv_cache_does_not_follow_from_does_not_count(tmp_path, name):
    first, second = model(tmp_path / "a"), model(tmp_path / "b")
    file = second / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"other")
    assert digest(first) == digest(second)


def test_a_file_alone_is_the_same_under_any_name_and_its_shards_belong_to_it(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"weights")
    assert digest(tmp_path / "a.gguf") == digest(tmp_path / "b.gguf")
    shards = [tmp_path / f"c-0000{i}-of-00002.gguf" for i in (1, 2)]
    for shard in shards:
        shard.write_bytes(b"weights")
    assert len(states_of(str(shards[0]))) == 2
    before = digest(shards[0])
    shards[1].write_bytes(b"others!")
    assert digest(shards[0]) != before
    alone = digest(tmp_path / "a.gguf")
    (tmp_path / "mmproj-a.gguf").write_bytes(b"images")
    assert digest(tmp_path / "a.gguf") != alone


def test_what_was_read_is_not_read_again(tmp_path, reads):
    folder = model(tmp_path / "m")
    before = digest(folder)
    assert sorted(reads) == ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert digest(folder) == before and len(reads) == 3


def test_a_change_in_place_is_found_even_with_its_times_put_back(tmp_path, reads):
    folder = model(tmp_path / "m")
    file = folder / "model-00002-of-00002.safetensors"
    before, times = digest(folder), os.stat(file)
    with open(file, "r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\1")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    del reads[:]
    assert digest(folder) != before and reads == [file.name]


def test_a_file_of_this_moment_is_not_kept(tmp_path, reads, monkeypatch):
    """It may change again within the same tick of the clock, which nothing shows."""
    monkeypatch.setattr(weights, "SETTLED_NS", 1 << 62)
    folder = model(tmp_path / "m")
    assert digest(folder) == digest(folder) and len(reads) == 6


@pytest.mark.parametrize("damage", ["", "[]", "[[1, 2], 3]", "null", '[[1,2,3,4,5], "' + "0" * 64 + '"]'])
def test_an_entry_that_is_damaged_counts_as_none(tmp_path, cache, reads, damage):
    folder = model(tmp_path / "m")
    before = digest(folder)
    for entry in cache.iterdir():
        entry.write_text(damage)
    assert digest(folder) == before and len(reads) == 6


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path, cache, reads, caplog):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    folder = model(tmp_path / "m")
    assert digest(folder) == digest(folder) and len(reads) == 6
    assert "others may write there" in caplog.text and not list(cache.iterdir())


def test_a_cache_that_cannot_be_is_no_hindrance(tmp_path, monkeypatch, reads, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = model(tmp_path / "m")
    assert digest(folder) == digest(folder) and len(reads) == 6
    assert "read at each start" in caplog.text


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    folder = model(tmp_path / "m")
    hash_piece = weights._File._hash_piece

    def change(file, begin):
        if file.path.endswith("00001-of-00002.safetensors"):
            with open(file.path, "ab") as opened:
                opened.write(b"x")
        return hash_piece(file, begin)

    monkeypatch.setattr(weights._File, "_hash_piece", change)
    with pytest.raises(maru.InvalidArgumentError, match="00001-of-00002.safetensors was changed while it was read"):
        digest(folder)


def test_what_has_no_weights_is_refused_by_name(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(maru.InvalidArgumentError, match="empty has no file of a model"):
        digest(tmp_path / "empty")
    with pytest.raises(maru.InvalidArgumentError, match="nowhere cannot be read"):
        digest(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(maru.InvalidArgumentError, match="pipe is no file of weights"):
        digest(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/usr/bin/setpriv"), reason="needs another user")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    folder = model(tmp_path / "m")
    file = folder / "model-00001-of-00002.safetensors"
    file.chmod(0)
    code = "import sys; from maru.weights import digest_of; digest_of(sys.argv[1])"
    prefix = ["/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run([*prefix, sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert f"{file} cannot be read" in done.stderr and "Permission denied" in done.stderr


def test_processes_that_start_together_read_once(tmp_path):
    folder = model(tmp_path / "m")
    code = ("import sys; from maru import weights; weights.SETTLED_NS = -1 << 62; read = weights._File.hash_with\n"
            "def count(file, pool): print('read', file.path, flush=True); return read(file, pool)\n"
            "weights._File.hash_with = count; print(weights.digest_of(sys.argv[1]))")
    started = [subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = "".join(process.communicate(timeout=120)[0] for process in started).splitlines()
    assert len([line for line in said if line.startswith("read")]) == 3
    assert len({line for line in said if not line.startswith("read")}) == 1


def test_a_name_leads_to_the_folder_that_holds_it(tmp_path, monkeypatch):
    folder = str(model(tmp_path / "m"))
    assert folder_of(folder, "main", None, "0" * 40) == folder
    with pytest.raises(maru.InvalidArgumentError, match="s3://bucket/m are not in a folder of this machine"):
        folder_of("s3://bucket/m", None, None, None)
    with pytest.raises(maru.InvalidArgumentError, match="'no/such' are found neither at this path nor"):
        folder_of("no/such", None, str(tmp_path), None)


def test_a_name_of_a_hub_leads_to_what_was_downloaded(tmp_path, monkeypatch):
    """With a stand-in for the library of the hub: the same call, the same layout."""
    commit = "a" * 40
    snapshot = tmp_path / "hub" / "models--o--m" / "snapshots" / commit
    model(snapshot)
    asked = []

    def snapshot_download(name, **more):
        asked.append((name, more))
        return str(snapshot)

    monkeypatch.setitem(sys.modules, "huggingface_hub", type(sys)("huggingface_hub"))
    sys.modules["huggingface_hub"].snapshot_download = snapshot_download
    assert folder_of("o/m", "main", "/downloads", commit) == folder_of("o/m", None, None, None) == str(snapshot)
    assert asked[0] == ("o/m", {"revision": "main", "cache_dir": "/downloads", "local_files_only": True})
    with pytest.raises(maru.InvalidArgumentError, match="revision that does not move"):
        folder_of("o/m", None, None, "b" * 40)
