"""The built book in a browser: no errors, nothing from outside, readable at every width and in the dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import PHONE, Browser, find_chromium, problems
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
def test_page_is_sound_on_a_phone_in_the_dark(browser: Browser, page: str) -> None:
    root = require_smoke_build()
    assert problems(browser.visit((root / page).as_uri(), width=PHONE, dark=True), root) == []


# The pages of the reference are all made alike: one of them is enough.
@pytest.mark.parametrize("page", [page for page in built_pages() if "/api/" not in page] + ["book/api/hybridrl.html"])
def test_page_is_sound_on_a_desktop(browser: Browser, page: str) -> None:
    root = require_smoke_build()
    assert problems(browser.visit((root / page).as_uri()), root) == []


def test_dark_mode_is_dark(browser: Browser) -> None:
    root = require_smoke_build()
    script = "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    address = (root / "book" / "index.html").as_uri()
    assert max(browser.visit(address, dark=True, script=script).value) < 64
    assert min(browser.visit(address, script=script).value) > 192


def test_every_chapter_has_a_figure(browser: Browser) -> None:
    root = require_smoke_build()
    for chapter in sorted((root / "book").glob("[0-9]*.html")):
        visit = browser.visit(chapter.as_uri())
        assert any("_images" in image["src"] for image in visit.look["images"]), chapter.name


def test_search_finds_a_word_without_a_server(browser: Browser) -> None:
    root = require_smoke_build()
    visit = browser.visit((root / "search.html").as_uri() + "?q=utilization", script=SEARCH)
    assert "Glossary" in visit.value
    assert problems(visit, root) == []


def write(tmp_path: Path, body: str, style: str = "") -> str:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style><p>Two words</p>{body}")
    return page.as_uri()


def test_checker_accepts_a_sound_page(browser: Browser, tmp_path: Path) -> None:
    url = write(tmp_path, f"<img alt='a pixel' src='{PIXEL}'><pre style='overflow-x:auto'>{'wide ' * 99}</pre>")
    assert problems(browser.visit(url, width=PHONE), tmp_path) == []


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
        ("<div style='width:600px'>wide</div>", "", "wider than the window"),
        ("<div style='width:600px'>wide</div>", "html {overflow-x: clip}", "cut off at the right: div"),
        ("<p>grey</p>", "p {color: #999; background: #fff}", "contrast 2.8, below 4.5: p"),
        ("", "p {display: none}", "empty page"),
    ],
)
def test_checker_sees(browser: Browser, tmp_path: Path, body: str, style: str, expected: str) -> None:
    found = problems(browser.visit(write(tmp_path, body, style), width=PHONE), tmp_path)
    assert any(line.startswith(expected) for line in found), found


def test_checker_sees_text_that_only_the_dark_hides(browser: Browser, tmp_path: Path) -> None:
    style = "@media (prefers-color-scheme: dark) {body {background: #111}}"
    url = write(tmp_path, "", style)
    assert problems(browser.visit(url), tmp_path) == []
    assert "contrast" in problems(browser.visit(url, dark=True), tmp_path)[0]
