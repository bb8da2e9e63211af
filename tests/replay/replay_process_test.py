"""A short replay against a real marud with a pool far smaller than the trace wants, so that it evicts all the time: nothing
wrong is read, hits come close to an exact LRU, the numbers add up."""
import argparse
import errno
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from with_marud import Marud  # noqa: E402

PAYLOAD_BYTES = 4096
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def check_numbers(report):
    expect(report["wrong_bytes"] == 0, "wrong bytes were read")
    # A bucket of the registry can be full with its overflow (-EXFULL); that is rare, and nothing else may fail.
    expect(report["failed_stores"] == 0 or
           (report["failed_stores"] <= 10 and report["failed_store_errno"] == errno.EXFULL),
           f"{report['failed_stores']} stores failed, one with errno {report['failed_store_errno']}")
    expect(report["requests"] == report["trace"]["requests"], "a request was left out")
    expect(report["blocks"] == report["trace"]["block_references"], "a block was left out")
    expect(report["verified_bytes"] == report["hit_blocks"] * PAYLOAD_BYTES, "a hit was not verified")
    expect(report["evicted_blocks"] > 0, "the pool is meant to be too small, and nothing was evicted")
    expect(report["checked_blocks"] > 0, "nothing was there afterwards")
    expect(report["checked_blocks"] <= report["pool"]["blocks"], "more blocks than pages")
    stayed = report["stored_blocks"] - report["evicted_blocks"]
    # A store into a full bucket may evict a block there, as rarely, and no request for memory counts this block.
    expect(0 <= stayed <= report["pool"]["blocks"] + 10, f"{stayed} blocks stayed in {report['pool']['blocks']} pages")
    expect(report["hit_ratio"] <= report["limitless_hit_ratio"] + 1e-9, "more hits than a cache without limit")
    # Four clients do not see the requests in order, so the yardstick is near and not exact.
    expect(report["hit_ratio"] > 0.6 * report["lru_hit_ratio"],
           f"hit ratio {report['hit_ratio']:.4f}, an exact LRU has {report['lru_hit_ratio']:.4f}")
    expect(set(report["latency_ns"]) == {"match", "read+verify", "alloc", "fill", "store", "release"}, "operations")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--replay", "--trace"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    command = [arguments.replay, "--trace", arguments.trace, "--requests", "2000", "--payload", str(PAYLOAD_BYTES),
               "--clients", "4"]
    with Marud(arguments.marud, size="48MiB", page_bytes="4KiB", region_bytes="512KiB", more="high_watermark = 1") as marud:
        run = subprocess.run([*command, "--json", "--verify"], env=marud.environment, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=600)
        expect(run.returncode == 0, f"maru-replay ended with {run.returncode}: {run.stderr}")
        if run.stdout:
            check_numbers(json.loads(run.stdout))
        expect(run.stderr.count("%") >= 2, "progress is said in lines when standard error is no terminal")

        quiet = subprocess.run([*command, "--requests", "50", "--no-progress"], env=marud.environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        expect(quiet.returncode == 0 and quiet.stderr == "", f"--no-progress is quiet: {quiet.stderr}")
        expect("wrong bytes   0" in quiet.stdout, "the text report counts wrong bytes")
    expect(marud.status == 0, f"marud ended with {marud.status}")

    absent = subprocess.run([*command, "--socket", "/nonexistent/marud.sock"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=60)
    expect(absent.returncode == 1 and "maru_attach" in absent.stderr, "without marud it says so")

    for failure in failures:
        print(failure)
    if failures:
        print(marud.log_text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
