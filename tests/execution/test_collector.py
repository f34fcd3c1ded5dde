"""The collector against environments that count: the observation is the step, and the stub's value repeats it."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from hybridrl import envs
from hybridrl.data import Rollout, RolloutStorage
from hybridrl.execution import Collector, HostActor
from hybridrl.networks import CategoricalHead, GaussianHead, ObservationNormalizer, Policy
from hybridrl.profiling import NullTimer, PhaseTimer, Timer
from hybridrl.testing import CountingEnv

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
LENGTHS = ([4], [3, 5], [3, 3])


class Repeat(nn.Module):
    """Values are the observations; both actions are as likely."""

    def __init__(self, parameters: int = 2) -> None:
        super().__init__()
        self.parameters_row = nn.Parameter(torch.zeros(parameters))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return self.parameters_row.expand(len(observation), -1), observation.flatten(1)[:, 0]


def counting(
    lengths: Sequence[int], mode: AutoresetMode, *, truncates: bool = True, **options: Any
) -> tuple[envs.Environments, list[CountingEnv]]:
    singles = [CountingEnv(length, truncates=truncates, **options) for length in lengths]
    factories: list[Callable[[], gym.Env[Any, Any]]] = [lambda env=env: env for env in singles]  # type: ignore[misc]
    # Each counts to its own end, so their spaces differ in their bounds.
    vector = SyncVectorEnv(factories, autoreset_mode=mode, observation_mode="different")
    return envs.make(vector), singles


def collector(environments: envs.Environments, rows: int, *, timer: Timer | None = None) -> Collector:
    policy = Policy(Repeat(), CategoricalHead(2), ObservationNormalizer((1,), enabled=False))
    storage = RolloutStorage(
        rows, environments.num_envs, observation_shape=(1,), observation_dtype=np.float32, action=((), torch.int64)
    )
    generator = torch.Generator().manual_seed(0)
    return Collector(environments, HostActor(policy, generator), storage, seed=0, timer=timer or NullTimer())


Transition = tuple[int, float, float, float, float, bool, bool]


def transitions(rollout: Rollout) -> list[Transition]:
    """The valid ones in order of time: environment, observation, value, next value, reward and flags."""
    r, found = rollout, []
    for t, n in r.valid.nonzero().tolist():
        numbers = (float(x[t, n]) for x in (r.observation[..., 0], r.value, r.next_value, r.reward))
        found.append((n, *numbers, bool(r.terminated[t, n]), bool(r.truncated[t, n])))
    return found


def expected(lengths: Sequence[int], counts: Sequence[int], *, truncates: bool) -> set[Transition]:
    """What playing each environment alone for so many transitions gives, written out."""
    found = set()
    for n, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        for i in range(count):
            s, ends = i % length, i % length == length - 1
            found.add((n, float(s), float(s), float(s + 1), 1.0, ends and not truncates, ends and truncates))
    return found


def collect_all(one: Collector, chunks: Sequence[int]) -> tuple[list[Transition], list[envs.Episode]]:
    found, finished = [], []
    for rows in chunks:
        rollout, ended = one.collect(rows)
        assert len(rollout) <= rows
        found += transitions(rollout)
        finished += ended
    return found, finished


@pytest.mark.parametrize("chunks", [[20], [1] * 20, [3, 4, 5, 8], [5, 5, 5, 5]])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_values_and_next_values_are_exact_whatever_the_rollouts_length(
    lengths: list[int], mode: AutoresetMode, chunks: list[int]
) -> None:
    """C80: a truncated step is followed by the value of the final observation, not of the one before or after."""
    environments, _ = counting(lengths, mode)
    found, _ = collect_all(collector(environments, 20), chunks)
    for env_index, length in enumerate(lengths):
        mine = [t for t in found if t[0] == env_index]
        assert [t[1] for t in mine] == [i % length for i in range(len(mine))]  # no transition lost or repeated
    counts = [sum(t[0] == n for t in found) for n in range(len(lengths))]
    assert set(found) == expected(lengths, counts, truncates=True)
    assert min(counts) >= 14


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("truncates", [True, False])
def test_both_autoreset_modes_give_one_set_of_transitions(lengths: list[int], truncates: bool) -> None:
    """C11: and none leads from an old episode into a new one."""
    found = []
    for mode in MODES:
        environments, _ = counting(lengths, mode, truncates=truncates)
        each, _ = collect_all(collector(environments, 20), [20])
        # The value that follows a termination is never used; SAME_STEP doesn't spend a forward pass on it.
        found.append({(*t[:3], None if t[5] else t[3], *t[4:]) for t in each})
    assert found[0] == found[1]
    assert all(t[3] is None or t[3] > t[1] for t in found[0])
    assert {t[5] for t in found[0]} == {False, not truncates}
    assert {t[6] for t in found[0]} == {False, truncates}


@pytest.mark.parametrize("truncates", [True, False])
def test_next_step_transitions_are_vector_steps_less_resets(truncates: bool) -> None:
    """C11: 21 vector steps of episodes of 3 and 5 hold 5 and 3 resets; in the twelfth both reset, so 20 are stored."""
    environments, singles = counting([3, 5], AutoresetMode.NEXT_STEP, truncates=truncates)
    one = collector(environments, 20)
    rollout, _ = one.collect(20)
    assert rollout.valid.sum(0).tolist() == [21 - 5, 21 - 3] == [len(env.received) for env in singles]
    assert one.timesteps == 34
    assert len(rollout) == 20


@pytest.mark.parametrize(("lengths", "stored"), [([4], 20), ([3, 3], 40)])
def test_a_step_that_all_environments_reset_in_is_not_stored(lengths: list[int], stored: int) -> None:
    environments, singles = counting(lengths, AutoresetMode.NEXT_STEP)
    one = collector(environments, 20)
    rollout, _ = one.collect(20)
    assert rollout.valid.all()
    assert one.timesteps == stored == sum(len(env.received) for env in singles)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [[30], [7, 7, 7, 9], [1] * 30])
def test_every_episode_is_counted_once(mode: AutoresetMode, chunks: list[int]) -> None:
    environments, _ = counting([3, 5], mode)
    one = collector(environments, 30)
    found, finished = collect_all(one, chunks)
    ends = [sum(t[0] == n and t[6] for t in found) for n in range(2)]
    assert [sum(e.env_index == n for e in finished) for n in range(2)] == ends
    assert one.episodes == len(finished) == sum(ends)
    assert {(e.env_index, e.return_, e.length, e.truncated) for e in finished} == {(0, 3.0, 3, True), (1, 5.0, 5, True)}
    assert one.timesteps == len(found)


@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_can_be_one_episode(mode: AutoresetMode) -> None:
    environments, _ = counting([4], mode, truncates=False)
    one = collector(environments, 10)
    for number in range(1, 4):
        rollout, finished = one.collect(None)
        assert rollout.observation[:, 0, 0].tolist() == [0, 1, 2, 3]
        assert rollout.terminated[:, 0].tolist() == [False] * 3 + [True]
        assert [e.length for e in finished] == [4]
        assert (one.timesteps, one.episodes) == (4 * number, number)


def test_a_rollout_is_overwritten_in_place() -> None:
    environments, _ = counting([5], AutoresetMode.NEXT_STEP)
    one = collector(environments, 4)
    first, _ = one.collect(4)
    kept = first.observation.clone()
    second, _ = one.collect(4)
    assert second.observation.data_ptr() == first.observation.data_ptr()
    assert not torch.equal(first.observation, kept)


def test_more_rows_than_the_storage_has_are_refused() -> None:
    environments, _ = counting([5], AutoresetMode.NEXT_STEP)
    with pytest.raises(IndexError, match="all 4 rows are written"):
        collector(environments, 4).collect(5)


def test_the_environment_gets_the_clipped_action_and_the_storage_the_raw_one() -> None:
    """C75."""
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    environments, (env,) = counting([50], AutoresetMode.NEXT_STEP, action_space=space)
    network = Repeat(2)
    network.parameters_row.data = torch.tensor([0.0, np.log(5.0)])  # mean 0, deviation 5
    policy = Policy(network, GaussianHead(1), ObservationNormalizer((1,), enabled=False))
    storage = RolloutStorage(40, 1, observation_shape=(1,), observation_dtype=np.float32, action=((1,), torch.float32))
    actor = HostActor(policy, torch.Generator().manual_seed(0))
    one = Collector(environments, actor, storage, seed=0, timer=NullTimer())
    rollout, _ = one.collect(40)
    raw, received = rollout.action[:, 0].numpy(), np.array(env.received)
    assert np.abs(raw).max() > 5
    assert all(space.contains(action) for action in env.received)
    np.testing.assert_array_equal(received, raw.clip(-1, 1))
    density = torch.distributions.Normal(0.0, 5.0).log_prob(rollout.action[:, 0, 0])
    torch.testing.assert_close(rollout.log_prob[:, 0], density)


def test_acting_stepping_and_storing_are_timed_apart() -> None:
    environments, _ = counting([5], AutoresetMode.NEXT_STEP)
    timer = PhaseTimer()
    with timer.run():
        collector(environments, 8, timer=timer).collect(8)
    # 8 rows and one reset in their middle, which is a step too; the first reset; the value after the last row.
    assert {row.label: row.calls for row in timer.report().phases} == {"env": 10, "act": 10, "store": 9}


def test_an_interrupted_collection_starts_new_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows where the environments stand: the next observation follows a reset, and no episode is torn."""
    environments, _ = counting([9, 9], AutoresetMode.NEXT_STEP)
    one = collector(environments, 6)
    one.collect(6)
    act, calls = one.actor.act, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return act(*arguments, **options)

    monkeypatch.setattr(one.actor, "act", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.collect(6)
    monkeypatch.undo()
    assert one.timesteps == 2 * (6 + 2)
    rollout, _ = one.collect(6)
    assert rollout.observation[0].flatten().tolist() == [0.0, 0.0]
