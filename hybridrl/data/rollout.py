"""A rollout: what one round of on-policy acting leaves for the learner, ``[T, N]`` in time and environments."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybridrl.data.arena import Arena
from hybridrl.envs import Step
from hybridrl.networks import Decision


@dataclass(frozen=True, slots=True)
class Rollout:
    """Typed views of T written rows; nothing is copied.

    A row that isn't ``valid`` is no transition: the environment spent that step on resetting (NEXT_STEP autoreset).
    It stays in place, so that time runs straight down each column, and the learner leaves it out.
    """

    observation: Tensor  # [T, N, *shape], in the environment's dtype, not normalised
    action: Tensor  # int64 [T, N] or [T, N, A], or float32 [T, N, A]: as sampled, before clipping or scaling
    log_prob: Tensor  # float32 [T, N], of that action under the behaviour policy
    value: Tensor  # float32 [T, N], of the observation, by the behaviour policy's critic
    next_value: Tensor  # float32 [T, N], of what followed, before any reset; no meaning where terminated
    reward: Tensor  # float32 [T, N], raw
    terminated: Tensor  # bool [T, N]
    truncated: Tensor  # bool [T, N]
    valid: Tensor  # bool [T, N]

    def __len__(self) -> int:
        """Rows T."""
        return len(self.reward)


class Mark(Protocol):
    """A place in a device's queue of work, such as a CUDA event."""

    def record(self) -> object:
        """Put the mark behind what is queued now."""

    def synchronize(self) -> object:
        """Wait until the device has passed it."""


_HOST = torch.device("cpu")
_ACTED = ("observation", "action", "log_prob", "value", "next_value")
"""What acting makes, where the policy is; the environments' answers are always made on the host."""


class RolloutStorage:
    """Room for ``rows`` x ``num_envs`` steps, written in place, one arena for all.

    Stored on an accelerator, what acting made stays there; what the environments answered is gathered on the host and
    follows with one copy a rollout, in :meth:`rollout`.

    Args:
        rows: T at most.
        num_envs: N.
        observation_shape: of one observation.
        observation_dtype: as the environment gives it; uint8 stays uint8.
        action: shape and dtype of one action, such as ``((), torch.int64)``.
        device: where rollouts are stored.
        pin: page-lock what is on the host, for copies to a GPU.

    Raises:
        ValueError: ``rows`` or ``num_envs`` is below 1, or the arena doesn't fit.

    Attributes:
        device: as given.
        arena: the fields that are stored where the policy acts; on the host, all of them.
    """

    def __init__(
        self,
        rows: int,
        num_envs: int,
        *,
        observation_shape: tuple[int, ...],
        observation_dtype: npt.DTypeLike,
        action: tuple[tuple[int, ...], torch.dtype],
        device: torch.device = _HOST,
        pin: bool = False,
    ) -> None:
        if rows < 1 or num_envs < 1:
            raise ValueError(f"rows={rows}, num_envs={num_envs}: expected at least 1 of each")
        steps, (action_shape, action_dtype) = (rows, num_envs), action
        dtype = torch.from_numpy(np.empty(0, observation_dtype)).dtype
        layout = {
            "observation": ((*steps, *observation_shape), dtype),
            "action": ((*steps, *action_shape), action_dtype),
        }
        layout |= dict.fromkeys(("log_prob", "value", "next_value", "reward"), (steps, torch.float32))
        layout |= dict.fromkeys(("terminated", "truncated", "valid"), (steps, torch.bool))
        self.rows, self.written, self._layout = rows, 0, layout
        self._allocate(device, pin)

    def _allocate(self, device: torch.device, pin: bool) -> None:
        on_host = device == _HOST
        told = {name: field for name, field in self._layout.items() if name not in _ACTED}
        kept = self._layout if on_host else {name: self._layout[name] for name in _ACTED}
        self.arena = Arena(kept, device=device, pin=pin and on_host)
        self._answers = self.arena if on_host else Arena(told, pin=pin)
        self._arrivals = None if on_host else Arena(told, device=device)
        self._full = Rollout(**self.arena.views | (self._arrivals.views if self._arrivals else {}))
        self._reward, self._terminated, self._truncated, self._valid = (
            self._answers.views[name].numpy() for name in ("reward", "terminated", "truncated", "valid")
        )
        self._observation = self._full.observation.numpy() if on_host else None
        self.device, self._pin = device, pin
        self._mark: Mark | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> "RolloutStorage":
        """Copy the arena, then cut it anew: copied views would each get memory of their own."""
        duplicate = RolloutStorage.__new__(RolloutStorage)
        duplicate.rows, duplicate.written, duplicate._layout = self.rows, self.written, self._layout
        duplicate._allocate(self.device, self._pin)
        duplicate.arena.copy_(self.arena)
        if self._answers is not self.arena:
            duplicate._answers.copy_(self._answers)
        for mine, theirs in zip((*self.parts, self._answers), (*duplicate.parts, duplicate._answers), strict=True):
            memo[id(mine)] = theirs  # who is copied after this, and reads these, reads the copies
        return duplicate

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.nbytes

    @property
    def transitions(self) -> int:
        """Rows times environments written since the last :meth:`clear`, without those that only reset."""
        return int(self._valid[: self.written].sum())

    @property
    def parts(self) -> tuple[Arena, ...]:
        """The arenas that together hold every field, where they are stored."""
        return (self.arena,) if self._arrivals is None else (self.arena, self._arrivals)

    @property
    def gathers(self) -> bool:
        """Whether :meth:`rollout` has something to bring from the host."""
        return self._arrivals is not None

    def guard(self, mark: Mark) -> None:
        """Let nothing be overwritten before a device has passed this mark: it still reads."""
        self._mark = mark

    def clear(self) -> None:
        """Forget what was written; memory and views stay. Waits for whoever still reads them."""
        if self._mark is not None:
            self._mark.synchronize()
            self._mark = None
        self.written = 0

    def write(self, observation: npt.NDArray[np.generic] | Tensor, decision: Decision, step: Step) -> int:
        """Write one row.

        Args:
            observation: ``[N, *shape]``, what was acted on; a tensor where rollouts are stored on an accelerator.
            decision: what the policy said to it, on the storage's device.
            step: what the environments answered.

        Returns:
            The row's index, for :meth:`write_next_value`.

        Raises:
            IndexError: the storage is full.
        """
        row = self.written
        if row == self.rows:
            raise IndexError(f"all {self.rows} rows are written: call clear() after each rollout, or ask for more rows")
        # Through NumPy where that is possible: an assignment costs a fifth of torch's.
        column: Any = self._full.observation if self._observation is None else self._observation
        column[row] = observation
        # Detached: storing a tensor with a graph would make the whole arena part of that graph, and keep it alive.
        self._full.action[row] = decision.action.detach()
        self._full.log_prob[row], self._full.value[row] = decision.log_prob.detach(), decision.value.detach()
        self._reward[row], self._valid[row] = step.reward, step.valid
        self._terminated[row], self._truncated[row] = step.terminated, step.truncated
        self.written = row + 1
        return row

    def write_next_value(self, row: int, value: Tensor) -> None:
        """Write the values ``[N]`` of the observations that followed a row."""
        self._full.next_value[row] = value.detach()

    def rollout(self) -> Rollout:
        """Views of the rows written since the last :meth:`clear`; they change with the next rollout."""
        if self._arrivals is not None:
            self._arrivals.copy_(self._answers)  # blocking: the next rollout overwrites the source
        return first_rows(self._full, self.written)


class RolloutCopy:
    """The learner's own copy of a storage's rows, in another memory: filled by one copy a rollout.

    The whole arena is copied, written or not: a part of the rows would be one copy a field.

    Args:
        storage: where the rows are written.
        device: where the learner computes; the same device gives a second memory on it.
        event: makes a mark in the device's queue: the storage isn't written before the copy has passed it.
    """

    def __init__(self, storage: RolloutStorage, device: torch.device, *, event: Callable[[], Mark]) -> None:
        self.storage, self._device, self._event = storage, device, event
        self._pairs = [(part.like(device), part) for part in storage.parts]
        self._full = Rollout(**{name: view for mine, _ in self._pairs for name, view in mine.views.items()})

    def __deepcopy__(self, memo: dict[int, object]) -> "RolloutCopy":
        """A copy of the copied storage, in memory of its own."""
        return RolloutCopy(copy.deepcopy(self.storage, memo), self._device, event=self._event)

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """The memory that it fills."""
        return tuple(mine.block for mine, _ in self._pairs)

    @property
    def nbytes(self) -> int:
        """Bytes that one rollout moves."""
        return sum(mine.nbytes for mine, _ in self._pairs)

    def fill(self) -> Rollout:
        """Copy what was written; returns views of the copy, which change with the next rollout."""
        for mine, theirs in self._pairs:
            mine.copy_(theirs, non_blocking=theirs.pinned)
        mark = self._event()
        mark.record()
        self.storage.guard(mark)
        return first_rows(self._full, self.storage.written)


def first_rows(full: Rollout, rows: int) -> Rollout:
    """Views of the first rows of every field."""
    return Rollout(*(getattr(full, f.name)[:rows] for f in fields(Rollout)))
