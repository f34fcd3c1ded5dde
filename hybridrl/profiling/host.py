"""Readings of the CPU side by psutil: this process, its children, the cores and the memory of the machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hybridrl.profiling.readings import ChildReading, CoreTimes, HostReading, Unknown

SEARCH_SHARE = 0.0025
"""Looking for new children may take this share of one core; on a machine of many processes it is done less often."""

_PROC = Path("/proc")
_T = TypeVar("_T")


class PsutilHost:
    """Reads this process and its machine. What the system refuses is unknown.

    ``proc`` is where Linux lists processes: it has each one's children, which saves going through all processes.
    """

    def __init__(
        self,
        *,
        proc: Path = _PROC,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._process = psutil.Process()
        self._proc, self._clock, self._cpu_clock = proc, clock, cpu_clock
        self._children: dict[int, tuple[psutil.Process, float]] = {}  # and when it was born, by this clock
        self._next_search_s = -float("inf")

    def read(self, *, last: bool = False) -> HostReading:
        """The counters now; with ``last``, new children are looked for whatever that takes."""
        memory = _ask(psutil.virtual_memory)
        return HostReading(
            process_cpu_s=time.process_time(),  # nanoseconds, where psutil's come in clock ticks
            process_memory=_ask(lambda: self._process.memory_info().rss),
            cores=_ask(_core_times),
            machine_memory=memory if isinstance(memory, Unknown) else memory.total - memory.available,
            machine_memory_total=memory if isinstance(memory, Unknown) else memory.total,
            children=_ask(lambda: self._read_children(last)),
        )

    def _read_children(self, last: bool) -> tuple[ChildReading, ...]:
        if last or self._clock() >= self._next_search_s:
            before = self._cpu_clock()
            self._search()
            self._next_search_s = self._clock() + (self._cpu_clock() - before) / SEARCH_SHARE
        now_s = self._clock()
        readings = [(pid, _read_child(process, now_s - born_s)) for pid, (process, born_s) in self._children.items()]
        for pid in [pid for pid, reading in readings if reading is None]:
            del self._children[pid]
        return tuple(reading for _, reading in readings if reading is not None)

    def _search(self) -> None:
        own = self._process.pid
        if (self._proc / f"{own}/task/{own}/children").exists():  # a kernel may be built without
            found = _descendants(self._proc, own)
        else:
            found = (child.pid for child in self._process.children(recursive=True))
        for pid in found:
            if pid not in self._children:
                try:
                    process = psutil.Process(pid)
                    self._children[pid] = process, self._clock() - _age_s(process)
                except (psutil.Error, OSError):
                    continue  # it has ended since


def _descendants(proc: Path, pid: int) -> Iterator[int]:
    """The children of all threads of a process, and theirs."""
    try:
        with os.scandir(proc / f"{pid}/task") as threads:
            found = [int(child) for thread in threads for child in Path(thread.path, "children").read_text().split()]
    except OSError:
        return  # it has ended since
    for child in found:
        yield child
        yield from _descendants(proc, child)


def _read_child(process: psutil.Process, age_s: float) -> ChildReading | None:
    """One child, or None if it has ended, also if its parent hasn't noticed."""
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return ChildReading(
                pid=process.pid,
                created=process.create_time(),
                age_s=age_s,
                name=process.name(),
                cpu_s=_ask(lambda: sum(process.cpu_times()[:2])),  # user and system, without its own children
                memory=_ask(lambda: process.memory_info().rss),
            )
    except psutil.NoSuchProcess:
        return None
    except (psutil.Error, OSError):
        return _nameless(process)


def _age_s(process: psutil.Process) -> float:
    """Seconds since it was started. Linux counts in ticks of 10 ms; psutil's creation time is off by up to 1 s."""
    if sys.platform != "linux":
        return time.time() - process.create_time()
    fields = (_PROC / f"{process.pid}/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5); the name, in brackets, is the second
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def _nameless(process: psutil.Process) -> ChildReading:
    """A child of which the system tells no more than that it is there."""
    no = Unknown("not permitted")
    return ChildReading(pid=process.pid, created=0.0, age_s=float("inf"), name="unknown", cpu_s=no, memory=no)


def _core_times() -> tuple[CoreTimes, ...]:
    return tuple(map(_core, psutil.cpu_times(percpu=True)))


def _core(times: Any) -> CoreTimes:
    """Busy is all but idle and waiting for disks; a guest's time is part of user already."""
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return CoreTimes(total - times.idle - getattr(times, "iowait", 0.0), total)


def _ask(read: Callable[[], _T]) -> _T | Unknown:
    """What it returns, or why the system doesn't say. A process that is gone is the caller's to note."""
    try:
        return read()
    except psutil.AccessDenied:
        return Unknown("not permitted")
    except (OSError, NotImplementedError, RuntimeError) as error:
        return Unknown(f"the system does not say: {type(error).__name__}")
