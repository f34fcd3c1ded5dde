"""Where `make smoke` leaves the book, and what to do when it isn't there."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
HTML = ROOT / "build" / "smoke" / "_build" / "html"
EXECUTED = ROOT / "build" / "smoke" / "_build" / "jupyter_execute" / "book"
IN_CI = os.environ.get("CI", "") not in ("", "0", "false")


def unavailable(reason: str) -> None:
    """Skip, saying why; in CI, where everything is there, fail."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def require_smoke_build() -> Path:
    """The folder of the built pages."""
    if not (HTML / "index.html").exists():
        unavailable("the book isn't built at smoke scale: run `make smoke` or `make test`")
    return HTML
