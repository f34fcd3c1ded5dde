"""Where to run, decided by a short measurement: what ``placement="auto"`` does."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import nn

from hybridrl.assembly import Assembly, Seeds, assemble
from hybridrl.building import EnvSource, make_environments, make_policy
from hybridrl.envs import spread_seeds
from hybridrl.execution import Budget, synchronous
from hybridrl.experiments.measurement import Measurement, compare, format_value
from hybridrl.placement import Placement, devices
from hybridrl.profiling import NullTimer
from hybridrl.recipes import PPORecipe

ROUNDS = 5
"""Timed rounds of acting and learning on each placement; fewer couldn't tell a winner from luck."""
FEWEST_ROUNDS = 3
LIMIT_S = 30.0
"""After so long, the fewest rounds must do."""
WARM_UP = 2
"""Untimed ones before them: the first pays for contexts, libraries and allocations."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was measured, and what follows from it."""

    placement: Placement
    """The fastest; the first candidate where none is clearly faster."""
    rates: Mapping[str, Measurement]
    """Environment steps per second of each candidate, one repeat a round."""
    seconds: float
    """What the measurement cost."""
    without: tuple[str, ...] = ()
    """Candidates that couldn't begin, for want of memory."""

    @property
    def note(self) -> str:
        """The choice and its numbers in one line."""
        if not self.rates:
            return f"placement auto: {self.placement}, the only device here"
        told = ", ".join(f"{name} {format_value(rate.median)} steps/s" for name, rate in self.rates.items())
        rounds = next(iter(self.rates.values())).n
        unfit = f"; didn't fit: {', '.join(self.without)}" if self.without else ""
        return f"placement auto: {self.placement}, of {told} (medians of {rounds} rounds, {self.seconds:.1f} s){unfit}"


def candidates() -> tuple[Placement, ...]:
    """The placements worth trying here: all on the CPU first, then acting there or not, with each accelerator."""
    _, *others = devices.available()
    return (Placement("cpu", "cpu"), *(p for name in others for p in (Placement("cpu", name), Placement(name, name))))


def choose(
    env: EnvSource,
    recipe: PPORecipe,
    network: nn.Module | None,
    seed: int,
    *,
    among: Sequence[Placement] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Train for some rounds on each placement, in turns, and take the fastest.

    Environments and policies are made for the purpose; a network of the user's is copied. Where the spread of the
    rounds covers the difference, the first candidate stays: it is the simplest.

    Args:
        env: as an agent takes it, but for a ``VectorEnv``, of which there is only one.
        recipe: resolved.
        network: the user's, or None.
        seed: of the trials.
        among: candidates; None takes :func:`candidates`.
        clock: seconds.

    Raises:
        ValueError: the environments can't be made twice.
    """
    found = tuple(candidates() if among is None else among)
    if len(found) == 1:
        return Choice(placement=found[0], rates={}, seconds=0.0)
    if isinstance(env, gym.vector.VectorEnv):
        raise ValueError(
            "placement='auto' measures on environments of its own: give an id or a callable, or name the placement"
        )
    start = clock()
    with ExitStack() as stack:
        trials = list(_begun(found, lambda p: _Trial(env, recipe, copy.deepcopy(network), seed, p), stack))
        rates = _rates(trials, clock)
    return Choice(
        placement=_fastest([trial.placement for trial in trials], rates),
        rates=rates,
        seconds=clock() - start,
        without=tuple(str(p) for p in found if str(p) not in rates),
    )


def _begun(found: Sequence[Placement], make: Callable[[Placement], "_Trial"], stack: ExitStack) -> Iterator["_Trial"]:
    """The trials that can begin; of those that don't fit on their device, the first alone is an error."""
    for number, placement in enumerate(found):
        try:
            yield stack.enter_context(make(placement))
        except (ValueError, torch.OutOfMemoryError):
            if number == 0:
                raise


class _Trial:
    """A fresh agent on one placement, trained a round at a time."""

    def __init__(
        self, env: EnvSource, recipe: PPORecipe, network: nn.Module | None, seed: int, placement: Placement
    ) -> None:
        initial, act, learn, predict, environments = spread_seeds(seed, 5)
        self.placement = placement
        self._environments = make_environments(env, recipe)
        seeds = Seeds(act=act, learn=learn, predict=predict, environments=environments)
        try:
            policy = make_policy(self._environments, network, recipe, initial)
            self._parts: Assembly = assemble(policy, self._environments, recipe, placement, seeds)
        except BaseException:
            self._environments.close()
            raise
        self._wait = devices.synchronizer_of_all(placement.devices)
        self._rounds = synchronous(
            self._parts.collector,
            self._parts.learner,
            Budget(timesteps=2**62),
            rows=recipe.ppo.rollout_steps,
            timer=NullTimer(),
            bridge=self._parts.bridge,
        )

    def __enter__(self) -> "_Trial":
        return self

    def __exit__(self, *_: object) -> None:
        self._environments.close()

    def round(self) -> int:
        """Act and learn once; returns the environment steps, when the devices have done."""
        before = self._parts.collector.timesteps
        next(self._rounds)
        if self._wait is not None:
            self._wait()
        return self._parts.collector.timesteps - before


def _rates(trials: Sequence[_Trial], clock: Callable[[], float]) -> dict[str, Measurement]:
    rates: dict[str, list[float]] = {str(trial.placement): [] for trial in trials}
    began = clock()
    for turn in range(-WARM_UP, ROUNDS):
        if turn >= FEWEST_ROUNDS and clock() - began > LIMIT_S:
            break
        for trial in trials:
            start = clock()
            steps = trial.round()
            if turn >= 0:
                rates[str(trial.placement)].append(steps / (clock() - start))
    return {name: Measurement(values, "steps/s") for name, values in rates.items()}


def _fastest(found: Sequence[Placement], rates: Mapping[str, Measurement]) -> Placement:
    best = found[0]
    for placement in found[1:]:
        if compare(rates[str(placement)], rates[str(best)], paired=True).verdict == "higher":
            best = placement
    return best
