"""marud's page as a person sees it: a real marud with real clients, and a real browser without a screen.

  page_test.py --marud PROGRAM --marudctl PROGRAM --client PROGRAM --adapter-client PROGRAM
               [--pictures FOLDER]
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import browser  # noqa: E402
from observed_marud import PATIENCE, TOKEN, BlockClient, Findings, ObservedMarud, wait_for  # noqa: E402

findings = Findings()
expect = findings.expect

SECOND_POOL = """
[[pool]]
name = "second"
backend = "memory"
size = "16MiB"
page_bytes = "4KiB"
region_bytes = "1MiB"
lanes = 16
pins = 256
"""
# What a process may be called, and what a tenant: markup that would do something. (A process has 15 characters for it.)
HOSTILE_PROCESS = "<s id=boom>&lt;"
HOSTILE_TENANT = "<img/src=x/onerror=document.title='owned'>"
# Ends of attributes, elements and lines: of tenants that may keep nothing. The last one is shown in hexadecimal digits.
MORE_TENANTS = ["\"'></td></script><script>document.title='owned'</script>", "`${document.title='owned'}`<!--",
                "a\r\n<b id=boom>\t"]


def marudctl(marud, *words):
    said = subprocess.run([arguments.marudctl, "--json", *words], env=marud.environment, capture_output=True, text=True,
                          timeout=PATIENCE)
    expect(said.returncode == 0, f"marudctl {words}: {said.stderr}")
    return json.loads(said.stdout)


def text_of(page, selector):
    return page.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")


def click(page, selector):
    page.value(f"document.querySelector({json.dumps(selector)}).click()")


def picture(page, name):
    if arguments.pictures:
        page.picture(pathlib.Path(arguments.pictures) / f"{name}.png")


def the_page_is_for_everybody_and_data_is_not(marud):
    html = {"Accept": "text/html,*/*"}
    for target in ("/", "/page.css", "/page.js", "/page_draw.js"):
        reply = marud.http_tcp("GET", target, None, html)
        expect(reply.status == 200, f"GET {target} without the token: {reply}")
        policy = reply.headers["Content-Security-Policy"]
        expect("default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy, policy)
        expect(reply.headers["X-Content-Type-Options"] == "nosniff", f"{target}: {reply.headers}")
        expect(reply.headers["X-Frame-Options"] == "DENY", f"{target}: {reply.headers}")
        expect("://" not in reply.text.replace("http://www.w3.org/2000/svg", ""), f"{target} names another site")
    for target in ("/", "/status", "/map", "/clients", "/page.css/", "/page.js?pool=x/../status"):
        headers = None if target == "/" else html
        reply = marud.http_tcp("GET", target, None, headers)
        expect(reply.status in (400, 401), f"GET {target} without the token: {reply}")


def the_token_is_asked_for(page, marud):
    page.open(f"http://127.0.0.1:{marud.port}/")
    page.wait_for("!document.getElementById('login').hidden", "the token is asked for")
    expect(page.value("document.getElementById('picture').hidden"), "a picture without a token")
    type_token(page, "a-wrong-token-of-nobody")
    page.wait_for("document.getElementById('notice').innerText.includes('does not know this token')", "the token is refused")
    type_token(page, TOKEN)
    page.wait_for("!document.getElementById('picture').hidden", "the picture is there")
    expect(page.value("document.getElementById('login').hidden"), "the token is still asked for")
    kept = page.value("JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie + location.href + "
                      "document.documentElement.outerHTML")
    expect(TOKEN not in kept, "the token is kept elsewhere than in memory")


def type_token(page, token):
    page.value(f"document.getElementById('token').value = {json.dumps(token)}")
    click(page, "#login button")


def regions_show_their_owners(page, marud):
    """As many cells for each lane as marudctl counts regions. Nobody rents or gives back meanwhile."""
    counts = {}
    for region in marudctl(marud, "--pool", "default", "regions")["regions"]:
        owner = str(region["lane"]) if region["state"] == "rented" else region["state"]
        counts[owner] = counts.get(owner, 0) + 1
    expect(len([owner for owner in counts if owner.isdigit()]) == 2, f"two clients rent: {counts}")
    page.wait_for("JSON.stringify(Object.entries([...document.querySelectorAll('#map i')].reduce((all, cell) => "
                  "({...all, [cell.dataset.owner]: (all[cell.dataset.owner] ?? 0) + 1}), {})).sort()) === "
                  f"JSON.stringify({json.dumps(sorted([owner, count] for owner, count in counts.items()))})",
                  f"regions are shown as {counts}")
    colours = page.value("[...new Set([...document.querySelectorAll('#map .owned')].map((cell) => "
                         "getComputedStyle(cell).getPropertyValue('--hue')))].length")
    expect(colours == 2, f"two owners have {colours} colours")
    for lane in (owner for owner in counts if owner.isdigit()):
        expect(f"lane {lane}: {counts[lane]}" in text_of(page, "#legend"), f"the legend: {text_of(page, '#legend')}")
    click(page, "#map .owned")
    expect("pages in use" in text_of(page, "#cell"), f"a region that was chosen: {text_of(page, '#cell')}")


def heat_follows_use(page, marud, client):
    """All blocks were stored at about the same time; those that are read lie in one region, which becomes the hottest."""
    click(page, "[name=colour][value=heat]")
    page.wait_for("document.querySelectorAll('#map [class^=heat]').length > 0", "regions are coloured by heat")
    expect(page.value("document.querySelectorAll('#map .owned').length") == 0, "owners' colours stay")
    lane = next(row["lane"] for row in marudctl(marud, "clients")["clients"] if row["pid"] == client.process.pid)

    def hot():
        for i in range(50):
            expect(client.ask(f"retrieve a{i}") == 0, f"a{i} is not there")
        return page.value("(() => { const uses = shown.map.cells.uses_per_s, most = Math.max(...uses);"
                          "const hot = uses.indexOf(most), cells = [...document.querySelectorAll('#map i')];"
                          "return most > 1 && uses.every((other, at) => at === hot || other * 3 < most) &&"
                          "cells[hot].classList.contains(`heat-${heatOf(most)}`) && "
                          f"cells[hot].dataset.owner === '{lane}'; }})()")
    wait_for(hot, "one region to become hot", browser.PATIENCE)
    click(page, "[name=colour][value=owner]")
    page.wait_for("document.querySelectorAll('#map .owned').length > 0", "regions are coloured by owner again")


def hit_ratios_move(page, client):
    """One of two reads finds something, and two of three keys of a prefix: whatever moment is looked at, it is neither all nor
    nothing."""
    def moved():
        expect(client.ask("retrieve a1") == 0, "a1 is not there")
        client.ask("retrieve nothing-like-it")
        expect(client.ask("match a1 a2 nothing-like-it") == 2, "a1 and a2 are not there")
        shown = re.fullmatch(r"prefixes ([\d.]+) %, reads ([\d.]+) %", page.value("document.getElementById('hits').ariaLabel"))
        return shown and 0 < float(shown[2]) < 100 and 0 < float(shown[1]) < 100
    wait_for(moved, "ratios of reads and prefixes", browser.PATIENCE)
    expect(page.value("document.querySelector('#hits path.second').getAttribute('d').length") > 0, "no line is drawn")


def clients_and_tenants_are_listed(page, marud, clients):
    rows = {row["pid"]: row for row in marudctl(marud, "clients")["clients"]}
    for client in clients:
        pid = client.process.pid
        page.wait_for(f"[...document.querySelectorAll('#clients td:first-child')].some((cell) => cell.innerText === '{pid}')",
                      f"process {pid} is listed")
        expect(rows[pid]["command"] in text_of(page, "#clients"), f"{rows[pid]['command']} is not shown")
    expect(HOSTILE_PROCESS in text_of(page, "#clients"), f"{HOSTILE_PROCESS} in {text_of(page, '#clients')}")
    page.wait_for(f"document.getElementById('tenants').innerText.includes({json.dumps(HOSTILE_TENANT)})",
                  "the tenant is listed")
    shown = text_of(page, "#tenants")
    expect(all(name in shown for name in MORE_TENANTS[:2]) and "0x" + MORE_TENANTS[2].encode().hex() in shown, shown)
    expect(shown.count("nothing") == len(MORE_TENANTS), f"tenants that may keep nothing: {shown}")
    expect("id:" in text_of(page, "#tenants"), f"a tenant whose name nobody has told: {text_of(page, '#tenants')}")
    nobody = page.value("[...document.querySelectorAll('#tenants tr')].map((row) => row.innerText)"
                        ".filter((text) => text.startsWith('no tenant'))")
    expect(len(nobody) == 1 and "2.7 MiB" in nobody[0], f"what blocks of no tenant use: {nobody}")
    expect(page.value("document.querySelectorAll('#boom, main img, main script').length") == 0, "a name became markup")
    expect(page.value("document.title") == "marud", f"a name ran: {page.value('document.title')}")


def who_ends_leaves_its_blocks(page, marud, client):
    """A region without an owner is nothing to be afraid of, and the page says so."""
    with BlockClient(arguments.client, marud) as ends:
        expect(ends.ask("fill z 20 4096") == 20, "20 blocks of one that ends")
    page.wait_for("document.querySelectorAll('#map .orphaned').length > 0", "a region has no owner")
    for name in ("#legend", "#cell"):
        if name == "#cell":
            click(page, "#map .orphaned")
        expect("no owner" in text_of(page, name) and "blocks stay readable" in text_of(page, name),
               f"{name}: {text_of(page, name)}")
    alarm = page.value("(() => { const probe = document.createElement('i'); probe.style.color = 'var(--bad)';"
                       "document.body.append(probe); const bad = getComputedStyle(probe).color; probe.remove();"
                       "return getComputedStyle(document.querySelector('#map .orphaned')).background.includes(bad); })()")
    expect(not alarm, "it has the colour of what is wrong")
    expect(client.ask("retrieve z1") == 0, "z1 is not there")


def adapters_are_counted(page, marud):
    """Those of each user, where there are any: the figures that marudctl shows."""
    expect(page.value("document.getElementById('adapters').hidden"), "adapters where no user has any")
    with tempfile.TemporaryDirectory() as folder, BlockClient(arguments.adapter_client, marud, arguments=[folder]) as client:
        try:
            for name in ("much", "little", "never"):
                expect(client.ask(f"load {name}") == 0, f"{name} is registered")
            for name in ("much exact", "much", "much", "much", "little"):
                expect(client.ask(f"use {name}") == 0, f"{name} is there")
            page.wait_for("!document.getElementById('adapters').hidden", "adapters are shown")
            user = marudctl(marud, "adapters")["users"][0]
            expect((user["hot_adapters"], user["warm_adapters"], user["adapters"]) == (1, 1, 3), f"marudctl says {user}")
            row = [str(os.geteuid()), "3", f"1, {size_text(user['hot_bytes'])}", f"1, {size_text(user['warm_bytes'])}",
                   "60.0 %", "0.0 %", "2", size_text(user["loaded_bytes"]), "0"]
            texts = "[...document.querySelectorAll('#adapters {}')].map((cell) => cell.innerText)".format
            page.wait_for(f"JSON.stringify({texts('td')}) === JSON.stringify({json.dumps(row)})", f"the user's row is {row}")
            heads = page.value(texts("th"))
            expect(heads == ["User", "Adapters", "HOT", "WARM", "Found HOT", "Found WARM", "Loads", "Read", "Promoted"], heads)
            picture(page, "adapters")
        finally:
            client.ask("forget")
    page.wait_for("document.getElementById('adapters').hidden", "adapters that are gone are shown")


def size_text(size):
    """As the page writes it: three digits of a number below 1024."""
    return f"{size} B" if size < 1024 else f"{size / 1024:.0f} KiB" if size >= 99.95 * 1024 else f"{size / 1024:.1f} KiB"


def evictions_are_counted(page, client):
    client.ask("fill b 16000 4096")  # more than the pool has
    page.wait_for("[...document.querySelectorAll('#evictions td.number')].some((cell) => parseFloat(cell.innerText) > 0)",
                  "evictions are shown")


def one_picture_is_of_one_pool(page):
    """A pool is chosen while marud is being asked about the one before: nothing of that one is shown under its name."""
    page.value("""(() => {
        const ask = window.fetch;
        window.pictures = [];
        window.fetch = async (path, options) => {
          if (path === 'clients?pool=default' && !window.goOn) await new Promise((resolve) => { window.goOn = resolve; });
          return ask(path, options);
        };
        new MutationObserver(() => pictures.push({
          pool: document.querySelector('[data-pool][aria-pressed=true]').dataset.pool, map: shown.map.pool,
          tenants: document.getElementById('tenants').innerText,
        })).observe(document.getElementById('evictions'), {childList: true});
      })()""")
    page.wait_for("'goOn' in window", "a look is between the map and the clients")
    click(page, "[data-pool=second]")
    page.value("goOn()")
    page.wait_for("pictures.some((one) => one.pool === 'second')", "the other pool is shown")
    for one in page.value("pictures"):
        expect(one["map"] == one["pool"], f"the map of {one['map']} is shown for {one['pool']}")
        expect(("alice" in one["tenants"]) == (one["pool"] == "default"), f"tenants of {one['pool']}: {one['tenants']}")
    click(page, "[data-pool=default]")
    page.wait_for("shown.map.pool === 'default'", "the first pool is shown again")


def pools_come_and_go(page, marud):
    click(page, "[data-pool=second]")
    page.wait_for("document.querySelector('[data-pool=second]').ariaPressed === 'true' && "
                  "document.querySelectorAll('#map .unused').length > 0", "the other pool is shown")
    page.wait_for("document.getElementById('clients').innerText.includes('No process')", "its clients are shown")
    marudctl(marud, "device", "remove", "second", "--yes")
    page.wait_for("!document.querySelector('[data-pool=second]')", "the pool is gone")
    expect("second" in text_of(page, "#notice") and "removed" in text_of(page, "#notice"), text_of(page, "#notice"))
    expect(page.value("document.querySelector('[data-pool=default]').ariaPressed") == "true", "no other pool is shown")
    click(page, "[data-pool=default]")


def silence_is_said(page, marud):
    marud.process.send_signal(signal.SIGSTOP)
    try:
        page.wait_for("document.getElementById('notice').innerText.includes('has not answered since')", "silence is said")
        expect(page.value("document.body.classList.contains('stale')"), "old figures look like new ones")
    finally:
        marud.process.send_signal(signal.SIGCONT)
    page.wait_for("document.getElementById('notice').hidden && !document.body.classList.contains('stale')", "marud is back")


def main():
    with ObservedMarud(arguments.marud, tcp=True, size="48MiB", more=SECOND_POOL) as marud, \
            tempfile.TemporaryDirectory() as folder, browser.Browser() as page:
        hostile = pathlib.Path(folder) / HOSTILE_PROCESS
        hostile.symlink_to(os.path.realpath(arguments.client))
        with BlockClient(arguments.client, marud) as one, BlockClient(str(hostile), marud) as other:
            expect(one.ask("fill a 700 4096") == 700 and one.ask("fill t 5 4096 alice") == 5, "705 blocks of one client")
            expect(other.ask(f"fill c 300 4096 {HOSTILE_TENANT}") == 300, "300 blocks of the other")
            named = marud.http("PUT", "/quota/" + urllib.parse.quote(HOSTILE_TENANT, safe=""), {"limit_gb": 0.002})
            expect(named.status == 200, f"a limit for a tenant: {named}")
            for name in MORE_TENANTS:
                named = marud.http("PUT", "/quota/" + urllib.parse.quote(name, safe=""), {"limit_gb": 0})
                expect(named.status == 200, f"a limit for a tenant: {named}")
            the_page_is_for_everybody_and_data_is_not(marud)
            page.screen(1200, 900)
            the_token_is_asked_for(page, marud)
            regions_show_their_owners(page, marud)
            heat_follows_use(page, marud, one)
            hit_ratios_move(page, one)
            clients_and_tenants_are_listed(page, marud, (one, other))
            who_ends_leaves_its_blocks(page, marud, other)
            adapters_are_counted(page, marud)
            evictions_are_counted(page, one)
            misfits = page.misfits(lambda name: picture(page, name))
            expect(not misfits, misfits)
            one_picture_is_of_one_pool(page)
            pools_come_and_go(page, marud)
            silence_is_said(page, marud)
            addresses = {address for address in page.addresses() if not address.startswith("data:")}
            here = f"http://127.0.0.1:{marud.port}/"
            expect(all(address.startswith(here) for address in addresses), f"others were asked: {addresses}")
        marud.process.terminate()
        page.wait_for("document.getElementById('notice').innerText.includes('has not answered since')", "the end is said")
        wrong = page.mistakes()
        expect(not wrong, f"in the browser: {wrong}")
    return findings.end()


parser = argparse.ArgumentParser()
for argument in ("--marud", "--marudctl", "--client", "--adapter-client"):
    parser.add_argument(argument, required=True)
parser.add_argument("--pictures", help="a folder for what the page looks like")
arguments = parser.parse_args()

if __name__ == "__main__":
    if browser.PROGRAM is None:
        print("chromium is not here: scripts/install-packages page installs it")
        sys.exit(77)
    sys.exit(main())
