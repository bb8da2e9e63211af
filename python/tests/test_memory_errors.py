"""Memory that goes bad. In a process of its own: handling it holds for a whole process."""
import subprocess
import sys

import pytest

import maru
import with_marud
from conftest import PAGE, Marud

CODE = """
import os, sys
import maru

socket, pages = sys.argv[1:]
maru.handle_memory_errors()
maru.handle_memory_errors(views=True)
client = maru.Client(socket, timeout_ms=60_000)
client.store_copy("k", b"x" * 8192)
client.store_copy("other", b"x" * 8192)
view = client.retrieve("k")
view.check_memory()
os.truncate(pages, client.geometry().control_bytes)
try:
    client.retrieve("other")
    print("retrieved")
except maru.BadMemoryError as error:
    print("BadMemoryError of", error.call)
try:
    client.store_copy("new", b"x")
    print("stored")
except maru.BadMemoryError as error:
    print("BadMemoryError of", error.call)
"""


def test_memory_that_is_gone_is_an_error_and_no_signal(marud_program, monkeypatch):
    monkeypatch.setattr(with_marud, "CONFIG", with_marud.CONFIG.replace(
        'backend = "memory"', 'backend = "file"\npath = "{directory}/pages"'))
    with Marud(marud_program, more="checksums = true") as running:
        done = subprocess.run([sys.executable, "-c", CODE, str(running.socket), f"{running.directory.name}/pages"],
                              capture_output=True, text=True, timeout=with_marud.PATIENCE)
        assert done.stdout.split("\n")[:2] == ["BadMemoryError of maru_retrieve", "BadMemoryError of maru_store_copy"], done
        assert done.returncode == 0, done


def test_memory_that_is_good_is_no_error(client, key):
    client.store_copy(key, b"x" * PAGE)
    view = client.retrieve(key)
    view.check_memory()
    with client.match_prefix([key]) as match:
        match.resolve([key])[0].check_memory()
    view.release()
    with pytest.raises(maru.ClosedError, match="ask before that"):
        view.check_memory()


def test_what_is_no_flag_is_refused():
    with pytest.raises(TypeError):
        maru.handle_memory_errors(True)
    with pytest.raises(maru.InvalidArgumentError, match="views is True or False, not str"):
        maru.handle_memory_errors(views="no")
