"""A real Prometheus reads a real marud, over TCP with the token that may only look: what it then knows is what was done, every
question of the dashboard has an answer, and the alert for a pool that does not serve fires. Ends with 77 where there is no
Prometheus.

  prometheus_test.py --marud PROGRAM --client PROGRAM --monitoring docs/monitoring
"""
import argparse
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, BlockClient, Findings, ObservedMarud, wait_for  # noqa: E402

CONFIG = """
global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: marud
    static_configs: [{{targets: ["{target}"]}}]
    authorization: {{credentials_file: "{token}"}}
  - job_name: stranger
    static_configs: [{{targets: ["{target}"]}}]
"""
findings = Findings()
expect = findings.expect


class Prometheus:
    def __init__(self, folder, config):
        self.folder, self.config = folder, config
        self.log = folder / "prometheus.log"

    def __enter__(self):
        for _ in range(5):
            self.start()
            wait_for(lambda: self.process.poll() is not None or self.get("/api/v1/status/buildinfo")["status"] == "success",
                     "Prometheus")
            if self.process.poll() is None:
                return self
            # Whoever looked for a port at the same moment may have taken this one.
            if "address already in use" not in self.log.read_text():
                break
        raise SystemExit("Prometheus ended:\n" + self.log.read_text())

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address={self.address}"], stdout=log, stderr=log)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def get(self, path, **query):
        url = f"http://{self.address}{path}" + ("?" + urllib.parse.urlencode(query) if query else "")
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            return {"status": "not there"} if error.code == 503 else json.loads(error.read())  # it starts
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {"status": "not there"}

    def query(self, text):
        """The value, nothing without one; a wrong question ends the test."""
        reply = self.get("/api/v1/query", query=text)
        if reply["status"] == "not there":
            return None
        if reply["status"] != "success":
            raise SystemExit(f"{text}: {reply}")
        result = reply["data"]["result"]
        return float(result[0]["value"][1]) if result else None


def questions_of(dashboard):
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$pool", ".*")


def main():
    for program in ("prometheus", "promtool"):
        if not shutil.which(program):
            print(f"{program} is not here (Debian package prometheus): marud was not scraped by a real one")
            return 77
    monitoring = pathlib.Path(arguments.monitoring)
    checked = subprocess.run(["promtool", "check", "rules", monitoring / "alerts.yml"], capture_output=True, text=True,
                             timeout=PATIENCE)
    expect(checked.returncode == 0, checked.stdout + checked.stderr)

    pool_file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="maru-prometheus-", delete=False)
    pool_file.close()
    pathlib.Path(pool_file.name).unlink()
    with tempfile.TemporaryDirectory(prefix="maru-prometheus-") as name, \
            ObservedMarud(arguments.marud, tcp=True, more=f'[[pool]]\nname = "second"\nbackend = "file"\n'
                          f'path = "{pool_file.name}"\nsize = "2MiB"\npage_bytes = "4KiB"\nregion_bytes = "64KiB"\nlanes = 4\n'
                          'pins = 64\ntouch_entries = 64\n') as marud, \
            BlockClient(arguments.client, marud) as client:
        folder = pathlib.Path(name)
        # Alerts wait for minutes, which a test does not.
        rules = folder / "alerts.yml"
        rules.write_text(re.sub(r"^(\s+for:) \w+$", r"\1 0s", (monitoring / "alerts.yml").read_text(), flags=re.MULTILINE))
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(rules=rules, target=f"{marud.host}:{marud.port}", token=marud.read_token_file))
        metrics = subprocess.run(["promtool", "check", "metrics"], input=marud.http("GET", "/metrics").text,
                                 capture_output=True, text=True, timeout=PATIENCE)
        serious = [line for line in (metrics.stdout + metrics.stderr).splitlines()
                   if not line.startswith(("ruvector_", "lmcache_", "kvbm_"))]  # the names are others'
        expect(metrics.returncode in (0, 3) and not serious, f"promtool check metrics: {serious}")

        with Prometheus(folder, config) as prometheus:
            wait_for(lambda: prometheus.query('up{job="marud"}') == 1, "the first scrape")
            wait_for(lambda: prometheus.query('up{job="stranger"}') == 0, "the refusal of a scrape without the token")
            marud.http("PUT", "/quota/alice?pool=default", {"limit_gb": 1, "hard_limit_gb": 2})
            client.ask("fill k 9 4096"), client.ask("store t 4096 alice")
            for key in ("k0", "k1", "never"):
                client.ask(f"retrieve {key}")
            wait_for(lambda: prometheus.query('maru_stores_total{job="marud",pool="default"}') == 10, "ten stores")
            wait_for(lambda: prometheus.query('maru_retrieves_total{job="marud",pool="default",result="hit"}') == 2, "two hits")
            wait_for(lambda: prometheus.query('lmcache_mp_l1_read_total{pool="default"}') == 2, "the same by another name")
            dashboard = json.loads((monitoring / "grafana-dashboard.json").read_text())
            wait_for(lambda: prometheus.query('rate(maru_stores_total{pool="default"}[5m])') is not None, "a rate")
            wait_for(lambda: prometheus.query('increase(maru_tenant_refusals_total{tenant="alice"}[5m])') is not None,
                     "a rate of a tenant")
            # A scrape that a slow machine has no time for leaves a gap in every answer until the next one.
            for title, question in questions_of(dashboard):
                wait_for(lambda question=question: prometheus.query(question) is not None, f"an answer to {title}: {question}")

            rules_known = prometheus.get("/api/v1/rules")["data"]["groups"][0]["rules"]
            expect(len(rules_known) == 13 and all(rule["health"] in ("ok", "unknown") for rule in rules_known),
                   [rule["health"] for rule in rules_known])
            with open(pool_file.name, "r+b") as file:
                file.truncate(4096)

            def fires(name, **labels):
                alerts = prometheus.get("/api/v1/alerts")["data"]["alerts"]
                return any(alert["labels"]["alertname"] == name and alert["state"] == "firing" and
                           labels.items() <= alert["labels"].items() for alert in alerts)
            wait_for(lambda: fires("MarudPoolNotServing", pool="second"), "the alert for a pool that does not serve")
            wait_for(lambda: not fires("MarudAbsent"), "marud is there")  # a late answer lets it fire for a moment
            marud.process.kill()
            wait_for(lambda: fires("MarudAbsent", instance=f"{marud.host}:{marud.port}"), "the alert that names who is gone")
        pathlib.Path(pool_file.name).unlink(missing_ok=True)
    return findings.end()


parser = argparse.ArgumentParser()
for option in ("--marud", "--client", "--monitoring"):
    parser.add_argument(option, required=True)
arguments = parser.parse_args()

if __name__ == "__main__":
    sys.exit(main())
