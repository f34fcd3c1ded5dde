"""Figures of how a rollout reaches a device: time against bytes, a line a way."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridrl.experiments import figures
from hybridrl.experiments.measurement import Measurement, format_value
from hybridrl.experiments.palette import INK, LINES
from hybridrl.experiments.transfers import Transfers, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Style = tuple[str, str]
COPIES: tuple[tuple[str, Style], ...] = (
    ("item by item", LINES[1]),
    ("items stacked on the host", LINES[3]),
    ("field by field", LINES[2]),
    ("arena", LINES[0]),
)
PINNING: tuple[tuple[str, Style], ...] = (
    ("arena", LINES[0]),
    ("arena, pinned once", LINES[2]),
    ("arena, pinned once, non-blocking", (LINES[2][0], "v")),  # the same memory, in the same colour
    ("arena, pinned each time", LINES[1]),
    ("fields, pinned each time (as published)", LINES[3]),
)


def draw_copies(ax: "Axes", transfers: Transfers) -> None:
    """C6: the same bytes in many copies or in one, out of ordinary memory."""
    ax.set_title("in many copies, or in one")
    _draw(ax, transfers, COPIES)


def draw_pinning(ax: "Axes", transfers: Transfers) -> None:
    """B7: out of ordinary memory, or page-locked memory that is kept, or that is made each time.

    Where nothing can be page-locked, the axes say so beside the arena's one line.
    """
    ax.set_title("out of ordinary memory, or page-locked")
    _draw(ax, transfers, PINNING)


def _draw(ax: "Axes", transfers: Transfers, ways: Sequence[tuple[str, Style]]) -> None:
    sizes = [timed.nbytes for timed in transfers.timed]
    for name, style in ways:
        if name in transfers.timed[0].seconds:
            points = [Measurement([1e6 * s for s in t.seconds[name].values], "µs") for t in transfers.timed]
            figures.line(ax, sizes, points, source="measured", label=name, style=style)
    _log_axes(ax)
    if any(name not in transfers.timed[0].seconds for name, _ in ways):
        text = f"page-locked memory: {transfers.reason}"
        ax.text(0.02, 0.98, text, transform=ax.transAxes, fontsize=figures.SMALL, color=INK, style="italic", va="top")
    figures.legend(ax)


def _log_axes(ax: "Axes") -> None:
    from matplotlib.ticker import NullFormatter

    ax.set_xlabel("bytes of a rollout")
    ax.set_ylabel("µs until it is there")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(lambda value, position: format_bytes(int(value)))
    ax.yaxis.set_major_formatter(lambda value, position: format_value(value))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
