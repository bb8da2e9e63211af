"""Installs the build into a folder of its own and builds the C and the C++ program against that with pkg-config alone, so
that a header or a flag that is not installed shows."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def meson_of(build):
    """The meson that configured the build; another version cannot install it."""
    wanted = json.loads((pathlib.Path(build) / "meson-info/meson-info.json").read_text())["meson_version"]["full"]
    for candidate in (shutil.which("meson"), "/usr/bin/meson"):
        if candidate and os.access(candidate, os.X_OK):
            version = subprocess.run([candidate, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
            if version == wanted:
                return candidate
    print(f"meson {wanted}, which configured this build, is not in PATH")
    return None


def sanitizer_flags(build):
    """A library that was built with a sanitizer needs its runtime in the program."""
    options = json.loads((pathlib.Path(build) / "meson-info/intro-buildoptions.json").read_text())
    chosen = next(option["value"] for option in options if option["name"] == "b_sanitize")
    chosen = chosen if isinstance(chosen, str) else ",".join(chosen)
    return [] if chosen in ("", "none") else [f"-fsanitize={chosen}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--sources", required=True, type=pathlib.Path)
    parser.add_argument("--compiler", required=True)
    arguments = parser.parse_args()
    meson = meson_of(arguments.build)
    if meson is None:
        return 77
    with tempfile.TemporaryDirectory(prefix="maru-installed-") as name:
        root = pathlib.Path(name)
        environment = {**os.environ, "DESTDIR": str(root)}
        # What a program needs, and no more: the rest need not have been built when this suite is run alone.
        subprocess.run([meson, "install", "-C", arguments.build, "--no-rebuild", "--quiet", "--tags", "runtime,devel"],
                       check=True, env=environment)
        modules = list(root.rglob("maru.pc"))
        if len(modules) != 1:
            print(f"expected one maru.pc in the installed tree, found {modules}")
            return 1
        environment["PKG_CONFIG_PATH"] = str(modules[0].parent)
        environment["PKG_CONFIG_SYSROOT_DIR"] = str(root)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "maru"], check=True, env=environment,
                               stdout=subprocess.PIPE, text=True).stdout.split()
        library = next(root.rglob("libmaru.so")).parent
        for language, source in (("c99", "use_c.c"), ("c++20", "use_cpp.cc")):
            program = root / source.replace(".", "_")
            kind = "c++" if language.startswith("c++") else "c"
            subprocess.run([arguments.compiler, "-x", kind, f"-std={language}", *STRICT, str(arguments.sources / source),
                            "-x", "none", "-o", str(program), *flags, *sanitizer_flags(arguments.build)], check=True)
            printed = subprocess.run(["ldd", str(program)], check=True, stdout=subprocess.PIPE, text=True,
                                     env={**os.environ, "LD_LIBRARY_PATH": str(library)}).stdout
            if str(library) not in printed:
                print(f"{source} does not use the installed library:\n{printed}")
                return 1
            only_marud = ("uring", "spdlog", "fmt", "numa")
            foreign = [line for line in printed.splitlines() if any(word in line for word in only_marud)]
            if foreign:
                print("libmaru.so drags in what only marud should need:\n" + "\n".join(foreign))
                return 1
        internal = [path for path in root.rglob("maru/format/*")]
        if internal:
            print(f"headers that are not part of the public API are installed: {internal}")
            return 1
        print("built a C and a C++ program against the installed tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
