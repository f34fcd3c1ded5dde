"""Losses as pure functions of tensors of one shape ``[B]``; each returns a scalar to minimise.

All raise a ValueError where the shapes differ.
"""

import torch
from torch import Tensor

from hybridrl.ops.shapes import check_one_shape


def clipped_policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, *, clip_range: float) -> Tensor:
    r"""PPO's pessimistic surrogate, negated.

    .. math::
        L = -\tfrac1B \sum_i \min\!\big(\rho_i A_i,\ \operatorname{clip}(\rho_i, 1 - \epsilon, 1 + \epsilon) A_i\big),
        \qquad \rho_i = e^{\log\pi(a_i|s_i) - \log\mu(a_i|s_i)}

    Args:
        log_prob: ``[B]``, of the stored actions under the policy being learnt, in nats.
        old_log_prob: ``[B]``, the same under the behaviour policy that took them.
        advantage: ``[B]``.
        clip_range: epsilon, above 0.

    Returns:
        Scalar.

    Source: Schulman et al. (2017), equation 7.
    """
    check_one_shape("[B]", log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    r"""Half the mean squared error, :math:`\tfrac{1}{2B} \sum_i (V_i - G_i)^2`.

    Args:
        value: ``[B]``, predicted.
        target: ``[B]``, without a gradient.

    Returns:
        Scalar, in squared units of the reward. The half makes its gradient the error itself.
    """
    check_one_shape("[B]", value=value, target=target)
    return 0.5 * (value - target).square().mean()


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, *, clip_range: float) -> Tensor:
    r"""Value loss that doesn't reward moving further than ``clip_range`` from the prediction at acting time.

    .. math:: L = \tfrac{1}{2B} \sum_i \max\!\big((V_i - G_i)^2,
        (\operatorname{clip}(V_i, V^{old}_i - \epsilon, V^{old}_i + \epsilon) - G_i)^2\big)

    Args:
        value: ``[B]``, predicted now.
        old_value: ``[B]``, predicted when acting.
        target: ``[B]``.
        clip_range: epsilon, in the units of the reward.

    Returns:
        Scalar.

    Source: Schulman et al., the reference implementation of PPO; studied in Engstrom et al. (2020).
    """
    check_one_shape("[B]", value=value, old_value=old_value, target=target)
    clipped = old_value + (value - old_value).clamp(-clip_range, clip_range)
    return 0.5 * torch.maximum((value - target).square(), (clipped - target).square()).mean()
