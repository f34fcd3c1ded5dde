"""Headless Chromium over the DevTools protocol: visit a built page, and say what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The pages are our own, so no sandbox is needed; root, as in most CI, couldn't have one.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE_S = 60.0  # for one answer of the browser; a loaded machine is slow, a hung browser must end the test
READABLE = 4.5  # the contrast ratio that WCAG 2.1 asks of body text
PHONE, DESKTOP = 390, 1280

SETTLE = """(async () => {
  for (const image of document.images) image.loading = 'eager';
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  if (window.MathJax?.startup?.promise) await window.MathJax.startup.promise;
  await document.fonts.ready;
})()"""

# Content that is folded, or that only assistive technology reads, has no size and no colour to judge.
MEASURE = """(readable => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] > 127) return colour;
    }
    return [255, 255, 255, 255];
  };
  const contrast = e => {
    const pair = [light(rgba(getComputedStyle(e).color)), light(ground(e))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  const scope = document.querySelector('article, main') ?? document.body;
  const visible = e => e.checkVisibility({visibilityProperty: true, opacityProperty: true})
    && e.getClientRects().length > 0 && !e.closest('mjx-assistive-mml');
  const all = [...scope.querySelectorAll('*')].filter(visible);
  const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const name = e => e.tagName.toLowerCase() + ' "' + (e.textContent ?? '').trim().slice(0, 40) + '"';
  const scrolls = e => {
    for (let p = e.parentElement; p; p = p.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(p).overflowX)) return true;
    return false;
  };
  return {
    images: [...document.images].map(i => ({
      src: i.currentSrc || i.src,
      alt: i.getAttribute('alt') ?? '',
      loaded: i.complete && i.naturalWidth > 0,
    })),
    overflow: document.documentElement.scrollWidth > innerWidth,
    wide: all.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e)).map(name),
    faint: all.filter(own).map(e => ({what: name(e), ratio: contrast(e)})).filter(e => e.ratio < readable),
    words: scope.innerText.split(/\\s+/).length,
  };
})"""


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Visit:
    """What a page did while it loaded, and what it looks like."""

    url: str
    console: list[str] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)  # id -> address
    pending: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    look: dict[str, Any] = field(default_factory=dict)
    value: Any = None

    def observe(self, method: str, event: dict[str, Any]) -> None:
        """Take note of one event of the protocol."""
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.console.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests[event["requestId"]] = event["request"]["url"]
            self.pending.add(event["requestId"])
        elif method == "Network.loadingFinished":
            self.pending.discard(event["requestId"])
        elif method == "Network.loadingFailed":
            self.pending.discard(event["requestId"])
            self.failed.append(f"{self.requests.get(event['requestId'])}: {event['errorText']}")
        elif method == "Network.responseReceived" and event["response"]["status"] >= 400:
            self.failed.append(f"{event['response']['url']}: status {event['response']['status']}")


def problems(visit: Visit, root: Path) -> list[str]:
    """Everything that is wrong with a visited page of the book in `root`, each as one line."""
    inside = (root.resolve().as_uri() + "/", "data:", "blob:", "about:")
    outside = [url for url in visit.requests.values() if not url.startswith(inside)]
    found = [f"console error: {text}" for text in visit.console]
    found += [f"request to the outside: {url}" for url in outside]
    found += [f"failed request: {text}" for text in visit.failed]
    found += [f"image not loaded: {i['src']}" for i in visit.look["images"] if not i["loaded"]]
    found += [f"image without alt text: {i['src']}" for i in visit.look["images"] if not i["alt"].strip()]
    found += ["wider than the window"] if visit.look["overflow"] else []
    found += [f"cut off at the right: {what}" for what in visit.look["wide"]]
    found += [f"contrast {f['ratio']:.1f}, below {READABLE}: {f['what']}" for f in visit.look["faint"]]
    return found + ([] if visit.look["words"] > 1 else ["empty page"])


class Browser:
    """A Chromium of its own, with a fresh profile; a context manager."""

    def __init__(self, path: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.log = Path(self.profile.name) / "log"
        command = [path, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_environment()
        )
        self.address = self._address()
        self.connection = Connection(self.address)

    def _address(self) -> str:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "DevTools listening on " in line:
                return line.split("DevTools listening on ")[1].strip()
        raise RuntimeError("Chromium didn't start:\n" + "".join(lines))

    def visit(self, url: str, *, width: int = DESKTOP, dark: bool = False, script: str | None = None) -> Visit:
        """Open a page in a window of that width, wait until it is complete, run a script, measure."""
        target = self.connection.send("Target.createTarget", url="about:blank")["targetId"]
        page = Connection(self.address.split("/devtools/")[0] + f"/devtools/page/{target}")
        try:
            return _visit(page, Visit(url), width, dark, script)
        finally:
            page.close()
            self.connection.send("Target.closeTarget", targetId=target)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.send("Browser.close")
        self.connection.close()
        assert self.process.stderr is not None
        self.process.stderr.read()
        self.process.stderr.close()
        self.process.wait(PATIENCE_S)
        self.profile.cleanup()


class Connection:
    """One websocket to the browser, or to one of its pages."""

    def __init__(self, address: str) -> None:
        self.socket = websocket.create_connection(
            address, timeout=PATIENCE_S, suppress_origin=True, http_no_proxy=["127.0.0.1"]
        )
        self.visit: Visit | None = None
        self.seen: set[str] = set()
        self.last = 0

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask, and return the answer; events that come meanwhile are noted."""
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": parameters}))
        while (message := self._next()).get("id") != self.last:
            pass
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return dict(message["result"])

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, method: str) -> None:
        """Read events until one of that name has come."""
        while method not in self.seen:
            self._next()

    def drain(self, visit: Visit) -> None:
        """Read events until every request has ended; one that doesn't in time has failed."""
        try:
            while visit.pending:
                self._next()
        except websocket.WebSocketTimeoutException:
            visit.failed += [f"{visit.requests[i]}: never ended" for i in sorted(visit.pending)]

    def close(self) -> None:
        """Close the websocket."""
        self.socket.close()

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv())
        if "method" in message:
            self.seen.add(message["method"])
            if self.visit is not None:
                self.visit.observe(message["method"], message["params"])
        return message


def _visit(page: Connection, visit: Visit, width: int, dark: bool, script: str | None) -> Visit:
    page.visit = visit
    for domain in ("Page", "Runtime", "Log", "Network"):
        page.send(f"{domain}.enable")
    page.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.send("Emulation.setEmulatedMedia", features=[scheme])
    page.send("Page.navigate", url=visit.url)
    page.until("Page.loadEventFired")
    page.evaluate(SETTLE)
    page.drain(visit)
    if script is not None:
        visit.value = page.evaluate(script)
        page.drain(visit)
    visit.look = page.evaluate(f"{MEASURE}({READABLE})")
    return visit


def _environment() -> dict[str, str]:
    """This environment without proxies: nothing that a page asks for may come from outside."""
    return {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
