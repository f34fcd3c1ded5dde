"""Which number of a diverged update was the first that isn't finite, in order of cause and effect."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hybridrl.ops.checks import NonFiniteError, first_non_finite


def diverged(
    *,
    inputs: Mapping[str, Tensor],
    steps: Tensor,
    statistics: Sequence[str],
    minibatches: int,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
) -> NonFiniteError:
    """Name the culprit of an update known to hold a number that isn't finite. Reads the device several times.

    Args:
        inputs: what was learnt from, by name.
        steps: ``[S, K]``, K statistics of each of S optimiser steps.
        statistics: their K names, in the order in which they are computed.
        minibatches: of an epoch.
        weights: the module's parameters after the update, by name.
        moments: what was gathered after it, by name.

    Returns:
        The error to raise.
    """
    found, holder = _culprit(inputs, steps, statistics, minibatches), first_non_finite(weights)
    if found and holder:
        found = f"{found}, expected finite numbers ({holder[0]} then holds {holder[1]:g})"
    elif holder:
        found = f"{holder[0]} after the last optimiser step: {holder[1]:g}, expected finite numbers"
    elif found:
        found = f"{found}, expected finite numbers"
    else:
        name, value = first_non_finite(moments) or ("the update", torch.nan)
        found = f"{name}: {value:g}, expected finite numbers"
    return NonFiniteError(f"{found}; lower the learning rate, or scale rewards and observations")


def _culprit(inputs: Mapping[str, Tensor], steps: Tensor, statistics: Sequence[str], minibatches: int) -> str:
    """The first input, else the first statistic of the first optimiser step; empty where all are finite."""
    if first := first_non_finite(inputs):
        return f"{first[0]}: {first[1]:g}"
    for step, column in (~torch.isfinite(steps)).nonzero()[:1].tolist():
        epoch, minibatch = divmod(step, minibatches)
        what = f"{statistics[column].replace('_', ' ')} in epoch {epoch + 1}, minibatch {minibatch + 1}"
        return f"{what} of {minibatches}: {steps[step, column].item():g}"
    return ""
