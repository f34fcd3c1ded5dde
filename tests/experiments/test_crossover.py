"""Where one way becomes faster than another: exact on verdicts made to order."""

import itertools

import pytest

from hybridrl.experiments.crossover import Crossover, find
from hybridrl.experiments.measurement import Comparison, Measurement, compare

SIZES = (16, 64, 256, 1024)
TIMES = {"cpu": (1.0, 2.0), "gpu": (2.0, 1.0), "-": (1.0, 1.0)}  # who is faster: times of the CPU and of the GPU


def compared(winner: str) -> Comparison:
    cpu, gpu = TIMES[winner]
    return compare(Measurement([cpu] * 3, "s"), Measurement([gpu] * 3, "s"))


def crossover(*winners: str) -> Crossover:
    return find("cpu", "gpu", {size: compared(winner) for size, winner in zip(SIZES, winners, strict=False)})


@pytest.mark.parametrize(
    ("winners", "small", "large", "text"),
    [
        (("cpu", "cpu", "gpu", "gpu"), 64, 256, "between 64 and 256"),
        (("cpu", "-", "-", "gpu"), 16, 1024, "between 16 and 1,024"),
        (("cpu", "cpu", "cpu", "gpu"), 256, 1024, "between 256 and 1,024"),
        # back and forth in the middle: the bracket holds all of it
        (("cpu", "gpu", "cpu", "gpu"), 16, 1024, "between 16 and 1,024"),
        (("cpu",) * 4, 1024, None, "no crossover from 16 to 1,024: cpu faster throughout"),
        (("gpu",) * 4, None, 16, "no crossover from 16 to 1,024: gpu faster throughout"),
        (("-",) * 4, None, None, "no crossover from 16 to 1,024: no clear order"),
        (("gpu", "-", "-", "cpu"), None, None, "no crossover from 16 to 1,024: no clear order"),
        (("cpu", "-", "-", "-"), 16, None, "no crossover from 16 to 1,024: cpu faster up to 16, then no clear order"),
        (
            ("-", "gpu", "gpu", "gpu"),
            None,
            64,
            "no crossover from 16 to 1,024: gpu faster from 64 on, before that no clear order",
        ),
        (("gpu",), None, 16, "no crossover from 16 to 16: gpu faster throughout"),
    ],
)
def test_the_bracket_and_its_words(winners: tuple[str, ...], small: int | None, large: int | None, text: str) -> None:
    found = crossover(*winners)
    assert (found.first_up_to, found.second_from) == (small, large)
    assert found.found == text.startswith("between")
    assert str(found) == text


def test_every_order_of_winners_against_the_definition() -> None:
    for winners in itertools.product(TIMES, repeat=4):
        found = crossover(*winners)
        up_to = [s for i, s in enumerate(SIZES) if set(winners[: i + 1]) == {"cpu"}]
        since = [s for i, s in enumerate(SIZES) if set(winners[i:]) == {"gpu"}]
        assert (found.first_up_to, found.second_from) == (max(up_to, default=None), min(since, default=None))
        if found.found:
            assert max(up_to) < min(since)


def test_the_order_in_which_sizes_were_measured_does_not_matter() -> None:
    found = {size: compared("gpu" if size > 64 else "cpu") for size in (1024, 16, 256, 64)}
    assert str(find("cpu", "gpu", found)) == "between 64 and 256"


def test_no_sizes() -> None:
    with pytest.raises(ValueError, match="over no sizes"):
        find("cpu", "gpu", {})
