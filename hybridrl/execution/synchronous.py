"""The synchronous schedule: act, learn, act, learn. While one works the other waits."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridrl.algorithms import PPOLearner, PPOStatistics
from hybridrl.envs import Episode
from hybridrl.execution.bridge import Bridge, OneMemory
from hybridrl.execution.budget import Budget
from hybridrl.execution.collector import Collector
from hybridrl.profiling import Timer
from hybridrl.profiling.phases import COLLECT, LEARN


@dataclass(frozen=True, slots=True)
class Iteration:
    """One round of acting and learning, seen from outside."""

    timesteps: int
    """Environment steps since training began, this round's included."""
    episodes: int
    """Episodes finished since training began, this round's included."""
    finished: tuple[Episode, ...]
    """Those that finished in this round."""
    statistics: PPOStatistics
    """What the update did."""


def synchronous(
    collector: Collector,
    learner: PPOLearner,
    budget: Budget,
    *,
    rows: int | None,
    timer: Timer,
    bridge: Bridge | None = None,
) -> Iterator[Iteration]:
    """Alternate collecting and learning until the budget is spent.

    The last rollout is shortened to what is left of the budget, so that no step is taken beyond it; less than one
    step of every environment is left untaken.

    Args:
        collector: fills rollouts.
        learner: improves the policy that the collector acts with.
        budget: when to stop.
        rows: vector steps a rollout; None: one episode each.
        timer: times the phases "collect" and "learn", and with two memories "transfer" and "publish".
        bridge: between the two; None where they share one memory.

    Yields:
        An :class:`Iteration` after each update. Whoever consumes them may stop at any.
    """
    num_envs, bridge = collector.environments.num_envs, bridge or OneMemory()
    while not budget.is_spent(timesteps=collector.timesteps, episodes=collector.episodes, num_envs=num_envs):
        spent = budget.spent(timesteps=collector.timesteps, episodes=collector.episodes)
        left = budget.rows_left(timesteps=collector.timesteps, num_envs=num_envs)
        with timer.phase(COLLECT):
            rollout, finished = collector.collect(rows, at_most=left)
        delivered = bridge.deliver(rollout, timer=timer)
        with timer.phase(LEARN):
            statistics = learner.update(delivered, progress=spent / budget.amount)
        bridge.publish(timer=timer)
        yield Iteration(collector.timesteps, collector.episodes, tuple(finished), statistics)
