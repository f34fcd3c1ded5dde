"""Numbers that aren't finite: found before they are learnt from, and the first in order of cause named."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hybridrl import envs
from hybridrl.data import Rollout, RolloutStorage
from hybridrl.execution import Collector, HostActor
from hybridrl.execution.finite import check_rollout
from hybridrl.networks import (
    ActorCritic,
    CategoricalHead,
    GaussianHead,
    Head,
    NetworkConfig,
    ObservationNormalizer,
    Policy,
)
from hybridrl.ops.checks import NonFiniteError
from hybridrl.profiling import NullTimer
from hybridrl.testing import CountingEnv

Environment = gym.Env[Any, Any]


class Sums(nn.Module):
    """Value and every parameter are the sum of the observation, so NaN comes through."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(parameters))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        total = observation.flatten(1).sum(1)
        return total.unsqueeze(1) * self.scale, total


class Faulty(gym.Env[Any, Any]):
    """Three elements that count; at step ``at`` of the first episode, one of what it says is ``bad``."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(
        self, *, at: int = -1, what: str = "", bad: float = math.nan, length: int = 100, ends: str = ""
    ) -> None:
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.at, self.what, self.bad, self.length, self.ends = at, what, bad, length, ends
        self.count = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        if not np.isfinite(action).all() and self.what == "crash":
            raise AssertionError("the action is outside of the space")
        self.count, self.steps = self.count + 1, self.steps + 1
        observation, reward = np.full(3, self.count, np.float32), 1.0
        if self.steps == self.at:
            if self.what in ("observation", "crash"):
                observation[1] = self.bad
            else:
                reward = self.bad
        ended = self.count == self.length
        return observation, reward, ended and self.ends != "truncated", ended and self.ends == "truncated", {}


def collector(*singles: Environment, rows: int = 8, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Collector:
    factories: list[Callable[[], Environment]] = [lambda env=env: env for env in singles]  # type: ignore[misc]
    environments = envs.make(SyncVectorEnv(factories, autoreset_mode=mode))
    space, head = environments.observation, GaussianHead(1)
    policy = Policy(Sums(2), head, ObservationNormalizer(space.shape, enabled=False))
    storage = RolloutStorage(
        rows, len(singles), observation_shape=space.shape, observation_dtype=space.dtype, action=((1,), torch.float32)
    )
    actor = HostActor(policy, torch.Generator().manual_seed(0))
    return Collector(environments, actor, storage, seed=0, timer=NullTimer())


def collect_often(one: Collector, rows: int) -> None:
    for _ in range(3):
        one.collect(rows)


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("bad", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_an_observation_is_named_before_all_that_follows_from_it(bad: float, shown: str) -> None:
    """Value, log-probability and the value before it aren't finite either; the observation is their cause."""
    one = collector(Faulty(), Faulty(at=5, what="observation", bad=bad))
    with pytest.raises(NonFiniteError) as error:
        one.collect(8)
    # Two environments took five steps each before it was seen.
    start = f"observation of environment 1 at step 10 (element 1): {shown}, expected finite numbers"
    assert message(error) == f"{start}; mend the environment"
    assert error.value.step == 10
    assert one.timesteps == 16


@pytest.mark.parametrize(("at", "step"), [(1, 2), (5, 10), (8, 16), (11, 22)])
def test_a_reward_is_named_with_the_step_that_gave_it(at: int, step: int) -> None:
    one = collector(Faulty(at=at, what="reward", bad=math.inf), Faulty())
    with pytest.raises(NonFiniteError, match=rf"^reward of environment 0 at step {step}: inf, "):
        collect_often(one, 8)


def test_what_came_first_is_named_whatever_it_is() -> None:
    one = collector(Faulty(at=6, what="observation"), Faulty(at=3, what="reward"))
    with pytest.raises(NonFiniteError, match=r"^reward of environment 1 at step 6"):
        one.collect(8)


def test_the_observation_after_the_last_row_counts() -> None:
    """Its value is bootstrapped from; waiting for the next rollout would learn from it."""
    one = collector(Faulty(at=8, what="observation"))
    with pytest.raises(NonFiniteError, match=r"^observation of environment 0 at step 8 \(element 1\)"):
        one.collect(8)


@pytest.mark.parametrize("at", [5, 8])
def test_a_network_that_swallows_nan_hides_none(at: int) -> None:
    class Swallows(Sums):
        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(observation.nan_to_num())

    one = collector(Faulty(at=at, what="observation"))
    one.actor.policy.network = Swallows(2)
    with pytest.raises(NonFiniteError, match=rf"^observation of environment 0 at step {at} \(element 1\)"):
        one.collect(8)


def test_the_observation_that_a_truncated_episode_ended_with_counts() -> None:
    one = collector(Faulty(at=4, what="observation", length=4, ends="truncated"), Faulty())
    with pytest.raises(NonFiniteError, match=r"^final observation of environment 0 at step 8 \(element 1\)"):
        one.collect(8)
    one = collector(Faulty(at=4, what="observation", length=4, ends="truncated"), mode=AutoresetMode.SAME_STEP)
    with pytest.raises(NonFiniteError, match=r"^final observation of environment 0 at step 4 \(element 1\): nan"):
        one.collect(8)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("rows", [8, 4])
def test_what_follows_a_termination_may_be_anything(mode: AutoresetMode, rows: int) -> None:
    """Some environments end with NaN because they diverged. Nobody learns from that observation."""
    faulty = Faulty(at=4, what="observation", length=4, ends="terminated")
    one = collector(faulty, Faulty(), rows=rows, mode=mode)
    for _ in range(3):
        one.collect(rows)


def test_weights_that_say_nan_are_told_from_observations() -> None:
    one = collector(Faulty())
    one.collect(8)
    with torch.no_grad():
        one.actor.policy.network.scale[1] = math.nan
    with pytest.raises(NonFiniteError, match=r"^log-probability of environment 0 at step 8: nan.*lower the learning"):
        one.collect(8)


@pytest.mark.parametrize("at", [1, 5, 8, 9, 17])
def test_a_crash_for_want_of_a_finite_action_names_the_observation(at: int) -> None:
    one = collector(Faulty(), Faulty(at=at, what="crash"), rows=9)
    with pytest.raises(NonFiniteError) as error:
        collect_often(one, 9)
    start = f"observation of environment 1 at step {2 * at} (element 1): nan, expected finite numbers"
    crash = "" if at == 9 else " (it led to AssertionError: the action is outside of the space)"  # 9: found in time
    assert message(error) == f"{start}; mend the environment{crash}"
    assert at == 9 or isinstance(error.value.__cause__, AssertionError)


def test_a_crash_that_weights_caused_names_them() -> None:
    one = collector(Faulty(what="crash"))
    with torch.no_grad():
        one.actor.policy.network.scale[0] = math.nan
    with pytest.raises(NonFiniteError, match=r"^log-probability of environment 0 at step 0: nan.*led to Assertion"):
        one.collect(8)


class Broken(CountingEnv):
    def step(self, action: Any) -> Any:
        if self._count == 2:
            raise RuntimeError("something else")
        return super().step(action)


def test_another_crash_is_left_as_it_is() -> None:
    """The rows of the storage that nobody wrote hold NaN, and prove nothing."""
    broken = Broken(9, action_space=gym.spaces.Box(-1, 1, (1,), np.float32))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        collector(broken).collect(8)


@pytest.mark.parametrize("head", [CategoricalHead(2), GaussianHead(1)], ids=["discrete", "continuous"])
def test_bytes_are_always_finite(head: Head) -> None:
    discrete = isinstance(head, CategoricalHead)
    space = gym.spaces.Discrete(2) if discrete else gym.spaces.Box(-1, 1, (1,), np.float32)
    environments = envs.make(lambda: CountingEnv(5, dtype=np.uint8, action_space=space), 2)
    policy = Policy(Sums(2), head, ObservationNormalizer((1,), enabled=False))
    storage = RolloutStorage(
        8,
        2,
        observation_shape=(1,),
        observation_dtype=np.uint8,
        action=((), torch.int64) if discrete else ((1,), torch.float32),
    )
    actor = HostActor(policy, torch.Generator().manual_seed(0))
    Collector(environments, actor, storage, seed=0, timer=NullTimer()).collect(8)


class Reads(TorchDispatchMode):
    """Counts the times that the host reads a tensor's number, or waits for a size."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        self.count += func in (*waits, torch.ops.aten.is_nonzero.default)
        return func(*args, **(kwargs or {}))


def filled(rows: int) -> tuple[Rollout, Any]:
    one = collector(Faulty(length=3), Faulty(length=5), rows=rows)
    return one.collect(rows)[0], one._observation


def test_a_rollout_that_is_fine_is_read_once() -> None:
    """C67: on another device each read is a wait."""
    rollout, following = filled(20)
    with Reads() as reads:
        check_rollout(rollout, following, step=0)
    assert reads.count == 1


def test_the_search_finds_what_a_slow_one_does() -> None:
    """Plant NaN anywhere; counted is what belongs to a valid row, found is the first in time."""
    rollout, following = filled(20)
    generator = np.random.default_rng(0)
    for _ in range(200):
        column = generator.choice(["reward", "value", "log_prob", "next_value", "observation"])
        row, env = int(generator.integers(len(rollout))), int(generator.integers(2))
        tensor = getattr(rollout, column)
        kept = tensor[row, env].clone()
        tensor[row, env] = math.nan
        counts = bool(rollout.valid[row, env]) and not (column == "next_value" and bool(rollout.terminated[row, env]))
        with pytest.raises(NonFiniteError) if counts else nullcontext() as error:
            check_rollout(rollout, following, step=0)
        if error is not None:
            assert f"of environment {env} " in message(error)
            known = row + (column in ("reward", "next_value"))
            assert error.value.step == int(rollout.valid[:known].sum())
        tensor[row, env] = kept


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_final_observation_is_checked_itself_not_its_value(mode: AutoresetMode) -> None:
    """A network that squashes makes a finite value of an infinite observation, and training would go on from that."""

    class Ends(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            return (observation * np.inf if truncated else observation), reward, terminated, truncated, info

    factories = [lambda: Ends(4, truncates=True)] * 2
    environments = envs.make(gym.vector.SyncVectorEnv(factories, autoreset_mode=mode))
    head = CategoricalHead(2)
    network = ActorCritic(1, head, NetworkConfig(hidden=(4,)))
    policy = Policy(network, head, ObservationNormalizer((1,)))
    storage = RolloutStorage(8, 2, observation_shape=(1,), observation_dtype=np.float32, action=((), torch.int64))
    actor = HostActor(policy, torch.Generator().manual_seed(0))
    one = Collector(environments, actor, storage, seed=0, timer=NullTimer())
    with pytest.raises(NonFiniteError, match=r"^final observation of environment 0 at step 8 \(element 0\): inf, "):
        one.collect(8)
