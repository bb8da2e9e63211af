"""The binary interface of libmaru.so against the recorded one, with libabigail: compare.py LIBRARY INCLUDE RECORDED.
`compare.py --record ...` writes the record; do so when an interface was added on purpose. Private types (whatever is not in
the installed headers) are left out."""
import pathlib
import platform
import re
import shutil
import subprocess
import sys

WHAT = ["--exported-interfaces-only", "--drop-private-types", "--no-show-locs"]


def says_types(library):
    """In its debug information, whose least kind (-g1) has lines alone."""
    if shutil.which("readelf") is None:
        return True
    kinds = subprocess.run(["readelf", "--debug-dump=abbrev", library], capture_output=True, text=True).stdout
    return "DW_TAG_formal_parameter" in kinds


def main():
    arguments = sys.argv[1:]
    record = arguments[:1] == ["--record"]
    library, include, recorded = arguments[1 if record else 0:]
    if shutil.which("abidiff") is None:
        print("abidiff is missing (Debian package abigail-tools)")
        return 77
    if platform.machine() != "x86_64":
        print(f"the interface was recorded on x86_64; this is {platform.machine()}")
        return 77
    if not says_types(library):
        print("the library has no debug information with types in this build (meson -Dbuildtype=debugoptimized)")
        return 77
    if record:
        subprocess.run(["abidw", *WHAT, "--headers-dir", include, "--no-corpus-path", "--no-comp-dir-path",
                        "--out-file", recorded, library], check=True)
        # Where the sources lay when it was recorded is nobody's business.
        path = pathlib.Path(recorded)
        path.write_text(re.sub(r" path='[^']*/(libmaru/[^']*)'", r" path='\1'", path.read_text()))
        return 0
    outcome = subprocess.run(["abidiff", *WHAT, "--headers-dir2", include, recorded, library],
                             capture_output=True, text=True)
    print(outcome.stdout + outcome.stderr)
    if outcome.returncode != 0:
        print("the binary interface changed; if that is meant: see --record in tests/abi/meson.build")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
