"""That the extension cannot be built for a CPython without the GIL, and says so. Compiled as in this build, for such a one."""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys

arguments = argparse.ArgumentParser()
arguments.add_argument("--build", type=pathlib.Path, required=True)
build = arguments.parse_args().build

# One file, as the module's files are compiled, each alone or several at a time.
source = pathlib.Path(__file__).resolve().parents[2] / "python/maru/native/arrays.cc"
entries = json.loads((build / "compile_commands.json").read_text())
entry = next(entry for entry in entries if "/_maru.cpython" in entry["output"])
command = [str(source) if word == entry["file"] else word for word in shlex.split(entry["command"])]
for flags, expected in ([], ""), (["-DPy_GIL_DISABLED=1"], "needs the GIL"):
    done = subprocess.run([*command, *flags, "-fsyntax-only"], cwd=build, capture_output=True, text=True,
                          timeout=120)
    if (done.returncode != 0) != bool(expected) or expected not in done.stderr:
        sys.exit(f"{flags}: status {done.returncode}, expected {expected or 'no error'!r}:\n{done.stderr}")
