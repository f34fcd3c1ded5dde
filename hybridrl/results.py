"""What training leaves: episodes, statistics of every update, and where the time went."""

from dataclasses import dataclass, field, replace
from statistics import fmean

import torch

from hybridrl.algorithms import PPOStatistics
from hybridrl.envs import Environments, Episode
from hybridrl.execution import Iteration
from hybridrl.profiling import PhaseTimer, Report
from hybridrl.profiling.limits import available_cores
from hybridrl.profiling.phases import ENV

SLOW_STEP_S = 5e-4
"""An environment's step from which on a process's messages, some tenths of a millisecond at most, could pay."""
MOST = 0.5
"""Share of the wall time from which on the environments are what to work on."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """One call of ``learn``."""

    timesteps: int
    """Environment steps taken by this call."""
    episodes: tuple[Episode, ...]
    """Finished in this call, in order."""
    episode_timesteps: tuple[int, ...]
    """For each of them, the agent's steps at the end of the round in which it finished."""
    updates: tuple[PPOStatistics, ...]
    """What each update did."""
    report: Report
    """Where the time went."""
    stopped: bool
    """A callback ended training before the budget was spent."""

    @property
    def returns(self) -> list[float]:
        """Raw return of each finished episode."""
        return [episode.return_ for episode in self.episodes]

    def mean_return(self, last: int | None = None) -> float | None:
        """Mean raw return of all, or of the last so many, episodes; None where none finished."""
        returns = self.returns[-last:] if last else self.returns
        return fmean(returns) if returns else None

    def __str__(self) -> str:
        recent = min(100, len(self.episodes))
        mean = self.mean_return(last=recent)
        learnt = "no episode finished" if mean is None else f"mean return {mean:.1f} over the last {recent}"
        return f"{self.timesteps:,} steps, {len(self.episodes):,} episodes, {learnt}\n{self.report}"


def advised(report: Report, environments: Environments) -> Report:
    """The report with a hint, where most of the time went into slow environments that were stepped in turn."""
    share, seconds, steps = report.share(ENV) or 0.0, report.seconds(ENV) or 0.0, report.counters["env_steps"]
    slow = environments.in_turn and steps and seconds / steps > SLOW_STEP_S and share > MOST
    if not slow or (available_cores() or 1) < 2:
        return report
    hint = (
        f"stepping the environments in turn took {share:.0%} of the time, {1e3 * seconds / steps:.2g} ms a step; "
        "processes='auto' measures whether processes pay"
    )
    return replace(report, notes=(*report.notes, hint))


@dataclass
class TrainingLog:
    """Gathers rounds into a result."""

    first_timestep: int
    timesteps: int = 0
    episodes: list[Episode] = field(default_factory=list)
    episode_timesteps: list[int] = field(default_factory=list)
    updates: list[PPOStatistics] = field(default_factory=list)

    def add(self, iteration: Iteration) -> None:
        """Take one round in."""
        self.timesteps = iteration.timesteps - self.first_timestep
        self.episodes += iteration.finished
        self.episode_timesteps += [iteration.timesteps] * len(iteration.finished)
        self.updates.append(iteration.statistics)

    def result(self, timer: PhaseTimer, *, notes: tuple[str, ...], stopped: bool) -> TrainingResult:
        """Close the log."""
        counters = {
            "env_steps": self.timesteps,
            "episodes": len(self.episodes),
            "updates": len(self.updates),
            "optimizer_steps": sum(update.optimizer_steps for update in self.updates),
        }
        return TrainingResult(
            timesteps=self.timesteps,
            episodes=tuple(self.episodes),
            episode_timesteps=tuple(self.episode_timesteps),
            updates=tuple(self.updates),
            report=timer.report(threads=torch.get_num_threads(), counters=counters, notes=notes),
            stopped=stopped,
        )
