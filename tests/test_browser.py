"""The built book in a browser: no errors, nothing from outside, readable at every width and in the dark."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import DESKTOP, DESKTOP_DARK, PHONE, PHONE_DARK, Browser, Look, find_chromium
from tests.pages import keyboard_problems, problems
from tests.smoke import HTML, require_smoke_build, unavailable

pytestmark = pytest.mark.browser

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
SEARCH = """new Promise((resolve, reject) => {
  const hits = () => [...document.querySelectorAll('#search-results li a')].map(a => a.textContent);
  const done = () => hits().length > 0 && resolve(hits());
  new MutationObserver(done).observe(document.body, {childList: true, subtree: true});
  setTimeout(() => reject(new Error('no result')), 20000);
  done();
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        unavailable("no Chromium or Chrome is installed")
    else:
        with Browser(path) as chromium:
            yield chromium


def built_pages() -> list[str]:
    """All but the front door, which is nothing but a redirection."""
    pages = (path.relative_to(HTML) for path in HTML.rglob("*.html") if "_static" not in path.parts)
    return sorted(page.as_posix() for page in pages if page != Path("index.html"))


def test_front_door_leads_to_the_landing_page() -> None:
    assert "url=book/index.html" in (require_smoke_build() / "index.html").read_text()


@pytest.mark.parametrize("page", built_pages() or ["book/index.html"])
def test_page_is_sound_on_a_phone_in_the_dark_and_on_a_desktop(browser: Browser, page: str) -> None:
    root = require_smoke_build()
    assert problems(browser.visit((root / page).as_uri(), PHONE_DARK, DESKTOP), root) == []


def test_dark_mode_is_dark(browser: Browser) -> None:
    address = (require_smoke_build() / "book" / "index.html").as_uri()
    looks = browser.visit(address, DESKTOP, DESKTOP_DARK).looks
    assert min(looks[DESKTOP]["ground"]) > 192
    assert max(looks[DESKTOP_DARK]["ground"]) < 64


def test_every_chapter_has_a_figure() -> None:
    for chapter in sorted((require_smoke_build() / "book").glob("[0-9]*.html")):
        assert re.search(r"<img [^>]*src=\"../_images/", chapter.read_text(encoding="utf-8")), chapter.name


@pytest.mark.parametrize("words", ["utilization", "V-trace"])
def test_search_finds_a_word_without_a_server(browser: Browser, words: str) -> None:
    root = require_smoke_build()
    visit = browser.visit((root / "search.html").as_uri() + f"?q={words}", script=SEARCH)
    assert "Glossary" in visit.value
    assert problems(visit, root) == []


@pytest.mark.parametrize("look", [PHONE, DESKTOP])
def test_the_keyboard_reaches_the_search(browser: Browser, look: Look) -> None:
    """The button by tabulator, and by it the field."""
    address = (require_smoke_build() / "book" / "index.html").as_uri()
    stops = browser.visit(address, look, keys=["Tab"] * 12).focus
    assert keyboard_problems(stops) == []
    pressed = ["Tab"] * (stops.index("search button") + 1)
    assert browser.visit(address, look, keys=[*pressed, "Enter"]).focus[-1] == "search field"


def write(tmp_path: Path, body: str, style: str = "", head: str = "<title>Page</title>") -> str:
    """A page that is sound but for what is planted; a heading of its own replaces the sound one."""
    heading = "" if "<h1" in body else "<h1>Heading</h1>"
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{head}<style>{style}</style>{heading}<p>Two words</p>{body}")
    return page.as_uri()


SOUND = f"""
<img alt='one grey pixel' src='{PIXEL}'>
<pre style='overflow-x:auto'>{"wide " * 99}</pre>
<div style='overflow-x:auto'><table><tr><td style='white-space:nowrap'>{"wide " * 99}</table></div>
<p id=here><a href='#here'>anchor</a> <a href='page.html#here'>page</a> <a href='https://planted.invalid/'>outside</a>
"""


def test_checker_accepts_a_sound_page(browser: Browser, tmp_path: Path) -> None:
    assert problems(browser.visit(write(tmp_path, SOUND), PHONE, PHONE_DARK), tmp_path) == []


WIDE_TABLE = f"<table><tr><td style='white-space:nowrap'>{'wide ' * 99}</table>"


@pytest.mark.parametrize(
    ("body", "style", "expected"),
    [
        ("<script>console.error('planted')</script>", "", "console error: planted"),
        ("<script>undefined.planted()</script>", "", "console error: TypeError"),
        ("<script>Promise.reject(new Error('planted'))</script>", "", "console error: Error: planted"),
        (
            "<script src='http://127.0.0.1:9/a.js'></script>",
            "",
            "request to the outside: http://127.0.0.1:9/a.js",
        ),
        (
            "<script>fetch('https://planted.invalid/')</script>",
            "",
            "request to the outside: https://planted.invalid/",
        ),
        ("<img alt='passwords' src='file:///etc/passwd'>", "", "request to the outside: file:///etc/passwd"),
        ("<link rel=stylesheet href='missing.css'>", "", "failed request: "),
        ("<img alt='missing' src='missing.png'>", "", "image not loaded: "),
        (
            "<img alt='far down' loading=lazy src='missing.png' style='margin-top:9000px'>",
            "",
            "image not loaded: ",
        ),
        (f"<img src='{PIXEL}'>", "", "image without alt text"),
        (f"<img alt=' ' src='{PIXEL}'>", "", "image without alt text"),
        (f"<img alt='../_images/a-b_1.png' src='{PIXEL}'>", "", "image with a file's name as alt text: ../_images/a"),
        (f"<img alt='{'0f' * 32}' src='{PIXEL}'>", "", "image with a file's name as alt text: 0f"),
        (f"<img alt='a plot' src='{PIXEL}'>", "", "image with alt text of fewer than 3 words: a plot"),
        ("<div style='width:600px'>wide</div>", "", "wider than the window"),
        ("<div style='width:600px'>wide</div>", "html {overflow-x: clip}", "cut off at the right: div"),
        (WIDE_TABLE, "", "wider than the window"),
        (WIDE_TABLE, "html {overflow-x: clip}", "cut off at the right: table"),
        (WIDE_TABLE, "body {overflow-x: auto; width: 300px}", "sticks out of its column: table"),
        (f"<div style='overflow:hidden'>{WIDE_TABLE}</div>", "", "hides a part of its text: table"),
        (f"<pre>{'wide ' * 99}</pre>", "pre {overflow: hidden}", "hides a part of its text: pre"),
        (
            f"<pre>{'wide ' * 99}</pre>",
            "pre {overflow: hidden; text-overflow: ellipsis}",
            "hides a part of its text: pre",
        ),
        (f"<pre>{'line<br>' * 99}</pre>", "pre {overflow-y: clip; height: 90px}", "hides a part of its text: pre"),
        ("<p>grey</p>", "p {color: #999; background: #fff}", "contrast 2.8, below 4.5: p"),
        ("", "p, h1 {display: none}", "empty page"),
        ("<h1>One</h1><h1>Another</h1>", "", "headings of the first level: ['One', 'Another']"),
        ("<h1> </h1>", "", "headings of the first level: ['']"),
        ("<a href='missing.html'>link</a>", "", "link to a missing page: file:"),
        ("<a href='.'>folder</a>", "", "link to a missing page: file:"),
        ("<a href='page.html#missing'>link</a>", "", "link to a missing anchor: file:"),
        ("<a href='#missing'>link</a>", "", "link to a missing anchor: file:"),
        ("<a href='/etc/passwd'>link</a>", "", "link out of the book: file:"),
    ],
)
def test_checker_sees(browser: Browser, tmp_path: Path, body: str, style: str, expected: str) -> None:
    found = problems(browser.visit(write(tmp_path, body, style), PHONE), tmp_path)
    assert any(line.startswith(expected) for line in found), found


def test_checker_sees_a_page_without_a_title(browser: Browser, tmp_path: Path) -> None:
    assert problems(browser.visit(write(tmp_path, "", head=""), PHONE), tmp_path) == ["no title"]


def test_checker_sees_text_that_only_the_dark_hides(browser: Browser, tmp_path: Path) -> None:
    """Also where one visit shows both, and the change takes its time."""
    style = "@media (prefers-color-scheme: dark) {body {background: #111}} body {transition: background 9s}"
    visit = browser.visit(write(tmp_path, "", style), DESKTOP, DESKTOP_DARK)
    found = problems(visit, tmp_path)
    assert found
    assert all("contrast" in line and line.endswith("(1280 pixels, dark)") for line in found)


def test_checker_sees_code_that_scrolls_sideways_on_a_desktop_only(browser: Browser, tmp_path: Path) -> None:
    """A phone is too narrow for code: there it scrolls in its box."""
    url = write(tmp_path, f"<div style='overflow-x:auto'><pre>{'x' * 500}</pre></div>")
    found = problems(browser.visit(url, PHONE, DESKTOP), tmp_path)
    assert len(found) == 1
    assert found[0].startswith("code scrolls sideways: pre")
    assert found[0].endswith("(1280 pixels, light)")


@pytest.mark.parametrize(
    ("field", "reached"),
    [
        ("<input type=search>", True),
        ("<input type=search tabindex=-1>", False),
        ("<input type=search disabled>", False),
    ],
)
def test_checker_sees_a_search_that_the_keyboard_misses(
    browser: Browser, tmp_path: Path, field: str, reached: bool
) -> None:
    visit = browser.visit(write(tmp_path, f"<a href='#'>link</a>{field}"), keys=["Tab"] * 4)
    assert (keyboard_problems(visit.focus) == []) == reached
