"""Episodes: their returns and lengths from a stream of steps, and an unbiased evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridrl.envs.spaces import Array
from hybridrl.envs.vector import Environments, Step


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode: the sum of its raw rewards, its length in transitions, where and how it ended."""

    return_: float
    length: int
    env_index: int
    truncated: bool  # True when a limit ended it, not the task


class EpisodeTracker:
    """Sums rewards per environment and hands over each episode once, at the step that ends it.

    Give it every step, with raw rewards: reset rows are not counted, truncated episodes are.
    """

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)

    def update(self, step: Step) -> list[Episode]:
        """Take one vector step in; return the episodes that it ended, in order of ``env_index``."""
        self._returns += np.where(step.valid, step.reward, 0.0)
        self._lengths += step.valid
        ended = (step.terminated | step.truncated) & step.valid
        return [self._finish(int(i), step) for i in np.flatnonzero(ended)]

    def reset(self) -> None:
        """Forget the unfinished episodes: call it when the environments are reset in their middle."""
        self._returns[:] = 0.0
        self._lengths[:] = 0

    def _finish(self, i: int, step: Step) -> Episode:
        truncated = bool(step.truncated[i]) and not bool(step.terminated[i])
        episode = Episode(float(self._returns[i]), int(self._lengths[i]), i, truncated)
        self._returns[i] = 0.0
        self._lengths[i] = 0
        return episode


def evaluate(
    act: Callable[[Array], Array], environments: Environments, *, episodes: int, seed: int | None
) -> list[Episode]:
    """Play exactly ``episodes`` episodes from a reset with ``seed``, in the order in which they end.

    ``act`` maps observations ``[N, *shape]`` to actions in the network's terms. Every environment has a fixed
    quota: taking the first episodes to end would favour short ones.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes}: expected at least 1")
    owed = np.array([len(range(i, episodes, environments.num_envs)) for i in range(environments.num_envs)])
    tracker, found = EpisodeTracker(environments.num_envs), list[Episode]()
    observation = environments.reset(seed)
    while len(found) < episodes:
        step = environments.step(act(observation))
        observation = step.observation
        for episode in tracker.update(step):
            if owed[episode.env_index] > 0:
                owed[episode.env_index] -= 1
                found.append(episode)
    return found
