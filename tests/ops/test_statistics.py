"""Divergences, fits and moments, against torch.distributions, NumPy and cases worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.ops.statistics import (
    Moments,
    approximate_kl,
    clip_fraction,
    combine_moments,
    explained_variance,
    standardize,
)

cheap = settings(max_examples=40, deadline=None, derandomize=True, database=None)
EMPTY = Moments(torch.zeros(()), torch.zeros(()), torch.ones(()))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_kl_is_never_negative_and_zero_for_equal_policies():
    log_prob, old = torch.randn(2, 1000, generator=generator())
    assert all(approximate_kl(x, y) >= 0 for x, y in zip(log_prob, old, strict=True))
    assert approximate_kl(old, old).item() == 0.0
    assert approximate_kl(old + 1e-4, old).item() == pytest.approx(0.5e-8, rel=0.05)  # x^2 / 2 to first order


def test_kl_estimates_the_divergence_from_the_behaviour_policy():
    """Of a million samples of the old policy; the two directions differ by far more than the tolerance."""
    old = torch.distributions.Categorical(probs=torch.tensor([0.7, 0.2, 0.1]).double())
    new = torch.distributions.Categorical(probs=torch.tensor([0.3, 0.3, 0.4]).double())
    actions = torch.multinomial(old.probs, 1_000_000, replacement=True, generator=generator())
    expected = torch.distributions.kl_divergence(old, new).item()
    assert abs(expected - torch.distributions.kl_divergence(new, old).item()) > 0.04
    assert approximate_kl(new.log_prob(actions), old.log_prob(actions)).item() == pytest.approx(expected, rel=0.01)


def test_kl_is_unbiased_for_gaussians():
    old, new = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.2)
    actions = torch.randn(1_000_000, generator=generator(1))
    expected = torch.distributions.kl_divergence(old, new).item()
    assert approximate_kl(new.log_prob(actions), old.log_prob(actions)).item() == pytest.approx(expected, rel=0.02)


def test_clip_fraction_counts_both_sides():
    ratio = torch.tensor([0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 9.0, 1.0])
    assert clip_fraction(ratio.log(), torch.zeros(8), clip_range=0.2).item() == 0.5


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [([0, 2, 4, 6], 1.0), ([5, 7, 9, 11], 1.0), ([3, 3, 3, 3], 0.0), ([6, 4, 2, 0], -3.0), ([0, 1, 2, 3], 0.75)],
)
def test_explained_variance(prediction, expected):
    target = torch.tensor([0.0, 2.0, 4.0, 6.0])
    assert explained_variance(torch.tensor(prediction).float(), target).item() == pytest.approx(expected)


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 100.1, -77.7])
@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_the_variance_of_a_constant_explains_nothing(constant, count):
    """Also where the mean of equal numbers isn't that number, by rounding."""
    target = torch.full((count,), constant)
    assert explained_variance(torch.arange(float(count)), target).isnan()
    assert explained_variance(target, target).isnan()


def test_standardized_numbers_have_mean_zero_and_deviation_one():
    x = torch.randn(65, generator=generator()) * 3 + 7
    y = standardize(x)
    np.testing.assert_allclose(y.numpy(), (x.numpy() - x.numpy().mean()) / x.numpy().std(), rtol=1e-5, atol=1e-6)


def test_standardizing_two_samples_gives_plus_and_minus_one():
    assert standardize(torch.tensor([5.0, 9.0])).tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize("count", [0, 1])
def test_samples_without_spread_are_returned_unchanged(count):
    x = torch.full((count,), 3.5)
    assert standardize(x).tolist() == x.tolist()


@pytest.mark.parametrize("constant", [0.0, 0.1, 100.1, -77.7])
@pytest.mark.parametrize("count", [2, 7, 10, 64, 1000])
def test_equal_samples_become_zero(constant, count):
    assert standardize(torch.full((count,), constant)).tolist() == [0.0] * count


def test_statistics_refuse_shapes_that_would_broadcast():
    row, rows = torch.zeros(4), torch.zeros(4, 1)
    for call in (
        lambda: approximate_kl(row, rows),
        lambda: clip_fraction(row, rows, clip_range=0.2),
        lambda: explained_variance(rows, row),
    ):
        with pytest.raises(ValueError, match=r"shapes differ.*expected one shape \[B\]"):
            call()


@cheap
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from([(), (3,), (2, 2)]))
def test_moments_are_numpys_however_the_data_comes(sizes, shape):
    data = torch.randn(sum(sizes), *shape, generator=generator(len(sizes)), dtype=torch.float64) * 3 + 5
    moments = Moments(*(torch.full(s, v, dtype=torch.float64) for s, v in (((), 0), (shape, 0), (shape, 1))))
    for batch in data.split(sizes):
        moments = combine_moments(moments, batch)
    assert moments.size.item() == len(data)
    np.testing.assert_allclose(moments.mean.numpy(), data.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), data.numpy().var(0), rtol=1e-10, atol=1e-14)


def test_moments_far_from_zero_keep_their_variance_in_float32():
    """The sum of squares less the square of the sum would lose all of it: 1e8 has a spacing of 8."""
    data = torch.randn(4000, generator=generator()) + 1e4
    moments = EMPTY
    for batch in data.split(64):
        moments = combine_moments(moments, batch)
    assert moments.variance.dtype == torch.float32
    assert moments.variance.item() == pytest.approx(data.double().numpy().var(), rel=1e-3)
    assert moments.mean.item() == pytest.approx(data.double().numpy().mean(), rel=1e-6)


def test_the_first_batch_replaces_what_an_empty_start_says():
    moments = combine_moments(Moments(torch.zeros(()), torch.tensor(123.0), torch.tensor(456.0)), torch.tensor([2.0]))
    assert [x.item() for x in moments] == [1.0, 2.0, 0.0]


def test_an_empty_batch_changes_nothing():
    moments = Moments(torch.tensor(4.0), torch.tensor(1.0), torch.tensor(2.0))
    assert combine_moments(moments, torch.empty(0)) == moments
    assert not any(math.isnan(x) for x in combine_moments(EMPTY, torch.empty(0)))


def test_moments_are_not_written_in_place():
    moments = Moments(torch.tensor(4.0), torch.tensor(1.0), torch.tensor(2.0))
    combine_moments(moments, torch.tensor([5.0, 6.0]))
    assert [x.item() for x in moments] == [4.0, 1.0, 2.0]


def test_integers_are_taken_in_the_moments_precision():
    moments = combine_moments(EMPTY, torch.tensor([250, 252], dtype=torch.uint8))
    assert [x.item() for x in moments] == [2.0, 251.0, 1.0]
