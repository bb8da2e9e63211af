"""Holds a unit to an exposure, as systemd-analyze computes it from what the unit takes away:
unit_exposure.py [--at-most EXPOSURE] UNIT [DROP_IN]..."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

SYSTEMD_MIN = 250  # knows --offline


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-most", type=float, default=1.2)  # 10 is a unit that takes nothing away
    parser.add_argument("unit")
    parser.add_argument("drop_ins", nargs="*")
    arguments = parser.parse_args()
    program = shutil.which("systemd-analyze")
    if not program:
        print("systemd-analyze is not here (Debian package systemd)")
        return 77
    version = int(subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[1])
    if version < SYSTEMD_MIN:
        print(f"found systemd {version}, and only {SYSTEMD_MIN} can look at a unit that is not installed")
        return 77
    # The status speaks of a threshold of its own, so it is not looked at.
    with tempfile.TemporaryDirectory(prefix="maru-unit-") as folder:
        unit = shutil.copy(arguments.unit, folder)
        for drop_in in arguments.drop_ins:
            os.makedirs(unit + ".d", exist_ok=True)
            shutil.copy(drop_in, unit + ".d")
        said = subprocess.run([program, "security", "--no-pager", "--offline=true", unit], capture_output=True, text=True,
                              timeout=60)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout)
    if not found:
        print(f"systemd-analyze says no exposure:\n{said.stdout}{said.stderr}")
        return 1
    exposure = float(found.group(1))
    print("\n".join(line for line in said.stdout.splitlines() if line.startswith("✗")))
    print(f"exposure {exposure}, at most {arguments.at_most}")
    return exposure > arguments.at_most


if __name__ == "__main__":
    sys.exit(main())
