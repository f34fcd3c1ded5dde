"""Headless Chromium over the DevTools protocol: visit a built page, and say what it does and looks like.

What is wrong with a visited page is in ``tests/pages.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Look:
    """A window's width in pixels, and the scheme that the reader prefers."""

    width: int
    dark: bool = False

    def __str__(self) -> str:
        return f"{self.width} pixels, {'dark' if self.dark else 'light'}"


PHONE, PHONE_DARK, DESKTOP, DESKTOP_DARK = Look(390), Look(390, dark=True), Look(1280), Look(1280, dark=True)

SETTLE = """(async () => {
  for (const image of document.images) image.loading = 'eager';
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  if (window.MathJax?.startup?.promise) await window.MathJax.startup.promise;
  await document.fonts.ready;
})()"""

# A change of scheme or width is over when a frame has been drawn and no colour is on its way any more.
REDRAWN = """new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => {
  for (const running of document.getAnimations()) try { running.finish(); } catch { /* it never ends */ }
  resolve();
})))"""

# Content that is folded, or that only assistive technology reads, has no size and no colour to judge.
MEASURE = """(readable => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const rgba = colour => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
      known.set(colour, [...canvas.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(colour);
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
  const moves = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  const upwards = e => {  // from the element to the column that holds it, which is no box of its own
    const found = [];
    for (let p = e; p && p !== scope; p = p.parentElement) found.push(p);
    return found;
  };
  const scrolls = e => upwards(e).some(moves);
  const cuts = e => {
    const {overflowX, overflowY} = getComputedStyle(e);
    const hides = value => ['hidden', 'clip'].includes(value);
    return (hides(overflowX) && e.scrollWidth > e.clientWidth + 1)
      || (hides(overflowY) && e.scrollHeight > e.clientHeight + 1);
  };
  const boxes = all.filter(e => e.matches('pre, table'));
  const edge = Math.min(scope.getBoundingClientRect().right, innerWidth) + 1;
  return {
    ground: rgba(getComputedStyle(document.body).backgroundColor).slice(0, 3),
    overflow: document.documentElement.scrollWidth > innerWidth,
    wide: all.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement)).map(name),
    outside: boxes.filter(e => e.getBoundingClientRect().right > edge && !scrolls(e.parentElement)).map(name),
    hidden: boxes.filter(e => upwards(e).some(cuts)).map(name),
    sideways: all.filter(e => e.matches('pre') && upwards(e).some(p => moves(p) && p.scrollWidth > p.clientWidth + 1))
      .map(name),
    faint: all.filter(own).map(e => ({what: name(e), ratio: contrast(e)})).filter(e => e.ratio < readable),
    words: scope.innerText.split(/\\s+/).length,
  };
})"""

# What doesn't change with the window.
CONTENT = """({
  title: document.title.trim(),
  // The theme keeps a copy for print, which the screen doesn't show.
  headings: [...document.querySelectorAll('h1')].filter(h => h.checkVisibility()).map(h => h.textContent.trim()),
  images: [...document.images].map(i => ({
    src: i.currentSrc || i.src,
    alt: (i.getAttribute('alt') ?? '').trim(),
    loaded: i.complete && i.naturalWidth > 0,
    content: (document.querySelector('article, main') ?? document.body).contains(i),
  })),
  links: [...document.querySelectorAll('a[href]')].map(a => a.href),
})"""

FOCUS = """(e => {
  if (e.matches('input[type=search], input[name=q]')) return 'search field';
  if (e.matches('.search-button, .search-button__button')) return 'search button';
  return e.tagName.toLowerCase() + ' "' + (e.ariaLabel ?? e.textContent ?? '').trim().slice(0, 40) + '"';
})(document.activeElement ?? document.body)"""
KEYS = {"Tab": 9, "Enter": 13}


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
    content: dict[str, Any] = field(default_factory=dict)
    looks: dict[Look, dict[str, Any]] = field(default_factory=dict)
    focus: list[str] = field(default_factory=list)  # after each key
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
        elif method == "Network.loadingFailed" and event["requestId"] in self.requests:
            self.pending.discard(event["requestId"])
            self.failed.append(f"{self.requests.get(event['requestId'])}: {event['errorText']}")
        elif method == "Network.responseReceived" and event["response"]["status"] >= 400:
            self.failed.append(f"{event['response']['url']}: status {event['response']['status']}")


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
        self.page = self._tab()

    def _address(self) -> str:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "DevTools listening on " in line:
                return line.split("DevTools listening on ")[1].strip()
        raise RuntimeError("Chromium didn't start:\n" + "".join(lines))

    def visit(self, url: str, *looks: Look, script: str | None = None, keys: Sequence[str] = ()) -> Visit:
        """Open a page, wait until it is complete, run a script, press keys, and measure it in each look."""
        # One tab serves all: a new one a page took a quarter longer.
        self.page.visit = visit = Visit(url)
        self.page.seen.clear()
        return _visit(self.page, visit, looks or (DESKTOP,), script, keys)

    def _tab(self) -> Connection:
        target = self.connection.send("Target.createTarget", url="about:blank")["targetId"]
        page = Connection(self.address.split("/devtools/")[0] + f"/devtools/page/{target}")
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        return page

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.page.close()
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


def _visit(page: Connection, visit: Visit, looks: Sequence[Look], script: str | None, keys: Sequence[str]) -> Visit:
    _show(page, looks[0])
    page.send("Page.navigate", url=visit.url)
    page.until("Page.loadEventFired")
    page.evaluate(SETTLE)
    page.drain(visit)
    if script is not None:
        visit.value = page.evaluate(script)
        page.drain(visit)
    visit.focus = [_press(page, key) for key in keys]
    visit.content = page.evaluate(CONTENT)
    for look in looks:
        _show(page, look)
        page.evaluate(REDRAWN)
        visit.looks[look] = page.evaluate(f"{MEASURE}({READABLE})")
    page.drain(visit)
    return visit


def _show(page: Connection, look: Look) -> None:
    page.send("Emulation.setDeviceMetricsOverride", width=look.width, height=900, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
    page.send("Emulation.setEmulatedMedia", features=[scheme])


def _press(page: Connection, key: str) -> str:
    """Press and release a key; returns what has the focus then."""
    text = {"text": "\r"} if key == "Enter" else {}
    code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
    page.send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
    page.send("Input.dispatchKeyEvent", type="keyUp", **code)
    return str(page.evaluate(FOCUS))


def _environment() -> dict[str, str]:
    """This environment without proxies: nothing that a page asks for may come from outside."""
    return {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
