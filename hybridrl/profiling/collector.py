"""Adds up readings into a ``Usage``: counters become rates, samples become summaries."""

from __future__ import annotations

from collections.abc import Iterable

from hybridrl.profiling.readings import (
    ChildReading,
    CoreTimes,
    GpuReading,
    GpuReadings,
    HostReading,
    Reading,
    Unknown,
)
from hybridrl.profiling.track import Rate, Tell, Track
from hybridrl.profiling.usage import ChildUsage, GpuUsage, Usage

MOST_ENDED = 64
"""Ended children kept by themselves; of more, those with the least CPU time are only counted."""

CLOCK_TICKS_S = 0.02
"""Below two of the system's clock ticks of 10 ms, a child's share of the CPU is rounding, not a reading."""


class Collector:
    """The sums of one run. ``add`` is called with times in seconds since its start, ever later."""

    def __init__(self, interval_s: float | None, tell: Tell) -> None:
        self._interval_s, self._tell = interval_s, tell
        self._now_s, self._samples = 0.0, 0
        self._process = Track("CPU of the process", "%", tell, series=True)
        self._process_rate = Rate()
        self._process_memory = Track("memory of the process", "B", tell, series=True)
        self._cores = _Cores(tell)
        self._children = _Children(tell)
        self._machine_memory = Track("memory of the machine", "B", tell)
        self._machine_memory_total: float | None = None
        self._gpus = _Gpus(tell)

    def base(self, host: HostReading, gpus: GpuReadings) -> None:
        """The readings at the start, from which counters count."""
        self._process_rate.base(host.process_cpu_s, 0.0)
        self._cores.base(host.cores)
        self._children.base(host.children)
        self._gpus.base(gpus)

    def add(self, now_s: float, host: HostReading, gpus: GpuReadings) -> None:
        """One sample; one without any time since the last is left out."""
        elapsed = now_s - self._now_s
        if elapsed <= 0:
            return
        # A rate over a sliver of time is mostly the resolution of its counter: right in the mean, no maximum.
        peak = elapsed >= (self._interval_s or 0.0) / 2
        self._process.add(now_s, *self._process_rate.step(host.process_cpu_s, now_s), peak=peak)
        self._process_memory.add(now_s, host.process_memory, elapsed)
        self._cores.add(now_s, host.cores, elapsed, peak)
        self._children.add(now_s, host.children, elapsed, peak)
        self._machine_memory.add(now_s, host.machine_memory, elapsed)
        self._machine_memory_total = _known(host.machine_memory_total, self._machine_memory_total)
        self._gpus.add(now_s, gpus, elapsed)
        self._now_s, self._samples = now_s, self._samples + 1

    def usage(self, *, duration_s: float, start_cpu_s: float, sampling_cpu_s: float) -> Usage:
        """Everything so far."""
        return Usage(
            duration_s=duration_s,
            interval_s=self._interval_s,
            samples=self._samples,
            process_cpu=self._process.summary(),
            machine_cpu=self._cores.all.summary(),
            cores=tuple(track.summary() for track in self._cores.each),
            process_memory=self._process_memory.summary(),
            machine_memory=self._machine_memory.summary(),
            machine_memory_total=self._machine_memory_total,
            children_cpu=self._children.cpu.summary(),
            children_memory=self._children.memory.summary(),
            children=self._children.usages(),
            other_children=self._children.others,
            gpu=self._gpus.usages(),
            gpu_reason=self._gpus.reason,
            start_cpu_s=start_cpu_s,
            sampling_cpu_s=sampling_cpu_s,
        )


class _Cores:
    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.all = Track("CPU of the machine", "%", tell, series=True)
        self.each: list[Track] = []
        self._last: tuple[CoreTimes, ...] | Unknown = Unknown("no reading")

    def base(self, cores: tuple[CoreTimes, ...] | Unknown) -> None:
        self._last = cores

    def add(self, now_s: float, cores: tuple[CoreTimes, ...] | Unknown, elapsed_s: float, peak: bool) -> None:
        shares = self._shares(cores)
        if isinstance(shares, Unknown):
            self.all.add(now_s, shares, elapsed_s)
            return
        self._last = cores
        while len(self.each) < len(shares):
            self.each.append(Track("CPU of a core", "%", self._tell))
        for track, share in zip(self.each, shares, strict=False):
            track.add(now_s, _percent(*share), elapsed_s, peak=peak)
        totals = (sum(busy for busy, _ in shares), sum(total for _, total in shares))
        self.all.add(now_s, _percent(*totals), elapsed_s, peak=peak)

    def _shares(self, cores: tuple[CoreTimes, ...] | Unknown) -> list[tuple[float, float]] | Unknown:
        """Busy and all seconds of each core since the last known reading."""
        if isinstance(cores, Unknown):
            return cores
        if isinstance(self._last, Unknown) or len(self._last) != len(cores):
            self._last = cores
            return Unknown("no earlier reading of the same cores to compare with")
        return [
            (now.busy_s - last.busy_s, now.total_s - last.total_s) for now, last in zip(cores, self._last, strict=True)
        ]


def _percent(busy_s: float, total_s: float) -> Reading:
    # Some kernels let idle and iowait go back by a tick, so that a share can leave its range.
    return 100 * min(1.0, max(0.0, busy_s / total_s)) if total_s > 0 else Unknown("no clock tick passed")


class _Child:
    """One child process, from its first sample to its last."""

    def __init__(self, reading: ChildReading, tell: Tell) -> None:
        self.pid, self.name, self.ended = reading.pid, reading.name, False
        self.cpu = Track("CPU of a child process", "%", tell)
        self.memory = Track("memory of a child process", "B", tell)
        self.rate = Rate(CLOCK_TICKS_S)
        self._first: float | None = None
        self._latest: float | None = None

    @property
    def cpu_s(self) -> float | None:
        return None if self._latest is None or self._first is None else max(0.0, self._latest - self._first)

    def base(self, cpu_s: Reading, at_s: float) -> None:
        self.rate.base(cpu_s, at_s)
        self._first = self._latest = _known(cpu_s)

    def add(self, now_s: float, reading: ChildReading, elapsed_s: float, peak: bool) -> float | Unknown:
        """One sample; returns the CPU seconds since the one before."""
        before, self.name = self._latest, reading.name  # a process that was forked has another name after exec
        share, since_s = self.rate.step(reading.cpu_s, now_s)
        self.cpu.add(now_s, share, since_s, peak=peak and since_s >= elapsed_s / 2)
        self.memory.add(now_s, reading.memory, elapsed_s)
        if isinstance(reading.cpu_s, Unknown):
            return reading.cpu_s
        self._first = reading.cpu_s if self._first is None else self._first
        self._latest = reading.cpu_s
        return 0.0 if before is None else max(0.0, self._latest - before)

    def usage(self) -> ChildUsage:
        return ChildUsage(
            pid=self.pid,
            name=self.name,
            cpu=self.cpu.summary(),
            memory=self.memory.summary(),
            cpu_s=self.cpu_s,
            ended=self.ended,
        )


class _Children:
    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.cpu = Track("CPU of child processes", "%", tell, series=True)
        self.memory = Track("memory of child processes", "B", tell)
        self.others = 0
        self._running: dict[tuple[int, float], _Child] = {}
        self._ended: list[_Child] = []

    def base(self, children: tuple[ChildReading, ...] | Unknown) -> None:
        for reading in () if isinstance(children, Unknown) else children:
            child = self._running[reading.key] = _Child(reading, self._tell)
            child.base(reading.cpu_s, 0.0)

    def add(self, now_s: float, children: tuple[ChildReading, ...] | Unknown, elapsed_s: float, peak: bool) -> None:
        if isinstance(children, Unknown):
            self.cpu.add(now_s, children, elapsed_s)
            self.memory.add(now_s, children, elapsed_s)
            return
        busy = _sum(self._step(now_s, reading, elapsed_s, peak) for reading in children)
        share = busy if isinstance(busy, Unknown) else 100 * busy / elapsed_s
        self.cpu.add(now_s, share, elapsed_s, peak=peak)
        self.memory.add(now_s, _sum(reading.memory for reading in children), elapsed_s)
        self._end(self._running.keys() - {reading.key for reading in children})

    def _step(self, now_s: float, reading: ChildReading, elapsed_s: float, peak: bool) -> Reading:
        child = self._running.get(reading.key)
        if child is None:
            child = self._running[reading.key] = _Child(reading, self._tell)
            born_s = now_s - reading.age_s
            if born_s > -CLOCK_TICKS_S:  # in this run: all of its CPU time counts, from its birth on
                child.base(0.0, max(0.0, born_s))
        return child.add(now_s, reading, elapsed_s, peak)

    def _end(self, keys: Iterable[tuple[int, float]]) -> None:
        for key in keys:
            child = self._running.pop(key)
            child.ended = True
            self._ended.append(child)
        self._ended.sort(key=lambda child: child.cpu_s or 0.0, reverse=True)
        self.others += len(self._ended[MOST_ENDED:])
        del self._ended[MOST_ENDED:]

    def usages(self) -> tuple[ChildUsage, ...]:
        return tuple(child.usage() for child in (*self._running.values(), *self._ended))


class _Gpu:
    def __init__(self, tell: Tell, label: str) -> None:
        self.utilization = Track(f"utilization of {label}", "%", tell, series=True)
        self.sm_utilization = Track(f"SM utilization of {label}", "%", tell, series=True)
        self.memory_used = Track(f"memory of {label}", "B", tell, series=True)
        self.process_memory = Track(f"memory of this process on {label}", "B", tell)
        self.torch_memory = Track(f"memory of torch on {label}", "B", tell)
        self.total: float | None = None

    def add(self, now_s: float, reading: GpuReading, elapsed_s: float) -> None:
        self.utilization.add(now_s, reading.utilization, elapsed_s)
        self.sm_utilization.add(now_s, reading.sm_utilization, elapsed_s)
        self.memory_used.add(now_s, reading.memory_used, elapsed_s)
        self.process_memory.add(now_s, reading.process_memory, elapsed_s)
        self.torch_memory.add(now_s, reading.torch_memory, elapsed_s)
        self.total = _known(reading.memory_total, self.total)

    def usage(self, reading: GpuReading) -> GpuUsage:
        return GpuUsage(
            type=reading.type,
            index=reading.index,
            name=reading.name,
            bus_id=reading.bus_id,
            utilization=self.utilization.summary(),
            sm_utilization=self.sm_utilization.summary(),
            memory_used=self.memory_used.summary(),
            process_memory=self.process_memory.summary(),
            torch_memory=self.torch_memory.summary(),
            memory_total=self.total,
        )


class _Gpus:
    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._tracks: dict[str, _Gpu] = {}
        self._latest: tuple[GpuReading, ...] = ()
        self.reason: str | None = None

    def base(self, gpus: GpuReadings) -> None:
        """Which there are; what they read now was before the run."""
        before, self._latest, self.reason = self._tracks, gpus.devices, gpus.reason
        if gpus.reason is not None:
            self._tell("GPUs", gpus.reason)
        # A device whose number was known before its identity keeps what was counted under the number.
        self._tracks = {
            reading.key: before.get(reading.key)
            or before.get(f"{reading.type}:{reading.index}")
            or _Gpu(self._tell, f"GPU {reading.index if reading.index is not None else reading.bus_id}")
            for reading in gpus.devices
        }

    def add(self, now_s: float, gpus: GpuReadings, elapsed_s: float) -> None:
        self.base(gpus)
        for reading in gpus.devices:
            self._tracks[reading.key].add(now_s, reading, elapsed_s)

    def usages(self) -> tuple[GpuUsage, ...]:
        return tuple(self._tracks[reading.key].usage(reading) for reading in self._latest)


def _known(reading: Reading, otherwise: float | None = None) -> float | None:
    return otherwise if isinstance(reading, Unknown) else reading


def _sum(readings: Iterable[Reading]) -> Reading:
    """Their sum, unknown if one of them is; every one is taken."""
    total: Reading = 0.0
    for reading in readings:
        if isinstance(reading, Unknown):
            total = reading
        elif not isinstance(total, Unknown):
            total += reading
    return total
