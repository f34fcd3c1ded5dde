"""Build ``Environments`` from an id, a callable or a vector environment."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hybridrl.envs.factory import (
    MISSING,
    AnyEnv,
    CheckedFactory,
    EnvFactory,
    KeepFinal,
    first_line,
    load,
    refuse_instance,
    unknown_kwargs,
)
from hybridrl.envs.ids import resolve
from hybridrl.envs.probe import forecast
from hybridrl.envs.processes import START_S, ProcessVectorEnv
from hybridrl.envs.spaces import ActionSpec, Bounds, ObservationSpec
from hybridrl.envs.vector import Autoreset, Environments
from hybridrl.launch import start_method

AnyVectorEnv = gym.vector.VectorEnv[Any, Any, Any]
Processes = bool | Literal["auto"]
_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def make(
    env: str | Callable[[], AnyEnv] | AnyVectorEnv,
    num_envs: int = 1,
    *,
    max_episode_steps: int | None = None,
    autoreset: Autoreset | None = None,
    batched: bool | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    bounds: Bounds = "clip",
    processes: Processes = False,
    step_timeout_s: float | None = None,
) -> Environments:
    """Make ``num_envs`` environments from a Gymnasium id, a callable that makes one, or a VectorEnv.

    ``max_episode_steps`` truncates episodes there. ``autoreset`` is "next_step" (default), "same_step" or
    "disabled" (ended episodes are then reset by ``Environments``, within the step).
    ``batched``: True demands the batched implementation that Gymnasium registers, False refuses it, None takes
    it where it presents the same spaces, for num_envs > 1 and "next_step". ``env_kwargs`` go to the environment
    that the id names. ``bounds`` as in ``ActionSpec``. A mistake raises a ValueError of one line.

    ``processes``: True gives each environment a process of its own (see ``ProcessVectorEnv`` for how they start and
    fail), "auto" does where a short measurement says that this is clearly faster than in-process; the description
    tells the numbers. A batched implementation goes before "auto". A clone, as for evaluation, is in-process.
    ``step_timeout_s``: patience with a process's step; None waits for ever.
    """
    options = _Options(
        *(num_envs, max_episode_steps, autoreset, batched, _mapping(env_kwargs), bounds, processes, step_timeout_s)
    )
    if isinstance(env, gym.vector.VectorEnv):
        return _adopt(env, options)
    if isinstance(env, str):
        return _from_id(resolve(env), options)
    refuse_instance(env)
    return _from_callable(env, options)


@dataclasses.dataclass(frozen=True)
class _Options:
    num_envs: int
    max_episode_steps: int | None
    autoreset: Autoreset | None
    batched: bool | None
    env_kwargs: dict[str, Any]
    bounds: Bounds
    processes: Processes
    step_timeout_s: float | None

    def __post_init__(self) -> None:
        _at_least_one("num_envs", self.num_envs)
        if self.max_episode_steps is not None:
            _at_least_one("max_episode_steps", self.max_episode_steps)
        if self.autoreset not in (None, *_MODES):
            raise ValueError(f"autoreset={self.autoreset!r}: expected 'next_step', 'same_step', 'disabled' or None")
        if not isinstance(self.processes, bool) and self.processes != "auto":
            raise ValueError(f"processes={self.processes!r}: expected False, True or 'auto'")
        if self.step_timeout_s is not None:
            _positive("step_timeout_s", self.step_timeout_s)
            if not self.processes:
                raise ValueError(
                    f"step_timeout_s={self.step_timeout_s} without processes: only those can be waited for"
                )
        if self.batched and self.processes is True:
            raise ValueError("batched=True and processes=True: expected one of them")
        for name in ("max_episode_steps", "num_envs"):
            if name in self.env_kwargs:
                raise ValueError(f"env_kwargs has {name!r}: give it to make() as {name}= instead")

    def for_count(self, num_envs: int) -> _Options:
        return dataclasses.replace(self, num_envs=num_envs)

    def for_clone(self, num_envs: int) -> _Options:
        return dataclasses.replace(self, num_envs=num_envs, processes=False, step_timeout_s=None)


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r}: expected an integer of at least 1")


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: expected None or a number of seconds above 0")


def _mapping(env_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(env_kwargs, Mapping | None):
        raise ValueError(f"env_kwargs={env_kwargs!r}: expected a mapping of keyword arguments")
    return dict(env_kwargs or {})


# By id


def _from_id(spec: EnvSpec, options: _Options) -> Environments:
    factory = EnvFactory(spec.id, options.max_episode_steps, options.env_kwargs)
    reason = _why_not_batched(spec, factory, options)
    if reason and options.batched:
        raise ValueError(f"batched=True, but {reason}: use batched=None or False")
    if reason:
        env, _, implementation = _one_by_one(factory, options)
        noteworthy = spec.vector_entry_point is not None and options.num_envs > 1 and options.batched is None
        implementation += f" ({reason})" if noteworthy and options.processes is not True else ""
    else:
        env, implementation = _batched(spec, options), "Gymnasium's batched implementation"
    return Environments(
        env,
        name=spec.id,
        implementation=implementation,
        spec_id=spec.id,
        max_episode_steps=options.max_episode_steps or spec.max_episode_steps,
        bounds=options.bounds,
        rebuild=lambda count: _from_id(spec, options.for_clone(count)),
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
    if (
        options.batched is False
        or options.processes is True
        or (options.batched is None and options.num_envs == 1 and spec.entry_point)
    ):
        return "one was not asked for"
    if spec.additional_wrappers:
        return f"the wrappers registered with {spec.id!r} would not apply to it"
    try:
        creator = load(spec.vector_entry_point)
    except MISSING as error:
        return f"the batched implementation cannot be imported: {first_line(error)}"
    mode = getattr(creator, "metadata", {}).get("autoreset_mode")
    wanted = _MODES[options.autoreset or "next_step"]
    if mode is None and inspect.isclass(creator):
        return f"the batched implementation of {spec.id!r} does not say how it resets"
    if mode not in (None, wanted, wanted.value):
        return f"the batched implementation of {spec.id!r} knows {getattr(mode, 'name', mode)} only"
    unknown = unknown_kwargs(creator, _vector_kwargs(options))
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


# By callable, in process or in processes


def _from_callable(factory: Callable[[], AnyEnv], options: _Options) -> Environments:
    if options.batched or options.env_kwargs:
        given = "batched=True" if options.batched else "env_kwargs"
        raise ValueError(f"{given} with a callable: it works with an id only; set it up inside the callable")
    env, first, implementation = _one_by_one(CheckedFactory(factory, options.max_episode_steps), options)
    spec = first.spec
    name = spec.id if spec is not None else type(first.unwrapped).__name__
    return Environments(
        env,
        name=name,
        implementation=implementation,
        spec_id=spec.id if spec is not None else None,
        max_episode_steps=_limit(first, options.max_episode_steps),
        bounds=options.bounds,
        rebuild=lambda count: _from_callable(factory, options.for_clone(count)),
    )


def _limit(env: AnyEnv, given: int | None) -> int | None:
    """Find the shortest limit among the layers of an environment: two TimeLimits both apply."""
    limits = [] if given is None else [given]
    while isinstance(env, gym.Wrapper):
        limits += [env.spec.max_episode_steps] if env.spec and env.spec.max_episode_steps else []
        env = env.env
    return min(limits, default=None)


def _one_by_one(factory: Callable[[], AnyEnv], options: _Options) -> tuple[AnyVectorEnv, AnyEnv, str]:
    """Vectorise what makes one environment; also return one of them (perhaps closed), and what was chosen."""
    if options.processes is False:
        made = _in_process(factory, options)
        return made, made.envs[0], "in-process vectorisation"
    started = time.monotonic()
    first = factory()
    patience = START_S + 10 * options.num_envs * (time.monotonic() - started)
    try:
        # Refused here, before workers are started.
        ObservationSpec.of(first.observation_space), ActionSpec.of(first.action_space, options.bounds)
        found = forecast(first, options.num_envs) if options.processes == "auto" else None
    finally:
        first.close()
    why = "" if found is None else f" ({found})"
    if isinstance(found, str) or (found is not None and not found.pays):
        return _in_process(factory, options), first, f"in-process vectorisation{why}"
    mode = _MODES[options.autoreset or "next_step"]
    env = ProcessVectorEnv(
        *(factory, options.num_envs),
        like=first,
        autoreset_mode=mode,
        step_timeout_s=options.step_timeout_s,
        start_timeout_s=patience,
    )
    return env, first, f"one process each, by {start_method()}{why}"


def _in_process(factory: Callable[[], AnyEnv], options: _Options) -> SyncVectorEnv[Any, Any]:
    mode = _MODES[options.autoreset or "next_step"]
    kept = (lambda: KeepFinal(factory())) if mode is AutoresetMode.SAME_STEP else factory
    try:
        # copy=False, since Environments copies once on the way in.
        env = SyncVectorEnv([kept] * options.num_envs, copy=False, autoreset_mode=mode)
    except RuntimeError as error:
        raise ValueError(f"the environments differ from one another: {first_line(error)}") from error
    if len({id(one.unwrapped) for one in env.envs}) < options.num_envs:
        raise ValueError("the callable returned the same environment twice: make a new one at each call")
    return env


# A vector environment


def _adopt(env: AnyVectorEnv, options: _Options) -> Environments:
    given = [name for name in ("max_episode_steps", "batched", "env_kwargs", "processes") if getattr(options, name)]
    if given:
        raise ValueError(f"{given[0]} with a VectorEnv: it is built already; set it where you build it")
    if options.num_envs not in (1, env.num_envs):
        raise ValueError(f"num_envs={options.num_envs}, but the VectorEnv has {env.num_envs}: leave num_envs out")
    base = env.unwrapped
    spec = base.envs[0].spec if env.spec is None and isinstance(base, SyncVectorEnv) else env.spec
    name = spec.id if spec is not None else "VectorEnv"
    limit = getattr(base, "max_episode_steps", None) or (spec.max_episode_steps if spec else None)
    adopted = Environments(
        env,
        name=name,
        implementation=type(base).__name__,
        spec_id=spec.id if spec is not None else None,
        max_episode_steps=limit,
        bounds=options.bounds,
    )
    if options.autoreset not in (None, adopted.autoreset):
        raise ValueError(f"autoreset={options.autoreset!r}, but the VectorEnv has {adopted.autoreset!r}: leave it out")
    return adopted
