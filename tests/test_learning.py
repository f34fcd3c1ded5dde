"""Learning, by threshold: final weights, stated budgets, fixed seeds, one thread."""

import dataclasses
from statistics import fmean

import gymnasium as gym
import numpy as np
import pytest

import hybridrl as hrl
from hybridrl import recipes
from hybridrl.algorithms import PPOConfig
from hybridrl.recipes import PPORecipe
from hybridrl.testing import IdentityEnv

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def evaluated(agent: hrl.PPO, episodes: int = 100) -> float:
    return fmean(episode.return_ for episode in agent.evaluate(episodes))


IDENTITY = PPORecipe(
    ppo=PPOConfig(rollout_steps=64, minibatch_size=128, epochs=8, gamma=0.0, learning_rate=3e-3, anneal=True)
)


@pytest.mark.parametrize("start", [0, -2])
def test_discrete_identity_is_learnt(start: int) -> None:
    """Of 20 at most; guessing gives 4."""
    agent = hrl.PPO(lambda: IdentityEnv(gym.spaces.Discrete(5, start=start)), IDENTITY, seed=0)
    agent.learn(total_timesteps=15_000)
    assert evaluated(agent, 32) >= 19.5


@pytest.mark.parametrize(
    "space", [gym.spaces.MultiDiscrete([[3, 2], [5, 1]], start=[[1, -1], [0, 9]]), gym.spaces.MultiBinary(4)], ids=str
)
def test_multi_discrete_identity_is_learnt(space: gym.spaces.MultiDiscrete | gym.spaces.MultiBinary) -> None:
    """Of 20 at most, each reward the share of dimensions that are right; guessing gives about 10."""
    agent = hrl.PPO(lambda: IdentityEnv(space), IDENTITY, seed=0)
    before = evaluated(agent, 32)
    agent.learn(total_timesteps=15_000)
    assert before < 16
    assert evaluated(agent, 32) >= 19.5


@pytest.mark.parametrize("bounds", ["clip", "scale"])
def test_continuous_identity_is_learnt(bounds: str) -> None:
    """Of 0 at most, over 20 steps; the box's middle gives about -20 (its sides are 2 and 6 long)."""
    space = gym.spaces.Box(np.float32([-1, 0]), np.float32([1, 6]))
    recipe = dataclasses.replace(IDENTITY, bounds=bounds, normalize_observation=True, normalize_reward=True)
    agent = hrl.PPO(lambda: IdentityEnv(space), recipe, seed=0)
    before = evaluated(agent, 32)
    agent.learn(total_timesteps=25_000)
    assert before < -15
    assert evaluated(agent, 32) > -4


def test_tuned_cartpole_reaches_475() -> None:
    """At most 100,000 steps, 100 evaluation episodes."""
    agent = hrl.PPO("CartPole-v1", "tuned", seed=0)
    agent.learn()
    assert agent.timesteps <= 100_000
    assert evaluated(agent) >= 475


def test_tuned_pendulum_reaches_minus_200() -> None:
    """At most 200,000 steps, 100 evaluation episodes."""
    agent = hrl.PPO("Pendulum-v1", "tuned", seed=0)
    agent.learn()
    assert agent.timesteps <= 200_000
    assert evaluated(agent) >= -200


def test_classic_cartpole_improves() -> None:
    """A third of its 500 episodes, judged as it is in whole: by the last ten training episodes, of 200 at most."""
    agent = hrl.PPO("CartPole-v1", recipes.classic_ppo_cartpole(), seed=0)
    result = agent.learn(total_episodes=150)
    assert fmean(result.returns[:20]) < 40
    assert fmean(result.returns[-10:]) > 120


def test_looking_costs_less_than_a_fiftieth_of_a_cartpole_run() -> None:
    """The timer's own cost, as it measures it; 0.3% on an idle machine, with one environment, the worst case."""
    report = hrl.PPO("CartPole-v1", recipes.classic_ppo_cartpole(), seed=0).learn(total_episodes=20).report
    assert 0 < report.overhead_s < 0.02 * report.wall_s
