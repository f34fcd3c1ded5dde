"""Two memories on one CPU, kept apart as two devices keep theirs."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MixedMemories(AssertionError):
    """One operation read from, or wrote to, two memories that a real machine couldn't join."""


class TwoMemories(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every operation, as two devices would: tensors belong to memories, and only copies may cross.

    On one CPU, nothing stops code from adding a tensor of the actor to one of the learner. Under this mode it raises.
    Results belong to the memory of their inputs; what is made from nothing belongs to none until it meets one.

        with TwoMemories(host=[observations], device=[weights]) as watched:
            ...
        watched.crossings   # every copy as [("host", "device", 4096), ...], in bytes

    Args:
        memories: name -> tensors whose storages it owns.

    Attributes:
        crossings: source, destination and bytes of every copy between two memories, in order.
    """

    def __init__(self, **memories: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner: dict[int, str] = {}
        self._kept: list[Tensor] = []  # alive, so that no storage's address is used twice
        self.crossings: list[tuple[str, str, int]] = []
        for name, tensors in memories.items():
            for tensor in tensors:
                self.claim(tensor, name)

    def crossed(self, source: str, destination: str) -> list[int]:
        """Bytes of each copy in one direction."""
        return [size for a, b, size in self.crossings if (a, b) == (source, destination)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and see whose tensors it joins."""
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default and self._crosses(*args[:2]):
            target, source = args[:2]
            self.crossings.append((self._of(source), self._of(target), source.numel() * source.element_size()))
            return result
        found = self._owners(args, kwargs or {})
        if len(found) > 1:
            raise MixedMemories(f"{func} joins tensors of {' and '.join(sorted(found))}")
        for owner in found:
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor) and not self._of(tensor):
                    self.claim(tensor, owner)
        return result

    def _crosses(self, target: Tensor, source: Tensor) -> bool:
        return "" not in (self._of(target), self._of(source)) and self._of(target) != self._of(source)

    def _owners(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # A number without dimensions may come from the host, as CUDA allows.
        return {self._of(leaf) for leaf in leaves if leaf.dim() > 0} - {""}

    def _of(self, tensor: Tensor) -> str:
        return self._owner.get(tensor.untyped_storage().data_ptr(), "")

    def claim(self, tensor: Tensor, name: str) -> None:
        """Let a memory own a tensor's storage."""
        if tensor.untyped_storage().nbytes():
            self._owner[tensor.untyped_storage().data_ptr()] = name
            self._kept.append(tensor)
