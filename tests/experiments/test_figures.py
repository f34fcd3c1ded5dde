import contextlib
import io
from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.colors
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hybridrl.experiments import figures
from hybridrl.experiments.machine import Machine
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.palette import DARK_PAGE, INK, LIGHT_PAGE, PHASES, placement_style
from hybridrl.experiments.result import NEEDS_GPU, Cell, unknown
from hybridrl.experiments.sources import SOURCES

PARTS = {"update": 4.0, "env": 3.0, "act": 2.0, "other": 0.2}
COLUMNS = {"cpu": PARTS, "cuda": None, "cpu+cuda": PARTS}


@pytest.fixture
def ax() -> Iterator[Axes]:
    before = mpl.get_backend()
    plt.switch_backend("agg")
    with figures.use():
        figure, axes = plt.subplots()
    yield axes
    plt.close(figure)
    plt.switch_backend(before)


def rectangles(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def texts(ax: Axes) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in ax.texts)


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def pixels(figure: Figure) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """The saved figure as RGBA, 0 to 1."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    buffer.seek(0)
    return np.asarray(plt.imread(buffer), dtype=np.float64)


def test_use_leaves_no_trace() -> None:
    before = dict(mpl.rcParams)
    with contextlib.suppress(RuntimeError), figures.use():
        assert mpl.rcParams["text.color"] == INK
        raise RuntimeError
    assert dict(mpl.rcParams) == before


def test_fits_a_phone(ax: Axes, machine: Machine) -> None:
    """360 pixels wide, the text of axes is still some 10 pixels and the smallest some 7."""
    shrunk = 360 / (figures.WIDTH * 72)
    assert figures.style()["font.size"] * shrunk >= 9
    assert figures.SMALL * shrunk >= 7
    figures.caption(ax.figure, machine)
    assert pixels(ax.figure).shape[1] == figures.WIDTH * figures.DPI


def draw_all(ax: Axes, machine: Machine) -> None:
    figures.line(ax, [1, 2], [0.2, 0.8], source="measured", label="cpu")
    ax.set_title("title")
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    figures.legend(ax, SOURCES)
    figures.caption(ax.figure, machine, "5 repeats")


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
def test_the_drawn_figure_reads_on_the_page(ax: Axes, machine: Machine, page: str) -> None:
    """Composed as a browser does: what is opaque must stand out, and the rest must be the page."""
    draw_all(ax, machine)
    image = pixels(ax.figure)
    alpha = image[..., 3:]
    background = np.array(matplotlib.colors.to_rgb(page))
    composed = image[..., :3] * alpha + background * (1 - alpha)
    assert np.allclose(composed[0, 0], background)
    assert (alpha == 0).mean() > 0.5
    opaque = image[alpha[..., 0] == 1][:, :3]
    linear = np.where(opaque <= 0.04045, opaque / 12.92, ((opaque + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    paper = 1.05 if page == LIGHT_PAGE else 0.05 + 0.00605
    contrasts = np.maximum(light / paper, paper / light)
    # filled swatches of the legend (light grey, outlined) are the only thing that may be faint
    assert np.quantile(contrasts, 0.5) >= 3
    swatch = np.abs(opaque - 0xBD / 255).max(axis=1) < 0.15
    assert contrasts[~swatch].min() >= 2.9  # rounding of blended pixels


def test_text_is_never_black_or_white_on_the_page(ax: Axes, machine: Machine) -> None:
    draw_all(ax, machine)
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()  # makes the ticks
    found = [text for text in figure.findobj(mpl.text.Text) if text.get_text()]
    assert len(found) > 15
    for text in found:
        assert matplotlib.colors.to_hex(text.get_color()) == INK, text


def test_bars_show_each_source_by_more_than_colour(ax: Axes) -> None:
    figures.bars(ax, list("abcd"), [Cell(1.0, source) for source in SOURCES], unit="s", colors=["#0072b2"] * 4)
    measured, simulated, predicted, published = rectangles(ax)
    assert (measured.get_linestyle(), measured.get_hatch() or "") == ("solid", "")
    assert simulated.get_linestyle() == predicted.get_linestyle() == "dashed"
    assert simulated.get_hatch()
    assert predicted.get_hatch()
    assert simulated.get_hatch() != predicted.get_hatch()
    assert published.get_linestyle() == "dotted"
    assert matplotlib.colors.to_rgba(published.get_facecolor())[3] == 0
    assert legend(ax) == list(SOURCES)
    for mark in ("1 meas", "1 sim", "1 pred", "1 publ"):
        assert mark in texts(ax)


def test_bars_are_medians_with_the_whole_spread(ax: Axes) -> None:
    figures.bars(ax, ["cpu"], [Cell(Measurement([10.0, 2.0, 3.0], "s"), "measured")], unit="s")
    assert rectangles(ax)[0].get_width() == 3
    assert list(ax.lines[0].get_xdata()) == [2, 10]
    assert ax.get_xlim()[1] > 10


def test_an_unknown_bar_is_an_empty_outline_with_its_reason(ax: Axes) -> None:
    figures.bars(ax, ["cpu", "cuda"], [Cell(2.0, "measured"), unknown(NEEDS_GPU)], unit="s")
    missing = rectangles(ax)[1]
    assert missing.get_linestyle() == "dotted"
    assert matplotlib.colors.to_rgba(missing.get_facecolor())[3] == 0
    assert NEEDS_GPU in texts(ax)
    assert legend(ax) == ["measured"]


def test_all_unknown_still_draws(ax: Axes) -> None:
    figures.bars(ax, ["cpu"], [unknown()], unit="s")
    assert "unknown" in texts(ax)
    assert legend(ax) == []
    pixels(ax.figure)


@pytest.mark.parametrize(
    ("source", "look"), [("measured", "-"), ("simulated", "--"), ("predicted", "--"), ("published", ":")]
)
def test_lines_by_source(ax: Axes, source: str, look: str) -> None:
    style = placement_style("cuda")
    figures.line(ax, [1, 2], [1, 2], source=source, label="cuda", style=style)  # type: ignore[arg-type]
    (drawn,) = ax.lines
    assert drawn.get_linestyle() == look
    assert drawn.get_color() == (INK if source == "published" else style[0])
    assert drawn.get_marker() == style[1]
    figures.legend(ax)
    assert legend(ax) == ["cuda" if source == "measured" else f"cuda ({source})"]


def test_a_line_breaks_at_the_unknown_and_shows_spread(ax: Axes) -> None:
    points = [Measurement([1.0, 2.0, 6.0], "s"), None, 4.0]
    figures.line(ax, [1, 2, 3], points, source="measured", label="cpu")
    assert np.array_equal(ax.lines[0].get_ydata(), [2, np.nan, 4], equal_nan=True)
    segments = ax.collections[0].get_segments()
    assert segments[0].tolist() == [[1, 1], [1, 6]]


def test_stack_heights_are_the_phases_and_sum_to_the_total(ax: Axes) -> None:
    figures.stacked(ax, {"cpu": PARTS}, unit="s")
    drawn = rectangles(ax)
    heights = [PARTS[phase] for phase in ("act", "env", "update", "other")]
    assert [bar.get_height() for bar in drawn] == pytest.approx(heights)
    assert [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in drawn] == [
        PHASES[phase] for phase in ("act", "env", "update", "other")
    ]
    assert drawn[-1].get_y() + drawn[-1].get_height() == pytest.approx(sum(PARTS.values()))
    assert "9.2" in texts(ax)
    assert "update 4" in texts(ax)
    assert legend(ax) == ["act", "env", "update", "other", "measured"]


def test_a_missing_column_is_not_a_zero(ax: Axes) -> None:
    figures.stacked(ax, COLUMNS, unit="s", sources={"cpu+cuda": "simulated"})
    empty = [bar for bar in rectangles(ax) if matplotlib.colors.to_rgba(bar.get_facecolor())[3] == 0]
    assert len(empty) == 1
    assert empty[0].get_height() == pytest.approx(9.2)
    assert empty[0].get_linestyle() == "dotted"
    assert NEEDS_GPU in texts(ax)
    hatched = [bar for bar in rectangles(ax) if bar.get_hatch()]
    assert len(hatched) == len(PARTS)
    assert all(bar.get_linestyle() == "dashed" for bar in hatched)
    assert "simulated" in legend(ax)


def test_labels_stay_inside_their_columns(ax: Axes) -> None:
    parts = {"transfer": 1.23, "update": 1.0}
    columns = {"cpu": parts, "cuda": parts, "cpu+cuda": parts, "cuda+cuda": parts, "x": None}
    figures.stacked(ax, columns, unit="s")
    pixels(ax.figure)
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_window_extent() for bar in rectangles(ax)}
    for text in ax.texts:
        box, bar = (
            text.get_window_extent(),
            bars[round(text.xy[0] if hasattr(text, "xy") else text.get_position()[0])],
        )
        assert box.x0 >= bar.x0 - 1, text
        assert box.x1 <= bar.x1 + 1, text


def test_stack_refuses_an_unknown_phase(ax: Axes) -> None:
    with pytest.raises(ValueError, match="'dream'"):
        figures.stacked(ax, {"cpu": {"dream": 1.0}}, unit="s")


def test_learning_curve_is_the_median_of_what_all_seeds_reached(ax: Axes) -> None:
    runs = [([0, 10, 20], [0.0, 10.0, 20.0]), ([5, 15], [50.0, 50.0]), ([0, 20], [3.0, 3.0])]
    figures.learning_curve(ax, runs, label="tuned")
    median = ax.lines[-1]
    assert list(median.get_xdata()) == [5, 10, 15]
    assert list(median.get_ydata()) == [5, 10, 15]  # of 5, 50, 3; 10, 50, 3; 15, 50, 3
    assert len(ax.lines) == len(runs) + 1  # every seed is drawn too
    figures.legend(ax)
    assert legend(ax) == ["tuned, 3 seeds"]
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (3, 50)


def test_one_seed_says_so_and_has_no_band(ax: Axes) -> None:
    figures.learning_curve(ax, [([0, 1], [0.0, 1.0])], label="classic", source="published")
    assert len(ax.collections) == 0
    figures.legend(ax)
    assert legend(ax) == ["classic, one seed (published)"]
    assert ax.lines[-1].get_linestyle() == ":"


def test_caption_wraps_inside_the_figure(ax: Axes, machine: Machine) -> None:
    figure = ax.figure
    assert isinstance(figure, Figure)
    figures.caption(figure, machine, "5 repeats, median and lowest to highest")
    pixels(figure)
    (written,) = [text for text in figure.findobj(mpl.text.Text) if "Xeon" in text.get_text()]
    assert "torch 2.13.0" in written.get_text().replace("\n", " ")
    assert "5 repeats" in written.get_text().replace("\n", " ")
    box = written.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= 0


@pytest.mark.parametrize("names", [["cpu"], ["a rather long name of a line"] * 4, list("abcdefghij")])
def test_legend_stays_inside_and_below_the_axis(ax: Axes, machine: Machine, names: list[str]) -> None:
    ax.set_xlabel("environments")
    for name in names:
        figures.line(ax, [1, 2], [1, 2], source="simulated", label=name)
    figures.legend(ax, SOURCES)
    figures.caption(ax.figure, machine)
    pixels(ax.figure)
    found = ax.get_legend()
    assert found is not None
    box = found.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= ax.figure.bbox.x1
    assert box.y1 <= ax.xaxis.label.get_window_extent().y0


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: figures.bars(ax, ["cpu"], [], unit="s"),
        lambda ax: figures.line(ax, [1], [1, 2], source="measured", label=""),
        lambda ax: figures.line(ax, [1], [1], source="guessed", label=""),
        lambda ax: figures.learning_curve(ax, [], label=""),
    ],
)
def test_mistakes_say_what_was_expected(ax: Axes, draw: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        draw(ax)  # type: ignore[operator]
