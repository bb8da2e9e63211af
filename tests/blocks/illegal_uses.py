"""Compiles each part of illegal_uses.cc alone, and expects the error that stands beside it; the control compiles. So a use is
refused for the reason that it is illegal, not for a slip in the test."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti", "-fsyntax-only"]


def parts_of(text):
    """The beginning, and the name, pattern and body of each part."""
    pieces = re.split(r"^// use (.*?): (.*)\n", text, flags=re.MULTILINE)
    return pieces[0], list(zip(pieces[1::3], pieces[2::3], pieces[3::3]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", required=True)
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    beginning, parts = parts_of(arguments.file.read_text())
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="maru-illegal-") as temporary:
        # The header, read once for all: g++ finds it so where it stands for the header; clang++ looks for another name.
        (pathlib.Path(temporary) / "maru").mkdir()
        subprocess.run([arguments.compiler, *(flag for flag in FLAGS if flag != "-fsyntax-only"), "-I", arguments.include,
                        "-x", "c++-header", pathlib.Path(arguments.include) / "maru/blocks.hpp",
                        "-o", pathlib.Path(temporary) / "maru/blocks.hpp.gch"], check=True, timeout=300)
        for name, pattern, body in parts:
            source = pathlib.Path(temporary) / "use.cc"
            source.write_text(f"{beginning}\nvoid use(GIVEN);\nvoid use(GIVEN) {{\n#line 1 \"{name}\"\n{body}}}\n")
            command = [arguments.compiler, *FLAGS, "-I", temporary, "-I", arguments.include, "-x", "c++", source]
            ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                                 env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
            compiles = ran.returncode == 0
            errors = "\n".join(line for line in ran.stdout.splitlines() if "error:" in line)
            if pattern == "COMPILES":
                right = compiles
            else:
                right = not compiles and re.search(pattern, errors) is not None
            if not right:
                wrong += 1
                print(f"{name}: expected {pattern}, found " + ("no error" if compiles else errors or ran.stdout))
    print(f"{len(parts)} uses, {wrong} wrong")
    return 1 if wrong or len(parts) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
