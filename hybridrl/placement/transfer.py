"""Moving things between devices: the one function for any batch, and the one for a module with its optimisers."""

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hybridrl.placement import devices

T = TypeVar("T")


def move(tree: T, device: torch.device | str, *, non_blocking: bool = False) -> T:
    """Move every tensor of a batch, whatever it is made of.

    Tensors, tuples (named ones too), lists, mappings and dataclasses are followed; anything else is passed through. A
    module is moved in place. What is there already is returned as it is, without a copy.

    Args:
        tree: the batch.
        device: where to.
        non_blocking: let the copy run beside the host's work, where the source is page-locked. Leave the source alone
            until it has ended, and don't read a copy *to* the host before a synchronisation.

    Returns:
        The same structure; tensors on the device.

    Raises:
        ValueError: the device isn't here.
    """
    return _move(tree, _resolved(device), non_blocking)  # type: ignore[no-any-return]


def _move(tree: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(tree, Tensor | nn.Module):
        return tree.to(device, non_blocking=non_blocking)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_move(value, device, non_blocking) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(_move(value, device, non_blocking) for value in tree)
    if isinstance(tree, MutableMapping):
        moved = copy.copy(tree)  # a defaultdict keeps its factory
        moved.update({key: _move(value, device, non_blocking) for key, value in tree.items()})
        return moved
    if isinstance(tree, Mapping):
        return type(tree)({key: _move(value, device, non_blocking) for key, value in tree.items()})  # type: ignore[call-arg]
    if is_dataclass(tree) and not isinstance(tree, type):
        made: Any = copy.copy(tree)  # not by its constructor, which may compute
        for field in fields(tree):
            object.__setattr__(made, field.name, _move(getattr(tree, field.name), device, non_blocking))
        return made
    return tree


def _resolved(device: torch.device | str) -> torch.device:
    """A name as what is here; the meta device, which holds no numbers, is everywhere."""
    if isinstance(device, torch.device) or device == "meta":
        return torch.device(device)
    return devices.resolve(device)


def to_host(tensor: Tensor) -> Tensor:
    """A tensor's values in host memory, safe to read: it waits for them. On the host already: the tensor itself."""
    return tensor.detach().cpu()


def copy_to(tensor: Tensor, device: torch.device | str, *, non_blocking: bool = False) -> Tensor:
    """A copy in new memory on a device, also where the tensor is there already: between two memories of one device.

    Args:
        tensor: on any device.
        device: where to.
        non_blocking: as for :func:`move`.
    """
    return tensor.to(device, non_blocking=non_blocking, copy=True)


def pin(tensor: Tensor) -> Tensor:
    """A copy in new page-locked host memory, from which copies to a GPU run at full speed and beside other work.

    Page-locking is slow, and even where torch has a page-locked block left to reuse, filling it is a copy more. To
    save time, keep what is pinned and write into it, as :class:`~hybridrl.data.arena.Arena` does.

    Args:
        tensor: on the host.

    Raises:
        ValueError: no accelerator is here, for whose sake memory is page-locked.
    """
    if devices.accelerator() is None:
        raise ValueError("page-locked memory needs an accelerator, and none is here: leave pinning out")
    return tensor.pin_memory()


def move_training(
    module: nn.Module,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    device: torch.device | str,
) -> None:
    """Move a module and the optimisers that train it, in place.

    ``module.to(device)`` alone leaves the optimisers' moments behind, and the next step fails, or, where the move gave
    the module new parameters, trains the old ones. Tensors that are plain attributes, not buffers, stay: see
    :func:`left_behind`.

    Args:
        module: to move.
        optimizers: one or several, made of the module's parameters, and perhaps of others'.
        device: where to.

    Raises:
        ValueError: the device isn't here, or an optimiser has none of the module's parameters.
    """
    several = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    before = dict(module.named_parameters())
    _check_theirs(several, {id(parameter) for parameter in before.values()})
    module.to(_resolved(device))
    moved = {id(before[name]): new for name, new in module.named_parameters() if name in before}
    for optimizer in several:
        state = optimizer.state_dict()  # by position, so that it survives new parameters
        for group in optimizer.param_groups:
            group["params"] = [moved.get(id(parameter), parameter) for parameter in group["params"]]
        optimizer.state.clear()
        optimizer.load_state_dict(state)  # takes each tensor to its parameter; a step count only where it must


def _check_theirs(optimizers: Iterable[torch.optim.Optimizer], parameters: set[int]) -> None:
    for optimizer in optimizers:
        if not any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                f"a {type(optimizer).__name__} has none of the module's parameters: give the optimiser that trains it"
            )


def left_behind(root: object, device: torch.device | str) -> list[str]:
    """Where tensors that aren't on a device are kept: what a move forgot.

    Args:
        root: an agent, a module, an optimiser: every attribute, item and element below it is followed.
        device: where everything should be.

    Returns:
        Paths such as ``.policy.scale``, in order of discovery.
    """
    wanted = _resolved(device)
    found: list[str] = []
    seen: set[int] = set()
    queue: list[tuple[str, Any]] = [("", root)]
    while queue:
        path, value = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.device.type != wanted.type or (wanted.index is not None and value.device != wanted):
                found.append(path)
            continue
        queue += [(path + step, child) for step, child in _children(value)]
    return found


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r:.40}]", child) for key, child in value.items()]
    if isinstance(value, tuple | list | set | frozenset):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if type(value).__module__.partition(".")[0] in ("builtins", "numpy"):
        return []
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    named = dict(getattr(value, "__dict__", {})) | {name: getattr(value, name) for name in slots}
    return [(f".{name}", child) for name, child in named.items()]


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))
