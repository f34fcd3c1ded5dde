"""The style of every figure, and the few kinds of figure there are.

Measured is solid; simulated and predicted are dashed, bars hatched; published is dotted, bars open and grey.
Figures are transparent, with text that reads on white and on dark pages, and as wide as a phone can show.
Draw inside ``with use():``.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridrl.experiments.machine import Machine
from hybridrl.experiments.measurement import Measurement, format_value
from hybridrl.experiments.palette import INK, LINES, PHASES, phase_color, placement_style, text_on
from hybridrl.experiments.result import NEEDS_GPU, Cell
from hybridrl.experiments.sources import MARKS, SOURCES, Source, check_source

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.2  # inches: at DPI dots, 360 pixels of a phone still show 10 points as 10 pixels
DPI = 160
SMALL = 8
Point = float | Measurement | None


def style() -> dict[str, Any]:
    """Matplotlib's settings for our figures."""
    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink, INK),
        "figure.figsize": (WIDTH, 3.4),
        "figure.dpi": DPI,
        "savefig.dpi": DPI,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.facecolor": "none",
        "legend.edgecolor": "none",
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "axes.titlesize": 10,
        "legend.fontsize": SMALL,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": INK,
        "grid.alpha": 0.25,
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
        "hatch.color": INK,
        "hatch.linewidth": 1.0,
        "axes.prop_cycle": _cycle(),
    }


def _cycle() -> Any:
    from cycler import cycler

    colors, markers = zip(*LINES, strict=True)
    return cycler(color=colors, marker=markers)


@contextmanager
def use() -> Iterator[None]:
    """Draw in the house style; matplotlib's settings are as before afterwards."""
    import matplotlib as mpl

    settings: Any = style()  # matplotlib's stubs want a Literal of each key, older ones text
    with mpl.rc_context(settings):
        yield


def bars(
    ax: "Axes",
    labels: Sequence[str],
    cells: Sequence[Cell],
    *,
    unit: str,
    colors: Sequence[str] | None = None,
) -> None:
    """One horizontal bar a cell, first on top: median, whiskers from lowest to highest, value beside it.

    A cell without a number is its note (or ``unknown``) in an empty dotted outline. ``colors``: one a bar; by
    default that of the placement whose name the label is.
    """
    if len(labels) != len(cells):
        raise ValueError(f"{len(labels)} labels for {len(cells)} cells; expected one each")
    fills = colors or [placement_style(label)[0] for label in labels]
    longest = max((_extent(cell) for cell in cells), default=0.0) or 1.0
    for row, (cell, fill) in enumerate(zip(cells, fills, strict=True)):
        if cell.number is None:
            ax.barh(row, longest, height=0.6, facecolor="none", edgecolor=INK, linestyle="dotted")
            _note(ax, 0.5 * longest, row, cell.text(), 44)
        else:
            ax.barh(row, cell.number, height=0.6, **_bar_look(cell.source, fill))
            _whisker(ax, row, cell)
            ax.annotate(_value_text(cell), (_extent(cell), row), (4, 0), **_beside("left"))
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_xlim(0, longest * 1.3)
    ax.set_xlabel(unit)
    ax.xaxis.set_major_formatter(_tick)
    ax.grid(visible=False, axis="y")
    legend(ax, [cell.source for cell in cells if cell.number is not None])


def line(
    ax: "Axes",
    x: Sequence[float],
    y: Sequence[Point],
    *,
    source: Source,
    label: str,
    style: tuple[str, str] = LINES[0],
) -> None:
    """One line; measurements get their spread (lowest to highest) as a whisker, ``None`` leaves a gap.

    ``style`` is colour and marker, as ``palette.placement_style`` gives; published lines are always grey.
    """
    check_source(source)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} x for {len(y)} y; expected one each")
    mark = MARKS[source]
    color = style[0] if mark.filled else INK
    middle, low, high = (_column(y, pick) for pick in ("median", "low", "high"))
    face = color if source == "measured" else "none"
    ax.plot(
        x,
        middle,
        linestyle=mark.line,
        color=color,
        marker=style[1],
        markerfacecolor=face,
        label=_labelled(label, source),
    )
    if any(isinstance(point, Measurement) and point.n > 1 for point in y):
        ax.vlines(x, low, high, color=color, linewidth=1, alpha=0.7)


def stacked(
    ax: "Axes",
    columns: Mapping[str, Mapping[str, float] | None],
    *,
    unit: str,
    sources: Mapping[str, Source] | None = None,
    reason: str = NEEDS_GPU,
) -> None:
    """One column a placement, its phases stacked in the order of the palette, largest parts labelled.

    A column that is ``None`` is an empty dotted outline with ``reason`` in it, never a zero. ``sources`` names the
    columns that are not measured.
    """
    given = dict(sources or {})
    heights = [sum(phases.values()) for phases in columns.values() if phases is not None]
    tallest = max(heights, default=0.0) or 1.0
    letters = _letters(0.55 * _width(ax) / max(1, len(columns)), SMALL)
    for place, (name, phases) in enumerate(columns.items()):
        if phases is None:
            ax.bar(place, tallest, width=0.7, facecolor="none", edgecolor=INK, linestyle="dotted")
            _note(ax, place, tallest / 2, reason, letters)
        else:
            _stack(ax, place, phases, given.get(name, "measured"), tallest, letters)
    ax.set_xticks(range(len(columns)), list(columns))
    ax.set_xlim(-0.6, len(columns) - 0.4)
    ax.set_ylim(0, tallest * 1.12)
    ax.set_ylabel(unit)
    ax.yaxis.set_major_formatter(_tick)
    ax.grid(visible=False, axis="x")
    used = [given.get(name, "measured") for name, phases in columns.items() if phases is not None]
    legend(ax, used, more=_phase_handles(columns))


def learning_curve(
    ax: "Axes",
    runs: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    label: str,
    source: Source = "measured",
    style: tuple[str, str] = LINES[0],
) -> None:
    """Returns over steps, a run a seed: each seed thin, their median thick, the band from worst to best.

    Each run is (steps, returns) with steps increasing. Median and band span the steps that all seeds reached;
    between its points a seed is taken as linear. The label says how many seeds.
    """
    check_source(source)
    if not runs:
        raise ValueError("a learning curve of no runs; expected one a seed")
    color, _ = style if MARKS[source].filled else (INK, "")
    grid, returns = _on_common_steps(runs)
    for steps, values in runs:
        ax.plot(steps, values, color=color, linewidth=0.6, alpha=0.5, marker="")
    if len(runs) > 1:
        ax.fill_between(grid, returns.min(axis=0), returns.max(axis=0), color=color, alpha=0.2, linewidth=0)
    seeds = _labelled(f"{label}, {len(runs)} seeds" if len(runs) > 1 else f"{label}, one seed", source)
    median = np.median(returns, axis=0)
    ax.plot(grid, median, color=color, linewidth=2, linestyle=MARKS[source].line, marker="", label=seeds)
    ax.set_xlabel("environment steps")
    ax.set_ylabel("return of an episode")
    ax.locator_params(axis="x", nbins=5)  # six-figure labels must not touch
    ax.xaxis.set_major_formatter(_tick)


def caption(figure: "Figure", machine: Machine | str | None, extra: str = "") -> None:
    """Write hardware, versions and threads under the figure; ``extra`` (repeats, a record's date) follows."""
    where = machine.one_line() if isinstance(machine, Machine) else machine or ""
    text = ". ".join(part.rstrip(".") for part in (where, extra) if part)
    wrapped = textwrap.fill(text, _letters(figure.get_figwidth(), 7))
    figure.supxlabel(wrapped, x=0.01, horizontalalignment="left", fontsize=7, color=INK)


def legend(ax: "Axes", sources: Sequence[Source] = (), more: Sequence["Artist"] = ()) -> None:
    """A legend under the axes: ``more``, what is labelled on them, and how bars of ``sources`` look.

    Call it after the axis labels are set: it sits below them.
    """
    from matplotlib.transforms import ScaledTranslation

    labelled, _ = ax.get_legend_handles_labels()
    handles = [*more, *labelled, *_source_handles(sources)]
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(4, len(handles), _letters(0.9 * _width(ax), SMALL) // (longest + 10)))
    points = 38 if ax.get_xlabel() else 22
    below = ax.transAxes + ScaledTranslation(0, -points / 72, ax.figure.dpi_scale_trans)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    if handles:
        ax.legend(handles=handles, ncols=columns, labelcolor=INK, borderaxespad=0, **place)


def _labelled(label: str, source: Source) -> str:
    return label if source == "measured" else f"{label} ({source})"


def _tick(value: float, position: float) -> str:
    return format_value(value)


def _width(ax: "Axes") -> float:
    spec = ax.get_subplotspec()
    return float(ax.figure.bbox.width / ax.figure.dpi) / (spec.get_gridspec().ncols if spec else 1)


def _letters(inches: float, points: float) -> int:
    return max(9, int(inches * 72 / (0.52 * points)))  # a letter is about half as wide as its size


def _source_handles(sources: Sequence[Source]) -> list["Artist"]:
    from matplotlib.patches import Patch

    used = [source for source in SOURCES if source in sources]
    return [Patch(label=source, **_bar_look(source, "#bdbdbd")) for source in used]


def _phase_handles(columns: Mapping[str, Mapping[str, float] | None]) -> list["Artist"]:
    from matplotlib.patches import Patch

    used = {phase for phases in columns.values() for phase in phases or ()}
    return [Patch(facecolor=phase_color(phase), edgecolor=INK, label=phase) for phase in _ordered(used)]


def _ordered(phases: set[str]) -> list[str]:
    return [phase for phase in PHASES if phase in phases]


def _stack(ax: "Axes", place: int, phases: Mapping[str, float], source: Source, tallest: float, letters: int) -> None:
    bottom = 0.0
    for phase in sorted(phases, key=_rank):
        seconds, fill = phases[phase], phase_color(phase)
        ax.bar(place, seconds, bottom=bottom, width=0.7, **_bar_look(source, fill))
        if seconds > 0.07 * tallest:
            text = f"{phase} {format_value(seconds)}"
            text = text if len(text) <= letters else format_value(seconds)  # the legend names the phase
            _label_part(ax, place, bottom + seconds / 2, text, fill, source)
        bottom += seconds
    ax.annotate(f"{format_value(bottom)}", (place, bottom), (0, 3), **_beside("center", "bottom"))


def _rank(phase: str) -> int:
    phase_color(phase)  # names the unknown one
    return list(PHASES).index(phase)


def _label_part(ax: "Axes", x: float, y: float, text: str, fill: str, source: Source) -> None:
    filled = MARKS[source].filled
    box = {"facecolor": fill, "edgecolor": "none", "pad": 1.0} if MARKS[source].hatch else None
    color = text_on(fill) if filled else INK
    ax.text(x, y, text, ha="center", va="center", fontsize=SMALL, color=color, bbox=box)


def _note(ax: "Axes", x: float, y: float, text: str, width: int) -> None:
    ax.text(x, y, textwrap.fill(text, width), ha="center", va="center", fontsize=SMALL, color=INK, style="italic")


def _bar_look(source: Source, fill: str) -> dict[str, Any]:
    mark = MARKS[source]
    return {
        "facecolor": fill if mark.filled else "none",
        "edgecolor": INK,
        "linestyle": mark.line,
        "linewidth": 1.0,
        "hatch": mark.hatch,
    }


def _beside(horizontal: str, vertical: str = "center") -> dict[str, Any]:
    look = {"fontsize": SMALL, "color": INK, "annotation_clip": False, "textcoords": "offset points"}
    return {**look, "ha": horizontal, "va": vertical}


def _whisker(ax: "Axes", row: int, cell: Cell) -> None:
    if isinstance(cell.value, Measurement) and cell.value.n > 1:
        ax.plot([cell.value.low, cell.value.high], [row, row], color=INK, linewidth=1.5, marker="|", zorder=3)


def _value_text(cell: Cell) -> str:
    assert cell.number is not None
    return f"{format_value(cell.number)} {MARKS[cell.source].short}"


def _extent(cell: Cell) -> float:
    return cell.value.high if isinstance(cell.value, Measurement) else cell.number or 0.0


def _column(points: Sequence[Point], pick: str) -> list[float]:
    numbers = (getattr(point, pick) if isinstance(point, Measurement) else point for point in points)
    return [math.nan if number is None else float(number) for number in numbers]


def _on_common_steps(
    runs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    start, end = max(steps[0] for steps, _ in runs), min(steps[-1] for steps, _ in runs)
    every = np.unique(np.concatenate([np.asarray(steps, dtype=np.float64) for steps, _ in runs]))
    grid = every[(every >= start) & (every <= end)]
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in runs])
