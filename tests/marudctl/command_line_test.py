"""The words of marudctl's command line: help and version wherever they are asked for, what is said of wrong words, and the exit
statuses that marudctl(1) documents, for every command of the summary. Without marud."""
import argparse
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading

PATIENCE_S = 180  # a busy machine takes its time, and nothing here is about time
NOBODY = "/nonexistent/socket"
failures = []

# Words for the arguments of a usage, so that a command gets as far as asking marud.
ARGUMENTS = {"KEY": "key", "PAGES": "1", "LANE": "1", "HOST": "1", "POOL": "pool", "FILE": "/nonexistent", "NAME": "lru",
             "TENANT": "alice", "PAGE": "1"}
OPTIONS_OF = {"quota set": ["--soft", "1GiB"], "top": ["--once", "--interval-ms", "100"], "support-dump": ["--output", "-"]}
# Commands that answer without marud: with which status.
WITHOUT_MARUD = {"version": 0, "completion": 0, "help": 0, "doctor": 4, "support-dump": 0, "provision": None}


def expect(condition, what):
    if not condition:
        failures.append(what)


def run(arguments, *words, at=NOBODY):
    environment = {**os.environ, "MARU_SOCKET": at}
    return subprocess.run([arguments.marudctl, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
                          stdin=subprocess.DEVNULL)


def says(arguments, words, status, text, refused=""):
    said = run(arguments, *words)
    there = said.stderr if status else said.stdout
    expect(said.returncode == status, f"{words}: the status is {said.returncode}, expected {status}: {said.stderr}")
    expect(text in there, f"{words}: {text!r} is not in {there!r}")
    expect(not refused or refused not in there, f"{words}: {refused!r} is in {there!r}")
    expect(not (status and said.stdout), f"{words}: something wrong is said on the standard output: {said.stdout}")
    if status:
        check_json(arguments, ["--json", *words], said)


def check_json(arguments, words, plain, at=NOBODY):
    """With --json the same is said as one object on one line, and nothing on the standard output."""
    said = run(arguments, *words, at=at)
    expect(said.returncode == plain.returncode and not said.stdout and said.stderr.count("\n") == 1, f"{words}: {said}")
    try:
        found = json.loads(said.stderr)
    except json.JSONDecodeError as mistake:
        expect(False, f"{words}: {mistake}: {said.stderr!r}")
        return
    expect(set(found) == {"error", "status"} and found["status"] == plain.returncode, f"{words}: {found}")
    if not plain.stderr.startswith("{"):
        expect(plain.stderr.endswith(f"marudctl: {found['error']}\n"), f"{words}: {found} and {plain.stderr!r}")


def commands(arguments):
    """Each command of the summary, and how it is used."""
    text = run(arguments, "--help").stdout
    listed = text[text.index("Commands:"):text.index("Options:")]
    entry = r"^  ([a-z][a-z-]*(?: [a-z][a-z-]*)?)(.*(?:\n {9}.*)?)$"
    return dict(re.findall(entry, listed, re.MULTILINE))


def check_help(arguments, known):
    summary = run(arguments, "--help").stdout
    for words in (["-h"], ["help"], ["help", "help"], ["--json", "-h"]):
        expect(run(arguments, *words).stdout == summary, f"{words} is not the summary")
    for command in known:
        if command == "help":
            continue
        words = command.split()
        text = run(arguments, "help", *words)
        expect(text.returncode == 0 and text.stdout.startswith(f"usage: marudctl [OPTIONS] {command}"),
               f"help {command}: {text.stdout}{text.stderr}")
        for option in re.findall(r"--[a-z-]+", known[command]):
            expect(re.search(rf"^  {option}\b.*  \w", text.stdout, re.MULTILINE), f"help {command} does not describe {option}")
        expect("-h, --help" in text.stdout and "--socket PATH" in text.stdout, f"help {command}: {text.stdout}")
        for how in ([*words, "--help"], [*words, "-h"], ["-h", *words], [*words, "more", "words", "--help"]):
            expect(run(arguments, *how).stdout == text.stdout, f"{how} is not the same as help {command}")
        if len(words) == 2:
            group = run(arguments, words[0], "--help")
            expect(group.returncode == 0 and f"\n  {command}" in group.stdout, f"{words[0]} --help lacks {command}")
            expect(group.stdout == run(arguments, "help", words[0]).stdout == run(arguments, words[0], "help").stdout,
                   f"the help of {words[0]} differs with the way to it")
        for how in ([*words, "-V"], ["--version", *words], [words[0], "--version"]):
            says(arguments, how, 0, "marudctl ")
    says(arguments, ["help", "nonsense"], 2, '"nonsense" is no command')
    says(arguments, ["nonsense", "--help"], 2, '"nonsense" is no command')
    says(arguments, ["help", "status", "more"], 2, 'found "more"')


def check_terminal(arguments):
    """Nothing steers the terminal that is not in words: control characters of one byte or two, and what is not UTF-8."""
    said = subprocess.run([arguments.marudctl, b"\x1b[2J\xc2\x9b\xff\x7f"], capture_output=True, timeout=PATIENCE_S)
    expect(said.returncode == 2 and b'"?[2J???"' in said.stderr, f"a command of control characters: {said.stderr}")


def check_width(arguments, known):
    """All help fits a terminal of 80 columns."""
    texts = {"--help": run(arguments, "--help").stdout}
    texts |= {command: run(arguments, "help", *command.split()).stdout for command in known if command != "help"}
    for command, text in texts.items():
        for line in text.splitlines():
            expect(len(line) <= 80, f"help {command}: {len(line)} columns: {line}")


def check_statuses(arguments, known):
    for command, usage in known.items():
        words = command.split()
        says(arguments, [*words, "--nonsense"], 2, "--nonsense is no option")
        if command == "help":
            continue
        wrong = "--quiesce" if "--quiesce" not in usage else "--pinned"
        says(arguments, [*words, wrong], 2, f"{command} does not take {wrong}")
        if command == "record":  # it takes any number of words, and needs no marud
            says(arguments, words, 2, "an argument is missing")
            says(arguments, [*words, "", "--", "true"], 2, "found an empty argument")
            says(arguments, [*words, "/nonexistent", "--", "/nonexistent"], 3, "cannot run /nonexistent")
            continue
        if command != "completion":
            says(arguments, [*words, "a", "b", "c"], 2, "found ")
        needed = re.sub(r"\[[^]]*\]|--yes", "", usage).split("|")[0]
        operands = [ARGUMENTS.get(word, word) for word in re.findall(r"[A-Za-z]+", needed)]
        if operands and "|" not in usage.split("[")[0]:
            says(arguments, words, 2, "an argument is missing")
        if operands:
            says(arguments, [*words, ""], 2, "found an empty argument")
        if command in ("check", "provision"):
            continue
        ask = [*words, *operands[:1], *OPTIONS_OF.get(command, []), *(["--yes"] if "--yes" in usage else [])]
        said = run(arguments, *ask)
        expected = WITHOUT_MARUD.get(command, 1 if "FILE" in needed else 3)
        expect(said.returncode == expected, f"{ask} without marud: {said.returncode}, expected {expected}: {said.stderr}")
        if expected == 3:
            whom = "maru-tierd" if ask[0] == "tier" else "marud"
            expect(f"is {whom} running" in said.stderr, f"{ask}: {said.stderr}")
            check_json(arguments, [*ask, "--json"], said)
    says(arguments, ["check"], 3, "is marud running")
    says(arguments, ["check", "--file", "/nonexistent"], 1, "/nonexistent: No such file")
    with tempfile.NamedTemporaryFile() as file:
        file.write(struct.pack("<8sII", b"MARUCTL1", 9, 2) + bytes(1 << 16))
        file.flush()
        says(arguments, ["check", "--file", file.name], 1, "found a pool of version 9.2 of the format, or a damaged header")
    says(arguments, ["device", "add", "pool"], 3, "is marud running")


def check_foreign_socket(arguments):
    """Another program listens where marud should."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = os.path.join(directory, "socket")
        listener.bind(path)
        listener.listen()
        listener.settimeout(PATIENCE_S)

        def answer():
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(PATIENCE_S)
                peer.recv(1 << 16)
                peer.send(b"hello")

        answers = threading.Thread(target=answer)
        answers.start()
        said = run(arguments, "status", at=path)
        answers.join()
    expect(said.returncode == 3 and f"what answers on {path} is no marud" in said.stderr and "--socket" in said.stderr,
           f"something else on the socket: {said}")


def check_wrong_words(arguments):
    for words, meant in ((["statu"], "marudctl status?"), (["statu", "x"], "marudctl status?"),
                         (["quota", "sett"], "quota set"), (["delete", "tree", "x"], "marudctl delete-tree?"),
                         (["quota list"], "marudctl quota list?"),
                         (["status "], "marudctl status?"), (["hlep"], "marudctl help?"), (["--jsn", "status"], "--json?"),
                         (["--qiesce", "check"], "--quiesce?")):
        says(arguments, words, 2, meant)
    says(arguments, ["snapshot"], 2, '"snapshot" is no command', "did you mean")
    says(arguments, ["quota", "snapshot"], 2, "quota goes on with one of: list, get,", "did you mean")
    says(arguments, ["quota"], 2, "quota goes on with one of: list, get,")
    says(arguments, ["-x"], 2, "-x is no option")
    says(arguments, ["--json", "-xh"], 2, "-x is no option")
    says(arguments, ["--p", "x"], 2, "--p is the beginning of several options: --pool")
    says(arguments, ["status", "--pool"], 2, "--pool lacks its value, NAME")
    says(arguments, ["status", "--json=yes"], 2, "--json takes no value")
    says(arguments, ["--socket", "", "status"], 2, "--socket: found nothing, expected PATH")
    says(arguments, ["--pool=", "status"], 2, "--pool: found nothing, expected NAME")
    says(arguments, ["--socket", "x" * 200, "status"], 2, "found a path of 200 bytes, expected at most 107")


def check_json_is_asked_for(arguments):
    """Wherever --json stands, before the mistake or behind it, and however short; not as the value of another option."""
    plain = run(arguments, "status", "--pool")
    for words in (["--json", "status", "--pool"], ["status", "--jso", "--pool"], ["--j", "status", "--pool"]):
        check_json(arguments, words, plain)
    check_json(arguments, ["--nonsense", "--json"], run(arguments, "--nonsense"))
    for words in (["--pool", "--json", "status"], ["status", "--", "--json"], ["--", "--json"]):
        expect(run(arguments, *words).stderr.startswith("marudctl: "), f"{words}: said in JSON, for which nobody asked")
    unwritten = subprocess.run(f"exec '{arguments.marudctl}' --json version >/dev/full", shell=True, capture_output=True,
                               text=True, timeout=PATIENCE_S)
    expect(unwritten.returncode == 1 and json.loads(unwritten.stderr)["status"] == 1, f"a full disk: {unwritten}")
    says(arguments, ["check", "--file", "/etc/passwd"], 1, "too short for a pool")
    for words in (["nonsense"], ["list", "more"], ["apply", "--config", "/nonexistent"]):
        said = run(arguments, "provision", "--json", *words)
        found = json.loads(said.stderr)
        expect(not said.stdout and found["status"] == said.returncode == 2, f"{words}: {said}")
        expect(words[-1] in found["error"], f"{words}: {said}")
    expect("/nonexistent: cannot" in found["error"], f"a file that is not there has no lines: {said}")


def check_numbers(arguments):
    """A number that is too large is told the range, and is never taken for another one."""
    large = "99999999999999999999999"
    for words, most in ((["blocks", "--limit", large], "4294967295"), (["evict", large], "4294967294"),
                        (["evict", "+5"], "4294967294"), (["evict", " 5"], "4294967294"), (["evict", "0"], "4294967294"),
                        (["evict", "5x"], "4294967294"), (["client", "fence", large], "4095"),
                        (["client", "forget", large], "4095"),
                        (["client", "fence", "--pid", large], "2147483647"), (["host", "declare-dead", large, "--yes"], "63"),
                        (["memory", "poison", large, "--yes"], "4294967293"), (["--timeout-ms", "0", "status"], "3600000"),
                        (["top", "--interval-ms", "5"], "60000"), (["device", "remove", "x", "--deadline", large], "86400"),
                        (["quota", "get", "id:" + large], "18446744073709551615"),
                        (["blocks", "--min-priority=-1"], "4294967295")):
        says(arguments, words, 2, f"to {most}")
    says(arguments, ["quota", "set", "a", "--soft", large + "TiB"], 2, "expected a size up to 4194304TiB")


def check_full_queue(arguments):
    """A marud that does not even take connections is waited for as long as --timeout-ms says."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        path = os.path.join(folder, "socket")
        listening.bind(path)
        listening.listen(0)
        waiting = []
        while True:  # ends: a queue has an end
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.setblocking(False)
            try:
                one.connect(path)
            except BlockingIOError:
                break
            waiting.append(one)
        said = run(arguments, "--timeout-ms", "200", "status", at=path)
        expect(said.returncode == 3 and "timed out" in said.stderr.lower(), f"a full queue: {said.returncode} {said.stderr}")
        check_json(arguments, ["--timeout-ms", "200", "status", "--json"], said, at=path)
        for one in waiting:
            one.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--marudctl", required=True)
    arguments = parser.parse_args()
    known = commands(arguments)
    expect(len(known) > 30, f"the commands are {sorted(known)}")
    check_help(arguments, known)
    check_terminal(arguments)
    check_width(arguments, known)
    check_statuses(arguments, known)
    check_wrong_words(arguments)
    check_foreign_socket(arguments)
    check_json_is_asked_for(arguments)
    check_numbers(arguments)
    check_full_queue(arguments)
    print("\n".join(failures) or f"{len(known)} commands say what they take, and what was wrong")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
