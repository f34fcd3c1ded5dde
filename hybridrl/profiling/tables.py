"""One small table, three dresses: rich for the terminal, plain text, HTML for the notebook."""

from __future__ import annotations

import math
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

_RULE = "1px solid rgba(128, 128, 128, 0.4)"  # translucent, so that it shows on light and on dark pages
_BAR = "rgba(86, 180, 233, 0.35)"
_DIGITS = "font-variant-numeric: tabular-nums"  # columns of digits line up


class Line(NamedTuple):
    """A row: its name, its depth in the tree, the other cells, and its share of the whole where known."""

    name: str
    depth: int
    cells: tuple[str, ...]
    share: float | None = None
    strong: bool = False


class Sheet(NamedTuple):
    """Headings, rows and the lines beneath; ``bar`` is the column whose HTML cells are filled by share."""

    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    footer: tuple[str, ...]
    bar: int | None = None


def decimals(value: float, digits: int) -> int:
    """How many decimals show ``value`` with so many significant digits; 0 if its whole part fills them."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def text(value: float | None, digits: int = 4) -> str:
    """A number in so many significant digits, without an exponent; "unknown" for None."""
    return "unknown" if value is None else f"{value:,.{decimals(value, digits)}f}"


def share_text(share: float | None) -> str:
    """A share of the whole as a percentage; "unknown" for None."""
    return "unknown" if share is None else f"{100 * share:.1f}%"


def rich_table(sheet: Sheet) -> Table:
    """The sheet as a ``rich`` table."""
    table = _grid(sheet)
    table.caption, table.caption_justify = "\n".join(sheet.footer), "left"
    return table


def plain(sheet: Sheet) -> str:
    """The sheet as text, as wide as it needs to be."""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=1000, color_system=None).print(_grid(sheet))
    rows = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([*filter(None, rows), *sheet.footer])


def _grid(sheet: Sheet) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text  # plain text: a name with [brackets] is not markup

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, heading in enumerate(sheet.headings):
        table.add_column(Text(heading), justify="left" if column == 0 else "right", no_wrap=True)
    for line, guide in zip(sheet.lines, _guides(sheet.lines), strict=True):
        cells = [Text(cell) for cell in (guide + line.name, *line.cells)]
        table.add_row(*cells, style="bold" if line.strong else None)
    return table


def _guides(lines: tuple[Line, ...]) -> list[str]:
    """The branches before each name: read from the last row up, a depth seen below continues downwards."""
    guides: list[str] = []
    below: set[int] = set()
    for line in reversed(lines):
        trunk = "".join("│  " if depth in below else "   " for depth in range(1, line.depth))
        guides.append(trunk + ("├─ " if line.depth in below else "└─ ") if line.depth else "")
        below = {depth for depth in below if depth < line.depth} | {line.depth}
    return guides[::-1]


def html(sheet: Sheet) -> str:
    """The sheet as an HTML table in the page's own colours, light or dark."""
    head = "".join(_html_heading(column, heading) for column, heading in enumerate(sheet.headings))
    body = "".join(_html_row(line, sheet.bar) for line in sheet.lines)
    foot = "".join(f"<div>{escape(line)}</div>" for line in sheet.footer)
    return (
        '<div class="hybridrl-table"><table style="border-collapse: collapse; color: inherit">'
        f'<thead><tr style="border-bottom: {_RULE}">{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<div style="font-size: 0.85em; opacity: 0.8; margin-top: 0.4em">{foot}</div></div>'
    )


def _html_heading(column: int, heading: str) -> str:
    lines = escape(heading).replace("\n", "<br>")
    return f'<th scope="col" style="{_style(column)}">{lines}</th>'


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
    return f"text-align: {side}; padding: 0.15em 0.6em; white-space: nowrap; {_DIGITS}"
