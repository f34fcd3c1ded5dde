"""Returns and advantages, against literal sums, tables worked by hand, and identities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.ops.returns import discounted_returns, gae, n_step_returns, running_returns
from hybridrl.testing import slow_gae, slow_returns

GAMMA, LAMBDA = 0.9, 0.8
cheap = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def rollout(rows=6, num_envs=3, *, seed=0, ends=0.3, dtype=torch.float64):
    """Random reward, value, next_value, terminated, truncated [T, N]; both flags may be set at once."""
    generator = torch.Generator().manual_seed(seed)
    floats = torch.randn(3, rows, num_envs, generator=generator, dtype=torch.float64).to(dtype)
    flags = torch.rand(2, rows, num_envs, generator=generator) < ends
    return (*floats, *flags)


def column(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype).unsqueeze(1)


def flags(rows, *at):
    return column(*(t in at for t in range(rows)), dtype=torch.bool)


def arrays(*tensors):
    return [tensor.numpy() for tensor in tensors]


def equal(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance)


rollouts = st.builds(
    rollout,
    st.integers(1, 8),
    st.integers(1, 3),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)
discounts = st.sampled_from([0.0, 0.5, 0.99, 1.0])


@cheap
@given(rollouts, discounts, discounts)
def test_gae_is_the_literal_sum(data, gamma, lambda_):
    """C81: per episode, in every environment."""
    equal(gae(*data, gamma=gamma, lambda_=lambda_), slow_gae(*arrays(*data), gamma=gamma, lambda_=lambda_))


@cheap
@given(rollouts, discounts)
def test_discounted_returns_are_the_literal_sum(data, gamma):
    reward, _, *rest = data
    equal(discounted_returns(reward, *rest, gamma=gamma), slow_returns(*arrays(reward, *rest), gamma=gamma))


@cheap
@given(rollouts, discounts, st.integers(1, 10))
def test_n_step_returns_are_the_literal_sum(data, gamma, n):
    reward, _, *rest = data
    equal(n_step_returns(reward, *rest, gamma=gamma, n=n), slow_returns(*arrays(reward, *rest), gamma=gamma, n=n))


@cheap
@given(rollouts, discounts)
def test_running_returns_are_the_literal_sum(data, gamma):
    reward, _, _, terminated, truncated = data
    done, initial = terminated | truncated, torch.arange(1.0, 1.0 + reward.shape[1], dtype=reward.dtype)
    expected = torch.empty_like(reward)
    for i in range(reward.shape[1]):
        total = initial[i].item()
        for t in range(len(reward)):
            total = reward[t, i].item() + gamma * total
            expected[t, i] = total
            total = 0.0 if done[t, i] else total
    equal(running_returns(reward, done, initial, gamma=gamma), expected)


def test_running_returns_carry_over_to_the_next_rollout():
    reward, _, _, done, _ = rollout(10)
    whole = running_returns(reward, done, torch.zeros(3), gamma=GAMMA)
    first = running_returns(reward[:4], done[:4], torch.zeros(3), gamma=GAMMA)
    second = running_returns(reward[4:], done[4:], torch.where(done[3], 0.0, first[-1]), gamma=GAMMA)
    equal(torch.cat([first, second]), whole)


@cheap
@given(rollouts, discounts)
def test_gae_averages_the_n_step_advantages_geometrically(data, lambda_):
    """The definition: (1 - lambda) sum lambda^(n - 1) A(n), the longest one taking the weight that is left."""
    reward, value, next_value, terminated, truncated = data
    rows = len(reward)
    # Holds where values join up, V(s_{t+1}) = value[t + 1]: only the ends need a next value of their own.
    joined = torch.where((terminated | truncated)[:-1], next_value[:-1], value[1:])
    next_value = torch.cat([joined, next_value[-1:]])
    total, left = torch.zeros_like(reward), 1.0
    for n in range(1, rows + 1):
        weight = left * (1.0 - lambda_) if n < rows else left
        left -= weight
        total += weight * (n_step_returns(reward, next_value, terminated, truncated, gamma=GAMMA, n=n) - value)
    equal(gae(reward, value, next_value, terminated, truncated, gamma=GAMMA, lambda_=lambda_), total)


def test_lambda_of_one_gives_the_discounted_return_less_the_value():
    reward, value, next_value, terminated, truncated = rollout(20)
    joined = torch.where((terminated | truncated)[:-1], next_value[:-1], value[1:])
    next_value = torch.cat([joined, next_value[-1:]])
    advantage = gae(reward, value, next_value, terminated, truncated, gamma=GAMMA, lambda_=1.0)
    equal(advantage + value, discounted_returns(reward, next_value, terminated, truncated, gamma=GAMMA))


def test_lambda_of_zero_gives_the_one_step_error():
    reward, value, next_value, terminated, _ = data = rollout(20)
    equal(gae(*data, gamma=GAMMA, lambda_=0.0), reward + GAMMA * next_value * ~terminated - value)


def test_n_step_reaches_from_the_one_step_target_to_the_whole_return():
    reward, _, next_value, terminated, truncated = rollout(12)
    given_ = (reward, next_value, terminated, truncated)
    equal(n_step_returns(*given_, gamma=GAMMA, n=1), reward + GAMMA * next_value * ~terminated)
    for n in (12, 50):
        equal(n_step_returns(*given_, gamma=GAMMA, n=n), discounted_returns(*given_, gamma=GAMMA))


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # rewards 1 2 4 8, gamma 1/2, next values 16 32 64 128, worked by hand from the last row up
        ((), (), (1 + 0.5 * 22, 2 + 0.5 * 40, 4 + 0.5 * 72, 8 + 0.5 * 128)),
        ((1,), (), (1 + 0.5 * 2, 2, 4 + 0.5 * 72, 8 + 0.5 * 128)),
        ((), (1,), (1 + 0.5 * 18, 2 + 0.5 * 32, 4 + 0.5 * 72, 8 + 0.5 * 128)),
        ((3,), (0,), (1 + 0.5 * 16, 2 + 0.5 * 8, 4 + 0.5 * 8, 8)),
        ((1,), (1,), (1 + 0.5 * 2, 2, 4 + 0.5 * 72, 8 + 0.5 * 128)),
    ],
)
def test_discounted_returns_of_a_table(terminated, truncated, expected):
    given_ = column(1.0, 2.0, 4.0, 8.0), column(16.0, 32.0, 64.0, 128.0), flags(4, *terminated), flags(4, *truncated)
    assert discounted_returns(*given_, gamma=0.5).squeeze(1).tolist() == list(expected)


def test_gae_of_a_table():
    """Deltas 2 (1 + 4/2 - 1), 1 (terminated: 3 - 2), -1 (1 + 4/2 - 4); gamma lambda = 1/4."""
    given_ = column(1.0, 3.0, 1.0), column(1.0, 2.0, 4.0), column(4.0, 99.0, 4.0), flags(3, 1), flags(3)
    assert gae(*given_, gamma=0.5, lambda_=0.5).squeeze(1).tolist() == [2 + 1 / 4, 1, -1]


def test_a_time_limit_leaves_a_right_value_right():
    """Reward 1 for ever is worth 10 at gamma 0.9, so nothing is better or worse than expected."""
    ten, one, limit = torch.full((10, 1), 10.0), torch.ones(10, 1), flags(10, 4, 9)
    for lambda_ in (0.0, 0.5, 1.0):
        equal(gae(one, ten, ten, flags(10), limit, gamma=0.9, lambda_=lambda_), torch.zeros(10, 1), 1e-5)
        ended = gae(one, ten, ten, limit, flags(10), gamma=0.9, lambda_=lambda_) + ten
        assert ended[4].item() == ended[9].item() == 1.0


@pytest.mark.parametrize("estimator", ["discounted", "n-step", "gae"])
def test_a_truncation_bootstraps_from_the_final_observation(estimator):
    """V(s) = s and s counts: the truncation at 4 -> 5 takes V(5), neither V(4) nor the V(0) after the reset."""
    value, next_value = column(3.0, 4.0, 0.0, 1.0), column(4.0, 5.0, 1.0, 2.0)
    given_ = (torch.zeros(4, 1), next_value, flags(4), flags(4, 1))
    if estimator == "gae":
        target = gae(given_[0], value, *given_[1:], gamma=1.0, lambda_=1.0) + value
    elif estimator == "n-step":
        target = n_step_returns(*given_, gamma=1.0, n=3)
    else:
        target = discounted_returns(*given_, gamma=1.0)
    assert target.squeeze(1).tolist() == [5.0, 5.0, 2.0, 2.0]


def test_episodes_of_several_environments_are_cut_at_their_own_ends():
    """Ends at t = 2 and 5, three environments: the same as each episode on its own."""
    reward, value, next_value, *_ = rollout(6, 3, seed=3, dtype=torch.float32)
    done = flags(6, 2, 5).expand(6, 3)
    none = torch.zeros_like(done)
    for terminated, truncated in ((done, none), (none, done)):
        given_ = (reward, value, next_value, terminated, truncated)
        parts = [gae(*(x[rows] for x in given_), gamma=GAMMA, lambda_=LAMBDA) for rows in (slice(3), slice(3, 6))]
        equal(gae(*given_, gamma=GAMMA, lambda_=LAMBDA), torch.cat(parts), 1e-6)
        equal(torch.cat(parts), slow_gae(*arrays(*given_), gamma=GAMMA, lambda_=LAMBDA), 1e-6)


def test_rows_that_only_reset_reach_no_transition():
    """NEXT_STEP: the row after an end is no transition; whatever stands in it, the others are as without it."""
    reward, value, next_value, *_ = rollout(6, 2, seed=1)
    terminated, truncated = flags(6, 2).expand(6, 2), torch.zeros(6, 2, dtype=torch.bool)
    for first, second in ((terminated, truncated), (truncated, terminated)):
        data = (reward, value, next_value, first, second)
        absurd = [x.clone() for x in data[:3]]
        for x in absurd:
            x[3] = 1e9
        left = [torch.cat([x[:3], x[4:]]) for x in data]
        index = [0, 1, 2, 4, 5]
        equal(gae(*absurd, first, second, gamma=GAMMA, lambda_=LAMBDA)[index], gae(*left, gamma=GAMMA, lambda_=LAMBDA))
        one_less = discounted_returns(left[0], *left[2:], gamma=GAMMA)
        equal(discounted_returns(absurd[0], absurd[2], first, second, gamma=GAMMA)[index], one_less)
        one_less = n_step_returns(left[0], *left[2:], gamma=GAMMA, n=2)
        equal(n_step_returns(absurd[0], absurd[2], first, second, gamma=GAMMA, n=2)[index], one_less)


def test_what_a_terminal_state_is_valued_at_is_never_read():
    reward, value, next_value, *_ = rollout(4, 2)
    terminated, truncated = flags(4, 1, 3).expand(4, 2), torch.zeros(4, 2, dtype=torch.bool)
    unknown = next_value.masked_fill(terminated, torch.nan)
    assert gae(reward, value, unknown, terminated, truncated, gamma=GAMMA, lambda_=LAMBDA).isfinite().all()
    assert discounted_returns(reward, unknown, terminated, truncated, gamma=GAMMA).isfinite().all()
    assert n_step_returns(reward, unknown, terminated, truncated, gamma=GAMMA, n=3).isfinite().all()
    everywhere = torch.full_like(next_value, torch.nan)
    assert discounted_returns(reward, everywhere, terminated, truncated, gamma=GAMMA).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_the_rewards(dtype):
    reward, value, next_value, terminated, truncated = data = rollout(50, dtype=dtype)
    results = [
        gae(*data, gamma=0.99, lambda_=0.95),
        discounted_returns(reward, next_value, terminated, truncated, gamma=0.99),
        n_step_returns(reward, next_value, terminated, truncated, gamma=0.99, n=4),
        running_returns(reward, terminated, value[0], gamma=0.99),
    ]
    assert {result.dtype for result in results} == {dtype}


def test_targets_carry_no_gradient():
    reward, value, next_value, terminated, truncated = rollout()
    value, next_value = value.requires_grad_(), next_value.requires_grad_()
    advantage = gae(reward, value, next_value, terminated, truncated, gamma=GAMMA, lambda_=LAMBDA)
    assert not advantage.requires_grad
    for target in (
        discounted_returns(reward, next_value, terminated, truncated, gamma=GAMMA),
        n_step_returns(reward, next_value, terminated, truncated, gamma=GAMMA, n=3),
    ):
        assert not target.requires_grad


def test_arguments_are_left_alone():
    data = rollout()
    before = [x.clone() for x in data]
    gae(*data, gamma=GAMMA, lambda_=LAMBDA)
    discounted_returns(data[0], *data[2:], gamma=GAMMA)
    n_step_returns(data[0], *data[2:], gamma=GAMMA, n=3)
    running_returns(data[0], data[3], data[1][0], gamma=GAMMA)
    assert all(torch.equal(x, y) for x, y in zip(data, before, strict=True))


def test_shapes_that_would_broadcast_are_refused():
    """C81."""
    reward, value, next_value, terminated, truncated = rollout(1, 4)
    with pytest.raises(ValueError, match=r"shapes differ: reward \(1, 4\), value \(4,\).*expected one shape \[T, N\]"):
        gae(reward, value[0], next_value, terminated, truncated, gamma=GAMMA, lambda_=LAMBDA)
    with pytest.raises(ValueError, match="shapes differ"):
        discounted_returns(reward, next_value[0], terminated, truncated, gamma=GAMMA)
    with pytest.raises(ValueError, match="shapes differ"):
        n_step_returns(reward, next_value, terminated[0], truncated, gamma=GAMMA, n=1)
    with pytest.raises(ValueError, match=r"initial \(1,\)"):
        running_returns(reward, terminated, torch.zeros(1), gamma=GAMMA)


def test_n_below_one_is_refused():
    reward, _, *rest = rollout()
    with pytest.raises(ValueError, match="n=0: expected at least 1 step"):
        n_step_returns(reward, *rest, gamma=GAMMA, n=0)


def test_a_slow_reference_is_right_itself():
    """Three rows by hand: reward 1 each, gamma 1/2, terminated in the second."""
    reward, next_value = np.ones((3, 1)), np.full((3, 1), 8.0)
    terminated, truncated = np.array([[False], [True], [False]]), np.zeros((3, 1), bool)
    assert slow_returns(reward, next_value, terminated, truncated, gamma=0.5).ravel().tolist() == [1.5, 1.0, 5.0]
    one = slow_returns(reward, next_value, terminated, truncated, gamma=0.5, n=1)
    assert one.ravel().tolist() == [5.0, 1.0, 5.0]
    zero = np.zeros((3, 1))
    advantage = slow_gae(reward, zero, next_value, terminated, truncated, gamma=0.5, lambda_=1.0)
    assert advantage.ravel().tolist() == [5.5, 1.0, 5.0]
