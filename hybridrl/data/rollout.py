"""A rollout: what one round of on-policy acting leaves for the learner, ``[T, N]`` in time and environments."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybridrl.data.arena import arena_views
from hybridrl.envs import Step
from hybridrl.networks import Decision


@dataclass(frozen=True, slots=True)
class Rollout:
    """Typed views of T written rows; nothing is copied.

    A row that isn't ``valid`` is no transition: the environment spent that step on resetting (NEXT_STEP autoreset).
    It stays in place, so that time runs straight down each column, and the learner leaves it out.
    """

    observation: Tensor  # [T, N, *shape], in the environment's dtype, not normalised
    action: Tensor  # int64 [T, N], or float32 [T, N, A]: as sampled, before clipping or scaling
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


class RolloutStorage:
    """Room for ``rows`` x ``num_envs`` steps in one arena, written in place.

    Args:
        rows: T at most.
        num_envs: N.
        observation_shape: of one observation.
        observation_dtype: as the environment gives it; uint8 stays uint8.
        action: shape and dtype of one action in the network's terms, such as ``((), torch.int64)``.

    Raises:
        ValueError: ``rows`` or ``num_envs`` is below 1.
    """

    def __init__(
        self,
        rows: int,
        num_envs: int,
        *,
        observation_shape: tuple[int, ...],
        observation_dtype: npt.DTypeLike,
        action: tuple[tuple[int, ...], torch.dtype],
    ) -> None:
        if rows < 1 or num_envs < 1:
            raise ValueError(f"rows={rows}, num_envs={num_envs}: expected at least 1 of each")
        steps, floats = (rows, num_envs), torch.float32
        dtype = torch.from_numpy(np.empty(0, observation_dtype)).dtype
        layout = {"observation": ((*steps, *observation_shape), dtype), "action": ((*steps, *action[0]), action[1])}
        layout |= dict.fromkeys(("log_prob", "value", "next_value", "reward"), (steps, floats))
        layout |= dict.fromkeys(("terminated", "truncated", "valid"), (steps, torch.bool))
        self.arena, views = arena_views(layout)
        self._full = Rollout(**views)
        self._observation, self._reward, self._terminated, self._truncated, self._valid = (
            views[name].numpy() for name in ("observation", "reward", "terminated", "truncated", "valid")
        )
        self.rows, self.written = rows, 0
        self._made = (rows, num_envs, observation_shape, observation_dtype, action)

    def __deepcopy__(self, memo: dict[int, object]) -> "RolloutStorage":
        """Copy the arena, then cut it anew: copied views would each get memory of their own."""
        rows, num_envs, shape, dtype, action = self._made
        duplicate = RolloutStorage(rows, num_envs, observation_shape=shape, observation_dtype=dtype, action=action)
        duplicate.arena.copy_(self.arena)
        duplicate.written = self.written
        return duplicate

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.numel()

    def clear(self) -> None:
        """Forget what was written; memory and views stay."""
        self.written = 0

    def write(self, observation: npt.NDArray[np.generic], decision: Decision, step: Step) -> int:
        """Write one row.

        Args:
            observation: ``[N, *shape]``, what was acted on.
            decision: what the policy said to it.
            step: what the environments answered.

        Returns:
            The row's index, for :meth:`write_next_value`.

        Raises:
            IndexError: the storage is full.
        """
        row = self.written
        if row == self.rows:
            raise IndexError(f"all {self.rows} rows are written: call clear() after each rollout, or ask for more rows")
        self._observation[row] = observation
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
        return Rollout(*(getattr(self._full, f.name)[: self.written] for f in fields(Rollout)))
