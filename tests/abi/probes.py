"""The probes of libmaru.so are those that docs/probes.md lists: probes.py LIBRARY DOCUMENT. Skipped (77) where the library
was built without sys/sdt.h."""
import re
import subprocess
import sys


def main():
    library, document = sys.argv[1:]
    notes = subprocess.run(["readelf", "--notes", "--wide", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {f"{provider}:{name}" for provider, name in re.findall(r"Provider: (\w+)\s+Name: (\w+)", notes)}
    if not found:
        print("skipped: this library was built without probes (Debian: systemtap-sdt-dev)")
        return 77
    with open(document, encoding="utf-8") as text:
        listed = set(re.findall(r"`(maru:\w+)`", text.read()))
    for wrong in sorted(found ^ listed):
        print(f"{wrong} is {'in the library alone' if wrong in found else 'in the document alone'}")
    return 1 if found != listed else 0


if __name__ == "__main__":
    sys.exit(main())
