"""Training that meets a NaN: it stops before it learns from it or saves it, and says what is left."""

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hybridrl as hrl
from hybridrl import checkpoints
from hybridrl.algorithms import PPOConfig
from hybridrl.execution import Iteration
from hybridrl.networks import NetworkConfig
from hybridrl.ops.checks import NonFiniteError
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv

CONFIG = PPOConfig(rollout_steps=16, minibatch_size=16, epochs=2)
SMALL = PPORecipe(ppo=CONFIG, network=NetworkConfig(hidden=(8,)), num_envs=2)

pytestmark = pytest.mark.usefixtures("one_thread")


def line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


class TurnsBad(CountingEnv):
    """From the step ``at`` on, one thing that it says is NaN."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(1_000)
        self.at, self.what = at, what

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        bad = len(self.received) >= self.at
        if bad and self.what == "observation":
            observation = np.array([math.nan], np.float32)
        return observation, (math.nan if bad and self.what == "reward" else reward), *rest


@pytest.mark.parametrize(("what", "at"), [("observation", 50), ("reward", 50), ("observation", 48)])
def test_a_nan_stops_training_and_names_itself_and_the_last_checkpoint(what: str, at: int, tmp_path: Path) -> None:
    agent = hrl.PPO(lambda: TurnsBad(at, what), SMALL)
    path = tmp_path / "a"
    with pytest.raises(NonFiniteError) as error:
        agent.learn(4_000, checkpoint=path, checkpoint_every=1)
    found, cure, kept = line(error).split("; ")
    element = " (element 0)" if what == "observation" else ""
    assert found == f"{what} of environment 0 at step {2 * at}{element}: nan, expected finite numbers"
    assert cure == "mend the environment"
    # 48 rows of 2 are three rollouts: the observation after the third already stops the third's update.
    assert kept == f"last checkpoint: {path} (step {64 if at == 48 else 96})"
    assert agent.timesteps == error.value.step


def test_without_a_checkpoint_none_is_named(tmp_path: Path) -> None:
    for checkpoint, ending in (
        (None, "mend the environment"),
        (tmp_path / "a", f"no checkpoint yet at {tmp_path / 'a'}"),
    ):
        agent = hrl.PPO(lambda: TurnsBad(3, "reward"), SMALL)
        with pytest.raises(NonFiniteError) as error:
            agent.learn(4_000, checkpoint=checkpoint)
        assert line(error).endswith(f"; {ending}")


def test_nothing_that_is_not_finite_is_learnt(tmp_path: Path) -> None:
    agent = hrl.PPO(lambda: TurnsBad(50, "observation"), dataclasses.replace(SMALL, normalize_observation=True))
    seen = list[dict[str, Tensor]]()
    with pytest.raises(NonFiniteError):
        agent.learn(4_000, callback=lambda _: seen.append(copy.deepcopy(agent._parts.tensors())))
    after = agent._parts.tensors()
    for name in seen[-1]:
        assert name.startswith("generator.") or torch.equal(after[name], seen[-1][name]), name


class Steep(nn.Module):
    """Finite while acting; its gradient isn't: the square root's, at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(1, 2), nn.Linear(1, 1)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        value = self.critic(observation * 0.0).squeeze(-1)
        return self.actor(observation * 1e-3), (value - value.detach()).abs().sqrt()


def test_a_gradient_that_is_not_finite_is_named_with_its_minibatch(tmp_path: Path) -> None:
    agent = hrl.PPO(lambda: CountingEnv(9), SMALL, network=Steep())
    with pytest.raises(NonFiniteError) as error:
        agent.learn(4_000, checkpoint=tmp_path / "a")
    assert line(error).startswith("the update at step 32: gradient norm in epoch 1, minibatch 1 of 2: nan, expected")
    assert "(network.actor.weight then holds nan); lower the learning rate" in line(error)


def test_weights_that_the_last_step_broke_are_noticed_in_the_same_update() -> None:
    """Every loss is finite; the step is not."""
    config = PPOConfig(rollout_steps=16, minibatch_size=None, epochs=1, learning_rate=1e39)
    agent = hrl.PPO(lambda: CountingEnv(9), dataclasses.replace(SMALL, ppo=config))
    with pytest.raises(NonFiniteError, match=r"^the update at step 32: network\.\S+ after the last optimiser step: "):
        agent.learn(4_000)


def test_a_mask_of_infinities_is_the_networks_own_business(tmp_path: Path) -> None:
    class Masked(Steep):
        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            return self.actor(observation), self.critic(observation).squeeze(-1)

    agent = hrl.PPO(lambda: CountingEnv(9), SMALL, network=Masked())
    agent.learn(64, checkpoint=tmp_path / "a")
    loaded = hrl.PPO.load(tmp_path / "a", env=lambda: CountingEnv(9), network=Masked())
    assert torch.equal(loaded.policy.network.mask, torch.tensor([0.0, -math.inf]))


@pytest.mark.parametrize("where", ["weight", "moment", "variance"])
def test_a_checkpoint_is_never_overwritten_by_what_is_not_finite(where: str, tmp_path: Path) -> None:
    agent = hrl.PPO("CartPole-v1", dataclasses.replace(SMALL, normalize_observation=True))
    path = tmp_path / "a"
    agent.learn(64, checkpoint=path)
    before = path.read_bytes()
    tensors = {
        "weight": next(agent.policy.parameters()),
        "moment": next(iter(agent.learner.optimizer.state.values()))["exp_avg_sq"],
        "variance": agent.policy.normalizer.variance,
    }
    with torch.no_grad():
        tensors[where].view(-1)[0] = math.nan
    with pytest.raises(NonFiniteError, match=r"a: not saved, \S+ holds nan, expected finite numbers$") as error:
        agent.save(path)
    line(error)
    assert path.read_bytes() == before


def test_a_callback_that_breaks_the_weights_breaks_no_checkpoint(tmp_path: Path) -> None:
    agent = hrl.PPO(lambda: CountingEnv(999), SMALL)

    def breaks(iteration: Iteration) -> None:
        if iteration.timesteps == 64:
            with torch.no_grad():
                agent.learner.flat.values.fill_(math.nan)

    with pytest.raises(NonFiniteError, match=r"last checkpoint: .*\(step 64\)$"):
        agent.learn(4_000, checkpoint=tmp_path / "a", checkpoint_every=1, callback=breaks)
    assert checkpoints.read(tmp_path / "a")[1]["timesteps"] == 64
    hrl.PPO.load(tmp_path / "a", env=lambda: CountingEnv(999)).learn(resume=True, callback=lambda _: False)


def test_a_crash_for_want_of_finite_actions_names_the_cause(tmp_path: Path) -> None:
    class Strict(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            assert np.isfinite(action).all(), "an action outside of the space"
            observation, *rest = super().step(action)
            return (observation * math.nan if self.unwrapped.count == 20 else observation), *rest

    class Box(CountingEnv):
        @property
        def count(self) -> int:
            return self._count

    def make() -> Any:
        return Strict(Box(100, action_space=gym.spaces.Box(-1, 1, (1,), np.float32)))

    agent = hrl.PPO(make, SMALL)
    with pytest.raises(NonFiniteError) as error:
        agent.learn(4_000, checkpoint=tmp_path / "a", checkpoint_every=1)
    start = "observation of environment 0 at step 40 (element 0): nan, expected finite numbers; mend the environment"
    assert line(error).startswith(f"{start} (it led to AssertionError: an action outside of the space")
    assert line(error).endswith(f"last checkpoint: {tmp_path / 'a'} (step 32)")
