"""Too many HTTP connections, and hostile ones: whoever has something to ask is answered.

  crowd_test.py --marud PROGRAM --client PROGRAM
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import resource
import select
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, TOKEN, BlockClient, Findings, ObservedMarud, UnixConnection, wait_for  # noqa: E402

findings = Findings()
expect = findings.expect


def keep_alive(marud):
    connection = UnixConnection(marud.http_socket)
    for _ in range(5):
        connection.request("GET", "/healthcheck")
        response = connection.getresponse()
        expect(response.status == 200 and json.loads(response.read())["status"] == "healthy", "a connection that is kept")
    connection.close()


def garbage_does_no_harm(marud):
    for garbage in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x00\xff" * 500, b"GET / HTTP/9.9\r\n\r\n",
                    b"GET / HTTP/1.1\r\n" + b"A" * 40000,
                    b"PUT /policy HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                    b"POST /clear-cache HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
                    b"PUT /policy HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n"):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(PATIENCE)
        peer.connect(str(marud.http_socket))
        try:
            peer.sendall(garbage)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
        peer.close()
        expect(marud.http("GET", "/healthcheck").status == 200, f"after {garbage[:30]}")


def what_they_were_told(peers, count):
    """What marud wrote on connections that it ended, when it has ended so many."""
    told = {}
    for peer in peers:
        peer.setblocking(False)
    def ended():
        for peer in peers:
            try:
                while peer not in told or told[peer][0]:
                    piece = peer.recv(65536)
                    text = told.get(peer, (True, b""))[1] + piece
                    told[peer] = (bool(piece), text)
            except BlockingIOError:
                pass
            except ConnectionError:
                told[peer] = (False, told.get(peer, (True, b""))[1])
        return sum(not is_open for is_open, _ in told.values()) >= count
    wait_for(ended, f"the ends of {count} connections")
    return {peer: text for peer, (is_open, text) in told.items() if not is_open}


def idle_and_slow_ones_stand_in_nobodys_way(marud):
    """More connections than are let in, none of which says anything: the oldest go, and are told why."""
    idle = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000 if hard == resource.RLIM_INFINITY else min(2000, hard), hard))
    begin = time.monotonic()
    for _ in range(1000):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(marud.http_socket))  # waits where the queue is shorter than they are many
        idle.append(peer)
    expect(marud.http("GET", "/healthcheck").status == 200, "a request beside 1000 that say nothing")
    told = what_they_were_told(idle, 1000 - 64)
    # marud closes a connection without a word that says nothing for 15 seconds. On a machine where all this takes longer, a
    # part of them ends so.
    is_late = time.monotonic() - begin > 15
    texts = {text for text in told.values() if text or not is_late}
    expect(texts and all(text.startswith(b"HTTP/1.1 408 ") and b"places for HTTP connections are taken" in text
                         for text in texts), texts)
    expect(all(json.loads(text.split(b"\r\n\r\n")[1])["error"] for text in texts), texts)
    # The event loop never noticed: an attachment is made, and marudctl's socket answers.
    with BlockClient(arguments.client, marud) as client:
        expect(client.ask("store meanwhile 4096") == 0, "storing while HTTP is full")
    for peer in idle:
        peer.close()
    wait_for(lambda: "all places for HTTP connections are taken" in marud.log.read_text(), "a log of who was dropped")

    # A reader that does not read: its replies wait in its socket, and nobody else waits.
    slow = socket.socket(socket.AF_UNIX)
    slow.connect(str(marud.http_socket))
    slow.setblocking(False)
    try:
        for _ in range(2000):
            slow.send(b"GET /conf HTTP/1.1\r\nHost: x\r\n\r\n")
    except BlockingIOError:
        pass
    for _ in range(20):
        expect(marud.http("GET", "/healthcheck").status == 200, "beside a slow reader")
    slow.close()


def questions_that_wait_for_a_disk_leave_room(marud):
    """As many limits as there are places for questions, whose writing down stands still at a pipe: health is answered."""
    pipe = marud.socket.parent / "state" / "pool-default.tenants.next"
    os.mkfifo(pipe)
    waiting = []
    for i in range(32):
        connection = UnixConnection(marud.http_socket)
        connection.request("PUT", f"/quota/slow{i}", json.dumps({"limit_gb": 1}))
        waiting.append(connection)
    wait_for(lambda: len(select.select([one.sock for one in waiting], [], [], 0)[0]) >= 8, "the refusal of eight")
    for _ in range(3):
        health = marud.http("GET", "/healthcheck")
        expect(health.status == 200, f"beside limits that are being written down: {health}")
    with open(pipe, "rb") as reader:
        reader.read()
    statuses = [one.getresponse().status for one in waiting]
    # The first one met the pipe, which cannot be made to last.
    expect(statuses.count(503) >= 8 and statuses.count(200) >= 20, statuses)
    for one in waiting:
        one.close()


def strangers_by_tcp_keep_nobody_out(marud):
    """As many as like to connect without a token, silent, byte by byte, or never reading: whoever has it gets in at once."""
    def connect(text=b""):
        peer = socket.create_connection((marud.host, marud.port), PATIENCE)
        peer.sendall(text)
        return peer
    for text in (b"", b"G", b"GET /status HTTP/1.1\r\nHost: x\r\nX: ", b"GET /page.js HTTP/1.1\r\nHost: x\r\n\r\n" * 400):
        strangers = []
        for _ in range(10):
            strangers += [connect(text) for _ in range(16)]
            for peer in strangers[-16:]:
                try:
                    peer.setblocking(False)
                    peer.send(b"a")
                except (BlockingIOError, ConnectionError):
                    pass
            expect(marud.http_tcp("GET", "/healthcheck").status == 200, f"with the token beside strangers that said {text[:60]}")
            expect(marud.http("GET", "/healthcheck").status == 200, f"the Unix socket beside strangers that said {text[:60]}")
        # None of them stays, whether somebody needs its place or not.
        told = what_they_were_told(strangers, len(strangers))
        if text == b"":
            for why in (b"all places for HTTP connections are taken", b"it has not shown the token in 2 s"):
                expect(any(said.startswith(b"HTTP/1.1 408 ") and why in said for said in told.values()), set(told.values()))
        for peer in strangers:
            peer.close()

    # Connections that are kept and idle give way, too.
    kept = []
    for _ in range(20):
        connection = http.client.HTTPConnection(marud.host, marud.port, timeout=PATIENCE)
        connection.request("GET", "/healthcheck", headers={"Authorization": f"Bearer {TOKEN}"})
        reply = connection.getresponse()
        expect(reply.status == 200 and reply.read() != b"", "one more connection that is kept")
        kept.append(connection)
    ended = what_they_were_told([connection.sock for connection in kept], 4)
    expect(set(ended.values()) == {b""}, f"what came on them could be taken for a reply: {ended.values()}")
    expect(all(connection.sock in ended for connection in kept[:4]), "the oldest did not go")
    for connection in kept:
        connection.close()


# As many connections as the first argument says, each in the middle of a request; then one more, until it is refused.
CROWD = """
import os, select, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(int(sys.argv[2]))
def connect():
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(%d)
    peer.connect(sys.argv[3])
    peer.sendall(b'GET /status HTTP/1.1\\r\\nHost: x\\r\\nX: ')  # also where it is refused already
    return peer
crowd = [connect() for _ in range(int(sys.argv[1]))]
said = b''
while not said.startswith(b'HTTP/1.1 503'):  # one whose request was not read yet gives way
    crowd.append(connect())
    if select.select(crowd[-1:], [], [], 1)[0]:
        said = crowd[-1].recv(4096)
refused = crowd[-1]
state = select.poll()
state.register(refused, 0)
assert not state.poll(0), 'who was refused finds a connection that is gone: curl would say that it failed to connect'
refused.sendall(b'y\\r\\n\\r\\n')
while piece := refused.recv(4096):
    said += piece
assert b'{"error":' in said, said
print(said.split(b'\\r\\n')[0].decode(), flush=True)
sys.stdin.read()
""" % PATIENCE


def no_user_keeps_out_another(marud):
    if os.geteuid() != 0:
        print("not root: no crowd of other users was tried")
        return
    os.chmod(marud.socket.parent, 0o711)
    os.chmod(marud.http_socket, 0o666)
    crowds = []
    for user in range(61000, 61004):
        crowds.append(subprocess.Popen([sys.executable, "-c", CROWD, "16", str(user), str(marud.http_socket)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        said = crowds[-1].stdout.readline()
        expect(said == "HTTP/1.1 503 Service Unavailable\n", f"user {user} above its share was told {said!r}")
    for _ in range(20):
        expect(marud.http("GET", "/healthcheck").status == 200, "beside four users that have all places")
    for crowd in crowds:
        crowd.communicate("", PATIENCE)
        expect(crowd.returncode == 0, "a crowd did not end well")
    os.chmod(marud.http_socket, 0o660)


@contextlib.contextmanager
def priority_of_the_unit():
    """What is started meanwhile has the priority that marud's unit gives it, where this may be set."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except PermissionError:
        print("no priority may be set here: marud runs without one")
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


def nobody_but_the_deciding_thread_goes_first(marud):
    """Whoever likes to connect keeps the thread of HTTP busy: it has no priority."""
    if os.getpriority(os.PRIO_PROCESS, marud.process.pid) >= 0:
        return
    tasks = list(pathlib.Path(f"/proc/{marud.process.pid}/task").iterdir())
    http_threads = [int(task.name) for task in tasks if (task / "comm").read_text() == "marud-http\n"]
    nice = [os.getpriority(os.PRIO_PROCESS, thread) for thread in http_threads]
    expect(nice == [0], f"nice values of the threads of HTTP: {nice}")


def main():
    with contextlib.ExitStack() as stack:
        with priority_of_the_unit():
            marud = stack.enter_context(ObservedMarud(arguments.marud, tcp=True))
        keep_alive(marud)
        nobody_but_the_deciding_thread_goes_first(marud)
        questions_that_wait_for_a_disk_leave_room(marud)
        garbage_does_no_harm(marud)
        strangers_by_tcp_keep_nobody_out(marud)
        no_user_keeps_out_another(marud)
        idle_and_slow_ones_stand_in_nobodys_way(marud)
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")
    return findings.end()



parser = argparse.ArgumentParser()
for name in ("--marud", "--client"):
    parser.add_argument(name, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
