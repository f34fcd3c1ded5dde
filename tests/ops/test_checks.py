"""The search for what isn't finite."""

import math

import pytest
import torch
from torch import Tensor

from hybridrl.ops.checks import NonFiniteError, first_non_finite

FINE = {"floats": torch.tensor([0.0, -1e38]), "bytes": torch.tensor([255], dtype=torch.uint8), "none": torch.empty(0)}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_tensor_and_number_are_found(bad: float) -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [bad, math.nan]]))
    found = first_non_finite({**FINE, "weight": weight, "later": torch.tensor([math.nan])})
    assert found is not None
    assert found[0] == "weight"
    assert found[1] == bad or math.isnan(bad)


@pytest.mark.parametrize("named", [FINE, {}])
def test_what_is_finite_gives_nothing(named: dict[str, Tensor]) -> None:
    assert first_non_finite(named) is None


def test_the_error_is_a_value_error_that_keeps_its_step() -> None:
    error = NonFiniteError("here", 7)
    assert isinstance(error, ValueError)
    assert (str(error), error.step, NonFiniteError("here").step) == ("here", 7, None)
