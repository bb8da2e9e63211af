"""A replay of the conversation trace with a pool of 5 % of its distinct blocks and a file tier that holds all: the pool and the
tier together find what a cache without limit finds, and every byte is right. The same replay without the tier finds less."""
import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from with_marud import Marud  # noqa: E402
from with_tierd import Tierd  # noqa: E402

FOUR_GIB = """kind = "file"
[tier.options]
path = "{folder}"
capacity = "4GiB"
"""


def replay(arguments, marud, compute_us, *more):
    run = subprocess.run([arguments.replay, "--trace", arguments.trace, "--payload", "3500", "--clients", "4", "--json",
                          "--compute-us", str(compute_us), "--requests", str(arguments.requests), "--no-progress",
                          *more], env=marud.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900)
    if run.returncode != 0:
        raise SystemExit(f"maru-replay ended with {run.returncode}: {run.stderr}{run.stdout}")
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--replay", "--tierd", "--trace"):
        parser.add_argument(name, required=True)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--size", default="24MiB")
    parser.add_argument("--compute-us", type=int, default=300, help="of an engine, for each block")
    arguments = parser.parse_args()
    shape = dict(size=arguments.size, page_bytes="4KiB", region_bytes="512KiB", more="high_watermark = 1")
    with Marud(arguments.marud, **shape) as marud:
        alone = replay(arguments, marud, arguments.compute_us)
    # A block is missing when the pool evicts it before the tier has written it. Two clients that need one prefix at one time
    # both compute it. A disk that stands still for a moment costs more: then a second try has slower clients.
    for slower in (1, 4):
        with Marud(arguments.marud, **shape) as marud, \
                Tierd(arguments.tierd, marud.socket, tables="[store]\npins_percent = 10", prefetch="held_percent = 30",
                      tier=FOUR_GIB) as tierd:
            both = replay(arguments, marud, slower * arguments.compute_us, "--tier", tierd.socket)
        status = tierd.process.returncode
        finds_all = both["hit_ratio"] >= 0.95 * both["limitless_hit_ratio"]
        if finds_all or status != 0 or both["wrong_bytes"] or both["tier_failures"]:
            break
        print(f"found {100 * both['hit_ratio']:.2f} % of {100 * both['limitless_hit_ratio']:.2f} %")
    pool_share = both["pool"]["blocks"] / both["trace"]["distinct_blocks"]
    print(f"pool {100 * pool_share:.1f} % of the distinct blocks; found: pool alone {100 * alone['hit_ratio']:.2f} %, with the "
          f"tier {100 * both['hit_ratio']:.2f} % ({both['tier_blocks']} loaded), without limit "
          f"{100 * both['limitless_hit_ratio']:.2f} %; wrong bytes {both['wrong_bytes']}")
    wrong = []
    if both["wrong_bytes"] or alone["wrong_bytes"]:
        wrong.append("wrong bytes were read")
    if both["tier_failures"]:
        wrong.append(f"the tier left {both['tier_failures']} requests without an answer")
    if not finds_all:
        wrong.append("pool and tier find less than a cache without limit")
    if both["hit_ratio"] <= alone["hit_ratio"]:
        wrong.append("the tier adds nothing")
    if status != 0:
        wrong.append(f"maru-tierd ended with {status}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
