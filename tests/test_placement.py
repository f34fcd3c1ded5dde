"""Placements say where; what isn't here is refused, never replaced."""

import pytest

import hybridrl as hrl
from hybridrl.placement import Placement
from hybridrl.testing import CountingEnv


def test_one_name_places_acting_and_learning() -> None:
    assert Placement.parse("cpu") == Placement.parse("cpu+cpu") == Placement("cpu", "cpu")
    assert str(Placement.parse("cpu+cpu")) == "cpu"


def test_a_placement_is_taken_as_it_is() -> None:
    placement = Placement("cpu", "cpu")
    assert Placement.parse(placement) is placement


@pytest.mark.parametrize("text", ["cuda", "cpu+cuda", "cuda+cpu", "mps", "auto", "", "cpu+", "+cpu", "cpu+cpu+cpu", 0])
def test_anything_else_is_refused_in_one_line(text: object) -> None:
    with pytest.raises(ValueError, match=r"this version acts and learns on: cpu$") as error:
        hrl.PPO(lambda: CountingEnv(5), placement=text)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"placement {str(text)!r}: ")
