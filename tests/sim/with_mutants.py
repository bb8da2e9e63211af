#!/usr/bin/env python3
"""Writes a copy of a source of libmaru/shm that has the wrong variants of the negative controls in it, for the simulator.

  with_mutants.py SOURCE PATCH OUTPUT
  with_mutants.py --check SHM PATCHES      every patch fits, and every mutant of mutants.h in the patches is declared once

A hunk fits where its old lines stand, once, behind the hunk before; line numbers do not count. MARU_MUTANTS=lenient in the
environment leaves out a hunk that does not fit: scripts/mutate changes the same lines, and its mutations are not these.
"""
import os
import pathlib
import re
import sys


def hunks_of(patch):
    """(old lines, new lines) of each hunk of a unified diff."""
    hunks = []
    for line in patch.read_text().splitlines():
        if line.startswith("@@"):
            hunks.append(([], []))
        elif hunks and not line.startswith("\\"):
            if line[:1] in (" ", "-", ""):
                hunks[-1][0].append(line[1:])
            if line[:1] in (" ", "+", ""):
                hunks[-1][1].append(line[1:])
    return hunks


def places(lines, wanted, begin):
    return [at for at in range(begin, len(lines) - len(wanted) + 1) if lines[at:at + len(wanted)] == wanted]


def with_mutants(source, patch):
    """The lines with all hunks, and what is wrong with each hunk that does not fit."""
    lines, wrong, begin = source.read_text().splitlines(), [], 0
    for number, (old, new) in enumerate(hunks_of(patch), 1):
        found = places(lines, old, begin)
        if len(found) != 1:
            shown = next((line for line in new if "mutant(" in line), new[0] if new else "").strip()
            wrong.append(f"{patch}: hunk {number} ({shown}): found {len(found)} places in {source}, expected 1 behind the hunk "
                         "before; bring the hunk's lines up to date (tests/sim/mutants/README.md)")
            continue
        lines[found[0]:found[0] + len(old)] = new
        begin = found[0] + len(new)
    return lines, wrong


def check(shm, patches):
    wrong, used = [], set()
    for patch in sorted(patches.rglob("*.patch")):
        source = shm / re.search(r"^--- libmaru/shm/(\S+)", patch.read_text(), re.M)[1]
        wrong += with_mutants(source, patch)[1]
        used |= set(re.findall(r"sim::mutant\((\w+)\)", patch.read_text()))
    declared = dict(re.findall(r"^\s*(kMutant\w+)\s*=\s*(\d+)", (patches.parent / "mutants.h").read_text(), re.M))
    wrong += [f"{name}: found in a patch, expected in tests/sim/mutants.h, too" for name in sorted(used - declared.keys())]
    numbers = list(declared.values())
    wrong += [f"{name} = {number}: found twice, expected a number of its own" for name, number in declared.items()
              if numbers.count(number) > 1]
    print("\n".join(wrong) if wrong else f"mutants: {len(used)} are in the patches, and each fits")
    return 1 if wrong else 0


def main(arguments):
    if len(arguments) == 3 and arguments[0] == "--check":
        return check(pathlib.Path(arguments[1]), pathlib.Path(arguments[2]))
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, patch, output = map(pathlib.Path, arguments)
    lines, wrong = with_mutants(source, patch)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        if os.environ.get("MARU_MUTANTS") != "lenient":
            return 1
    output.write_text("\n".join(['#include "tests/sim/mutants.h"', *lines]) + "\n")
    return 0


sys.exit(main(sys.argv[1:]))
