"""Action distributions as functions of one parameter tensor, without ``torch.distributions`` objects.

A categorical distribution over ``n`` actions is its logits ``[..., n]``. A diagonal Gaussian over ``A`` dimensions
is ``[..., 2A]``: the means, then the logarithms of the standard deviations.
"""

import math

import torch
from torch import Tensor

from hybridrl.ops.shapes import check_one_shape

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


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
    # A logit of -inf (an action ruled out) has p log p = 0, not NaN.
    return log_prob, -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)


def categorical_mode(logits: Tensor) -> Tensor:
    """Most probable action.

    Args:
        logits: ``[..., n]``.

    Returns:
        int64 ``[...]``.
    """
    return logits.argmax(-1)


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
