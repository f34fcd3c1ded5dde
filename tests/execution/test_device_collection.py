"""Collecting with the policy on a device: the same rollouts as on the host, and what crosses for them.

On the CPU, "cpu:0" is a device that isn't the host's "cpu" to storage and actor, so that their paths are the device's.
"""

import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridrl import envs
from hybridrl.data import RolloutStorage
from hybridrl.execution import Collector, DeviceActor, HostActor, actor
from hybridrl.networks import ActorCritic, CategoricalHead, NetworkConfig, ObservationNormalizer, Policy
from hybridrl.placement.memories import TwoMemories
from hybridrl.profiling import NullTimer, PhaseTimer, Timer
from hybridrl.testing import CountingEnv

DEVICE = torch.device("cpu:0")
ROWS = 9
STEPS = ROWS + 2  # two on which every environment only reset: acted, but not stored
FIELDS = ("observation", "action", "log_prob", "value", "next_value", "reward", "terminated", "truncated", "valid")


def policy() -> Policy:
    torch.manual_seed(1)
    head = CategoricalHead(2)
    return Policy(ActorCritic(1, head, NetworkConfig(hidden=(8,))), head, ObservationNormalizer((1,)))


def environments(autoreset: Literal["next_step", "same_step"]) -> envs.Environments:
    return envs.make(lambda: CountingEnv(4, truncates=True), 3, autoreset=autoreset)


def storage(device: torch.device) -> RolloutStorage:
    action = ((), torch.int64)
    return RolloutStorage(ROWS, 3, observation_shape=(1,), observation_dtype=np.float32, action=action, device=device)


def collector(made: envs.Environments, kind: str, timer: Timer | None = None) -> Collector:
    generator = torch.Generator().manual_seed(2)
    where = DEVICE if kind == "stored there" else torch.device("cpu")
    acting: Any = HostActor(policy(), generator)
    if kind != "host":
        acting = DeviceActor(policy(), generator, device=DEVICE, stored_there=kind == "stored there")
    return Collector(made, acting, storage(where), seed=0, timer=timer or NullTimer())


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("kind", ["stored there", "stored here"])
def test_a_device_collects_what_the_host_does(kind: str, autoreset: Literal["next_step", "same_step"]) -> None:
    here, there = collector(environments(autoreset), "host"), collector(environments(autoreset), kind)
    for _ in range(3):
        (expected, finished), (found, also) = here.collect(ROWS), there.collect(ROWS)
        assert finished == also
        for name in FIELDS:
            one, other = getattr(expected, name), getattr(found, name)
            if name == "next_value":  # no meaning where an episode terminated, or in a row that only reset
                counted = expected.valid & ~expected.terminated
                one, other = one[counted], other[counted]
            assert torch.equal(one, other), name
    assert (here.timesteps, here.episodes) == (there.timesteps, there.episodes)
    assert here.timesteps > 0


def test_a_vector_step_is_one_array_in_and_one_out_and_a_rollout_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """C66: an observation in, an action out; the environments' answers follow together, once a rollout."""
    there = collector(environments("next_step"), "stored there")
    kept: Any = there.storage
    acting: Any = there.actor
    staging = acting._make_staging(np.zeros((3, 1), np.float32))
    acting._staging[((3, 1), "<f4")] = staging
    watched = TwoMemories(
        host=[kept._answers.block, *(host.block for host, _, _ in staging._slots)],
        device=[
            kept.arena.block,
            kept._arrivals.block,
            *(block.block for _, block, _ in staging._slots),
            *acting.policy.parameters(),
            *acting.policy.buffers(),
        ],
    )

    def fetched(tensor: Tensor) -> Tensor:
        here = torch.empty_like(tensor)
        watched.claim(here, "host")
        return here.copy_(tensor)

    monkeypatch.setattr(actor, "to_host", fetched)
    with watched:
        there.collect(ROWS)
    # One more observation goes in, for the value of what followed the last row.
    assert watched.crossed("device", "host") == [3 * 8] * STEPS
    assert watched.crossed("host", "device") == [64] * (STEPS + 1) + [kept._answers.nbytes]


def test_what_moves_is_timed_as_transfer() -> None:
    timer = PhaseTimer()
    there = collector(environments("next_step"), "stored there", timer)
    with timer.run():
        there.collect(ROWS)
    rows = {row.label: row.calls for row in timer.report().phases}
    assert rows["act/transfer"] == 2 * STEPS + 1
    assert rows["transfer"] == 1


def test_a_storage_on_a_device_copies_itself_whole() -> None:
    there = collector(environments("next_step"), "stored there")
    rollout, _ = there.collect(ROWS)
    twin = copy.deepcopy(there.storage)
    there.storage.arena.block.fill_(1)
    again = twin.rollout()
    assert len(again) == len(rollout) == ROWS
    assert torch.equal(again.reward, rollout.reward)
    assert not torch.equal(again.value, rollout.value)
    assert again.value.isfinite().all()
