"""Build `Environments` from an id, a callable or a vector environment."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hybridrl.envs.ids import resolve
from hybridrl.envs.spaces import Bounds
from hybridrl.envs.vector import Autoreset, Environments

AnyEnv = gym.Env[Any, Any]
AnyVectorEnv = gym.vector.VectorEnv[Any, Any, Any]
_MODES = {"next_step": AutoresetMode.NEXT_STEP, "same_step": AutoresetMode.SAME_STEP}
_MISSING = (ImportError, gym.error.DependencyNotInstalled)


def make(
    env: str | Callable[[], AnyEnv] | AnyVectorEnv,
    num_envs: int = 1,
    *,
    max_episode_steps: int | None = None,
    autoreset: Autoreset | None = None,
    batched: bool | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    bounds: Bounds = "clip",
) -> Environments:
    """Make `num_envs` environments from a Gymnasium id, a callable that makes one, or a VectorEnv.

    `max_episode_steps` truncates episodes there. `autoreset` is "next_step" (default) or "same_step".
    `batched`: True demands the batched implementation that Gymnasium registers, False refuses it, None takes
    it where it presents the same spaces, for num_envs > 1 and "next_step". `env_kwargs` go to the environment
    that the id names. `bounds` as in `ActionSpec`. A mistake raises a ValueError of one line.
    """
    options = _Options(num_envs, max_episode_steps, autoreset, batched, dict(env_kwargs or {}), bounds)
    if isinstance(env, gym.vector.VectorEnv):
        return _adopt(env, options)
    if isinstance(env, str):
        return _from_id(resolve(env), options)
    _refuse_instance(env)
    return _from_callable(env, options)


@dataclasses.dataclass(frozen=True)
class EnvFactory:
    """Makes one environment from its id; can be pickled, and registers what the id needs in its process."""

    env_id: str
    max_episode_steps: int | None = None
    env_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self) -> AnyEnv:
        """Make one; a missing dependency or a wrong keyword raises a ValueError."""
        spec = resolve(self.env_id)
        unknown = _unknown_kwargs(_creator(spec), self.env_kwargs)
        if unknown:
            raise ValueError(f"env_kwargs of {spec.id!r}: {unknown}")
        try:
            # Without Gymnasium's passive checker: one call less per step, and `check_env` does its work.
            return gym.make(spec, max_episode_steps=self.max_episode_steps, disable_env_checker=True, **self.env_kwargs)
        except _MISSING as error:
            raise ValueError(_needs(spec, error)) from error


@dataclasses.dataclass(frozen=True)
class _Options:
    num_envs: int
    max_episode_steps: int | None
    autoreset: Autoreset | None
    batched: bool | None
    env_kwargs: dict[str, Any]
    bounds: Bounds

    def __post_init__(self) -> None:
        _at_least_one("num_envs", self.num_envs)
        if self.max_episode_steps is not None:
            _at_least_one("max_episode_steps", self.max_episode_steps)
        if self.autoreset not in (None, *_MODES):
            raise ValueError(f"autoreset={self.autoreset!r}: expected 'next_step', 'same_step' or None")
        for name in ("max_episode_steps", "num_envs"):
            if name in self.env_kwargs:
                raise ValueError(f"env_kwargs has {name!r}: give it to make() as {name}= instead")

    def for_count(self, num_envs: int) -> _Options:
        return dataclasses.replace(self, num_envs=num_envs)


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: expected an integer of at least 1")


# By id


def _from_id(spec: EnvSpec, options: _Options) -> Environments:
    factory = EnvFactory(spec.id, options.max_episode_steps, options.env_kwargs)
    reason = _why_not_batched(spec, factory, options)
    if reason and options.batched:
        raise ValueError(f"batched=True, but {reason}: use batched=None or False")
    if reason:
        env: AnyVectorEnv = _in_process(factory, options)
        noteworthy = spec.vector_entry_point is not None and options.num_envs > 1 and options.batched is None
        implementation = f"in-process vectorisation{f' ({reason})' if noteworthy else ''}"
    else:
        env, implementation = _batched(spec, options), "Gymnasium's batched implementation"
    return Environments(
        env,
        name=spec.id,
        implementation=implementation,
        spec_id=spec.id,
        max_episode_steps=options.max_episode_steps or spec.max_episode_steps,
        bounds=options.bounds,
        rebuild=lambda count: _from_id(spec, options.for_count(count)),
    )


def _batched(spec: EnvSpec, options: _Options) -> AnyVectorEnv:
    kwargs = _vector_kwargs(options)
    return gym.make_vec(spec, options.num_envs, vectorization_mode="vector_entry_point", **kwargs)


def _vector_kwargs(options: _Options) -> dict[str, Any]:
    limit = {} if options.max_episode_steps is None else {"max_episode_steps": options.max_episode_steps}
    return {**options.env_kwargs, **limit}


def _why_not_batched(spec: EnvSpec, factory: EnvFactory, options: _Options) -> str | None:
    """Say why the registered batched implementation cannot or should not be used; None when it will be."""
    if spec.vector_entry_point is None:
        return f"no batched implementation of {spec.id!r} is registered"
    if options.batched is False or (options.batched is None and options.num_envs == 1 and spec.entry_point):
        return "one was not asked for"
    if spec.additional_wrappers:
        return f"the wrappers registered with {spec.id!r} would not apply to it"
    try:
        creator = _load(spec.vector_entry_point)
    except _MISSING as error:
        return f"the batched implementation cannot be imported: {_first_line(error)}"
    mode = getattr(creator, "metadata", {}).get("autoreset_mode")
    wanted = _MODES[options.autoreset or "next_step"]
    if mode is not None and mode != wanted:
        return f"the batched implementation of {spec.id!r} knows {mode.name} only"
    unknown = _unknown_kwargs(creator, _vector_kwargs(options))
    if unknown:
        return f"for the batched implementation of {spec.id!r}, {unknown}"
    return None if options.batched or spec.entry_point is None else _differs(spec, factory, options)


def _differs(spec: EnvSpec, factory: EnvFactory, options: _Options) -> str | None:
    """Compare the spaces: a registered vector environment may preprocess, and so be another environment."""
    one, many = factory(), _batched(spec, options.for_count(1))
    same = (
        one.observation_space.shape == many.single_observation_space.shape
        and one.observation_space.dtype == many.single_observation_space.dtype
        and one.action_space == many.single_action_space
    )
    one.close()
    many.close()
    return None if same else f"the batched implementation of {spec.id!r} has other spaces"


# By callable, and in process


def _from_callable(factory: Callable[[], AnyEnv], options: _Options) -> Environments:
    if options.batched or options.env_kwargs:
        given = "batched=True" if options.batched else "env_kwargs"
        raise ValueError(f"{given} with a callable: it works with an id only; set it up inside the callable")
    env = _in_process(_Checked(factory, options.max_episode_steps), options)
    spec = env.envs[0].spec
    name = spec.id if spec is not None else type(env.envs[0].unwrapped).__name__
    return Environments(
        env,
        name=name,
        implementation="in-process vectorisation",
        spec_id=spec.id if spec is not None else None,
        max_episode_steps=spec.max_episode_steps if spec is not None else options.max_episode_steps,
        bounds=options.bounds,
        rebuild=lambda count: _from_callable(factory, options.for_count(count)),
    )


@dataclasses.dataclass(frozen=True)
class _Checked:
    factory: Callable[[], AnyEnv]
    max_episode_steps: int | None

    def __call__(self) -> AnyEnv:
        env = self.factory()
        if not isinstance(env, gym.Env):
            _refuse_old_gym(env)
            cure = "pass the VectorEnv itself" if isinstance(env, gym.vector.VectorEnv) else "return a gymnasium.Env"
            raise ValueError(f"the callable returned a {type(env).__name__}, expected a gymnasium.Env: {cure}")
        return env if self.max_episode_steps is None else gym.wrappers.TimeLimit(env, self.max_episode_steps)


class _KeepFinal(gym.Wrapper[Any, Any, Any, Any]):
    """Copy the observation that ends an episode, before one that reuses its array resets over it."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = observation.copy()
        return observation, reward, terminated, truncated, info


def _in_process(factory: Callable[[], AnyEnv], options: _Options) -> SyncVectorEnv[Any, Any]:
    mode = _MODES[options.autoreset or "next_step"]
    kept = (lambda: _KeepFinal(factory())) if mode is AutoresetMode.SAME_STEP else factory
    try:
        # copy=False, since Environments copies once on the way in.
        env = SyncVectorEnv([kept] * options.num_envs, copy=False, autoreset_mode=mode)
    except RuntimeError as error:
        raise ValueError(f"the environments differ from one another: {_first_line(error)}") from error
    if len({id(one.unwrapped) for one in env.envs}) < options.num_envs:
        raise ValueError("the callable returned the same environment twice: make a new one at each call")
    return env


# A vector environment


def _adopt(env: AnyVectorEnv, options: _Options) -> Environments:
    given = [name for name in ("max_episode_steps", "batched", "env_kwargs") if getattr(options, name)]
    if given:
        raise ValueError(f"{given[0]} with a VectorEnv: it is built already; set it where you build it")
    if options.num_envs not in (1, env.num_envs):
        raise ValueError(f"num_envs={options.num_envs}, but the VectorEnv has {env.num_envs}: leave num_envs out")
    spec = env.spec
    name = spec.id if spec is not None else type(env.unwrapped).__name__
    limit = getattr(env.unwrapped, "max_episode_steps", None) or (spec.max_episode_steps if spec else None)
    adopted = Environments(
        env,
        name=name,
        implementation=type(env.unwrapped).__name__,
        spec_id=spec.id if spec is not None else None,
        max_episode_steps=limit,
        bounds=options.bounds,
    )
    if options.autoreset not in (None, adopted.autoreset):
        raise ValueError(f"autoreset={options.autoreset!r}, but the VectorEnv has {adopted.autoreset!r}: leave it out")
    return adopted


# Refusals


def _refuse_instance(env: object) -> None:
    _refuse_old_gym(env)
    if isinstance(env, gym.Env):
        raise ValueError(
            f"env is one {type(env.unwrapped).__name__}: pass a callable that makes one, e.g. "
            "env=lambda: gymnasium.make(...), since several are needed"
        )
    if not callable(env):
        raise ValueError(f"env is a {type(env).__name__}: expected an id, a callable that makes one, or a VectorEnv")


def _refuse_old_gym(env: object) -> None:
    """Told by the names of the modules of its classes, so that `gym` is never imported."""
    if any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__):
        raise ValueError(f"{type(env).__name__}: this is `gym`, use `gymnasium` (its maintained successor)")


def _creator(spec: EnvSpec) -> Callable[..., Any]:
    if spec.entry_point is None:
        raise ValueError(f"{spec.id!r} has a batched implementation only: use batched=True")
    try:
        return _load(spec.entry_point)
    except _MISSING as error:
        raise ValueError(_needs(spec, error)) from error


def _load(entry_point: Callable[..., Any] | str) -> Callable[..., Any]:
    return entry_point if callable(entry_point) else load_env_creator(entry_point)


def _unknown_kwargs(creator: Callable[..., Any], kwargs: Mapping[str, Any]) -> str:
    accepted = inspect.signature(creator).parameters
    unknown = sorted(set(kwargs) - set(accepted))
    if not unknown or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
        return ""
    return f"{', '.join(map(repr, unknown))} is not accepted, expected some of {', '.join(accepted) or 'none'}"


def _needs(spec: EnvSpec, error: BaseException) -> str:
    point = str(spec.entry_point)
    extra = 'pip install "hybridrl[mujoco]"' if ".mujoco" in point else ""
    return f"{spec.id!r} cannot be made here: {extra or _first_line(error)}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
