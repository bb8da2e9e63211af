"""What marud does when something runs out: descriptors, memory, room for its state, the patience of those who do not read. Each
is an error that says so, nothing else suffers, and it goes on when there is enough again.

  exhaustion_test.py --marud PROGRAM --marudctl PROGRAM --client PROGRAM
"""
import argparse
import json
import os
import pathlib
import resource
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, BlockClient, Findings, Marud, wait_for  # noqa: E402

findings = Findings()
expect = findings.expect

ADMIN, PING = 5, 6
HEADER = struct.Struct("<IHHIiII")


def packet(kind, payload=b"", number=1):
    return HEADER.pack(0x5552414D, 1, kind, number, 0, len(payload), 0) + payload


def connect(marud):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(PATIENCE)
    peer.connect(str(marud.socket))
    return peer


def ask(peer, kind, payload=b""):
    """The status and the payload; nothing when marud closes."""
    try:
        peer.send(packet(kind, payload))
        reply = peer.recv(1 << 16)
    except (BrokenPipeError, ConnectionResetError):
        return None
    if not reply:
        return None
    return HEADER.unpack_from(reply)[4], reply[HEADER.size:]


def is_served(marud):
    """A new connection is answered."""
    with connect(marud) as peer:
        found = ask(peer, PING)
        return found is not None and found[0] == 0


def marudctl(marud, *words):
    return subprocess.run([arguments.marudctl, "--socket", marud.socket, *words], capture_output=True, text=True,
                          timeout=PATIENCE)


def log_of(marud):
    return marud.log.read_text(errors="replace")


def limit(marud, what, most):
    before = resource.prlimit(marud.process.pid, what)
    resource.prlimit(marud.process.pid, what, (most, before[1]))
    return before


def works(client, key):
    """A client that was there before: storing in its own pages, and with a request to marud."""
    return client.ask(f"store {key} 4096") == 0 and client.ask(f"retrieve {key}") == 0 and client.ask("take 1048576") == 0


def descriptors():
    with Marud(arguments.marud) as marud, BlockClient(arguments.client, marud) as client:
        expect(client.ask("store first 4096") == 0, "storing")
        open_now = len(os.listdir(f"/proc/{marud.process.pid}/fd"))
        before = limit(marud, resource.RLIMIT_NOFILE, open_now + 20)
        peers = []
        for _ in range(60):
            peers.append(connect(marud))
        wait_for(lambda: "are not accepted until others have gone: Too many open files" in log_of(marud) or
                 "Too many open files" in log_of(marud), "a line in the log that says so")
        expect(works(client, "meanwhile"), "a client that was there before")
        for peer in peers:
            peer.close()
        wait_for(lambda: is_served(marud), "new connections when others have gone")
        resource.prlimit(marud.process.pid, resource.RLIMIT_NOFILE, before)
        expect(client.ask("retrieve first") == 0, "reading")
        wait_for(lambda: "connections are accepted again" in log_of(marud), "a line that says that it is over")
        # Once for each shortage; a machine that stands still for seconds may make two of one.
        lines = log_of(marud).count("are not accepted until others have gone")
        expect(lines <= 3, f"{lines} lines about one shortage")
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")


def address_space(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            return int(line.split()[1]) << 10
    raise SystemExit("no VmSize")


def memory():
    """Connections until there is no memory for another: each has a buffer of 64 KiB in marud."""
    with Marud(arguments.marud) as marud, BlockClient(arguments.client, marud) as client:
        if address_space(marud.process.pid) > 1 << 40:
            print("skipped: a sanitizer has taken all addresses that there are")
            return
        expect(client.ask("store first 4096") == 0, "storing")
        before = limit(marud, resource.RLIMIT_AS, address_space(marud.process.pid) + (4 << 20))
        peers, refused = [], 0
        for number in range(400):
            peer = connect(marud)
            peers.append(peer)
            refused = refused + 1 if ask(peer, PING) is None else 0
            if refused > 20:
                break
        expect(refused > 20, f"{len(peers)} connections, and none was refused")
        wait_for(lambda: "marud is out of memory" in log_of(marud), "a line in the log")
        expect(works(client, "meanwhile"), "a client that was there before")
        answered = sum(ask(peer, PING) is not None for peer in peers[:20])
        expect(answered == 20, f"{answered} of the first 20 connections are answered")
        for peer in peers:
            peer.close()
        resource.prlimit(marud.process.pid, resource.RLIMIT_AS, before)
        wait_for(lambda: is_served(marud), "new connections when there is memory again")
        expect(client.ask("retrieve first") == 0, "reading")
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")
    # Too little from the start: an error, and no pool.
    with tempfile.TemporaryDirectory(prefix="maru-test-") as folder:
        run = subprocess.run(["/bin/sh", "-c", 'ulimit -v 60000; exec "$@"', "sh", arguments.marud, "--socket",
                              f"{folder}/marud.sock", "--memory", "2GiB"], capture_output=True, text=True,
                             timeout=PATIENCE)
        said = run.stdout + run.stderr
        expect(run.returncode == 1 and "marud stops: " in said and "Cannot allocate memory" in said, run)


def group_limit():
    """A control group that may have less memory than marud takes at once: refused, where the kernel would kill it. The limit
    is written where marud looks for it, and is none; tests/package/in_service.sh has real ones."""
    mount = "mount -t tmpfs tmpfs /sys/fs/cgroup"
    if subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", mount],
                      capture_output=True).returncode != 0:
        print("skipped: mounts below /sys are not permitted here")
        return
    own = [line[3:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::/")]
    if not own:
        print("skipped: no control groups of version 2")
        return
    script = (mount + ' && mkdir -p "/sys/fs/cgroup$GROUP" && '
              'echo "$LIMIT" >"/sys/fs/cgroup$GROUP/memory.max" && '
              'echo "anon 1048576" >"/sys/fs/cgroup$GROUP/memory.stat" && exec "$@"')

    def start(limit, size, more=""):
        with tempfile.TemporaryDirectory(prefix="maru-test-") as folder:
            config = pathlib.Path(folder) / "marud.toml"
            config.write_text(f'[daemon]\nsocket = "{folder}/marud.sock"\nstate_dir = "{folder}/state"\n'
                              f'[[pool]]\nname = "default"\nbackend = "memory"\nsize = "{size}"\n{more}')
            marud = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
                                      arguments.marud, "--config", config], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True,
                                     env={**os.environ, "GROUP": own[0].rstrip("/"), "LIMIT": str(limit << 20)})
            said = ""
            for line in marud.stdout:
                said += line
                if " listens on " in line:
                    marud.terminate()
            return marud.wait(PATIENCE), said

    status, said = start(65, "128MiB", "first_touch = true\n")
    expect(status == 1 and "(first_touch): found room for 64 MiB in the control group" in said and
           "expected 128 MiB" in said, said)
    status, said = start(2, "8GiB")
    expect(status == 1 and "take the control region of pool \"default\": found room for 1 MiB" in said, said)
    status, said = start(200, "128MiB", "first_touch = true\n")
    expect(status == 0 and " took its memory in " in said, said)
    # What clients touch is theirs.
    status, said = start(200, "8GiB")
    expect(status == 0 and " serves 8 GiB" in said, said)


def set_quota(marud, name, size):
    return marudctl(marud, "quota", "set", name, "--hard", size)


def disk_is_full(marud, client, state, fill, free):
    """What marud must remember cannot be written: it says so, and what was written before is still there."""
    expect(set_quota(marud, "before", "1GiB").returncode == 0, "setting a quota")
    fill()
    failed = set_quota(marud, "x" * 60, "2GiB")
    expect(failed.returncode != 0 and ("No space left" in failed.stderr or "File too large" in failed.stderr), failed)
    expect(works(client, "meanwhile"), "a client, while the disk is full")
    listed = json.loads(marudctl(marud, "--json", "quota", "list").stdout)
    drained = marudctl(marud, "device", "drain", "default")
    expect(drained.returncode != 0 and ("No space left" in drained.stderr or "File too large" in drained.stderr), drained)
    left = [path.name for path in state.iterdir() if path.name.endswith(".next")]
    expect(left == [], f"half-written files: {left}")
    names = {row["tenant"] for row in listed["tenants"]}
    expect("before" in names, names)
    expect("x" * 60 not in names, f"a quota that was refused is in force: {names}")
    free()
    again = set_quota(marud, "x" * 60, "2GiB")
    expect(again.returncode == 0, again)


def full_disk():
    script = tempfile.NamedTemporaryFile("w", prefix="maru-test-", suffix=".sh", delete=False)
    # A mount of its own for the state, gone with marud.
    script.write('#!/bin/sh\nstate=$(dirname "$2")/state\nmkdir -m 700 "$state"\n'
                 'exec unshare --mount --propagation private sh -c \'mount -t tmpfs -o size=32k,mode=700 tmpfs "$0" && '
                 'exec "$@"\' "$state" "$MARUD" "$@"\n')
    script.close()
    os.chmod(script.name, 0o700)
    os.environ["MARUD"] = str(arguments.marud)
    try:
        allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
        if not allowed:
            print("mounts are not permitted here: a limit on the size of files stands in for a full disk")
            return
        with Marud(script.name) as marud, BlockClient(arguments.client, marud) as client:
            full = pathlib.Path(f"/proc/{marud.process.pid}/root{marud.socket.parent}/state/full")

            def fill():
                try:
                    with full.open("wb", buffering=0) as file:
                        while True:
                            file.write(bytes(4096))
                except OSError:
                    pass
            disk_is_full(marud, client, full.parent, fill, full.unlink)
            for command in ("quota.set", "device.drain"):
                wait_for(lambda: any(" warning: " in line and f'asked for "{command}"' in line
                                     for line in log_of(marud).splitlines()), f"a warning about {command}")
        expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")
    finally:
        os.unlink(script.name)


def short_files():
    with Marud(arguments.marud) as marud, BlockClient(arguments.client, marud) as client:
        before = resource.prlimit(marud.process.pid, resource.RLIMIT_FSIZE)
        # Nothing may grow at all: the log, which is a file here, is cut short with it.
        disk_is_full(marud, client, marud.socket.parent / "state", lambda: limit(marud, resource.RLIMIT_FSIZE, 0),
                     lambda: resource.prlimit(marud.process.pid, resource.RLIMIT_FSIZE, before))
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")


def slow_readers():
    """Clients that ask and never read: each is dropped with its reason, and the others are served meanwhile."""
    with Marud(arguments.marud) as marud, BlockClient(arguments.client, marud) as client:
        question = packet(ADMIN, b'{"command":"status"}')
        slow = []
        for _ in range(8):
            peer = connect(marud)
            peer.setblocking(False)
            slow.append(peer)
        dropped = set()

        def all_dropped():
            for number, peer in enumerate(slow):
                try:
                    for _ in range(200):
                        peer.send(question)
                except BlockingIOError:
                    pass
                except OSError:
                    dropped.add(number)
            return len(dropped) == len(slow)
        rounds = 0
        while not all_dropped():
            expect(client.ask(f"store k{rounds} 4096") == 0 and is_served(marud), "beside slow readers")
            rounds += 1
            if rounds > 10_000:
                raise SystemExit("slow readers are kept for ever")
        wait_for(lambda: log_of(marud).count("it does not read its replies") == len(slow), "a reason for each")
        expect(works(client, "after"), "a client afterwards")
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")


parser = argparse.ArgumentParser()
for option in ("--marud", "--marudctl", "--client"):
    parser.add_argument(option, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    for part in (descriptors, memory, group_limit, full_disk, short_files, slow_readers):
        print(part.__name__, flush=True)
        part()
    sys.exit(findings.end())
