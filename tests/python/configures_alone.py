"""That pip's build of the package finds all sources: python/meson.build reads their names in the libraries' build files."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

arguments = argparse.ArgumentParser()
arguments.add_argument("--sources", type=pathlib.Path, required=True)
sources = arguments.parse_args().sources

with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(["meson", "setup", folder, sources / "python"], capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        sys.exit(f"the package cannot be built by pip:\n{done.stdout}{done.stderr}")
    # A source that a library has is a source of the package, too.
    built = (pathlib.Path(folder) / "build.ninja").read_text()
    names = [path.relative_to(sources).as_posix() for path in sorted((sources / "libmaru/client").glob("*.cc"))]
    missing = [name for name in names if name not in built]
    if missing:
        sys.exit(f"found no {', '.join(missing)} in the package's build, expected all of libmaru/client")
