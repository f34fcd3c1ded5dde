"""The acting policy, wherever it is: observations come from the host, and actions go back to it."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybridrl.networks import Decision, Policy
from hybridrl.placement import devices, to_host
from hybridrl.placement.staging import Staging
from hybridrl.profiling import Timer
from hybridrl.profiling.phases import TRANSFER

Array = npt.NDArray[np.generic]


class Acted(NamedTuple):
    """One answer: what goes into the storage, and what goes to the environments."""

    observation: Array | Tensor  # [N, *shape], where rollouts are stored
    decision: Decision  # [N, ...], where rollouts are stored
    action: Array  # [N] or [N, A], on the host


class Actor(Protocol):
    """Answers observations from the host with a policy on some device."""

    @property
    def policy(self) -> Policy:
        """The acting policy."""

    @property
    def generator(self) -> torch.Generator:
        """Samples actions while training; on the policy's device."""

    def act(self, observation: Array, *, timer: Timer) -> Acted:
        """Sample actions for observations ``[N, *shape]``."""

    def value(self, observation: Array, *, timer: Timer) -> Tensor:
        """Values ``[N]``, where rollouts are stored."""

    def predict(self, observation: Array, *, generator: torch.Generator | None) -> Array:
        """Most probable actions on the host, or with a generator sampled ones."""


class HostActor:
    """A policy on the host: nothing moves.

    Args:
        policy: acts.
        generator: samples its actions.
    """

    def __init__(self, policy: Policy, generator: torch.Generator) -> None:
        self.policy, self.generator = policy, generator

    def act(self, observation: Array, *, timer: Timer) -> Acted:
        """Sample actions for observations ``[N, *shape]``."""
        decision = self.policy.act(torch.from_numpy(observation), generator=self.generator)
        return Acted(observation, decision, decision.action.numpy())

    def value(self, observation: Array, *, timer: Timer) -> Tensor:
        """Values ``[N]``."""
        return self.policy.value(torch.from_numpy(observation))

    def predict(self, observation: Array, *, generator: torch.Generator | None) -> Array:
        """Most probable actions, or with a generator sampled ones."""
        actions: Array = self.policy.predict(torch.from_numpy(observation), generator=generator).numpy()
        return actions


class DeviceActor:
    """A policy on an accelerator: one array goes in and one comes out per vector step.

    Where rollouts are stored beside the policy, only the action comes out; stored on the host, the log-probability and
    the value travel in the same array.

    Args:
        policy: acts.
        generator: samples its actions; on the same device.
        device: of both.
        stored_there: whether rollouts are stored on that device.
    """

    def __init__(self, policy: Policy, generator: torch.Generator, *, device: torch.device, stored_there: bool) -> None:
        self.policy, self.generator = policy, generator
        self._device, self._stored_there = device, stored_there
        self._staging: dict[tuple[tuple[int, ...], str], Staging] = {}

    def act(self, observation: Array, *, timer: Timer) -> Acted:
        """Sample actions for observations ``[N, *shape]``."""
        there = self._send(observation, timer)
        decision = self.policy.act(there, generator=self.generator)
        with timer.phase(TRANSFER):
            here = to_host(decision.action) if self._stored_there else None
            back = decision if here is not None else _fetch(decision)
        return Acted(there if here is not None else observation, back, (back.action if here is None else here).numpy())

    def value(self, observation: Array, *, timer: Timer) -> Tensor:
        """Values ``[N]``, where rollouts are stored."""
        value = self.policy.value(self._send(observation, timer))
        if self._stored_there:
            return value
        with timer.phase(TRANSFER):
            return to_host(value)

    def predict(self, observation: Array, *, generator: torch.Generator | None) -> Array:
        """Most probable actions on the host, or with a generator sampled ones."""
        there = self._staged(observation)
        actions: Array = to_host(self.policy.predict(there, generator=generator)).numpy()
        return actions

    def _send(self, observation: Array, timer: Timer) -> Tensor:
        with timer.phase(TRANSFER):
            return self._staged(observation)

    def _staged(self, observation: Array) -> Tensor:
        """One copy, out of page-locked memory that is kept from step to step."""
        key = (observation.shape, observation.dtype.str)
        if key not in self._staging:
            self._staging[key] = self._make_staging(observation)
        staging = self._staging[key]
        staging.next()["batch"].numpy()[...] = observation
        return staging.send()["batch"]

    def _make_staging(self, observation: Array) -> Staging:
        if len(self._staging) >= _SHAPES_KEPT:  # a caller of predict whose batches come in every size
            del self._staging[next(iter(self._staging))]
        dtype = torch.from_numpy(np.empty(0, observation.dtype)).dtype
        return Staging({"batch": (observation.shape, dtype)}, self._device)


_SHAPES_KEPT = 8


def make_actor(
    policy: Policy, generator: torch.Generator, *, device: torch.device, store: torch.device
) -> HostActor | DeviceActor:
    """The actor for a policy on a device, with rollouts stored on the same or on the host."""
    if device.type == devices.CPU:
        return HostActor(policy, generator)
    return DeviceActor(policy, generator, device=device, stored_there=store == device)


def _fetch(decision: Decision) -> Decision:
    """Bring a whole decision to the host as one array of floats: action, log-probability, value."""
    action = decision.action
    columns = [action.reshape(len(action), -1), decision.log_prob.unsqueeze(-1), decision.value.unsqueeze(-1)]
    # Action numbers are exact in float32 up to 16 million.
    packed = to_host(torch.cat([column.type(torch.float32) for column in columns], -1))
    actions = packed[:, :-2].reshape(action.shape).type(action.dtype).contiguous()
    return Decision(actions, packed[:, -2], packed[:, -1])
