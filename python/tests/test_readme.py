"""The example of docs/python/client.md runs as it stands there, and the versions agree."""
import pathlib
import re
import subprocess
import sys

import maru

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_example_of_the_page_runs(marud):
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs/python/client.md").read_text(), re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", example], env=marud.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "[ True  True  True  True  True  True  True  True] 0.5" in done.stdout


def test_a_second_process_matches_the_blocks_of_the_first(marud):
    page = (ROOT / "docs/python/client.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    printed = [subprocess.run([sys.executable, "-c", example], env=marud.environment, capture_output=True, text=True,
                              timeout=60, check=True).stdout.splitlines() for _ in range(2)]
    assert printed[0][0] == "0 of 3 blocks matched" and len(printed[0]) == 4
    assert printed[1] == ["3 of 3 blocks matched"]


def test_the_versions_agree():
    for name in ("meson.build", "pyproject.toml"):
        assert re.search(rf"version\s*[:=]\s*['\"]{re.escape(maru.version())}['\"]", (ROOT / "python" / name).read_text())
