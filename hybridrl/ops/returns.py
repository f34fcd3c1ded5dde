"""Returns and advantages over a rollout ``[T, N]`` (time first, then environments).

Two flags, never only their OR: ``terminated`` says that the episode ended in a state of value zero, so nothing is
bootstrapped; ``truncated`` says that it was cut short, so the *final* observation's value is. Both end the trace.
``next_value[t]`` is the value of the observation that followed step ``t``, before any reset. Nothing after an end
reaches what came before it, provided that it is finite (nought times NaN is NaN). Results carry no gradient.
"""

import torch
from torch import Tensor

from hybridrl.ops.shapes import check_one_shape


@torch.no_grad()
def discounted_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float
) -> Tensor:
    r"""Discounted sum of rewards to the end of the episode, bootstrapped where it was cut.

    .. math:: G_t = r_t + \gamma \, G_{t+1}, \qquad G_t = r_t + \gamma V(s_{t+1}) \text{ at a cut or at } t = T - 1

    Args:
        reward: ``[T, N]``.
        next_value: ``[T, N]``; read only at truncations and in the last row.
        terminated: bool ``[T, N]``; the trace ends and nothing is bootstrapped.
        truncated: bool ``[T, N]``; the trace ends and ``next_value`` is bootstrapped.
        gamma: discount per step, in [0, 1].

    Returns:
        ``[T, N]``, in the units of the reward.

    Raises:
        ValueError: the shapes differ.

    Source: Sutton and Barto (2018), section 3.3; truncation: Pardo et al. (2018).
    """
    check_one_shape("[T, N]", reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    done = terminated | truncated
    bootstrap = _cut(done) & ~terminated
    return _reverse_scan(reward + gamma * torch.where(bootstrap, next_value, 0.0), gamma, ~done)


@torch.no_grad()
def n_step_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, n: int
) -> Tensor:
    r"""Rewards of the next ``n`` steps, then a bootstrap; fewer at an episode's end and at the rollout's.

    .. math:: G^{(n)}_t = \sum_{k=0}^{n-1} \gamma^k r_{t+k} + \gamma^n V(s_{t+n})

    Args:
        reward: ``[T, N]``.
        next_value: ``[T, N]``; zero is used where ``terminated``.
        terminated: bool ``[T, N]``.
        truncated: bool ``[T, N]``; the sum stops there and bootstraps from the final observation.
        gamma: discount per step, in [0, 1].
        n: number of steps, at least 1.

    Returns:
        ``[T, N]``, in the units of the reward.

    Raises:
        ValueError: the shapes differ, or ``n`` is below 1.

    Source: Sutton and Barto (2018), section 7.1.
    """
    check_one_shape("[T, N]", reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    if n < 1:
        raise ValueError(f"n={n}: expected at least 1 step; n=1 is the one-step target")
    one_step = reward + gamma * torch.where(terminated, 0.0, next_value)
    cut, result = _cut(terminated | truncated), one_step
    for _ in range(n - 1):
        result = torch.where(cut, one_step, reward + gamma * result.roll(-1, 0))
    return result


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> Tensor:
    r"""Generalised advantage estimation.

    .. math::
        \delta_t = r_t + \gamma (1 - \text{terminated}_t) V(s_{t+1}) - V(s_t), \qquad
        A_t = \delta_t + \gamma\lambda\,(1 - \text{terminated}_t \lor \text{truncated}_t)\, A_{t+1}

    Args:
        reward: ``[T, N]``.
        value: ``[T, N]``, of the observation that was acted on.
        next_value: ``[T, N]``, of the observation that followed (at a truncation: the final one).
        terminated: bool ``[T, N]``.
        truncated: bool ``[T, N]``.
        gamma: discount per step, in [0, 1].
        lambda_: 0 gives the one-step advantage, 1 the discounted return less the value.

    Returns:
        Advantages ``[T, N]``, in the units of the reward.

    Raises:
        ValueError: the shapes differ.

    Source: Schulman et al. (2016), equation 16.
    """
    check_one_shape(
        "[T, N]", reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated
    )
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    return _reverse_scan(delta, gamma * lambda_, ~(terminated | truncated))


@torch.no_grad()
def running_returns(reward: Tensor, done: Tensor, initial: Tensor, *, gamma: float) -> Tensor:
    r"""Discounted sum of the rewards *so far* in the episode, the quantity reward normalisation takes its scale from.

    .. math:: R_t = r_t + \gamma \, (1 - \text{done}_{t-1}) \, R_{t-1}

    Args:
        reward: ``[T, N]``.
        done: bool ``[T, N]``, terminated or truncated.
        initial: ``[N]``, the sum carried in from before the first row (zero after an episode's end).
        gamma: discount per step, in [0, 1].

    Returns:
        ``[T, N]``, in the units of the reward.

    Raises:
        ValueError: the shapes differ.

    Source: Engstrom et al. (2020), appendix A.1 (reward scaling).
    """
    check_one_shape("[T, N]", reward=reward, done=done)
    check_one_shape("[N]", first_row=reward[0], initial=initial)
    first = torch.cat([(reward[0] + gamma * initial).unsqueeze(0), reward[1:]])
    carried = torch.cat([torch.zeros_like(done[:1]), ~done[:-1]])
    return _reverse_scan(first.flip(0), gamma, carried.flip(0)).flip(0)


def _cut(done: Tensor) -> Tensor:
    """Rows after which nothing of the same episode follows in this rollout."""
    cut = done.clone()
    cut[-1] = True
    return cut


def _reverse_scan(addend: Tensor, decay: float, carried: Tensor) -> Tensor:
    """x[t] = addend[t] + decay * x[t + 1] where carried[t], with x[T] = 0: the one recursion behind every estimator."""
    result = torch.empty_like(addend)
    carry = torch.zeros_like(addend[0])
    factors = carried.type(addend.dtype) * decay  # cast first: a float times a bool would be rounded to float32
    rows = zip(addend.unbind(0), factors.unbind(0), result.unbind(0), strict=True)
    for row, factor, out in reversed(list(rows)):
        carry = torch.addcmul(row, factor, carry, out=out)
    return result
