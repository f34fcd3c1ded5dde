"""Environments whose right answers are known, for tests of code that meets environments."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]


class CountingEnv(gym.Env[Array, Any]):
    """Counts: the observation [1] is the number of steps since the reset, each reward is 1.

    An episode ends after ``length`` steps, terminated or (``truncates=True``) truncated, so its return is its
    length. The actions received are kept in ``received``.
    """

    def __init__(
        self,
        length: int,
        *,
        truncates: bool = False,
        action_space: gym.Space[Any] | None = None,
        dtype: type[np.generic] = np.float32,
    ) -> None:
        self.length, self.truncates = length, truncates
        high = 255 if dtype is np.uint8 else 2**24
        self.observation_space = spaces.Box(0, high, (1,), dtype)
        self.action_space = action_space if action_space is not None else spaces.Discrete(2)
        self.received: list[Any] = []
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Count from zero."""
        super().reset(seed=seed)
        self._count = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Count one more, whatever the action."""
        self.received.append(action)
        self._count += 1
        ended = self._count >= self.length
        return self._observation(), 1.0, ended and not self.truncates, ended and self.truncates, {}

    def _observation(self) -> Array:
        return np.array([self._count], dtype=self.observation_space.dtype)


class ReusingEnv(CountingEnv):
    """A CountingEnv that returns one and the same array from every reset and step: a common fault."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._buffer = np.zeros(1, dtype=np.float32)

    def _observation(self) -> Array:
        self._buffer[0] = self._count
        return self._buffer


class IdentityEnv(gym.Env[Array, Any]):
    """Rewards repeating what is seen, so any learner must do well at it within seconds.

    Discrete: the observation is the one-hot of the wanted action, the reward 1 for it and 0 else.
    MultiDiscrete, MultiBinary: one-hots side by side, the reward the share of dimensions that are right.
    Box: the observation is the wanted action, flat; the reward is minus the mean absolute error (0 at best).
    Episodes are truncated after ``length`` steps.
    """

    def __init__(
        self,
        action_space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box,
        length: int = 20,
    ) -> None:
        # A copy: environments that share one space would draw from one generator.
        self.action_space, self.length = copy.deepcopy(action_space), length
        self._wanted: Any = None
        self._count = 0
        if isinstance(action_space, spaces.Box):
            low, high = action_space.low.reshape(-1), action_space.high.reshape(-1)
            self.observation_space = spaces.Box(low, high, dtype=action_space.dtype)
        else:
            self.observation_space = spaces.Box(0, 1, (int(_sizes(action_space).sum()),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Draw the first wanted action."""
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self._count = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Reward the action for what was wanted, and want another."""
        self._count += 1
        reward = self._reward(action)
        return self._next(), reward, False, self._count >= self.length, {}

    def _reward(self, action: Any) -> float:
        if isinstance(self.action_space, spaces.Box):
            return -float(np.abs(np.asarray(action) - self._wanted).mean())
        return float(np.mean(np.asarray(action) == self._wanted))

    def _next(self) -> Array:
        self._wanted = self.action_space.sample()
        if isinstance(self.action_space, spaces.Box):
            return np.array(self._wanted.reshape(-1))
        sizes, start = _sizes(self.action_space), getattr(self.action_space, "start", 0)
        one_hots = np.zeros(sizes.sum(), dtype=np.float32)
        one_hots[np.cumsum(sizes) - sizes + np.reshape(self._wanted - start, -1)] = 1.0
        return one_hots


def _sizes(space: Any) -> npt.NDArray[np.int64]:
    """Actions of each dimension, flat."""
    if isinstance(space, spaces.MultiBinary):
        return np.full(int(np.prod(space.shape)), 2)
    return np.reshape(space.n if isinstance(space, spaces.Discrete) else space.nvec, -1).astype(np.int64)


# Slow references: the formulas' sums written literally, for tests of the fast forms in `hybridrl.ops`.


def slow_returns(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, *, gamma: float, n: int | None = None
) -> Array:
    """Sum up to ``n`` discounted rewards of the same episode and rollout, and bootstrap unless the last terminated.

    All arrays are [T, N], as in ``hybridrl.ops.returns``; ``n`` None sums to the end. Returns float64 [T, N].
    """
    result = np.empty(reward.shape)
    for t, i in np.ndindex(*reward.shape):
        last = _last(terminated[:, i] | truncated[:, i], t, n)
        total = sum(gamma**k * float(reward[t + k, i]) for k in range(last - t + 1))
        bootstrap = 0.0 if terminated[last, i] else gamma ** (last - t + 1) * float(next_value[last, i])
        result[t, i] = total + bootstrap
    return result


def slow_gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, *, gamma: float, lambda_: float
) -> Array:
    """Sum (gamma lambda)^k delta[t + k] to the end of the episode or of the rollout; arrays [T, N]."""
    result = np.empty(reward.shape)
    for t, i in np.ndindex(*reward.shape):
        last = _last(terminated[:, i] | truncated[:, i], t, None)
        result[t, i] = 0.0
        for s in range(t, last + 1):
            following = 0.0 if terminated[s, i] else float(next_value[s, i])
            delta = float(reward[s, i]) + gamma * following - float(value[s, i])
            result[t, i] += (gamma * lambda_) ** (s - t) * delta
    return result


def _last(done: Array, t: int, n: int | None) -> int:
    """Return the last of at most ``n`` rows from ``t`` on that belong to one episode."""
    stop = len(done) if n is None else min(t + n, len(done))
    return next((s for s in range(t, stop) if done[s]), stop - 1)
