"""The bridge between acting and learning: how a rollout reaches the learner, and how weights come back.

Acting and learning in one memory need none of it. In two, a rollout crosses by one copy, and the weights, normalisers
included, come back by another.
"""

from functools import partial
from typing import Protocol

from hybridrl.data import Rollout
from hybridrl.data.rollout import RolloutCopy, RolloutStorage
from hybridrl.flat import FlatParameters
from hybridrl.placement import Placement, devices
from hybridrl.profiling import NullTimer, Timer
from hybridrl.profiling.phases import PUBLISH, TRANSFER


class Bridge(Protocol):
    """Brings rollouts to the learner, and what it learnt to the actor."""

    @property
    def version(self) -> int:
        """How often weights were published: the version of those that act now."""

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """The rollout just collected, where the learner computes."""

    def publish(self, *, timer: Timer) -> None:
        """Let the actor act with the learner's present weights."""

    def refresh(self) -> None:
        """The same, where they have been changed by others since the last time."""


class OneMemory:
    """Actor and learner share policy and storage: there is nothing to bring."""

    version = 0

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """The rollout itself."""
        return rollout

    def publish(self, *, timer: Timer) -> None:
        """Nothing: the actor's weights are the learner's."""
        self.version += 1

    def refresh(self) -> None:
        """Nothing: the actor's weights are the learner's."""


class StoredApart(OneMemory):
    """Actor and learner share the policy, but rollouts are stored elsewhere: they are brought, weights aren't.

    Args:
        copy: of the storage, where the learner computes.
    """

    def __init__(self, copy: RolloutCopy) -> None:
        self.copy = copy

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """A copy, made by one transfer."""
        with timer.phase(TRANSFER):
            return self.copy.fill()


class TwoMemories:
    """Actor and learner each have their own.

    Args:
        copy: of the storage, where the learner computes.
        learnt: the learner's parameters.
        acting: the actor's.
    """

    def __init__(self, copy: RolloutCopy, *, learnt: FlatParameters, acting: FlatParameters) -> None:
        self.copy, self.learnt, self.acting = copy, learnt, acting
        self.version = 0
        self._published: list[int] = []

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """A copy, made by one transfer."""
        with timer.phase(TRANSFER):
            return self.copy.fill()

    def publish(self, *, timer: Timer) -> None:
        """Copy the whole vector of parameters and moments, at once and in place."""
        with timer.phase(PUBLISH):
            self.acting.copy_(self.learnt)
        self.version += 1
        self._published = self._edits()

    def refresh(self) -> None:
        """Publish, if somebody but the learner has changed the weights since they were published."""
        if self._edits() != self._published:
            self.publish(timer=NullTimer())

    def _edits(self) -> list[int]:
        """How often each tensor was written in place; torch counts, though not through ``.data``."""
        module = self.learnt.module
        return [tensor._version for tensor in (*module.parameters(), *module.buffers())]


def make_bridge(
    placement: Placement, storage: RolloutStorage, *, learnt: FlatParameters, acting: FlatParameters
) -> OneMemory | StoredApart | TwoMemories:
    """The bridge that a placement needs."""
    if not placement.separate and placement.store == placement.learn:
        return OneMemory()
    copy = RolloutCopy(storage, placement.learn_device, event=partial(devices.event, placement.learn_device))
    return TwoMemories(copy, learnt=learnt, acting=acting) if placement.separate else StoredApart(copy)
