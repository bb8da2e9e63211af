"""marudctl tier beside a real maru-tierd: what tiers have, what tenants may have in them, and the tiers in `top`.

  tier_test.py --marud PROGRAM --marudctl PROGRAM --tierd PROGRAM --client PROGRAM
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "api"), str(HERE.parent / "support")]
from observed_marud import BlockClient  # noqa: E402
from with_marud import PATIENCE, Marud  # noqa: E402
from with_tierd import FILE, Tierd  # noqa: E402

QUOTAS = """
[quotas]
file = "{folder}/quotas"
default = "1GiB"
"""
NOTHING = """
[[tier]]
name = "nothing"
kind = "null"
"""
BLOCKS = 5


def main():
    parser = argparse.ArgumentParser()
    for option in ("--marud", "--marudctl", "--tierd", "--client"):
        parser.add_argument(option, required=True)
    arguments = parser.parse_args()

    def marudctl(*words, status=0):
        said = subprocess.run([arguments.marudctl, "--socket", str(marud.socket), *words], capture_output=True, text=True,
                              timeout=PATIENCE, env={**marud.environment, "MARU_TIER_SOCKET": tier_socket})
        assert said.returncode == status, f"marudctl {words}: {said.returncode}\n{said.stdout}{said.stderr}"
        return said.stdout + said.stderr

    def disk():
        return json.loads(marudctl("--json", "tier", "status"))["tiers"][0]

    with Marud(arguments.marud) as marud:
        tier_socket = "/nowhere"
        assert "is maru-tierd running" in marudctl("tier", "status", status=3)
        assert json.loads(marudctl("--json", "top", "--once", "--interval-ms", "100"))["tiers"] == []
        with Tierd(arguments.tierd, marud.socket, tables=QUOTAS, tier=FILE + NOTHING) as tierd:
            tier_socket = tierd.socket
            until = time.monotonic() + PATIENCE
            # A tenant that has a limit is known by its name.
            assert "2 GiB" in marudctl("tier", "quota", "set", "alice", "2GiB")
            with BlockClient(arguments.client, marud) as client:
                for number in range(BLOCKS):
                    client.ask(f"store t{number} 4096 alice")
                while disk()["entries"] < BLOCKS:
                    assert time.monotonic() < until, disk()
                    time.sleep(0.01)
                shown = marudctl("tier", "status")
                for words in ("breaker", "closed", "misses", "store bytes per second", "nothing"):
                    assert words in shown, shown
                assert disk()["stores"] == BLOCKS and disk()["stored_bytes"] == BLOCKS * 4096, disk()
                listed = marudctl("tier", "quota", "list")
                row = next(line for line in listed.splitlines() if line.split()[:2] == ["alice", "disk"])
                assert str(BLOCKS) in row.split() and "2 GiB" in row, row
                assert "limit of alice in each tier: 2 GiB" in listed and "limit of other tenants: 1 GiB" in listed, listed
                assert "the tier nothing does not count its entries by tenant" in listed, listed
                figures = json.loads(marudctl("--json", "top", "--once", "--interval-ms", "100"))
                assert [(tier["name"], tier["pool"]) for tier in figures["tiers"]] == [
                    ("disk", "default"), ("nothing", "default")]
                assert "tier disk" in marudctl("top", "--once", "--interval-ms", "100")
            assert "1 GiB" in marudctl("tier", "quota", "remove", "alice")
            assert "no limit of its own" in marudctl("tier", "quota", "remove", "alice", status=1)
            for words in (("set", "alice"), ("set", "alice", "much"), ("give", "alice"), ("list", "a", "b")):
                marudctl("tier", "quota", *words, status=2)


if __name__ == "__main__":
    main()
