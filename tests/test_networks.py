"""Networks and policies: initialisation, heads, what observations become, and where every tensor lives."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hybridrl.flat import FlatParameters
from hybridrl.networks import (
    ActorCritic,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    NetworkConfig,
    ObservationNormalizer,
    Policy,
    RewardNormalizer,
    mlp,
)

DISCRETE, CONTINUOUS = CategoricalHead(3), GaussianHead(2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def build(head=DISCRETE, *, shape=(4,), normalize=False, seed=0, **config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ActorCritic(math.prod(shape), head, NetworkConfig(**config))
    return Policy(network, head, ObservationNormalizer(shape, enabled=normalize))


def observations(rows=5, *, shape=(4,), seed=0):
    return torch.randn(rows, *shape, generator=generator(seed))


def linear(network):
    return [layer for layer in network if isinstance(layer, nn.Linear)]


def test_orthogonal_layers_are_orthogonal_with_their_gain_and_no_bias():
    network = mlp((6, 8, 8, 3), output_gain=0.01)
    for layer, gain in zip(linear(network), (math.sqrt(2), math.sqrt(2), 0.01), strict=True):
        weight = layer.weight.detach()
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=0, atol=1e-5 * gain**2)
        assert not layer.bias.any()


def test_a_new_policy_acts_nearly_uniformly_and_torchs_initialization_is_left_alone():
    parameters, _ = build()(observations())
    assert parameters.abs().max() < 0.05
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = nn.Linear(4, 64).weight
    assert torch.equal(build(initialization="torch").network.actor[0].weight, expected)


@pytest.mark.parametrize(("activation", "kind"), [("tanh", nn.Tanh), ("relu", nn.ReLU)])
def test_layers_are_as_configured(activation, kind):
    network = build(hidden=(7, 5), activation=activation).network
    assert [type(layer) for layer in network.actor] == [nn.Linear, kind, nn.Linear, kind, nn.Linear]
    assert [layer.out_features for layer in linear(network.actor)] == [7, 5, 3]
    assert [layer.out_features for layer in linear(network.critic)] == [7, 5, 1]
    assert [type(layer) for layer in build(hidden=()).network.actor] == [nn.Linear]


def test_actor_and_critic_share_nothing():
    policy = build()
    parameters, value = policy(observations())
    value.sum().backward()
    assert all(p.grad is None for p in policy.network.actor.parameters())
    parameters.sum().backward()
    assert all(p.grad is not None for p in policy.parameters())


@pytest.mark.parametrize("deviation", ["free", "state"])
@pytest.mark.parametrize("mean_bound", [None, 2.0])
def test_gaussian_parameters_are_means_and_log_deviations(deviation, mean_bound):
    policy = build(CONTINUOUS, deviation=deviation, mean_bound=mean_bound, initialization="torch")
    x = observations(100) * 50
    parameters, _ = policy(x)
    mean, log_std = parameters.chunk(2, -1)
    output = policy.network.actor(x)
    raw = output[:, :2]
    torch.testing.assert_close(mean, raw if mean_bound is None else 2.0 * raw.tanh())
    if deviation == "free":
        assert output.shape == (100, 2)
        assert not log_std.any()
    else:
        torch.testing.assert_close(log_std.exp(), nn.functional.softplus(output[:, 2:]) + 1e-6)
    assert (log_std.std(0) > 0).all().item() == (deviation == "state")


def test_a_mean_far_out_stays_in_its_bound():
    policy = build(CONTINUOUS, mean_bound=2.0)
    with torch.no_grad():
        policy.network.actor[-1].bias.copy_(torch.tensor([1e4, -1e4]))
    assert policy.predict(observations(1)).tolist() == [[2.0, -2.0]]


def test_a_free_deviation_starts_where_it_is_told_and_learns():
    policy = build(CONTINUOUS, initial_log_std=-0.7)
    parameters, _ = policy(observations())
    assert parameters[:, 2:].unique().tolist() == pytest.approx([-0.7])
    CONTINUOUS.evaluate(parameters, torch.zeros(5, 2))[0].sum().backward()
    assert policy.network.log_std.grad.all()


def test_a_deviation_by_state_never_reaches_zero():
    policy = build(CONTINUOUS, deviation="state")
    with torch.no_grad():
        policy.network.actor[-1].bias.fill_(-1e4)
    assert policy(observations())[0][:, 2:].isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden": (64, 0)}, r"hidden=\(64, 0\): expected a tuple of layer sizes"),
        ({"hidden": 64}, "hidden=64: expected a tuple"),
        ({"activation": "gelu"}, "activation='gelu': expected one of tanh, relu"),
        ({"initialization": "xavier"}, "initialization='xavier': expected 'orthogonal' or 'torch'"),
        ({"deviation": "fixed"}, "deviation='fixed': expected 'free' or 'state'"),
        ({"deviation": "state", "initial_log_std": 1.0}, "initial_log_std=1.0: used with deviation='free' only"),
        ({"mean_bound": 0.0}, "mean_bound=0.0: expected None or a finite number above 0"),
        ({"mean_bound": math.nan}, "mean_bound=nan: expected"),
        ({"mean_bound": math.inf}, "mean_bound=inf: expected"),
    ],
)
def test_a_wrong_configuration_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message) as raised:
        NetworkConfig(**wrong)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("head", "shape"), [(DISCRETE, ()), (CONTINUOUS, (2,))])
def test_decisions_say_what_evaluation_says(head, shape):
    """The log-probability kept while acting is the one of that very action, as PPO's ratio needs."""
    policy = build(head)
    x = observations(20)
    decision = policy.act(x, generator=generator(5))
    parameters, value = policy(x)
    assert decision.action.shape == (20, *shape)
    assert torch.equal(decision.action, head.sample(parameters, generator=generator(5)))
    torch.testing.assert_close(decision.log_prob, head.evaluate(parameters, decision.action)[0])
    torch.testing.assert_close(decision.value, value)
    torch.testing.assert_close(policy.value(x), value)
    assert not any(part.requires_grad for part in (*decision, policy.value(x), policy.predict(x)))


@pytest.mark.parametrize("head", [DISCRETE, CONTINUOUS])
def test_prediction_is_the_mode_or_with_a_generator_a_sample(head):
    policy = build(head)
    x = observations(200)
    parameters, _ = policy(x)
    assert torch.equal(policy.predict(x), head.mode(parameters))
    sampled = policy.predict(x, generator=generator(1))
    assert torch.equal(sampled, policy.act(x, generator=generator(1)).action)
    assert not torch.equal(sampled, policy.predict(x))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int16, np.bool_])
def test_observations_of_any_dtype_are_cast_once_to_the_networks(dtype, normalize):
    policy = build(normalize=normalize)
    raw = torch.from_numpy((np.arange(20).reshape(5, 4) % 3).astype(dtype))
    policy.normalizer.update(raw)
    parameters, value = policy(raw)
    assert (parameters.dtype, value.dtype) == (torch.float32, torch.float32)
    assert torch.equal(parameters, policy(raw.float())[0])
    (parameters.sum() + value.sum()).backward()


def test_a_policy_of_doubles_takes_floats():
    policy = build(CONTINUOUS, normalize=True).double()
    decision = policy.act(observations(), generator=generator())
    assert {part.dtype for part in decision} == {torch.float64}


def test_bytes_become_numbers_from_zero_to_one():
    raw = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert ObservationNormalizer((3,), enabled=False)(raw).tolist() == [pytest.approx([0.0, 0.2, 1.0])]
    normalizer = ObservationNormalizer((3,))
    normalizer.update(raw)
    assert normalizer.mean.tolist() == pytest.approx([0.0, 0.2, 1.0])


def test_images_are_flattened():
    policy = build(shape=(2, 3, 4))
    x = torch.randint(256, (5, 2, 3, 4), dtype=torch.uint8, generator=generator())
    policy.check(x)
    torch.testing.assert_close(policy.value(x), policy.network.critic(x.reshape(5, 24) / 255).squeeze(1))


def test_normalized_observations_have_mean_zero_and_deviation_one():
    normalizer = ObservationNormalizer((3,))
    data = observations(1000, shape=(3,)) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 100.0, -1.0])
    for part in data.split(100):
        normalizer.update(part)
    normalized = normalizer(data)
    torch.testing.assert_close(normalized.mean(0), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(normalized.std(0, correction=0), torch.ones(3), rtol=1e-3, atol=0)
    assert normalizer(data[:1] + 1e9).tolist() == [[10.0] * 3]


def test_a_new_normalizer_clips_and_otherwise_leaves_alone():
    x = torch.tensor([[1.0, -2.0, 30.0]])
    torch.testing.assert_close(ObservationNormalizer((3,))(x), torch.tensor([[1.0, -2.0, 10.0]]))


def test_a_normalizer_changes_only_in_update():
    policy = build(normalize=True)
    before = {name: x.clone() for name, x in policy.normalizer.state_dict().items()}
    policy.act(observations(), generator=generator())
    policy.train()(observations())
    after = policy.normalizer.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    policy.normalizer.update(observations())
    assert policy.normalizer.count.item() == 5


def test_a_disabled_normalizer_learns_nothing():
    normalizer = ObservationNormalizer((4,), enabled=False)
    normalizer.update(observations())
    assert normalizer.count.item() == 0
    assert torch.equal(normalizer(observations() * 1e3), observations() * 1e3)


def test_moments_are_updated_in_place_for_whoever_holds_them():
    normalizer = ObservationNormalizer((4,))
    held = dict(normalizer.named_buffers())
    normalizer.update(observations())
    assert all(normalizer.get_buffer(name) is buffer for name, buffer in held.items())
    assert held["count"].item() == 5


@pytest.mark.parametrize("how", ["publish", "state_dict", "deepcopy"])
def test_two_policies_see_the_same_numbers_once_weights_are_published(how):
    source, acting = build(normalize=True), build(normalize=True, seed=1)
    source.normalizer.update(observations(100, seed=3) * 5 + 2)
    x = observations()
    assert not torch.equal(source(x)[1], acting(x)[1])
    match how:
        case "publish":
            FlatParameters(acting).copy_(FlatParameters(source))
        case "state_dict":
            acting.load_state_dict(source.state_dict())
        case _:
            acting = copy.deepcopy(source)
    assert torch.equal(source(x)[0], acting(x)[0])
    assert torch.equal(source(x)[1], acting(x)[1])
    source.normalizer.update(observations(100, seed=4) - 7)
    assert not torch.equal(source(x)[1], acting(x)[1])


def reachable(thing, seen, path):
    """Every tensor in the attributes, containers and modules below, with its path."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield path, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from reachable(value, seen, f"{path}.{key}")
    elif isinstance(thing, list | tuple | set):
        for index, value in enumerate(thing):
            yield from reachable(value, seen, f"{path}[{index}]")
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from reachable(vars(thing), seen, path)


MODULES = [
    lambda: build(DISCRETE, normalize=True),
    lambda: build(CONTINUOUS, normalize=True),
    lambda: build(CONTINUOUS, deviation="state", mean_bound=1.0),
    lambda: RewardNormalizer(3, gamma=0.9),
]


@pytest.mark.parametrize("make", MODULES)
def test_no_tensor_is_left_behind_by_a_move_or_a_cast(make):
    module = make()
    registered = {id(x) for x in itertools.chain(module.parameters(), module.buffers())}
    found = dict(reachable(module, set(), "policy"))
    assert {path for path, x in found.items() if id(x) not in registered} == set()
    assert len(found) == len(registered)
    module.double()
    assert {x.dtype for _, x in reachable(module, set(), "policy")} == {torch.float64}
    module.to("meta")
    assert {x.device.type for _, x in reachable(module, set(), "policy")} == {"meta"}


def test_the_walk_finds_a_tensor_that_is_no_buffer():
    policy = build()
    policy.network.helper = [torch.zeros(1)]
    assert "policy._modules.network.helper[0]" in dict(reachable(policy, set(), "policy"))


def rewards(rows=50, num_envs=3, seed=0):
    floats = torch.randn(rows, num_envs, generator=generator(seed)) * 4 + 1
    done = torch.rand(rows, num_envs, generator=generator(seed + 1)) < 0.1
    return floats, done, torch.ones_like(done)


def test_rewards_are_divided_by_the_deviation_of_their_running_sums():
    normalizer = RewardNormalizer(3, gamma=0.9)
    sums, totals = [], [0.0] * 3
    for seed in (0, 5):
        reward, done, valid = rewards(seed=seed)
        done[-1] = torch.tensor([True, False, False])  # one episode ends with the rollout, two run on
        scaled = normalizer(reward, done, valid)
        for t, i in np.ndindex(50, 3):
            totals[i] = reward[t, i].item() + 0.9 * totals[i]
            sums.append(totals[i])
            totals[i] *= 1 - done[t, i].item()
        expected = (reward / np.std(sums)).clamp(-10, 10)
        torch.testing.assert_close(scaled, expected.float(), rtol=1e-4, atol=1e-4)
    assert normalizer.running.tolist() == pytest.approx(totals, rel=1e-4)


def test_rows_that_only_reset_do_not_count_as_rewards():
    reward, done, valid = rewards()
    valid = valid.clone()
    valid[1:] = ~done[:-1]
    reward = reward * valid
    done = done & valid
    normalizer = RewardNormalizer(3, gamma=0.9)
    scaled = normalizer(reward, done, valid)
    assert normalizer.count.item() == valid.sum().item() < valid.numel()
    assert not scaled[~valid].any()


def test_rewards_keep_their_sign_and_are_clipped():
    normalizer = RewardNormalizer(1, gamma=0.0)
    reward = torch.tensor([[1.0]] * 500 + [[-1000.0], [0.0]])
    none = torch.zeros_like(reward, dtype=torch.bool)
    scaled = normalizer(reward, none, ~none)
    assert scaled[500].item() == -10.0
    assert scaled[501].item() == 0.0
    assert 0.0 < scaled[0].item() < 1.0


def test_a_disabled_reward_normalizer_leaves_rewards_alone():
    normalizer = RewardNormalizer(3, gamma=0.9, enabled=False)
    reward, done, valid = rewards()
    assert normalizer(reward, done, valid) is reward
    assert normalizer.count.item() == 0


def test_reward_moments_are_saved_without_the_episodes_under_way():
    normalizer = RewardNormalizer(3, gamma=0.9)
    normalizer(*rewards())
    state = normalizer.state_dict()
    assert sorted(state) == ["count", "mean", "variance"]
    fresh = RewardNormalizer(5, gamma=0.9)
    fresh.load_state_dict(state)
    assert fresh.variance.item() == normalizer.variance.item() != 1.0
    assert not fresh.running.any()


class Wrong(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.output = output

    def forward(self, observation):
        return self.output


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (torch.zeros(2, 3), "Tensor"),
        ([torch.zeros(2, 3), torch.zeros(2)], "list"),
        ((torch.zeros(2, 3), torch.zeros(2, 1)), r"\[\(2, 3\), \(2, 1\)\]"),
        ((torch.zeros(2, 4), torch.zeros(2)), r"\[\(2, 4\), \(2,\)\]"),
        ((torch.zeros(2, 3), None), r"\[\(2, 3\), \(\)\]"),
        ((torch.zeros(2, 3), torch.zeros(2), torch.zeros(2)), r"\[\(2, 3\), \(2,\), \(2,\)\]"),
    ],
)
def test_a_network_that_returns_something_else_is_refused(output, said):
    policy = Policy(Wrong(output), DISCRETE, ObservationNormalizer((4,)))
    expected = rf"returned {said} for 2 observations; expected a tuple \(parameters \[2, 3\], value \[2\]\)"
    with pytest.raises(ValueError, match=expected) as raised:
        policy.check(observations(2))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("head", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("deviation", ["free", "state"])
def test_the_built_in_networks_pass_the_check(head, deviation):
    build(head, deviation=deviation).check(observations(2))


def test_heads_are_values():
    assert CategoricalHead(3) == DISCRETE != CategoricalHead(4)
    assert (DISCRETE.parameter_size, CONTINUOUS.parameter_size) == (3, 4)
    assert replace(NetworkConfig(), hidden=(8,)).hidden == (8,)


def test_a_multi_categorical_head_fits_network_and_policy():
    """Log-probabilities sum over the dimensions, and actions are one index each."""
    head = MultiCategoricalHead((2, 3, 1))
    policy = build(head)
    policy.check(observations(2))
    decision = policy.act(observations(40), generator=generator())
    assert (decision.action.shape, decision.action.dtype) == ((40, 3), torch.int64)
    assert (decision.action < torch.tensor(head.sizes)).all()
    torch.testing.assert_close(decision.log_prob, torch.full((40,), -math.log(6)), rtol=0, atol=0.1)
    assert policy.predict(observations(5)).shape == (5, 3)
    assert MultiCategoricalHead((2, 3, 1)) == head != MultiCategoricalHead((3, 2, 1))


@pytest.mark.parametrize("sizes", [(), (2, 0)])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(ValueError, match="expected at least one, each of at least 1"):
        MultiCategoricalHead(sizes)
