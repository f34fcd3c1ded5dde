"""Whether processes would pay: an environment's step and a process's round trip, timed in a fraction of a second."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from hybridrl.envs.factory import AnyEnv
from hybridrl.envs.processes import ProcessVectorEnv
from hybridrl.envs.spaces import ActionSpec, Array
from hybridrl.profiling.limits import available_cores

CLEARLY = 1.3
"""The gain from which on processes are taken: below, noise and other users of the cores decide."""
_STEPPING_S = 0.2
_MESSAGES_S = 0.1
_ENOUGH = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """What in-process environments and processes would give, from what was measured.

    In-process, N steps follow one another. In processes, as many run at once as there are cores, each round is as
    long as its slowest, and each environment adds a round trip of messages.
    """

    num_envs: int
    cores: int
    step_s: float
    """Mean of one environment's step, with the reset that follows an end."""
    slowest_s: float
    """Mean of the slowest of as many steps as run at once."""
    round_trip_s: float
    """Of one process, where as many as there are cores (at most four) answer at once."""

    @property
    def in_process(self) -> float:
        """Environment steps per second, in-process."""
        return 1.0 / self.step_s

    @property
    def processes(self) -> float:
        """Environment steps per second, in processes."""
        rounds = math.ceil(self.num_envs / self.cores)
        return self.num_envs / (rounds * self.slowest_s + self.num_envs * self.round_trip_s)

    @property
    def pays(self) -> bool:
        """Whether processes are clearly faster."""
        return self.processes >= CLEARLY * self.in_process

    def __str__(self) -> str:
        return (
            f"measured: a step {_duration(self.step_s)}, a process's round trip {_duration(self.round_trip_s)}, "
            f"{self.cores} cores; predicted: {self.in_process:,.0f} steps/s in-process, "
            f"{self.processes:,.0f} in processes"
        )


def forecast(env: AnyEnv, num_envs: int) -> Forecast | str:
    """Step one environment for about 0.2 s, and idle processes for 0.1 s; a sentence where there is nothing to gain."""
    cores = available_cores()
    if num_envs == 1:
        return "one environment has nothing to run at once"
    if cores is None or cores < 2:
        return f"{'unknown' if cores is None else f'{cores:g}'} cores: nothing is known to run at once"
    at_once = min(num_envs, int(cores))
    steps = step_times(env)
    return Forecast(
        num_envs=num_envs,
        cores=int(cores),
        step_s=float(steps.mean()),
        slowest_s=mean_of_slowest(steps, at_once),
        round_trip_s=round_trip(env, min(at_once, 4)),
    )


def step_times(env: AnyEnv, *, clock: Callable[[], float] = time.perf_counter) -> npt.NDArray[np.float64]:
    """Seconds of each of some random steps, with the reset where one ends an episode; one long step may be all."""
    spec, rng, taken = ActionSpec.of(env.action_space), np.random.default_rng(0), list[float]()
    env.reset(seed=0)
    while sum(taken) < _STEPPING_S and len(taken) < _ENOUGH:
        action = spec.to_env(spec.sample(1, rng))[0]
        started = clock()
        if any(env.step(action)[2:4]):
            env.reset()
        taken.append(clock() - started)
    return np.array(taken[1:] or taken)  # the first pays for what is loaded late


def mean_of_slowest(steps: npt.NDArray[np.float64], at_once: int) -> float:
    """Mean over groups of so many steps, drawn at random, of the longest in each."""
    groups = np.random.default_rng(0).choice(steps, (1000, at_once))
    return float(groups.max(axis=1).mean())


def round_trip(like: AnyEnv, processes: int, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds a step of environments that do nothing takes, by their number: observations of the same size travel."""
    idle = _Idle(like.observation_space, like.action_space)
    env = ProcessVectorEnv(idle.another, processes, like=idle)
    try:
        env.reset(seed=0)
        taken = list[float]()
        actions = np.stack([like.action_space.sample() for _ in range(processes)])
        while sum(taken) < _MESSAGES_S and len(taken) < _ENOUGH:
            started = clock()
            env.step(actions)
            taken.append(clock() - started)
    finally:
        env.close()
    return float(np.median(taken)) / processes


class _Idle(gym.Env[Array, Any]):
    """Observes one and the same thing, at once, for ever."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._observation = np.zeros(observation_space.shape or (), observation_space.dtype)

    def another(self) -> _Idle:
        return _Idle(self.observation_space, self.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return self._observation, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, {}


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
