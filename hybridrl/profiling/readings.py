"""What the monitor reads, and from where: the small interfaces between it and the machine.

A reading is a number, or ``Unknown`` with its reason. Unknown is never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that can't be read, and why, in a few words such as "MIG" or "not permitted"."""

    reason: str


Reading = float | Unknown


class CoreTimes(NamedTuple):
    """One core's seconds since it started: busy, and all."""

    busy_s: float
    total_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildReading:
    """One child process, or a child of one. ``cpu_s`` counts from its start, ``memory`` is resident bytes."""

    pid: int
    created: float  # seconds since 1970: with the pid, a process's identity
    age_s: float
    name: str
    cpu_s: Reading
    memory: Reading

    @property
    def key(self) -> tuple[int, float]:
        """What tells it from a later process of the same number."""
        return self.pid, self.created


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReading:
    """Counters of the CPU side at one moment. CPU seconds count from a start of their own; memory is in bytes."""

    process_cpu_s: Reading
    process_memory: Reading
    cores: tuple[CoreTimes, ...] | Unknown
    machine_memory: Reading  # total less what is available
    machine_memory_total: Reading
    children: tuple[ChildReading, ...] | Unknown

    @classmethod
    def unknown(cls, reason: str) -> HostReading:
        """Every field unknown, for one reason."""
        no = Unknown(reason)
        return cls(
            process_cpu_s=no,
            process_memory=no,
            cores=no,
            machine_memory=no,
            machine_memory_total=no,
            children=no,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """One accelerator at one moment: utilization in percent, memory in bytes.

    ``key`` identifies the device; ``index`` is torch's number for it, None where that is not known (yet).
    """

    key: str
    type: str
    index: int | None
    name: str | None
    bus_id: str | None
    utilization: Reading
    sm_utilization: Reading
    memory_used: Reading
    memory_total: Reading
    process_memory: Reading
    torch_memory: Reading


class GpuReadings(NamedTuple):
    """All accelerators that this process may use; where there are none, why."""

    devices: tuple[GpuReading, ...]
    reason: str | None = None


class HostSource(Protocol):
    """Where readings of the CPU side come from."""

    def read(self, *, last: bool = False) -> HostReading:
        """The counters now. ``last``: no later reading makes up for what this one skips to save time."""


class GpuSource(Protocol):
    """Where readings of accelerators come from."""

    def open(self) -> None:
        """Get ready; called before the first reading of each run."""

    def read(self) -> GpuReadings:
        """All accelerators now; utilization is that since the last reading or so."""

    def close(self) -> None:
        """Give back what ``open`` took."""
