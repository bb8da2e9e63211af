"""mypy over the Python package, as strict as python/pyproject.toml says."""
import argparse
import shutil
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", required=True)
    parser.add_argument("--cache", required=True)
    arguments = parser.parse_args()
    if shutil.which("mypy") is None:
        print("mypy is not here (Debian package mypy)")
        return 77
    return subprocess.run(["mypy", "--cache-dir", arguments.cache, "--config-file", "pyproject.toml"],
                          cwd=arguments.sources).returncode


if __name__ == "__main__":
    sys.exit(main())
