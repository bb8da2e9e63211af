"""Calls are recorded by marudctl record, and played by maru-replay: equal pools give equal results, whatever the order of the
recorded clients; a process that is killed leaves what it has done; a recording that is full or torn says so.

  recording_test.py --marud PROGRAM --marudctl PROGRAM --replay PROGRAM --trace FILE
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from with_marud import PATIENCE, Marud  # noqa: E402

POOL = {"size": "64MiB", "page_bytes": "4KiB", "region_bytes": "512KiB"}
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)
        print(f"wrong: {what}", flush=True)


def run(command, environment, wanted=0):
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=600)
    expect(wanted is None or done.returncode == wanted, f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return done


def record(arguments, marud, folder, *more, clients=3, requests=150):
    command = [arguments.marudctl, "record", folder / "calls", "--", arguments.replay, "--trace", arguments.trace, "--requests",
               requests, "--payload", 2048, "--clients", clients, "--no-progress", "--json", *more]
    report = json.loads(run(command, marud.environment).stdout)
    return report, sorted(folder.glob("calls.*"))


def play(arguments, files, *more, wanted=0):
    """On a fresh pool."""
    with Marud(arguments.marud, **POOL) as marud:
        words = [word for file in files for word in ("--recording", file)]
        done = run([arguments.replay, *words, "--json", *more], marud.environment, wanted)
        return json.loads(done.stdout) if done.stdout else done


def equal_pools_give_equal_results(arguments, folder):
    with Marud(arguments.marud, **POOL) as marud:
        report, files = record(arguments, marud, folder, clients=1)
    played = play(arguments, files)
    match, store = played["operations"]["match"], played["operations"]["store_chain"]
    expect(match["recorded_found"] == match["found"] == report["hit_blocks"] > 0, f"hits: {match}, {report['hit_blocks']}")
    expect(match["same_result"] == match["calls"] == 150, f"matches: {match}")
    expect(store["same_result"] == store["calls"] and store["errors"] == 0, f"stores: {store}")
    expect(played["recorded"]["parents_unknown"] == played["recorded"]["torn_bytes"] == 0, played["recorded"])
    for order in (["--order", "fast"], ["--order", "time", "--speed", "50"]):
        once_more = play(arguments, files, *order)
        expect(once_more["operations"]["match"]["same_result"] == 150, f"one client, {order}: {once_more['operations']}")


def several_clients_are_played_at_once(arguments, folder):
    with Marud(arguments.marud, **POOL) as marud:
        _, files = record(arguments, marud, folder)
    expect(len(files) == 3, f"one file for each process that calls libmaru: {files}")
    played = play(arguments, files, wanted=None)  # a store whose parent another client stored at that moment may fail
    match = played["operations"]["match"]
    expect(played["recorded"]["threads"] == 3 and match["calls"] == 150, played)
    # Where calls of two clients overlapped, the recording does not tell which came first.
    expect(abs(match["found"] - match["recorded_found"]) <= 0.05 * match["keys"], f"hits: {match}")


def a_killed_process_leaves_its_calls(arguments, folder):
    with Marud(arguments.marud, **POOL) as marud:
        command = [arguments.marudctl, "record", folder / "calls", "--", arguments.replay, "--trace", arguments.trace,
                   "--payload", "2048", "--clients", "1", "--no-progress"]
        process = subprocess.Popen([str(word) for word in command], env=marud.environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not (pids := [int(file.suffix[1:]) for file in folder.glob("calls.*") if int(file.suffix[1:]) != process.pid]):
            assert time.monotonic() < deadline, "no client recorded anything"
            time.sleep(0.01)
        while sum(block != bytes(4096) for block in blocks_of(folder / f"calls.{pids[0]}")) < 20:
            assert time.monotonic() < deadline, "the client recorded nothing"
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)
        process.wait(PATIENCE)
    played = play(arguments, [folder / f"calls.{pids[0]}"], wanted=None)  # its pool was full: marud may evict another block
    expect(played["operations"]["match"]["calls"] > 10, played)


def blocks_of(file):
    data = file.read_bytes()
    return [data[at:at + 4096] for at in range(0, len(data), 4096)]


def damage_is_said(arguments, folder):
    with Marud(arguments.marud, **POOL) as marud:
        _, (whole,) = record(arguments, marud, folder, clients=1)
        limited = {**marud.environment, "MARU_RECORD_BYTES": str(64 << 10)}
        many = [arguments.marudctl, "record", folder / "full", "--", arguments.replay, "--trace", arguments.trace, "--requests",
                "200", "--payload", "64", "--clients", "1", "--no-progress"]
        run(many, limited)
    (full,) = folder.glob("full.*")
    expect(play(arguments, [full], wanted=None)["recorded"]["dropped"] > 0, "a full recording counts what it dropped")
    data = bytearray(whole.read_bytes())
    second = 64 + int.from_bytes(data[68:72], "little")
    data[second:second + 4] = bytes(4)  # its writer died before it was complete
    (folder / "torn").write_bytes(data)
    torn, before = play(arguments, [folder / "torn"])["recorded"], play(arguments, [whole])["recorded"]
    expect(torn["calls"] == before["calls"] - 1 and torn["torn_bytes"] > 0, f"{torn}, before {before}")
    for name, content, said in (("text", b"no recording at all" * 9, "this is no recording"), ("short", b"x", "1 bytes"),
                                ("later", bytes(data[:8]) + b"\x09" + bytes(data[9:]), "version 9")):
        (folder / name).write_bytes(content)
        done = play(arguments, [folder / name], wanted=1)
        expect(said in done.stderr, f"{name}: {done.stderr}")


def traces_of_lmcache_are_read_and_written(arguments, folder):
    """A recording becomes a trace of LMCache and comes back; the keys, lengths and hits are the same."""
    with Marud(arguments.marud, **POOL) as marud:
        _, (whole,) = record(arguments, marud, folder, clients=1, requests=60)
    before = play(arguments, [whole])["operations"]
    for schema in ("1", "2"):
        trace, back = folder / f"schema{schema}.lct", folder / f"back{schema}"
        for source, target in ((whole, trace), (trace, back)):
            run([arguments.replay, "--recording", source, "--export", target, "--lct-schema", schema], os.environ)
        expect(f'trace_schema_version{chr(int(schema))}'.encode() in trace.read_bytes(), f"schema {schema} in its trace")
        for file in (trace, back):
            played = play(arguments, [file])
            after = played["operations"]
            for name in ("match", "retrieve"):
                expect(name not in before or after[name]["keys"] == before[name]["keys"], f"{file}, {name}: {after}")
            expect(after["match"]["found"] == after["match"]["recorded_found"] == before["match"]["found"], f"{file}: {after}")
            expect(after["match"]["same_result"] == after["match"]["calls"] == before["match"]["calls"], f"{file}: {after}")
            expect(after["store"]["keys"] == before["store_chain"]["recorded_found"], f"{file}: {after}, {before}")
            expect(played["recorded"]["torn_bytes"] == played["recorded"]["unknown"] == 0, played["recorded"])
    data = trace.read_bytes()
    (folder / "cut.lct").write_bytes(data[:-7])
    cut = play(arguments, [folder / "cut.lct"])["recorded"]
    expect(cut["torn_bytes"] > 0, f"a cut trace: {cut}")
    for name, changed, said in (("level", data.replace(b"storage", b"events!", 1), 'the level "events!"'),
                                ("schema", data.replace(b"schema_version\x02", b"schema_version\x03", 1), "schema 3"),
                                ("format", data.replace(b"format_version\x01", b"format_version\x02", 1), "format 2")):
        (folder / name).write_bytes(changed)
        done = play(arguments, [folder / name], wanted=1)
        expect(said in done.stderr, f"{name}: {done.stderr}")
    done = run([arguments.replay, "--trace", arguments.trace, "--export", folder / "x"], os.environ, 2)
    expect("--export wants --recording" in done.stderr, done.stderr)


def a_path_that_cannot_be_written_is_said(arguments, folder):
    with Marud(arguments.marud, **POOL) as marud:
        done = run([arguments.marudctl, "record", folder / "there is no such folder/calls", "--", arguments.replay, "--trace",
                    arguments.trace, "--requests", "2", "--clients", "1", "--no-progress"], marud.environment)
        expect("Calls are not recorded" in done.stderr, done.stderr)
        done = run([arguments.marudctl, "record", folder / "calls", "--", folder / "no program"], marud.environment, 3)
        expect("cannot run" in done.stderr, done.stderr)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--marudctl", "--replay", "--trace"):
        parser.add_argument(name, required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    for name, value in vars(arguments).items():
        setattr(arguments, name, value.resolve())
    for test in (equal_pools_give_equal_results, several_clients_are_played_at_once, a_killed_process_leaves_its_calls,
                 damage_is_said, traces_of_lmcache_are_read_and_written, a_path_that_cannot_be_written_is_said):
        with tempfile.TemporaryDirectory() as folder:
            test(arguments, pathlib.Path(folder))
        print(f"done: {test.__name__}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
