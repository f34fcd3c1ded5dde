"""Result tables: every number with its source, its spread and the machine."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridrl.experiments.machine import Machine
from hybridrl.experiments.measurement import Measurement, format_value, total_repeats
from hybridrl.experiments.sources import MARKS, SOURCES, Source, check_source

if TYPE_CHECKING:
    from rich.table import Table

Value = float | int | str | Measurement | None
NEEDS_GPU = "needs a GPU"


@dataclass(frozen=True)
class Cell:
    """One value and where it comes from. ``None`` is unknown, and ``note`` may say why."""

    value: Value
    source: Source
    note: str = ""

    def __post_init__(self) -> None:
        check_source(self.source)

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    @property
    def number(self) -> float | None:
        """The value, or the median of its repeats; ``None`` for unknown or text."""
        if isinstance(self.value, Measurement):
            return self.value.median
        return None if self.value is None or isinstance(self.value, str) else float(self.value)

    def text(self) -> str:
        """The value and its spread without unit or mark; an unknown one as its note, or ``unknown``."""
        if self.value is None:
            return self.note or "unknown"
        if isinstance(self.value, str):
            return self.value
        if isinstance(self.value, Measurement) and self.value.n > 1:
            spread = f"{format_value(self.value.low)} to {format_value(self.value.high)}"
            return f"{format_value(self.value.median)} ({spread})"
        number = self.number
        assert number is not None
        return format_value(number)

    def to_dict(self) -> dict[str, object]:
        """Value, source and note; a measurement with its repeats."""
        value = self.value.to_dict() if isinstance(self.value, Measurement) else self.value
        return {"value": value, "source": self.source, "note": self.note}


def unknown(reason: str = "") -> Cell:
    """A cell without a value; ``reason`` is shown in its place."""
    return Cell(None, "measured", reason)


@dataclass(frozen=True)
class Row:
    """One quantity across the columns."""

    label: str
    quantity: str
    unit: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A table of results: ``columns`` are the headings of each row's cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    machine: Machine | None = None  # None: measured nowhere (published figures, arithmetic)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                given = f"row {row.label!r} has {len(row.cells)} cells"
                raise ValueError(f"{given}; expected {len(self.columns)}, one for each of {self.columns}")
            for cell in row.cells:
                if isinstance(cell.value, Measurement) and cell.value.unit != row.unit:
                    given = f"row {row.label!r} is in {row.unit!r}, a measurement in {cell.value.unit!r}"
                    raise ValueError(f"{given}; expected one unit: convert it")

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that occur, in their fixed order."""
        used = {cell.source for row in self.rows for cell in row.cells if cell.known}
        return tuple(source for source in SOURCES if source in used)

    def legend(self) -> str:
        """What the marks mean, for those that occur."""
        return "; ".join(f"{MARKS[source].short}: {MARKS[source].meaning}" for source in self.sources)

    def caption(self) -> str:
        """Machine, versions, threads, repeats and notes in one text."""
        values = [cell.value for row in self.rows for cell in row.cells]
        repeats = total_repeats([value for value in values if isinstance(value, Measurement)])
        spread = f"{repeats}, median (lowest to highest)" if repeats not in ("", "single runs") else repeats
        machine = "" if self.machine is None else self.machine.one_line()
        return ". ".join(part.rstrip(".") for part in (machine, spread, *self.notes) if part)

    def table(self) -> "Table":
        """A rich table for terminals; the sources are words, not only styles."""
        from rich.table import Table
        from rich.text import Text

        caption = "\n".join(filter(None, (self.legend(), self.caption())))
        table = Table(title=Text(self.title), caption=Text(caption), caption_justify="left")
        for heading in ("", "quantity", *self.columns):
            table.add_column(Text(heading), overflow="fold")
        for row in self.rows:
            cells = [Text(_marked(cell), style=_rich_style(cell)) for cell in row.cells]
            table.add_row(Text(row.label), Text(_with_unit(row)), *cells)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=max(80, 24 * (2 + len(self.columns))), color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip()

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in ("", "quantity", *self.columns))
        body = "".join(_html_row(row) for row in self.rows)
        legend = "; ".join(
            f'<span style="{MARKS[source].css}">{MARKS[source].short}</span>: {MARKS[source].meaning}'
            for source in self.sources
        )
        notes = "<br>".join(filter(None, (legend, html.escape(self.caption()))))
        return (
            # "dataframe": the book's theme gives any other output table a light background in dark mode
            '<div style="overflow-x:auto"><table class="dataframe hybridrl-result" style="color:inherit">'
            f'<caption style="text-align:left">{html.escape(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f'<p style="font-size:0.85em">{notes}</p></div>'
        )

    def to_dict(self) -> dict[str, object]:
        """Everything, as plain values."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [_row_dict(row) for row in self.rows],
            "machine": None if self.machine is None else self.machine.to_dict(),
            "notes": list(self.notes),
        }


def _row_dict(row: Row) -> dict[str, object]:
    cells = [cell.to_dict() for cell in row.cells]
    return {"label": row.label, "quantity": row.quantity, "unit": row.unit, "cells": cells}


def _with_unit(row: Row) -> str:
    return f"{row.quantity} ({row.unit})" if row.unit else row.quantity


def _marked(cell: Cell) -> str:
    if not cell.known:
        return cell.text()
    mark = "" if _is_own_word(cell) else f" {MARKS[cell.source].short}"
    return f"{cell.text()}{mark}{f', {cell.note}' if cell.note else ''}"


def _is_own_word(cell: Cell) -> bool:
    """A verdict and the like: no number, and ours, so that a mark would only be in the way."""
    return isinstance(cell.value, str) and cell.source == "measured"


def _rich_style(cell: Cell) -> str:
    return MARKS[cell.source].rich if cell.known else "italic"


def _html_row(row: Row) -> str:
    cells = "".join(f'<td style="text-align:right">{_html_cell(cell)}</td>' for cell in row.cells)
    head = f'<th scope="row">{html.escape(row.label)}</th><td>{html.escape(_with_unit(row))}</td>'
    return f"<tr>{head}{cells}</tr>"


def _html_cell(cell: Cell) -> str:
    text = html.escape(cell.text())
    if not cell.known:
        return f"<em>{text}</em>"
    note = f"<br><small>{html.escape(cell.note)}</small>" if cell.note else ""
    if _is_own_word(cell):
        return text + note
    mark = MARKS[cell.source]
    value = f'<span style="{mark.css}" title="{mark.meaning}">{text}</span>' if mark.css else text
    return f'{value} <small style="opacity:0.75">{mark.short}</small>{note}'


def cells(values: Sequence[Value], source: Source) -> tuple[Cell, ...]:
    """A row's cells where all come from one source; ``None`` stays unknown."""
    return tuple(Cell(value, source) for value in values)
