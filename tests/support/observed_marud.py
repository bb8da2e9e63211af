"""What the tests of HTTP and metrics share: requests over a Unix socket, a marud that answers HTTP, and clients that do as
they are told."""
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from with_marud import Marud  # noqa: E402

PATIENCE = 120  # seconds; the machine may be slow
TOKEN = "a-token-of-this-test-alone"
READ_TOKEN = "one-that-may-only-look"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=PATIENCE):
        super().__init__("marud", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)

    def __repr__(self):
        return f"{self.status} {self.text[:400]}"


class ObservedMarud(Marud):
    """A marud with HTTP on a socket of its own, and where `tcp` says so on TCP with two tokens, or with "read" that of those
    who may only look."""

    def __init__(self, program, tcp=False, http_more="", more="", http_waits=True, **shape):
        self.tcp = tcp
        self.http_waits = http_waits  # until HTTP is answered
        self.tcp_lines = 'listen = "127.0.0.1:0"\nread_token_file = "{read_token}"\n' if tcp else ""
        if tcp and tcp != "read":
            self.tcp_lines += 'token_file = "{token}"\n'
        # A machine that stands still for two seconds makes marud's event loop late, which is a 503 and no fault.
        self.http_more = http_more if "timeout_ms" in http_more else "timeout_ms = 60000\n" + http_more
        self.pool_more = more
        super().__init__(program, **shape)

    def __enter__(self):
        # The tokens lie beside the socket, whose folder is made by Marud: so their place is given as a folder of ours.
        import tempfile
        self.token_folder = tempfile.TemporaryDirectory(prefix="maru-token-")
        folder = pathlib.Path(self.token_folder.name)
        self.token_file, self.read_token_file = folder / "token", folder / "read_token"
        for file, text in ((self.token_file, TOKEN), (self.read_token_file, READ_TOKEN)):
            file.write_text(text + "\n")
            file.chmod(0o600)
        lines = self.tcp_lines.format(token=self.token_file, read_token=self.read_token_file)
        self.shape["more"] = self.pool_more + "\n[http]\n" + lines + self.http_more
        super().__enter__()
        self.http_socket = self.socket.parent / "http.sock"
        if self.http_waits:
            wait_for(self.answers, "an answer by HTTP")  # the socket listens before a thread accepts
        if self.tcp:
            found = wait_for(lambda: self.address_in_log(), "the address in marud's log")
            self.host, self.port = found
        return self

    def restart(self):
        """Ends marud without a word, and starts another one on the same configuration."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.begin()
        wait_for(lambda: self.process.poll() is not None or self.answers(), "marud, and HTTP, after a restart")

    def answers(self):
        try:
            return self.http("GET", "/healthcheck").status != 0
        except (ConnectionError, FileNotFoundError, http.client.HTTPException):
            return False

    def address_in_log(self):
        for line in self.log.read_text(errors="replace").splitlines():
            if "HTTP is answered on http://127.0.0.1:" in line:
                return "127.0.0.1", int(line.rsplit(":", 1)[1])
        return None

    def end(self):
        super().end()
        self.token_folder.cleanup()

    def http(self, method, target, body=None, headers=None):
        connection = UnixConnection(self.http_socket)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            try:
                connection.request(method, target, data, headers or {})
            except BrokenPipeError:  # refused before all of it was sent; the reason is there all the same
                response = http.client.HTTPResponse(connection.sock, method=method)
                response.begin()
                return Reply(response)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def http_tcp(self, method, target, token=TOKEN, headers=None, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            authorization = {"Authorization": f"Bearer {token}"} if token else {}
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, target, data, headers={**authorization, **(headers or {})})
            return Reply(connection.getresponse())
        finally:
            connection.close()


class BlockClient:
    """A process that is attached and does what it is told: tests/support/block_client.c, or tests/page/adapter_client.cc."""

    def __init__(self, program, marud, pool="default", under=(), arguments=()):
        """`under`: a program that starts it, and its arguments."""
        self.process = subprocess.Popen([*under, program, *arguments], env={**marud.environment, "BLOCK_CLIENT_POOL": pool},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(PATIENCE)

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def tell(self, line):
        self.last = line
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the client ended at \"{self.last}\"")
        return int(answer)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)


def wait_for(condition, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit(f"waited in vain for {what}")


class Findings:
    """What was not as expected. Tests go on, so that one run says everything."""

    def __init__(self):
        self.mistakes = []
        self.checked = 0

    def expect(self, condition, what):
        self.checked += 1
        if not condition:
            self.mistakes.append(str(what))
            print(f"NOT AS EXPECTED: {what}", file=sys.stderr)

    def end(self):
        print(f"{self.checked} expectations, {len(self.mistakes)} not as expected")
        return 1 if self.mistakes else 0
