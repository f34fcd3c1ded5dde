"""Several reports side by side: one column a placement, one row a phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridrl.profiling.phases import OTHER
from hybridrl.profiling.plots import REST, Segment, draw_bars
from hybridrl.profiling.report import Report
from hybridrl.profiling.tables import Line, Sheet, decimals, html, plain, rich_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

Path = tuple[str, ...]

_ABSENT = "–"  # the phase does not occur there
_UNKNOWN = "unknown"  # nobody measured


@dataclass(frozen=True)
class Comparison:
    """Reports by name, as a table or as bars; build it with ``compare``."""

    reports: Mapping[str, Report | None]
    per: str | None = None

    def table(self) -> Table:
        """A ``rich`` table of seconds, or of milliseconds per count of ``per``."""
        return rich_table(self._sheet())

    def __str__(self) -> str:
        return plain(self._sheet())

    def _repr_html_(self) -> str:
        return html(self._sheet())

    def plot(self, ax: Axes | None = None) -> Axes:
        """One stacked bar a report, each phase by its own time; "unknown" where nobody measured."""
        bars = [(name, r.source if r else None, self._bar(r)) for name, r in self.reports.items()]
        return draw_bars(bars, self._unit(), ax)

    def _bar(self, report: Report | None) -> list[Segment]:
        """The innermost phases end to end, then the rest of those that enclose them, then "other"."""
        scale = None if report is None else self._scale(report)
        if report is None or scale is None:
            return []
        parents = {row.path[:-1] for row in report.phases}
        own = [(row.name, row.self_s) for row in report.phases if row.path not in parents]
        rest = sum(row.self_s for row in report.phases if row.path in parents)
        segments, start = [], 0.0
        for name, seconds in [*own, (REST, rest), (OTHER, report.other_s)]:
            if seconds > 0:
                segments.append(Segment((name,), start, seconds * scale))
                start += seconds * scale
        return segments

    def _unit(self) -> str:
        return "seconds" if self.per is None else f"ms per {self.per.replace('_', ' ').removesuffix('s')}"

    def _scale(self, report: Report) -> float | None:
        """What seconds are multiplied by; None where the report has no such counter."""
        if self.per is None:
            return 1.0
        count = report.counters.get(self.per)
        return 1e3 / count if count else None

    def _cell(self, report: Report | None, seconds: float | None) -> str:
        scale = None if report is None else self._scale(report)
        if scale is None:
            return _UNKNOWN
        assert report is not None
        return _ABSENT if seconds is None else f"{seconds * scale:,.{decimals(report.wall_s * scale, 5)}f}"

    def _line(self, name: str, depth: int, seconds: Sequence[float | None]) -> Line:
        cells = [self._cell(report, value) for report, value in zip(self.reports.values(), seconds, strict=True)]
        return Line(name, depth, tuple(cells))

    def _sheet(self) -> Sheet:
        reports = list(self.reports.values())
        paths = _paths(reports)
        headings = [f"{name}\n{_UNKNOWN if r is None else r.source}" for name, r in self.reports.items()]
        lines = [self._line(path[-1], len(path) - 1, [_seconds(r, path) for r in reports]) for path in paths]
        lines.append(self._line(OTHER, 0, [r.other_s if r else None for r in reports]))
        lines.append(self._line("wall", 0, [r.wall_s if r else None for r in reports])._replace(strong=True))
        rates = [None if r is None else r.steps_per_second for r in reports]
        lines.append(Line("steps/s", 0, tuple(_UNKNOWN if x is None else f"{x:,.0f}" for x in rates)))
        footer = (f"{self._unit()}; {_ABSENT} no such phase there", *self._notes())
        return Sheet(("phase", *headings), tuple(lines), footer, bar=None)

    def _notes(self) -> Iterator[str]:
        for name, report in self.reports.items():
            for note in () if report is None else report.notes:
                yield f"{name}: {note}"


def compare(reports: Mapping[str, Report | None], *, per: str | None = None) -> Comparison:
    """Reports side by side, one column each; None is a placement nobody measured: "unknown" in the table.

    ``per`` names a counter, such as ``updates``: the times are then milliseconds per count of it. ValueError for
    no reports.
    """
    if not reports:
        raise ValueError("compare({}): expected at least one report, as {'cpu': report}")
    return Comparison(dict(reports), per)


def _seconds(report: Report | None, path: Path) -> float | None:
    rows = [] if report is None else [row for row in report.phases if row.path == path]
    return rows[0].total_s if rows else None


def _paths(reports: list[Report | None]) -> list[Path]:
    """Every path of every report, parents before children, in the order of first sight."""
    tree: dict[Path, list[Path]] = {(): []}
    for report in reports:
        for row in () if report is None else report.phases:
            siblings = tree.setdefault(row.path[:-1], [])
            if row.path not in siblings:
                siblings.append(row.path)
    return list(_walk(tree, ()))


def _walk(tree: Mapping[Path, list[Path]], path: Path) -> Iterator[Path]:
    for child in tree.get(path, []):
        yield child
        yield from _walk(tree, child)
