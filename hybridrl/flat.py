"""A network's parameters as one contiguous vector, its gradients as another.

Then an optimiser step is one kernel, clipping is one norm, publishing weights is one copy, averaging a target network
is one ``lerp_`` and a checkpoint is one tensor. The module keeps working as before: its parameters are views.
"""

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn


class _Slot(NamedTuple):
    """One parameter: under which names it stands in the module, and its part of the two vectors."""

    names: tuple[str, ...]
    parameter: nn.Parameter
    start: int
    stop: int
    values: Tensor  # a view of the values, whose memory the parameter shares
    gradient: Tensor | None  # a view of the gradients; None where frozen


class FlatParameters:
    """One vector for a module's parameters and one for their gradients; the module's parameters become views.

    Trainable parameters come first, in the module's order, then frozen ones (``requires_grad=False``), which have no
    gradient and which no optimiser sees. A parameter that stands under two names (weight tying) is stored once. Behind
    them lie the buffers of the same dtype (a normaliser's moments): what is published is one vector, and one copy.

    Optimisers made earlier hold the old parameters: make them afterwards, on :meth:`leaf`. Moving or casting the
    module breaks the views: :meth:`check` notices and raises, and flattening again mends it. The same holds for
    ``load_state_dict(assign=True)``; a plain ``load_state_dict`` copies in place and is safe. So does the module's own
    ``zero_grad``, not the optimiser's: call this object's.
    ``copy.deepcopy`` of this object copies module and vectors together; of the module alone, it gives an ordinary one.

    Args:
        module: any module with at least one trainable parameter, all of one dtype on one device.

    Raises:
        ValueError: there is nothing to train, or dtypes or devices are mixed.

    Attributes:
        module: the module, now made of views.
        state: ``[P + B]``, every parameter and buffer.
        values: ``[P]``, every parameter; the first part of ``state``.
        gradients: ``[P_trainable]``.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = _unique_parameters(module)
        _check_uniform({names[0]: parameter for parameter, names in named})
        ordered = sorted(named, key=lambda item: not item[0].requires_grad)  # stable: trainable first
        buffers = _buffers_like(module, ordered[0][0])
        self.state = torch.cat(
            [tensor.detach().reshape(-1) for tensor in [*(p for p, _ in ordered), *buffers.values()]]
        )
        count = sum(parameter.numel() for parameter, _ in ordered)
        self.values = self.state[:count]
        trainable = sum(p.numel() for p, _ in ordered if p.requires_grad)
        self.gradients = torch.zeros_like(self.values[:trainable])
        self._leaves: list[tuple[nn.Parameter, Tensor]] = []
        self._slots = list(self._install(ordered))
        self._trainable = [slot for slot in self._slots if slot.gradient is not None]
        self._buffers = list(self._install_buffers(buffers, count))
        self.gather_gradients()

    def _install_buffers(self, buffers: dict[str, Tensor], start: int) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """Replace each buffer by its part of the vector; yields its owner, its name there, and the view."""
        for name, old in buffers.items():
            view = self.state[start : start + old.numel()].view(old.shape)
            start += old.numel()
            owner, _, attribute = name.rpartition(".")
            setattr(self.module.get_submodule(owner), attribute, view)
            yield self.module.get_submodule(owner), attribute, view

    def gather_buffers(self) -> None:
        """Bring buffers that the module assigned anew, instead of writing into them, back into the vector."""
        for owner, attribute, view in self._buffers:
            found = getattr(owner, attribute)
            if found is not view:
                view.copy_(found)
                setattr(owner, attribute, view)

    def _install(self, ordered: list[tuple[nn.Parameter, tuple[str, ...]]]) -> Iterator[_Slot]:
        """Replace each parameter by a view: a new object, since assigning ``.data`` is ignored by tensor subclasses."""
        start = 0
        for old, names in ordered:
            stop = start + old.numel()
            view = self.values[start:stop].view(old.shape)
            new = nn.Parameter(view, requires_grad=old.requires_grad)
            new.grad = old.grad
            for name in names:
                owner, _, attribute = name.rpartition(".")
                setattr(self.module.get_submodule(owner), attribute, new)
            gradient = self.gradients[start:stop].view(old.shape) if old.requires_grad else None
            yield _Slot(names, new, start, stop, view, gradient)
            start = stop

    def __deepcopy__(self, memo: dict[int, object]) -> "FlatParameters":
        """Copy the module, then flatten the copy: copied views would each get storage of their own."""
        duplicate = FlatParameters(copy.deepcopy(self.module, memo))
        duplicate.gradients.copy_(self.gradients)
        for leaf, _ in self._leaves:  # an optimiser that is copied after this takes the copy's leaves
            start = int(leaf.storage_offset())
            memo[id(leaf)] = duplicate._leaf(start, start + leaf.numel())
        return duplicate

    def check(self) -> None:
        """Raise unless every parameter of the module still is its view of the vector.

        Raises:
            ValueError: the module was moved, cast, frozen or given other parameters since it was flattened.
        """
        found = dict(self.module.named_parameters(remove_duplicate=False))
        for slot in self._slots:
            if any(found.pop(name, None) is not slot.parameter for name in slot.names) or not _is_view(slot):
                raise ValueError(
                    f"parameter {slot.names[0]!r} is no longer a view of the flat vector (the module was moved, cast, "
                    f"frozen or had parameters assigned): call FlatParameters(module) again after such a change"
                )
        if found:
            raise ValueError(
                f"parameter {next(iter(found))!r} was added after the module was flattened: "
                f"call FlatParameters(module) again after such a change"
            )

    def zero_grad(self) -> None:
        """Zero all gradients with one kernel, and make each parameter's ``.grad`` its view again.

        Raises:
            ValueError: as :meth:`check`, where a parameter has other memory than its view.
        """
        self.gradients.zero_()
        for slot in self._trainable:
            if slot.parameter.data_ptr() != slot.values.data_ptr():
                self.check()
            slot.parameter.grad = slot.gradient
        for leaf, part in self._leaves:
            leaf.grad = part

    def gather_gradients(self) -> None:
        """Bring gradients that autograd put elsewhere into the vector.

        ``module.zero_grad()`` sets each ``.grad`` to None by default, after which a backward pass allocates new ones.
        Those are copied here and replaced by views; a parameter that got no gradient counts as zero.

        Raises:
            ValueError: a leaf has lost its gradient to the optimiser's ``zero_grad()``, which left the module's alone.
        """
        for leaf, part in self._leaves:
            if leaf.grad is not part:
                raise ValueError(
                    "the optimiser's zero_grad() took the flat gradient away, and would accumulate over steps: "
                    "call FlatParameters.zero_grad() instead"
                )
        for slot in self._trainable:
            gradient, view = slot.parameter.grad, slot.gradient
            if gradient is view or view is None:
                continue
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)
            slot.parameter.grad = view

    def clip_gradients_(self, max_norm: float) -> Tensor:
        """Scale the gradient down to a norm of at most ``max_norm``, without reading it on the host.

        Args:
            max_norm: above 0; infinity only measures.

        Returns:
            Scalar, the norm before clipping.
        """
        norm: Tensor = torch.linalg.vector_norm(self.gradients)
        self.gradients.mul_((max_norm / (norm + 1e-6)).clamp_max(1.0))
        return norm

    def leaf(self, *, prefix: str = "", without: str | None = None) -> nn.Parameter:
        """Part of the vector as one parameter for an optimiser: :meth:`leaves`, where there is just one.

        Raises:
            ValueError: nothing trainable is left, or what is left isn't contiguous.
        """
        parts = self.leaves(prefix=prefix, without=without)
        if len(parts) > 1:
            raise ValueError(
                f"parameters with prefix {prefix!r} without {without!r} aren't adjacent: define them together, or "
                "take their leaves()"
            )
        return parts[0]

    def leaves(self, *, prefix: str = "", without: str | None = None) -> list[nn.Parameter]:
        """Parts of the vector as parameters for an optimiser, their ``.grad`` the same parts of the gradients.

        Args:
            prefix: take trainable parameters whose name starts with it, such as ``"critic."``; empty takes all.
            without: leave out those whose name starts with this.

        Returns:
            One parameter ``[K]`` for each contiguous stretch; they share this object's memory.

        Raises:
            ValueError: nothing trainable is left.
        """
        stretches: list[tuple[int, int]] = []
        for slot in self._trainable:
            if not _wanted(slot.names[0], prefix, without):
                continue
            if stretches and stretches[-1][1] == slot.start:
                stretches[-1] = (stretches[-1][0], slot.stop)
            else:
                stretches.append((slot.start, slot.stop))
        if not stretches:
            names = ", ".join(slot.names[0] for slot in self._trainable)
            raise ValueError(f"no trainable parameter has prefix {prefix!r} without {without!r}; there are: {names}")
        return [self._leaf(start, stop) for start, stop in stretches]

    def _leaf(self, start: int, stop: int) -> nn.Parameter:
        part = nn.Parameter(self.values[start:stop])
        part.grad = self.gradients[start:stop]
        self._leaves.append((part, part.grad))
        return part

    def copy_(self, source: "FlatParameters") -> None:
        """Take another module's parameters and buffers: how weights are published, by one copy.

        Buffers of another dtype than the parameters' (a counter of batches) are copied one by one.

        Args:
            source: of a module of the same architecture, on any device.

        Raises:
            ValueError: the two differ in size.
        """
        self._check_matches(source)
        source.gather_buffers()
        self.gather_buffers()
        self.state.copy_(source.state)
        carried = {id(view) for _, _, view in self._buffers}
        for mine, theirs in zip(self.module.buffers(), source.module.buffers(), strict=True):
            if id(mine) not in carried:
                mine.copy_(theirs)

    def lerp_(self, source: "FlatParameters", weight: float) -> None:
        r"""Move towards another vector, :math:`\theta \leftarrow \theta + \tau (\theta' - \theta)`: target averaging.

        Args:
            source: of a module of the same architecture, on the same device.
            weight: tau, in [0, 1].

        Raises:
            ValueError: the two differ in size.
        """
        self._check_matches(source)
        self.values.lerp_(source.values, weight)

    def _check_matches(self, source: "FlatParameters") -> None:
        if self.values.shape != source.values.shape or self.state.shape != source.state.shape:
            raise ValueError(
                f"got a flat vector of {source.values.numel()} parameters, expected {self.values.numel()}: "
                "both modules must have one architecture"
            )


def _wanted(name: str, prefix: str, without: str | None) -> bool:
    return name.startswith(prefix) and not (without is not None and name.startswith(without))


def _unique_parameters(module: nn.Module) -> list[tuple[nn.Parameter, tuple[str, ...]]]:
    """Each parameter once, with all its names."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [(parameter, tuple(found)) for parameter, found in names.items()]


def _buffers_like(module: nn.Module, parameter: Tensor) -> dict[str, Tensor]:
    """The buffers that fit into the parameters' vector, by name; one that stands under two names stays where it is."""
    names: dict[int, list[str]] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        names.setdefault(id(buffer), []).append(name)
    return {
        name: buffer
        for name, buffer in module.named_buffers()
        if buffer.dtype == parameter.dtype and buffer.device == parameter.device and len(names[id(buffer)]) == 1
    }


def _check_uniform(named: dict[str, nn.Parameter]) -> None:
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ValueError("the module has no trainable parameter; expected at least one with requires_grad=True")
    kinds = {(parameter.dtype, parameter.device) for parameter in named.values()}
    if len(kinds) > 1:
        listed = ", ".join(f"{name}: {p.dtype} on {p.device}" for name, p in named.items())
        raise ValueError(
            f"mixed parameters ({listed}); expected one dtype on one device: cast or move the module first"
        )


def _is_view(slot: _Slot) -> bool:
    mine, view = slot.parameter, slot.values
    return (
        mine.data_ptr() == view.data_ptr()
        and (mine.dtype, mine.device) == (view.dtype, view.device)
        and mine.requires_grad == (slot.gradient is not None)
    )
