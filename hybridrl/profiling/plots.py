"""Bars of phases: one colour a phase everywhere, from Okabe and Ito's colour-blind safe palette."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridrl.profiling import phases

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#7f7f7f"  # readable on white and on black
_PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_COLOURS = {
    phases.ENV: "#E69F00",
    phases.ACT: "#56B4E9",
    phases.STORE: "#F0E442",
    phases.RETURNS: "#CC79A7",
    phases.UPDATE: "#0072B2",
    phases.TRANSFER: "#D55E00",
    phases.PUBLISH: "#009E73",
    phases.WAIT: "#BBBBBB",
    phases.OTHER: "#8C8C8C",
}
_CONTAINERS = (phases.COLLECT, phases.LEARN)
_DARK, _LIGHT = "#1a1a1a", "#ffffff"  # text on a filled segment only, never on the page
_HATCHES = {"measured": "", "simulated": "///", "published": "..."}


class Segment(NamedTuple):
    """An interval of a bar: which phase, how deep, from where, how long; seconds."""

    name: str
    depth: int
    start: float
    width: float


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: the phase's own, or for other names the palette's in order."""
    own = [name for name in dict.fromkeys(names) if name not in _COLOURS]
    return _COLOURS | {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(own)}


def draw_tree(segments: Sequence[Segment], wall_s: float, title: str, source: str, ax: Axes | None = None) -> Axes:
    """Top-level phases as one bar, what is inside them as a bar below, and so on; returns the axes."""
    depths = 1 + max(segment.depth for segment in segments)
    ax = ax if ax is not None else _new_axes(0.75 + 0.55 * depths)
    palette = colours(segment.name for segment in segments if segment.name not in _CONTAINERS)
    for segment in segments:
        colour = "none" if segment.name in _CONTAINERS else palette[segment.name]
        _draw(ax, segment, -segment.depth, colour, source)
    _label(ax, segments, wall_s, palette)
    _frame(ax, wall_s, f"wall time, s ({title})")
    ax.set_yticks([])
    return ax


def draw_bars(bars: Sequence[tuple[str, str, Sequence[Segment]]], unit: str, ax: Axes | None = None) -> Axes:
    """One stacked bar a (label, source, segments), on one scale, with one legend; returns the axes."""
    ax = ax if ax is not None else _new_axes(0.9 + 0.5 * len(bars))
    names = list(dict.fromkeys(segment.name for _, _, segments in bars for segment in segments))
    palette = colours(names)
    for row, (_, source, segments) in enumerate(bars):
        for segment in segments:
            _draw(ax, segment, -row, palette[segment.name], source)
    _frame(ax, max((s.start + s.width for _, _, segments in bars for s in segments), default=1.0), unit)
    ax.set_yticks([-row for row in range(len(bars))], [f"{label}\n({source})" for label, source, _ in bars])
    _legend(ax, [(name, palette[name]) for name in names])
    return ax


def _new_axes(height: float) -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7.2, height), layout="constrained")[1]


def _draw(ax: Axes, segment: Segment, y: float, colour: str, source: str) -> None:
    ax.barh(
        y,
        segment.width,
        left=segment.start,
        height=0.86,
        color=colour,
        edgecolor=GREY,
        linewidth=0.8,
        hatch=_HATCHES[source],
    )


def _label(ax: Axes, segments: Sequence[Segment], wall_s: float, palette: dict[str, str]) -> None:
    """Name the segments that are wide enough inside them, the others in a legend."""
    legend: list[tuple[str, str]] = []
    for segment in segments:
        share = segment.width / wall_s if wall_s else 0.0
        label = f"{segment.name} {100 * share:.0f}%"
        if share < 0.0135 * len(label):
            if segment.width > 0 or segment.name == phases.OTHER:
                legend.append((f"{segment.name} {100 * share:.1f}%", palette.get(segment.name, "none")))
            continue
        ink = GREY if segment.name in _CONTAINERS else _ink(palette[segment.name])
        middle = segment.start + segment.width / 2
        ax.text(middle, -segment.depth, label, ha="center", va="center", color=ink, fontsize=9)
    _legend(ax, legend)


def _legend(ax: Axes, entries: Sequence[tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    if entries:
        handles = [Patch(facecolor=colour, edgecolor=GREY, label=label) for label, colour in entries]
        settings: dict[str, Any] = {"frameon": False, "labelcolor": GREY, "fontsize": 9}
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), **settings)


def _frame(ax: Axes, right: float, xlabel: str) -> None:
    ax.set_xlim(0, right or 1.0)
    ax.set_xlabel(xlabel, color=GREY)
    ax.tick_params(colors=GREY)
    ax.patch.set_alpha(0.0)
    figure = ax.get_figure()
    if figure is not None:
        figure.patch.set_alpha(0.0)
    for side, spine in ax.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GREY)


def _ink(colour: str) -> str:
    """Dark or light text, whichever stands out on that colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return _DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else _LIGHT
