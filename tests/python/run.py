"""Runs python/tests with the package as it lies in the sources and the modules that the build has made of it."""
import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile


def assemble(folder, sources, build):
    """The package, as an installation would have it."""
    for package in ("maru", "maru_handler", "maru_lmcache"):
        for source in (sources / package).rglob("*.py"):
            place = folder / source.relative_to(sources)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source)
    for module in (build / "python/maru").glob("*.so"):
        (folder / "maru" / module.name).symlink_to(module)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", required=True, type=pathlib.Path)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--marud", required=True, type=pathlib.Path)
    parser.add_argument("--tierd", type=pathlib.Path)
    arguments = parser.parse_args()
    missing = [name for name in ("numpy", "pytest") if importlib.util.find_spec(name) is None]
    if sys.version_info < (3, 11) or missing:
        print(f"Python is {sys.version.split()[0]}, without: {' '.join(missing) or 'nothing'}; 3.11, numpy, pytest are wanted")
        return 77
    build = arguments.build.resolve()
    libraries = [str(build / "libmaru" / name) for name in (".", "tokens", "layout", "adapters", "blend", "prefetch")]
    with tempfile.TemporaryDirectory(prefix="maru-python-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # one test reads as another user
        assemble(folder, arguments.sources.resolve(), build)
        environment = {**os.environ, "PYTHONPATH": name, "LD_LIBRARY_PATH": ":".join(libraries), "COLUMNS": "300",
                       "PYTHONDONTWRITEBYTECODE": "1", "MARU_TEST_MARUD": str(arguments.marud.resolve())}
        if arguments.tierd:
            environment["MARU_TEST_TIERD"] = str(arguments.tierd.resolve())
        # Each test on a line of its own, and at the end why something was skipped or failed: scripts/test-results reads both.
        command = [sys.executable, "-m", "pytest", "-v", "-rsfE", "--color=no", "-p", "no:cacheprovider", "--ignore=engines",
                   "--ignore=live", "--ignore=test_torch.py"]
        return subprocess.run(command, cwd=arguments.sources / "tests", env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
