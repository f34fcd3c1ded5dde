"""Figures of costs by size: time against batch, and the width from which on a device is faster."""

from typing import TYPE_CHECKING, Any

from hybridrl.experiments import figures
from hybridrl.experiments.measurement import Measurement, format_value
from hybridrl.experiments.palette import INK, LINES, placement_style
from hybridrl.experiments.result import NEEDS_GPU
from hybridrl.experiments.update_cost import PUBLISHED_CROSSOVER, Case, Costs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_APART = 0.07  # of the height: labels closer than this would touch


def draw_times(ax: "Axes", costs: Costs) -> None:
    """Time of a call against the batch: a colour a device, a line a width, named at its right end."""
    batches = costs.sweep.batches
    for device in costs.devices:
        for width in costs.sweep.widths:
            times = [costs.times[Case(device, width, batch)] for batch in batches]
            label = device if width == costs.sweep.widths[0] else "_"  # one entry of the legend a device
            points = [Measurement([1e6 * s for s in time.values], "µs") for time in times]
            figures.line(ax, batches, points, source="measured", label=label, style=placement_style(device))
    _log_axes(ax, "observations in a batch", "µs a call")
    _name_ends(ax, costs)
    if len(costs.devices) == 1:
        _say(ax, f"on a GPU: {NEEDS_GPU}")
    figures.legend(ax)


def draw_crossover(ax: "Axes", costs: Costs) -> None:
    """B3: the widths between which the order changes, at each batch, beside the published ones.

    Without an accelerator, or where no batch has a crossover, the axes say so.
    """
    batches = costs.sweep.batches
    for width, label in zip(PUBLISHED_CROSSOVER, ("CPU faster below", "GPU faster above"), strict=True):
        figures.line(ax, [batches[0], batches[-1]], [width, width], source="published", label=label)
    _log_axes(ax, "observations in a batch", "hidden units")
    ax.set_ylim(costs.sweep.widths[0] / 1.5, costs.sweep.widths[-1] * 1.5)
    for device in costs.devices[1:]:
        _bracket(ax, costs, device)
    if len(costs.devices) == 1:
        _say(ax, f"here: {NEEDS_GPU}")
    figures.legend(ax)


def _bracket(ax: "Axes", costs: Costs, device: str) -> None:
    batches = costs.sweep.batches
    crossings = [costs.by_width(device, batch) for batch in batches]
    if not any(crossing.found for crossing in crossings):
        smallest, largest = costs.sweep.widths[0], costs.sweep.widths[-1]
        _say(ax, f"{device}: no crossover from {smallest:,} to {largest:,} units")
        return
    lower = [crossing.first_up_to if crossing.found else None for crossing in crossings]
    upper = [crossing.second_from if crossing.found else None for crossing in crossings]
    figures.line(ax, batches, lower, source="measured", label="cpu faster up to", style=LINES[0])
    figures.line(ax, batches, upper, source="measured", label=f"{device} faster from", style=LINES[1])


def _log_axes(ax: "Axes", x: str, y: str) -> None:
    from matplotlib.ticker import NullFormatter

    for axis, name in ((ax.xaxis, x), (ax.yaxis, y)):
        axis.set_label_text(name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, position: format_value(value))
        axis.set_minor_formatter(NullFormatter())


def _name_ends(ax: "Axes", costs: Costs) -> None:
    """The widths beside the right ends of their lines, each label far enough above the one below it."""
    last, (bottom, top) = costs.sweep.batches[-1], ax.get_ylim()
    step, free = (top / bottom) ** _APART, bottom
    look: dict[str, Any] = {"fontsize": figures.SMALL, "color": INK, "va": "center", "annotation_clip": False}
    for time, name in sorted(label for device in costs.devices for label in _ends(costs, device, step)):
        place = max(time, free)
        ax.annotate(name, (last, place), (6, 0), textcoords="offset points", **look)
        free = place * step


def _ends(costs: Costs, device: str, step: float) -> list[tuple[float, str]]:
    """Where each line of a device ends, and its width; lines that end together share one label."""
    last = costs.sweep.batches[-1]
    ends = sorted((1e6 * costs.times[Case(device, width, last)].median, width) for width in costs.sweep.widths)
    groups: list[list[tuple[float, int]]] = [[]]
    for end in ends:
        if groups[-1] and end[0] > groups[-1][0][0] * step:
            groups.append([])
        groups[-1].append(end)
    return [(group[len(group) // 2][0], _widths([width for _, width in group])) for group in groups]


def _widths(widths: list[int]) -> str:
    low, high = min(widths), max(widths)
    return f"{low:,} units" if low == high else f"{low:,} to {high:,} units"


def _say(ax: "Axes", text: str) -> None:
    look: dict[str, Any] = {"fontsize": figures.SMALL, "color": INK, "style": "italic", "va": "top"}
    ax.text(0.02, 0.98, text, transform=ax.transAxes, **look)
