"""A real browser without a screen: Debian's chromium, driven over two pipes with the protocol of its developer tools."""
import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE = 120  # seconds; a browser on a busy machine starts slowly
PROGRAM = shutil.which("chromium")


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="maru-browser-", ignore_cleanup_errors=True)
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()
        self.log = open(pathlib.Path(self.folder.name) / "log", "wb+")
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-background-networking",
                   "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                   f"--user-data-dir={self.folder.name}/profile", "about:blank"]
        # It reads commands from descriptor 3 and writes to 4. A session of its own, so that all of it can be ended.
        as_3_and_4 = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(["bash", "-c", as_3_and_4, "bash", PROGRAM, *options], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL, pass_fds=(to_read, to_write), start_new_session=True,
                                        env={**os.environ, "HOME": self.folder.name})
        os.close(to_read)
        os.close(to_write)
        self.unread, self.last_id = b"", 0
        self.events = []  # what was not an answer
        target = self.command("Target.createTarget", url="about:blank", background=False)["targetId"]
        self.session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE)
        os.close(self.to_browser)
        os.close(self.from_browser)
        self.log.close()
        self.folder.cleanup()

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def message(self, deadline):
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.from_browser], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.from_browser, 1 << 20) if ready else b""
            if not data:
                raise SystemExit(f"the browser {'ended' if ready else 'does not answer'}:\n{self.said()}")
            self.unread += data
        text, self.unread = self.unread.split(b"\0", 1)
        return json.loads(text)

    def command(self, method, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if not method.startswith("Target."):
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.message(deadline)
            if answer.get("id") != self.last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise SystemExit(f"{method}: the browser says {answer['error']}")
            else:
                return answer["result"]

    def open(self, address):
        self.command("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'", f"{address} is loaded")

    def value(self, expression):
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression, what, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.1)
        raise SystemExit(f"waited in vain until {what}: {expression}; the page shows\n{self.value('document.body.innerText')}")

    def screen(self, width, height, is_phone=False, scheme="light"):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1,
                     mobile=is_phone)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def misfits(self, picture=lambda name: None):
        """What of the page goes beyond the edges of a phone and of a desk, or has not the ground of the scheme."""
        found = []
        for name, width, height, is_phone, scheme in (("phone-light", 360, 740, True, "light"),
                                                      ("phone-dark", 360, 740, True, "dark"),
                                                      ("desk-light", 1200, 900, False, "light"),
                                                      ("desk-dark", 1200, 900, False, "dark")):
            self.screen(width, height, is_phone, scheme)
            self.wait_for(f"innerWidth === {width}", f"the window is {width} wide")
            # What was drawn for another width goes with the next picture.
            self.wait_for(f"document.documentElement.scrollWidth <= {width}", f"{name}: all of it fits")
            out = self.value("[...document.querySelectorAll('main *')].filter((one) => "
                             f"one.getBoundingClientRect().right > {width} + 1)"
                             ".map((one) => one.tagName + ' ' + one.className).slice(0, 5)")
            if out:
                found.append(f"{name}: beyond the right edge: {out}")
            is_dark = self.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
                                 ".every((part) => part < 80)")
            if is_dark != (scheme == "dark"):
                found.append(f"{name}: the ground is {'dark' if is_dark else 'light'}")
            picture(name)
        return found

    def mistakes(self):
        """What went wrong inside: exceptions, and what the browser refused or complained of."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] != "network":
                found.append(str(event["params"]["entry"]))
        return found

    def addresses(self):
        """Everything that was asked of a network."""
        return {event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"}
