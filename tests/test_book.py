"""The skeleton of the book: reference pages for all modules, nothing fetched, one lock for all."""

import re
import tomllib

from book._ext.api_pages import PAGES, pages
from tests.smoke import HTML, ROOT, require_smoke_build


def test_every_public_module_has_its_page_and_every_page_its_module() -> None:
    stored = {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert stored == pages(), "run `make api`"


def test_pages_load_nothing_from_outside() -> None:
    require_smoke_build()
    loads = re.compile(r"""<(?:script|link|img|iframe|source)[^>]+(?:src|href)=["'](?:https?:)?//[^"']+""")
    found = {
        path.name: loads.findall(path.read_text(encoding="utf-8"))
        for path in HTML.rglob("*.html")
        if "_static" not in path.parts
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_lock_pins_all_that_the_project_asks_for() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lock if not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [re.split(r"[\[<>=!~; ]", name)[0] for name in project["dependencies"] + extras["book"] + extras["dev"]]
    assert {name.lower() for name in asked} - pinned == set(), "run `make lock`"
    assert all(re.fullmatch(r"#.*|[a-z0-9.-]+==[^\s+]+", line) for line in lock)
