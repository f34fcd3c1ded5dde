"""What is wrong with a page of the book that a browser has visited."""

from __future__ import annotations

import re
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from tests.browser import READABLE, Look, Visit

FILE_NAME = re.compile(r"[\w./%-]*\.(png|svg|jpe?g|gif|webp)|[0-9a-f]{16,}|image|figure|img", re.IGNORECASE)
FEWEST_WORDS = 3  # that describe an image of the text; a logo has its name
FROM_DESKTOP = 1000  # pixels: from here on a line of code fits, and a reader needn't scroll for its end
SEARCH = ("search button", "search field")


def problems(visit: Visit, root: Path) -> list[str]:
    """Everything that is wrong with a visited page of the book in `root`, each as one line."""
    inside = (root.resolve().as_uri() + "/", "data:", "blob:", "about:")
    outside = [url for url in visit.requests.values() if not url.startswith(inside)]
    found = [f"console error: {text}" for text in visit.console]
    found += [f"request to the outside: {url}" for url in outside]
    found += [f"failed request: {text}" for text in visit.failed]
    found += structure(visit) + images(visit) + broken_links(visit, root)
    for look, measured in visit.looks.items():
        found += [f"{problem} ({look})" for problem in looks_wrong(look, measured)]
    return found


def structure(visit: Visit) -> list[str]:
    """A page without a title, or without its one heading."""
    headings = visit.content["headings"]
    found = [] if visit.content["title"] else ["no title"]
    return found + ([] if len(headings) == 1 and headings[0] else [f"headings of the first level: {headings}"])


def images(visit: Visit) -> list[str]:
    """Images that didn't load, or that say nothing to who can't see them."""
    found = []
    for image in visit.content["images"]:
        alt = image["alt"]
        if not image["loaded"]:
            found.append(f"image not loaded: {image['src']}")
        if not alt:
            found.append(f"image without alt text: {image['src']}")
        elif FILE_NAME.fullmatch(alt):
            found.append(f"image with a file's name as alt text: {alt}")
        elif image["content"] and len(alt.split()) < FEWEST_WORDS:
            found.append(f"image with alt text of fewer than {FEWEST_WORDS} words: {alt}")
    return found


def looks_wrong(look: Look, measured: dict[str, object]) -> list[str]:
    """What can't be seen or read at one width, in one scheme."""
    lines = {
        "wide": "cut off at the right",
        "outside": "sticks out of its column",
        "hidden": "hides a part of its text",
        **({"sideways": "code scrolls sideways"} if look.width >= FROM_DESKTOP else {}),
    }
    found = ["wider than the window"] if measured["overflow"] else []
    found += [f"{problem}: {what}" for key, problem in lines.items() for what in measured[key]]  # type: ignore[attr-defined]
    found += [f"contrast {f['ratio']:.1f}, below {READABLE}: {f['what']}" for f in measured["faint"]]  # type: ignore[attr-defined]
    return found + ([] if measured["words"] > 1 else ["empty page"])  # type: ignore[operator]


def broken_links(visit: Visit, root: Path) -> list[str]:
    """Links into the book whose page or anchor isn't there, and links to files elsewhere."""
    return [problem for url in dict.fromkeys(visit.content["links"]) if (problem := _broken(url, root.resolve()))]


def _broken(url: str, root: Path) -> str | None:
    address, anchor = urldefrag(url)
    if urlsplit(address).scheme != "file":
        return None
    path = Path(unquote(urlsplit(address).path))
    if not path.is_relative_to(root):
        return f"link out of the book: {url}"
    if not path.is_file():
        return f"link to a missing page: {url}"
    if anchor and unquote(anchor) not in anchors(path):
        return f"link to a missing anchor: {url}"
    return None


@lru_cache
def anchors(path: Path) -> frozenset[str]:
    """The names that links to a page may end with."""
    reader = _Anchors()
    reader.feed(path.read_text(encoding="utf-8"))
    return frozenset(reader.found)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attrs if value and (name == "id" or (tag == "a" and name == "name"))}


def keyboard_problems(focus: list[str]) -> list[str]:
    """What keeps somebody without a mouse from searching, where `focus` is what each key led to."""
    return [] if any(stop in SEARCH for stop in focus) else [f"no key led to the search: {', '.join(focus)}"]
