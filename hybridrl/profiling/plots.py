"""Bars of phases: one colour a phase everywhere, from Okabe and Ito's colour-blind safe palette."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
REST = "rest"  # of phases, outside the phases inside them
_DARK, _LIGHT = "#1a1a1a", "#ffffff"  # text on a filled segment only, never on the page
_HATCHES = {"measured": "", "simulated": "///", "published": "..."}


class Segment(NamedTuple):
    """An interval of a bar: the path of its phase, from where, how long."""

    path: tuple[str, ...]
    start: float
    width: float

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path[-1]


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: the phase's own; for other names what is left of the palette, in turn."""
    names = list(dict.fromkeys(names))
    known = {name: _COLOURS[name] for name in names if name in _COLOURS}
    free = [colour for colour in _PALETTE if colour not in known.values()] or list(_PALETTE)
    new = [name for name in names if name not in known]
    return known | {name: free[i % len(free)] for i, name in enumerate(new)}


def draw_tree(segments: Sequence[Segment], wall_s: float, title: str, source: str, ax: Axes | None = None) -> Axes:
    """Top-level phases as one bar, what is inside them as a bar below, and so on; returns the axes."""
    depths = max(len(segment.path) for segment in segments)
    ax = ax if ax is not None else _new_axes(0.75 + 0.55 * depths)
    parents = {segment.path[:-1] for segment in segments}
    leaves = [segment for segment in segments if segment.path not in parents]
    palette = colours(leaf.name for leaf in leaves)
    for segment in segments:
        _draw(ax, segment, 1 - len(segment.path), palette[segment.name] if segment in leaves else None, source)
    narrow = [segment for segment in segments if not _label(ax, segment, wall_s, segment in leaves, palette)]
    _legend(ax, [(_share(s, wall_s, digits=1), palette.get(s.name)) for s in narrow])
    _frame(ax, wall_s, f"wall time, s ({title})")
    ax.set_yticks([])
    return ax


def draw_bars(bars: Sequence[tuple[str, str | None, Sequence[Segment]]], unit: str, ax: Axes | None = None) -> Axes:
    """One stacked bar a (label, source, segments), on one scale, with one legend; returns the axes.

    A bar without segments is drawn as the word "unknown".
    """
    ax = ax if ax is not None else _new_axes(0.9 + 0.5 * len(bars))
    names = dict.fromkeys(segment.name for _, _, segments in bars for segment in segments)
    order = sorted(names, key=lambda name: (name == REST) + 2 * (name == phases.OTHER))
    palette: dict[str, str | None] = {**colours(name for name in order if name != REST), REST: None}
    for row, (_, source, segments) in enumerate(bars):
        for segment in segments:
            _draw(ax, segment, -row, palette[segment.name], source or "")
        if not segments:
            ax.text(0, -row, "  unknown", ha="left", va="center", color=GREY, fontsize=9)
    _frame(ax, max((s.start + s.width for _, _, segments in bars for s in segments), default=1.0), unit)
    labels = [f"{label}\n{source}" if source else label for label, source, _ in bars]
    ax.set_yticks([-row for row in range(len(bars))], labels)
    ax.set_ylim(0.5 - len(bars), 0.5)
    _legend(ax, [(name, palette[name]) for name in order])
    return ax


def _new_axes(height: float) -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7.2, height), layout="constrained")[1]


def _draw(ax: Axes, segment: Segment, y: float, colour: str | None, source: str) -> None:
    """A block; without a colour only its outline, which is never hatched so that its label stays legible."""
    place: dict[str, Any] = {"left": segment.start, "height": 0.86, "edgecolor": GREY, "linewidth": 0.8}
    hatch = _HATCHES.get(source, "") if colour else ""
    ax.barh(y, segment.width, color=colour or "none", hatch=hatch, **place)


def _label(ax: Axes, segment: Segment, wall_s: float, leaf: bool, palette: Mapping[str, str]) -> bool:
    """Name a segment inside it where it is wide enough; whether it was, or is nothing at all."""
    label = _share(Segment(segment.path[-1:], segment.start, segment.width), wall_s, digits=0)
    if segment.width < 0.0135 * len(label) * wall_s:
        return not segment.width
    middle, y = segment.start + segment.width / 2, 1 - len(segment.path)
    colour = palette[segment.name] if leaf else None
    patch = {"facecolor": colour, "edgecolor": "none", "pad": 1.0} if colour else None  # over the hatching
    ink = _ink(colour) if colour else GREY
    ax.text(middle, y, label, ha="center", va="center", color=ink, fontsize=9, bbox=patch)
    return True


def _share(segment: Segment, wall_s: float, digits: int) -> str:
    return f"{'/'.join(segment.path)} {100 * segment.width / wall_s if wall_s else 0:.{digits}f}%"


def _legend(ax: Axes, entries: Sequence[tuple[str, str | None]]) -> None:
    from matplotlib.patches import Patch

    if entries:
        handles = [Patch(facecolor=colour or "none", edgecolor=GREY, label=label) for label, colour in entries]
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
