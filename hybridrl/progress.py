"""A progress bar that keeps out of log files and notebooks."""

import os
import sys
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Self

from tqdm import tqdm

from hybridrl.envs import Episode
from hybridrl.execution import Budget


class ProgressBar:
    """Shows how much of a budget is spent, on stderr, and only where that is a terminal.

    Args:
        budget: what is to be spent.
        wanted: False shows nothing; neither does a set ``HYBRIDRL_QUIET``.
    """

    def __init__(self, budget: Budget, *, wanted: bool) -> None:
        shown = wanted and not os.environ.get("HYBRIDRL_QUIET") and sys.stderr is not None and sys.stderr.isatty()
        unit = "step" if budget.timesteps else "episode"
        self._bar = tqdm(total=budget.amount, unit=f" {unit}s", unit_scale=True, file=sys.stderr, disable=not shown)

    def advance(self, spent: int, episodes: Sequence[Episode]) -> None:
        """Move to what has been spent in all, with the mean return of the latest episodes beside it."""
        if self._bar.disable:
            return
        self._bar.update(spent - self._bar.n)
        if episodes:
            self._bar.set_postfix_str(f"return {fmean(episode.return_ for episode in episodes[-20:]):.1f}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
