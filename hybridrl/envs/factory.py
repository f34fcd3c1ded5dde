"""Makers of one environment: by id or by callable, refusing what is not one before it is stepped."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from hybridrl.envs.ids import resolve

AnyEnv = gym.Env[Any, Any]
MISSING = (ImportError, gym.error.DependencyNotInstalled)


@dataclasses.dataclass(frozen=True)
class EnvFactory:
    """Makes one environment from its id; can be pickled, and registers what the id needs in its process."""

    env_id: str
    max_episode_steps: int | None = None
    env_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self) -> AnyEnv:
        """Make one; a missing dependency or a wrong keyword raises a ValueError."""
        spec = resolve(self.env_id)
        unknown = unknown_kwargs(_creator(spec), self.env_kwargs)
        if unknown:
            raise ValueError(f"env_kwargs of {spec.id!r}: {unknown}")
        try:
            # Without Gymnasium's passive checker: one call less per step, and `check_env` does its work.
            return gym.make(spec, max_episode_steps=self.max_episode_steps, disable_env_checker=True, **self.env_kwargs)
        except MISSING as error:
            raise ValueError(_needs(spec, error)) from error
        except TypeError as error:  # a creator that takes **kwargs, and passes them to one that does not
            raise ValueError(f"{spec.id!r} cannot be made: {first_line(error)}") from error


@dataclasses.dataclass(frozen=True)
class CheckedFactory:
    """Calls the user's callable and makes sure of what it returned."""

    factory: Callable[[], AnyEnv]
    max_episode_steps: int | None

    def __call__(self) -> AnyEnv:
        """Make one; anything but a gymnasium.Env raises a ValueError."""
        env = self.factory()
        if not isinstance(env, gym.Env):
            _refuse_old_gym(env)
            cure = "pass the VectorEnv itself" if isinstance(env, gym.vector.VectorEnv) else "return a gymnasium.Env"
            raise ValueError(f"the callable returned a {type(env).__name__}, expected a gymnasium.Env: {cure}")
        return env if self.max_episode_steps is None else gym.wrappers.TimeLimit(env, self.max_episode_steps)


class KeepFinal(gym.Wrapper[Any, Any, Any, Any]):
    """Copy the observation that ends an episode, before one that reuses its array resets over it."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and own the last observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = observation.copy()
        return observation, reward, terminated, truncated, info


def refuse_instance(env: object) -> None:
    """Raise a ValueError unless ``env`` is a callable that may make environments."""
    _refuse_old_gym(env)
    if isinstance(env, gym.Env):
        raise ValueError(
            f"env is one {type(env.unwrapped).__name__}: pass a callable that makes one, e.g. "
            "env=lambda: gymnasium.make(...), since several are needed"
        )
    if not callable(env):
        raise ValueError(f"env is a {type(env).__name__}: expected an id, a callable that makes one, or a VectorEnv")


def _refuse_old_gym(env: object) -> None:
    """Told by the names of the modules of its classes, so that ``gym`` is never imported."""
    if any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__):
        raise ValueError(f"{type(env).__name__}: this is `gym`, use `gymnasium` (its maintained successor)")


def _creator(spec: EnvSpec) -> Callable[..., Any]:
    if spec.entry_point is None:
        raise ValueError(f"{spec.id!r} has a batched implementation only: use batched=True")
    try:
        return load(spec.entry_point)
    except MISSING as error:
        raise ValueError(_needs(spec, error)) from error


def load(entry_point: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return what a registered entry point names."""
    return entry_point if callable(entry_point) else load_env_creator(entry_point)


def unknown_kwargs(creator: Callable[..., Any], kwargs: Mapping[str, Any]) -> str:
    """Say which of ``kwargs`` the creator does not take, "" when it takes them all."""
    accepted = inspect.signature(creator).parameters
    unknown = sorted(set(kwargs) - set(accepted))
    if not unknown or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
        return ""
    return f"{', '.join(map(repr, unknown))} is not accepted, expected some of {', '.join(accepted) or 'none'}"


def _needs(spec: EnvSpec, error: BaseException) -> str:
    point = str(spec.entry_point)
    extra = 'pip install "hybridrl[mujoco]"' if ".mujoco" in point else ""
    return f"{spec.id!r} cannot be made here: {extra or first_line(error)}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: ours are one line."""
    return str(error).partition("\n")[0]
