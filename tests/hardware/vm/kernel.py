#!/usr/bin/env python3
"""Runs the unit tests, the process tests and a short replay on Debian's own kernel, the oldest that marud promises to work on.

Takes some minutes. MARU_KILLS, MARU_RESTARTS, MARU_SCRIBBLES, MARU_SEED and MARU_PATIENCE of the environment hold in the guest,
too. The guest's processors are emulated, so it is slow and its times say nothing; but a step that hangs has failed.
"""
import os

import machine

GROUP_SECONDS_MAX = 300

STEPS = r'''
mkdir -m 0755 /run/replay
export MARU_TEST_MARUD="$build/daemon/marud" MARU_TEST_MARUDCTL="$build/daemon/marudctl"
export MARU_EXAMPLE_CONFIG="$source/systemd/marud.toml" MARU_TOKEN_HASHES="$source/tests/data/token_hashes.tsv"
export MARU_SOCKET=/run/replay/marud.sock

# A marud with a small pool, the first requests of the trace, what marud says about itself, and an orderly end.
replay() {
  "$MARU_TEST_MARUD" --memory 128MiB --page-bytes 16KiB --region-bytes 1MiB --lanes 16 --high-watermark 1 \
    --socket "$MARU_SOCKET" --state-dir /run/replay/state --log-level debug 2>/run/replay/log &
  marud=$!
  until [ -S "$MARU_SOCKET" ] || ! kill -0 $marud; do sleep 0.1; done
  failed=0
  "$build/daemon/tools/maru-replay" --trace "$source/tests/data/mooncake_conversation.jsonl" --clients 2 --no-progress \
    --verify --requests "$requests" || failed=1
  "$MARU_TEST_MARUDCTL" status || failed=1
  "$MARU_TEST_MARUDCTL" check || failed=1
  kill $marud
  wait $marud || failed=1
  [ $failed -eq 0 ] || tail -n 40 /run/replay/log
  return $failed
}

step kernel 10 uname -r
show
step version 30 "$build/daemon/marud" --version
show
if [ -n "$only" ]; then
  for i in $(seq "$times"); do
    tests "process: $only ($i)" "$group_seconds_max" "$build/tests/process/process_test" "--gtest_filter=$only"
  done
  echo end >&3
  exit
fi
for program in "$build"/tests/unit/*_test; do
  [ ! -x "$program" ] || tests "unit: ${program##*/}" 200 "$program"
done
# Each group alone, so that one that ends the program takes no other with it.
step "process: list" 30 "$build/tests/process/process_test" --gtest_list_tests
for group in $(sed -n 's/^\([^ ]*\)\.\( .*\)\{0,1\}$/\1/p' $said); do
  tests "process: $group" "$group_seconds_max" "$build/tests/process/process_test" "--gtest_filter=$group.*"
done
step "replay of $requests requests" 300 replay
show
grep -h 'io_uring is ready' /run/replay/log >$said && show
'''


def add_arguments(parser):
    parser.add_argument("--only", default="", metavar="FILTER",
                        help="runs nothing but the process tests that googletest's FILTER names")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="so often, going on after a failure")


def run(suite):
    for path in ("daemon/marudctl", "daemon/tools/maru-replay", "tests/process/process_test", "tests/unit/unit_test"):
        suite.program(path)
    settings = {"MARU_KILLS": 20, "MARU_RESTARTS": 2, "MARU_SCRIBBLES": 3, "MARU_SEED": "", "MARU_PATIENCE": 1}
    settings = {name: os.environ.get(name, value) for name, value in settings.items()}
    settings |= {"only": suite.options.only, "times": suite.options.times, "requests": 300, "late": "FAILED",
                 "group_seconds_max": GROUP_SECONDS_MAX}
    seconds = 60 + suite.options.times * GROUP_SECONDS_MAX if suite.options.only else suite.seconds
    suite.allow(seconds)
    # The storms of the whole suite want the memory; a few tests do not.
    suite.machine("kernel", memory_mib=1024 if suite.options.only else 2048).run(STEPS, seconds, settings)


if __name__ == "__main__":
    machine.main("kernel", run, __doc__, seconds=900, add_arguments=add_arguments)
