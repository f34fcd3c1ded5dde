"""Clocks: how long work took, on the host or on a device that works behind the host's back."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from hybridrl.placement import devices


class StopClock(Protocol):
    """Times intervals."""

    def interval(self) -> AbstractContextManager[None]:
        """A context manager around what shall be timed; enter it as often as needed, one inside another not."""

    def seconds(self) -> list[float]:
        """Seconds of every interval so far, in order; waits for the device first."""


class WallClock:
    """Times by the host's clock, and waits for the device at both ends of each interval.

    Args:
        synchronize: waits for the device; None on the CPU.
        now: integer nanoseconds.
    """

    def __init__(
        self, synchronize: Callable[[], None] | None = None, now: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._synchronize, self._now = synchronize or _nothing, now
        self._seconds: list[float] = []

    @contextmanager
    def interval(self) -> Iterator[None]:
        """A context manager around what shall be timed."""
        self._synchronize()
        start = self._now()
        try:
            yield
        finally:
            self._synchronize()
            self._seconds.append((self._now() - start) / 1e9)

    def seconds(self) -> list[float]:
        """Seconds of every interval so far, in order."""
        return list(self._seconds)


class EventClock:
    """Times by marks in the device's own queue, without making the host wait.

    An interval reads the time from when the device reaches its start to when it has done what was queued inside: the
    host's launch overhead counts only where it keeps the device idle.

    Args:
        device: an accelerator with events.
        event: makes one that tells the time.
        synchronize: waits for the device.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        event: Callable[[], Any] | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        self._event = event or (lambda: devices.event(device, timing=True))
        self._synchronize = synchronize or devices.synchronizer(device) or _nothing
        self._pairs: list[tuple[Any, Any]] = []

    @contextmanager
    def interval(self) -> Iterator[None]:
        """A context manager around what shall be timed."""
        start, end = self._event(), self._event()
        start.record()
        try:
            yield
        finally:
            end.record()
            self._pairs.append((start, end))

    def seconds(self) -> list[float]:
        """Seconds of every interval so far, in order; waits for the device first."""
        self._synchronize()
        return [float(start.elapsed_time(end)) / 1e3 for start, end in self._pairs]


def clock(device: torch.device) -> StopClock:
    """The clock to time a device's work by: its events, or on the CPU the host's clock."""
    return WallClock() if device.type == devices.CPU else EventClock(device)


def _nothing() -> None:
    return None
