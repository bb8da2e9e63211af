"""Compiles the C++ example of docs/blocks.md as a stranger would, and runs it against a marud: one process fills the pool, a
second one matches. The example of the manual page is compiled and run, too."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
import function_pages
import installed_tree
import with_marud

STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-fno-exceptions", "-fno-rtti"]


def program_of(arguments, folder, name, source):
    """The example as a program, compiled."""
    path = folder / f"{name}.cc"
    path.write_text(source)
    linked = []
    for library in (arguments.library.resolve(), arguments.tokens_library.resolve()):
        linked += [library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run([arguments.compiler, *STRICT, "-I", arguments.sources / "include", "-o", folder / name, path, *linked,
                    *installed_tree.sanitizer_flags(arguments.build)], check=True, timeout=300)
    return folder / name


def lines_of(marud, program, *words):
    ran = subprocess.run([program, *words], env=marud.environment, timeout=120, text=True, stdout=subprocess.PIPE)
    if ran.returncode != 0:
        raise SystemExit(f"{program.name} {words}: status {ran.returncode}\n{ran.stdout}")
    return ran.stdout.splitlines()


def expect(found, expected):
    if found != expected:
        raise SystemExit(f"found {found}, expected {expected}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("sources", "build", "compiler", "library", "tokens-library", "marud"):
        parser.add_argument("--" + name, required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    page = (arguments.sources / "docs/blocks.md").read_text()
    example = re.search(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL).group(1)
    manual = function_pages.code((arguments.sources / "man/maru_blocks.7.scd").read_text(), "EXAMPLE")
    with tempfile.TemporaryDirectory(prefix="maru-blocks-") as temporary:
        folder = pathlib.Path(temporary)
        program = program_of(arguments, folder, "example", example)
        short = program_of(arguments, folder, "manual", manual)
        with with_marud.Marud(arguments.marud) as marud:
            expect(lines_of(marud, program, "match"), ["0 of 3 blocks matched"])
            registered = lines_of(marud, program, "fill")
            expect([line.split()[0] for line in registered], ["registered"] * 3)
            matched = lines_of(marud, program, "match")
            hashes = [line.split()[1] for line in registered]
            expect(matched, [f"{hash}: keys and values up to token {1015 + 16 * i}" for i, hash in enumerate(hashes)]
                   + ["3 of 3 blocks matched"])
            expect([line.split()[0] for line in lines_of(marud, program, "fill")], ["was"] * 3)
            expect(lines_of(marud, short), ["matched 1 block: keys and values"])
            expect(lines_of(marud, short), ["matched 1 block: keys and values"])
    print("the examples ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
