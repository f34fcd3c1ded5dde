"""Flat parameters: what keeps the aliasing keeps training right, and what breaks it is noticed."""

import copy

import pytest
import torch
from torch import nn

from hybridrl.flat import FlatParameters


class Tied(nn.Module):
    """An embedding that is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(3, 4, bias=False)
        self.output = nn.Linear(3, 4)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(x) + self.embedding(x).square()


class TwoParts(nn.Module):
    """A body, a bare parameter and a critic, as an actor and critic have them."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.actor = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
        self.critic = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        return self.actor(x) * self.scale + self.critic(x)


def build(kind=TwoParts, *, seed=0, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind().to(dtype)


def batch(rows=8, *, seed=0, dtype=torch.float32):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)


def loss(module, x):
    return module(x).square().mean()


def parameters_of(module):
    return [p.detach().clone() for p in module.parameters()]


def assert_aliased(flat):
    """Writing the vector writes the parameters, each its own part, and nothing else is left over."""
    flat.check()
    before = flat.values.clone()
    flat.values.copy_(torch.arange(len(before), dtype=before.dtype))
    found = torch.cat([p.detach().reshape(-1) for p in flat.module.parameters()])
    assert sorted(found.tolist()) == list(range(len(before)))
    flat.values.copy_(before)


def test_parameters_keep_their_values_and_become_views():
    plain = build()
    flat = FlatParameters(build())
    assert_aliased(flat)
    assert all(torch.equal(p, q) for p, q in zip(flat.module.parameters(), plain.parameters(), strict=True))
    assert [n for n, _ in flat.module.named_parameters()] == [n for n, _ in plain.named_parameters()]
    with torch.no_grad():
        flat.module.scale.fill_(7.0)
    assert flat.values[:2].tolist() == [7.0, 7.0]
    assert torch.equal(flat.module(batch()), flat.module.actor(batch()) * 7.0 + flat.module.critic(batch()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("split", [False, True])
def test_adam_on_leaves_is_adam_on_parameters(dtype, split):
    plain, flat = build(dtype=dtype), FlatParameters(build(dtype=dtype))
    critic = list(plain.critic.parameters())
    rest = [plain.scale, *plain.actor.parameters()]
    groups = [{"params": rest, "lr": 0.01}, {"params": critic, "lr": 0.03 if split else 0.01}]
    expected = torch.optim.Adam(groups, foreach=False)
    if split:
        leaves = [{"params": [flat.leaf(without="critic.")]}, {"params": [flat.leaf(prefix="critic.")], "lr": 0.03}]
    else:
        leaves = [flat.leaf()]
    actual = torch.optim.Adam(leaves, lr=0.01, fused=True)
    for step in range(20):
        x = batch(seed=step, dtype=dtype)
        expected.zero_grad()
        loss(plain, x).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        expected.step()
        flat.zero_grad()
        loss(flat.module, x).backward()
        flat.gather_gradients()
        torch.testing.assert_close(flat.clip_gradients_(0.5), norm)
        actual.step()
    assert not torch.equal(plain.scale, torch.ones(2, dtype=dtype))
    torch.testing.assert_close(parameters_of(flat.module), parameters_of(plain), rtol=1e-5, atol=1e-6)
    flat.check()


@pytest.mark.parametrize("bound", [0.01, 1e3, float("inf")])
def test_clipping_is_torchs(bound):
    plain, flat = build(), FlatParameters(build())
    for module in (plain, flat.module):
        loss(module, batch() * 10).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), bound)
    flat.gather_gradients()
    torch.testing.assert_close(flat.clip_gradients_(bound), expected)
    gradients = [p.grad for p in flat.module.parameters()]
    torch.testing.assert_close(gradients, [p.grad for p in plain.parameters()])


@pytest.mark.parametrize("zero", ["flat", "module", "module in place", "optimiser in place"])
def test_gradients_are_torchs_after_any_zero_grad(zero):
    plain, flat = build(), FlatParameters(build())
    optimizer = torch.optim.SGD([flat.leaf()], lr=0.0)
    for seed in (0, 1):
        plain.zero_grad()
        match zero:
            case "flat":
                flat.zero_grad()
            case "module":
                flat.module.zero_grad()
            case "module in place":
                flat.module.zero_grad(set_to_none=False)
            case _:
                optimizer.zero_grad(set_to_none=False)
        loss(plain, batch(seed=seed)).backward()
        loss(flat.module, batch(seed=seed)).backward()
        flat.gather_gradients()
    torch.testing.assert_close(flat.gradients, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    assert flat.leaf().grad.data_ptr() == flat.gradients.data_ptr()


def test_an_optimiser_that_drops_the_gradient_is_noticed():
    """Its step would silently do nothing, and the module's gradients would add up."""
    flat = FlatParameters(build())
    optimizer = torch.optim.SGD([flat.leaf()], lr=0.1)
    optimizer.zero_grad()
    loss(flat.module, batch()).backward()
    with pytest.raises(ValueError, match=r"call FlatParameters.zero_grad\(\) instead"):
        flat.gather_gradients()
    flat.zero_grad()
    before = flat.values.clone()
    loss(flat.module, batch()).backward()
    flat.gather_gradients()
    optimizer.step()
    torch.testing.assert_close(flat.values, before - 0.1 * flat.gradients)
    assert flat.gradients.any()


def test_two_backward_passes_add_up():
    flat = FlatParameters(build())
    loss(flat.module, batch()).backward()
    once = flat.gradients.clone()
    loss(flat.module, batch()).backward()
    assert once.any()
    torch.testing.assert_close(flat.gradients, 2 * once)
    flat.zero_grad()
    assert not flat.gradients.any()


def test_gradients_that_autograd_put_elsewhere_are_forgotten_by_zero_grad():
    flat = FlatParameters(build())
    flat.module.zero_grad()
    loss(flat.module, batch()).backward()  # into tensors of its own
    flat.zero_grad()
    loss(flat.module, batch(seed=1)).backward()
    flat.gather_gradients()
    plain = build()
    loss(plain, batch(seed=1)).backward()
    torch.testing.assert_close(flat.gradients, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))


def test_gradients_from_before_are_kept():
    module = build()
    loss(module, batch()).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    assert torch.equal(FlatParameters(module).gradients, expected)


def test_a_parameter_that_took_no_part_has_gradient_zero():
    flat = FlatParameters(build())
    loss(flat.module, batch()).backward()
    flat.module.zero_grad()
    flat.module.critic(batch()).mean().backward()
    flat.gather_gradients()
    critic = sum(p.numel() for p in flat.module.critic.parameters())
    assert not flat.gradients[:-critic].any()
    assert flat.gradients[-critic:].any()


def test_tied_weights_have_one_slot_and_their_gradients_sum():
    plain, flat = build(Tied), FlatParameters(build(Tied))
    assert flat.values.numel() == 4 * 3 + 4
    assert flat.module.output.weight is flat.module.embedding.weight
    assert_aliased(flat)
    for module in (plain, flat.module):
        module.zero_grad()
        loss(module, batch()).backward()
    flat.gather_gradients()
    torch.testing.assert_close(flat.gradients, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    alone = torch.autograd.grad(plain.embedding(batch()).square().square().mean(), plain.embedding.weight)[0]
    assert not torch.allclose(alone, plain.embedding.weight.grad)


def test_frozen_parameters_are_values_without_gradients():
    module = build()
    module.actor.requires_grad_(False)
    frozen = sum(p.numel() for p in module.actor.parameters())
    flat = FlatParameters(module)
    assert_aliased(flat)
    assert flat.values.numel() - flat.gradients.numel() == frozen
    before = parameters_of(module.actor)
    loss(module, batch()).backward()
    flat.gather_gradients()
    optimizer = torch.optim.SGD([flat.leaf()], lr=0.1)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(module.actor.parameters(), before, strict=True))
    assert not torch.equal(module.scale, torch.ones(2))
    assert all(p.grad is None for p in module.actor.parameters())


def test_a_state_dict_makes_the_round_trip_in_place():
    flat, other = FlatParameters(build()), build(seed=1)
    optimizer = torch.optim.SGD([flat.leaf()], lr=0.1)
    flat.module.load_state_dict(other.state_dict())
    assert_aliased(flat)
    assert all(torch.equal(p, q) for p, q in zip(flat.module.parameters(), other.parameters(), strict=True))
    assert list(flat.module.state_dict()) == list(other.state_dict())
    loss(flat.module, batch()).backward()
    optimizer.step()
    assert not torch.equal(flat.module.scale, torch.ones(2))
    build(seed=2).load_state_dict(flat.module.state_dict())


def added(module):
    module.extra = nn.Linear(1, 1)


def removed(module):
    module.critic = nn.Sequential(module.critic[0])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda m: m.load_state_dict(build(seed=1).state_dict(), assign=True), "scale"),
        (lambda m: m.double(), "scale"),
        (lambda m: m.to("meta"), "scale"),
        (lambda m: setattr(m.actor[0], "bias", nn.Parameter(torch.zeros(5))), "actor.0.bias"),
        (lambda m: setattr(m.critic[2].weight, "data", torch.zeros(1, 5)), "critic.2.weight"),
        (lambda m: m.critic.requires_grad_(False), "critic.0.weight"),
        (lambda m: delattr(m, "critic"), "critic.0.weight"),
        (removed, "critic.2.weight"),
        (added, "extra.weight"),
    ],
)
def test_what_breaks_the_views_is_noticed(change, name):
    flat = FlatParameters(build())
    flat.check()
    change(flat.module)
    with pytest.raises(ValueError, match=rf"parameter '{name}' .*call FlatParameters\(module\) again") as raised:
        flat.check()
    assert "\n" not in str(raised.value)
    if name != "scale" or flat.module.scale.device.type != "meta":
        again = FlatParameters(flat.module)
        assert_aliased(again)


def test_moving_and_casting_to_the_same_changes_nothing():
    flat = FlatParameters(build())
    flat.module.to("cpu").float().train()
    assert_aliased(flat)


def test_the_old_vector_is_noticed_once_another_was_made():
    module = build()
    old = FlatParameters(module)
    assert_aliased(FlatParameters(module))
    with pytest.raises(ValueError, match="no longer a view"):
        old.check()


def test_a_copied_module_is_independent_and_ordinary():
    flat = FlatParameters(build())
    duplicate = copy.deepcopy(flat.module)
    before = parameters_of(duplicate)
    flat.values.zero_()
    assert all(torch.equal(p, q) for p, q in zip(duplicate.parameters(), before, strict=True))
    storages = {p.untyped_storage().data_ptr() for p in duplicate.parameters()}
    assert len(storages) == len(before)
    loss(duplicate, batch()).backward()
    assert not flat.gradients.any()


def test_a_copied_vector_comes_with_a_copied_module():
    flat = FlatParameters(build())
    loss(flat.module, batch()).backward()
    holder = copy.deepcopy({"flat": flat, "module": flat.module, "again": flat})
    duplicate = holder["flat"]
    assert holder["again"] is duplicate
    assert duplicate.module is holder["module"] is not flat.module
    assert torch.equal(duplicate.values, flat.values)
    assert torch.equal(duplicate.gradients, flat.gradients)
    assert_aliased(duplicate)
    before = flat.values.clone()
    duplicate.values.zero_()
    assert torch.equal(flat.values, before)
    assert_aliased(flat)


def test_publishing_copies_parameters_and_buffers():
    source, mine = FlatParameters(build()), FlatParameters(build(seed=1))
    source.module.seen.fill_(3.0)
    mine.copy_(source)
    assert torch.equal(mine.values, source.values)
    assert mine.module.seen.tolist() == [3.0] * 3
    assert_aliased(mine)
    source.values.zero_()
    source.module.seen.zero_()
    assert mine.values.any()
    assert mine.module.seen.any()


def test_averaging_moves_by_the_weight():
    source, target = FlatParameters(build()), FlatParameters(build(seed=1))
    expected = [
        p + 0.1 * (q - p) for p, q in zip(parameters_of(target.module), parameters_of(source.module), strict=True)
    ]
    target.lerp_(source, 0.1)
    torch.testing.assert_close(parameters_of(target.module), expected)


def test_another_architecture_is_refused():
    flat, other = FlatParameters(build()), FlatParameters(build(Tied))
    for call in (lambda: flat.copy_(other), lambda: flat.lerp_(other, 0.5)):
        with pytest.raises(ValueError, match="got a flat vector of 16 parameters, expected 60"):
            call()


def test_nothing_to_train_and_mixed_parameters_are_refused():
    with pytest.raises(ValueError, match="no trainable parameter; expected at least one"):
        FlatParameters(nn.Tanh())
    with pytest.raises(ValueError, match="no trainable parameter"):
        FlatParameters(build().requires_grad_(False))
    mixed = build()
    mixed.critic.double()
    with pytest.raises(
        ValueError, match=r"mixed parameters .*critic.0.weight: torch.float64 on cpu.*cast or move"
    ) as e:
        FlatParameters(mixed)
    assert "\n" not in str(e.value)
    mixed = build()
    mixed.critic.to("meta")
    with pytest.raises(ValueError, match=r"torch\.float32 on meta"):
        FlatParameters(mixed)


def test_leaves_that_do_not_exist_are_refused():
    flat = FlatParameters(build())
    with pytest.raises(
        ValueError, match=r"no trainable parameter has prefix 'actr' .*there are: scale, actor.0.weight"
    ):
        flat.leaf(prefix="actr")
    with pytest.raises(ValueError, match="no trainable parameter has prefix 'critic' without 'critic'"):
        flat.leaf(prefix="critic", without="critic")
    with pytest.raises(ValueError, match="aren't adjacent: define them together"):
        flat.leaf(without="actor.")


@pytest.mark.parametrize(
    "kind",
    [
        lambda: nn.LSTM(3, 4, num_layers=2),
        lambda: nn.GRU(3, 4, bidirectional=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 4)),
        lambda: nn.MultiheadAttention(3, 1),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    ],
)
def test_other_modules_train_as_before(kind):
    plain, flat = build(kind), FlatParameters(build(kind))
    assert len(list(plain.parameters())) == len(list(flat.module.parameters()))
    inputs = [batch()] * (3 if isinstance(plain, nn.MultiheadAttention) else 1)
    leaf = flat.leaf()
    for module, parameters in ((plain, list(plain.parameters())), (flat.module, [leaf])):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(2):
            output = module(*inputs)
            (output if isinstance(output, torch.Tensor) else output[0]).square().mean().backward()
            flat.gather_gradients()
            optimizer.step()
    assert_aliased(flat)
    torch.testing.assert_close(parameters_of(flat.module), parameters_of(plain))


def test_scalars_and_strided_parameters_keep_shape_and_value():
    module = nn.ParameterDict({"scalar": nn.Parameter(torch.tensor(2.0)), "turned": nn.Parameter(batch().T)})
    flat = FlatParameters(module)
    assert module["scalar"].item() == 2.0
    assert torch.equal(module["turned"], batch().T)
    assert flat.values.numel() == 1 + 8 * 3
    assert_aliased(flat)


def test_a_module_cast_since_is_noticed_at_the_next_step() -> None:
    module = nn.Linear(3, 2)
    flat = FlatParameters(module)
    module.double()
    with pytest.raises(ValueError, match="FlatParameters"):
        flat.zero_grad()


class Normalised(nn.Module):
    """A parameter, a frozen one, moments, a counter of another dtype, and a buffer under two names."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.frozen = nn.Parameter(torch.full((2,), value), requires_grad=False)
        self.register_buffer("mean", torch.full((3,), value))
        self.register_buffer("steps", torch.tensor(int(value)))
        self.register_buffer("passing", torch.full((2,), value), persistent=False)
        shared = torch.full((1,), value)
        self.register_buffer("one", shared)
        self.register_buffer("other", shared)


def test_publication_takes_buffers_along_in_the_one_vector() -> None:
    source, target = FlatParameters(Normalised(2.0)), FlatParameters(Normalised(1.0))
    assert source.state.numel() == 3 * 2 + 2 + 2 + 3 + 2
    assert source.values.data_ptr() == source.state.data_ptr()
    source.module.mean.add_(5.0)  # in place, as normalisers do
    target.copy_(source)
    for mine, theirs in zip(target.module.state_dict().values(), source.module.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert target.module.mean.tolist() == [7.0] * 3
    assert target.module.passing.tolist() == [2.0] * 2
    assert target.module.one is target.module.other


def test_a_buffer_assigned_anew_is_brought_back() -> None:
    """On either side: the source's new value is published, and the target's module sees what was published."""
    source, target = FlatParameters(Normalised(2.0)), FlatParameters(Normalised(1.0))
    source.module.mean = torch.full((3,), 9.0)
    target.module.mean = torch.full((3,), 4.0)
    target.copy_(source)
    assert target.module.mean.tolist() == source.module.mean.tolist() == [9.0] * 3


def test_averaging_leaves_buffers_alone() -> None:
    source, target = FlatParameters(Normalised(2.0)), FlatParameters(Normalised(1.0))
    target.lerp_(source, 0.5)
    assert target.module.mean.tolist() == [1.0] * 3
    assert target.module.frozen.tolist() == [1.5] * 2


def test_modules_that_differ_in_buffers_only_do_not_match() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    source.register_buffer("mean", torch.zeros(3))
    with pytest.raises(ValueError, match="both modules must have one architecture"):
        FlatParameters(target).copy_(FlatParameters(source))


def test_a_copy_of_the_whole_copies_buffers_too() -> None:
    flat = FlatParameters(Normalised(2.0))
    twin = copy.deepcopy(flat)
    flat.module.mean.zero_()
    assert twin.module.mean.tolist() == [2.0] * 3
    assert twin.state.numel() == flat.state.numel()
    twin.module.mean.fill_(6.0)
    assert 6.0 in twin.state.tolist()
