"""What marudctl prints in a terminal of 80 columns: each line fits, rows are in order, and what --json prints is JSON; against
a marud with three pools, clients, tenants, bad memory, and a pool that is being drained."""
import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import BlockClient, Marud  # noqa: E402

PATIENCE_S = 180  # a busy machine takes its time, and nothing here is about time
COLUMNS = 80
POOL = '[[pool]]\nname = "{name}"\nbackend = "memory"\nsize = "{size}"\npage_bytes = "64KiB"\n'
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def run(arguments, marud, *words):
    return subprocess.run([arguments.marudctl, "--timeout-ms", "120000", *words], env=marud.environment, capture_output=True,
                          text=True, timeout=PATIENCE_S)


def asked(arguments, marud, *words):
    said = run(arguments, marud, "--json", *words)
    expect(said.returncode in ((0, 4) if words == ("doctor",) else (0,)), f"{words}: {said.returncode} {said.stderr}")
    return json.loads(said.stdout)


def in_terminal(arguments, marud, *words):
    """What a command prints to a terminal of 80 columns, and its status."""
    program, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen([arguments.marudctl, "--timeout-ms", "120000", *words], env=marud.environment, stdout=terminal,
                               stdin=subprocess.DEVNULL)
    os.close(terminal)
    text = b""
    while True:
        try:
            data = os.read(program, 65536)
        except OSError:  # the last one who had it open has ended
            break
        if not data:
            break
        text += data
    os.close(program)
    status = process.wait(PATIENCE_S)
    text = text.decode().replace("\r", "")
    wide = [line for line in text.splitlines() if len(line) > COLUMNS]
    expect(status in ((0, 4) if words == ("doctor",) else (0,)), f"{words}: the status is {status}")
    expect(not wide, f"{words}: wider than {COLUMNS} columns:\n{text}")
    expect(text.endswith("\n") and not re.search(r"[ \t]$", text, re.MULTILINE), f"{words}: blanks at the end:\n{text}")
    return text


def column(text, heading):
    """The cells of a table under a heading, whose column is aligned to the right."""
    lines = text.splitlines()
    head = next(line for line in lines if heading in line)
    end = head.index(heading) + len(heading)
    return [line[:end].split()[-1] for line in lines[lines.index(head) + 1:] if re.match(r" *\S+ {2,}", line)]


def check_tables(arguments, marud):
    for words in (["status"], ["blocks"], ["memory", "list"], ["policy", "show"], ["quota", "get", "alice"],
                  ["quota", "default"], ["quota", "mode"], ["check"], ["doctor"], ["pins"], ["version"],
                  ["top", "--once", "--interval-ms", "100"]):
        in_terminal(arguments, marud, *words)
        asked(arguments, marud, *words)
    expect(json.loads(run(arguments, marud, "--json", "provision", "list").stdout) is not None, "provision list")

    status = in_terminal(arguments, marud, "--pool", "default", "status")
    expect("evicted for room" in status and "evicted blocks" not in status, f"evictions: {status}")

    text = in_terminal(arguments, marud, "clients")
    listed = asked(arguments, marud, "clients")["clients"]
    order = [str(row["lane"]) for row in sorted(listed, key=lambda row: row["lane"])]
    expect(len(listed) == 2 and column(text, "LANE") == order, f"clients are not in the order of their lanes: {text}")
    expect(all(f" {row['command']} " in text for row in listed), f"the command of a client is cut: {text}")

    text = in_terminal(arguments, marud, "pins")
    expect(re.search(r" secret +alice$", text, re.MULTILINE), f"a pin does not say whose block it is on: {text}")

    rows = asked(arguments, marud, "regions")["regions"]
    unused = sum(row["state"] == "unused" for row in rows)
    text = in_terminal(arguments, marud, "regions")
    expect(0 < unused < len(rows), f"some regions are in use and some are not: {rows}")
    expect(len(column(text, "REGION")) == len(rows) - unused and f"\n{unused} regions are unused\n" in text,
           f"unused regions: {text}")

    text = in_terminal(arguments, marud, "quota", "list")
    expect(text.index("\nuser ") < text.index("\nalice "), f"who uses most is not the first: {text}")
    expect(column(text, "SHARE")[:1] == ["%"], f"shares are not aligned to the right: {text}")
    # The block with the long key.
    expect(re.search(r"^blocks of no tenant.*: 4 KiB$", text, re.MULTILINE), f"what blocks of no tenant use: {text}")
    expect(asked(arguments, marud, "quota", "list")["others_used_bytes"] == 4096, "others_used_bytes of quota list")
    expect(asked(arguments, marud, "quota", "list", "--limit", "1")["others_used_bytes"] == 4096, "of a short list")
    short = asked(arguments, marud, "quota", "list", "--limit", "1")
    expect([row["tenant"] for row in short["tenants"]] == ["user"] and short["left_out"] == 2, f"who uses most: {short}")
    expect("left_out" not in asked(arguments, marud, "quota", "list", "--limit", "3"), "all that there are")
    text = in_terminal(arguments, marud, "quota", "list", "--limit", "1")
    expect("\nuser " in text and "alice" not in text and "\n... and more: --limit " in text, f"a short list: {text}")
    pools = {pool["name"]: pool["tenants"] for pool in asked(arguments, marud, "status")["pools"]}
    expect(pools["default"]["others_used_bytes"] == 4096, f"others_used_bytes of status: {pools}")

    said = run(arguments, marud, "device", "drain", "a-pool-that-goes")
    expect(said.returncode == 0, f"device drain: {said.stderr}")
    text = in_terminal(arguments, marud, "device", "list")
    expect("\na-pool-that-goes: 0 pages left, 0 blocks in them, 0 pinned\n" in text, f"draining: {text}")


def check_refusals(arguments, marud):
    """What marud refuses is said in JSON, too."""
    said = run(arguments, marud, "device", "remove", "a-pool-that-goes", "--yes")
    expect(said.returncode == 0, f"device remove: {said.stderr}")
    for words, status in ((["--pool", "nobody's", "status"], 1), (["--pool", "a-pool-that-goes", "clients"], 1),
                          (["delete-tree", "no such key"], 1), (["client", "fence", "15"], 1), (["client", "forget", "15"], 1),
                          (["policy", "set", "nonsense"], 1),
                          (["--pool", "default", "device", "drain", "nobody's"], 1), (["clear"], 2)):
        plain, said = run(arguments, marud, *words), run(arguments, marud, "--json", *words)
        expect(plain.returncode == said.returncode == status and not said.stdout, f"{words}: {plain} {said}")
        expect(json.loads(said.stderr) == {"error": plain.stderr.removeprefix("marudctl: ").rstrip("\n"), "status": status},
               f"{words}: {plain.stderr} {said.stderr}")


def check_fence(arguments):
    """A lane is one of the pool that is meant, and never that of a client elsewhere."""
    with Marud(arguments.marud, size="16MiB", more=POOL.format(name="second", size="8MiB")) as marud:
        with BlockClient(arguments.client, marud, "second") as theirs:
            expect(theirs.ask("exists kept") == 0, "the client of the second pool has attached")
            listed = asked(arguments, marud, "clients")["clients"]
            expect([row["pool"] for row in listed] == ["second"], f"the client of the second pool: {listed}")
            lane = str(listed[0]["lane"])

            def offered(*words):
                return run(arguments, marud, "completion", "words", "--", "--timeout-ms", "120000", *words).stdout
            expect(offered("client", "fence", "") == "", "lanes of another pool than the one that would be meant")
            expect(offered("--pool", "second", "client", "fence", "").startswith(lane), "lanes of the pool that is named")

            said = run(arguments, marud, "client", "fence", lane, "--yes")
            expect(said.returncode == 1 and f'lane {lane} of pool "default" has no client' in said.stderr,
                   f"the lane of another pool: {said}")
            expect(theirs.ask("store kept 4096") == 0, "a client of another pool was ended")
            with BlockClient(arguments.client, marud) as other:
                expect(other.ask("exists kept") == 0, "the client of the default pool has attached")
                said = run(arguments, marud, "client", "fence", lane, "--yes")
                expect(said.returncode == 0 and f'lane {lane} of pool "default" is taken back' in said.stdout, f"{said}")
                expect(other.process.wait(PATIENCE_S) == -9, "the client of the default pool goes on")
            expect(theirs.ask("exists kept") == 1, "a client of another pool was ended, too")
            said = run(arguments, marud, "--pool", "second", "client", "fence", lane, "--yes")
            expect(said.returncode == 0 and f'lane {lane} of pool "second" is taken back' in said.stdout, f"{said}")
            expect(theirs.process.wait(PATIENCE_S) == -9, "the client of the pool that was named goes on")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--marudctl", "--client"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    more = POOL.format(name="embeddings-of-everything", size="8MiB") + POOL.format(name="a-pool-that-goes", size="8MiB")
    with Marud(arguments.marud, size="48MiB", region_bytes="1MiB", more=more) as marud:
        with BlockClient(arguments.client, marud) as one, BlockClient(arguments.client, marud) as other:
            long_key = "llama-3-70b/" + "layer/" * 20
            stored = [one.ask("store secret 9000 alice"), one.ask("hold secret alice"), other.ask("fill user 20 4096 user"),
                      other.ask(f"store {long_key} 1000"), other.ask(f"hold {long_key}")]
            expect(stored == [0, 0, 20, 0, 0], f"what the clients stored: {stored}")
            for words in (["quota", "set", "alice", "--soft", "1GiB", "--hard", "2GiB"],
                          ["quota", "set", "user", "--soft", "1MiB"], ["quota", "set", "a tenant", "--hard", "3GiB"],
                          ["memory", "poison", "5000", "--yes"]):
                said = run(arguments, marud, *words)
                expect(said.returncode == 0, f"{words}: {said.stderr}")
            check_tables(arguments, marud)
            check_refusals(arguments, marud)
    check_fence(arguments)
    print("\n".join(failures) or "every table fits, is in order, and is JSON when it shall be")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
