"""The monitor: samples how busy CPU and GPU are while any code runs, from a thread of its own."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from hybridrl.profiling.collector import Collector
from hybridrl.profiling.gpus import Accelerators, TorchDevice
from hybridrl.profiling.host import PsutilHost
from hybridrl.profiling.readings import GpuReadings, GpuSource, HostReading, HostSource, Reading, Unknown
from hybridrl.profiling.usage import Usage

_logger = logging.getLogger("hybridrl")
_T = TypeVar("_T")

MOST_TOLD = 100
"""Reasons logged; more are messages with a number in them, and would fill a log."""


class Monitor:
    """Samples CPU, GPU and memory around any code.

        with Monitor() as monitor:
            train()
        print(monitor.usage)

    A sample is taken every ``interval_s`` seconds and at the end, so that a shorter run has one over its whole length;
    with None, only at the end and by ``sample_now()``. What can't be read is unknown, never zero, and its reason is
    logged once (logger "hybridrl", level INFO). Nothing that goes wrong in a reading reaches the code that is
    watched. Memory is bounded: sums, and series of at most 256 points.

    Each start begins anew. ``host`` and ``gpus`` say where readings come from; by default psutil, NVML and torch.
    ``clock`` and ``cpu_clock`` return integer nanoseconds, the latter of the calling thread's CPU time.

    ValueError for an interval that isn't above zero.
    """

    def __init__(
        self,
        interval_s: float | None = 0.5,
        *,
        host: HostSource | None = None,
        gpus: GpuSource | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        if interval_s is not None and not (math.isfinite(interval_s) and interval_s > 0):
            raise ValueError(f"interval_s={interval_s}: expected seconds above 0, or None to sample only when asked")
        self._interval_s = interval_s
        self._host: HostSource = PsutilHost() if host is None else host
        self._gpus: GpuSource = Accelerators(torch_devices) if gpus is None else gpus
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()  # over the collector and what is counted beside it
        self._told: set[str] = set()
        self._collector: Collector | None = None
        self._running = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_ns = self._latest_ns = self._start_cpu_ns = self._cpu_ns = 0

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:  # the body may have stopped it
            self.stop()

    @property
    def running(self) -> bool:
        """Whether it is sampling now."""
        return self._running

    @property
    def usage(self) -> Usage:
        """The last run, or the one that goes on up to its latest sample; ValueError before the first."""
        with self._lock:
            if self._collector is None:
                raise ValueError("usage of a monitor that never ran: start() it, or put the code inside a with block")
            return self._collector.usage(
                duration_s=(self._latest_ns - self._start_ns) / 1e9,
                start_cpu_s=self._start_cpu_ns / 1e9,
                sampling_cpu_s=self._cpu_ns / 1e9,
            )

    def start(self) -> None:
        """Begin a run, and forget the one before; ValueError if one goes on."""
        if self._running:
            raise ValueError("the monitor is running already: stop() it first, or use another Monitor")
        before = self._cpu_clock()
        self._attempt(self._gpus.open)
        collector = Collector(self._interval_s, self._tell)
        with self._lock:
            self._start_ns = self._latest_ns = self._clock()
            collector.base(self._read_host(last=False), self._read_gpus())
            self._collector = collector
            self._start_cpu_ns, self._cpu_ns = self._cpu_clock() - before, 0
        self._running = True
        self._start_thread()

    def stop(self) -> None:
        """Take a last sample and end the run, its thread included; ValueError if none goes on."""
        if not self._running:
            raise ValueError("stop() of a monitor that is not running: start() it first")
        self._running = False
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._sample(last=True)
        self._attempt(self._gpus.close)

    def sample_now(self) -> None:
        """Take a sample at once, besides those that the interval brings; ValueError if no run goes on."""
        if not self._running:
            raise ValueError("sample_now() of a monitor that is not running: start() it first")
        self._sample(last=False)

    def _start_thread(self) -> None:
        if self._interval_s is None:
            return
        self._stopped = threading.Event()
        arguments = (self._stopped, self._interval_s)
        thread = threading.Thread(target=self._loop, args=arguments, name="hybridrl-monitor", daemon=True)
        if not isinstance(self._attempt(thread.start), Unknown):  # there may be a limit on threads
            self._thread = thread

    def _loop(self, stopped: threading.Event, interval_s: float) -> None:
        while not stopped.wait(interval_s):
            self._sample(last=False)

    def _sample(self, *, last: bool) -> None:
        with self._lock:
            assert self._collector is not None
            before = self._cpu_clock()
            self._latest_ns = self._clock()
            host, gpus = self._read_host(last=last), self._read_gpus()
            self._collector.add((self._latest_ns - self._start_ns) / 1e9, host, gpus)
            self._cpu_ns += self._cpu_clock() - before

    def _read_host(self, *, last: bool) -> HostReading:
        found = self._attempt(lambda: self._host.read(last=last))
        return HostReading.unknown(found.reason) if isinstance(found, Unknown) else found

    def _read_gpus(self) -> GpuReadings:
        found = self._attempt(self._gpus.read)
        return GpuReadings((), found.reason) if isinstance(found, Unknown) else found

    def _attempt(self, read: Callable[[], _T]) -> _T | Unknown:
        """What is read or, whatever went wrong, unknown: training must not end for its monitor."""
        try:
            return read()
        except Exception as error:  # noqa: BLE001
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self._tell("a reading", reason)
            return Unknown(reason)

    def _tell(self, what: str, reason: str) -> None:
        """Log why something is unknown, each reason once."""
        if reason not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(reason)
            _logger.info("monitor: %s unknown: %s", what, reason)


def torch_devices() -> tuple[TorchDevice, ...]:
    """The accelerators that torch has initialized in this process; imports and initializes nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compile"):  # absent, or its import, in another thread, is not over
        return ()
    found: list[TorchDevice] = []
    if torch.cuda.is_initialized():
        found += [_cuda_device(torch, index) for index in range(torch.cuda.device_count())]
    if torch.xpu.is_initialized():
        found += [_xpu_device(torch, index) for index in range(torch.xpu.device_count())]
    if torch.backends.mps.is_available():
        found.append(_mps_device(torch))
    return tuple(found)


def _cuda_device(torch: Any, index: int) -> TorchDevice:
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    parts: Any = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    # As a nested dictionary: flattening it, as memory_reserved() does, takes ten times as long.
    held = torch.cuda.memory_stats_as_nested_dict(index).get("reserved_bytes", {}).get("all", {}).get("current", 0)
    return TorchDevice(
        type="cuda",
        index=index,
        name=properties.name,
        nvidia=torch.version.hip is None,
        uuid=None if uuid is None else str(uuid),
        bus=None if None in parts else tuple(parts),
        memory=held,
        memory_total=properties.total_memory,
    )


def _xpu_device(torch: Any, index: int) -> TorchDevice:
    properties = torch.xpu.get_device_properties(index)
    return TorchDevice(
        type="xpu",
        index=index,
        name=properties.name,
        memory=torch.xpu.memory_reserved(index),
        memory_total=properties.total_memory,
    )


def _mps_device(torch: Any) -> TorchDevice:
    total: Reading = Unknown("torch does not say")
    if hasattr(torch.mps, "recommended_max_memory"):  # not in every torch
        total = torch.mps.recommended_max_memory()
    return TorchDevice(type="mps", index=0, name=None, memory=torch.mps.driver_allocated_memory(), memory_total=total)
