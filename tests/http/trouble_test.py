"""What marud does without, it says, and serves the rest: sockets of HTTP that cannot be opened, pools without a device.

  trouble_test.py --marud PROGRAM --marudctl PROGRAM --client PROGRAM --openapi FILE
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, READ_TOKEN, TOKEN, BlockClient, Findings, ObservedMarud, wait_for  # noqa: E402
from openapi import Description  # noqa: E402

findings = Findings()
expect = findings.expect


def what_marudctl_says(marud, command):
    run = subprocess.run([arguments.marudctl, "--socket", marud.socket, "--json", command], capture_output=True, text=True,
                         timeout=PATIENCE)
    return json.loads(run.stdout)


class StatusLines:
    """What a service manager is told by the marud that is started within."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(PATIENCE)

    def __enter__(self):
        os.environ["NOTIFY_SOCKET"] = str(self.path)
        return self

    def __exit__(self, *_):
        del os.environ["NOTIFY_SOCKET"]
        self.socket.close()
        self.path.unlink()

    def next(self):
        while True:
            text = self.socket.recv(65536).decode()
            if text.startswith("STATUS="):
                return text


def pools_are_served_without_all_of_http(program):
    """A port that somebody has, a token that is not there, a file in the place of the socket: the pools are served, it is said
    everywhere, and when the reason is gone HTTP is answered."""
    port_of_others = socket.socket()
    port_of_others.bind(("127.0.0.1", 0))
    port_of_others.listen()
    port = port_of_others.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        token = pathlib.Path(folder) / "token"
        place = pathlib.Path(folder) / "http.sock"
        read_token = pathlib.Path(folder) / "read_token"
        def write_token(text=TOKEN, file=token):
            file.write_text(text + "\n")
            file.chmod(0o600)
        write_token(READ_TOKEN, read_token)
        listen = f'listen = "127.0.0.1:{port}"\ntoken_file = "{token}"\nread_token_file = "{read_token}"\n'
        def write_both():
            write_token()
            write_token(READ_TOKEN, read_token)
        cases = ((listen, write_token, port_of_others.close, f"listen on 127.0.0.1:{port}: Address already in use"),
                 (listen, lambda: token.unlink(missing_ok=True), write_token, f"read the token in {token}: No such file"),
                 (listen, lambda: write_token("short"), write_token, "found 5 characters, expected 16"),
                 (listen, lambda: write_token() or read_token.unlink(), write_both,
                  f"read the token in {read_token}: No such file"),
                 (listen, lambda: write_token() or write_token(TOKEN, read_token), write_both,
                  f"use the token in {read_token} to look alone (it is the one in {token}, which may do everything)"),
                 (f'socket = "{place}"\n', lambda: place.write_text(""), place.unlink, "it is something else than a socket"))
        for lines, spoil, mend, why in cases:
            spoil()
            with StatusLines(folder) as told, ObservedMarud(program, http_more=lines, http_waits=False) as marud:
                if lines != listen:
                    marud.http_socket = place
                with BlockClient(arguments.client, marud) as client:
                    expect(client.ask("store served 4096") == 0, "a store without all of HTTP")
                trouble = wait_for(lambda: what_marudctl_says(marud, "status").get("http_trouble"), "it in marudctl status")
                expect(why in trouble, trouble)
                expect(why in told.next(), "the service manager was told something else")
                found = [row for row in what_marudctl_says(marud, "doctor")["findings"] if row["what"] == "HTTP"]
                expect(len(found) == 1 and found[0]["grade"] == "warning" and why in found[0]["found"], found)
                wait_for(lambda: why in marud.log.read_text() and
                         "it is tried again, and everything else goes on" in marud.log.read_text(), "it in the log")
                if lines == listen:
                    health = marud.http("GET", "/healthcheck")
                    said = health.json
                    expect(health.status == 200 and said["status"] == "degraded" and why in said["reasons"][0], health)
                mend()
                expect(told.next() == "STATUS=", "the service manager was not told that it is over")
                expect("http_trouble" not in what_marudctl_says(marud, "status"), "marudctl status says it still")
                expect(marud.http("GET", "/healthcheck").json["status"] == "healthy", "health when it is over")
                if lines == listen:
                    marud.host, marud.port = "127.0.0.1", port
                    for one in (TOKEN, READ_TOKEN):
                        expect(marud.http_tcp("GET", "/healthcheck", one).status == 200, "TCP when it is over")
            token.unlink(missing_ok=True)


def the_admin_group_that_is_kept_out_is_said(program):
    """A group that marud may not give its socket to: as one that marud's own user is no member of."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        print("only root can take a right away from marud, with setpriv: that the admin group is kept out was not tried")
        return
    group = 54321
    with tempfile.TemporaryDirectory() as folder:
        powerless = pathlib.Path(folder) / "marud"
        powerless.write_text(f'#!/bin/sh\nexec setpriv --bounding-set -chown --inh-caps -chown -- "{program}" "$@"\n')
        powerless.chmod(0o755)
        with StatusLines(folder) as told, ObservedMarud(powerless) as marud:
            without = marud.config.read_text()
            why = f"{marud.http_socket} is closed to the admin group {group}"
            def is_said():
                expect(why in told.next(), "the service manager was told something else")
                expect(why in what_marudctl_says(marud, "status")["http_trouble"], "marudctl status says nothing")
                found = [row for row in what_marudctl_says(marud, "doctor")["findings"] if row["what"] == "HTTP"]
                expect(len(found) == 1 and found[0]["grade"] == "warning" and why in found[0]["found"], found)
                health = marud.http("GET", "/healthcheck").json
                expect(health["status"] == "degraded" and why in health["reasons"][0], health)
                wait_for(lambda: why in marud.log.read_text(), "it in the log")
            marud.config.write_text(without.replace("[daemon]", f"[daemon]\nadmin_group = {group}"))
            marud.process.send_signal(signal.SIGHUP)
            is_said()
            marud.restart()
            is_said()
            marud.config.write_text(without)
            marud.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "http_trouble" not in what_marudctl_says(marud, "status"), "the end of it in marudctl status")
            expect(marud.http("GET", "/healthcheck").json["status"] == "healthy", "health when it is over")


def an_unavailable_pool_is_said(program):
    """A pool whose device is not there: everything that is asked names it and why, and the other one is served."""
    away = '[[pool]]\nname = "far"\nbackend = "dax"\ndevice = "/nonexistent/dax0.0"\n'
    why = 'find "/nonexistent/dax0.0"'
    description = Description(json.loads(pathlib.Path(arguments.openapi).read_text()))
    with ObservedMarud(program, more=away) as marud, BlockClient(arguments.client, marud) as client:
        def ask(method, target, status, body=None):
            reply = marud.http(method, target, body)
            wrong = description.complaints(description.path_of(target), method, reply)
            expect(reply.status == status and not wrong, f"{method} {target}: {wrong}: {reply}")
            return reply.json if "json" in reply.headers["Content-Type"] else reply.text
        expect(client.ask("store kept 4096") == 0, "a store into the other pool")
        health = ask("GET", "/healthcheck", 200)
        expect(health["status"] == "degraded" and why in health["reasons"][0], health)
        conditions = {row["name"]: row["condition"] for row in health["pools"]}
        expect(conditions == {"default": "serving", "far": "unavailable"}, health)
        for pools in (ask("GET", "/status", 200)["pools"], ask("GET", "/status?pool=far", 200)["pools"],
                      what_marudctl_says(marud, "status")["pools"]):
            far = [row for row in pools if row["name"] == "far"]
            expect(len(far) == 1 and far[0]["condition"] == "unavailable" and why in far[0]["reason"], pools)
        lines = [line for line in ask("GET", "/metrics", 200).splitlines() if 'pool="far"' in line]
        expect(lines == ['maru_pool_serving{pool="far",condition="unavailable"} 0'], lines)
        expect(ask("GET", "/clients?pool=far", 200) == {"clients": []}, "clients of a pool that is not there")
        for method, target, body in (("GET", "/map", None), ("GET", "/tenants", None), ("GET", "/policy", None),
                                     ("GET", "/quota", None), ("GET", "/quota/x", None), ("GET", "/quota/config", None),
                                     ("PUT", "/policy", {"name": "lru"}), ("PUT", "/quota/x", {"limit_gb": 1}),
                                     ("PUT", "/quota/config", {"default_limit_gb": 1}), ("DELETE", "/quota/x", None),
                                     ("POST", "/clear-cache", None)):
            said = ask(method, target + "?pool=far", 503, body)["error"]
            expect("unavailable" in said and why in said, said)
        for words in (("regions",), ("blocks",), ("pins",), ("check",), ("clear", "--yes"), ("quota", "list"),
                      ("policy", "show"), ("memory", "list")):
            run = subprocess.run([arguments.marudctl, "--socket", marud.socket, "--pool", "far", *words], capture_output=True,
                                 text=True, timeout=PATIENCE)
            expect(run.returncode == 1 and why in run.stderr, f"{words}: {run.returncode} {run.stderr}")
        shown = subprocess.run([arguments.marudctl, "--socket", marud.socket, "status"], capture_output=True, text=True,
                               timeout=PATIENCE).stdout
        expect(re.search(r"(?m)^default +serving .*\nfar +unavailable .*\npool \"far\": " + why, shown), shown)
        found = [row for row in what_marudctl_says(marud, "doctor")["findings"] if row["what"] == 'pool "far"']
        expect(len(found) == 1 and found[0]["grade"] == "wrong" and why in found[0]["why"], found)
        cleared = ask("POST", "/clear-cache", 200)["pools"]
        expect([row["pool"] for row in cleared] == ["default"] and client.ask("exists kept") == 0, cleared)


def main():
    an_unavailable_pool_is_said(arguments.marud)
    pools_are_served_without_all_of_http(arguments.marud)
    the_admin_group_that_is_kept_out_is_said(arguments.marud)
    return findings.end()


parser = argparse.ArgumentParser()
for name in ("--marud", "--marudctl", "--client", "--openapi"):
    parser.add_argument(name, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
