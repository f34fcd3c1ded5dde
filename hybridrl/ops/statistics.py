"""What a training run says about itself: divergence, fit, and moments that grow with the data."""

from typing import NamedTuple

import torch
from torch import Tensor

from hybridrl.ops.shapes import check_one_shape


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    r"""Estimate of :math:`KL(\mu \| \pi)` from samples of the behaviour policy :math:`\mu`.

    .. math:: \tfrac1B \sum_i (\rho_i - 1) - \log\rho_i, \qquad \rho_i = \pi(a_i|s_i) / \mu(a_i|s_i)

    Unbiased, never negative, and of lower variance than the mean of :math:`-\log\rho`.

    Args:
        log_prob: ``[B]``, under the policy being learnt, in nats.
        old_log_prob: ``[B]``, under the behaviour policy.

    Returns:
        Scalar, in nats.

    Source: Schulman (2020), "Approximating KL divergence", estimator k3.
    """
    check_one_shape("[B]", log_prob=log_prob, old_log_prob=old_log_prob)
    log_ratio = log_prob - old_log_prob
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(log_prob: Tensor, old_log_prob: Tensor, *, clip_range: float) -> Tensor:
    """Share of samples whose probability ratio left ``[1 - clip_range, 1 + clip_range]``.

    Args:
        log_prob: ``[B]``, under the policy being learnt.
        old_log_prob: ``[B]``, under the behaviour policy.
        clip_range: PPO's epsilon.

    Returns:
        Scalar in [0, 1].
    """
    check_one_shape("[B]", log_prob=log_prob, old_log_prob=old_log_prob)
    ratio = (log_prob - old_log_prob).exp()
    return ((ratio - 1.0).abs() > clip_range).type(log_prob.dtype).mean()


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    r"""Share of the target's variance that the prediction accounts for, :math:`1 - Var[y - \hat y] / Var[y]`.

    Args:
        prediction: ``[B]``.
        target: ``[B]``.

    Returns:
        Scalar, where 1 is perfect, 0 no better than a constant, negative worse; NaN where the target doesn't vary.
    """
    check_one_shape("[B]", prediction=prediction, target=target)
    variance = _from_first(target).var(correction=0)
    share = 1.0 - (target - prediction).var(correction=0) / variance
    return torch.where(variance > 0, share, torch.nan)


def standardize(x: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """Shift to mean 0 and scale to standard deviation 1, with the population's deviation.

    A single sample has no spread to divide by and is returned unchanged (a sample deviation would be NaN); equal
    samples become zero.

    Args:
        x: ``[B]``.
        epsilon: added to the deviation, against division by zero.

    Returns:
        ``[B]``, without unit.
    """
    if x.numel() < 2:
        return x
    x = _from_first(x)
    return (x - x.mean()) / (x.std(correction=0) + epsilon)


def _from_first(x: Tensor) -> Tensor:
    """Shift so that equal numbers become exactly zero: their computed mean may differ from them by rounding."""
    return x - x.flatten()[0]


class Moments(NamedTuple):
    """Size, mean and (population) variance of everything seen so far; all three in the same precision."""

    size: Tensor  # []
    mean: Tensor  # [*shape]
    variance: Tensor  # [*shape]


def combine_moments(moments: Moments, batch: Tensor) -> Moments:
    r"""Moments of the union of what was seen and a batch.

    .. math::
        \delta = \bar x_b - \bar x_a, \quad \bar x = \bar x_a + \delta \tfrac{n_b}{n}, \quad
        n\sigma^2 = n_a\sigma_a^2 + n_b\sigma_b^2 + \delta^2 \tfrac{n_a n_b}{n}

    Args:
        moments: of what was seen so far; a size of zero starts afresh.
        batch: ``[B, *shape]``; an empty one changes nothing.

    Returns:
        New moments; the arguments are left alone.

    Source: Chan, Golub and LeVeque (1979).
    """
    if not len(batch):
        return moments
    batch = batch.type(moments.mean.dtype)
    size = moments.size + len(batch)
    delta = batch.mean(0) - moments.mean
    mean = moments.mean + delta * (len(batch) / size)
    squares = moments.variance * moments.size + batch.var(0, correction=0) * len(batch)
    variance = (squares + delta.square() * moments.size * len(batch) / size) / size
    return Moments(size, mean, variance)
