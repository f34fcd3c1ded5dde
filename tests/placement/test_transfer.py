"""Moving batches, modules and optimisers; the `meta` device stands for another one."""

import copy
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from hybridrl.networks import Decision
from hybridrl.placement import devices, left_behind, move, move_training, to_host

META = torch.device("meta")


class Pair(NamedTuple):
    a: Tensor
    b: Any


@dataclass(frozen=True)
class Batch:
    x: Tensor
    more: Any


def tree() -> Any:
    one = torch.ones(2)
    return {"list": [one, 3], "tuple": (one, "text"), "named": Pair(one, None), "batch": Batch(one, {"deep": one})}


def test_a_batch_of_anything_keeps_its_structure() -> None:
    moved = move(tree(), META)
    assert moved["list"][0].device == moved["tuple"][0].device == moved["named"].a.device == META
    assert moved["batch"].x.device == moved["batch"].more["deep"].device == META
    assert isinstance(moved["named"], Pair)
    assert isinstance(moved["batch"], Batch)
    assert (moved["list"][1], moved["tuple"][1], moved["named"].b) == (3, "text", None)


@dataclass
class Doubles:
    x: Tensor
    made: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.x = self.x * 2
        self.made = [self.x]


def test_no_constructor_is_run_again() -> None:
    """A dataclass that computes at its construction, and a mapping that has a factory."""
    given = Doubles(torch.ones(2))
    moved = move(given, "cpu")
    assert moved is not given
    assert moved.x.tolist() == [2.0, 2.0]
    assert move(given, META).made[0].device == META
    assert given.x.device.type == "cpu"
    lists = defaultdict(list, a=torch.ones(1))
    assert move(lists, META)["a"].device == META
    assert move(lists, META)["new"] == []


@pytest.mark.parametrize(
    "call", [lambda d: move(torch.ones(1), d), lambda d: left_behind([], d), lambda d: trained_to(d)]
)
def test_a_device_that_is_not_here_is_refused_in_one_line(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    for name in ("cuda", "gpu", "nonsense"):
        with pytest.raises(ValueError, match="this machine has cpu"):
            call(name)


def trained_to(device: str) -> None:
    module = nn.Linear(1, 1)
    move_training(module, torch.optim.SGD(module.parameters()), device)


def test_an_optimiser_of_another_module_is_refused() -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters())
    with pytest.raises(ValueError, match="a SGD has none of the module's parameters: give the optimiser"):
        move_training(nn.Linear(1, 1), [other], META)


def test_what_is_there_already_is_not_copied() -> None:
    given = tree()
    moved = move(given, "cpu")
    assert moved["list"][0] is given["list"][0]
    assert to_host(given["list"][0]).data_ptr() == given["list"][0].data_ptr()


def test_the_host_gets_values_without_their_graph() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not to_host(weight * 2).requires_grad


def test_a_decision_is_a_batch() -> None:
    assert move(Decision(*(torch.ones(1) for _ in range(3))), META).value.device == META


OPTIMIZERS = [
    lambda p: torch.optim.Adam(p, 0.1),
    lambda p: torch.optim.Adam(p, 0.1, fused=True),
    lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True),
    lambda p: torch.optim.Adagrad(p, 0.1),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
]


def trained(make: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make(module.parameters())
    step(module, optimizer)
    return module, optimizer


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    module(torch.ones(5, 3)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimiser_state_moves_with_the_module(make: Any) -> None:
    """C61: every moment is on its parameter's device; and the optimiser trains the parameters that are there."""
    module, optimizer = trained(make)
    move_training(module, [optimizer], META)
    parameters = {id(p) for p in module.parameters()}
    assert all(p.device == META for p in module.parameters())
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == parameters
    assert {id(p) for p in optimizer.state} == parameters
    for state in optimizer.state.values():
        assert all(t.device == META for name, t in state.items() if isinstance(t, Tensor) and name != "step")


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_move_changes_no_number(make: Any) -> None:
    """C61: a step after a move is the step that would have come without."""
    module, optimizer = trained(make)
    twin, twin_optimizer = trained(make)
    before = copy.deepcopy(optimizer.state_dict())
    move_training(module, [optimizer], "cpu")
    after = optimizer.state_dict()
    for index, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(after["state"][index][name], value), name
    step(module, optimizer)
    step(twin, twin_optimizer)
    assert all(map(torch.equal, module.parameters(), twin.parameters()))


def test_plain_attributes_are_what_a_move_leaves_behind() -> None:
    """C63."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("kept", torch.ones(2))
            self.scale = torch.ones(2)
            self.history = [{"noise": torch.zeros(1)}]

    module = Scaled()
    assert left_behind(module, "cpu") == []
    move_training(module, [], META)
    assert left_behind(module, META) == [".scale", ".history[0]['noise']"]


def test_what_refers_to_itself_is_walked_once() -> None:
    ring: list[Any] = [torch.ones(1)]
    ring.append(ring)
    assert left_behind(ring, META) == ["[0]"]
