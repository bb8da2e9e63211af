"""What libmaru.so exports equals what its headers declare, what libmaru.map lists and what was recorded:
exports.py LIBRARY HEADER... MAP RECORDED. `exports.py --record ...` writes the last one."""
import pathlib
import re
import shutil
import subprocess
import sys


def exported(library):
    """Dynamic symbols that the library defines, with their versions, as nm prints them: maru_alloc@@MARU_0."""
    output = subprocess.run(["nm", "--dynamic", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    symbols = [line.split() for line in output.splitlines()]
    return {name for _, kind, name in symbols if kind != "A"}


def declared(headers):
    text = "".join(re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL) for header in headers)
    marked = set(re.findall(r"MARU_(?:TOKENS_|LAYOUT_|BLEND_|ADAPTERS_)?PUBLIC\s[^;{]*?\b(maru_\w+)\s*\(", text))
    functions = set(re.findall(r"^[A-Za-z][^;{}#\n(]*?\b(maru_\w+)\s*\(", text, flags=re.MULTILINE))
    return marked, functions


def listed(version_script):
    text = version_script.read_text()
    version = re.match(r"\s*(\w+)\s*{", text)[1]
    return {f"{name}@@{version}" for name in re.findall(r"\b(maru_\w+);", text)}


def main():
    arguments = sys.argv[1:]
    record = arguments[:1] == ["--record"]
    library, *headers, version_script, recorded = map(pathlib.Path, arguments[1 if record else 0:])
    if shutil.which("nm") is None:
        print("nm is missing (Debian package binutils)")
        return 77
    symbols = exported(library)
    if record:
        recorded.write_text("".join(f"{symbol}\n" for symbol in sorted(symbols)))
        return 0
    names = {symbol.split("@")[0] for symbol in symbols}
    marked, functions = declared(headers)
    problems = []

    def compare(what, wanted, found):
        problems.extend(f"{what}: {name} is missing" for name in sorted(wanted - found))
        problems.extend(f"{what}: {name} is too many" for name in sorted(found - wanted))

    if not marked:
        problems.append(f"{headers[0]}: no MARU_PUBLIC function was understood")
    compare("functions of the headers that are MARU_PUBLIC", functions, marked)
    compare("exported, compared with the headers", marked, names)
    compare("exported, compared with libmaru.map", listed(version_script), symbols - {version_name(version_script)})
    compare("exported, compared with the record", set(recorded.read_text().split()), symbols)
    print("\n".join(problems) or f"{len(names)} functions")
    return 1 if problems else 0


def version_name(version_script):
    return re.match(r"\s*(\w+)\s*{", version_script.read_text())[1]


if __name__ == "__main__":
    sys.exit(main())
