"""One small table, three dresses: rich for the terminal, plain text, HTML for the notebook."""

from __future__ import annotations

from html import escape
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

_RULE = "1px solid rgba(128, 128, 128, 0.4)"  # translucent, so that it shows on light and on dark pages
_BAR = "rgba(86, 180, 233, 0.35)"


class Line(NamedTuple):
    """A row: its name, its depth in the tree, the other cells, and its share of the whole where known."""

    name: str
    depth: int
    cells: tuple[str, ...]
    share: float | None = None
    strong: bool = False


class Sheet(NamedTuple):
    """Headings, rows and the lines beneath; `bar` is the column whose HTML cells are filled by share."""

    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    footer: tuple[str, ...]
    bar: int | None = 3


def text(value: float | None, digits: int = 4) -> str:
    """A number in so many significant digits, without an exponent; "unknown" for None."""
    if value is None:
        return "unknown"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{min(digits, max(0, digits - whole))}f}"


def share_text(share: float | None) -> str:
    """A share of the whole as a percentage; "unknown" for None."""
    return "unknown" if share is None else f"{100 * share:.1f}%"


def rich_table(sheet: Sheet) -> Table:
    """The sheet as a `rich` table."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption="\n".join(sheet.footer), caption_justify="left", pad_edge=False)
    for column, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="left" if column == 0 else "right", no_wrap=True)
    for line, guide in zip(sheet.lines, _guides(sheet.lines), strict=True):
        table.add_row(guide + line.name, *line.cells, style="bold" if line.strong else None)
    return table


def plain(sheet: Sheet) -> str:
    """The sheet as text, as wide as it needs."""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=max(80, *map(len, sheet.footer), 0), color_system=None).print(rich_table(sheet))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def html(sheet: Sheet) -> str:
    """The sheet as an HTML table in the page's own colours, light or dark."""
    head = "".join(f'<th scope="col" style="{_style(i)}">{escape(h)}</th>' for i, h in enumerate(sheet.headings))
    body = "".join(_html_row(line, sheet.bar) for line in sheet.lines)
    foot = "".join(f"<div>{escape(line)}</div>" for line in sheet.footer)
    return (
        '<div class="hybridrl-table"><table style="border-collapse: collapse; color: inherit">'
        f'<thead><tr style="border-bottom: {_RULE}">{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<div style="font-size: 0.85em; opacity: 0.8; margin-top: 0.4em">{foot}</div></div>'
    )


def _html_row(line: Line, bar: int | None) -> str:
    weight = "; font-weight: bold" if line.strong else "; font-weight: normal"
    pad = f"; padding-left: {0.6 + 1.2 * line.depth:.1f}em"
    cells = f'<th scope="row" style="{_style(0)}{pad}{weight}">{escape(line.name)}</th>'
    for column, cell in enumerate(line.cells, start=1):
        fill = ""
        if column == bar and line.share is not None:
            fill = f"; background: linear-gradient(90deg, {_BAR} {100 * line.share:.1f}%, transparent 0)"
        cells += f'<td style="{_style(column)}{fill}{weight}">{escape(cell)}</td>'
    return f'<tr style="background: none">{cells}</tr>'


def _style(column: int) -> str:
    side = "left" if column == 0 else "right"
    return f"text-align: {side}; padding: 0.15em 0.6em; white-space: nowrap; font-variant-numeric: tabular-nums"


def _guides(lines: tuple[Line, ...]) -> list[str]:
    """The branches before each name: read from the last row up, a depth seen below continues downwards."""
    guides: list[str] = []
    below: set[int] = set()
    for line in reversed(lines):
        trunk = "".join("│  " if depth in below else "   " for depth in range(1, line.depth))
        guides.append(trunk + ("├─ " if line.depth in below else "└─ ") if line.depth else "")
        below = {depth for depth in below if depth < line.depth} | {line.depth}
    return guides[::-1]
