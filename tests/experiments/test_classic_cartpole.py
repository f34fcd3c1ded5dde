"""The classic CartPole experiment: exact on made-up reports, and one short real run."""

from collections.abc import Iterator

import pytest

from hybridrl.experiments import classic_cartpole as cc
from hybridrl.experiments.machine import Accelerator
from hybridrl.experiments.result import NEEDS_GPU, Result
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


@pytest.fixture(scope="module")
def runs() -> list[TrainingResult]:
    return cc.train(repeats=2, total_episodes=2)


def cells_of(table: Result, label: str, quantity: str) -> list[object]:
    (row,) = [row for row in table.rows if row.label == label and row.quantity == quantity]
    return [cell.number for cell in row.cells]


def test_parts_predict_wall_time_and_share() -> None:
    parts = cc.Parts(step_s=0.5, update_s=10.0)
    assert parts.wall_s(steps=60, updates=3) == 60.0
    assert parts.learner_share(steps=60, updates=3) == 0.5


def test_parts_are_per_step_and_per_update_and_the_fastest_of_the_repeats() -> None:
    readings = iter([0.0, 100.0, 130.0, 200.0, 220.0, 290.0])  # start, acted, learnt; twice

    def clock() -> float:
        return next(readings)

    parts = cc.measure_parts(rollouts=1, repeats=2, clock=clock)
    assert parts.update_s == 30.0  # of 30 and 70
    assert parts.step_s < 20.0  # one rollout is several steps
    assert next(readings, None) is None


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
    table = cc.wall_table(runs, cc.Parts(0.001, 0.01))
    assert cells_of(table, "article C", "all 500 episodes, as published") == [47.0, 128.0, None]
    assert cells_of(table, "article B", "one step (act + env), as published") == [0.3, 0.5, None]


def test_wall_table_predicts_from_the_parts_and_the_work_alone(runs: list[TrainingResult]) -> None:
    parts = cc.Parts(step_s=1.0, update_s=float(runs[0].timesteps))  # two updates: acting is a third of it
    table = cc.wall_table(runs, parts)
    steps = runs[0].timesteps
    assert cells_of(table, "PPO", "all episodes, predicted from parts")[0] == pytest.approx(3 * steps)
    assert cells_of(table, "PPO", "share of learning, predicted b/(a+b)")[0] == pytest.approx(200 / 3)
    assert cells_of(table, "PPO", "speed-up if learning took no time at all")[0] == pytest.approx(3.0)


def test_what_was_not_run_is_unknown_with_its_reason_and_never_zero(runs: list[TrainingResult], example) -> None:
    for table in (cc.wall_table(runs, cc.Parts(0.001, 0.01)), cc.phase_table(runs)):
        for row in table.rows:
            if {cell.source for cell in row.cells if cell.known} != {"published"}:
                assert [cell.number for cell in row.cells[1:]] == [None, None]
    gpu = Accelerator(type="cuda", index=0, name=None, memory_gib=None)
    assert cc.why_empty(example()) == NEEDS_GPU
    assert "CPU alone" in cc.why_empty(example(accelerators=(gpu,)))


def test_records_hold_every_repeat(monkeypatch: pytest.MonkeyPatch, runs: list[TrainingResult]) -> None:
    monkeypatch.setattr(cc, "train", lambda **_: runs)
    monkeypatch.setattr(cc, "measure_parts", lambda **_: cc.Parts(0.001, 0.01))
    for claims, outcome in zip((("C1", "B1"), ("C2", "B4")), outcomes(), strict=True):
        assert outcome.record.claims == claims
        assert outcome.record.series["wall"].values == tuple(run.report.wall_s for run in runs)
        assert outcome.record.command.startswith(f"hybridrl reproduce --experiment {outcome.record.name}")


def outcomes() -> Iterator:
    yield cc.reproduce_wall()
    yield cc.reproduce_phases()
