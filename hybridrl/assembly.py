"""What a placement binds together: learner, actor, collector and the bridge between them; and its state, saved."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from hybridrl.algorithms import PPOLearner
from hybridrl.building import make_storage
from hybridrl.envs import Environments
from hybridrl.execution import Bridge, Collector
from hybridrl.execution.actor import make_actor
from hybridrl.execution.bridge import make_bridge
from hybridrl.flat import FlatParameters
from hybridrl.networks import Policy
from hybridrl.placement import Placement, devices, move, to_host
from hybridrl.profiling import NullTimer, PhaseTimer
from hybridrl.profiling.phases import LEARN, PUBLISH, RETURNS, TRANSFER, UPDATE
from hybridrl.recipes import PPORecipe


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """One stream of random numbers for each use."""

    act: int
    learn: int
    predict: int
    environments: int


@dataclass(frozen=True, kw_only=True)
class Generators:
    """Random numbers, each where it is used."""

    act: torch.Generator
    """Samples actions while training; on the acting device."""
    learn: torch.Generator
    """Shuffles; on the learning device."""
    predict: torch.Generator
    """Samples actions outside training; on the acting device."""

    @classmethod
    def on(cls, placement: Placement, seeds: Seeds) -> "Generators":
        """Fresh ones."""
        act, learn = placement.act_device, placement.learn_device
        return cls(
            act=devices.generator(act, seeds.act),
            learn=devices.generator(learn, seeds.learn),
            predict=devices.generator(act, seeds.predict),
        )

    def named(self) -> dict[str, torch.Generator]:
        """By name, as they are saved."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The parts of one agent, placed."""

    policy: Policy
    learner: PPOLearner
    collector: Collector
    bridge: Bridge
    generators: Generators

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training needs to go on, by name, on the host."""
        tensors = {f"generator.{name}": g.get_state() for name, g in self.generators.named().items()}
        for part, module in self._modules().items():
            tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
        for index, state in self.learner.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        return {name: to_host(tensor) for name, tensor in tensors.items()}

    def generator_kinds(self) -> dict[str, str]:
        """The kind of device of each generator: a state fits no other kind."""
        return {name: generator.device.type for name, generator in self.generators.named().items()}

    def wanted(self, found: Mapping[str, Tensor], kinds: Mapping[str, str]) -> dict[str, Tensor]:
        """What :meth:`restore` takes, given what was found; the optimiser's part is empty before its first step."""
        wanted = self.tensors()
        for name, kind in self.generator_kinds().items():
            if kinds.get(name, kind) != kind:  # of another kind of device, and so of another size
                wanted[f"generator.{name}"] = found.get(f"generator.{name}", wanted[f"generator.{name}"])
        if any(name.startswith("optimizer.") for name in found):
            for index, leaf in enumerate(self._leaves()):
                moments = {"step": torch.zeros(()), "exp_avg": leaf, "exp_avg_sq": leaf}
                wanted |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        return wanted

    def restore(self, tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> None:
        """Take over what :meth:`tensors` gave, here or on another placement, and let the actor act with it.

        A generator's state fits no other kind of device: there, a new sequence is derived from it.
        """
        for part, module in self._modules().items():
            module.load_state_dict(_under(tensors, part))
        for name, generator in self.generators.named().items():
            devices.restore_generator(generator, tensors[f"generator.{name}"], kind=kinds.get(name, devices.CPU))
        optimizer = self.learner.optimizer
        states = {i: _under(tensors, f"optimizer.{i}") for i in range(len(self._leaves()))}
        optimizer.load_state_dict(
            {"state": {i: s for i, s in states.items() if s}, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        self.bridge.publish(timer=NullTimer())

    def _modules(self) -> dict[str, nn.Module]:
        return {"policy": self.policy, "reward_normalizer": self.learner.reward_normalizer}

    def _leaves(self) -> list[Tensor]:
        return [leaf for group in self.learner.optimizer.param_groups for leaf in group["params"]]


def assemble(
    policy: Policy,
    environments: Environments,
    recipe: PPORecipe,
    placement: Placement,
    seeds: Seeds,
    *,
    collector: Collector | None = None,
) -> Assembly:
    """Place a policy and build what trains it.

    Args:
        policy: moved, in place, to where it is learnt.
        environments: to act on.
        recipe: of everything.
        placement: where.
        seeds: of the generators.
        collector: goes on with this one, in the middle of its episodes; None makes one.

    Raises:
        ValueError: the recipe doesn't suit the network, or the memory doesn't suffice.
    """
    generators = Generators.on(placement, seeds)
    acting = move(_copied(policy), placement.act_device) if placement.separate else policy
    move(policy, placement.learn_device)
    learner = PPOLearner(
        policy,
        recipe.ppo,
        num_envs=environments.num_envs,
        generator=generators.learn,
        normalize_reward=recipe.normalize_reward,
        timer=NullTimer(),
    )
    storage = make_storage(environments, recipe, placement)
    actor = make_actor(acting, generators.act, device=placement.act_device, store=storage.device)
    bridge = make_bridge(
        placement, storage, learnt=learner.flat, acting=FlatParameters(acting) if placement.separate else learner.flat
    )
    if collector is None:
        collector = Collector(environments, actor, storage, seed=seeds.environments, timer=NullTimer())
    else:
        collector.place(actor, storage)
    return Assembly(policy=policy, learner=learner, collector=collector, bridge=bridge, generators=generators)


def make_timer(placement: Placement) -> PhaseTimer:
    """The timer for a placement.

    It waits for accelerators at both ends of the phases that give them work, so that the time is charged to who queued
    it. Acting on the host queues nothing: there it doesn't wait, and costs what it costs on the CPU.
    """
    wait = devices.synchronizer_of_all(placement.devices)
    if wait is None or placement.act_device.type != devices.CPU:
        return PhaseTimer(synchronize=wait)
    return PhaseTimer(synchronize=wait, synchronize_in=(TRANSFER, LEARN, RETURNS, UPDATE, PUBLISH))


def _copied(policy: Policy) -> Policy:
    try:
        return copy.deepcopy(policy)
    except (TypeError, RuntimeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the network can't be copied ({' '.join(str(error).split())}), which acting and learning in two memories "
            "needs: take out what can't, or name one device"
        ) from None


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
