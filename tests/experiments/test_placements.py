"""Pendulum under every placement, on short runs and played devices; and what crosses, counted exactly."""

from typing import Any

import pytest
import torch

from hybridrl.execution import TwoMemories
from hybridrl.experiments import placements
from hybridrl.experiments.result import NEEDS_GPU, Result
from hybridrl.placement import devices
from hybridrl.profiling import NullTimer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))


@pytest.fixture
def played_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every placement with a GPU becomes two memories of the CPU; which were asked for is noted."""
    asked: list[str] = []
    real: Any = placements.PPO

    def made(env: str, *, placement: str, **options: Any) -> Any:
        asked.append(placement)
        return real(env, placement=placement if placement == "cpu" else "cpu+cpu", **options)

    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(placements, "PPO", made)
    return asked


def cells(table: Result, quantity: str) -> list[Any]:
    (row,) = [row for row in table.rows if row.quantity == quantity]
    return list(row.cells)


def test_without_a_gpu_its_columns_are_empty_with_the_reason() -> None:
    runs = placements.pendulum(repeats=1, total_episodes=1)
    assert list(runs) == ["cpu", "cpu+cpu"]
    table = placements.pendulum_table(runs)
    wall = cells(table, "wall time, here")
    assert [cell.known for cell in wall] == [True, True, False, False, False]
    assert {cell.note for cell in wall[2:]} == {NEEDS_GPU}
    use = cells(table, "GPU use, share of time with a kernel, here")
    assert not any(cell.known for cell in use)  # unknown is not zero
    assert [cell.number for cell in cells(table, "wall time, as published")] == [None, None, 58.0, 41.0, None]


def test_with_a_gpu_every_column_is_run_in_turns_after_a_warm_up(played_gpu: list[str]) -> None:
    runs = placements.pendulum(repeats=2, total_episodes=1)
    turn = ["cpu", "cpu+cpu", "cuda", "cpu+cuda", "cpu+cuda"]
    assert played_gpu == turn * 3
    assert list(runs) == list(placements.COLUMNS)
    assert all(len(each) == 2 for each in runs.values())
    for what in ("wall time", "share of learning", "share of moving data", "mean return of the last 10 episodes"):
        assert all(cell.known for cell in cells(placements.pendulum_table(runs), f"{what}, here"))
    returns = {run.mean_return for each in runs.values() for run in each}
    assert len(returns) == 1  # however the weights travel, the same is learnt
    record = placements._record(runs)
    assert set(record.claims) == {"B5", "B6"}
    assert record.series["module to and fro: wall"].values == tuple(
        run.report.wall_s for run in runs["module to and fro"]
    )
    assert record.series["cpu: GPU use"].values == (None, None)


def test_a_module_that_moves_learns_what_the_hybrid_learns() -> None:
    """Until publication the actor's bytes stay, then they are the learner's."""
    agents = [placements.PPO("CartPole-v1", placement="cpu+cpu", seed=0) for _ in range(2)]
    bridges: list[Any] = [agents[0].bridge, placements.ToAndFro(agents[1].bridge)]  # type: ignore[arg-type]
    for agent, bridge in zip(agents, bridges, strict=True):
        for _ in range(2):
            rollout, _ = agent.collector.collect(16)
            agent.learner.update(bridge.deliver(rollout, timer=NullTimer()))
            bridge.publish(timer=NullTimer())
    hybrid, moved = (agent.bridge for agent in agents)
    assert isinstance(hybrid, TwoMemories)
    assert isinstance(moved, TwoMemories)
    assert torch.equal(hybrid.acting.state, moved.acting.state)
    assert torch.equal(moved.acting.state, moved.learnt.state)
    assert bridges[1].version == 2


def test_what_crosses_is_counted_exactly() -> None:
    """C6: one copy each way; one for every tensor of the module; one a field; one an item of a field."""
    found = placements.count_crossings()
    rows, environments = placements.ROWS, placements.ENVIRONMENTS
    item = 4 * 4 + 8 + 4 * 4 + 3  # observation, action, four floats, three flags: bytes of one transition
    module = 8 + 3  # two networks of two layers, and the normaliser's buffers
    weights = 4 * (2 * (4 * 16 + 16) + 16 * 2 + 2 + 16 * 1 + 1 + 1 + 4 + 4)
    hybrid = found["hybrid"]
    assert (len(hybrid.to_learner), hybrid.to_actor) == (1, (weights,))
    assert hybrid.to_learner[0] >= item * rows * environments  # the arena, its fields aligned
    fro = found["module to and fro"]
    assert (len(fro.to_learner), len(fro.to_actor)) == (module + 1, module)
    assert sum(fro.to_learner) == weights + hybrid.to_learner[0]
    assert sum(fro.to_actor) == weights
    assert (len(found["field by field"].to_learner), len(found["field by field"].to_actor)) == (9, 1)
    assert len(found["item by item"].to_learner) == 9 * rows * environments
    for way in ("field by field", "item by item"):
        assert sum(found[way].to_learner) == item * rows * environments


def test_the_table_of_crossings_is_the_same_on_every_machine() -> None:
    table = placements.crossings()
    assert table.machine is None
    assert [cell.number for cell in cells_of(table, "to the learner", "copies")] == [1, 12, 9, 288]
    assert [cell.number for cell in cells_of(table, "back to the actor", "copies")] == [1, 11, 1, 1]


def cells_of(table: Result, label: str, quantity: str) -> list[Any]:
    (row,) = [row for row in table.rows if (row.label, row.quantity) == (label, quantity)]
    return list(row.cells)


def test_the_figure_shows_what_was_run_and_why_the_rest_is_empty() -> None:
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    placements.draw_pendulum(ax, placements.pendulum(repeats=1, total_episodes=1))
    assert len(ax.get_xticklabels()) == len(placements.COLUMNS)
    assert any(NEEDS_GPU.split()[0] in text.get_text() for text in ax.texts)
    plt.close()
