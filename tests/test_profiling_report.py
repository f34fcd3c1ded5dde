import json
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import matplotlib
import pytest

from hybridrl.profiling import FakeClock, PhaseRow, PhaseTimer, Report, compare

matplotlib.use("Agg")


def row(path, calls, total, own=None, first=None):
    return PhaseRow(tuple(path.split("/")), calls, total, total if own is None else own, first)


def example(**changes):
    report = Report(
        wall_s=10.0,
        cpu_s=12.5,
        threads=2,
        phases=(
            row("collect", 5, 6.0, 0.5),
            row("collect/act", 50, 1.5),
            row("collect/env", 50, 4.0),
            row("learn", 5, 3.0, 0.0),
            row("learn/update", 5, 3.0, first=1.0),
        ),
        overhead_s=0.05,
        counters={"env_steps": 4_000, "updates": 5},
        notes=("CartPole-v1 x 8",),
    )
    return replace(report, **changes)


def test_phases_and_other_are_the_wall_time_to_the_nanosecond():
    """Tenths of seconds aren't binary fractions: summing floats would miss."""
    report = Report(wall_s=1.0, phases=tuple(row(name, 1, 0.1) for name in "abcdefg"))
    assert report.other_s == 0.3
    assert example().other_s == 1.0


def test_seconds_and_share_by_name_by_path_and_unknown():
    report = example(phases=(*example().phases, row("env", 1, 0.5), row("env/env", 1, 0.25)))
    assert (report.seconds("env"), report.seconds("collect/env"), report.seconds("env/env")) == (4.5, 4, 0.25)
    assert (report.share("learn"), report.share("other")) == (0.3, 0.05)
    assert report.seconds("transfer") is None
    assert report.share("transfer") is None


def test_rates_and_the_bottleneck():
    assert example().steps_per_second == 400
    assert example(counters={}).steps_per_second is None
    assert example().bottleneck == "collect/env"
    assert example(phases=(row("env", 1, 2.0),)).bottleneck == "other"
    assert Report(wall_s=0.0).bottleneck is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wall_s": -1.0}, "wall_s=-1.0: expected finite seconds"),
        ({"wall_s": float("nan")}, "wall_s=nan: expected finite seconds"),
        ({"wall_s": 8.0}, "top-level phases take 1 s more than wall_s=8"),
        ({"source": "guessed"}, "source='guessed': expected one of measured, simulated, published"),
    ],
)
def test_impossible_reports(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        example(**changes)


def test_a_report_survives_json():
    report = example(source="simulated", cpu_s=None, threads=None)
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert report.to_dict()["other_s"] == 1.0
    assert report.to_dict()["steps_per_second"] == 400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("phases"), "no key 'phases'"),
        (lambda values: values.pop("wall_s"), "wall_s"),
        (lambda values: values.update(extra=1), "extra"),
        (lambda values: values["phases"][0].pop("calls"), "calls"),
    ],
)
def test_what_is_not_a_report(change, message):
    values = example().to_dict()
    change(values)
    with pytest.raises(ValueError, match=f"^not a report.*{message}.*: expected what Report.to_dict wrote"):
        Report.from_dict(values)


def test_text_shows_the_tree_other_and_the_totals():
    assert str(example()).splitlines() == [
        " phase       calls   total s   share   µs / call",
        " ───────────────────────────────────────────────",
        " collect         5     6.000   60.0%   1,200,000",
        " ├─ act         50     1.500   15.0%      30,000",
        " └─ env         50     4.000   40.0%      80,000",
        " learn           5     3.000   30.0%     600,000",
        " └─ update       5     3.000   30.0%     600,000",
        " other                 1.000   10.0%",
        "measured: wall 10.00 s, CPU 12.50 s, threads 2, timer overhead 0.05000 s (0.5%, in other)",
        "env_steps 4,000, updates 5, steps/s 400",
        "CartPole-v1 x 8",
    ]


def test_unknown_is_a_word():
    shown = str(Report(wall_s=1.0))
    assert "CPU unknown s, threads unknown" in shown
    assert "steps/s unknown" in shown


def test_an_unlike_first_call_is_pointed_out():
    slow = example(phases=(row("update", 11, 3.0, first=2.9), row("env", 11, 3.0, first=0.3)))
    assert "first call of update: 2.900 s, the others 0.01000 s each" in str(slow)
    assert "first call of env" not in str(slow)


def test_rich_table_prints_what_the_text_says():
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=200).print(example().table())
    for line in str(example()).splitlines()[:8]:
        assert line.strip() in out.getvalue()
    assert "timer overhead" in out.getvalue()


def test_html_has_no_colours_of_its_own_for_text_and_escapes_names():
    page = example(phases=(row("a<b", 1, 1.0),), notes=("x & y",))._repr_html_()
    assert "a&lt;b" in page
    assert "x &amp; y" in page
    assert not re.search(r"(?<![-\w])color: (?!inherit)|#000|#fff|\bblack\b|\bwhite\b(?!-)", page)


# --- pictures


def blocks(ax, y):
    """Where the blocks of the bar centred at y begin, and how wide they are."""
    bar = [block for block in ax.patches if block.get_y() + block.get_height() / 2 == pytest.approx(y)]
    return [(block.get_x(), block.get_width()) for block in bar]


def test_plot_divides_the_wall_time_without_gaps():
    ax = example().plot()
    top, inner = blocks(ax, 0), blocks(ax, -1)
    assert top == [(0, 6), (6, 3), (9, 1)]
    assert inner == [(0, 1.5), (1.5, 4), (6, 3)]
    assert {text.get_text() for text in ax.texts} >= {"collect 60%", "env 40%", "learn 30%"}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["other 10.0%"]
    matplotlib.pyplot.close(ax.figure)


def test_plot_draws_where_it_is_told_and_marks_what_was_not_measured():
    figure, ax = matplotlib.pyplot.subplots()
    assert example(source="simulated").plot(ax) is ax
    assert any(patch.get_hatch() for patch in ax.patches)
    assert "simulated" in ax.get_xlabel()
    matplotlib.pyplot.close(figure)


def test_text_outside_the_blocks_is_readable_on_light_and_dark():
    ax = example().plot()
    outside = [ax.xaxis.label, *ax.get_xticklabels(), *ax.get_legend().get_texts()]
    for text in outside:
        grey = matplotlib.colors.to_rgb(text.get_color())
        assert 0.4 < min(grey) == max(grey) < 0.6
    matplotlib.pyplot.close(ax.figure)


def test_a_phase_keeps_its_colour_in_every_figure():
    colours = []
    for phases in [(row("env", 1, 5.0),), (row("mine", 1, 1.0), row("env", 1, 5.0))]:
        ax = example(phases=phases).plot()
        colours.append(next(p.get_facecolor() for p in ax.patches if p.get_width() == 5))
        assert len({patch.get_facecolor() for patch in ax.patches}) == len(ax.patches)
        matplotlib.pyplot.close(ax.figure)
    assert colours[0] == colours[1]


def test_a_run_of_no_time_is_no_error():
    report = Report(wall_s=0.0, counters={"env_steps": 0})
    assert report.steps_per_second is None
    assert str(report).splitlines()[2].split() == ["other", "0", "unknown"]
    matplotlib.pyplot.close(report.plot().figure)


# --- side by side


def article():
    """The per-phase table of the article on hybrid acceleration, in milliseconds."""
    columns = {"cpu": (120, 45, 55, None), "cuda": (180, 30, 40, 150), "cpu+cuda": (110, 32, 38, 20)}
    names = ("env", "act", "update", "transfer")
    return {
        placement: Report(
            wall_s=sum(filter(None, times)) / 1e3,
            phases=tuple(row(n, 1, ms / 1e3) for n, ms in zip(names, times, strict=True) if ms is not None),
            source="published",
            counters={"updates": 1},
        )
        for placement, times in columns.items()
    }


def test_comparison_has_a_column_a_placement():
    assert str(compare({**article(), "mps": None}, per="updates")).splitlines() == [
        "                  cpu        cuda    cpu+cuda       mps",
        " phase      published   published   published   unknown",
        " ──────────────────────────────────────────────────────",
        " env           120.00      180.00      110.00   unknown",
        " act            45.00       30.00       32.00   unknown",
        " update         55.00       40.00       38.00   unknown",
        " transfer           –      150.00       20.00   unknown",
        " other           0.00        0.00        0.00   unknown",
        " wall          220.00      400.00      200.00   unknown",
        " steps/s      unknown     unknown     unknown   unknown",
        "ms per update; – no such phase there",
    ]


def test_comparison_without_the_counter_is_unknown_not_zero():
    lines = str(compare({"cpu": example()}, per="frames")).splitlines()
    assert [line.split()[-1] for line in lines[3:-3]] == ["unknown"] * (len(lines) - 6)


def test_comparison_keeps_children_with_their_parents():
    other = example(phases=(row("learn", 1, 2.0, 1.0), row("learn/transfer", 1, 1.0), row("wait", 1, 1.0)))
    page = compare({"a": example(), "b": other})._repr_html_()
    names = re.findall(r'scope="row"[^>]*>([^<]*)<', page)
    assert " ".join(names) == "collect act env learn update transfer wait other wall steps/s"


def test_comparison_bars_are_as_long_as_their_walls():
    reports = {**article(), "tree": example()}
    ax = compare({**reports, "mps": None}).plot()
    for y, report in enumerate(reports.values()):
        assert sum(width for _, width in blocks(ax, -y)) == pytest.approx(report.wall_s)
    assert blocks(ax, -4) == []
    assert "unknown" in ax.texts[-1].get_text()
    matplotlib.pyplot.close(ax.figure)


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="expected at least one report"):
        compare({})


def test_importing_the_profiler_loads_neither_torch_nor_matplotlib():
    code = "import sys, hybridrl.profiling; print({'torch', 'matplotlib', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_timed_run_reports_itself():
    clock = FakeClock()
    timer = PhaseTimer(clock=clock, cpu_clock=clock)
    with timer.run(), timer.phase("env"):
        clock.advance(2)
    report = timer.report(threads=3, counters={"env_steps": 10}, notes=["a note"], source="simulated")
    assert (report.threads, report.steps_per_second) == (3, 5)
    assert (report.notes, report.source) == (("a note",), "simulated")
