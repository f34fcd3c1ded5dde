"""The classic CartPole experiment: exact on made-up reports, and one short real run."""

from collections.abc import Iterator

import pytest
import torch

from hybridrl.agents import PPO
from hybridrl.execution import TwoMemories
from hybridrl.experiments import classic_cartpole as cc
from hybridrl.experiments.machine import Accelerator
from hybridrl.experiments.result import NEEDS_GPU, Result
from hybridrl.placement import devices
from hybridrl.profiling.phases import ACT, ENV, OTHER, STORE, TRANSFER, UPDATE
from hybridrl.profiling.report import PhaseRow, Report
from hybridrl.results import TrainingResult


def made_up_report() -> Report:
    rows = [
        PhaseRow(("collect",), 2, 0.5, 0.05),
        PhaseRow(("collect", "env"), 30, 0.25, 0.25),
        PhaseRow(("collect", "act"), 30, 0.125, 0.125),
        PhaseRow(("collect", "store"), 30, 0.075, 0.075),
        PhaseRow(("learn",), 2, 0.25, 0.0),
        PhaseRow(("learn", "returns"), 2, 0.05, 0.05),
        PhaseRow(("learn", "update"), 2, 0.2, 0.2),
    ]
    return Report(wall_s=1.0, phases=tuple(rows), counters={"env_steps": 25, "updates": 2})


@pytest.fixture(scope="module", autouse=True)
def _no_accelerator() -> Iterator[None]:
    """The columns are those of a machine without one, wherever this runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "available", lambda: ("cpu",))
        yield


@pytest.fixture(scope="module")
def everywhere() -> dict[str, list[TrainingResult]]:
    return cc.train(repeats=2, total_episodes=2)


@pytest.fixture(scope="module")
def runs(everywhere: dict[str, list[TrainingResult]]) -> list[TrainingResult]:
    return everywhere["cpu"]


def cells_of(table: Result, label: str, quantity: str) -> list[object]:
    (row,) = [row for row in table.rows if row.label == label and row.quantity == quantity]
    return [cell.number for cell in row.cells]


def test_parts_predict_wall_time_and_share() -> None:
    parts = cc.Parts(step_s=0.5, update_s=10.0)
    assert parts.wall_s(steps=60, updates=3) == 60.0
    assert parts.learner_share(steps=60, updates=3) == 0.5


def test_copies_take_time_and_are_no_learning() -> None:
    """As in a report, whose share of learning leaves transfer and publication out."""
    parts = cc.Parts(step_s=0.5, update_s=10.0, copy_s=5.0)
    assert parts.wall_s(steps=60, updates=3) == 75.0
    assert parts.learner_share(steps=60, updates=3) == pytest.approx(30 / 75)


def test_parts_are_per_step_and_per_update_and_the_fastest_of_the_repeats() -> None:
    marks = [0.0, 100.0, 200.0, 204.0, 300.0, 330.0]  # acting, copies, learning: start and end of each
    later = [400.0, 420.0, 500.0, 506.0, 600.0, 670.0]
    readings = iter(marks + later)

    def clock() -> float:
        return next(readings)

    parts = cc.measure_parts(rollouts=1, repeats=2, clock=clock)
    assert parts.update_s == 30.0  # of 30 and 70
    assert parts.copy_s == 4.0  # of 4 and 6
    assert parts.step_s < 20.0  # one rollout is several steps
    assert next(readings, None) is None


def test_parts_of_two_memories_bring_the_rollout_and_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PPO] = []
    real = cc._agent
    monkeypatch.setattr(cc, "_agent", lambda placement: made.append(real(placement)) or made[-1])
    assert cc.measure_parts(rollouts=2, repeats=1, placement="cpu+cpu").copy_s > 0.0
    bridge = made[0].bridge
    assert isinstance(bridge, TwoMemories)
    assert torch.equal(bridge.acting.state, bridge.learnt.state)  # acts with what it learnt last


def test_phases_of_an_episode_sum_to_its_wall_time() -> None:
    parts = cc.phase_milliseconds(made_up_report())
    assert parts == pytest.approx({ENV: 125.0, ACT: 62.5, UPDATE: 125.0, TRANSFER: 0.0, STORE: 37.5, OTHER: 150.0})
    assert sum(parts.values()) == pytest.approx(500.0)


def test_repeats_do_the_same_work(runs: list[TrainingResult]) -> None:
    first, second = runs
    assert first.timesteps == second.timesteps
    assert first.returns == second.returns
    assert len(first.episodes) == 2


def test_published_numbers_are_those_of_the_claims(runs: list[TrainingResult]) -> None:
    sums = [sum(cc.PUBLISHED_PHASES_MS[column].values()) for column in cc.PLACEMENTS]
    assert sums == [220.0, 400.0, 200.0]
    table = cc.wall_table({"cpu": runs}, {"cpu": cc.Parts(0.001, 0.01)})
    assert cells_of(table, "article C", "all 500 episodes, as published") == [47.0, 128.0, None]
    assert cells_of(table, "article B", "one step (act + env), as published") == [0.3, 0.5, None]


def test_wall_table_predicts_from_the_parts_and_the_work_alone(runs: list[TrainingResult]) -> None:
    parts = cc.Parts(step_s=1.0, update_s=float(runs[0].timesteps))  # two updates: acting is a third of it
    table = cc.wall_table({"cpu": runs}, {"cpu": parts})
    steps = runs[0].timesteps
    assert cells_of(table, "PPO", "all episodes, predicted from parts")[0] == pytest.approx(3 * steps)
    assert cells_of(table, "PPO", "share of learning, predicted from parts")[0] == pytest.approx(200 / 3)
    assert cells_of(table, "PPO", "speed-up if learning took no time at all")[0] == pytest.approx(3.0)


def test_what_was_not_run_is_unknown_with_its_reason_and_never_zero(runs: list[TrainingResult], example) -> None:
    for table in (cc.wall_table({"cpu": runs}, {"cpu": cc.Parts(0.001, 0.01)}), cc.phase_table({"cpu": runs})):
        for row in table.rows:
            if {cell.source for cell in row.cells if cell.known} != {"published"}:
                assert [cell.number for cell in row.cells[1:]] == [None, None]
    gpu = Accelerator(type="cuda", index=0, name=None, memory_gib=None)
    assert cc.why_empty(example()) == NEEDS_GPU
    assert cc.why_empty(example(accelerators=(gpu,))) == "not run"


def test_records_hold_every_repeat(monkeypatch: pytest.MonkeyPatch, runs: list[TrainingResult]) -> None:
    monkeypatch.setattr(cc, "train", lambda **_: {"cpu": runs})
    monkeypatch.setattr(cc, "measure_parts", lambda **_: cc.Parts(0.001, 0.01))
    for claims, outcome in zip((("C1", "B1"), ("C2", "B4")), outcomes(), strict=True):
        assert outcome.record.claims == claims
        assert outcome.record.series["cpu: wall"].values == tuple(run.report.wall_s for run in runs)
        assert outcome.record.command.startswith(f"hybridrl reproduce --experiment {outcome.record.name}")


GPU_ROWS = [
    *made_up_report().phases,
    PhaseRow(("collect", "act", "transfer"), 60, 0.05, 0.05),
    PhaseRow(("transfer",), 2, 0.03, 0.03),
    PhaseRow(("publish",), 2, 0.02, 0.02),
]


def test_what_moves_is_taken_out_of_the_phase_it_happens_in() -> None:
    """B4: observations and actions within acting, the rollout, and the weights back are all moving data."""
    report = Report(wall_s=1.0, phases=tuple(GPU_ROWS), counters={"env_steps": 25, "updates": 2})
    parts = cc.phase_milliseconds(report)
    assert parts[ACT] == pytest.approx(1e3 * (0.125 - 0.05) / 2)
    assert parts[TRANSFER] == pytest.approx(1e3 * (0.05 + 0.03 + 0.02) / 2)
    assert sum(parts.values()) == pytest.approx(500.0)


def test_every_column_is_run_where_there_is_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Played on the CPU: each placement that a GPU would be asked for becomes a CPU's, and is noted."""
    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda"))
    asked: list[str] = []
    real = cc._agent
    monkeypatch.setattr(cc, "_agent", lambda placement: asked.append(placement) or real("cpu"))
    runs = cc.train(repeats=2, total_episodes=1)
    assert asked[:3] == ["cpu", "cuda", "cpu+cuda"]
    assert asked == asked[:3] * 3  # a warm-up and two repeats, in turns
    parts = cc.measure_all_parts(rollouts=1)
    wall, phases = cc.wall_table(runs, parts), cc.phase_table(runs)
    for table in (wall, phases):
        assert "gpu is torch's 'cuda'" in table.notes
        ours = [row for row in table.rows if {cell.source for cell in row.cells} != {"published"}]
        assert len(ours) >= 6
        assert all(cell.known for row in ours for cell in row.cells)
    assert cells_of(phases, "moving data, article B", "share of the wall time, as published") == [None, 37.0, None]


def outcomes() -> Iterator:
    yield cc.reproduce_wall()
    yield cc.reproduce_phases()
