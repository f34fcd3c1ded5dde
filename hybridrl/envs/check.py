"""Habits of an environment that corrupt stored data, found before training."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def check_env(env: gym.Env[Any, Any], *, steps: int = 100, seed: int = 0) -> list[str]:
    """Play ``steps`` random steps of one environment; return what is wrong with it, a line each, [] if nothing.

    Looks for an array returned twice (in SAME_STEP, its reset then overwrites the final observation), and for
    observations outside the declared space. The environment is left mid-episode.
    """
    env.action_space.seed(seed)
    found = dict.fromkeys(_at(None, env.reset(seed=seed)[0], env))
    previous: Any = env.reset()[0]
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        found |= dict.fromkeys(_at(previous, observation, env))
        previous = observation
        if terminated or truncated:
            previous = env.reset()[0]
            found |= dict.fromkeys(_at(observation, previous, env))
    return list(found)


def _at(previous: Any, observation: Any, env: gym.Env[Any, Any]) -> list[str]:
    found = []
    arrays = isinstance(previous, np.ndarray) and isinstance(observation, np.ndarray)
    if arrays and np.shares_memory(previous, observation):
        found.append("the same array object is returned twice: return a copy from step and reset")
    if observation not in env.observation_space:
        got = f"{getattr(observation, 'dtype', type(observation).__name__)} {np.shape(observation)}"
        found.append(f"an observation ({got}) is outside {env.observation_space}: fix the space or the observation")
    return found
