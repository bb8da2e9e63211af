"""Who may not read the record of marud-provision sees a plan all the same, and that it was made without. Any machine will do,
since what is wished for exists on none.

  provision_plan.py PROGRAM
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

WAIT_S = 120
WISH = '[[pool]]\nname = "default"\nbackend = "memory"\nsize = "64MiB"\n' \
       '[[provision]]\nname = "kv"\nkind = "namespace"\nregion = "region4711"\n'
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def plan(folder, *words):
    command = [folder / "marud-provision", "--config", folder / "marud.toml", "--record", folder / "kept" / "made.json"]
    return subprocess.run([*command, *words, "plan"], capture_output=True, text=True, timeout=WAIT_S,
                          **(NOBODY if os.geteuid() == 0 else {}))


def main():
    with tempfile.TemporaryDirectory(prefix="maru-provision-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        shutil.copy(sys.argv[1], folder / "marud-provision")  # where nobody may run it
        (folder / "marud.toml").write_text(WISH)
        (folder / "kept").mkdir()
        (folder / "kept" / "made.json").write_text('{"made": []}')
        (folder / "kept").chmod(0)
        said = plan(folder)
        as_json = plan(folder, "--json")
        (folder / "kept").chmod(0o700)
    assert said.returncode == 1 and "region4711" in said.stderr, said
    assert "what was made is not known" in said.stderr, said
    assert json.loads(as_json.stdout)["problems"], as_json
    assert "what was made is not known" in json.loads(as_json.stderr)["note"], as_json
    print("a user's plan is there, and says what it was made without")


if __name__ == "__main__":
    main()
