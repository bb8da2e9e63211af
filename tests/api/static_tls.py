"""Libraries load in a process in which others have used up the room for thread-local words that are reached without a call."""
import argparse
import ctypes
import pathlib
import shutil
import subprocess
import sys
import tempfile

ENOUGH = 10_000  # more than any C library keeps room for


def use_up(filler, folder):
    """Loads copies of a library until there is no room for another one."""
    for number in range(ENOUGH):
        copy = folder / f"{filler.stem}-{number}.so"
        shutil.copy(filler, copy)
        try:
            ctypes.CDLL(str(copy))
        except OSError as error:
            if "static TLS" not in str(error):
                raise
            return number
    raise AssertionError(f"{ENOUGH} copies of {filler.name} found room")


def load_last(library, fillers):
    ctypes.CDLL("libstdc++.so.6")  # has words of its own, and is the program's in most cases
    with tempfile.TemporaryDirectory(prefix="maru-tls-") as name:
        counts = [use_up(filler, pathlib.Path(name)) for filler in fillers]
        assert counts[0] > 0, "there was no room from the beginning: this shows nothing"
        ctypes.CDLL(str(library))
        print(f"{library.name} was loaded after {' + '.join(map(str, counts))} others")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fillers", nargs="+", required=True, type=pathlib.Path, help="the largest first")
    parser.add_argument("--last", type=pathlib.Path, help="in this process")
    parser.add_argument("libraries", nargs="*", type=pathlib.Path, help="each in a process of its own")
    arguments = parser.parse_args()
    if arguments.last:
        return load_last(arguments.last, arguments.fillers)
    failed = 0
    for library in arguments.libraries:
        command = [sys.executable, __file__, "--last", library, "--fillers", *arguments.fillers]
        failed += subprocess.run(command).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
