"""marudctl top in a real terminal (a pseudo-terminal), its one-shot forms, watch, doctor and support-dump, all against a real
marud with a replay running through it."""
import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import BlockClient, Marud  # noqa: E402

PATIENCE_S = 180  # a busy machine takes its time, and nothing here is about time
LIMIT = """
[limits]
connections = 1024

[[limit]]
user = "daemon"
pins = 100
"""
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def wait_until(is_so, why):
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            failures.append(f"waited in vain: {why}")
            return
        time.sleep(0.05)


class Screen:
    """A terminal of 80 by 24 with marudctl in it. What is drawn is kept, line by line."""

    def __init__(self, command, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**environment, "TERM": "xterm"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.raw = b""

    def wait_for(self, pattern, why):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.picture()):
            left = deadline - time.monotonic()
            if left <= 0 or not self.read(left):
                failures.append(f"{why}: waited for {pattern!r}, the screen is\n{self.picture()}")
                return
        return

    def read(self, seconds):
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        return bool(data)

    def wait_for_bytes(self, pattern, why):
        """In all that was written since the last keys, of pictures and of a shell."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.raw):
            left = deadline - time.monotonic()
            if left <= 0 or not self.read(left):
                failures.append(f"{why}: waited for {pattern!r}, found {self.raw!r}")
                return

    def picture(self):
        """The text of the last whole picture: each begins at the top left corner."""
        pictures = self.raw.split(b"\033[H")
        last = pictures[-1] if pictures[-1].endswith(b"\033[J") or len(pictures) < 2 else pictures[-2]
        return re.sub(r"\033\[[0-9;?]*[a-zA-Z]", "", last.decode(errors="replace"))

    def press(self, keys):
        self.raw = b""
        os.write(self.fd, keys.encode())

    def end(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.read(1):
            pass
        pid, status = 0, 0
        while pid == 0 and time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0.01)
        if pid == 0:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            failures.append("marudctl top did not end")
        return status


def run(arguments, marud, *more, **options):
    return subprocess.run([arguments.marudctl, "--timeout-ms", "120000", *more], env=marud.environment, capture_output=True,
                          text=True, timeout=PATIENCE_S, **options)


def start_replay(arguments, marud):
    return subprocess.Popen([arguments.replay, "--trace", arguments.trace, "--payload", "4096", "--clients", "2",
                             "--no-progress"], env=marud.environment, stdout=subprocess.DEVNULL)


class EndlessReplay:
    """One replay after the other: a fast machine is through with the trace before a slow test has looked at it."""

    def __init__(self, arguments, marud):
        self.arguments, self.marud, self.is_over = arguments, marud, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.is_over.is_set():
            replay = start_replay(self.arguments, self.marud)
            while replay.poll() is None and not self.is_over.wait(0.05):
                pass
            replay.terminate()
            replay.wait(PATIENCE_S)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def check_once(arguments, marud):
    deadline = time.monotonic() + PATIENCE_S
    while True:  # the replay is attached, and may take its time until it asks
        said = run(arguments, marud, "top", "--json", "--interval-ms", "300")
        expect(said.returncode == 0, f"top --json: {said.stderr}")
        figures = json.loads(said.stdout)
        if (figures["pools"][0]["asked_per_s"] > 0 and figures["clients"]) or time.monotonic() > deadline:
            break
    expect(figures["interval_ms"] >= 300, f"the interval is {figures['interval_ms']} ms")
    pool = figures["pools"][0]
    expect(pool["name"] == "default" and pool["asked_per_s"] > 0, f"nobody asks while a replay runs: {pool}")
    pids = {client["pid"] for client in figures["clients"]}
    expect(pids, "no client is attached while a replay runs")
    text = run(arguments, marud, "top", "--once", "--interval-ms", "100").stdout
    expect("hits: prefix" in text and "PID" in text, f"top --once printed\n{text}")
    expect(max(map(len, text.splitlines())) <= 80, "a line is wider than 80 columns")
    wrong = run(arguments, marud, "top", "--interval-ms", "5")
    expect(wrong.returncode == 2 and "from 100 to 60000" in wrong.stderr, f"an interval of 5 ms: {wrong.stderr}")


def check_live(arguments, marud):
    screen = Screen([arguments.marudctl, "top", "--interval-ms", "200"], marud.environment)
    screen.wait_for(r"clients of all pools, by asked", "the first picture")
    expect(len(screen.picture().splitlines()) <= 24, "more than 24 lines")
    screen.press("s")
    screen.wait_for(r"by stores", "s sorts by the next column")
    screen.press("r")
    screen.wait_for(r"by stores, reversed", "r turns the order round")
    screen.press("p")
    screen.wait_for(r"clients of pool default", "p chooses a pool")
    screen.press("\n")
    screen.wait_for(r"counters since it attached", "Enter looks into a client")
    looked_into = re.search(r"client: process (\d+)", screen.picture())
    # Keys that mean nothing here: F1, F5, Page down, Ctrl-Right, Delete. None is taken for Escape and what follows.
    screen.press("\033OP\033[15~\033[6~\033[1;5C\033[3~h")
    screen.wait_for(r"up, down, k, j", "h behind other keys shows the keys")
    screen.press("h")
    screen.wait_for(r"(client: process|clients of pool)", "h again goes back")
    expect(looked_into and f"client: process {looked_into[1]}" in screen.picture(), f"another client: {screen.picture()}")
    screen.press("\n")
    screen.wait_for(r"clients of pool default", "Enter again goes back")
    screen.press("\033OB\033OA\n")
    screen.wait_for(r"client: process", "arrows in the other spelling choose")
    screen.press("\033")
    screen.wait_for(r"clients of pool default", "Escape goes back")
    screen.press("h")
    screen.wait_for(r"up, down, k, j", "h shows the keys")
    screen.press("h ")
    screen.wait_for(r"HELD", "the space bar holds the picture")
    before = termios.tcgetattr(screen.fd)[3]
    expect(not before & termios.ICANON, "keys are not taken one by one")
    screen.press("q")
    status = screen.end()
    expect(os.waitstatus_to_exitcode(status) == 0, f"top ended with {status}")
    expect(screen.raw.endswith(b"\033[?25h\033[?1049l"), "the terminal is not put back as it was")


def check_live_of_one_pool(arguments, marud):
    """Nothing is known of the others, so there is no picture of all."""
    screen = Screen([arguments.marudctl, "--pool", "default", "top", "--interval-ms", "200"], marud.environment)
    screen.wait_for(r"clients of pool default", "the picture of one pool")
    screen.press("ps")
    screen.wait_for(r"by stores", "s behind p sorts by the next column")
    expect(re.search(r"clients? of pool default", screen.picture()),
           f"p goes on to pools that were not asked for: {screen.picture()}")
    screen.press("q")
    screen.end()


def check_job_control(arguments, marud):
    """In a shell that leaves the terminal alone: Ctrl-Z gives it back, fg takes it again, and so does Ctrl-\\ for good."""
    if not shutil.which("dash"):
        return
    screen = Screen(["dash", "-i"], marud.environment)
    mode = lambda: termios.tcgetattr(screen.fd)[3] & (termios.ICANON | termios.ECHO)
    lines, keys = termios.ICANON | termios.ECHO, 0
    screen.press(f"{arguments.marudctl} --timeout-ms 120000 top --interval-ms 200\n")
    screen.wait_for(r"clients of all pools", "the first picture")
    expect(mode() == keys, f"keys are taken one by one: {mode()}")
    for _ in range(2):
        screen.press("\x1a")
        screen.wait_for_bytes(rb"Stopped", "Ctrl-Z")
        expect(b"\033[?25h\033[?1049l" in screen.raw, f"Ctrl-Z leaves the picture there: {screen.raw}")
        expect(mode() == lines, f"after Ctrl-Z the terminal's mode is {mode()}, expected {lines}")
        screen.press("fg\n")
        screen.wait_for(r"clients of all pools", "fg")
        expect(b"\033[?1049h" in screen.raw and mode() == keys, f"after fg the terminal's mode is {mode()}: {screen.raw}")
    screen.press("\x1c")
    screen.wait_for_bytes(rb"1049l(?s:.*)[$#] $", "Ctrl-\\")
    expect(b"\033[?25h\033[?1049l" in screen.raw, f"Ctrl-\\ leaves the picture there: {screen.raw}")
    expect(mode() == lines, f"after Ctrl-\\ the terminal's mode is {mode()}, expected {lines}")
    screen.press("exit\n")
    screen.end()


def check_lost_marud(arguments, marud):
    """The picture stays while marud does not answer, and says so; a signal still ends it in good order."""
    # Long enough for a slow machine's first answer, without which there is no picture at all.
    screen = Screen([arguments.marudctl, "--timeout-ms", "5000", "top", "--interval-ms", "200"], marud.environment)
    screen.wait_for(r"clients of all pools", "the first picture")
    marud.process.send_signal(signal.SIGSTOP)
    try:
        screen.wait_for(r"marud does not answer", "marud is stopped")
    finally:
        marud.process.send_signal(signal.SIGCONT)
    screen.raw = b""
    screen.wait_for(r"(?s)^(?!.*does not answer).*clients of all pools", "marud goes on")
    os.kill(screen.pid, signal.SIGTERM)
    expect(os.waitstatus_to_exitcode(screen.end()) == 0, "SIGTERM ends it like q")
    expect(screen.raw.endswith(b"\033[?25h\033[?1049l"), "the terminal is not put back after a signal")


def check_watch(arguments, marud):
    """What a replay stores, and what marud evicts for it, in a pool that is much smaller; then a signal ends it."""
    # What marud takes back of processes that have just ended, and clears then, is not of this watch.
    wait_until(lambda: not json.loads(run(arguments, marud, "--json", "clients").stdout)["clients"], "all clients have gone")
    wait_until(lambda: json.loads(run(arguments, marud, "--json", "clear", "--yes").stdout)["left_blocks"] == 0, "cleared")
    watch = subprocess.Popen([arguments.marudctl, "--json", "watch"], env=marud.environment, stdout=subprocess.PIPE, text=True)
    lines = subprocess.Popen([arguments.marudctl, "watch", "--limit", "3"], env=marud.environment, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    expect(json.loads(watch.stdout.readline()) == {"event": "watching"}, "the first line does not say that it watches")
    expect("watching" in lines.stderr.readline(), "without --json it does not say that it watches")
    replay = start_replay(arguments, marud)
    stored, reasons, removed = {}, set(), 0
    deadline = time.monotonic() + PATIENCE_S
    while (removed < 200 or len(stored) < 200) and time.monotonic() < deadline:
        event = json.loads(watch.stdout.readline())
        if event["event"] == "stored":
            stored[event["key"]] = event
        elif event["event"] == "removed":
            removed += 1
            reasons.add(event["reason"])
    replay.terminate()
    replay.wait(PATIENCE_S)
    expect(len(stored) >= 200 and removed >= 200, f"{len(stored)} blocks were stored and {removed} removed while a replay ran")
    expect(reasons and reasons <= {"background", "request", "takeover"}, f"reasons: {reasons}")
    expect(all(event["length_bytes"] == 4096 for event in stored.values()), "blocks of the replay have 4096 bytes")
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=PATIENCE_S)
    expect(watch.returncode == 0, f"after Ctrl-C the status is {watch.returncode}")
    text, _ = lines.communicate(timeout=PATIENCE_S)
    expect(lines.returncode == 0 and len(text.splitlines()) == 3, f"watch --limit 3: {text}")
    expect(all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} (stored|removed) +4 KiB  \S+.*", line) for line in text.splitlines()), text)
    lost = run(arguments, marud, "--socket", "/nonexistent/socket", "watch")
    expect(lost.returncode == 3 and "is marud running" in lost.stderr, f"without marud: {lost.stderr}")


def check_watch_over_a_restart(arguments, marud):
    """A marud that ends and comes back is waited for, and both are said."""
    watch = subprocess.Popen([arguments.marudctl, "--json", "watch"], env=marud.environment, stdout=subprocess.PIPE, text=True)
    events = [json.loads(watch.stdout.readline())["event"]]
    marud.process.kill()
    marud.process.wait(PATIENCE_S)
    events.append(json.loads(watch.stdout.readline() or '{"event": "the end"}')["event"])
    marud.begin()
    replay = start_replay(arguments, marud)  # whose memory the pool has from now on
    events.append(json.loads(watch.stdout.readline() or '{"event": "the end"}')["event"])
    expect(events == ["watching", "waiting", "watching"], f"a watch over a restart: {events}")
    for process in (replay, watch):
        process.terminate()
    replay.wait(PATIENCE_S)
    watch.communicate(timeout=PATIENCE_S)
    expect(watch.returncode == 0, f"after a restart and a signal the status is {watch.returncode}")


def check_full_disk(arguments, marud):
    """Output that cannot be written is an error, whatever the command was."""
    for words in (["status", "--json"], ["status"], ["clients"], ["--help"], ["completion", "bash"], ["watch", "--json"]):
        with open("/dev/full", "w") as full:
            said = subprocess.run([arguments.marudctl, "--socket", marud.socket, *words], stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=PATIENCE_S)
        expect(said.returncode == 1 and "could not be written: No space left" in said.stderr,
               f"{words} on a full disk: {said.returncode} {said.stderr}")


def check_doctor(arguments, marud):
    said = run(arguments, marud, "--json", "doctor")
    findings = {row["what"]: row for row in json.loads(said.stdout)["findings"]}
    expect(findings["marud"]["grade"] == "good", f"a running marud: {findings['marud']}")
    expect(findings['pool "default"']["grade"] != "wrong", f"its pool: {findings}")
    expect({"kernel", "io_uring", "swap"} <= set(findings), f"what is looked at: {sorted(findings)}")
    expect({"memory for pools", "state directory"} <= set(findings), f"what marud says of itself: {sorted(findings)}")
    expect((said.returncode == 4) == any(row["grade"] == "wrong" for row in findings.values()), "the exit status")
    alone = subprocess.run([arguments.marudctl, "--socket", "/nonexistent/socket", "doctor"], capture_output=True, text=True,
                           timeout=PATIENCE_S)
    expect(alone.returncode == 4 and "no client can attach" in alone.stdout, f"without marud: {alone.stdout}")
    check_forbidden_socket(arguments)


def check_forbidden_socket(arguments):
    """Who may not use the socket is told so, and not that marud is missing. Root may use any, so nobody asks."""
    if os.geteuid() != 0:
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "socket")
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen()
        # The program may lie where nobody else can go, so it is opened before.
        program = os.open(arguments.marudctl, os.O_RDONLY)
        for words, expected in ((["status"], 1), (["doctor"], 0)):
            said = subprocess.run(["/proc/self/fd/%d" % program, "--socket", path, *words], capture_output=True, text=True,
                                  timeout=PATIENCE_S, pass_fds=[program], user=65534, group=65534, extra_groups=[])
            text = said.stdout + said.stderr
            expect("this user may not use the socket" in text and "is marud running" not in text, f"{words}: {text}")
            expect(said.returncode in (expected, 4 * (words == ["doctor"])), f"{words}: {said.returncode}")
        os.close(program)


def check_support_dump(arguments, marud):
    path = pathlib.Path(marud.directory.name) / "dump.json"
    expect(run(arguments, marud, "quota", "set", "ailsa", "--soft", "1GiB").returncode == 0, "a tenant")
    with BlockClient(arguments.client, marud) as client:
        # So that there is a key and a tenant to leave out, of pins above all.
        stored = [client.ask("store zanzibar/17 4096 ailsa"), client.ask("hold zanzibar/17 ailsa")]
        expect(stored == [0, 0], f"a pinned block: {stored}")
        check_dump(arguments, marud, path)


def check_dump(arguments, marud, path):
    said = run(arguments, marud, "support-dump", "--output", str(path))
    expect(said.returncode == 0 and str(path) in said.stdout, f"support-dump: {said.stderr}")
    expect(path.stat().st_mode & 0o777 == 0o600, "others can read it")
    dump = json.loads(path.read_text())
    expect(dump["status"]["pools"][0]["name"] == "default", "the status is not in it")
    expect(dump["pools"]["default"]["check"].get("found") == 0, "the audit is not in it")
    expect(dump["doctor"], "the doctor's findings are not in it")
    expect([row["pool"] for row in dump["devices"]["devices"]] == ["default"], f"devices: {dump['devices']}")
    expect(dump["marud"]["limits"]["connections"] == 1024, f"limits of users: {dump['marud'].get('limits')}")
    expect([sorted(rule) for rule in dump["marud"]["limit"]] == [["bytes", "connections", "pins", "regions"]],
           f"a limit of one user: {dump['marud']['limit']}")
    expect(any(re.match(r"maru_event_loop_turn_seconds_count [1-9]", line) for line in dump["marud"]["metrics"]),
           "marud's own metrics are not in it")
    about = dump["pools"]["default"]
    expect(any(re.match(r'maru_stores_total{pool="default"} [1-9]', line) for line in about["metrics"]["metrics"]),
           "the metrics of the pool are not in it")
    expect([row["soft_bytes"] for row in about["quotas"]["tenants"]] == [1 << 30], f"quotas: {about['quotas']}")
    expect({"regions", "policy", "pins", "memory", "hosts"} < set(about), f"what is said of a pool: {sorted(about)}")
    expect([row["pid"] for row in about["pins"]["pins"]], f"the pin is not in it: {about['pins']}")
    for secret in ('"key"', "zanzibar", "ailsa", "token", "http_secret", str(marud.config)):
        expect(secret not in path.read_text(), f"{secret} is in it")
    said = run(arguments, marud, "support-dump", "--keys", "--output", "-")
    expect('"ailsa"' in said.stdout and '"zanzibar/17"' in said.stdout and "token" not in said.stdout,
           "what is asked for with --keys")
    again = run(arguments, marud, "support-dump", "--output", str(path))
    expect(again.returncode == 1 and "found a file, expected none" in again.stderr, f"an existing file: {again.stderr}")
    lost = run(arguments, marud, "--socket", "/nonexistent/socket", "support-dump", "--output", "-")
    expect(lost.returncode == 0 and "not_answered" in json.loads(lost.stdout)["status"], "without marud the rest is written")
    expect("marud says nothing of itself in it: " in lost.stderr and "nothing of itself" not in said.stderr,
           f"what is missing is not said: {lost.stderr}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--marudctl", "--client", "--replay", "--trace"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    with Marud(arguments.marud, size="48MiB", region_bytes="512KiB", more=LIMIT) as marud:
        with EndlessReplay(arguments, marud):
            wait_until(lambda: json.loads(run(arguments, marud, "--json", "clients").stdout)["clients"], "a client comes")
            check_once(arguments, marud)
            check_live(arguments, marud)
            check_live_of_one_pool(arguments, marud)
        check_watch(arguments, marud)
        check_full_disk(arguments, marud)
        check_job_control(arguments, marud)
        check_lost_marud(arguments, marud)
        check_doctor(arguments, marud)
        check_support_dump(arguments, marud)
        check_watch_over_a_restart(arguments, marud)
    print("\n".join(failures) or "the live picture, watch, doctor and support-dump do what they say")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
