"""Losses: where the gradient flows, on which side it stops, and that shapes never broadcast."""

import math

import pytest
import torch

from hybridrl.ops.losses import clipped_policy_loss, clipped_value_loss, value_loss


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def gradient(loss, variable):
    return torch.autograd.grad(loss, variable)[0]


def random(count=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, count, generator=generator, dtype=torch.float64)


def test_at_a_ratio_of_one_the_gradient_is_the_policy_gradient():
    log_prob, advantage, _ = random()
    log_prob.requires_grad_()
    loss = clipped_policy_loss(log_prob, log_prob.detach(), advantage, clip_range=0.2)
    assert loss.item() == pytest.approx(-advantage.mean().item(), abs=1e-12)
    expected = gradient(-(log_prob * advantage).mean(), log_prob)
    torch.testing.assert_close(gradient(loss, log_prob), expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "flows"),
    [
        (1.5, 1.0, -1.2, False),  # moved far enough towards a good action
        (0.5, 1.0, -0.5, True),  # away from a good action: back, whatever the distance
        (0.5, -1.0, 0.8, False),  # moved far enough from a bad action
        (1.5, -1.0, 1.5, True),  # towards a bad action: back
        (1.1, 1.0, -1.1, True),
        (0.9, -1.0, 0.9, True),
    ],
)
def test_clipping_stops_the_gradient_only_where_the_move_went_the_right_way(ratio, advantage, loss, flows):
    log_prob = numbers(math.log(ratio) - 3.0).requires_grad_()
    actual = clipped_policy_loss(log_prob, numbers(-3.0), numbers(advantage), clip_range=0.2)
    assert actual.item() == pytest.approx(loss)
    # d(ratio A)/d(log prob) is ratio A
    assert gradient(actual, log_prob).item() == pytest.approx(-ratio * advantage if flows else 0.0)


def test_policy_loss_is_the_mean_of_the_literal_minimum():
    log_prob, old, advantage = random(seed=1)
    total = 0.0
    for new, before, a in zip(log_prob.tolist(), old.tolist(), advantage.tolist(), strict=True):
        rho = math.exp(new - before)
        total += min(rho * a, min(max(rho, 0.7), 1.3) * a)
    actual = clipped_policy_loss(log_prob, old, advantage, clip_range=0.3)
    assert actual.item() == pytest.approx(-total / len(advantage))


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "slope"),
    [(-1e4, 1.0, 0.0, 0.0), (-1e4, -1.0, 0.8, 0.0), (80.0, 1.0, -1.2, 0.0), (-math.inf, 1.0, 0.0, 0.0)],
)
def test_a_policy_loss_that_should_be_finite_is(log_ratio, advantage, loss, slope):
    """In float32. A ratio above e^88 has, under the behaviour policy, a probability below e^-88 (Markov)."""
    log_prob = torch.tensor([log_ratio], requires_grad=True)
    actual = clipped_policy_loss(log_prob, torch.zeros(1), torch.tensor([advantage]), clip_range=0.2)
    assert actual.item() == pytest.approx(loss)
    assert gradient(actual, log_prob).item() == slope


def test_the_value_losss_gradient_is_the_mean_error():
    value, target, _ = random()
    value.requires_grad_()
    loss = value_loss(value, target)
    squares = [(v - g) ** 2 for v, g in zip(value.tolist(), target.tolist(), strict=True)]
    assert loss.item() == pytest.approx(sum(squares) / 64)
    torch.testing.assert_close(gradient(loss, value), (value - target).detach() / 32)


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"),
    [
        (0.2, 1.0, 0.32, -0.8),  # within the range: plain
        (0.8, 1.0, 0.125, 0.0),  # further towards the target than 0.5: not rewarded
        (-0.8, 1.0, 1.62, -1.8),  # away from the target: pulled back
        (1.2, 1.0, 0.125, 0.0),  # past the target from beyond the range: the clipped error is larger
        (1.8, 1.0, 0.32, 0.8),  # past it by more than the clipped error: pulled back
    ],
)
def test_a_clipped_value_does_not_pay_for_moving_further(value, target, loss, slope):
    value = numbers(value).requires_grad_()
    actual = clipped_value_loss(value, numbers(0.0), numbers(target), clip_range=0.5)
    assert actual.item() == pytest.approx(loss)
    assert gradient(actual, value).item() == pytest.approx(slope)


def test_a_wide_clip_range_changes_nothing():
    value, old, target = random(seed=2)
    clipped = clipped_value_loss(value, old, target, clip_range=1e9)
    torch.testing.assert_close(clipped, value_loss(value, target))
    plain = -((value - old).exp() * target).mean()
    torch.testing.assert_close(clipped_policy_loss(value, old, target, clip_range=1e9), plain)


def test_losses_refuse_shapes_that_would_broadcast():
    row, rows = torch.zeros(4), torch.zeros(4, 1)
    with pytest.raises(ValueError, match=r"advantage \(4, 1\); expected one shape \[B\]"):
        clipped_policy_loss(row, row, rows, clip_range=0.2)
    with pytest.raises(ValueError, match=r"value \(4, 1\), target \(4,\)"):
        value_loss(rows, row)
    with pytest.raises(ValueError, match=r"old_value \(4, 1\)"):
        clipped_value_loss(row, rows, row, clip_range=0.2)
