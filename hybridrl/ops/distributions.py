"""Action distributions as functions of one parameter tensor, without ``torch.distributions`` objects.

A categorical distribution over ``n`` actions is its logits ``[..., n]``. A diagonal Gaussian over ``A`` dimensions
is ``[..., 2A]``: the means, then the logarithms of the standard deviations. A multi-categorical distribution is ``A``
independent categorical ones: their logits side by side, ``[..., sum(sizes)]``.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from hybridrl.ops.shapes import check_one_shape

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NEVER = -1e4
"""A logarithm whose exponential is 0 in every dtype, and which stays finite when a gradient multiplies it."""


def categorical_sample(logits: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Draw by the Gumbel-max trick: :math:`\arg\max_i (\ell_i - \log e_i)` with :math:`e_i \sim Exp(1)`.

    Args:
        logits: ``[..., n]``, unnormalised log-probabilities.
        generator: source of randomness, on the logits' device.

    Returns:
        int64 ``[...]``, in 0..n-1.

    Source: Gumbel (1954); the logarithm of an exponential variate is a negated Gumbel variate.
    """
    return (logits - torch.empty_like(logits).exponential_(generator=generator).log_()).argmax(-1)


def categorical_evaluate(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log-probability of actions, and the entropy :math:`-\sum_i p_i \log p_i`.

    Args:
        logits: ``[..., n]``.
        action: int64 ``[...]``, in 0..n-1.

    Returns:
        Two tensors ``[...]``, in nats.
    """
    log_p = logits.log_softmax(-1)
    log_prob = log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    # A logit of -inf (an action ruled out) has p log p = 0, not NaN, and so has its gradient, however weighted.
    return log_prob, -(log_p.exp() * log_p.clamp_min(_NEVER)).sum(-1)


def categorical_mode(logits: Tensor) -> Tensor:
    """Most probable action.

    Args:
        logits: ``[..., n]``.

    Returns:
        int64 ``[...]``.
    """
    return logits.argmax(-1)


def multi_categorical_sample(
    logits: Tensor, sizes: tuple[int, ...], *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw from each of A independent categorical distributions: see :func:`categorical_sample`.

    Args:
        logits: ``[..., sum(sizes)]``, one distribution's after the other's.
        sizes: actions in each dimension, A entries.
        generator: source of randomness, on the logits' device.

    Returns:
        int64 ``[..., A]``, in 0..sizes[j]-1.

    Raises:
        ValueError: the logits aren't as many as the sizes sum to.
    """
    return categorical_sample(_by_dimension(logits, sizes), generator=generator)


def multi_categorical_evaluate(logits: Tensor, action: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    r"""Log-probability of actions, and the entropy, both summed over the independent dimensions.

    .. math:: \log p(a) = \sum_j \log p_j(a_j), \qquad H = \sum_j H_j

    Args:
        logits: ``[..., sum(sizes)]``, one distribution's after the other's.
        action: int64 ``[..., A]``, in 0..sizes[j]-1.
        sizes: actions in each dimension, A entries.

    Returns:
        Two tensors ``[...]``, in nats.

    Raises:
        ValueError: the logits aren't as many as the sizes sum to, or the action's shape doesn't fit.
    """
    table = _by_dimension(logits, sizes)
    check_one_shape("[..., A]", logits=table[..., 0], action=action)
    log_prob, entropy = categorical_evaluate(table, action)
    return log_prob.sum(-1), entropy.sum(-1)


def multi_categorical_mode(logits: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Most probable action of each dimension.

    Args:
        logits: ``[..., sum(sizes)]``, one distribution's after the other's.
        sizes: actions in each dimension, A entries.

    Returns:
        int64 ``[..., A]``.

    Raises:
        ValueError: the logits aren't as many as the sizes sum to.
    """
    return categorical_mode(_by_dimension(logits, sizes))


def _by_dimension(logits: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Logits ``[..., A, max(sizes)]``: a view where the sizes are equal, else padded by actions ruled out."""
    if logits.shape[-1] != sum(sizes):
        raise ValueError(f"{logits.shape[-1]} logits: expected {sum(sizes)}, the sum of the sizes {sizes}")
    widest = max(sizes)
    if min(sizes) == widest:
        return logits.reshape(*logits.shape[:-1], len(sizes), widest)
    parts = zip(torch.split(logits, list(sizes), -1), sizes, strict=True)
    return torch.stack([pad(part, (0, widest - size), value=-math.inf) for part, size in parts], -2)


def gaussian_sample(parameters: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Draw :math:`\mu + \sigma \xi` with :math:`\xi \sim N(0, 1)` for each dimension.

    Args:
        parameters: ``[..., 2A]``, means then log standard deviations.
        generator: source of randomness, on the parameters' device.

    Returns:
        ``[..., A]``, unbounded.
    """
    mean, log_std = parameters.chunk(2, -1)
    return torch.empty_like(mean).normal_(generator=generator).mul_(log_std.exp()).add_(mean)


def gaussian_evaluate(parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log-density of actions, and the differential entropy, both summed over dimensions.

    .. math:: \log p = -\sum_j \tfrac12 z_j^2 + \log\sigma_j + \tfrac12 \log 2\pi, \qquad
        H = \sum_j \tfrac12 + \log\sigma_j + \tfrac12 \log 2\pi, \qquad z = (a - \mu) / \sigma

    Args:
        parameters: ``[..., 2A]``, means then log standard deviations.
        action: ``[..., A]``.

    Returns:
        Two tensors ``[...]``, in nats.

    Raises:
        ValueError: the action's shape isn't the mean's.
    """
    mean, log_std = parameters.chunk(2, -1)
    check_one_shape("[..., A]", mean=mean, action=action)
    z = (action - mean) * (-log_std).exp()
    entropy = (log_std + (0.5 + _HALF_LOG_TWO_PI)).sum(-1)
    return -0.5 * z.square().sum(-1) - entropy + 0.5 * mean.shape[-1], entropy


def gaussian_mode(parameters: Tensor) -> Tensor:
    """Mean, which is also the most probable action.

    Args:
        parameters: ``[..., 2A]``.

    Returns:
        ``[..., A]``.
    """
    return parameters.chunk(2, -1)[0]
