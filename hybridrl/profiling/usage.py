"""What the monitor found: utilization and memory of a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from hybridrl.profiling.tables import html, plain, rich_table
from hybridrl.profiling.usage_table import sheet

if TYPE_CHECKING:
    from rich.table import Table

Unit = Literal["%", "B"]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One quantity over a run, in percent or in bytes; None is unknown.

    ``mean`` is weighted by time, over the ``known`` of ``total`` samples; ``reason`` is the commonest for which the
    others are unknown. ``series`` holds (seconds since the start, mean up to there since the point before): at most
    256 points, so that in a long run each is the mean of many samples; empty where no series is kept.
    """

    unit: Unit
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    known: int = 0
    total: int = 0
    reason: str | None = None
    series: tuple[tuple[float, float | None], ...] = ()

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit={self.unit!r}: expected one of {', '.join(get_args(Unit))}")
        if not 0 <= self.known <= self.total:
            raise ValueError(f"known={self.known} of total={self.total}: expected no more than all samples")
        if {value is None for value in (self.mean, self.min, self.max)} != {self.known == 0}:
            raise ValueError(f"known={self.known}, mean={self.mean}: expected a mean, min and max if any is known")

    def __str__(self) -> str:
        if self.mean is None:
            return "unknown" if self.reason is None else f"unknown ({self.reason})"
        return f"{self.text(self.mean)} on average, at most {self.text(self.max)}"

    def text(self, value: float | None) -> str:
        """A value of this quantity with its unit; "unknown" for None."""
        if value is None:
            return "unknown"
        return f"{value:.1f}%" if self.unit == "%" else bytes_text(value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Summary:
        """The summary that ``Usage.to_dict`` wrote."""
        return cls(**{**values, "series": tuple((end, mean) for end, mean in values["series"])})


@dataclass(frozen=True, kw_only=True)
class ChildUsage:
    """A process started by this one, or by one of those. ``cpu`` is in percent of one core while it was seen.

    ``cpu_s`` is its CPU time within the run, None where unreadable; what came after its last sample is not in it.
    """

    pid: int
    name: str
    cpu: Summary
    memory: Summary
    cpu_s: float | None
    ended: bool

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChildUsage:
        """The child that ``Usage.to_dict`` wrote."""
        return cls(**{**values, "cpu": Summary.from_dict(values["cpu"]), "memory": Summary.from_dict(values["memory"])})


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """One accelerator that this process may use.

    ``utilization`` is NVML's: the percentage of *time* in which any kernel was running, of whatever process. It
    doesn't say how much of the GPU was used (one block on one SM reads 100%), it looks back up to a second, and it
    over-reports where processes share the GPU. ``sm_utilization`` is the share of SMs that were busy (GPM, Hopper and
    newer).

    ``memory_used`` is that of all processes; ``process_memory`` what NVML charges to this one; ``torch_memory`` what
    torch's allocator holds in this one, without contexts and libraries. Bytes.
    """

    type: str  # torch's word: cuda, mps, xpu
    index: int | None  # torch's number
    name: str | None
    bus_id: str | None
    utilization: Summary
    sm_utilization: Summary
    memory_used: Summary
    process_memory: Summary
    torch_memory: Summary
    memory_total: float | None

    @property
    def label(self) -> str:
        """Such as ``cuda:0 NVIDIA H100``; a question mark for an unknown number."""
        return f"{self.type}:{'?' if self.index is None else self.index} {self.name or ''}".rstrip()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GpuUsage:
        """The accelerator that ``Usage.to_dict`` wrote."""
        return cls(**_summaries(values))


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How busy CPU and accelerators were, sampled. Percent, bytes and seconds; None is unknown.

    ``process_cpu`` and ``children_cpu`` are in percent of one core: 100 is one core busy, 250 two and a half.
    ``machine_cpu`` and each of ``cores`` are in percent of all their time, for all that runs on the machine, also
    outside a container. Memory of processes is resident: pages that they share count in each.

    ``children`` are the running ones and those 64 or so of the ended ones that took most CPU time; the rest are
    counted in ``other_children``. A child that lived between two samples was not seen.

    The monitor's own cost in CPU seconds: ``start_cpu_s`` once, ``sampling_cpu_s`` for all ``samples``. It is part of
    ``process_cpu``.
    """

    duration_s: float
    interval_s: float | None
    samples: int
    process_cpu: Summary
    machine_cpu: Summary
    cores: tuple[Summary, ...]
    process_memory: Summary
    machine_memory: Summary
    machine_memory_total: float | None
    children_cpu: Summary
    children_memory: Summary
    children: tuple[ChildUsage, ...]
    other_children: int
    gpu: tuple[GpuUsage, ...]
    gpu_reason: str | None
    start_cpu_s: float
    sampling_cpu_s: float

    @property
    def cpu_percent(self) -> float | None:
        """Mean CPU use of this process without its children; 100 is one core busy."""
        return self.process_cpu.mean

    @property
    def cpu_s_per_sample(self) -> float | None:
        """CPU seconds that one sample cost; None without a sample."""
        return self.sampling_cpu_s / self.samples if self.samples else None

    @property
    def sampling_share(self) -> float | None:
        """Sampling's CPU time as a part of one core's time, 0 to 1; None for a run of no length."""
        return self.sampling_cpu_s / self.duration_s if self.duration_s else None

    def table(self) -> Table:
        """A ``rich`` table: CPU, memory, each accelerator, and what the sampling cost."""
        return rich_table(sheet(self))

    def __str__(self) -> str:
        return plain(sheet(self))

    def _repr_html_(self) -> str:
        return html(sheet(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``cpu_percent``, ``cpu_s_per_sample`` and ``sampling_share`` are derived."""
        derived = {name: getattr(self, name) for name in _DERIVED}
        values: dict[str, Any] = _lists(asdict(self))
        return {**values, **derived}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Usage:
        """The usage that ``to_dict`` wrote; ValueError names the first key that is missing or unknown."""
        given = {key: value for key, value in values.items() if key not in _DERIVED}
        try:
            lists: dict[str, Any] = {
                "cores": tuple(map(Summary.from_dict, given["cores"])),
                "children": tuple(map(ChildUsage.from_dict, given["children"])),
                "gpu": tuple(map(GpuUsage.from_dict, given["gpu"])),
            }
            return cls(**{**_summaries(given), **lists})
        except KeyError as error:
            raise ValueError(f"not a usage, no key {error}: expected what Usage.to_dict wrote") from None
        except TypeError as error:
            raise ValueError(f"not a usage, {error}: expected what Usage.to_dict wrote") from None


_DERIVED = ("cpu_percent", "cpu_s_per_sample", "sampling_share")


def bytes_text(value: float) -> str:
    """Bytes in the unit of 1024 that suits them: ``512 B``, ``1.5 KiB``, ``3.0 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def _summaries(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: Summary.from_dict(each) if isinstance(each, Mapping) else each for key, each in values.items()}


def _lists(value: Any) -> Any:
    """Tuples as lists, all the way down: what JSON gives back."""
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value
