"""The files of marud's sockets are taken away while it listens: marud says so and makes them again. It never removes the
files of another marud, and says that clients do not reach it while the other marud has the path.

  lost_socket_test.py --marud PROGRAM --marudctl PROGRAM --client PROGRAM
"""
import argparse
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, BlockClient, Findings, ObservedMarud, UnixConnection, wait_for  # noqa: E402
from with_marud import listens_on  # noqa: E402

findings = Findings()
expect = findings.expect


class MarudInFolder(ObservedMarud):
    """Its sockets are in a folder of their own, which a test takes away. HTTP is answered by TCP, too."""

    def __init__(self, program, folder=None):
        super().__init__(program, tcp=True)
        self.folder_of_sockets = folder

    def begin(self):
        folder = self.folder_of_sockets or self.socket.parent / "run"
        self.folder_of_sockets = folder
        text = self.config.read_text().replace(str(self.socket), str(folder / "marud.sock"))
        self.config.write_text(text.replace("[http]", f'[http]\nsocket = "{folder}/http.sock"'))
        self.socket, self.http_socket = folder / "marud.sock", folder / "http.sock"
        super().begin()

    def __enter__(self):
        self.http_waits = False
        super().__enter__()
        self.http_socket = self.folder_of_sockets / "http.sock"
        wait_for(lambda: listens_on(self.http_socket, socket.SOCK_STREAM), "HTTP")
        return self

    def health(self):
        return self.http_tcp("GET", "/healthcheck").json

    def lost(self, which):
        text = self.http_tcp("GET", "/metrics").text
        return int(re.search(rf'^maru_sockets_lost_total{{socket="{which}"}} (\d+)', text, re.MULTILINE).group(1))

    def pid_at_socket(self):
        run = subprocess.run([arguments.marudctl, "--socket", self.socket, "--json", "status"], capture_output=True, text=True,
                             timeout=PATIENCE)
        return json.loads(run.stdout)["pid"] if run.returncode == 0 else None

    def stand_still(self):
        self.process.send_signal(signal.SIGSTOP)
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        wait_for(lambda: "\nState:\tT" in status.read_text(), "marud to stand still")

    def has_logged(self, text):
        """Waits for it: a thread of its own writes the log."""
        return wait_for(lambda: text in self.log.read_text(), f"\"{text}\" in the log")


def is_served_again(marud, what):
    wait_for(lambda: marud.pid_at_socket() == marud.process.pid, f"marud at its socket after {what}")
    wait_for(lambda: listens_on(marud.http_socket, socket.SOCK_STREAM), f"HTTP after {what}")
    wait_for(lambda: marud.health()["status"] == "healthy", f"health after {what}")


def what_is_taken_away_is_made_again(program, client_program):
    with MarudInFolder(program) as marud, BlockClient(client_program, marud) as client:
        expect(client.ask("store before 4096") == 0, "a block")
        ways = [("its socket was removed", marud.socket.unlink),
                ("HTTP's socket was removed", marud.http_socket.unlink),
                ("the lock was removed", lambda: marud.socket.with_name("marud.sock.lock").unlink()),
                ("the folder was removed", lambda: shutil.rmtree(marud.folder_of_sockets)),
                ("the folder was renamed", lambda: marud.folder_of_sockets.rename(marud.folder_of_sockets.with_name("old"))),
                ("its socket was replaced", lambda: replace(marud.socket))]
        for what, take in ways:
            clients, http = marud.lost("clients"), marud.lost("http")
            marud.stand_still()  # or it would make files in a folder that is being removed
            take()
            marud.process.send_signal(signal.SIGCONT)
            wait_for(lambda: marud.lost("clients") + marud.lost("http") > clients + http, f"a count after {what}")
            is_served_again(marud, what)
        expect(marud.has_logged(f"{marud.socket} is gone: the socket is made again"), "the log names the socket")
        expect(marud.has_logged(f"HTTP: {marud.http_socket} is gone"), "the log names HTTP's socket")
        expect(marud.has_logged(f"{marud.socket}.lock is gone"), "the log names the lock")
        expect(marud.has_logged(f"{marud.socket} is another file"), "the log says that the socket is another one")
        expect(client.ask("retrieve before") == 0 and client.ask("store after 4096") == 0, "who was attached goes on")
        with BlockClient(client_program, marud) as late:
            expect(late.ask("retrieve after") == 0, "who comes late attaches")
    expect(marud.status == 0, f"marud ended with {marud.status}")


def replace(path):
    other_path = path.with_name("other")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(other_path))
    other_path.rename(path)


def another_marud_at_the_path_keeps_its_sockets(program, client_program):
    with MarudInFolder(program) as first:
        folder = first.folder_of_sockets
        first.stand_still()  # or it would be first to be there again
        shutil.rmtree(folder)
        with MarudInFolder(program, folder) as second:
            first.process.send_signal(signal.SIGCONT)
            reasons = wait_for(lambda: [why for why in first.health()["reasons"] if "clients cannot connect" in why],
                               "the first one's word of it in /healthcheck")
            expect("another marud does" in reasons[0] and str(first.socket) in reasons[0], reasons)
            expect(first.health()["status"] == "degraded", first.health())
            wait_for(lambda: any("HTTP: cannot" in why for why in first.health()["reasons"]), "the same of HTTP")
            expect(first.lost("clients") == 1 and first.lost("http") == 1, "each is counted once")
            expect(first.has_logged("clients cannot connect: "), "the log of the first")
            first.process.terminate()
            expect(first.process.wait(PATIENCE) == 0, "the end of the first one")
            expect(second.pid_at_socket() == second.process.pid, "the second one at its socket")
            connection = UnixConnection(second.http_socket)
            connection.request("GET", "/healthcheck")
            expect(json.loads(connection.getresponse().read())["status"] == "healthy", "the second one's HTTP")
            connection.close()
            expect(second.lost("clients") == 0 and second.lost("http") == 0, "the second one lost nothing")
            with BlockClient(client_program, second) as client:
                expect(client.ask("store key 4096") == 0, "a client of the second one")
        expect(not first.socket.exists() and not first.http_socket.exists(), "who has the sockets removes them")


def the_path_is_taken_when_it_is_free(program):
    with MarudInFolder(program) as marud:
        folder = marud.folder_of_sockets
        marud.stand_still()
        shutil.rmtree(folder)
        folder.write_text("in the way")
        marud.process.send_signal(signal.SIGCONT)
        wait_for(lambda: marud.health()["status"] == "degraded", "a word of what is in the way")
        folder.unlink()
        is_served_again(marud, "the path was free again")
        expect(marud.lost("clients") == 1, "one loss is counted once")
    expect(marud.status == 0, f"marud ended with {marud.status}")


def main():
    what_is_taken_away_is_made_again(arguments.marud, arguments.client)
    another_marud_at_the_path_keeps_its_sockets(arguments.marud, arguments.client)
    the_path_is_taken_when_it_is_free(arguments.marud)
    return findings.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("marud", "marudctl", "client"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    sys.exit(main())
