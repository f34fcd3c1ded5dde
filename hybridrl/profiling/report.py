"""The report: a run's wall time divided among its phases, with nothing left over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from hybridrl.profiling.phases import OTHER
from hybridrl.profiling.plots import Segment, draw_tree
from hybridrl.profiling.tables import Line, Sheet, decimals, html, plain, rich_table, share_text, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

Source = Literal["measured", "simulated", "published"]

STEPS = "env_steps"  # the counter that steps_per_second divides by the wall time


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One path of the phase tree.

    ``total_s`` includes the phases inside it, ``self_s`` doesn't; ``first_s`` is the first call alone (it pays for
    lazy initialisation), None where unknown. Seconds.
    """

    path: tuple[str, ...]
    calls: int
    total_s: float
    self_s: float
    first_s: float | None = None

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path[-1]

    @property
    def label(self) -> str:
        """The whole path, as ``collect/env``."""
        return "/".join(self.path)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a run's wall time went. Seconds; None is unknown.

    ``phases`` hold every parent before its children. Their top level and ``other_s`` add up to ``wall_s`` to the
    nanosecond. ``overhead_s`` is the timer's own estimated cost: taken out of the phases, so part of ``other_s``.
    """

    wall_s: float
    cpu_s: float | None = None
    threads: int | None = None
    phases: tuple[PhaseRow, ...] = ()
    overhead_s: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: Source = "measured"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.wall_s) and self.wall_s >= 0):
            raise ValueError(f"wall_s={self.wall_s}: expected finite seconds, 0 or more")
        if self.source not in get_args(Source):
            raise ValueError(f"source={self.source!r}: expected one of {', '.join(get_args(Source))}")
        if self.other_s < 0:
            over = f"{-self.other_s:g} s more than wall_s={self.wall_s:g}"
            raise ValueError(f"top-level phases take {over}: expected no more than the wall time")

    @property
    def other_s(self) -> float:
        """Wall time outside every top-level phase, the timer's overhead included."""
        top = sum(_ns(row.total_s) for row in self.phases if len(row.path) == 1)
        return (_ns(self.wall_s) - top) / 1e9

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps (the counter ``env_steps``) per second of wall time; None where not counted."""
        steps = self.counters.get(STEPS)
        return None if steps is None or not self.wall_s else steps / self.wall_s

    @property
    def bottleneck(self) -> str | None:
        """The path with the most time of its own, or "other"; None for an empty report."""
        own = {row.label: row.self_s for row in self.phases} | {OTHER: self.other_s}
        return max(own, key=lambda label: own[label]) if self.wall_s else None

    def seconds(self, name: str) -> float | None:
        """Seconds in every phase of that name, wherever it is; or in one path, as ``collect/env``.

        None where no such phase ran: not measured is not zero. "other" is the time outside all phases.
        """
        if name == OTHER:
            return self.other_s
        found = list(self._matches(name))
        return sum(_ns(row.total_s) for row in found) / 1e9 if found else None

    def share(self, name: str) -> float | None:
        """``seconds(name)`` as a part of the wall time, 0 to 1; None where no such phase ran."""
        seconds = self.seconds(name)
        return None if seconds is None or not self.wall_s else seconds / self.wall_s

    def _matches(self, name: str) -> Iterator[PhaseRow]:
        """The rows of that path or name; a phase inside another of its own name is counted once."""
        for row in self.phases:
            if row.label == name or ("/" not in name and row.name == name and name not in row.path[:-1]):
                yield row

    def table(self) -> Table:
        """A ``rich`` table: the phases as a tree, "other", and the totals underneath."""
        return rich_table(self._sheet())

    def __str__(self) -> str:
        return plain(self._sheet())

    def _repr_html_(self) -> str:
        return html(self._sheet())

    def plot(self, ax: Axes | None = None) -> Axes:
        """One horizontal bar of the wall time, divided into top-level phases and, below, what is inside them.

        Draws into ``ax``, or into a new figure; returns the axes. Hatched if simulated, dotted if published.
        """
        return draw_tree(self._segments(), self.wall_s, self._title(), self.source, ax)

    def _segments(self) -> list[Segment]:
        """Each row as an interval: parents begin where their first child does, children in order."""
        segments: list[Segment] = []
        ends: dict[tuple[str, ...], float] = {(): 0.0}  # where the next child of that path begins
        for row in self.phases:
            start = ends[row.path[:-1]]
            segments.append(Segment(row.path, start, row.total_s))
            ends[row.path[:-1]], ends[row.path] = start + row.total_s, start
        return [*segments, Segment((OTHER,), ends[()], self.other_s)]

    def _sheet(self) -> Sheet:
        headings = ("phase", "calls", "total s", "share", "µs / call")
        lines = [self._line(row) for row in self.phases]
        share = self.share(OTHER)
        lines.append(Line(OTHER, 0, ("", self._column(self.other_s), share_text(share), ""), share))
        return Sheet(headings, tuple(lines), (*self._summary(), *self._first_calls(), *self.notes), bar=3)

    def _line(self, row: PhaseRow) -> Line:
        share = row.total_s / self.wall_s if self.wall_s else None
        each = text(row.total_s / row.calls * 1e6, 3) if row.calls else "–"
        cells = (f"{row.calls:,}", self._column(row.total_s), share_text(share), each)
        return Line(row.name, len(row.path) - 1, cells, share)

    def _column(self, seconds: float) -> str:
        """Seconds with the decimals that suit the wall time, so that the column lines up."""
        return f"{seconds:,.{decimals(self.wall_s, 5)}f}"

    def _title(self) -> str:
        rate = self.steps_per_second
        return f"{self.wall_s:.3g} s, {self.source}" + ("" if rate is None else f", {rate:,.0f} steps/s")

    def _summary(self) -> tuple[str, ...]:
        """The two lines under the table."""
        rate = self.steps_per_second
        counted = [f"{name} {count:,}" for name, count in self.counters.items()]
        overhead = share_text(self.overhead_s / self.wall_s if self.wall_s else None)
        return (
            f"{self.source}: wall {text(self.wall_s)} s, CPU {text(self.cpu_s)} s, "
            f"threads {'unknown' if self.threads is None else self.threads}, "
            f"timer overhead {text(self.overhead_s)} s ({overhead}, in other)",
            ", ".join([*counted, f"steps/s {'unknown' if rate is None else f'{rate:,.0f}'}"]),
        )

    def _first_calls(self) -> Iterator[str]:
        """A line for each phase whose first call was unlike the others, and long enough to matter."""
        for row in self.phases:
            if row.first_s is None or row.calls < 2:
                continue
            rest = (row.total_s - row.first_s) / (row.calls - 1)
            if row.first_s > max(10 * rest, 0.01 * self.wall_s):
                others = text(max(0.0, rest))
                yield f"first call of {row.label}: {text(row.first_s)} s, the others {others} s each"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``other_s`` and ``steps_per_second`` are there for readers, and derived."""
        values = asdict(self)
        values["phases"] = [{**asdict(row), "path": list(row.path)} for row in self.phases]
        values["counters"], values["notes"] = dict(self.counters), list(self.notes)
        return {**values, "other_s": self.other_s, "steps_per_second": self.steps_per_second}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report that ``to_dict`` wrote; ValueError names the first key that is missing or unknown."""
        given = {key: value for key, value in values.items() if key not in ("other_s", "steps_per_second")}
        try:
            rows = [PhaseRow(**{**row, "path": tuple(row["path"])}) for row in given["phases"]]
            return cls(**{**given, "phases": tuple(rows), "notes": tuple(given["notes"])})
        except KeyError as error:
            raise ValueError(f"not a report, no key {error}: expected what Report.to_dict wrote") from None
        except TypeError as error:
            raise ValueError(f"not a report, {error}: expected what Report.to_dict wrote") from None


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)  # doubles hold whole nanoseconds exactly for the first hundred days
