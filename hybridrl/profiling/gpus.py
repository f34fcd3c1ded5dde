"""Which accelerators this process uses, and what they read: CUDA's devices matched to NVML's, others from torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridrl.profiling.nvml import MIG, Gpu, Nvml, Slice, load
from hybridrl.profiling.readings import GpuReading, GpuReadings, Reading, Unknown

MASK, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

_OTHERS_NUMBERS = (
    f"CUDA may number these GPUs otherwise than NVML: set {ORDER}=PCI_BUS_ID, or name the GPU by its UUID in {MASK}"
)


_SILENT = Unknown("torch does not say")


@dataclass(frozen=True, kw_only=True)
class TorchDevice:
    """An accelerator that torch has initialized in this process. ``bus`` is its PCI domain, bus and device number.

    ``nvidia`` is false for AMD's, which torch calls cuda too. ``memory`` is what torch's allocator holds, in bytes.
    """

    type: str
    index: int
    name: str | None
    nvidia: bool = False
    uuid: str | None = None
    bus: tuple[int, int, int] | None = None
    memory: Reading = _SILENT
    memory_total: Reading = _SILENT


@dataclass(frozen=True, eq=False)
class Match:
    """A CUDA device and the GPU, or slice of one, that NVML has for it; ``reason`` where none can be told."""

    index: int | None
    gpu: Gpu | None = None
    slice: Slice | None = None
    reason: str | None = None


class Accelerators:
    """Reads all accelerators that this process may use.

    torch's own word on which they are counts once it has initialized CUDA; until then the environment's. ``devices``
    returns what torch has initialized, and must not initialize anything.
    """

    def __init__(
        self,
        devices: Callable[[], Sequence[TorchDevice]],
        *,
        load: Callable[[], Any] = load,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._devices, self._load, self._environ = devices, load, environ
        self._nvml: Nvml | Unknown = Unknown("NVML is not open")

    def open(self) -> None:
        """Initialize NVML, where there is one."""
        self._nvml = Nvml.open(self._load)

    def close(self) -> None:
        """Leave NVML."""
        if isinstance(self._nvml, Nvml):
            self._nvml.close()
        self._nvml = Unknown("NVML is not open")

    def read(self) -> GpuReadings:
        """All of them now; GPUs that this process may not use are left out."""
        devices = self._devices()
        others = tuple(_torch_only(device, _foreign(device)) for device in devices if not device.nvidia)
        nvidia, reason = self._nvidia([device for device in devices if device.nvidia])
        found = (*nvidia, *others)
        return GpuReadings(found, None if found else reason)

    def _nvidia(self, devices: Sequence[TorchDevice]) -> tuple[tuple[GpuReading, ...], str | None]:
        nvml = self._nvml
        if isinstance(nvml, Unknown):
            return tuple(_torch_only(device, nvml) for device in devices), nvml.reason
        if devices:
            matches = [match(nvml.gpus, device) for device in devices]
            return tuple(_reading(nvml, *pair) for pair in zip(matches, devices, strict=True)), None
        visible, reason = visible_gpus(nvml.gpus, self._environ.get(MASK), self._environ.get(ORDER))
        return tuple(_reading(nvml, found, None) for found in visible), reason


def _torch_only(device: TorchDevice, why: Unknown) -> GpuReading:
    return GpuReading(
        key=f"{device.type}:{device.index}",
        type=device.type,
        index=device.index,
        name=device.name,
        bus_id=None,
        utilization=why,
        sm_utilization=why,
        memory_used=why,
        memory_total=device.memory_total,
        process_memory=why,
        torch_memory=device.memory,
    )


def _foreign(device: TorchDevice) -> Unknown:
    return Unknown(
        f"{device.type} is not NVIDIA's: only NVML is read" if device.type == "cuda" else f"no NVML for {device.type}"
    )


def _reading(nvml: Nvml, found: Match, device: TorchDevice | None) -> GpuReading:
    gpu, part = found.gpu, found.slice
    no = Unknown(found.reason or "no match")
    used, total = (no, no) if gpu is None else nvml.memory(gpu, part)
    if device is not None and isinstance(total, Unknown):
        total = device.memory_total
    identity = part.uuid if part is not None else None if gpu is None else gpu.uuid or gpu.bus_id
    return GpuReading(
        key=identity or f"cuda:{found.index}",
        type="cuda",
        index=found.index,
        name=device.name if device is not None else None if gpu is None else gpu.name,
        bus_id=None if gpu is None else gpu.bus_id,
        utilization=no if gpu is None else nvml.utilization(gpu),
        sm_utilization=no if gpu is None else nvml.sm_utilization(gpu),
        memory_used=used,
        memory_total=total,
        process_memory=no if gpu is None else nvml.process_memory(gpu, part),
        torch_memory=Unknown("torch has not initialized CUDA") if device is None else device.memory,
    )


def match(gpus: Sequence[Gpu], device: TorchDevice) -> Match:
    """The GPU or slice of a device of torch's, by UUID, else by PCI id."""
    for gpu in gpus:
        part = next((part for part in gpu.slices if _same(part.uuid, device.uuid)), None)
        if part is not None or _same(gpu.uuid, device.uuid):
            return Match(device.index, gpu, part or _only_slice(gpu))
    at_bus = [gpu for gpu in gpus if gpu.bus is not None and gpu.bus == device.bus]
    if len(at_bus) == 1:
        return Match(device.index, at_bus[0], _only_slice(at_bus[0]))
    return Match(device.index, reason="NVML lists no GPU with this device's UUID or PCI id")


def visible_gpus(gpus: Sequence[Gpu], mask: str | None, order: str | None) -> tuple[tuple[Match, ...], str | None]:
    """The GPUs that CUDA would show this process, in its order; where none, why.

    ``mask`` and ``order`` are the variables CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None where unset. CUDA's
    rules: numbers, UUIDs and beginnings of UUIDs; the first that is none of its devices ends the list; one that is
    named twice empties it. Source: CUDA Programming Guide, "CUDA Environment Variables".
    """
    numbered = _cuda_order(gpus, order)
    if mask is None:
        numbers = [None] * len(gpus) if numbered is None else list(range(len(gpus)))
        found = [Match(number, gpu, _only_slice(gpu)) for number, gpu in zip(numbers, numbered or gpus, strict=True)]
        return tuple(found), "NVML lists no GPU that this process may use"
    words = [word.strip() for word in mask.split(",")]
    matches = tuple(_masked(words, gpus, numbered))
    named = [(found.gpu, found.slice) for found in matches if found.gpu is not None]
    twice = len(set(words)) < len(words) or len(set(named)) < len(named)
    return () if twice else matches, f"{MASK}={mask!r} leaves none of the {len(gpus)} GPUs here"


def _cuda_order(gpus: Sequence[Gpu], order: str | None) -> list[Gpu] | None:
    """The GPUs by CUDA's numbers; None where it orders them by speed, which NVML doesn't tell."""
    if len(gpus) <= 1:
        return list(gpus)
    buses = {gpu.bus: gpu for gpu in gpus if gpu.bus is not None}
    known = order == "PCI_BUS_ID" and len(buses) == len(gpus)
    return [gpu for _, gpu in sorted(buses.items(), key=lambda item: item[0])] if known else None


def _masked(words: Sequence[str], gpus: Sequence[Gpu], numbered: Sequence[Gpu] | None) -> Iterator[Match]:
    for index, word in enumerate(words):
        number = re.match(r"\+?\d+", word)  # CUDA reads numbers as C's strtoul does: "1gpu" is 1
        found = _by_uuid(index, word, gpus) if number is None else _by_number(index, int(number[0]), gpus, numbered)
        if found is None:
            return
        yield found


def _by_number(index: int, number: int, gpus: Sequence[Gpu], numbered: Sequence[Gpu] | None) -> Match | None:
    if number >= len(gpus):
        return None
    if numbered is None:
        return Match(index, reason=_OTHERS_NUMBERS)
    return Match(index, numbered[number], _only_slice(numbered[number]))


def _by_uuid(index: int, word: str, gpus: Sequence[Gpu]) -> Match | None:
    """A GPU's or a slice's UUID, the older form ``MIG-GPU-UUID/1/0`` included; None for what is no UUID."""
    if not word.startswith(("GPU-", "MIG-")):
        return None
    parts = [Match(index, gpu, part) for gpu in gpus for part in gpu.slices if part.uuid.startswith(word)]
    whole = word.removeprefix("MIG-").partition("/")[0]
    cards = [Match(index, gpu, _only_slice(gpu)) for gpu in gpus if whole and (gpu.uuid or "").startswith(whole)]
    found = parts if word.startswith("MIG-") and parts else cards
    if len(found) == 1:
        return found[0]
    unlisted = f"{MASK} names {word}, which fits {len(found)} of NVML's GPUs"
    return Match(index, reason=f"{MIG.reason}: {unlisted}" if word.startswith("MIG-") else unlisted)


def _only_slice(gpu: Gpu) -> Slice | None:
    return gpu.slices[0] if len(gpu.slices) == 1 else None


def _same(one: str | None, other: str | None) -> bool:
    """Whether two UUIDs are one; torch writes them without NVML's ``GPU-``."""
    return one is not None and other is not None and _bare(one) == _bare(other)


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("mig-").removeprefix("gpu-")
