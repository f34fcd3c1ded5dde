"""Running sums of one sampled quantity: time-weighted mean, extremes, and a series of bounded length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from hybridrl.profiling.readings import Reading, Unknown
from hybridrl.profiling.usage import Summary, Unit

MAX_POINTS = 256
"""A series that reaches this many points is halved: each then covers twice the time. Even."""

MOST_REASONS = 16
"""Kept apart; more are an error message that holds a number, and counted as one."""

Tell = Callable[[str, str], None]
"""Called with a quantity's name and the reason for which it is unknown."""


class Track:
    """One quantity over a run, in memory that doesn't grow with its length.

    Every sample stands for the time since the one before it, and weighs as much in the mean.
    """

    def __init__(self, name: str, unit: Unit, tell: Tell, *, series: bool = False) -> None:
        self._name, self._unit, self._tell = name, unit, tell
        self._sum, self._weight_s = 0.0, 0.0
        self._min, self._max, self._short_max = math.inf, -math.inf, -math.inf
        self._known, self._total = 0, 0
        self._reasons: Counter[str] = Counter()
        self._series = Series() if series else None

    def add(self, at_s: float, reading: Reading, weight_s: float, *, peak: bool = True) -> None:
        """One sample taken ``at_s`` seconds after the start, for the ``weight_s`` seconds before it.

        With ``peak=False`` it counts as a minimum or a maximum only where no other sample does.
        """
        self._total += 1
        if not isinstance(reading, Unknown) and not math.isfinite(reading):
            reading = Unknown(f"reads {reading}")
        if isinstance(reading, Unknown):
            self._miss(reading.reason)
        else:
            self._count(reading, weight_s, peak)
        if self._series is not None:
            self._series.add(at_s, None if isinstance(reading, Unknown) else reading, weight_s)

    def _miss(self, reason: str) -> None:
        known = reason in self._reasons or len(self._reasons) < MOST_REASONS
        self._reasons[reason if known else "several reasons"] += 1
        self._tell(self._name, reason)

    def _count(self, value: float, weight_s: float, peak: bool) -> None:
        self._known += 1
        self._sum += value * weight_s
        self._weight_s += weight_s
        if peak:
            self._min, self._max = min(self._min, value), max(self._max, value)
        else:
            self._short_max = max(self._short_max, value)

    def summary(self) -> Summary:
        """What was added so far."""
        reason = self._reasons.most_common(1)[0][0] if self._reasons else None
        if not self._known:
            return Summary(unit=self._unit, total=self._total, reason=reason or "no sample", series=self._points())
        mean = self._sum / self._weight_s
        peaked = self._max > -math.inf
        return Summary(
            unit=self._unit,
            mean=mean,
            min=self._min if peaked else mean,
            max=self._max if peaked else self._short_max,
            known=self._known,
            total=self._total,
            reason=reason,
            series=self._points(),
        )

    def _points(self) -> tuple[tuple[float, float | None], ...]:
        return () if self._series is None else self._series.points()


class Series:
    """A mean for each stretch of time, at most ``MAX_POINTS`` of them: at the limit, neighbours are merged."""

    def __init__(self) -> None:
        self._bins: list[list[float]] = []  # end, seconds known, sum of value times seconds
        self._per_bin, self._in_last = 1, 0

    def add(self, at_s: float, value: float | None, weight_s: float) -> None:
        """A sample for the ``weight_s`` seconds before ``at_s``; None is unknown, and doesn't enter the mean."""
        if self._in_last == 0:
            if len(self._bins) == MAX_POINTS:
                self._halve()
            self._bins.append([at_s, 0.0, 0.0])
        last = self._bins[-1]
        last[0] = at_s
        if value is not None:
            last[1] += weight_s
            last[2] += value * weight_s
        self._in_last = (self._in_last + 1) % self._per_bin

    def _halve(self) -> None:
        pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
        self._bins = [[late[0], early[1] + late[1], early[2] + late[2]] for early, late in pairs]
        self._per_bin *= 2

    def points(self) -> tuple[tuple[float, float | None], ...]:
        """The end of each stretch in seconds, and its mean; None where all of it is unknown."""
        return tuple((end, total / weight if weight else None) for end, weight, total in self._bins)


class Rate:
    """Turns a counter of seconds into a share of the time between readings, in percent."""

    def __init__(self, shortest_s: float = 0.0) -> None:
        self._shortest_s = shortest_s
        self._last: tuple[float, float] | None = None  # of the last known reading: the counter, and when

    def base(self, counter: Reading, at_s: float) -> None:
        """Where counting begins."""
        self._last = None if isinstance(counter, Unknown) else (counter, at_s)

    def step(self, counter: Reading, at_s: float) -> tuple[Reading, float]:
        """The percentage since the last known reading, and the seconds it stands for."""
        if isinstance(counter, Unknown):
            return counter, 0.0
        last, elapsed = self._last, 0.0 if self._last is None else at_s - self._last[1]
        if last is not None and elapsed < self._shortest_s:
            return Unknown("too short a time for the system's clock ticks"), 0.0
        self._last = (counter, at_s)
        if last is None or counter < last[0] or elapsed <= 0:
            return Unknown("no earlier reading to compare with"), 0.0
        return 100 * (counter - last[0]) / elapsed, elapsed
