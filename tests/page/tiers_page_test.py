"""maru-tierd's page as a person sees it: a real maru-tierd beside a real marud, and a real browser without a screen.

  tiers_page_test.py --marud PROGRAM --tierd PROGRAM --marudctl PROGRAM --client PROGRAM --prefetch LIBRARY [--pictures FOLDER]
"""
import argparse
import ctypes
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import browser  # noqa: E402
from observed_marud import PATIENCE, BlockClient, Findings, ObservedMarud, wait_for  # noqa: E402

findings = Findings()
expect = findings.expect

CONFIG = """
[http]
listen = "127.0.0.1:0"
[pool]
socket = "{marud}"
[prefetch]
socket = "{folder}/tier.sock"
[[tier]]
name = "disk"
kind = "file"
[tier.options]
path = "{folder}"
capacity = "256MiB"
region_bytes = "1MiB"
[[tier]]
name = "broken"
kind = "fault"
[tier.options]
inner = "null"
seed = 1
eio = 1
"""
BLOCKS = 40


class Key(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("tenant", ctypes.c_uint64)]


def prefetch(socket, names):
    """Asks maru-tierd for these keys and waits until they are settled."""
    library = ctypes.CDLL(arguments.prefetch)
    keys = (Key * len(names))(*(Key(name.encode(), len(name), 0, 0) for name in names))
    options = (ctypes.c_uint64 * 8)()  # maru_prefetch_options
    path = ctypes.create_string_buffer(str(socket).encode())
    options[0], options[1], options[2] = ctypes.sizeof(options), ctypes.addressof(path), 60000 << 32
    ticket = ctypes.c_void_p()
    expect(library.maru_prefetch(keys, ctypes.c_size_t(len(names)), options, ctypes.byref(ticket)) == 0, "a ticket")
    status = (ctypes.c_uint64 * 12)()  # maru_prefetch_status_info
    status[0] = ctypes.sizeof(status)
    expect(library.maru_prefetch_wait(ticket, -1, status) == 0, "the ticket ends")
    library.maru_prefetch_release(ticket)


def tiers(folder):
    said = subprocess.run([arguments.marudctl, "--json", "tier", "status", f"{folder}/tier.sock"], capture_output=True,
                          text=True, timeout=PATIENCE)
    return {tier["name"]: tier for tier in json.loads(said.stdout)["tiers"]}


def cells(page, tier):
    """The row of a tier, by its headings."""
    return page.value("(() => { const heads = [...document.querySelectorAll('#tiers th')].map((one) => one.innerText);"
                      "const row = [...document.querySelectorAll('#tiers tbody tr')]"
                      f".find((one) => one.firstChild.innerText === '{tier}');"
                      "return row ? Object.fromEntries([...row.children].map((one, at) => [heads[at], one.innerText])) : null;"
                      "})()")


def kib(size):
    return f"{size / 1024:.0f} KiB"


def picture(page, name):
    if arguments.pictures:
        page.picture(pathlib.Path(arguments.pictures) / f"tiers-{name}.png")


def programs_get_paths(page, address):
    """And browsers the page, with what keeps other sites out."""
    page.open(address)
    reply = json.loads(page.value("""(async () => {
        const page = await fetch('/', {headers: {Accept: 'text/html'}}), other = await fetch('/', {headers: {Accept: '*/*'}});
        return JSON.stringify({page: await page.text(), headers: Object.fromEntries(page.headers),
                               other: await other.text()}); })()"""))
    headers = reply["headers"]
    policy = headers["content-security-policy"]
    expect("default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy, policy)
    expect(headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY", headers)
    expect(headers["content-type"].startswith("text/html") and "<h1>maru-tierd</h1>" in reply["page"], reply)
    expect("GET /status" in reply["other"] and "<" not in reply["other"], reply["other"])


def stores_are_shown(page, folder):
    page.wait_for("!document.getElementById('picture').hidden", "the tiers are shown")
    wait_for(lambda: (row := cells(page, "disk")) and row["Entries"] == str(BLOCKS), "all blocks are in the tier",
             browser.PATIENCE)
    # A block is stored again in each tier when one of them has failed.
    said = wait_for(lambda: (said := tiers(folder)["disk"]) == tiers(folder)["disk"] and
                    said["in_flight"] == said["queue"] == 0 and said, "the tier is at rest")
    expect(said["entry_bytes"] >= BLOCKS * 4096 and said["stores"] >= BLOCKS, f"marudctl says {said}")
    wanted = {"Kind": "file", "Bytes": kib(said["entry_bytes"]), "Room": "256 MiB", "Hits": "–", "Loaded": "0, 0 B",
              "Stored": f"{said['stores']}, {kib(said['stored_bytes'])}", "Queue": "0", "Failures": "0", "Breaker": "closed"}
    wait_for(lambda: all(cells(page, "disk")[head] == text for head, text in wanted.items()),
             f"{wanted}, found {cells(page, 'disk')}", browser.PATIENCE)
    row = cells(page, "disk")
    expect(re.fullmatch(r"[\d.]+ [KMG]iB/s", row["Store speed"]), row["Store speed"])
    expect(page.value("document.querySelector('#tiers .bar i').getBoundingClientRect().width") > 0, "the tier has no bar")


def loads_are_shown(page, folder, client):
    # More than the pool has. An administrator's `evict` would not do: a tier forgets what an administrator removes.
    client.ask("fill b 6000 4096")
    expect(client.ask("exists a0") == 0, "a0 is still in the pool")
    prefetch(f"{folder}/tier.sock", [f"a{i}" for i in range(BLOCKS)] + ["nothing-like-it"])
    found = tiers(folder)["disk"]
    expect((found["hits"], found["misses"], found["loads"]) == (BLOCKS, 1, BLOCKS), f"marudctl says {found}")
    row = wait_for(lambda: (row := cells(page, "disk")) and row["Loaded"].startswith(f"{BLOCKS},") and row, "loads are shown",
                   browser.PATIENCE)
    expect(row["Hits"] == f"{BLOCKS / (BLOCKS + 1) * 100:.1f} %", row["Hits"])
    expect(re.fullmatch(r"[\d.]+ [KMG]iB/s", row["Load speed"]), row["Load speed"])
    for chart in ("hits", "rates"):
        page.wait_for(f"document.querySelector('#{chart} path').getAttribute('d').length > 0", f"{chart}: a line is drawn")


def trouble_is_shown(page):
    row = wait_for(lambda: (row := cells(page, "broken")) and row["Breaker"] != "closed" and row, "the breaker is open",
                   browser.PATIENCE)
    expect(int(row["Failures"]) >= 5, row)
    page.wait_for("document.getElementById('attention').innerText.includes('the tier broken fails')", "the trouble is said")
    expect(page.value("document.querySelector('#tiers .pill.bad').innerText") in ("open", "half open"),
           "an open breaker looks well")
    expect(page.value("document.getElementById('health').innerText") == "degraded", "the health")


def silence_is_said(page, tierd):
    tierd.send_signal(signal.SIGSTOP)
    try:
        page.wait_for("document.getElementById('notice').innerText.includes('has not answered since')", "silence is said")
        expect(page.value("document.body.classList.contains('stale')"), "old figures look like new ones")
    finally:
        tierd.send_signal(signal.SIGCONT)
    page.wait_for("document.getElementById('notice').hidden && !document.body.classList.contains('stale')", "it is back")


def address_in(log):
    found = re.search(r"HTTP is answered on (http://127\.0\.0\.1:\d+)", log.read_text(errors="replace"))
    return found and found[1] + "/"


def main():
    with ObservedMarud(arguments.marud, size="16MiB") as marud, tempfile.TemporaryDirectory(prefix="maru-tiers-") as folder, \
            browser.Browser() as page:
        config, log = pathlib.Path(folder, "tierd.toml"), pathlib.Path(folder, "log")
        config.write_text(CONFIG.format(folder=folder, marud=marud.socket))
        with open(log, "wb") as said:
            tierd = subprocess.Popen([arguments.tierd, "--config", config], stdout=said, stderr=said)
        try:
            address = wait_for(lambda: address_in(log), f"the address in the log: {log.read_text()}")
            page.screen(1200, 900)
            programs_get_paths(page, address)
            with BlockClient(arguments.client, marud) as client:
                expect(client.ask(f"fill a {BLOCKS} 4096") == BLOCKS, "blocks are stored")
                stores_are_shown(page, folder)
                loads_are_shown(page, folder, client)
            trouble_is_shown(page)
            misfits = page.misfits(lambda name: picture(page, name))
            expect(not misfits, misfits)
            silence_is_said(page, tierd)
            addresses = {one for one in page.addresses() if not one.startswith("data:")}
            expect(all(one.startswith(address) for one in addresses), f"others were asked: {addresses}")
        finally:
            tierd.terminate()
            tierd.wait(PATIENCE)
        page.wait_for("document.getElementById('notice').innerText.includes('has not answered since')", "the end is said")
        wrong = page.mistakes()
        expect(not wrong, f"in the browser: {wrong}")
    return findings.end()


parser = argparse.ArgumentParser()
for argument in ("--marud", "--tierd", "--marudctl", "--client", "--prefetch"):
    parser.add_argument(argument, required=True)
parser.add_argument("--pictures", help="a folder for what the page looks like")
arguments = parser.parse_args()

if __name__ == "__main__":
    if browser.PROGRAM is None:
        print("chromium is not here: scripts/install-packages page installs it")
        sys.exit(77)
    sys.exit(main())
