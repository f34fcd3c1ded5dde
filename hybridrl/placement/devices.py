"""The devices of this machine: which there are, and what differs between them.

Everything that the rest of the library needs to know about a kind of device is a function here.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

CPU = "cpu"
_PINNING = ("cuda", "xpu")
"""Kinds whose copies from page-locked host memory run at full speed and beside other work."""
_KINDS = ("cuda", "xpu", "mps")
"""Where torch is too old to be asked for its accelerator."""


class Event(Protocol):
    """A mark in a device's queue of work."""

    def record(self) -> object:
        """Put the mark behind what is queued now."""

    def synchronize(self) -> object:
        """Wait until the device has passed the mark."""


class _Passed:
    """The CPU works at once: every mark has been passed."""

    def record(self) -> None:
        return None

    def synchronize(self) -> None:
        return None


class _OnStreamOf:
    """An event of another device than the current one: torch would record it in the current one's queue."""

    def __init__(self, device: torch.device, made: Any) -> None:
        self._device, self._made = device, made

    def record(self) -> None:
        self._made.record(_module(self._device.type).current_stream(self._device))

    def synchronize(self) -> None:
        self._made.synchronize()

    def elapsed_time(self, end: "_OnStreamOf") -> float:
        return float(self._made.elapsed_time(end._made))


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """A device's memory, in bytes, as torch's allocator sees it. None is unknown."""

    allocated: int | None
    """In live tensors."""
    reserved: int | None
    """Taken from the device: live tensors and what the allocator keeps for the next ones."""


def accelerator() -> str | None:
    """Name of the kind of accelerator that torch can use here (``"cuda"``, ``"mps"``, ``"xpu"``), or None."""
    if hasattr(torch, "accelerator"):
        # Asked apart: torch 2.6 takes no check_available.
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return None if found is None else str(found.type)
    return next((kind for kind in _KINDS if _module(kind).is_available()), None)


def available() -> tuple[str, ...]:
    """Names of the devices that can be asked for, the CPU first; a second GPU is ``"cuda:1"``."""
    kind = accelerator()
    if kind is None:
        return (CPU,)
    return (CPU, kind, *(f"{kind}:{index}" for index in range(1, _module(kind).device_count())))


def canonical(name: str) -> str:
    """The one spelling of a device's name: ``"cuda:0"`` is ``"cuda"``.

    Raises:
        ValueError: there is no such device here; the message says which there are.
    """
    present = available()
    short = str(name).removesuffix(":0")
    if short not in present:
        raise ValueError(f"device {str(name)!r}: {_why_absent(short, present)}this machine has {', '.join(present)}")
    return short


def resolve(name: str) -> torch.device:
    """The torch device of a name.

    Raises:
        ValueError: as :func:`canonical`; nothing falls back to another device.
    """
    kind, _, index = canonical(name).partition(":")
    return torch.device(kind) if kind == CPU else torch.device(kind, int(index or 0))


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """A function that waits for all work queued on a device; None on the CPU, which queues none."""
    if device.type == CPU:
        return None
    module = _module(device.type)
    if device.type == "mps":  # one device, and no parameter to name it by
        return lambda: module.synchronize()
    return lambda: module.synchronize(device)


def synchronizer_of_all(used: Iterable[torch.device]) -> Callable[[], None] | None:
    """A function that waits for all of several devices; None where none of them queues work."""
    waits = [wait for wait in map(synchronizer, used) if wait is not None]
    if len(waits) < 2:
        return waits[0] if waits else None

    def wait_for_all() -> None:
        for wait in waits:
            wait()

    return wait_for_all


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A generator of random numbers on a device. Two kinds of device give two sequences from one seed."""
    return torch.Generator(device).manual_seed(seed)


def restore_generator(generator: torch.Generator, state: torch.Tensor, *, kind: str) -> None:
    """Set a generator to a saved state, or, of another kind of device, to a sequence derived from that state.

    Args:
        generator: to set.
        state: from ``get_state`` of a generator.
        kind: the type of that one's device.

    Raises:
        RuntimeError: the state is of the right kind, but damaged.
    """
    if kind == generator.device.type:
        generator.set_state(state)
    else:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def event(device: torch.device, *, timing: bool = False) -> Event:
    """An event of a device's current stream; on the CPU, one that has always passed.

    Args:
        device: whose queue.
        timing: whether two of them shall tell the time between them.
    """
    if device.type == CPU:
        return _Passed()
    made = torch.Event(device, enable_timing=timing)
    return _OnStreamOf(device, made) if device.index else made


def can_pin(device: torch.device) -> bool:
    """Whether copies to and from a device gain from page-locked host memory."""
    return device.type in _PINNING


def memory(device: torch.device) -> MemoryUse:
    """What torch's allocator holds on a device; unknown on the CPU and where the backend doesn't tell."""
    module: Any = None if device.type == CPU else _module(device.type)
    read = {
        "allocated": ("memory_allocated", "current_allocated_memory"),
        "reserved": ("memory_reserved", "driver_allocated_memory"),  # the second is Apple's word
    }
    return MemoryUse(**{field: _first_reading(module, names, device) for field, names in read.items()})


def release_cached_memory(device: torch.device) -> None:
    """Give unused memory that torch's allocator keeps back to the device. It frees no live tensor.

    Slow, and rarely of use: between a move away from a device and another process's start on it.
    """
    if device.type != CPU and hasattr(_module(device.type), "empty_cache"):
        _module(device.type).empty_cache()


def _module(kind: str) -> Any:
    return torch.get_device_module(kind)


def _first_reading(module: Any, names: tuple[str, ...], device: torch.device) -> int | None:
    for name in names:
        if hasattr(module, name):
            where = () if device.type == "mps" else (device,)
            return int(getattr(module, name)(*where))
    return None


def _why_absent(name: str, present: tuple[str, ...]) -> str:
    """What keeps a device away that somebody expected, where that can be told."""
    kind = name.partition(":")[0]
    if kind in ("gpu", "accelerator"):
        return "name its kind, such as cuda, mps or xpu; "
    if kind == "cuda" and kind not in present:
        if torch.version.cuda is None and torch.version.hip is None:
            return "this torch was built without CUDA; "
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "no GPU is visible" + ("; " if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r}); ")
    return ""
