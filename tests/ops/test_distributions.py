"""Action distributions, against torch.distributions and against counts of samples."""

import math

import pytest
import torch

from hybridrl.ops.distributions import (
    categorical_evaluate,
    categorical_mode,
    categorical_sample,
    gaussian_evaluate,
    gaussian_mode,
    gaussian_sample,
    multi_categorical_evaluate,
    multi_categorical_mode,
    multi_categorical_sample,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(outputs, variable):
    weights = torch.linspace(0.5, 1.5, outputs[0].numel(), dtype=variable.dtype).view_as(outputs[0])
    return [torch.autograd.grad((x * weights).sum(), variable, retain_graph=True)[0] for x in outputs]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_categorical_values_and_gradients_are_torchs(scale):
    logits = (torch.randn(5, 7, 3, generator=generator(), dtype=torch.float64) * scale).requires_grad_()
    action = torch.randint(3, (5, 7), generator=generator())
    reference = torch.distributions.Categorical(logits=logits)
    ours, theirs = categorical_evaluate(logits, action), (reference.log_prob(action), reference.entropy())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, logits), gradients(theirs, logits))


SIZES = [(3, 3), (2, 5, 1), (1, 1), (1,), (4,)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_multi_categorical_values_and_gradients_are_those_of_independent_categoricals(sizes, scale):
    """Against torch, one distribution at a time, and against our own categorical."""
    logits = (torch.randn(5, 7, sum(sizes), generator=generator(), dtype=torch.float64) * scale).requires_grad_()
    action = torch.stack([torch.randint(n, (5, 7), generator=generator(n)) for n in sizes], -1)
    ours = multi_categorical_evaluate(logits, action, sizes)
    parts = list(zip(logits.split(sizes, -1), action.unbind(-1), strict=True))
    single = [torch.distributions.Categorical(logits=part) for part, _ in parts]
    theirs = (
        sum(d.log_prob(a) for d, (_, a) in zip(single, parts, strict=True)),
        sum(d.entropy() for d in single),
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, logits), gradients(theirs, logits))
    by_hand = [categorical_evaluate(part, a) for part, a in parts]
    torch.testing.assert_close(ours, tuple(sum(x) for x in zip(*by_hand, strict=True)))
    modes = torch.stack([categorical_mode(part) for part, _ in parts], -1)
    assert torch.equal(multi_categorical_mode(logits, sizes), modes)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4, 1)], ids=str)
def test_multi_categorical_samples_come_with_their_probabilities_independently(sizes):
    """Chi-squared of 60,000 joint draws: with 7 degrees of freedom 25 is passed less than once in a thousand seeds."""
    count, logits = 60_000, torch.randn(sum(sizes), generator=generator(1))
    samples = multi_categorical_sample(logits.expand(count, -1), sizes, generator=generator())
    assert (samples.dtype, samples.shape) == (torch.int64, (count, len(sizes)))
    joint = torch.zeros(())
    for part in logits.split(sizes):
        joint = (joint.unsqueeze(-1) + part.log_softmax(-1)).flatten()
    code = torch.zeros(count, dtype=torch.int64)
    for size, column in zip(sizes, samples.unbind(-1), strict=True):
        code = code * size + column
    expected = joint.exp() * count
    counts = torch.bincount(code, minlength=len(joint))
    assert ((counts - expected).square() / expected).sum().item() < 25


def test_multi_categorical_of_one_dimension_is_the_categorical():
    """Identity, also in the random numbers drawn."""
    logits = torch.randn(50, 4, generator=generator())
    samples = multi_categorical_sample(logits, (4,), generator=generator(2))
    assert torch.equal(samples.squeeze(-1), categorical_sample(logits, generator=generator(2)))


@pytest.mark.parametrize(
    ("width", "action", "message"),
    [(5, (4, 2), r"5 logits: expected 4, the sum of the sizes \(2, 2\)"), (4, (4,), r"action \(4,\)")],
)
def test_multi_categorical_shapes_that_do_not_fit_are_refused(width, action, message):
    with pytest.raises(ValueError, match=message):
        multi_categorical_evaluate(torch.zeros(4, width), torch.zeros(action, dtype=torch.int64), (2, 2))


@pytest.mark.parametrize("offset", [0.0, 500.0])
def test_gaussian_values_and_gradients_are_torchs(offset):
    parameters = (torch.randn(5, 7, 4, generator=generator(), dtype=torch.float64)).requires_grad_()
    action = torch.randn(5, 7, 2, generator=generator(1), dtype=torch.float64) + offset
    mean, log_std = parameters.chunk(2, -1)
    reference = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    ours, theirs = gaussian_evaluate(parameters, action), (reference.log_prob(action), reference.entropy())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, parameters), gradients(theirs, parameters))


def test_an_action_ruled_out_leaves_entropy_and_gradient_finite():
    logits = torch.tensor([[0.0, -math.inf, math.log(3.0)], [-math.inf, 2.0, -math.inf]], requires_grad=True)
    log_prob, entropy = categorical_evaluate(logits, torch.tensor([2, 1]))
    assert log_prob.tolist() == pytest.approx([math.log(0.75), 0.0])
    assert entropy.tolist() == pytest.approx([-0.25 * math.log(0.25) - 0.75 * math.log(0.75), 0.0])
    slope = torch.autograd.grad((log_prob + 3.0 * entropy).sum(), logits)[0]
    assert slope.isfinite().all()
    assert slope[0, 1] == slope[1, 0] == slope[1, 2] == 0.0
    samples = categorical_sample(logits.detach().repeat(5000, 1), generator=generator()).view(5000, 2)
    assert set(samples[:, 0].tolist()) == {0, 2}
    assert set(samples[:, 1].tolist()) == {1}


def test_the_log_probability_of_an_action_ruled_out_is_minus_infinity():
    log_prob, _ = categorical_evaluate(torch.tensor([0.0, -math.inf]), torch.tensor(1))
    assert log_prob.item() == -math.inf


def test_categorical_samples_come_with_their_probabilities():
    """Chi-squared of 100,000 draws with 3 degrees of freedom: 16.3 is passed once in a thousand seeds."""
    probability, count = torch.tensor([0.5, 0.3, 0.15, 0.05]), 100_000
    samples = categorical_sample(probability.log().expand(count, 4) + 7.0, generator=generator())
    assert samples.dtype == torch.int64
    counts = torch.bincount(samples, minlength=4)
    assert ((counts - count * probability).square() / (count * probability)).sum().item() < 16.3


def test_gaussian_samples_have_the_means_deviations_and_independence_asked_for():
    parameters = torch.tensor([2.0, -5.0, math.log(0.5), math.log(3.0)]).expand(100_000, 4)
    samples = gaussian_sample(parameters, generator=generator())
    assert samples.mean(0).tolist() == pytest.approx([2.0, -5.0], abs=0.04)
    assert samples.std(0).tolist() == pytest.approx([0.5, 3.0], rel=0.02)
    assert torch.corrcoef(samples.T)[0, 1].abs() < 0.02
    z = (samples[:, 0] - 2.0) / 0.5
    expected = 0.5 + 0.5 * math.erf(1.0 / math.sqrt(2.0))
    assert (z < 1.0).double().mean().item() == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("sample", [categorical_sample, gaussian_sample])
def test_a_generator_repeats_its_samples_and_torchs_own_is_left_alone(sample):
    parameters = torch.zeros(100, 4)
    before = torch.random.get_rng_state()
    first, again, other = (sample(parameters, generator=generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_shape_are_the_parameters(dtype):
    parameters = torch.zeros(2, 3, 4, dtype=dtype)
    action = gaussian_sample(parameters)
    assert (action.shape, action.dtype) == ((2, 3, 2), dtype)
    assert [(x.shape, x.dtype) for x in gaussian_evaluate(parameters, action)] == [((2, 3), dtype)] * 2
    action = categorical_sample(parameters)
    assert action.shape == (2, 3)
    assert [(x.shape, x.dtype) for x in categorical_evaluate(parameters, action)] == [((2, 3), dtype)] * 2


def test_modes_are_the_most_probable_actions():
    assert categorical_mode(torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 0.0]])).tolist() == [1, 0]
    parameters = torch.tensor([[1.0, 2.0, 0.0, 5.0]])
    assert gaussian_mode(parameters).tolist() == [[1.0, 2.0]]
    peak = gaussian_evaluate(parameters, gaussian_mode(parameters))[0]
    assert peak > gaussian_evaluate(parameters, gaussian_mode(parameters) + 0.01)[0]


@pytest.mark.parametrize("log_std", [-20.0, 20.0])
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_extreme_gaussians_stay_finite(mean, log_std):
    parameters = torch.tensor([[mean, log_std]], requires_grad=True)
    for action in (torch.tensor([[mean]]), torch.tensor([[mean + 1.0]])):
        outputs = gaussian_evaluate(parameters, action)
        assert all(x.isfinite().all() for x in (*outputs, *gradients(outputs, parameters)))
    assert gaussian_sample(parameters.detach(), generator=generator()).isfinite().all()


def test_an_action_without_its_dimension_is_refused():
    """[B] against means [B, 1] would broadcast to [B, B] and sum to [B], a plausible and wrong result."""
    with pytest.raises(ValueError, match=r"mean \(4, 1\), action \(4,\)"):
        gaussian_evaluate(torch.zeros(4, 2), torch.zeros(4))
