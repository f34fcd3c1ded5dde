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
from hybridrl.profiling import Timer
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


class OneMemory:
    """Actor and learner share policy and storage: there is nothing to bring."""

    version = 0

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """The rollout itself."""
        return rollout

    def publish(self, *, timer: Timer) -> None:
        """Nothing: the actor's weights are the learner's."""
        self.version += 1


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

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """A copy, made by one transfer."""
        with timer.phase(TRANSFER):
            return self.copy.fill()

    def publish(self, *, timer: Timer) -> None:
        """Copy the whole vector of parameters and moments, at once and in place."""
        with timer.phase(PUBLISH):
            self.acting.copy_(self.learnt)
        self.version += 1


def make_bridge(
    placement: Placement, storage: RolloutStorage, *, learnt: FlatParameters, acting: FlatParameters
) -> OneMemory | TwoMemories:
    """The bridge that a placement needs."""
    if not placement.separate:
        return OneMemory()
    event = partial(devices.event, placement.learn_device)
    return TwoMemories(RolloutCopy(storage, placement.learn_device, event=event), learnt=learnt, acting=acting)
