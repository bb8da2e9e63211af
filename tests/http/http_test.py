"""marud by HTTP, as clients see it: a real marud, requests over its Unix socket and over TCP.

  http_test.py --marud PROGRAM --client PROGRAM --openapi FILE
"""
import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from urllib.parse import quote

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, BlockClient, Findings, ObservedMarud, UnixConnection, wait_for  # noqa: E402
from openapi import Description  # noqa: E402

findings = Findings()
expect = findings.expect


def refused(reply, status, text):
    expect(reply.status == status and "error" in reply.json and text in reply.json["error"],
           f"expected {status} with \"{text}\", found {reply}")


def part_of_path(salt):
    """What stands for a tenant in a path, from what a reply names it."""
    return salt if re.search("%[0-9A-Fa-f]{2}", salt) else quote(salt, safe="")


def everything_is_described(marud, description):
    """Every path and method of the server is in the description and the other way round, and replies fit their schemas."""
    listed = marud.http("GET", "/")
    served = {(path, method) for path, methods in listed.json["paths"].items() for method in methods}
    expect(served == description.operations(),
           f"served and not described, or the reverse: {sorted(served ^ description.operations())}")
    for path, method in sorted(served):
        body = description.example(path, method)
        target = path.replace("{cache_salt}", "described")
        reply = marud.http(method, target, body)
        expect(reply.status == 200, f"{method} {target}: {reply}")
        wrong = description.complaints(path, method, reply)
        expect(not wrong, f"{method} {target}: {wrong}: {reply}")
        others = {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"} - {m for p, m in served if p == path}
        for other in others:
            bad = marud.http(other, target)
            expect(bad.status == 405, f"{other} {target}: {bad}")
            allowed = set(bad.headers.get("Allow", "").split(", ")) - {"HEAD"}
            expect(allowed == {m for p, m in served if p == path}, f"{other} {target}: Allow: {bad.headers.get('Allow')}")
        if "GET" in {m for p, m in served if p == path}:
            head = marud.http("HEAD", target)
            expect(head.status == 200 and head.text == "", f"HEAD {target}: {head}")
    for status in ("400", "404", "405"):
        expect(status in description.responses("/status", "GET"), f"GET /status does not describe {status}")
    wrong = description.complaints("/status", "GET", marud.http("GET", "/status?pool=nobody"))
    expect(not wrong, f"a refusal: {wrong}")


def every_refusal_is_described(marud, description):
    """Of each operation; and of whatever the other tests ask, see described()."""
    for path, method in sorted(description.operations()):
        target = path.replace("{cache_salt}", "described")
        body = description.example(path, method)
        for status, reply in ((414, marud.http(method, target + "?pool=" + "x" * 3000, body)),
                              (414, marud.http(method, target + "?pool=" + "x" * 40000, body)),
                              (431, marud.http(method, target, body, {"X-Long": "x" * 40000}))):
            expect(reply.status == status, f"{method} {path}: {reply}, expected {status}")
            expect(str(status) in description.responses(path, method), f"{method} {path} does not describe {status}")
    said = description.document["info"]["description"]
    for line, status in (("GET /status HTTP/2.0", 505), ("GET /status", 400), ("OPTIONS * HTTP/1.1", 404),
                         ("GET /status\0 HTTP/1.1", 200), ("GET /healthcheck\0/status HTTP/1.1", 400),
                         ("GET /status\0=x HTTP/1.0", 400), ("GET /status HTTP/1.0", 200)):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(PATIENCE)
            raw.connect(str(marud.http_socket))
            raw.sendall(f"{line}\r\nHost: marud\r\nConnection: close\r\n\r\n".encode())
            first = raw.makefile().readline()
        expect(first.split()[1:2] == [str(status)], f"{line}: {first}")
        expect(status == 200 or str(status) in said, f"{status} is not described")


def described(marud, description):
    """From here on each reply is compared with the description of what was asked."""
    ask = marud.http

    def http(method, target, body=None, headers=None):
        reply = ask(method, target, body, headers)
        path = description.path_of(target)
        if path is None:
            expect(reply.status in (404, 414), f"{method} {target}: {reply}")
            return reply
        methods = {known for place, known in description.operations() if place == path}
        known = "GET" if method == "HEAD" else method
        if method == "HEAD":
            wrong = None if str(reply.status) in description.responses(path, sorted(methods)[0]) else "is not described"
        else:
            wrong = description.complaints(path, known if known in methods else sorted(methods)[0], reply)
        expect(not wrong, f"{method} {target[:200]}: {wrong}: {reply}")
        return reply
    marud.http = http


def unknown_things_are_refused(marud):
    refused(marud.http("GET", "/nothing"), 404, "expected one of those that GET / lists")
    refused(marud.http("GET", "/quota/a/b"), 404, "/quota/a/b")
    refused(marud.http("GET", "/status?pool=nobody"), 404, "there is no pool \"nobody\"")
    refused(marud.http("GET", "/quota/alice?pool=nobody"), 404, "there is no pool")
    refused(marud.http("DELETE", "/quota/alice?pool=nobody"), 404, "there is no pool")
    refused(marud.http("GET", "/status?colour=red"), 400, "found \"colour\", expected at most pool=NAME")
    refused(marud.http("GET", "/healthcheck?pool=default"), 400, "expected none")
    refused(marud.http("GET", "/status?pool=a&pool=b"), 400, "twice")
    refused(marud.http("GET", "/quota/%zz"), 400, "percent-encoding")
    refused(marud.http("GET", "/status", "{}"), 400, "expected none with GET")
    refused(marud.http("PUT", "/policy"), 400, "found nothing")
    refused(marud.http("PUT", "/policy", "{name}"), 400, "found what is not JSON, \"{name}\"")
    refused(marud.http("PUT", "/policy", "[1]"), 400, "found array")
    refused(marud.http("PUT", "/policy", '{"name": 3}'), 400, "found number")
    refused(marud.http("PUT", "/policy", '{"name": "lru", "shape": 1}'), 400, "unknown field \"shape\"")
    refused(marud.http("PUT", "/policy", '{"name": "nothing_like_it"}'), 404, "nothing_like_it")
    refused(marud.http("PUT", "/policy", "[" * 2000), 400, "JSON")
    refused(marud.http("POST", "/clear-cache", '{"force": true}'), 400,
            "force: found true, expected false or nothing: marud never frees a block that somebody holds")
    refused(marud.http("GET", "/" + "x" * 4000), 414, "at most 2048")
    refused(marud.http("PUT", "/policy", "x" * 70000), 413, "at most 65536")
    refused(marud.http("PUT", "/policy", "", {"Transfer-Encoding": "chunked"}), 411, "Content-Length")


def policies_change(marud):
    marud.http("PUT", "/policy", {"name": "lru"})
    was = marud.http("GET", "/policy").json
    expect(was["policy"] == "lru" and "clock" in was["built_in"], was)
    put = marud.http("PUT", "/policy?pool=default", {"name": "s3fifo", "options": {"threshold": 2}})
    expect(put.status == 200 and put.json["is"]["policy"] == "s3fifo", put)
    expect(marud.http("GET", "/policy").json["policy_options"] == {"threshold": "2"}, marud.http("GET", "/policy"))
    refused(marud.http("PUT", "/policy", {"name": "s3fifo", "options": {"threshold": "many"}}), 400, "threshold")
    expect(marud.http("GET", "/policy").json["policy"] == "s3fifo", "a refused policy changed something")
    marud.http("PUT", "/policy", {"name": "lru"})


def quotas_are_those_of_lmcache(marud, client):
    for root in ("/api/quota", "/quota"):
        salt = root.strip("/").replace("/", "-")
        expect(marud.http("GET", f"{root}/{salt}").json ==
               {"cache_salt": salt, "limit_gb": 0.0, "current_usage_gb": 0.0, "exists": False}, "a tenant never seen")
        put = marud.http("PUT", f"{root}/{salt}", {"limit_gb": 0.3})
        expect(put.json == {"cache_salt": salt, "limit_gb": 0.3, "status": "ok"}, put)
        got = marud.http("GET", f"{root}/{salt}")
        expect(got.json == {"cache_salt": salt, "limit_gb": 0.3, "current_usage_gb": 0.0, "exists": True}, got)
        client.ask(f"store {salt} 4096 {salt}")
        got = marud.http("GET", f"{root}/{salt}").json
        expect(got["current_usage_gb"] == round(4096 / 2**30, 9), got)
        users = marud.http("GET", root).json["users"]
        expect(users[salt] == {"limit_gb": 0.3, "current_usage_gb": round(4096 / 2**30, 9)}, users)
        expect(marud.http("PUT", f"{root}/{salt}", {"limit_gb": 0}).json["limit_gb"] == 0, "a limit of nothing at all")
        expect(marud.http("GET", f"{root}/{salt}").json["limit_gb"] == 0, "a limit of nothing at all")
        hard = marud.http("PUT", f"{root}/{salt}", {"limit_gb": 1, "hard_limit_gb": 2}).json
        expect(hard == {"cache_salt": salt, "limit_gb": 1.0, "hard_limit_gb": 2.0, "status": "ok"}, hard)
        gone = marud.http("DELETE", f"{root}/{salt}")
        expect(gone.json == {"cache_salt": salt, "status": "removed"}, gone)
        gone = marud.http("DELETE", f"{root}/{salt}")
        expect(gone.status == 200 and gone.json == {"cache_salt": salt, "status": "not_found"}, gone)

        for body, found in (("", "nothing"), ("{", "not JSON"), ({}, "found nothing"), ({"limit_gb": "1"}, '"1"'),
                            ({"limit_gb": -1}, "-1"), ('{"limit_gb": NaN}', "not JSON"), ('{"limit_gb": 1e999}', "not JSON"),
                            ({"limit_gb": True}, "true"), ({"limit_gb": 1e300}, "1e+300"),
                            ({"limit_gb": 2, "hard_limit_gb": 1}, "at most the hard one")):
            refused(marud.http("PUT", f"{root}/{salt}", body), 400, found)

        # Names that mean something else, in full.
        nobody = marud.http("GET", f"{root}/_default").json
        expect(nobody["cache_salt"] == "_default" and nobody["exists"] is False, nobody)
        refused(marud.http("PUT", f"{root}/_default", {"limit_gb": 1}), 400, "%5Fdefault")
        expect(marud.http("PUT", f"{root}/%5Fdefault", {"limit_gb": 1}).json["cache_salt"] == "%5Fdefault",
               "a tenant _default, which GET on _default does not show")
        expect(marud.http("GET", f"{root}/%5Fdefault").json["exists"] is True, "a salt _default")
        expect(marud.http("PUT", f"{root}/%63onfig", {"limit_gb": 4}).json["cache_salt"] == "%63onfig", "config")
        listed = marud.http("GET", root).json["users"]
        expect({"%5Fdefault", "%63onfig"} <= set(listed) and not {"_default", "config"} & set(listed), listed)
        marud.http("DELETE", f"{root}/%5Fdefault")
        marud.http("DELETE", f"{root}/%63onfig")
        odd = marud.http("PUT", f"{root}/caf%C3%A9%2Fbar", {"limit_gb": 1}).json
        expect(odd["cache_salt"] == "café/bar", odd)
        expect("café/bar" in marud.http("GET", root).json["users"], "an odd name in the list")
        # Names that look like what others are shown as, or are no text at all: no two are shown alike.
        names = [b"\xff\x01", b"0xff01", b"%FF%01", b"%ff%01", b"\0", b"%00", b"a\xffb/", b"50%", b"50%25",
                 "\u20ac".encode(), b"(others)", b"(further)", b"id:7", b"id 7"]
        shown = []
        for i, name in enumerate(names):
            reply = marud.http("PUT", f"{root}/{quote(name, safe='')}", {"limit_gb": i + 1})
            expect(reply.status == 200, f"{name}: {reply}")
            shown.append(reply.json.get("cache_salt"))
        expect(shown == ["%FF%01", "0xff01", "%25FF%2501", "%25ff%2501", "%00", "%2500", "a%FFb%2F", "50%", "50%2525",
                         "\u20ac", "(others)", "(further)", "id:7", "id 7"], shown)
        series = [line.split(" ")[0] for line in marud.http("GET", "/metrics").text.splitlines() if "{" in line]
        twice = {one for one in series if series.count(one) > 1}
        expect(not twice, f"tenants with one name in /metrics: {twice}")
        users = marud.http("GET", root).json["users"]
        for i, salt in enumerate(shown):
            expect(users.get(salt, {}).get("limit_gb") == i + 1, f"{salt} in the list: {users}")
            got = marud.http("GET", f"{root}/{part_of_path(salt)}").json
            expect(got["cache_salt"] == salt and got["limit_gb"] == i + 1, f"{salt}: {got}")
            gone = marud.http("DELETE", f"{root}/{part_of_path(salt)}").json
            expect(gone == {"cache_salt": salt, "status": "removed"}, f"{salt}: {gone}")
        refused(marud.http("PUT", f"{root}/" + "n" * 65, {"limit_gb": 1}), 400, "1 to 64 bytes")

    expect(marud.http("PUT", "/quota/config", {"default_limit_gb": 0.5}).json ==
           {"default_limit_gb": 0.5, "status": "ok"}, "the default")
    expect(marud.http("GET", "/quota/stranger").json["limit_gb"] == 0.5, "the default holds for others")
    expect(marud.http("PUT", "/quota/config", {"default_limit_gb": None}).json["default_limit_gb"] is None, "no default")
    for i in range(210):
        marud.http("PUT", f"/quota/many{i}", {"limit_gb": i})
    users = marud.http("GET", "/quota").json["users"]
    expect(all(users[f"many{i}"]["limit_gb"] == i for i in range(210)), "a list of more than one page")


def a_list_of_quotas_says_what_each_path_says(marud, client):
    """Of tenants with every kind of limit, and none of those that have no quota, or have it no more."""
    def marudctl(*words):
        return subprocess.run([arguments.marudctl, "--socket", marud.socket, *words], capture_output=True, text=True,
                              timeout=PATIENCE, check=True).stdout
    client.ask("store unlisted 4096 unlisted")
    marud.http("PUT", "/quota/was", {"limit_gb": 1})
    marud.http("DELETE", "/quota/was")
    marudctl("quota", "set", "hard", "--hard", "1GiB", "--soft", "none")
    marudctl("quota", "set", "soft", "--soft", "1GiB")
    marudctl("quota", "set", "none", "--soft", "none", "--hard", "none")
    marud.http("PUT", "/quota/nothing", {"limit_gb": 0})
    for default in (None, 0.25):
        marud.http("PUT", "/quota/config", {"default_limit_gb": default})
        users = marud.http("GET", "/quota").json["users"]
        expect(users == marud.http("GET", "/api/quota").json["users"], "the other path has other quotas")
        expect("unlisted" not in users and "was" not in users, "a list with tenants that have no quota")
        for salt, row in users.items():
            got = marud.http("GET", f"/quota/{part_of_path(salt)}").json
            expect(got == {**row, "cache_salt": salt, "exists": True}, f"{salt}: {row} in the list, {got} alone")
        expect(users["hard"] == {"limit_gb": None, "hard_limit_gb": 1.0, "current_usage_gb": 0.0}, users["hard"])
        expect(users["soft"] == {"limit_gb": 1.0, "current_usage_gb": 0.0}, users["soft"])
        expect(users["none"] == {"limit_gb": None, "current_usage_gb": 0.0}, users["none"])
        expect(users["nothing"] == {"limit_gb": 0.0, "current_usage_gb": 0.0}, users["nothing"])
        for salt in ("unlisted", "was"):
            got = marud.http("GET", f"/quota/{salt}").json
            expect(not got["exists"] and got["limit_gb"] == (default or 0.0), got)
        expect(marud.http("GET", "/quota/_default").json["limit_gb"] == 0.0, "blocks of no tenant have no limit")
    marud.http("PUT", "/quota/config", {"default_limit_gb": None})
    # What was read can be written back, to the byte.
    for soft in (4096, 1 << 20, (1 << 20) + 1, 123456789, (1 << 40) + 1):
        marudctl("quota", "set", "soft", "--soft", str(soft))
        marud.http("PUT", "/quota/soft", {"limit_gb": marud.http("GET", "/quota/soft").json["limit_gb"]})
        kept = json.loads(marudctl("quota", "get", "soft", "--json"))["soft_bytes"]
        expect(kept == soft, f"a limit of {soft} became {kept}")
    # Who is not listed may keep nothing where only listed tenants may store.
    marud.http("PUT", "/quota/config", {"default_limit_gb": 0.5})
    marudctl("quota", "mode", "listed")
    for salt in ("stranger", "was"):
        got = marud.http("GET", f"/quota/{salt}").json
        expect(got["limit_gb"] == 0.0 and not got["exists"], f"in a pool of listed tenants: {got}")
    marudctl("quota", "mode", "any")
    expect(marud.http("GET", "/quota/stranger").json["limit_gb"] == 0.5, "the default holds for others again")
    # A default hard limit holds for a tenant without one of its own.
    marudctl("quota", "default", "--soft", "none", "--hard", "1MiB")
    refused(marud.http("PUT", "/quota/above", {"limit_gb": 5}), 400, "at most the hard one")
    marudctl("quota", "default", "--hard", "none")
    said = marudctl("quota", "get", "nothing")
    expect(re.search(r"(?m)^soft\W+nothing$", said), said)
    expect(marudctl("quota", "set", "nothing", "--soft", "nothing") == said, "marudctl does not take what it says")
    for salt in ("hard", "soft", "none", "nothing"):
        marud.http("DELETE", f"/quota/{salt}")


def the_map_says_who_rents_what(marud, client):
    """Against what marudctl says of the same regions."""
    client.ask("fill mapped 300 4096")
    listed = json.loads(subprocess.run([arguments.marudctl, "--json", "--socket", marud.socket, "regions"], capture_output=True,
                                       text=True, timeout=PATIENCE, check=True).stdout)["regions"]
    used = [row["used_pages"] for row in listed]
    shown = wait_for(lambda: (found := marud.http("GET", "/map?pool=default").json)["cells"]["used_pages"] == used and found,
                     "as many pages in use as marudctl counts")
    expect(shown["regions"] == len(listed) and shown["pool"] == "default", shown)
    for row, owner in zip(listed, shown["cells"]["owner"], strict=True):
        expect((None if owner is None else shown["owners"][owner]["lane"]) == row.get("lane"), f"region {row}: owner {owner}")
    expect(all(state == row["state"][0] for state, row in zip(shown["cells"]["states"], listed)), shown["cells"]["states"])
    expect(shown["owners"][0]["command"] == "block_client", shown["owners"])
    refused(marud.http("GET", "/map?pool=nobody"), 404, "there is no pool")

    rows = marud.http("GET", "/clients").json["clients"]
    expect([row["pid"] for row in rows] == [client.process.pid], rows)
    expect(marud.http("GET", "/clients?pool=default").json["clients"][0]["command"] == "block_client", rows)
    refused(marud.http("GET", "/clients?pool=nobody"), 404, "there is no pool")
    tenants = marud.http("GET", "/tenants").json["tenants"]
    expect(len(tenants) > 200, "a list of more than one page")
    expect({row["tenant"] for row in tenants} >= {"many0", "many209"}, tenants[:3])
    expect(all(int(row["id"]) > 0 for row in tenants), tenants[:3])


def browsers_get_the_page_and_serve_no_other_site(marud):
    """Who forwards the socket to a port for a browser has no token there: what other sites make a browser ask is refused."""
    html = {"Accept": "text/html,application/xhtml+xml"}
    page = marud.http("GET", "/", headers=html)
    expect(page.status == 200 and page.text.startswith("<!doctype html>"), page)
    expect(page.headers["Content-Type"] == "text/html; charset=utf-8" and page.headers["Vary"] == "Accept", page.headers)
    expect("script-src 'self'" in page.headers["Content-Security-Policy"], page.headers)
    expect(marud.http("GET", "/").headers["Content-Type"] == "application/json", "without a browser GET / is JSON")
    for reply in (marud.http("GET", "/status"), marud.http("GET", "/nothing"), marud.http("GET", "/metrics")):
        expect(reply.headers["X-Content-Type-Options"] == "nosniff" and "sandbox" in reply.headers["Content-Security-Policy"],
               f"{reply.headers}")
    own = "http://localhost:9101"
    for headers in ({"Host": "localhost:9101", "Origin": own, "Sec-Fetch-Site": "same-origin"}, {"Host": "127.0.0.1:9101"},
                    {"Host": "[::1]:9101"}, {"Host": "marud", "Sec-Fetch-Site": "none"}, {"Host": "a.localhost"}):
        expect(marud.http("GET", "/status", headers=headers).status == 200, headers)
    for headers, said in (({"Host": "rebound.example.com:9101"}, 'Host: "rebound.example.com:9101"'),
                          ({"Host": "localhost:9101", "Origin": "http://example.com"}, 'Origin: "http://example.com"'),
                          ({"Host": "localhost:9101", "Origin": "null"}, 'Origin: "null"'),
                          ({"Host": "localhost:9101", "Sec-Fetch-Site": "cross-site"}, 'Sec-Fetch-Site: "cross-site"')):
        refused(marud.http("GET", "/status", headers=headers), 403, said)
        refused(marud.http("POST", "/clear-cache", headers=headers), 403, said)
    expect(marud.http("GET", "/", headers={**html, "Sec-Fetch-Site": "cross-site"}).status == 200, "a link to the page")


def getting_changes_nothing(marud, client):
    client.ask("store kept 4096")
    before = marud.http("GET", "/status").json["pools"][0]
    for target in marud.http("GET", "/").json["paths"]:
        marud.http("GET", target.replace("{cache_salt}", "seen"))
        marud.http("HEAD", target.replace("{cache_salt}", "seen"))
    after = marud.http("GET", "/status").json["pools"][0]
    for field in ("blocks", "block_bytes", "policy", "tenants", "evicted_blocks", "counters", "page_states"):
        expect(before[field] == after[field], f"{field}: {before[field]} before, {after[field]} after")
    expect(client.ask("exists kept") == 1, "a block went")


def clearing(marud, client):
    client.ask("fill c 20 4096")
    client.ask("hold c0")
    reply = marud.http("POST", "/clear-cache").json
    expect(reply["status"] == "ok" and reply["pools"][0]["pool"] == "default", reply)
    expect(reply["pools"][0]["deleted_when_unpinned"] >= 1, reply)
    expect(client.ask("exists c0") == 0 and client.ask("exists c5") == 0, "blocks are left")
    client.ask("drop")
    wait_for(lambda: "asked for \"clear\" on pool \"default\"" in marud.log.read_text(), "a log of clearing")
    wait_for(lambda: "by HTTP" in marud.log.read_text(), "a log of who cleared")
    client.ask("fill c 20 4096")
    client.ask("hold c0")
    device = [arguments.marudctl, "--socket", marud.socket, "device"]
    subprocess.run([*device, "drain", "default"], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    pools = marud.http("POST", "/clear-cache").json["pools"]
    expect(len(pools) == 1 and client.ask("exists c0") == 0, f"a pool that is drained is cleared like the others: {pools}")
    subprocess.run([*device, "cancel", "default"], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    client.ask("drop")


def without_a_pool(program):
    """What is meant when no pool is named is what the description says of each path."""
    second = ('[[pool]]\nname = "second"\nbackend = "memory"\nsize = "4MiB"\npage_bytes = "4KiB"\nregion_bytes = "256KiB"\n'
              'lanes = 8\npins = 64\n')
    with ObservedMarud(program, size="4MiB", region_bytes="256KiB", more=second) as marud:
        def pools(method, target):
            return [row["name" if target.startswith("/status") else "pool"] for row in marud.http(method, target).json["pools"]]
        for method, target in (("GET", "/status"), ("POST", "/clear-cache")):
            expect(pools(method, target) == ["default", "second"], f"{target}: {pools(method, target)}")
            expect(pools(method, target + "?pool=second") == ["second"], f"{target} of one: {pools(method, target)}")
        expect(marud.http("GET", "/map").json["pool"] == "default", "the map is that of the default pool")


def as_many_pools_as_there_can_be(program):
    """One answer of marud has no room for the status of all of them: HTTP and marudctl ask for the rest."""
    pool = ('[[pool]]\nname = "p{}"\nbackend = "memory"\nsize = "4MiB"\npage_bytes = "4KiB"\nregion_bytes = "256KiB"\n'
            'lanes = 8\npins = 64\n')
    with ObservedMarud(program, size="4MiB", region_bytes="256KiB", more="".join(map(pool.format, range(63)))) as marud, \
            BlockClient(arguments.client, marud) as client:
        expect(client.ask("fill a 20 4096") == 20, "20 blocks")
        names = ["default"] + [f"p{i}" for i in range(63)]

        def marudctl(*words):
            run = subprocess.run([arguments.marudctl, "--socket", marud.socket, *words], capture_output=True, text=True,
                                 timeout=PATIENCE)
            expect(run.returncode in (0, 4), f"{words}: {run.returncode} {run.stderr}")
            return run.stdout
        status = marud.http("GET", "/status")
        expect(status.status == 200 and [row["name"] for row in status.json["pools"]] == names, status)
        expect(status.json["pools"][0]["blocks"] == 20 and "next" not in status.json and status.json["lanes"] == 1, status)
        expect([row["name"] for row in marud.http("GET", "/status?pool=p62").json["pools"]] == ["p62"], "the last one alone")
        listed = json.loads(marudctl("--json", "status"))
        expect([row["name"] for row in listed["pools"]] == names and "next" not in listed, f"{len(listed['pools'])} pools")
        shown = marudctl("status")
        expect(all(re.search(rf"(?m)^{name} +serving +4 MiB ", shown) for name in names), "pools in marudctl status")
        expect(re.search(r"(?m)^default +serving +4 MiB +\d+ % +20 +1  lru$", shown), shown[:2000])
        expect(re.search(r"(?m)^name +p7$", marudctl("--pool", "p7", "status")), "one pool in full")
        found = {row["what"] for row in json.loads(marudctl("--json", "doctor"))["findings"]}
        expect(found >= {f'pool "{name}"' for name in names}, f"doctor: {sorted(found)[:10]}")
        words = {line.split("\t")[0] for line in
                 marudctl("completion", "words", "--", "--socket", str(marud.socket), "--pool", "").splitlines()}
        expect(set(names) <= words, f"completion: {words}")
        lines = marud.http("GET", "/metrics").text.splitlines()
        serving = [line for line in lines if line.startswith("maru_pool_serving")]
        expect(len(serving) == 64 and all(line.endswith("} 1") for line in serving), serving[:3])
        of_pools = {}  # metric: the pools that it has a line of, each alone
        for name, pool in re.findall(r'(?m)^(\w+)\{pool="([^"]*)"\} ', "\n".join(lines)):
            of_pools.setdefault(name, []).append(pool)
        expect(len(of_pools) > 20, f"metrics of pools: {sorted(of_pools)}")
        for name, found in of_pools.items():
            expect(sorted(found) == sorted(names), f"{name}: {len(found)} of 64 pools, {found[:3]}")
        health = marud.http("GET", "/healthcheck")
        expect(health.status == 200 and len(health.json["pools"]) == 64, health)
        expect(len(marud.http("POST", "/clear-cache").json["pools"]) == 64, "all are cleared")


def only_those_who_may(marud):
    mode = os.stat(marud.http_socket).st_mode & 0o777
    expect(mode == 0o660, f"the socket's mode is {mode:o}")
    if os.geteuid() != 0:
        print("not root: another user's requests were not tried")
        return
    # As a user who can reach the socket and may not administrate.
    os.chmod(marud.socket.parent, 0o711)
    os.chmod(marud.http_socket, 0o666)
    ask = ("import socket,os;os.setgroups([]);os.setgid(65534);os.setuid(65534);s=socket.socket(socket.AF_UNIX);"
           "s.settimeout(60);s.connect(%r);s.sendall(b'GET /status HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n');"
           "print(b''.join(iter(lambda:s.recv(65536),b'')).decode())" % str(marud.http_socket))
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=PATIENCE).stdout
    expect("403 Forbidden" in said and "admin group may administrate" in said, said)
    wait_for(lambda: "user 65534), by HTTP, may not administrate: refused" in marud.log.read_text(), "a log of the refusal")
    os.chmod(marud.http_socket, 0o660)


def the_admin_group_gets_the_socket(program):
    """At the start and when the configuration is read again, as the key's manual says."""
    if os.geteuid() != 0:
        print("not root: the socket was not given to other groups")
        return
    with ObservedMarud(program) as marud:
        config = marud.socket.parent / "marud.toml"
        plain = config.read_text()
        expect(os.stat(marud.http_socket).st_gid == os.getegid(), "the group of a socket without an admin group")
        for group in (54321, 54322, None):
            line = "" if group is None else f"admin_group = {group}\n"
            config.write_text(plain.replace("[daemon]\n", "[daemon]\n" + line))
            marud.process.send_signal(signal.SIGHUP)
            wanted = os.getegid() if group is None else group
            wait_for(lambda: os.stat(marud.http_socket).st_gid == wanted, f"the socket in group {wanted} after a reload")
            expect(os.stat(marud.http_socket).st_mode & 0o777 == 0o660, "the socket's mode after a reload")


def a_large_pool_is_cleared_in_turns(program):
    """More pages than one turn looks at, by HTTP and by marudctl, and somebody who asks and goes away is in nobody's way."""
    clear = ["clear", "--yes"]
    with ObservedMarud(program, size="1GiB", page_bytes="4KiB") as marud, BlockClient(arguments.client, marud) as client:
        client.ask("fill a 20 4096")
        pool = marud.http("POST", "/clear-cache").json["pools"][0]
        expect(pool["deleted_blocks"] == 20 and pool["left_blocks"] == 0, pool)
        client.ask("fill b 30 4096")
        run = subprocess.run([arguments.marudctl, "--socket", marud.socket, "--json", *clear], capture_output=True,
                             text=True, timeout=PATIENCE)
        expect(run.returncode == 0 and json.loads(run.stdout)["deleted_blocks"] == 30, f"{run.stdout}{run.stderr}")
        wait_for(lambda: marud.log.read_text().count("asked for \"clear\"") == 2, "both in the log")
        client.ask("fill c 30 4096")
        away = UnixConnection(marud.http_socket)
        away.request("POST", "/clear-cache")
        away.close()
        pool = marud.http("POST", "/clear-cache").json["pools"][0]  # whatever became of the other one
        expect(client.ask("exists c29") == 0 and pool["left_blocks"] == 0, pool)


def a_pool_that_waits_is_in_order(program):
    """Nobody attached before marud ended, so nobody hands the memory back, until somebody attaches."""
    with ObservedMarud(program) as marud:
        marud.restart()
        health = marud.http("GET", "/healthcheck")
        expect(health.status == 200 and health.json == {"status": "healthy", "reasons": [],
                                                        "pools": [{"name": "default", "condition": "waiting"}]}, health)


def an_ending_marud_answers_or_closes(program):
    with ObservedMarud(program) as marud:
        kept = UnixConnection(marud.http_socket)
        kept.request("GET", "/healthcheck")
        kept.getresponse().read()
        started = time.monotonic()
        marud.process.terminate()
        expect(marud.process.wait(PATIENCE) == 0, "marud did not end cleanly")
        expect(time.monotonic() - started < PATIENCE, "marud waited for an idle connection")
        expect(not marud.http_socket.exists(), "the socket stayed")
        kept.close()


def mistakes_in_the_configuration(program):
    cases = {
        'listen = "0.0.0.0:9101"\ntoken_file = "/t"\n': "an address of this machine alone",
        'listen = "127.0.0.1:9101"\n': "http.token_file: found nothing",
        'token_file = "/t"\n': "http.token_file: found \"/t\", expected nothing: it is for listen",
        'read_token_file = "/t"\n': "http.read_token_file: found \"/t\", expected nothing: it is for listen",
        'listen = "127.0.0.1:9101"\nread_token_file = "t"\n': "http.read_token_file: found \"t\", expected an absolute path",
        'listen = "127.0.0.1:9101"\ntoken_file = "/a/t"\nread_token_file = "/a/./t"\n': "another file than token_file",
        'socket = "http.sock"\n': "an absolute path",
        'timeout_ms = 0\n': "from 10 to 60000",
        'connections = 1\n': "from 4 to 1024",
        'colour = "red"\n': "found an unknown key",
    }
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "marud.toml"
        for text, said in cases.items():
            config.write_text('[[pool]]\nbackend = "memory"\nsize = "1GiB"\n[http]\n' + text)
            run = subprocess.run([program, "--config", config, "--check-config"], capture_output=True, text=True,
                                 timeout=PATIENCE)
            expect(run.returncode == 1 and said in run.stderr, f"{text}: {run.stderr}")


def main():
    description = Description(json.loads(pathlib.Path(arguments.openapi).read_text()))
    with ObservedMarud(arguments.marud, size="64MiB", more="tenants_max = 512\n") as marud, \
            BlockClient(arguments.client, marud) as client:
        described(marud, description)
        everything_is_described(marud, description)
        every_refusal_is_described(marud, description)
        unknown_things_are_refused(marud)
        policies_change(marud)
        quotas_are_those_of_lmcache(marud, client)
        a_list_of_quotas_says_what_each_path_says(marud, client)
        the_map_says_who_rents_what(marud, client)
        browsers_get_the_page_and_serve_no_other_site(marud)
        getting_changes_nothing(marud, client)
        clearing(marud, client)
        only_those_who_may(marud)
    expect(marud.status == 0, f"marud ended with {marud.status}: {marud.log_text[-2000:]}")
    without_a_pool(arguments.marud)
    the_admin_group_gets_the_socket(arguments.marud)
    a_large_pool_is_cleared_in_turns(arguments.marud)
    as_many_pools_as_there_can_be(arguments.marud)
    a_pool_that_waits_is_in_order(arguments.marud)
    an_ending_marud_answers_or_closes(arguments.marud)
    mistakes_in_the_configuration(arguments.marud)
    return findings.end()


parser = argparse.ArgumentParser()
for name in ("--marud", "--marudctl", "--client", "--openapi"):
    parser.add_argument(name, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
