"""The simulation against the real thing: one client of maru-replay replays a slice of the conversation trace through marud, and
maru-policy-sim the same slice with as many pages in as many regions. The hit ratios agree within a point."""
import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from with_marud import Marud  # noqa: E402

REQUESTS = "3000"
WITHIN = 0.01
# Without background eviction, so that only requests evict, as in the simulation.
WATERMARKS = "high_watermark = 1\nlow_watermark = 0.5\n"
failures = []


def output_of(command, **more):
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, **more)
    if run.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {run.returncode}: {run.stderr}")
    return json.loads(run.stdout)


def replay_live(arguments, policy, size, region_pages):
    with Marud(arguments.marud, size=size, page_bytes="4KiB", region_bytes=f"{4 * region_pages}KiB",
               more=WATERMARKS + f'policy = "{policy}"\n') as marud:
        return output_of([arguments.replay, "--trace", arguments.trace, "--requests", REQUESTS, "--payload", "4096",
                          "--clients", "1", "--json", "--no-progress"], env=marud.environment)


def compare(arguments, policy, size, region_pages):
    """A busy machine keeps marud from looking at the uses of blocks in time, and the pool evicts worse than it would: so what
    is outside is tried again. A pool that does not evict as the simulation is outside each time."""
    simulated = None
    for _ in range(3):
        live = replay_live(arguments, policy, size, region_pages)
        pages = live["pool"]["pages"]
        simulated = simulated or output_of(
            [arguments.simulator, "--trace", arguments.trace, "--requests", REQUESTS, "--policy", policy, "--pages",
             str(pages), "--regions", str(pages // region_pages), "--json"])["policies"][0]["sizes"][0]
        ratio = simulated["prefix_hit_ratio"]
        print(f"{policy}, {pages} pages in {pages // region_pages} regions: live {100 * live['hit_ratio']:.2f} %, "
              f"simulated {100 * ratio:.2f} %; evicted {live['evicted_blocks']} and {simulated['evicted_blocks']}")
        if live["evicted_blocks"] == 0:
            failures.append(f"{policy}: the pool is meant to be too small, and nothing was evicted")
        if abs(live["hit_ratio"] - ratio) <= WITHIN:
            return
    failures.append(f"{policy}: {live['hit_ratio']:.4f} live, {ratio:.4f} simulated, expected within {WITHIN}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--replay", "--simulator", "--trace"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    compare(arguments, "lru", "32MiB", 256)
    compare(arguments, "lru", "12MiB", 128)
    for policy in ("clock", "s3fifo", "odds"):
        compare(arguments, policy, "32MiB", 256)
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
