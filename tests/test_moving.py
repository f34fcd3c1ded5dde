"""Agents under every placement: parity, moves in the middle of training, saving here and loading there."""

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hybridrl as hrl
from hybridrl.algorithms import PPOConfig
from hybridrl.networks import NetworkConfig
from hybridrl.placement import Placement, devices, left_behind
from hybridrl.profiling import NullTimer
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv

pytestmark = pytest.mark.usefixtures("one_thread")

PLACEMENTS = ("cpu", "cpu+cpu")
RECIPE = PPORecipe(
    ppo=PPOConfig(rollout_steps=16, minibatch_size=16, epochs=2, critic_learning_rate=1e-3),
    network=NetworkConfig(hidden=(8,)),
    num_envs=2,
    normalize_observation=True,
    normalize_reward=True,
)


def agent(placement: str, env: str = "CartPole-v1", recipe: PPORecipe = RECIPE) -> hrl.PPO:
    return hrl.PPO(env, recipe, placement=placement, seed=4)


def state(made: hrl.PPO) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in made._parts.tensors().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("saved_on", "loaded_on"), [*product(PLACEMENTS, PLACEMENTS)])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_saved_agent_goes_on_under_another_placement(env: str, saved_on: str, loaded_on: str, tmp_path: Path) -> None:
    """C61, C64: everything comes back, and both make the same next update from one rollout."""
    made = agent(saved_on, env)
    made.learn(total_timesteps=100)
    made.save(tmp_path / "x")
    loaded = hrl.PPO.load(tmp_path / "x", placement=loaded_on)
    assert str(loaded.placement) == loaded_on
    assert same(state(loaded), state(made))
    observation = np.random.default_rng(0).normal(size=(20, *made.environments.observation.shape))
    np.testing.assert_array_equal(made.predict(observation)[0], loaded.predict(observation)[0])
    rollout, _ = made.collector.collect(16)
    made.learner.reward_normalizer.running.zero_()  # belongs to the episodes under way, which aren't saved
    for one in (made, loaded):
        one.learner.update(rollout, progress=0.5)
    assert torch.equal(made.learner.flat.values, loaded.learner.flat.values)


@pytest.mark.parametrize(("start", "then"), [*product(PLACEMENTS, PLACEMENTS)])
def test_a_move_in_the_middle_changes_no_number(start: str, then: str) -> None:
    """C61: optimiser, normalisers, random numbers and the episodes under way go on as if nothing had happened."""
    stayed, moved = agent("cpu"), agent(start)
    first = [a.learn(total_timesteps=110) for a in (stayed, moved)]
    before = state(moved)
    moved.move(then)
    assert same(state(moved), before)
    second = [a.learn(total_timesteps=110) for a in (stayed, moved)]
    for one, other in (first, second):
        assert one.updates == other.updates
        assert one.returns == other.returns
    assert same(state(stayed), state(moved))
    assert str(moved.placement) == then


def test_a_move_keeps_the_user_s_network() -> None:
    network = hrl.networks.ActorCritic(4, hrl.networks.CategoricalHead(2), NetworkConfig(hidden=(8,)))
    made = hrl.PPO("CartPole-v1", RECIPE, network=network)
    made.learn(total_timesteps=110)
    made.move("cpu+cpu")
    made.learn(total_timesteps=110)
    assert made.policy.network is network
    learnt = torch.cat([p.detach().flatten() for p in network.parameters()])
    assert torch.equal(learnt, made.learner.flat.values)


def test_no_move_while_learning() -> None:
    made = agent("cpu")

    def move(_: Any) -> None:
        made.move("cpu+cpu")

    with pytest.raises(ValueError, match=r"move\(\) was called inside learn\(\): move between two calls of it"):
        made.learn(total_timesteps=64, callback=move)


def test_a_move_to_what_is_not_here_leaves_the_agent_where_it_was() -> None:
    made = agent("cpu")
    with pytest.raises(ValueError, match="this machine has"):
        made.move("npu")
    assert str(made.placement) == "cpu"
    made.learn(total_timesteps=64)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_everything_is_where_the_placement_says(placement: str) -> None:
    """C63: no tensor below the agent is on a device that it doesn't use."""
    made = agent(placement)
    made.learn(total_timesteps=64)
    assert left_behind(made, "cpu") == []
    assert left_behind(made, "meta") != []


def test_the_learner_s_parts_follow_to_the_learner_s_device() -> None:
    """C61, C63: on the meta device, which has no values but a name: nothing that learns stays behind."""
    made = agent("cpu")
    made.learn(total_timesteps=64)
    meta = torch.device("meta")
    from hybridrl.placement import move

    policy = move(made.policy, meta)
    learner = hrl.algorithms.PPOLearner(
        policy,
        made.recipe.ppo,
        num_envs=2,
        generator=torch.Generator(),
        normalize_reward=True,
        timer=NullTimer(),
    )
    assert [path for path in left_behind(learner, meta) if "generator" not in path] == []


def test_the_cache_is_emptied_once_a_move_and_only_where_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """C71: `empty_cache` belongs after a move, not into a loop."""
    released: list[str] = []
    monkeypatch.setattr(devices, "release_cached_memory", lambda device: released.append(device.type))
    made = agent("cpu")
    made.learn(total_timesteps=96)
    assert released == []
    made.placement = dataclasses.replace(made.placement)
    monkeypatch.setattr(type(made.placement), "devices", property(lambda self: _DEVICES[str(self)]), raising=True)
    made.move("cpu+cpu")
    assert released == ["cuda"]


_DEVICES = {"cpu": (torch.device("cpu"), torch.device("cuda")), "cpu+cpu": (torch.device("cpu"),)}


def test_a_generator_of_another_kind_of_device_is_replaced_by_a_derived_one(tmp_path: Path) -> None:
    """C61, C64: a file from a GPU has another state of another size; it loads, and the sequence is repeatable."""
    from hybridrl import checkpoints

    made = agent("cpu")
    made.learn(total_timesteps=64)
    made.save(tmp_path / "here")
    tensors, data = checkpoints.read(tmp_path / "here")
    for name in ("act", "learn", "predict"):
        tensors[f"generator.{name}"] = torch.arange(16, dtype=torch.uint8)  # as CUDA's
        data["generators"][name] = "cuda"
    checkpoints.write(tmp_path / "gpu", tensors, data)
    drawn = []
    for _ in range(2):
        loaded = hrl.PPO.load(tmp_path / "gpu")
        drawn.append(loaded.predict(np.zeros((64, 4), np.float32))[0].tolist())
        loaded.learn(total_timesteps=64)
    assert drawn[0] == drawn[1]
    data["generators"]["act"] = "cpu"
    checkpoints.write(tmp_path / "torn", tensors, data)
    with pytest.raises(ValueError, match=r"generator\.act"):
        hrl.PPO.load(tmp_path / "torn")


# "auto"


def test_auto_on_a_machine_without_accelerator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    made = hrl.PPO("CartPole-v1", RECIPE, placement="auto")
    assert str(made.placement) == "cpu"
    notes = made.learn(total_timesteps=64).report.notes
    assert "placement auto: cpu, the only device here" in notes


class Ticks:
    """A clock that is told how long each placement's rounds take."""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.now, self.seconds = 0.0, {name: list(values) for name, values in seconds.items()}

    def __call__(self) -> float:
        return self.now


CPU, BOTH = Placement.parse("cpu"), Placement.parse("cpu+cpu")


def choose(seconds: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch, limit_s: float = 1e9) -> Any:
    from hybridrl import auto

    clock = Ticks(seconds)
    real = auto._Trial.round

    def timed(trial: Any) -> int:
        clock.now += clock.seconds[str(trial.placement)].pop(0)
        return real(trial)

    monkeypatch.setattr(auto._Trial, "round", timed)
    monkeypatch.setattr(auto, "LIMIT_S", limit_s)
    return auto.choose("CartPole-v1", RECIPE, None, 0, among=(CPU, BOTH), clock=clock)


def test_auto_takes_what_was_measured_faster_and_tells_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """C03: by rates, not by names. The first rounds, which pay for the start, don't count (C105)."""
    steps = 16 * 2
    choice = choose({"cpu": [0.1] * 7, "cpu+cpu": [90.07, 9.0] + [0.05] * 5}, monkeypatch)
    assert choice.placement == BOTH
    # The first round's steps include resets, so that the rates are near those of full rollouts.
    assert choice.rates["cpu"].median == pytest.approx(steps / 0.1, rel=0.1)
    assert choice.note.startswith("placement auto: cpu+cpu, of cpu 3")
    assert choice.note.endswith("steps/s (medians of 5 rounds, 100.0 s)")


def test_auto_stays_with_the_simplest_where_the_spread_covers_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """C08."""
    noisy = [0.1, 0.1, 0.10, 0.12, 0.08, 0.13, 0.09]
    other = [0.1, 0.1, 0.09, 0.13, 0.07, 0.10, 0.12]
    assert choose({"cpu": noisy, "cpu+cpu": other}, monkeypatch).placement == CPU


def test_auto_measures_less_where_rounds_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose({"cpu": [20.0] * 7, "cpu+cpu": [60.0] * 7}, monkeypatch, limit_s=30.0)
    assert [rate.n for rate in choice.rates.values()] == [3, 3]
    assert choice.placement == CPU


def test_auto_trains_neither_the_user_s_network_nor_on_the_user_s_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridrl import auto

    monkeypatch.setattr(auto, "candidates", lambda: (CPU, BOTH))
    network = hrl.networks.ActorCritic(4, hrl.networks.CategoricalHead(2), NetworkConfig(hidden=(8,)))
    before = [p.detach().clone() for p in network.parameters()]
    made = hrl.PPO("CartPole-v1", RECIPE, network=network, placement="auto")
    assert all(map(torch.equal, before, network.parameters()))
    assert made.timesteps == 0
    vector = hrl.envs.make(lambda: CountingEnv(5), 2)
    with pytest.raises(ValueError, match=r"placement='auto' measures on environments of its own: give an id"):
        hrl.PPO(vector._env, RECIPE, placement="auto")


def test_auto_tries_the_cpu_and_each_accelerator_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridrl import auto

    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda", "cuda:1"))
    names = [str(placement) for placement in auto.candidates()]
    assert names == ["cpu", "cpu+cuda", "cuda", "cpu+cuda:1", "cuda:1"]


@pytest.mark.parametrize(
    ("placement", "waited_for"),
    [
        ("cpu", set()),
        ("cpu+cuda", {"transfer", "learn", "returns", "update", "publish"}),
        ("cuda", {"collect", "act", "env", "store", "transfer", "learn", "returns", "update", "publish"}),
    ],
)
def test_only_phases_that_give_a_device_work_wait_for_it(
    placement: str, waited_for: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C104, C108: acting on the host isn't slowed by a device that it doesn't use."""
    from hybridrl.assembly import make_timer

    waits: list[None] = []
    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(
        devices, "synchronizer", lambda device: None if device.type == "cpu" else lambda: waits.append(None)
    )
    timer = make_timer(Placement.parse(placement))
    waiting = set()
    with timer.run():
        for name in ("collect", "act", "env", "store", "transfer", "learn", "returns", "update", "publish"):
            waits.clear()
            with timer.phase(name):
                pass
            waiting |= {name} if len(waits) == 2 else set()
    assert waiting == waited_for


# What the fresh weights are, and where rollouts are stored


def halve(made: hrl.PPO) -> None:
    with torch.no_grad():
        for parameter in made.policy.parameters():
            parameter.mul_(0.5)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_others_change_in_the_policy_is_acted_with_at_once(placement: str) -> None:
    made, observation = agent(placement), np.random.default_rng(0).normal(size=(50, 4))
    made.learn(total_timesteps=110)
    other = agent("cpu")
    other.policy.load_state_dict(made.policy.state_dict())
    halve(other)
    made.policy.load_state_dict(other.policy.state_dict())
    actions = [one.predict(observation, deterministic=True)[0] for one in (made, other)]
    np.testing.assert_array_equal(*actions)


def test_a_callback_that_changes_weights_does_so_in_both_memories() -> None:
    runs = []
    for placement in PLACEMENTS:
        made = agent(placement)
        runs.append(made.learn(total_timesteps=200, callback=lambda _, made=made: halve(made)))  # type: ignore[misc]
    assert runs[0].updates == runs[1].updates
    assert runs[0].returns == runs[1].returns


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_copied_agent_trains_by_itself(placement: str) -> None:
    import copy

    made = agent(placement)
    made.learn(total_timesteps=110)
    twin = copy.deepcopy(made)
    results = [one.learn(total_timesteps=110) for one in (made, twin)]
    assert results[0].updates == results[1].updates
    assert same(state(made), state(twin))
    made.learn(total_timesteps=110)
    assert not same(state(made), state(twin))


def test_a_move_that_fails_leaves_the_agent_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridrl import assembly

    stayed, tried = agent("cpu"), agent("cpu")
    for one in (stayed, tried):
        one.learn(total_timesteps=110)
    real = assembly.make_storage

    def refuse(environments: Any, recipe: Any, placement: Placement) -> Any:
        if placement.separate:
            raise ValueError("a rollout of 10.0 GiB doesn't fit on cuda")
        return real(environments, recipe, placement)

    monkeypatch.setattr(assembly, "make_storage", refuse)
    with pytest.raises(ValueError, match="doesn't fit on cuda"):
        tried.move("cpu+cpu")
    assert str(tried.placement) == "cpu"
    results = [one.learn(total_timesteps=110) for one in (stayed, tried)]
    assert results[0].updates == results[1].updates
    assert same(state(stayed), state(tried))


def test_rollouts_stored_on_the_host_reach_a_learner_that_acts_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device for the policy, the host for the rollouts: they are brought by one copy, weights aren't."""
    from hybridrl.execution import StoredApart
    from hybridrl.execution.bridge import make_bridge

    made = agent("cpu")
    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(devices, "resolve", lambda name: torch.device("cpu"))
    placement = Placement("cuda", "cuda", store="cpu")
    flat = made.learner.flat
    bridge = make_bridge(placement, made.collector.storage, learnt=flat, acting=flat)
    assert isinstance(bridge, StoredApart)
    rollout, _ = made.collector.collect(16)
    delivered = bridge.deliver(rollout, timer=NullTimer())
    assert torch.equal(delivered.reward, rollout.reward)
    assert delivered.reward.data_ptr() != rollout.reward.data_ptr()
    version = bridge.version
    bridge.publish(timer=NullTimer())
    assert bridge.version == version + 1


def test_auto_goes_on_without_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridrl import auto

    closed: list[Any] = []
    real = auto.assemble

    def assemble(policy: Any, environments: Any, recipe: Any, placement: Placement, seeds: Any) -> Any:
        if placement.separate:
            close = environments.close
            monkeypatch.setattr(environments, "close", lambda: closed.append(close()))
            raise ValueError("a rollout of 10.0 GiB doesn't fit on cuda")
        return real(policy, environments, recipe, placement, seeds)

    monkeypatch.setattr(auto, "assemble", assemble)
    choice = auto.choose("CartPole-v1", RECIPE, None, 0, among=(CPU, BOTH))
    assert choice.placement == CPU
    assert choice.note.endswith("; didn't fit: cpu+cpu")
    assert len(closed) == 1
    with pytest.raises(ValueError, match="doesn't fit"):
        auto.choose("CartPole-v1", RECIPE, None, 0, among=(BOTH, CPU))


def test_auto_waits_for_the_device_before_it_reads_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """C104: what is queued isn't done."""
    from hybridrl import auto

    waits: list[None] = []
    monkeypatch.setattr(devices, "synchronizer_of_all", lambda used: lambda: waits.append(None))
    with auto._Trial("CartPole-v1", RECIPE, None, 0, CPU) as trial:
        for count in (1, 2):
            trial.round()
            assert len(waits) == count
