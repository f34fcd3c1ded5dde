"""What isn't finite: the error that says where it arose, and the search for it."""

from collections.abc import Mapping

import torch
from torch import Tensor


class NonFiniteError(ValueError):
    """A NaN or an infinity, found before it was learnt from or saved.

    Args:
        message: where it arose, what it was, what to do.
        step: environment steps taken by then, where the message names them already; None where it doesn't.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


def first_non_finite(named: Mapping[str, Tensor]) -> tuple[str, float] | None:
    """Find the first tensor that holds a NaN or an infinity; costs one host read each.

    Args:
        named: name -> tensor of any shape and dtype, on any device; those without a floating-point dtype are finite.

    Returns:
        Its name and the first such number in it; None where all are finite.
    """
    for name, tensor in named.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return name, tensor[~torch.isfinite(tensor)][0].item()
    return None
