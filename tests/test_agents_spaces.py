"""Agents and action spaces: what the environment receives, from acting to a loaded agent and the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hybridrl as hrl
from hybridrl import cli
from hybridrl.algorithms import PPOConfig
from hybridrl.networks import NetworkConfig
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv, IdentityEnv

SMALL = PPORecipe(
    ppo=PPOConfig(rollout_steps=8, minibatch_size=8, epochs=1), network=NetworkConfig(hidden=(8,)), num_envs=2
)
MULTI = [
    gym.spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[5, -1], [0, 2]]),
    gym.spaces.MultiDiscrete([1]),
    gym.spaces.MultiBinary((2, 2)),
]

pytestmark = pytest.mark.usefixtures("one_thread")


def recording(space: gym.Space[Any], made: list[CountingEnv]) -> Callable[[], CountingEnv]:
    def make() -> CountingEnv:
        made.append(CountingEnv(5, action_space=space))
        return made[-1]

    return make


@pytest.mark.parametrize("space", MULTI, ids=str)
def test_several_actions_at_once_from_acting_to_a_loaded_agent(space: gym.Space[Any], tmp_path: Path) -> None:
    """The environment receives actions of its own space, the rollout indices; a loaded agent predicts the same."""
    made: list[CountingEnv] = []
    agent = hrl.PPO(recording(space, made), SMALL, seed=3)
    agent.learn(total_timesteps=32)
    rollout = agent.collector.storage.rollout()
    sizes = torch.tensor(agent.environments.action.sizes)
    assert (rollout.action.dtype, rollout.action.shape) == (torch.int64, (8, 2, len(sizes)))
    assert ((rollout.action >= 0) & (rollout.action < sizes)).all()
    assert len(agent.evaluate(3)) == 3
    received = [action for env in made for action in env.received]
    assert len(received) > 32
    assert all(space.contains(action) for action in received)
    agent.save(tmp_path / "agent")
    loaded = hrl.PPO.load(tmp_path / "agent", env=recording(space, made))
    batch = np.arange(6, dtype=np.float32).reshape(6, 1)
    for deterministic in (True, False):
        actions = loaded.predict(batch, deterministic=deterministic)[0]
        assert np.array_equal(actions, agent.predict(batch, deterministic=deterministic)[0])
        assert all(space.contains(action) for action in actions)
    assert space.contains(loaded.predict(batch[0])[0])


def test_an_agent_for_other_sizes_is_refused(tmp_path: Path) -> None:
    """As many logits and as many dimensions, cut otherwise: shapes alone would not tell."""
    hrl.PPO(recording(gym.spaces.MultiDiscrete([2, 3]), []), SMALL).save(tmp_path / "agent")
    with pytest.raises(ValueError, match=r"'multi-discrete', 2, 2, 3\].*'multi-discrete', 2, 3, 2\]$"):
        hrl.PPO.load(tmp_path / "agent", env=recording(gym.spaces.MultiDiscrete([3, 2]), []))


def test_several_actions_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(gym.registry):
        gym.register("Several-v0", lambda: IdentityEnv(gym.spaces.MultiDiscrete([2, 3])))
        small = ["--set", "rollout_steps=16", "--set", "num_envs=2", "--set", "epochs=1", "--total-timesteps", "64"]
        assert cli.main(["train", "ppo", "Several-v0", "--evaluate", "2", "--json", *small]) == 0
    assert len(json.loads(capsys.readouterr().out)["evaluation_returns"]) == 2


@pytest.mark.parametrize(("said", "torque"), [(1.0, 2.0), (-1.0, -2.0), (0.25, 0.5), (9.0, 2.0)])
def test_the_full_torque_of_pendulum_is_used(said: float, torque: float) -> None:
    """C72: what the policy says in [-1, 1] reaches the environment as +-2.0, exactly; what is stored isn't scaled."""
    received = []

    class Recording(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            received.append(action)
            return super().step(action)

    agent = hrl.PPO(lambda: Recording(gym.make("Pendulum-v1")), SMALL)
    assert agent.environments.action.bounds == "scale"
    with mock.patch.object(type(agent.policy.head), "sample", lambda _, p, **__: torch.full_like(p[..., :1], said)):
        rollout, _ = agent.collector.collect(3)
    assert (rollout.action == said).all()
    assert {float(action[0]) for action in received} == {torque}


def test_a_run_without_autoreset_is_the_run_with_resets_in_the_same_step() -> None:
    """C11, C94: the same transitions, episodes and final values, so the same weights to the last bit."""

    def run(mode: AutoresetMode) -> tuple[list[Any], torch.Tensor]:
        factories = [lambda length=length: CountingEnv(length, truncates=True) for length in (3, 5)]
        agent = hrl.PPO(SyncVectorEnv(factories, autoreset_mode=mode), SMALL, seed=1)
        return agent.learn(total_timesteps=64).episodes, agent.learner.flat.values.clone()

    same_step, disabled = run(AutoresetMode.SAME_STEP), run(AutoresetMode.DISABLED)
    assert len(same_step[0]) == 16
    assert same_step[0] == disabled[0]
    assert torch.equal(same_step[1], disabled[1])
