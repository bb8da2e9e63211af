"""What is written about the metrics of maru-tierd is what it serves: every name in docs/tiers.md, in the dashboard and in the
alert rules is there, and every metric that is there is in docs/tiers.md. Prometheus' own tool checks the rules, where it is.

  monitoring_test.py --marud PROGRAM --tierd PROGRAM --sources FOLDER
"""
import argparse
import http.client
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))
from with_marud import PATIENCE, Marud  # noqa: E402
from with_tierd import Tierd  # noqa: E402

# "..._failed_total" in a table stands for the name before it with another ending.
NAME = re.compile(r"maru_tier_(?!plugin)[a-z_]+[a-z]")


def metrics_of(path):
    connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def families_of(text):
    return set(re.findall(r"^# TYPE (maru_tier_\S+)", text, re.MULTILINE))


def names_in(text):
    text = re.sub(r"`(maru_tier_prefetch)_absent_total`, ((?:`\.\.\._\w+`(?:, )?)+)",
                  lambda found: f"{found[1]}_absent_total " + found[2].replace("...", found[1]), text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(text)}


def main():
    parser = argparse.ArgumentParser()
    for option in ("--marud", "--tierd", "--sources"):
        parser.add_argument(option, required=True)
    arguments = parser.parse_args()
    docs = pathlib.Path(arguments.sources) / "docs"
    with Marud(arguments.marud) as marud, \
            Tierd(arguments.tierd, marud.socket, tables='[http]\nsocket = "{folder}/http.sock"') as tierd:
        until = time.monotonic() + PATIENCE
        # The last family of those that a tier has from its first second on.
        while "maru_tier_reinserted" not in (text := metrics_of(str(tierd.folder / "http.sock"))):  # looked at once a second
            assert time.monotonic() < until, text
            time.sleep(0.1)
    served = families_of(text)
    mistakes = []
    for path in ("tiers.md", "monitoring/tiers-alerts.yml", "monitoring/tiers-dashboard.json"):
        for name in sorted(names_in((docs / path).read_text()) - served):
            mistakes.append(f"docs/{path} has {name}, which maru-tierd does not serve")
    for name in sorted(served - names_in((docs / "tiers.md").read_text())):
        mistakes.append(f"maru-tierd serves {name}, of which docs/tiers.md has no word")
    if shutil.which("promtool"):
        checked = subprocess.run(["promtool", "check", "rules", docs / "monitoring/tiers-alerts.yml"], capture_output=True,
                                 text=True, timeout=PATIENCE, env={**os.environ})
        if checked.returncode != 0:
            mistakes.append(checked.stdout + checked.stderr)
    print("\n".join(mistakes) or f"{len(served)} metrics are as they are described")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
