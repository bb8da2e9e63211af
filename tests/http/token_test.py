"""Who may do what by TCP: the token that may do everything, the one that may only look, both, neither.

  token_test.py --marud PROGRAM --client PROGRAM --openapi FILE
"""
import argparse
import contextlib
import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import (PATIENCE, READ_TOKEN, TOKEN, BlockClient, Findings, ObservedMarud, Reply,  # noqa: E402
                            wait_for)
from openapi import Description  # noqa: E402

findings = Findings()
expect = findings.expect


def refused(reply, status, text):
    expect(reply.status == status and "error" in reply.json and text in reply.json["error"],
           f"expected {status} with \"{text}\", found {reply}")


def tcp_wants_the_token(marud):
    expect(marud.http_tcp("GET", "/healthcheck").status == 200, "with the token")
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x", "x" * 5000):
        reply = marud.http_tcp("GET", "/healthcheck", token)
        expect(reply.status in (401, 431 if token and len(token) > 4000 else 401), f"token {token}: {reply}")
    refused(marud.http_tcp("GET", "/status", None), 401, "found no token")
    refused(marud.http_tcp("PUT", "/policy", "wrong-wrong-wrong-wrong"), 401, "found a wrong token")
    expect(marud.http_tcp("GET", "/status", None).headers["WWW-Authenticate"].startswith("Bearer"), "WWW-Authenticate")
    wait_for(lambda: "does not have the token: refused" in marud.log.read_text(), "refusals in the log")
    expect(TOKEN not in marud.http("GET", "/conf").text, "the token in /conf")
    expect(TOKEN not in marud.log.read_text(), "the token in the log")


@contextlib.contextmanager
def kept_open(marud):
    """One connection by TCP, on which each request shows a token of its own."""
    kept = http.client.HTTPConnection(marud.host, marud.port, timeout=PATIENCE)

    def ask(method, target, token):
        kept.request(method, target, headers={"Authorization": f"Bearer {token}"})
        return Reply(kept.getresponse())
    try:
        yield ask
    finally:
        kept.close()


def the_read_only_token_changes_nothing(marud, client, description):
    """Over TCP, whatever the description has: what it says that this token opens is answered, and the rest is refused."""
    client.ask("store looked-at 4096")
    before = marud.http("GET", "/status").json["pools"][0]
    for path, method in sorted(description.operations()):
        target = path.replace("{cache_salt}", "looked-at")
        reply = marud.http_tcp(method, target, READ_TOKEN, body=description.example(path, method))
        wrong = description.complaints(path, method, reply)
        expect(not wrong, f"{method} {target} with the read-only token: {wrong}: {reply}")
        may = description.is_opened_by("read_token", path, method)
        expect(description.is_opened_by("token", path, method), f"{method} {path} with the other token")
        expect(may == (method == "GET"), f"{method} {path}: the description says that the read-only token opens it: {may}")
        if may:
            expect(reply.status == 200, f"{method} {target} with the read-only token: {reply}")
            expect(marud.http_tcp("HEAD", target, READ_TOKEN).status == 200, f"HEAD {target} with the read-only token")
        else:
            refused(reply, 403, f"found {method} with the token of http.read_token_file")
            expect("wants the token of http.token_file" in reply.json["error"], f"which token may is not said: {reply}")
    for method, target in (("OPTIONS", "/status"), ("PUT", "/nothing"), ("get", "/status"), ("PATCH", "/policy")):
        refused(marud.http_tcp(method, target, READ_TOKEN), 403, f"found {method} with the token of http.read_token_file")
    after = marud.http("GET", "/status").json["pools"][0]
    for field in ("blocks", "block_bytes", "policy", "evicted_blocks", "tenants"):
        expect(before[field] == after[field], f"{field}: {before[field]} before, {after[field]} after")
    expect(client.ask("exists looked-at") == 1, "a block went")
    for token in (READ_TOKEN[:-1], READ_TOKEN + "x", READ_TOKEN + TOKEN, TOKEN + READ_TOKEN):
        refused(marud.http_tcp("GET", "/status", token), 401, "found a wrong token")
    conf = marud.http("GET", "/conf")
    expect(conf.json["http"]["read_token_file"] == str(marud.read_token_file), conf)
    expect(READ_TOKEN not in conf.text and READ_TOKEN not in marud.log.read_text(), "the read-only token in /conf or the log")

    # What the one token may is nothing that the other one gets on the same connection.
    with kept_open(marud) as ask:
        for _ in range(2):
            expect(ask("DELETE", "/quota/nobody", TOKEN).status == 200, "with the token")
            refused(ask("DELETE", "/quota/nobody", READ_TOKEN), 403, "http.read_token_file")
            expect(ask("GET", "/quota/nobody", READ_TOKEN).status == 200, "with the read-only token")


def nothing_changes_over_tcp_without_the_other_token(program):
    with ObservedMarud(program, tcp="read") as marud, BlockClient(arguments.client, marud) as client:
        client.ask("store looked-at 4096")
        expect(marud.http_tcp("GET", "/metrics", READ_TOKEN).status == 200, "a scrape")
        with kept_open(marud) as ask:
            for _ in range(2):  # marud logs so many, and then counts
                refused(ask("POST", "/clear-cache", READ_TOKEN), 403,
                        "nothing can be changed over TCP, since there is no http.token_file: ask on marud's Unix socket")
        said = r"a client at 127\.0\.0\.1:\d+, by HTTP, with the read-only token, may not POST /clear-cache: refused\n"
        wait_for(lambda: len(re.findall(said, marud.log.read_text())) == 2, "who was refused what, in the log")
        for token in (None, "", TOKEN):
            reply = marud.http_tcp("POST", "/clear-cache", token)
            refused(reply, 401, "with the token of marud's http.read_token_file")
        expect(client.ask("exists looked-at") == 1, "a block went")
        conf = marud.http("GET", "/conf").json["http"]
        expect("token_file" not in conf and conf["read_token_file"] == str(marud.read_token_file), conf)
        expect(marud.http("POST", "/clear-cache").status == 200 and client.ask("exists looked-at") == 0, "on the Unix socket")


def tokens_are_read_again(program):
    """With the configuration: the old ones open nothing any more, on open connections neither; one that cannot be used changes
    nothing."""
    fresh, fresh_read = "fresh-" + TOKEN, "fresh-" + READ_TOKEN
    with ObservedMarud(program, tcp=True) as marud, kept_open(marud) as ask:
        expect(ask("DELETE", "/quota/nobody", TOKEN).status == 200, "with the token")

        def reload():
            marud.process.send_signal(signal.SIGHUP)

        marud.token_file.write_text("short\n")
        reload()
        said = "found 5 characters, expected 16"
        wait_for(lambda: said in marud.log.read_text(), "what is wrong with the token")
        trouble = marud.http("GET", "/status").json["http_trouble"]
        expect(said in trouble and trouble.endswith("the tokens that were read before are in force"), f"trouble: {trouble}")
        expect(ask("DELETE", "/quota/nobody", TOKEN).status == 200, "with the token of before")

        # Tried again, without another signal.
        marud.token_file.write_text(fresh + "\n")
        wait_for(lambda: ask("GET", "/status", fresh).status == 200, "the fresh token")
        refused(ask("DELETE", "/quota/nobody", TOKEN), 401, "found a wrong token")
        wait_for(lambda: "http_trouble" not in marud.http("GET", "/status").json, "that it is well again")

        marud.read_token_file.write_text(fresh_read + "\n")
        expect(ask("GET", "/status", READ_TOKEN).status == 200, "the read-only token, before the signal")
        reload()
        wait_for(lambda: ask("GET", "/status", READ_TOKEN).status == 401, "that the old read-only token opens nothing")
        refused(ask("DELETE", "/quota/nobody", fresh_read), 403, "http.read_token_file")
        for text in (fresh, fresh_read):
            expect(text not in marud.log.read_text(), "a token in the log")


def files_that_cannot_be_used(program):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "marud.toml"
        token = pathlib.Path(folder) / "token"
        pool = 'backend = "memory"\nsize = "32MiB"\npage_bytes = "4KiB"\nregion_bytes = "1MiB"\nlanes = 16\npins = 4096\n'
        for key in ("token_file", "read_token_file"):
            for content, mode, said in (("short\n", 0o600, "expected 16 to 256"), (TOKEN, 0o644, "anybody can read"),
                                        ("two words of a token\n", 0o600, "other characters")):
                token.write_text(content)
                token.chmod(mode)
                config.write_text(f'[daemon]\nsocket = "{folder}/marud.sock"\n[[pool]]\n{pool}'
                                  f'[http]\nlisten = "127.0.0.1:0"\n{key} = "{token}"\n')
                run = subprocess.run([program, "--config", config, "--check-config"], capture_output=True, text=True,
                                     timeout=PATIENCE)
                expect(run.returncode == 1 and f"http.{key}: cannot use" in run.stderr and said in run.stderr,
                       f"{key} {content!r}: {run.returncode} {run.stderr}")


def main():
    description = Description(json.loads(pathlib.Path(arguments.openapi).read_text()))
    with ObservedMarud(arguments.marud, tcp=True) as marud, BlockClient(arguments.client, marud) as client:
        tcp_wants_the_token(marud)
        the_read_only_token_changes_nothing(marud, client, description)
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")
    nothing_changes_over_tcp_without_the_other_token(arguments.marud)
    tokens_are_read_again(arguments.marud)
    files_that_cannot_be_used(arguments.marud)
    return findings.end()


parser = argparse.ArgumentParser()
for name in ("--marud", "--client", "--openapi"):
    parser.add_argument(name, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
