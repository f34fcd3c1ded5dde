"""Acting and learning in two memories, which on one CPU stand for two devices: what crosses, how often, and when."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hybridrl as hrl
from hybridrl.execution import DeviceActor, HostActor, actor
from hybridrl.networks import CategoricalHead, GaussianHead, NetworkConfig, ObservationNormalizer, Policy
from hybridrl.placement.memories import MixedMemories, TwoMemories
from hybridrl.profiling import NullTimer

RECIPE = hrl.PPORecipe(
    ppo=hrl.PPOConfig(rollout_steps=16, epochs=2, minibatch_size=32),
    network=NetworkConfig(hidden=(16,)),
    num_envs=4,
    normalize_observation=True,
    normalize_reward=True,
)
STEPS = 3 * 16 * 4
ENVS = ("CartPole-v1", "Pendulum-v1")


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Sums in one order: results are then equal to the bit."""


def agent(env: str = "CartPole-v1", placement: str = "cpu+cpu", recipe: hrl.PPORecipe = RECIPE) -> hrl.PPO:
    return hrl.PPO(env, recipe, placement=placement, seed=3)


def memories(made: hrl.PPO) -> TwoMemories:
    """The actor's and the learner's, by every tensor that each of them keeps."""
    parts: Any = made._parts
    learner, bridge = parts.learner, parts.bridge
    normalizer = [*learner.reward_normalizer.buffers()]
    copies = [mine.block for mine, _ in bridge.copy._pairs]
    return TwoMemories(
        acting=[bridge.acting.state, bridge.acting.gradients, made.collector.storage.arena.block],
        learning=[learner.flat.state, learner.flat.gradients, *normalizer, *copies],
    )


@pytest.mark.parametrize("env", ENVS)
def test_two_memories_learn_exactly_what_one_does(env: str) -> None:
    one, two = agent(env, "cpu"), agent(env, "cpu+cpu")
    first, second = one.learn(total_timesteps=STEPS), two.learn(total_timesteps=STEPS)
    assert first.updates == second.updates
    assert first.returns == second.returns
    for name, tensor in one._parts.tensors().items():
        assert torch.equal(tensor, two._parts.tensors()[name]), name


def test_a_learner_step_leaves_the_actor_s_bytes_until_publication() -> None:
    made = agent()
    bridge: Any = made.bridge
    made.learn(total_timesteps=64)
    before = bridge.acting.state.clone()
    rollout, _ = made.collector.collect(16)
    made.learner.update(bridge.deliver(rollout, timer=NullTimer()))
    assert torch.equal(bridge.acting.state, before)
    assert not torch.equal(bridge.learnt.state, before)
    bridge.publish(timer=NullTimer())
    assert torch.equal(bridge.acting.state, bridge.learnt.state)


def test_the_actor_s_storage_may_be_overwritten_while_the_learner_reads() -> None:
    made = agent()
    rollout, _ = made.collector.collect(16)
    delivered = made.bridge.deliver(rollout, timer=NullTimer())
    kept = {f.name: getattr(delivered, f.name).clone() for f in dataclasses.fields(delivered)}
    made.collector.storage.arena.block.fill_(7)
    assert all(torch.equal(getattr(delivered, name), value) for name, value in kept.items())


@pytest.mark.parametrize("env", ENVS)
def test_one_copy_a_rollout_and_one_copy_of_the_weights(env: str) -> None:
    """Counted by a dispatch mode, which sees every operation; it would also see any that joins the two memories."""
    made = agent(env)
    with memories(made) as watched:
        rounds = len(made.learn(total_timesteps=STEPS).updates)
    storage, flat = made.collector.storage, made.learner.flat
    # Once more at the start: what the caller may have changed in the policy.
    assert watched.crossed("learning", "acting") == [flat.state.numel() * 4] * (rounds + 1)
    assert watched.crossed("acting", "learning") == [storage.nbytes] * rounds
    # All of it: parameters, and the normaliser's count, mean and variance.
    weights = sum(p.numel() for p in made.policy.parameters()) + sum(b.numel() for b in made.policy.buffers())
    assert flat.state.numel() == weights


def test_the_watch_sees_what_two_devices_would_refuse() -> None:
    made = agent()
    bridge: Any = made.bridge
    with memories(made), pytest.raises(MixedMemories, match=r"aten\.add.* joins tensors of acting and learning"):
        bridge.acting.values + bridge.learnt.values


def test_a_rollout_that_was_not_delivered_is_refused_by_the_watch() -> None:
    made = agent()
    with memories(made):
        rollout, _ = made.collector.collect(16)
        with pytest.raises(MixedMemories):
            made.learner.update(rollout)


def test_publication_counts_versions() -> None:
    for placement in ("cpu", "cpu+cpu"):
        made = agent(placement=placement)
        before = made.bridge.version
        rounds = len(made.learn(total_timesteps=STEPS).updates)
        assert made.bridge.version == before + rounds + 1


def test_transfer_and_publication_are_phases_only_where_something_moves() -> None:
    reports = {placement: agent(placement=placement).learn(total_timesteps=STEPS).report for placement in PLACEMENTS}
    for name in ("transfer", "publish"):
        assert reports["cpu"].seconds(name) is None
        assert (reports["cpu+cpu"].seconds(name) or 0) > 0


PLACEMENTS = ("cpu", "cpu+cpu")


def test_what_the_caller_changed_is_acted_with() -> None:
    """The actor's copy follows the policy when training begins."""
    made = agent()
    with torch.no_grad():
        for parameter in made.policy.parameters():
            parameter.mul_(2.0)
    made.learn(total_timesteps=64, callback=lambda _: False)
    rates = made.predict(np.zeros((2, 4), np.float32), deterministic=True)[0]
    assert rates.shape == (2,)
    bridge: Any = made.bridge
    assert torch.equal(bridge.acting.state, bridge.learnt.state)


def test_a_network_that_cannot_be_copied_is_refused_with_a_cure() -> None:
    class Uncopied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.lines = (line for line in ())  # a generator can't be copied

        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            out = self.layer(observation)
            return out[:, :2], out[:, 2]

    hrl.PPO("CartPole-v1", RECIPE, network=Uncopied()).close()
    with pytest.raises(ValueError, match=r"the network can't be copied .* or name one device$"):
        hrl.PPO("CartPole-v1", RECIPE, network=Uncopied(), placement="cpu+cpu")


# Acting on a device: one array in, one out


class Crossing:
    """What a device's actor moves, on a CPU: `to_host` really copies, so that the watch can count it."""

    def __init__(self, policy: Policy, *, stored_there: bool) -> None:
        self.actor = DeviceActor(
            policy, torch.Generator().manual_seed(5), device=torch.device("cpu"), stored_there=stored_there
        )
        self.watched: TwoMemories | None = None

    def to_host(self, tensor: Tensor) -> Tensor:
        assert self.watched is not None
        here = torch.empty_like(tensor)
        self.watched.claim(here, "host")
        return here.copy_(tensor.detach())


def policy(kind: str) -> Policy:
    head: Any = CategoricalHead(3) if kind == "discrete" else GaussianHead(2)
    network = hrl.networks.ActorCritic(4, head, NetworkConfig(hidden=(8,)))
    return Policy(network, head, ObservationNormalizer((4,)))


@pytest.fixture(params=[("discrete", True), ("discrete", False), ("gaussian", True), ("gaussian", False)])
def crossing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Crossing:
    kind, stored_there = request.param
    torch.manual_seed(0)
    made = Crossing(policy(kind), stored_there=stored_there)
    monkeypatch.setattr(actor, "to_host", made.to_host)
    return made


def test_acting_on_a_device_moves_one_array_in_and_one_out(crossing: Crossing) -> None:
    """C66: one explicit transfer each way per vector step, whatever is stored where."""
    made = crossing.actor
    observation = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    plain = HostActor(made.policy, torch.Generator().manual_seed(5))
    staging = made._make_staging(observation)
    made._staging[(observation.shape, observation.dtype.str)] = staging
    with TwoMemories(
        host=[host.block for host, _, _ in staging._slots],
        device=[*made.policy.parameters(), *made.policy.buffers(), *(there.block for _, there, _ in staging._slots)],
    ) as watched:
        crossing.watched = watched
        for _ in range(4):
            acted = made.act(observation, timer=NullTimer())
            expected = plain.act(observation, timer=NullTimer())
            np.testing.assert_array_equal(acted.action, expected.action)
            for got, wanted in zip(acted.decision, expected.decision, strict=True):
                np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    assert len(watched.crossed("host", "device")) == 4
    assert watched.crossed("host", "device")[0] >= observation.nbytes
    assert len(watched.crossed("device", "host")) == 4


def test_what_is_stored_beside_the_policy_stays_there(crossing: Crossing) -> None:
    observation = np.ones((5, 4), np.float32)
    with TwoMemories(host=[], device=[*crossing.actor.policy.parameters()]) as watched:
        crossing.watched = watched
        acted = crossing.actor.act(observation, timer=NullTimer())
    if crossing.actor._stored_there:
        assert isinstance(acted.observation, Tensor)
        assert acted.action is not acted.decision.action.numpy()
    else:
        assert acted.observation is observation
    assert acted.action.dtype == acted.decision.action.numpy().dtype


def test_a_caller_with_batches_of_every_size_keeps_few_buffers() -> None:
    made = DeviceActor(policy("discrete"), torch.Generator(), device=torch.device("cpu"), stored_there=True)
    for size in range(1, 40):
        assert made.predict(np.zeros((size, 4), np.float32), generator=None).shape == (size,)
    assert len(made._staging) <= 8
