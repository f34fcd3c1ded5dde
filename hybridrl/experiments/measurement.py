"""Repeated measurements: their spread, and whether two of them differ."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["higher", "lower", "no clear difference"]

# Below 3 there is no spread to speak of. Below 5, all paired ratios fall on one side of 1 by luck alone
# more than once in eight (2 * 0.5**4), so there the two ranges must not even overlap.
FEWEST_FOR_A_WINNER = 3
FEWEST_FOR_PAIRS = 5


def format_value(value: float) -> str:
    """A number as a reader wants it: three digits, thousands separated, no false precision."""
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Interval:
    """Where the median lies, with the probability that it does (0 for a single run)."""

    low: float
    high: float
    coverage: float


@dataclass(frozen=True)
class Measurement:
    """Repeats of one quantity, in the order they were taken; every one finite."""

    values: tuple[float, ...]
    unit: str

    def __init__(self, values: Iterable[float], unit: str) -> None:
        repeats = tuple(float(value) for value in values)
        if not repeats:
            raise ValueError("a measurement of no values; expected at least one (None is the unknown one)")
        for index, value in enumerate(repeats):
            if not math.isfinite(value):
                raise ValueError(f"value {index} is {value}; expected finite numbers: leave unknown ones out")
        object.__setattr__(self, "values", repeats)
        object.__setattr__(self, "unit", unit)

    @property
    def n(self) -> int:
        """How many repeats."""
        return len(self.values)

    @property
    def median(self) -> float:
        """The middle repeat."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest repeat."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest repeat."""
        return max(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The values a quarter and three quarters of the way up (linear between repeats)."""
        if self.n == 1:
            return self.low, self.high
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def interval(self, confidence: float = 0.95) -> Interval:
        """Distribution-free interval of the median, between two order statistics.

        The narrowest symmetric pair whose coverage reaches ``confidence``; where even the full range does not
        (5 repeats or fewer at 0.95), the full range with the coverage that it has. Source: the sign test;
        Conover, Practical Nonparametric Statistics, section 3.2.
        """
        ordered = sorted(self.values)
        rank, tail = 0, 0.5**self.n  # tail = P(Binomial(n, 1/2) <= rank)
        while rank + 1 < (self.n + 1) // 2:
            wider = tail + math.comb(self.n, rank + 1) * 0.5**self.n
            if 1 - 2 * wider < confidence:
                break
            rank, tail = rank + 1, wider
        return Interval(ordered[rank], ordered[self.n - 1 - rank], max(0.0, 1 - 2 * tail))

    def rate(self, count: float, unit: str) -> "Measurement":
        """``count`` things in each of these times, as a rate: ``seconds.rate(100_000, "steps/s")``."""
        if self.low <= 0:
            raise ValueError(f"a rate over {self.low} {self.unit}; expected times above zero")
        return Measurement((count / value for value in self.values), unit)

    def to_dict(self) -> dict[str, object]:
        """The repeats and their unit, and the summary that is shown."""
        return {
            "values": list(self.values),
            "unit": self.unit,
            "n": self.n,
            "median": self.median,
            "low": self.low,
            "high": self.high,
        }

    def __str__(self) -> str:
        middle = f"{format_value(self.median)} {self.unit}".rstrip()
        if self.n == 1:
            return f"{middle} (one run)"
        return f"{middle} ({format_value(self.low)} to {format_value(self.high)}, n={self.n})"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The ratio of two measurements, a to b, and the spread that decides the verdict."""

    a: Measurement
    b: Measurement
    paired: bool
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Whether a is ``higher`` or ``lower`` than b, or there is ``no clear difference``.

        Never a winner from fewer than three repeats of each, nor when the spread of the ratio covers 1.
        """
        if min(self.a.n, self.b.n) < FEWEST_FOR_A_WINNER or self.low <= 1 <= self.high:
            return "no clear difference"
        return "higher" if self.low > 1 else "lower"

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than the spread."""
        return self.verdict != "no clear difference"

    def sentence(self, a: str, b: str) -> str:
        """The verdict in words, with the spread: ``a`` and ``b`` name the two."""
        repeats = f"{self.a.n} pairs" if self.paired else f"{self.a.n} and {self.b.n} repeats"
        spread = f"ratio {self.ratio:.2f}, spread {self.low:.2f} to {self.high:.2f}, {repeats}"
        if not self.clear:
            return f"{a} and {b}: no clear difference ({spread})"
        return f"{a} is {self.ratio:.2f} times {b} ({spread})"

    def to_dict(self) -> dict[str, object]:
        """Both measurements, the ratio, its spread and the verdict."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "paired": self.paired,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict,
        }


def compare(a: Measurement, b: Measurement, *, paired: bool = True) -> Comparison:
    """Compare two measurements of one positive quantity (times, rates).

    ``paired``: repeat i of a and of b were taken together (A B A B), so drift of the machine cancels in their
    ratio. With five pairs or more the spread is the 95% interval of the median ratio (the full range below
    six); with fewer, or unpaired, it is the widest ratio of the two medians' intervals. Raises ``ValueError``
    on different units, unequal counts when paired, or a value at or below zero.
    """
    _check_comparable(a, b, paired)
    first, second = a.interval(), b.interval()
    ratio, low, high = a.median / b.median, first.low / second.high, first.high / second.low
    if paired:
        ratios = Measurement((x / y for x, y in zip(a.values, b.values, strict=True)), "ratio")
        ratio = ratios.median
        if ratios.n >= FEWEST_FOR_PAIRS:
            low, high = ratios.interval().low, ratios.interval().high
    return Comparison(a=a, b=b, paired=paired, ratio=ratio, low=low, high=high)


def _check_comparable(a: Measurement, b: Measurement, paired: bool) -> None:
    if a.unit != b.unit:
        raise ValueError(f"comparing {a.unit!r} with {b.unit!r}; expected one unit: convert one of them")
    if paired and a.n != b.n:
        raise ValueError(f"{a.n} repeats paired with {b.n}; expected equal counts, or paired=False")
    if min(a.low, b.low) <= 0:
        raise ValueError(f"a ratio with {min(a.low, b.low)} {a.unit}; expected times or rates, above zero")


class Timings(Mapping[str, Measurement]):
    """What ``alternate`` found: seconds by function, as a mapping, and apart from them what each first call took.

    ``first_s`` is no repeat: a first call may also pay for loading, allocating, compiling and a device's context.
    """

    def __init__(self, measurements: Mapping[str, Measurement], *, first_s: Mapping[str, float]) -> None:
        self._measurements = dict(measurements)
        self.first_s = dict(first_s)

    def __getitem__(self, name: str) -> Measurement:
        return self._measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._measurements)

    def __len__(self) -> int:
        return len(self._measurements)

    def __repr__(self) -> str:
        return f"Timings({self._measurements}, first_s={self.first_s})"


def alternate(
    functions: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] | None = None,
) -> Timings:
    """Time several functions in turn (A B A B ...), so that drift of the machine falls on all alike.

    The first call of each is reported apart, whatever it takes. Then come ``warmup`` rounds whose times are dropped:
    they are counted, so that one slow call can't use them up. ``synchronize`` is called before each reading of
    ``clock`` (seconds): give one wherever work may still be queued on a device when the function returns. Results in
    seconds; repeat i of every function belongs to round i, so they may be compared paired.
    """
    if repeats < 1 or warmup < 0 or not functions:
        given = f"{len(functions)} functions, repeats={repeats}, warmup={warmup}"
        raise ValueError(f"{given}; expected at least one function, repeats >= 1, warmup >= 0")
    wait = synchronize or _nothing
    rounds = [
        {name: _time_once(function, clock, wait) for name, function in functions.items()}
        for _ in range(1 + warmup + repeats)
    ]
    timed = rounds[1 + warmup :]
    measurements = {name: Measurement([times[name] for times in timed], "s") for name in functions}
    return Timings(measurements, first_s=rounds[0])


def _time_once(function: Callable[[], object], clock: Callable[[], float], wait: Callable[[], None]) -> float:
    wait()
    start = clock()
    function()
    wait()
    return clock() - start


def _nothing() -> None:
    return None


def total_repeats(measurements: Sequence[Measurement]) -> str:
    """How many repeats stand behind several measurements, for a caption: ``5 repeats`` or ``3 to 5 repeats``."""
    counts = sorted({measurement.n for measurement in measurements})
    if not counts:
        return ""
    if counts == [1]:
        return "single runs"
    return f"{counts[0]} repeats" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} repeats"
