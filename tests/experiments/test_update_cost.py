"""The cost of an update and of acting: exact on times made to order, and real work on the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from hybridrl.experiments import cost_figures, figures, update_cost
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.palette import placement_style
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result
from hybridrl.experiments.update_cost import Case, Costs, Sweep
from hybridrl.flat import FlatParameters
from hybridrl.profiling import FakeClock

SIZES = Sweep(widths=(64, 256), batches=(1, 8), repeats=3, warmup=2)


def seconds(case: Case) -> float:
    """Made up: the CPU's time grows with the work, the GPU's is one launch; they cross once, by the batch."""
    return case.width * case.batch / 512 if case.device == "cpu" else 1.0


def measured(names: tuple[str, ...], sizes: Sweep = SIZES, first_s: float = 100.0) -> Costs:
    """Measure made-up work: its first call takes longer, and its times are those above."""
    clock = FakeClock()

    def work(case: Case) -> Callable[[], object]:
        durations = iter([first_s])
        return lambda: clock.advance(next(durations, seconds(case)))

    return update_cost.measure(work, sizes, names=names, clock=lambda: clock() / 1e9)


@pytest.fixture
def both() -> Costs:
    return measured(("cpu", "cuda"))


@pytest.fixture
def alone() -> Costs:
    return measured(("cpu",))


@pytest.fixture
def ax() -> Iterator[Axes]:
    before = plt.get_backend()
    plt.switch_backend("agg")
    with figures.use():
        figure, axes = plt.subplots()
    yield axes
    plt.close(figure)
    plt.switch_backend(before)


def row(table: Result, label: str, quantity: str) -> tuple[Cell, ...]:
    (found,) = [row.cells for row in table.rows if (row.label, row.quantity) == (label, quantity)]
    return found


# --- what is measured


def test_every_size_is_timed_on_every_device_without_its_first_call(both: Costs) -> None:
    assert len(both.times) == 2 * 2 * 2
    for case, time in both.times.items():
        assert time.values == pytest.approx([seconds(case)] * 3)
        assert both.first_s[case] == pytest.approx(100.0)


def test_the_devices_take_turns_at_each_size() -> None:
    calls: list[Case] = []

    def work(case: Case) -> Callable[[], object]:
        return lambda: calls.append(case)

    sizes = Sweep(widths=(2,), batches=(1, 4), repeats=1, warmup=1)
    update_cost.measure(work, sizes, names=("cpu", "cuda"))
    assert [(case.batch, case.device) for case in calls] == [(b, d) for b in (1, 4) for _ in range(3) for d in CPU_CUDA]


CPU_CUDA = ("cpu", "cuda")


def test_only_the_first_accelerator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_cost.devices, "available", lambda: ("cpu", "cuda", "cuda:1"))
    assert update_cost.measure(lambda case: lambda: None, SIZES).devices == CPU_CUDA


def test_an_update_is_one_step_of_adam_on_the_value_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's first step moves every parameter that has a gradient by the learning rate, whatever the gradient."""
    made: list[FlatParameters] = []

    def flat(module: torch.nn.Module) -> FlatParameters:
        made.append(FlatParameters(module))
        return made[-1]

    monkeypatch.setattr(update_cost, "FlatParameters", flat)
    run = update_cost.update(Case("cpu", 32, 16))
    (parameters,) = made
    assert len(parameters.values) == 4 * 32 + 32 + 32 + 1
    before = parameters.values.clone()
    run()
    moved = (parameters.values - before).abs()
    assert parameters.gradients.ne(0).sum() > 32
    assert moved[parameters.gradients.abs() > 1e-4].numpy() == pytest.approx(1e-3, rel=1e-2)


class FakeDevice:
    """Counts what is moved where, and how often somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves: list[tuple[type, str]] = []
        self.waits = 0
        monkeypatch.setattr(update_cost, "move", self.move)
        monkeypatch.setattr(update_cost.devices, "resolve", lambda name: torch.device("cpu"))
        monkeypatch.setattr(update_cost.devices, "synchronizer", lambda device: self.wait)

    def move(self, tree: Any, device: object) -> Any:
        self.moves.append((type(tree), str(device)))
        return tree

    def wait(self) -> None:
        self.waits += 1


def test_an_update_waits_for_its_device_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """C104: without the wait, queued work would look free."""
    device = FakeDevice(monkeypatch)
    run = update_cost.update(Case("cuda", 8, 4))
    device.moves.clear()
    for calls in (1, 2):
        run()
        assert device.waits == calls
    assert device.moves == []


def test_acting_moves_one_array_in_and_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    run = update_cost.acting(Case("cuda", 8, 4))
    device.moves.clear()
    run()
    assert [kind for kind, _ in device.moves] == [torch.Tensor, torch.Tensor]
    assert device.moves[-1][1] == "cpu"


def test_acting_ends_with_actions_on_the_host() -> None:
    run = update_cost.acting(Case("cpu", 32, 500))
    actions = run()
    assert isinstance(actions, np.ndarray)
    assert (actions.shape, set(actions)) == ((500,), {0, 1})
    assert not np.array_equal(actions, run())  # sampled, not greedy


def test_sizes_must_ascend() -> None:
    for given in ((), (0, 1), (4, 2), (2, 2)):
        with pytest.raises(ValueError, match="expected ascending whole numbers of at least 1"):
            Sweep(widths=given, batches=(1,), repeats=1)


# --- what is said of it


def test_crossovers_of_made_up_times(both: Costs) -> None:
    """CPU: 0.125 and 0.5 s at batch 1, 1 and 4 s at batch 8. GPU: 1 s."""
    assert str(both.by_width("cuda", 1)) == "no crossover from 64 to 256: cpu faster throughout"
    assert str(both.by_width("cuda", 8)) == (
        "no crossover from 64 to 256: cuda faster from 256 on, before that no clear order"
    )
    assert str(both.by_batch("cuda", 256)) == "between 1 and 8"
    assert both.comparison("cuda", 256, 8).ratio == pytest.approx(4.0)


def test_update_table_beside_the_claims(both: Costs) -> None:
    table = update_cost.update_table(both)
    assert table.columns == CPU_CUDA
    assert row(table, "article B", "256 units, CPU time / this, as published")[1] == Cell(1.8, "published")
    assert row(table, "articles B, C", "crossover, as published")[1] == Cell("128 to 256", "published")
    ratio = row(table, "256 units", "batch 8, CPU time / this")[1]
    assert (ratio.number, ratio.source) == (pytest.approx(4.0), "measured")
    assert str(row(table, "crossover", "batch 1, here")[1].value).endswith("cpu faster throughout")
    times = row(table, "256 units", "an update, batch 8")
    assert [cell.number for cell in times] == pytest.approx([4e6, 1e6])
    assert "in no number above: 100,000 ms on cpu, 100,000 ms on cuda" in table.caption()


def test_a_ratio_within_its_spread_says_so(both: Costs) -> None:
    """C08: three pairs whose ranges overlap have no winner."""
    cases = {Case("cpu", 256, 8): [1.0, 2.0, 3.0], Case("cuda", 256, 8): [1.5, 2.5, 1.9]}
    times = dict(both.times) | {case: Measurement(values, "s") for case, values in cases.items()}
    costs = Costs(sweep=both.sweep, devices=both.devices, times=times, first_s=both.first_s)
    assert (
        row(update_cost.update_table(costs), "256 units", "batch 8, CPU time / this")[1].note == "no clear difference"
    )


def test_acting_table_beside_the_claims(both: Costs) -> None:
    table = update_cost.acting_table(both)
    assert row(table, "article C", "act, CPU time / this, as published")[1].number == pytest.approx(45 / 30)
    assert row(table, "article C", "update, CPU time / this, as published")[1].number == pytest.approx(55 / 40)
    assert row(table, "crossover", "256 units, here")[1].value == "between 1 and 8"
    assert "transfers of observations and actions are included" in table.caption()


def test_without_a_gpu_its_column_is_empty_with_the_reason(alone: Costs) -> None:
    for table in (update_cost.update_table(alone), update_cost.acting_table(alone)):
        assert table.columns == ("cpu", "gpu")
        gpu = [row.cells[1] for row in table.rows]
        assert {cell.text() for cell in gpu if cell.source != "published"} == {NEEDS_GPU}
        assert all(not cell.known for cell in gpu if cell.source != "published")
        times = [row.cells[0] for row in table.rows if row.unit == "µs"]
        assert len(times) == 4
        assert all(cell.known for cell in times)


def test_a_width_that_was_not_timed_has_no_row() -> None:
    costs = measured(CPU_CUDA, Sweep(widths=(8,), batches=(1,), repeats=3))
    assert not [row for row in update_cost.update_table(costs).rows if row.label == "256 units"]


@pytest.mark.parametrize(
    ("run", "name", "claims"),
    [
        (update_cost.reproduce_update, "update-cost", ("B2", "B3")),
        (update_cost.reproduce_acting, "acting-cost", ("C4",)),
    ],
)
def test_records_hold_every_repeat_of_every_size(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any], name: str, claims: tuple[str, ...]
) -> None:
    """At smoke scale, for real."""
    monkeypatch.setenv("HYBRIDRL_SCALE", "smoke")
    sizes = update_cost.sweep()
    record = run().record
    assert (record.name, record.claims, record.kind) == (name, claims, "measured")
    cases = [Case("cpu", width, batch) for width in sizes.widths for batch in sizes.batches]
    assert {str(case) for case in cases} <= set(record.series)
    for series in record.series.values():
        assert (len(series.values), series.unit) == (sizes.repeats, "s")
        assert all(value is not None and value > 0 for value in series.values)
    assert record.outcome["first call, s"].keys() == record.series.keys()
    assert record.config["sweep"]["widths"] == list(sizes.widths)


def test_records_say_where_the_order_changes(monkeypatch: pytest.MonkeyPatch, both: Costs) -> None:
    monkeypatch.setattr(update_cost, "measure", lambda work, sizes: both)
    outcome = update_cost.reproduce_acting().record.outcome
    assert outcome["crossover on cuda, 256 units"] == "between 1 and 8"
    assert outcome["crossover on cuda, batch 1"].startswith("no crossover")


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_every_scale_has_the_width_of_the_claim(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    monkeypatch.setenv("HYBRIDRL_SCALE", scale)
    sizes = update_cost.sweep()
    assert update_cost.PUBLISHED_WIDTH in sizes.widths
    assert sizes.repeats >= 3  # fewer never have a winner


# --- figures


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_a_line_a_device_and_width(ax: Axes, both: Costs) -> None:
    cost_figures.draw_times(ax, both)
    assert legend(ax) == ["cpu", "cuda"]
    assert [line.get_color() for line in ax.lines] == [placement_style(d)[0] for d in CPU_CUDA for _ in range(2)]
    assert {line.get_linestyle() for line in ax.lines} == {"-"}
    assert list(ax.lines[1].get_ydata()) == pytest.approx([0.5e6, 4e6])
    # the lines of the GPU end at the same height: one label
    assert texts(ax) == ["64 to 256 units", "64 units", "256 units"]
    heights = [text.xy[1] for text in ax.texts]  # type: ignore[attr-defined]
    assert np.diff(np.log(heights)).min() > 0


def test_times_without_a_gpu_say_what_is_missing(ax: Axes, alone: Costs) -> None:
    cost_figures.draw_times(ax, alone)
    assert f"on a GPU: {NEEDS_GPU}" in texts(ax)
    assert legend(ax) == ["cpu"]


def test_the_crossover_is_a_bracket_beside_the_published_one(ax: Axes) -> None:
    costs = measured(CPU_CUDA, Sweep(widths=(16, 128, 512, 1024), batches=(1, 2, 8), repeats=3))
    assert str(costs.by_width("cuda", 2)) == "between 128 and 512"
    cost_figures.draw_crossover(ax, costs)
    published, measured_lines = ax.lines[:2], ax.lines[2:]
    assert [list(line.get_ydata()) for line in published] == [[128, 128], [256, 256]]
    assert {line.get_linestyle() for line in published} == {":"}
    assert {line.get_linestyle() for line in measured_lines} == {"-"}
    lower, upper = (np.asarray(line.get_ydata(), dtype=float) for line in measured_lines)
    # batch 1: no clear order at 512, so cpu up to 128 and cuda from 1,024 on
    assert lower.tolist() == [128, 128, 16]
    assert upper.tolist() == [1024, 512, 128]
    assert legend(ax)[2:] == ["cpu faster up to", "cuda faster from"]


def test_no_crossover_is_said(ax: Axes) -> None:
    costs = measured(CPU_CUDA, Sweep(widths=(8, 16), batches=(1, 2), repeats=3))
    cost_figures.draw_crossover(ax, costs)
    assert texts(ax) == ["cuda: no crossover from 8 to 16 units"]
    assert len(ax.lines) == 2


def test_a_crossover_without_a_gpu_says_what_is_missing(ax: Axes, alone: Costs) -> None:
    cost_figures.draw_crossover(ax, alone)
    assert texts(ax) == [f"here: {NEEDS_GPU}"]
