"""A diverged update names the first culprit: input, statistic of an optimiser step, weight, moment."""

import math
from typing import Any

import pytest
import torch

from hybridrl.algorithms.divergence import diverged

FINE: dict[str, Any] = {
    "inputs": {"advantages": torch.ones(3)},
    "steps": torch.zeros(6, 2),
    "statistics": ("policy_loss", "gradient_norm"),
    "minibatches": 3,
    "weights": {"a.weight": torch.ones(2), "b.weight": torch.ones(2)},
    "moments": {"the variance of observations": torch.ones(2)},
}
WEIGHTS = {"a.weight": torch.ones(2), "b.weight": torch.tensor([1.0, math.nan])}
CURE = "; lower the learning rate, or scale rewards and observations"


def steps(*bad: tuple[int, int, float]) -> torch.Tensor:
    table = torch.zeros(6, 2)
    for step, column, value in bad:
        table[step, column] = value
    return table


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"inputs": {"advantages": torch.tensor([1.0, math.inf])}, "steps": steps((0, 0, math.nan))},
            "advantages: inf, expected finite numbers",
        ),
        (
            {"steps": steps((4, 1, math.inf), (5, 0, math.nan)), "weights": WEIGHTS},
            "gradient norm in epoch 2, minibatch 2 of 3: inf, expected finite numbers (b.weight then holds nan)",
        ),
        ({"steps": steps((2, 0, math.nan))}, "policy loss in epoch 1, minibatch 3 of 3: nan, expected finite numbers"),
        ({"weights": WEIGHTS}, "b.weight after the last optimiser step: nan, expected finite numbers"),
        (
            {"moments": {"the variance of observations": torch.tensor([math.inf, 1.0])}},
            "the variance of observations: inf, expected finite numbers",
        ),
    ],
)
def test_the_first_culprit_is_named(changes: dict[str, Any], says: str) -> None:
    error = diverged(**{**FINE, **changes})
    assert str(error) == says + CURE
    assert error.step is None
