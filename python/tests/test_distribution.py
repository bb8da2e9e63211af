"""Another project has the name maru on Python's package index, and its modules are called so, too."""
import pathlib
import subprocess
import sys
import tomllib

import pytest

import maru

PACKAGE = pathlib.Path(maru.__file__).parent


@pytest.fixture
def installed(tmp_path):
    """A folder of packages that holds this one."""
    (tmp_path / "maru").mkdir()
    for file in PACKAGE.iterdir():
        if file.suffix in (".py", ".so"):
            (tmp_path / "maru" / file.name).symlink_to(file.resolve() if file.suffix == ".so" else file)
    (tmp_path / "maru" / "distribution.py").unlink()  # it looks beside itself
    (tmp_path / "maru" / "distribution.py").write_text((PACKAGE / "distribution.py").read_text())
    (tmp_path / "marud-0.1.0.dist-info").mkdir()
    return tmp_path


def run(folder, code):
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {code}",
                           str(folder)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def test_the_distribution_is_not_called_as_the_other():
    sources = pathlib.Path(__file__).resolve().parents[1] / "pyproject.toml"
    assert tomllib.loads(sources.read_text())["project"]["name"] == "marud"


def test_alone_it_says_nothing(installed):
    status, said = run(installed, "import maru; maru.MaruHandler")
    assert status == 0 and "RuntimeWarning" not in said


def test_beside_the_other_it_says_so(installed):
    (installed / "maru-0.2.0.dist-info").mkdir()
    status, said = run(installed, "import maru; maru.MaruHandler")
    assert status == 0 and "RuntimeWarning" in said and "maru-0.2.0.dist-info" in said and "pip uninstall maru" in said


def test_under_the_other_its_parts_refuse_to_start(installed):
    (installed / "maru" / "__init__.py").unlink()
    (installed / "maru" / "__init__.py").write_text("def get_analyzer(): ...")
    status, said = run(installed, "from maru.distribution import expect_this_package; expect_this_package()")
    assert status != 0 and "ImportError" in said and "another project's" in said and "marud" in said
