"""marud-provision waits for udev where there is something to make, and nowhere else: a marud that comes back after a crash is
not to wait for what it does not need. Any machine will do, since what is wished for exists on none.

  provision_waits.py PROGRAM
"""
import os
import pathlib
import subprocess
import sys
import tempfile

WAIT_S = 120
POOL = '[[pool]]\nname = "default"\nbackend = "memory"\nsize = "64MiB"\n'
WISH = '[[provision]]\nname = "kv"\nkind = "namespace"\nregion = "region4711"\n'
UDEVADM = '#!/bin/sh\necho "$@" >> "$(dirname "$0")/asked"\n'


def main():
    program = sys.argv[1]
    if os.geteuid() != 0:
        print("marud-provision skipped: only root may change devices")
        return 77
    wrong = []
    with tempfile.TemporaryDirectory(prefix="maru-provision-") as name:
        folder = pathlib.Path(name)
        (folder / "udevadm").write_text(UDEVADM)
        (folder / "udevadm").chmod(0o755)
        for text, command, status, expected in ((POOL, "apply", 0, ""), (POOL + WISH, "plan", 1, ""),
                                                (POOL + WISH, "apply", 1, "settle --timeout=30\n")):
            (folder / "marud.toml").write_text(text)
            (folder / "asked").unlink(missing_ok=True)
            said = subprocess.run([program, "--config", folder / "marud.toml", "--record", folder / "made.json", command],
                                  env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True, text=True,
                                  timeout=WAIT_S)
            asked = (folder / "asked").read_text() if (folder / "asked").exists() else ""
            if said.returncode != status or asked != expected:
                wrong.append(f"{command} with {text!r}: status {said.returncode}, udevadm was asked {asked!r}, expected "
                             f"{status} and {expected!r}: {said.stdout}{said.stderr}")
    print("\n".join(wrong) or "udev is waited for where there are [[provision]] tables")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
