"""Acting: environments and a policy fill a rollout, in place."""

from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch

from hybridrl.data import Rollout, RolloutStorage
from hybridrl.envs import Environments, Episode, EpisodeTracker, Step
from hybridrl.execution.actor import Actor
from hybridrl.execution.finite import check_final, check_rollout, explain_crash
from hybridrl.networks import Decision
from hybridrl.ops.checks import NonFiniteError
from hybridrl.profiling import NullTimer, Timer
from hybridrl.profiling.phases import ACT, ENV, STORE, TRANSFER


class Collector:
    """Steps environments with a policy and writes what happens into a storage.

    Args:
        environments: N of them; reset at the first collection.
        actor: answers observations.
        storage: rows for at least one rollout, N environments wide.
        seed: of the environments' first episodes.
        timer: times the phases "act", "env" and "store", and "transfer" where something is moved.

    Attributes:
        timesteps: environment steps taken so far (reset rows aren't steps).
        episodes: episodes finished so far.
    """

    def __init__(
        self,
        environments: Environments,
        actor: Actor,
        storage: RolloutStorage,
        *,
        seed: int,
        timer: Timer,
    ) -> None:
        self.environments, self.actor, self.storage = environments, actor, storage
        self.seed, self.timer = seed, timer
        self._seeded = False
        self.timesteps = self.episodes = 0
        self._tracker = EpisodeTracker(environments.num_envs)
        self._observation: npt.NDArray[np.generic] | None = None
        self._awaiting: int | None = None  # the row whose next value isn't known yet

    def place(self, actor: Actor, storage: RolloutStorage) -> None:
        """Go on with another actor and storage, between two rollouts; the episodes under way go on."""
        self.actor, self.storage = actor, storage

    def collect(self, rows: int | None, *, at_most: float = float("inf")) -> tuple[Rollout, list[Episode]]:
        """Act for some rows, or with one environment to the end of an episode.

        Args:
            rows: vector steps, at most the storage's; None collects one whole episode.
            at_most: vector steps, whatever ``rows`` says; an episode under way then goes on in the next rollout.

        Returns:
            The rollout (views, overwritten by the next call) and the episodes that ended in it.

        Raises:
            NonFiniteError: an observation, a reward, or what the policy said, isn't a finite number; also where that
                made the environments or the policy raise something else.
        """
        self.storage.clear()
        finished, before = list[Episode](), self.timesteps
        try:
            self._fill(min(rows or self.storage.rows, at_most), rows is None, finished)
        except BaseException as error:
            observation = self._observation
            self._abandon()
            if isinstance(error, Exception) and not isinstance(error, NonFiniteError):
                explain_crash(error, self.storage.rollout(), observation, self._repeat(observation), step=before)
            raise
        finally:
            self.timesteps += self.storage.transitions
            self.episodes += len(finished)
        rollout = self._rollout()
        check_rollout(rollout, self._observation, step=before)
        return rollout, finished

    def _rollout(self) -> Rollout:
        if not self.storage.gathers:
            return self.storage.rollout()
        with self.timer.phase(TRANSFER):
            return self.storage.rollout()

    def _fill(self, wanted: float, one_episode: bool, finished: list[Episode]) -> None:
        """Act until so many rows are written, or an episode has finished."""
        if self._observation is None:
            with self.timer.phase(ENV):
                self._observation = self.environments.reset(seed=self._next_seed())
        while self.storage.written < wanted and not (one_episode and finished):
            self._observation = self._step(self._observation, finished)
        with self.timer.phase(ACT):
            self._settle(self.actor.value(self._observation, timer=self.timer))

    def _next_seed(self) -> int | None:
        """The seed once; afterwards the environments go on with the generators that they have."""
        seed, self._seeded = (None if self._seeded else self.seed), True
        return seed

    def _repeat(self, observation: npt.NDArray[np.generic] | None) -> Decision | None:
        """What the policy says to an observation that something failed at, where it says anything."""
        if observation is not None:
            with suppress(RuntimeError, ValueError, ArithmeticError):
                return self.actor.act(observation, timer=NullTimer()).decision
        return None

    def _abandon(self) -> None:
        """Interrupted midway, nobody knows where the environments stand: the next collection resets them."""
        self._observation = self._awaiting = None
        self._tracker.reset()

    def _step(self, observation: npt.NDArray[np.generic], finished: list[Episode]) -> npt.NDArray[np.generic]:
        """Act on an observation, step, store; returns the next observation."""
        with self.timer.phase(ACT):
            acted = self.actor.act(observation, timer=self.timer)
        with self.timer.phase(ENV):
            step = self.environments.step(acted.action)
        with self.timer.phase(STORE):
            self._settle(acted.decision.value)
            # A step that every environment spent on resetting holds no transition: nothing is kept of it.
            if step.valid.any():
                self._awaiting = self.storage.write(acted.observation, acted.decision, step)
            finished += self._tracker.update(step)
        if step.truncated.any():
            self._end(step)
        return step.observation

    def _end(self, step: Step) -> None:
        """Value what a truncated episode ended with, which is what it is continued by."""
        final = step.observation if step.final_observation is None else step.final_observation
        cut = step.truncated & ~step.terminated & step.valid
        check_final(final, cut, step=self.timesteps + self.storage.transitions)
        if step.final_observation is not None:
            with self.timer.phase(ACT):
                self._settle(self.actor.value(final, timer=self.timer))

    def _settle(self, next_value: torch.Tensor) -> None:
        """Complete the last row: the value of what followed it has become known."""
        if self._awaiting is not None:
            self.storage.write_next_value(self._awaiting, next_value)
            self._awaiting = None
