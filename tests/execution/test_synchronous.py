"""The synchronous schedule, with a learner that only takes notes."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hybridrl import envs
from hybridrl.algorithms import PPOLearner, PPOStatistics
from hybridrl.data import Rollout, RolloutStorage
from hybridrl.execution import Budget, Collector, HostActor, Iteration, synchronous
from hybridrl.networks import CategoricalHead, ObservationNormalizer, Policy
from hybridrl.profiling import NullTimer, PhaseTimer, Timer
from hybridrl.testing import CountingEnv

NOTHING = PPOStatistics(
    policy_loss=0.0,
    value_loss=0.0,
    entropy=0.0,
    approximate_kl=0.0,
    clip_fraction=0.0,
    gradient_norm=0.0,
    explained_variance=0.0,
    optimizer_steps=0,
    learning_rate=0.0,
)


@dataclass
class Notes:
    """Stands for a learner."""

    rows: list[int] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)

    def update(self, rollout: Rollout, *, progress: float) -> PPOStatistics:
        self.rows.append(len(rollout))
        self.progress.append(progress)
        return NOTHING


class Constant(nn.Module):
    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(observation), 2), torch.zeros(len(observation))


def collector(num_envs: int, length: int, rows: int, timer: Timer) -> Collector:
    environments = envs.make(lambda: CountingEnv(length), num_envs)
    storage = RolloutStorage(
        rows, num_envs, observation_shape=(1,), observation_dtype=np.float32, action=((), torch.int64)
    )
    policy = Policy(Constant(), CategoricalHead(2), ObservationNormalizer((1,), enabled=False))
    actor = HostActor(policy, torch.Generator().manual_seed(0))
    return Collector(environments, actor, storage, seed=0, timer=timer)


def run(
    budget: Budget, *, num_envs: int = 2, length: int = 1_000, rows: int | None = 16, timer: Timer | None = None
) -> tuple[list[Iteration], Notes, Collector]:
    notes, timer = Notes(), timer or NullTimer()
    one = collector(num_envs, length, rows or length, timer)
    learner = cast("PPOLearner", cast("Any", notes))
    return list(synchronous(one, learner, budget, rows=rows, timer=timer)), notes, one


def test_the_last_rollout_is_shortened_to_the_budget() -> None:
    iterations, notes, one = run(Budget(timesteps=101))
    assert notes.rows == [16, 16, 16, 2]
    assert [i.timesteps for i in iterations] == [32, 64, 96, 100]
    assert one.timesteps == 100
    assert notes.progress == [0.0, 32 / 101, 64 / 101, 96 / 101]


@pytest.mark.parametrize("length", [3, 7, 40])
@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize("timesteps", [5, 64, 203])
def test_the_budget_is_used_up_to_less_than_a_vector_step_and_never_exceeded(
    timesteps: int, num_envs: int, length: int
) -> None:
    """Reset rows, which are no steps, are made good by further rows."""
    _, _, one = run(Budget(timesteps=timesteps), num_envs=num_envs, length=length)
    assert timesteps - num_envs < one.timesteps <= timesteps


def test_a_budget_below_one_vector_step_does_nothing() -> None:
    iterations, notes, one = run(Budget(timesteps=1), num_envs=2)
    assert (iterations, notes.rows, one.timesteps) == ([], [], 0)


def test_episodes_end_the_run_at_the_rollout_that_finishes_them() -> None:
    iterations, notes, one = run(Budget(episodes=3), num_envs=1, length=10, rows=16)
    assert notes.rows == [16, 16]
    assert [len(i.finished) for i in iterations] == [1, 2]
    assert one.episodes == 3
    assert notes.progress == [0.0, 1 / 3]


def test_one_episode_a_rollout_finishes_exactly_the_budget() -> None:
    iterations, notes, one = run(Budget(episodes=5), num_envs=1, length=7, rows=None)
    assert notes.rows == [7] * 5
    assert [i.episodes for i in iterations] == [1, 2, 3, 4, 5]
    assert one.timesteps == 35


def test_one_episode_rollouts_keep_to_a_budget_of_steps() -> None:
    """The episode under way when the budget ends is cut: no step is taken beyond it."""
    _, notes, one = run(Budget(timesteps=20), num_envs=1, length=7, rows=None)
    assert one.timesteps <= 20
    assert notes.rows[:2] == [7, 7]


def test_nothing_happens_before_or_after_what_is_asked_for() -> None:
    notes, timer = Notes(), NullTimer()
    one = collector(2, 100, 16, timer)
    rounds = synchronous(one, cast("Any", notes), Budget(timesteps=1_000), rows=16, timer=timer)
    assert one.timesteps == 0
    next(rounds)
    assert (one.timesteps, notes.rows) == (32, [16])


def test_collecting_and_learning_are_timed() -> None:
    timer = PhaseTimer()
    with timer.run():
        run(Budget(timesteps=96), timer=timer)
    top = {row.label: row.calls for row in timer.report().phases if len(row.path) == 1}
    assert top == {"collect": 3, "learn": 3}
