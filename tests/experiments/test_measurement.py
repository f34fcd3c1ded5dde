import itertools
import math

import numpy as np
import pytest

from hybridrl.experiments.measurement import Measurement, alternate, compare, format_value, total_repeats
from hybridrl.profiling import FakeClock


def test_summary_against_numpy() -> None:
    values = np.random.default_rng(0).uniform(1, 9, size=12)
    measured = Measurement(values, "s")
    assert measured.n == 12
    assert measured.median == pytest.approx(np.median(values))
    assert (measured.low, measured.high) == (values.min(), values.max())
    assert measured.quartiles == pytest.approx(tuple(np.quantile(values, [0.25, 0.75])))
    assert measured.values == tuple(values)  # the order of the repeats is kept


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_unknown_is_never_a_repeat(values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Measurement(values, "s")


@pytest.mark.parametrize("n", range(1, 16))
def test_interval_is_the_narrowest_that_covers(n: int) -> None:
    """Enumerate which side of the median each of n repeats falls on: all 2**n are equally likely."""
    counts = [sum(sides) for sides in itertools.product((0, 1), repeat=n)] if n <= 12 else None
    interval = Measurement(range(n), "s").interval(0.95)
    low, high = int(interval.low), int(interval.high)
    assert low == n - 1 - high

    def coverage(rank: int) -> float:
        # x[rank] < median < x[n-1-rank]: at least rank+1 repeats below it and at least rank+1 above
        if counts is not None:
            return sum(rank + 1 <= below <= n - rank - 1 for below in counts) / 2**n
        return sum(math.comb(n, below) for below in range(rank + 1, n - rank)) / 2**n

    assert interval.coverage == pytest.approx(coverage(low))
    assert low == 0 or interval.coverage >= 0.95
    if 2 * (low + 1) < n - 1:
        assert coverage(low + 1) < 0.95


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    hits, promised = 0, 0.0
    for _ in range(4000):
        interval = Measurement(generator.exponential(size=9), "s").interval()
        hits += interval.low <= math.log(2) <= interval.high
        promised = interval.coverage
    assert hits / 4000 == pytest.approx(promised, abs=0.012)  # three standard errors


def test_no_clear_difference_within_the_spread() -> None:
    """C08: five repeats whose spread is larger than their difference have no winner."""
    cpu = Measurement([10.0, 10.4, 9.8, 10.1, 10.3], "s")
    cuda = Measurement([10.1, 10.2, 9.9, 10.2, 10.0], "s")
    for paired in (True, False):
        found = compare(cpu, cuda, paired=paired)
        assert found.verdict == "no clear difference"
        assert not found.clear
        assert found.low <= 1 <= found.high
        assert "no clear difference" in found.sentence("CPU", "GPU")
        assert "spread" in found.sentence("CPU", "GPU")


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("paired", [True, False])
def test_never_a_winner_from_a_single_run(repeats: int, paired: bool) -> None:
    """C08: however large the difference."""
    found = compare(Measurement([100.0] * repeats, "s"), Measurement([1.0] * repeats, "s"), paired=paired)
    assert found.verdict == "no clear difference"
    assert found.ratio == 100


def test_three_repeats_need_ranges_apart() -> None:
    slow, fast = Measurement([5.0, 6.0, 5.5], "s"), Measurement([1.0, 1.2, 1.1], "s")
    assert compare(slow, fast).verdict == "higher"
    assert compare(fast, slow).verdict == "lower"
    # each pair says "higher", but by luck alone that happens to three pairs once in four
    touching = Measurement([1.1, 3.0, 2.0], "s")
    assert compare(touching, Measurement([1.0, 2.9, 1.9], "s")).verdict == "no clear difference"


def test_pairs_cancel_drift() -> None:
    """The machine slows down threefold over the session; b is 10% faster throughout."""
    drift = np.linspace(1, 3, 8)
    a, b = Measurement(drift * 1.1, "s"), Measurement(drift, "s")
    assert compare(a, b, paired=True).verdict == "higher"
    assert compare(a, b, paired=True).ratio == pytest.approx(1.1)
    assert compare(a, b, paired=False).verdict == "no clear difference"


def test_false_winners_are_rare() -> None:
    generator = np.random.default_rng(2)
    for repeats, paired in itertools.product((3, 5, 9), (True, False)):
        draws = generator.uniform(0.9, 1.1, size=(1000, 2, repeats))
        winners = [compare(Measurement(a, "s"), Measurement(b, "s"), paired=paired).clear for a, b in draws]
        assert np.mean(winners) < 0.13, (repeats, paired)


def test_compare_refuses_what_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="one unit"):
        compare(Measurement([1], "s"), Measurement([1], "ms"))
    with pytest.raises(ValueError, match="paired=False"):
        compare(Measurement([1, 2], "s"), Measurement([1], "s"))
    with pytest.raises(ValueError, match="above zero"):
        compare(Measurement([-200], "return"), Measurement([-150], "return"))


def test_alternate_interleaves_after_warming_up() -> None:
    now, calls = 0.0, []

    def work(name: str, seconds: float) -> None:
        nonlocal now
        calls.append(name)
        now += seconds * (100 if len(calls) <= 2 else 1)  # the first round is slow, as first calls are

    functions = {"a": lambda: work("a", 2.0), "b": lambda: work("b", 3.0)}
    times = alternate(functions, repeats=3, warmup=1, clock=lambda: now)
    assert calls == ["a", "b"] * 5
    assert times == {"a": Measurement([2.0] * 3, "s"), "b": Measurement([3.0] * 3, "s")}
    assert times.first_s == {"a": 200.0, "b": 300.0}


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_a_slow_first_call_is_never_a_repeat_and_uses_up_no_warmup(warmup: int) -> None:
    """C105: the first call alone takes longer than any sensible warm-up in seconds; the next ones still settle."""
    clock = FakeClock()
    durations = iter([1.0, *[0.25] * warmup, 0.01, 0.03, 0.02])
    times = alternate(
        {"a": lambda: clock.advance(next(durations))}, repeats=3, warmup=warmup, clock=lambda: clock() / 1e9
    )
    assert times.first_s["a"] == pytest.approx(1.0)
    assert times["a"].values == pytest.approx((0.01, 0.03, 0.02))
    assert next(durations, None) is None


def test_warming_up_begins_after_the_first_synchronisation() -> None:
    """C105: a device that makes its context when first waited for charges it to the first call."""
    clock, waits = FakeClock(), 0

    def synchronize() -> None:
        nonlocal waits
        waits += 1
        clock.advance(0.5 if waits == 2 else 0.0)  # the one before the first call has nothing to wait for

    times = alternate({"a": lambda: None}, repeats=2, clock=lambda: clock() / 1e9, synchronize=synchronize)
    assert times.first_s == {"a": 0.5}
    assert times["a"].values == (0.0, 0.0)


def test_alternate_waits_for_queued_work() -> None:
    """C104: the call only queues; `synchronize` is where the time passes, and it belongs to its own function."""
    clock, queued = FakeClock(), 0.0

    def enqueue(seconds: float) -> None:
        nonlocal queued
        queued += seconds

    def synchronize() -> None:
        nonlocal queued
        clock.advance(queued)
        queued = 0.0

    functions = {"gpu": lambda: enqueue(0.05), "cpu": lambda: enqueue(0.0)}
    times = alternate(functions, repeats=2, clock=lambda: clock() / 1e9, synchronize=synchronize)
    assert times["gpu"].values == pytest.approx((0.05, 0.05))
    assert times["cpu"].values == (0, 0)
    assert times.first_s == pytest.approx({"gpu": 0.05, "cpu": 0})


def test_alternate_refuses_nothing_to_do() -> None:
    for functions, repeats in (({}, 1), ({"a": lambda: None}, 0)):
        with pytest.raises(ValueError, match="at least one"):
            alternate(functions, repeats=repeats)


def test_rate_is_count_over_each_time() -> None:
    assert Measurement([2.0, 4.0], "s").rate(100, "steps/s") == Measurement([50.0, 25.0], "steps/s")
    with pytest.raises(ValueError, match="above zero"):
        Measurement([0.0], "s").rate(1, "steps/s")


@pytest.mark.parametrize(
    ("value", "text"),
    [(8553.4, "8,553"), (12, "12"), (0, "0"), (0.01234, "0.0123"), (-199.6, "-200"), (3.14159, "3.14")],
)
def test_format_value(value: float, text: str) -> None:
    assert format_value(value) == text


def test_text_says_how_many() -> None:
    assert str(Measurement([1, 3, 2], "s")) == "2 s (1 to 3, n=3)"
    assert str(Measurement([2], "s")) == "2 s (one run)"
    assert total_repeats([Measurement([1], "s")]) == "single runs"
    assert total_repeats([Measurement([1] * 3, "s"), Measurement([1] * 5, "s")]) == "3 to 5 repeats"
