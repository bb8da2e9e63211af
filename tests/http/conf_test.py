"""The configuration in force, by HTTP: every key that can be configured is there.

  conf_test.py --marud PROGRAM --openapi FILE
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, Findings, ObservedMarud  # noqa: E402
from openapi import Description  # noqa: E402

findings = Findings()
expect = findings.expect


def keys_that_marud_knows(program, table):
    """What may stand in a table of the configuration, as marud says it of a key that may not."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "marud.toml"
        config.write_text(table + "colour = 1\n")
        said = subprocess.run([program, "--config", config, "--check-config"], capture_output=True, text=True,
                              timeout=PATIENCE).stderr
    return set(re.search(r"colour: found an unknown key, expected one of: (.*)", said).group(1).split(", "))


def the_configuration_is_all_there(program, description):
    """Every key that can be configured is in /conf, and nothing else: of pools in memory, in a file, and on a device that is
    not there."""
    with tempfile.TemporaryDirectory() as folder:
        tables = [f'[[pool]]\nname = "lies"\nbackend = "file"\npath = "{folder}/pages"\ncontrol_path = "{folder}/control"\n'
                  'size = "64MiB"\nprofile = "shared"\ncoherent = true\n',
                  '[[pool]]\nname = "far"\nbackend = "dax"\ndevice = "/nonexistent/dax0.0"\n'
                  'control_device = "/nonexistent/dax1.0"\n']
        limit = '[[limit]]\nuser = 1\npins = 100\n'
        with ObservedMarud(program, tcp=True, more=limit + "".join(tables)) as marud:
            reply = marud.http("GET", "/conf")
            wrong = description.complaints("/conf", "GET", reply)
            expect(not wrong, f"/conf: {wrong}: {reply}")
            conf = reply.json
    for table, found in (("[daemon]\n", conf["daemon"]), ("[http]\n", conf["http"]), ("[limits]\n", conf["limits"]),
                         (limit, conf["limit"][0])):
        known = keys_that_marud_knows(program, table)
        expect(set(found) == known, f"{table}: {sorted(set(found) ^ known)} is not both in /conf and a key")
    # numa_node is short for numa_nodes, and arguments of a command may be a secret.
    known = {"name"}.union(*(keys_that_marud_knows(program, table) for table in [*tables, '[[pool]]\nbackend = "memory"\n']))
    known -= {"numa_node", "fencing_command"}
    found = {key for pool in conf["pool"] for key in pool}
    expect(found == known, f"pools: {sorted(found ^ known)} is not both in /conf and a key")
    far = next(pool for pool in conf["pool"] if pool["name"] == "far")
    expect((far["align"], far["format"], far["after_power_loss"]) == (0, "blank", "verify"), far)
    expect(next(pool for pool in conf["pool"] if pool["name"] == "default")["numa_policy"] == "bind", conf["pool"])


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--openapi"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    the_configuration_is_all_there(arguments.marud, Description(json.loads(pathlib.Path(arguments.openapi).read_text())))
    return findings.end()


if __name__ == "__main__":
    sys.exit(main())
