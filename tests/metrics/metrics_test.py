"""Every metric against what it counts: a real marud, real clients, and after each thing that was done a look at /metrics.

  metrics_test.py --marud PROGRAM --marudctl PROGRAM --client PROGRAM --documents docs/metrics.md
"""
import argparse
import errno
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import rare_events  # noqa: E402
from measured import Look, expect, findings, look, moved  # noqa: E402
from observed_marud import PATIENCE, BlockClient, ObservedMarud, wait_for  # noqa: E402

# What never changes while marud runs, and is compared with what is known of the pool instead.
CONSTANT = {"maru_build_info", "maru_start_time_seconds", "maru_pool_bytes", "maru_page_bytes", "maru_watermark_ratio"}


def counting_of_clients(marud, client):
    step = Look(marud)
    expect(math.isnan(step.before.value("maru_hit_ratio", operation="retrieve")), "a ratio of nothing")
    for key in ("a", "b", "c"):
        expect(client.ask(f"store {key} 3000") == 0, "storing")
    step.by(3, "maru_stores_total")
    step.by(3, "lmcache_mp_l1_write_total")
    step.by(3, "kvbm_registrations_total")
    step.by(9000, "maru_stored_bytes_total")
    step.by(3, "maru_blocks")
    step.by(3, "kvbm_inactive_pool_size")
    step.by(9000, "maru_block_bytes")
    step.by(3, "maru_pages", state="ready")
    step.more("maru_rent_requests_total")
    step.more("maru_allocation_latency_seconds_count")
    step.more("maru_allocation_latency_seconds_sum")
    step.more("ruvector_allocation_latency_seconds_count")
    step.more("ruvector_allocation_latency_seconds_sum")
    step.more("maru_allocation_latency_seconds_bucket", le="10")
    step.more("ruvector_allocation_latency_seconds_bucket", le="10")
    step.more("maru_event_loop_turn_seconds_count")
    step.more("maru_event_loop_turn_seconds_sum")
    step.more("maru_event_loop_turn_seconds_bucket", le="+Inf")
    step.more("maru_event_loop_turn_cpu_seconds_count")
    step.more("maru_event_loop_turn_cpu_seconds_sum")
    step.more("maru_event_loop_turn_cpu_seconds_bucket", le="+Inf")
    step.more("maru_lines_read_total")

    step = Look(marud)
    expect(client.ask("store a 3000") == 1, "storing twice")
    step.by(1, "maru_duplicate_stores_total")
    step.by(1, "kvbm_duplicate_blocks_total")

    step = Look(marud)
    for key, there in (("a", 0), ("b", 0), ("nothing", -2)):
        expect(client.ask(f"retrieve {key}") == there, f"retrieving {key}")
    step.by(2, "maru_retrieves_total", result="hit")
    step.by(1, "maru_retrieves_total", result="miss")
    step.by(2, "lmcache_mp_l1_read_total")
    step.by(1, "lmcache_mp_l1_read_failure_total")
    step.by(3, "maru_lookups_total", operation="retrieve")
    step.to(2 / 3, "maru_hit_ratio", operation="retrieve")

    step = Look(marud)
    client.ask("exists a"), client.ask("exists nothing"), client.ask("exists never")
    step.by(1, "maru_exists_total", result="hit")
    step.by(2, "maru_exists_total", result="miss")
    step.to(1 / 3, "maru_hit_ratio", operation="exists")

    step = Look(marud)
    client.ask("store p0 4096"), client.ask("store p1 4096 - p0")
    expect(client.ask("match p0 p1 p2 p3") == 2, "matching")
    step.by(4, "maru_match_keys_total")
    step.by(2, "maru_match_blocks_total")
    step.by(4, "kvbm_match_hashes_requested_total")
    step.by(2, "kvbm_match_blocks_returned_total")
    step.by(4, "lmcache_mp_lookup_requested_total")
    step.by(2, "lmcache_mp_lookup_hit_total")
    step.by(2, "lmcache_mp_lookup_hit_l1_total")
    step.to(0.5, "maru_hit_ratio", operation="match")
    step.to(0.5, "kvbm_host_cache_hit_rate")

    step = Look(marud)
    expect(client.ask("delete c") == 0, "deleting")
    step.by(1, "maru_deletes_total")
    step.by(-1, "maru_blocks")


def space(marud, client, status):
    now = look(marud)
    expect(now.value("maru_pool_bytes") == status["pool_bytes"], "maru_pool_bytes")
    expect(now.value("maru_page_bytes") == 4096, "maru_page_bytes")
    expect(now.value("maru_watermark_ratio", level="high") == 0.9 and
           now.value("maru_watermark_ratio", level="low") == 0.8, "watermarks")
    expect(now.value("maru_pages") == status["pages"], "the sum of maru_pages")
    step = Look(marud)
    used = step.before.value("maru_memory_pool_used_bytes")
    expect(client.ask("fill s 100 8192") == 100, "filling")
    step.more("maru_memory_pool_used_bytes")
    step.more("maru_memory_pool_utilization")
    step.more("ruvector_memory_pool_utilization")
    step.more("lmcache_mp_l1_memory_usage_bytes")
    step.more("lmcache_mp_l1_usage_ratio")
    after = step.after
    expect(after.value("maru_memory_pool_used_bytes") - used >= 100 * 8192, "used bytes")
    expect(math.isclose(after.value("maru_memory_pool_utilization"),
                        after.value("maru_memory_pool_used_bytes") / 4096 / status["pages"], abs_tol=0.01), "utilization")
    # Every second one goes, so that what is FREE comes in pieces.
    step = Look(marud)
    for i in range(0, 100, 2):
        client.ask(f"delete s{i}")
    step.by(-50, "maru_blocks")
    step.changes("maru_fragmentation_ratio")
    step.changes("kvbm_reset_pool_size")
    free = step.after.value("maru_pages", state="free")
    expect(math.isclose(step.after.value("maru_fragmentation_ratio"),
                        1 - step.after.value("maru_largest_free_run_pages") / free, abs_tol=1e-6), "fragmentation")
    expect(0 < step.after.value("maru_largest_free_run_pages") <= free, "the longest run")


def tenants(marud, client):
    step = Look(marud)
    odd = 'a"b\\c'
    expect(client.ask("store t0 4096 alice") == 0 and client.ask(f"store t1 4096 {odd}") == 0, "storing for tenants")
    ids = {f"id:{row['id']}" for row in marud.http("GET", "/tenants").json["tenants"] if row["tenant"] is None}
    shown = set(look(marud).labels("maru_tenant_bytes", "tenant"))
    expect(len(ids) == 2 and ids | {"(others)"} == shown, f"tenants without a name, {ids}, are shown as {shown}")
    marud.http("PUT", "/quota/alice", {"limit_gb": 4096 / 2**30, "hard_limit_gb": 8192 / 2**30})
    marud.http("PUT", "/quota/a%22b%5Cc", {"limit_gb": 1})
    step.by(4096, "maru_tenant_bytes", tenant="alice")
    step.by(4096, "maru_tenant_limit_bytes", tenant="alice", kind="soft")
    step.by(8192, "maru_tenant_limit_bytes", tenant="alice", kind="hard")
    expect(step.after.value("maru_tenant_bytes", tenant=odd) == 4096, f"a name that must be escaped: "
           f"{step.after.labels('maru_tenant_bytes', 'tenant')}")
    step = Look(marud)
    for i in range(4):
        client.ask(f"store over{i} 4096 alice")
    step.more("maru_tenant_refusals_total", tenant="alice")
    step = Look(marud)
    expect(client.ask("store nobody0 4096") == 0 and client.ask("store nobody1 8192") == 0, "storing for no tenant")
    step.by(3 * 4096, "maru_tenant_bytes", tenant="(others)")
    others = step.after.value("maru_tenant_bytes", tenant="(others)")
    for path in ("/quota/_default", "/api/quota/_default"):
        used = marud.http("GET", path).json["current_usage_gb"]
        expect(round(used * 2**30) == others, f"{path}: {used} GiB, {others} bytes in /metrics")
    listed = marud.http("GET", "/tenants").json.get("others_used_bytes")
    expect(listed == others, f"/tenants: {listed} bytes of no tenant, {others} in /metrics")
    expect(client.ask("delete nobody0") == 0, "deleting a block of no tenant")
    step.by(2 * 4096, "maru_tenant_bytes", tenant="(others)")
    expect(client.ask("delete nobody1") == 0, "deleting a block of no tenant")
    step.by(0, "maru_tenant_bytes", tenant="(others)")
    expect(look(marud).value("maru_tenant_bytes", tenant="alice") <= 8192, "a hard limit")


def pins(marud, client):
    step = Look(marud)
    expect(client.ask("hold a") == 0, "holding")
    step.by(1, "maru_pins")
    step.by(1, "kvbm_inflight_immutable")
    step.by(1, "maru_pins_overdue")
    step.by(1, "maru_pins_overdue_total")
    client.ask("delete a")
    step.by(1, "maru_retired_blocks")
    client.ask("drop")
    step.by(0, "maru_retired_blocks")
    step.by(0, "maru_pins")


def clients_that_die(marud, program):
    """Totals are what they were before, and what the client held comes back."""
    step = Look(marud)
    with BlockClient(program, marud) as doomed:
        step.by(1, "maru_lanes", state="live")
        step.by(0, "maru_lanes", state="unproven")
        step.more("maru_connections")
        step.by(1, "maru_regions", state="rented") if doomed.ask("store mortal 4096") == 0 else None
        doomed.ask("exists mortal"), doomed.ask("hold mortal")
        expect(doomed.ask("take 8192") == 0, "taking memory")
        step.more("kvbm_inflight_mutable")
        step.more("lmcache_mp_l1_staging_bytes")
        step.by(1, "maru_stores_total")
        alive = look(marud)
        doomed.kill()
    step.by(1, "maru_clients_reclaimed_total")
    step.by(0, "maru_lanes", state="live")
    step.by(0, "maru_lanes", state="reclaiming")
    step.more("maru_reclaimed_pages_total")  # what it had taken to fill
    after = look(marud)
    for name in ("maru_stores_total", "maru_stored_bytes_total", "maru_exists_total", "maru_retrieves_total",
                 "maru_rent_requests_total", "maru_lookups_total", "lmcache_mp_l1_write_total"):
        expect(after.value(name) == alive.value(name), f"{name}: {alive.value(name)} before SIGKILL, "
               f"{after.value(name)} after it")


def totals_go_on_over_a_restart(program, client_program):
    """What clients counted, those that are gone and those that stay, is what the next marud begins with. With a total that fell
    a rate would count everything of those that stay again."""
    with ObservedMarud(program) as marud, BlockClient(client_program, marud) as staying:
        for i in range(7):
            expect(staying.ask(f"store s{i} 4096") == 0, "storing")
        with BlockClient(client_program, marud) as doomed:
            for i in range(5):
                expect(doomed.ask(f"store d{i} 4096") == 0 and doomed.ask(f"exists d{i}") == 1, "storing")
            doomed.kill()
        wait_for(lambda: look(marud).value("maru_clients_reclaimed_total") == 1, "the dead client taken back")
        before = look(marud)
        expect(before.value("maru_stores_total") == 12, "what was stored")
        marud.restart()
        wait_for(lambda: look(marud).value("maru_pool_serving", pool="default") == 1, "the memory handed back")
        after = look(marud)
        for name in ("maru_stores_total", "maru_stored_bytes_total", "maru_exists_total", "maru_lookups_total",
                     "maru_rent_requests_total"):
            expect(after.value(name) == before.value(name), f"{name}: {before.value(name)} before, {after.value(name)} after")
        expect(staying.ask("store s7 4096") == 0, "storing after the restart")
        step = Look(marud)
        step.to(13, "maru_stores_total")


def audits(marud, client):
    def check(status):
        run = subprocess.run([arguments.marudctl, "--socket", marud.socket, "check"], capture_output=True, timeout=PATIENCE)
        expect(run.returncode == status, run)

    step = Look(marud)
    check(0)
    step.by(1, "maru_audits_total")
    step.more("maru_audit_time_seconds")
    # A key that is not that of the digest any more, and then is again.
    key = b"a key that an audit looks at"
    expect(client.ask(f"store {key.decode().replace(' ', '-')} 4096") == 0, "storing")
    key = key.replace(b" ", b"-")
    marud.flip(key, "default")
    check(4)
    step.by(1, "maru_audit_findings")
    health = marud.http("GET", "/healthcheck")
    expect(health.status == 503 and "1 violations" in health.json["reasons"][0], health)
    middle = len(key) // 2
    marud.flip(key[:middle] + bytes([key[middle] ^ 1]) + key[middle + 1:], "default")
    check(0)
    step.by(0, "maru_audit_findings")
    expect(marud.http("GET", "/healthcheck").status == 200, "health after the repair")


def eviction(marud, client):
    step = Look(marud)
    marud.http("PUT", "/policy", {"name": "clock"})
    step.to(1, "maru_policy_info", policy="clock")
    expect(step.after.value("maru_policy_info", policy="lru") is None, "two policies")
    stored = client.ask("fill e 4000 16384")
    expect(stored > 3000, f"stored {stored}")
    step.changes("maru_largest_free_run_pages")
    step.more("maru_background_evictions_total")
    step.more("lmcache_mp_l1_eviction_loop_triggered_total")
    step.more("maru_evicted_blocks_total", policy="clock")
    step.more("maru_pages_evicted_total")
    step.more("ruvector_pages_evicted_total")
    step.more("lmcache_mp_l1_evicted_total")
    step.more("kvbm_evictions_total")
    was = step.after.value("maru_evicted_blocks_total", policy="lru") or 0
    marud.http("PUT", "/policy", {"name": "fifo"})
    client.ask("fill f 4000 16384")
    step.more("maru_evicted_blocks_total", policy="fifo")
    after = look(marud)
    expect(after.value("maru_evicted_blocks_total", policy="lru") in (None, was), "the account of a policy that is gone")
    status = marud.http("GET", "/status").json["pools"][0]
    wait_for(lambda: look(marud).value("maru_evicted_blocks_total") ==
             sum(marud.http("GET", "/status").json["pools"][0]["evicted_by"].values()), "the sum of reasons as in /status")
    for reason in status["evicted_by"]:
        expect(after.value("maru_evicted_blocks_total", reason=reason) is not None, f"reason {reason}")
    expect(after.value("maru_evicted_blocks_total", reason="background") > 0, "what was evicted below the watermark")
    step = Look(marud)
    subprocess.run([arguments.marudctl, "--socket", marud.socket, "evict", "8"], check=True, timeout=PATIENCE,
                   stdout=subprocess.DEVNULL)
    step.more("maru_evicted_blocks_total", reason="admin")


def shortage(program):
    """Two clients that want all of a small pool: regions are taken, and when everything is held, requests are refused."""
    with ObservedMarud(program, size="8MiB", region_bytes="256KiB",
                       more="high_watermark = 1\nlow_watermark = 0.5\n") as marud, \
            BlockClient(arguments.client, marud) as first, BlockClient(arguments.client, marud) as second:
        first.ask("fill x 3000 4096")
        step = Look(marud)
        second.ask("fill y 1500 4096")
        step.more("maru_regions_taken_total")
        step.more("maru_evicted_blocks_total", reason="takeover")
        step.more("maru_evicted_blocks_total", reason="request")
        # A policy that evicts nothing.
        marud.http("PUT", "/policy", {"name": "none"})
        step = Look(marud)
        first.ask("fill z 3000 4096"), second.ask("fill w 3000 4096")
        step.more("maru_rents_refused_total")
        step.more("lmcache_mp_l1_allocation_failure_total")


def two_pools_and_one_that_is_gone(program):
    with tempfile.TemporaryDirectory(prefix="maru-metrics-") as folder:
        path = pathlib.Path(folder) / "pool"
        with ObservedMarud(program, more=f'[[pool]]\nname = "second"\nbackend = "file"\npath = "{path}"\n'
                                         'size = "2MiB"\npage_bytes = "4KiB"\nregion_bytes = "64KiB"\nlanes = 4\npins = 64\n'
                                         'touch_entries = 64\n') as marud:
            before = look(marud)
            expect(before.labels("maru_blocks", "pool") == {"default", "second"}, "two pools")
            expect(before.value("maru_pool_serving", pool="second", condition="serving") == 1, "it serves")
            with path.open("r+b") as file:
                file.truncate(4096)
            wait_for(lambda: look(marud).value("maru_pool_serving", pool="second", condition="fenced") == 0,
                     "a pool that is fenced")
            moved.add("maru_pool_serving")
            health = marud.http("GET", "/healthcheck")
            expect(health.status == 503 and health.json["status"] == "unhealthy" and
                   "pool \"second\" is fenced" in health.json["reasons"][0], health)
            expect(look(marud).labels("maru_blocks", "pool") == {"default"}, "a fenced pool has no numbers")


def a_pool_that_is_removed(program):
    """It is nowhere any more, and may come back under its name: an exposition that said anything twice would not be read."""
    with tempfile.TemporaryDirectory(prefix="maru-metrics-") as folder, ObservedMarud(program) as marud:
        described = pathlib.Path(folder) / "second.toml"
        described.write_text(f'[[pool]]\nname = "second"\nbackend = "file"\npath = "{folder}/pool"\nsize = "2MiB"\n'
                             'page_bytes = "4KiB"\nregion_bytes = "64KiB"\nlanes = 4\npins = 64\ntouch_entries = 64\n')

        def device(*words):
            run = subprocess.run([arguments.marudctl, "--socket", marud.socket, "device", *words], capture_output=True,
                                 text=True, timeout=PATIENCE)
            expect(run.returncode == 0, run)

        def shown(what):
            named = {"/metrics": lambda: look(marud).labels("maru_pool_serving", "pool"),
                     "/healthcheck": lambda: {pool["name"] for pool in marud.http("GET", "/healthcheck").json["pools"]},
                     "/conf": lambda: {pool["name"] for pool in marud.http("GET", "/conf").json["pool"]}}
            return named[what]()

        for there in (True, False, True, False):
            device("add", described) if there else device("remove", "second", "--yes")
            for what in ("/metrics", "/healthcheck", "/conf"):
                wanted = {"default", "second"} if there else {"default"}
                expect(shown(what) == wanted, f"{what} has {shown(what)}, expected {wanted}")
            expect(look(marud).value("maru_pool_serving") == len(wanted), "a pool that is gone does not serve")


def users(program, client_program):
    """What users have, and what they are refused. The limits name the user of the test, who is not limited otherwise."""
    me = str(os.geteuid())
    limits = f"\n[[limit]]\nuser = {me}\nregions = 2\npins = 1\nconnections = 3\n"
    with ObservedMarud(program, size="4MiB", region_bytes="256KiB", more=limits) as marud:
        step = Look(marud)
        with BlockClient(client_program, marud) as one, BlockClient(client_program, marud) as two:
            step.to(2, "maru_user_connections", user=me)
            expect(one.ask("store a 4096") == 0 and two.ask("store b 4096") == 0, "storing")
            step.to(2, "maru_user_regions", user=me)
            step.to(2 * 2**18, "maru_user_bytes", user=me)
            expect(one.ask("hold a") == 0, "holding")
            expect(one.ask("take 262144") == -errno.EDQUOT, "memory beyond the limit")
            step.by(1, "maru_refusals_total", what="regions")
            expect(two.ask("hold b") == 0, "holding")
            step.to(2, "maru_user_pins", user=me)
            step.to(1, "maru_users_over_pins")
            expect(one.ask("take 262144") == -errno.EDQUOT, "memory with too many pins")
            step.by(1, "maru_refusals_total", what="pins")
            expect(two.ask("drop") == 0, "letting go")
            step.to(0, "maru_users_over_pins")
            with BlockClient(client_program, marud):
                step.to(3, "maru_user_connections", user=me)
                with BlockClient(client_program, marud):
                    step.by(1, "maru_refusals_total", what="connections")


    limits = f"\n[[limit]]\nuser = {me}\nbytes = 262144\n"
    with ObservedMarud(program, size="4MiB", region_bytes="256KiB", more=limits) as marud, \
            BlockClient(client_program, marud) as client:
        expect(client.ask("store a 4096") == 0 and client.ask("hold a") == 0, "a block that cannot make room")
        step = Look(marud)
        expect(client.ask("take 262144") == -errno.EDQUOT, "memory beyond the limit in bytes")
        step.by(1, "maru_refusals_total", what="bytes")


def strangers(program, client_program):
    """Who may not attach, who may only read and attaches to write, and who may not administrate."""
    if os.geteuid() != 0:
        print("not root: users that may not do something were not tried")
        return
    with ObservedMarud(program, more="readers = [54321]\n") as marud:
        os.chmod(marud.socket.parent, 0o711)
        def attach(user):
            return subprocess.run([client_program], env={**marud.environment, "BLOCK_CLIENT_USER": str(user)},
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE).returncode
        step = Look(marud)
        expect(attach(54322) == 1, "a stranger attaches")
        step.by(1, "maru_refusals_total", what="attach")
        step = Look(marud)
        expect(attach(54321) == 1, "a reader attaches to write")
        step.by(1, "maru_refusals_total", what="write")
        step = Look(marud)
        os.chmod(marud.http_socket, 0o666)
        ask = ("import os,socket;os.setgroups([]);os.setgid(54322);os.setuid(54322);s=socket.socket(socket.AF_UNIX);"
               f"s.settimeout({PATIENCE});s.connect({str(marud.http_socket)!r});"
               "s.sendall(b'GET /status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n');print(s.recv(100))")
        said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=PATIENCE)
        expect("403 Forbidden" in said.stdout, said)
        step.by(1, "maru_refusals_total", what="administrate")


def documents(marud):
    text = pathlib.Path(arguments.documents).read_text()
    written = {name: kind for name, kind in re.findall(r"^\| `([a-z0-9_]+)` \| (\w+) \|", text, re.MULTILINE)}
    real = {name: kind for name, (kind, _) in look(marud).families.items()}
    expect(written == real, f"docs/metrics.md and /metrics differ: {sorted(set(written.items()) ^ set(real.items()))}")
    for name, (kind, said) in look(marud).families.items():
        expect(kind != "counter" or name.endswith("_total"), f"{name} is a counter")
        expect(said.endswith("."), f"{name}: {said}")
    return real


def main():
    with ObservedMarud(arguments.marud, size="48MiB", more="pin_overdue_ms = 1500\ntenants_max = 64\n") as marud:
        families = documents(marud)
        with BlockClient(arguments.client, marud) as client:
            counting_of_clients(marud, client)
            space(marud, client, marud.http("GET", "/status").json["pools"][0])
            tenants(marud, client)
            pins(marud, client)
            clients_that_die(marud, arguments.client)
            rare_events.a_crowded_bucket(marud, client)
            rare_events.chains_that_are_none(marud, client)
            rare_events.what_expires(marud, client)
            audits(marud, client)
            eviction(marud, client)
    totals_go_on_over_a_restart(arguments.marud, arguments.client)
    users(arguments.marud, arguments.client)
    strangers(arguments.marud, arguments.client)
    rare_events.damage(arguments.marud, arguments.client)
    rare_events.pins_without_end(arguments.marud, arguments.client)
    rare_events.readers_faster_than_marud(arguments.marud, arguments.client, arguments.marudctl)
    rare_events.hosts(arguments.marud)
    rare_events.a_log_without_a_reader(arguments.marud)
    rare_events.files_of_sockets(arguments.marud)
    rare_events.room_that_is_not_promised(arguments.marud, arguments.client)
    rare_events.tenants_without_a_place(arguments.marud, arguments.client)
    shortage(arguments.marud)
    two_pools_and_one_that_is_gone(arguments.marud)
    a_pool_that_is_removed(arguments.marud)
    seen = {re.sub("_(bucket|sum|count)$", "", name) for name in moved}
    still = set(families) - seen - CONSTANT
    expect(not still, f"moved by nothing: {sorted(still)}")
    print(f"{len(families)} families, {len(seen)} moved")
    return findings.end()


parser = argparse.ArgumentParser()
for option in ("--marud", "--marudctl", "--client", "--documents"):
    parser.add_argument(option, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
