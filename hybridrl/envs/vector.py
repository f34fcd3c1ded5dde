"""One face for every vector environment, whatever its autoreset mode and whoever owns its arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from hybridrl.envs.factory import first_line
from hybridrl.envs.processes import ProcessVectorEnv
from hybridrl.envs.spaces import ActionSpec, Array, Bounds, ObservationSpec

Autoreset = Literal["next_step", "same_step", "disabled"]
_AUTORESET: dict[AutoresetMode, Autoreset] = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}
_SEPARATE = (SyncVectorEnv, AsyncVectorEnv, ProcessVectorEnv)  # each row is an environment with a seed of its own
_FINAL_KEYS = ("final_obs", "final_observation")  # the second is Gymnasium's name before 1.0


class Step(NamedTuple):
    """What one vector step gave; every array is the caller's to keep.

    ``valid`` is False where a NEXT_STEP environment only reset: that row is not a transition.
    ``final_observation`` (SAME_STEP and DISABLED, when something ended): the observation that ended the episode in
    rows that ended, ``observation`` in the others. In NEXT_STEP ``observation`` itself is the final one: None.
    """

    observation: Array  # [N, *shape]
    reward: npt.NDArray[np.float32]  # [N], raw
    terminated: npt.NDArray[np.bool_]  # [N]
    truncated: npt.NDArray[np.bool_]  # [N]
    valid: npt.NDArray[np.bool_]  # [N]
    final_observation: Array | None  # [N, *shape]


class Environments:
    """N copies of an environment, stepped together; build one with ``make``.

    Actions are given in the network's terms and go through ``action.to_env``. Arrays returned are never written
    again. Where autoreset is DISABLED, ended episodes are reset here, within the step.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv[Any, Any, Any],
        *,
        name: str,
        implementation: str,
        spec_id: str | None = None,
        max_episode_steps: int | None = None,
        bounds: Bounds = "clip",
        rebuild: Callable[[int], Environments] | None = None,
    ) -> None:
        self.num_envs = env.num_envs
        self.autoreset = _autoreset_of(env)
        self.observation = ObservationSpec.of(env.single_observation_space)
        self.action = ActionSpec.of(env.single_action_space, bounds)
        self.spec_id = spec_id
        self.max_episode_steps = max_episode_steps
        self.description = _describe(self, name, implementation)
        self._env = env
        self._rebuild = rebuild
        self._ingest = _ingestion(env, self.observation.dtype)
        self._all = np.ones(self.num_envs, dtype=np.bool_)
        self._action_shape = (self.num_envs, *self.action.network_shape)
        self._ended: npt.NDArray[np.bool_] | None = None  # None: not reset yet, or closed
        self._closed = False
        self._shape = (self.num_envs, *self.observation.shape)

    @property
    def in_turn(self) -> bool:
        """Whether this process steps them one after the other, several of them."""
        return self.num_envs > 1 and isinstance(self._env.unwrapped, SyncVectorEnv)

    def reset(self, seed: int | None = None) -> Array:
        """Start new episodes everywhere and return the observations ``[N, *shape]``.

        ``seed`` (>= 0) gives each environment its own derived seed, and seeds the action spaces; without it the
        environments go on with the generators that they have.
        """
        if self._closed:
            raise ValueError(f"these environments are closed ({self.description}): make new ones")
        observation, _ = self._env.reset(seed=self._seeds(seed))  # type: ignore[arg-type]
        found, expected = np.shape(observation), (self.num_envs, *self.observation.shape)
        if found != expected:
            raise ValueError(f"reset gave observations of shape {found}, expected {expected}: check the environment")
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        return self._ingest(observation)

    def step(self, actions: Array) -> Step:
        """Step all environments by ``actions`` in the network's terms, ``[N, *action.network_shape]``."""
        before = self._ended
        if before is None or actions.shape != self._action_shape:
            raise ValueError(self._step_refused(actions))
        raw, rewards, terminations, truncations, infos = self._env.step(self.action.to_env(actions))
        observation = self._ingest(raw)
        if observation.shape != self._shape or np.shape(rewards) != self._all.shape:
            raise ValueError(self._answer_refused(observation, rewards))
        terminated = np.array(terminations, dtype=np.bool_)
        truncated = np.array(truncations, dtype=np.bool_)
        reward = np.array(rewards, dtype=np.float32)  # now: a reset below may write it again
        self._ended = ended = terminated | truncated
        valid = ~before if self.autoreset == "next_step" else self._all.copy()
        final = None
        if self.autoreset == "same_step":
            final = final_observations(infos, observation, ended)
        elif self.autoreset == "disabled" and ended.any():
            observation, final = self._reset_ended(ended, observation), observation
        return Step(observation, reward, terminated, truncated, valid, final)

    def _reset_ended(self, ended: npt.NDArray[np.bool_], final: Array) -> Array:
        """Reset the rows that ended, and return the observations; the others' must stay as they are."""
        try:
            raw, _ = self._env.reset(options={"reset_mask": ended.copy()})
        except (TypeError, ValueError, KeyError, AssertionError, NotImplementedError, gym.error.Error) as error:
            if isinstance(self._env, _SEPARATE):
                raise  # these can; an environment in them raised
            raise ValueError(_RESET_REFUSED.format(f"raised {type(error).__name__}: {first_line(error)}")) from error
        observation = self._ingest(raw)
        going_on = ~ended
        if observation.shape != self._shape or not _equal(observation[going_on], final[going_on]):
            raise ValueError(_RESET_REFUSED.format("touched environments that hadn't ended"))
        return observation

    def bound_actions(self, bounds: Bounds) -> None:
        """Choose how continuous actions meet their Box, "scale" or "clip"; see ``ActionSpec``."""
        self.action = self.action.with_bounds(bounds)

    def clone(self, num_envs: int | None = None) -> Environments:
        """Build fresh environments from the same source, as many or ``num_envs``, to evaluate apart from these.

        Raises a ValueError when the source was a VectorEnv instance, which cannot be built again.
        """
        if self._rebuild is None:
            raise ValueError(
                f"{self.description} was given as a VectorEnv instance, which cannot be built again: "
                "give the evaluation environments explicitly, or use an id or a callable"
            )
        fresh = self._rebuild(self.num_envs if num_envs is None else num_envs)
        fresh.action = self.action
        return fresh

    def close(self) -> None:
        """Release the environments; closing twice is fine."""
        if not self._closed:
            self._env.close()
        self._closed, self._ended = True, None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Environments({self.description})"

    def _seeds(self, seed: int | None) -> int | list[int] | None:
        """Derive a list where each environment takes its own, one integer for a batched implementation."""
        if seed is None:
            return None
        seeds = spread_seeds(seed, self.num_envs + 1)
        self._env.action_space.seed(seeds[-1])
        self._env.single_action_space.seed(seeds[-1])
        return seeds[:-1] if isinstance(self._env.unwrapped, _SEPARATE) else seeds[0]

    def _answer_refused(self, observation: Array, rewards: Any) -> str:
        return (
            f"step gave observations of shape {observation.shape} and rewards of shape {np.shape(rewards)}, expected "
            f"{self._shape} and {self._all.shape}: check the environment"
        )

    def _step_refused(self, actions: Array) -> str:
        if self._closed:
            return f"these environments are closed ({self.description}): make new ones"
        if self._ended is None:
            return "step was called before reset: call reset(seed=...) first"
        return f"actions of shape {actions.shape}: expected {self._action_shape}, in the network's terms"


def final_observations(infos: Mapping[str, Any], observation: Array, ended: npt.NDArray[np.bool_]) -> Array | None:
    """Return ``[N, *shape]``: what ended the episodes in the rows ``ended`` [N], ``observation`` in the others.

    For SAME_STEP. Reads an object array (SyncVectorEnv, AsyncVectorEnv), a plain array ``[N, *shape]`` (ALE), or
    a list with None (before Gymnasium 1.0). None when nothing ended; ValueError when an ended row has none.
    """
    rows = np.flatnonzero(ended)
    if not rows.size:
        return None
    key = next((key for key in _FINAL_KEYS if key in infos), None)
    if key is None:
        raise ValueError(_final_missing(int(rows[0]), "infos has no 'final_obs'"))
    values, mask = infos[key], infos.get(f"_{key}")
    final = observation.copy()
    for row in rows:
        if values[row] is None or (mask is not None and not mask[row]):
            raise ValueError(_final_missing(int(row), f"infos[{key!r}] has none there"))
        final[row] = values[row]
    return final


def spread_seeds(seed: int, count: int) -> list[int]:
    """Derive ``count`` distinct 31-bit seeds from one (>= 0), unrelated to those of its neighbours.

    Not seed + i: then run 0 and run 1 would share all environments but one. 31 bits, since some environments
    hand their seed to C.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed={seed!r}: expected an integer of at least 0")
    if seed >= 2**63:
        raise ValueError(f"seed={str(seed)[:20]}...: expected an integer below 2**63")
    words = np.random.SeedSequence(int(seed)).generate_state(2 * count + 16, np.uint32) >> 1
    return list(dict.fromkeys(words.tolist()))[:count]


_RESET_REFUSED = (
    "autoreset is disabled, and reset(options={{'reset_mask': ...}}) {}: expected it to reset the masked environments "
    "alone; use NEXT_STEP or SAME_STEP"
)


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _autoreset_of(env: gym.vector.VectorEnv[Any, Any, Any]) -> Autoreset:
    name = type(env.unwrapped).__name__
    given = (env.metadata or {}).get("autoreset_mode")
    expected = "expected metadata['autoreset_mode'] to be AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
    if given is None:
        raise ValueError(f"{name} does not say how it resets: {expected} (guessing would corrupt transitions)")
    try:
        return _AUTORESET[AutoresetMode(given)]
    except (ValueError, KeyError):
        raise ValueError(f"{name} has metadata['autoreset_mode']={given!r}: {expected}") from None


def _ingestion(env: gym.vector.VectorEnv[Any, Any, Any], dtype: np.dtype[Any]) -> Callable[[Any], Array]:
    """Copy what the environment may write again (shared memory, its own buffer); never copy twice."""
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv) and env.copy:
        return functools.partial(np.asarray, dtype=dtype, order="C")
    return functools.partial(np.array, dtype=dtype, order="C")


def _describe(environments: Environments, name: str, implementation: str) -> str:
    text = f"{name} x {environments.num_envs}, {implementation}, {environments.autoreset.upper()}"
    return f"{text}; {environments.observation.note}" if environments.observation.note else text


def _final_missing(row: int, what: str) -> str:
    return (
        f"environment {row} ended but {what}: SAME_STEP needs the final observation of every ended episode; "
        "fix the vector environment, or use NEXT_STEP"
    )
