"""Clocks against a device that works behind the host's back."""

import contextlib

import pytest
import torch

from hybridrl.placement import EventClock, WallClock, clock
from hybridrl.profiling import FakeClock


class Device:
    """Work is queued at once and done later: its own time moves only when it works."""

    def __init__(self, host: FakeClock) -> None:
        self.host, self.queue, self.now_ns, self.waits = host, [], 0, 0  # type: ignore[var-annotated]

    def launch(self, seconds: float) -> None:
        self.queue.append(seconds)

    def synchronize(self) -> None:
        self.waits += 1
        for work in self.queue:
            if isinstance(work, Mark):
                work.reached_ns = self.now_ns
            else:
                self.now_ns += round(work * 1e9)
                self.host.advance(work)
        self.queue.clear()


class Mark:
    def __init__(self, device: Device) -> None:
        self.device, self.reached_ns = device, 0

    def record(self) -> None:
        self.device.queue.append(self)

    def elapsed_time(self, end: "Mark") -> float:
        return (end.reached_ns - self.reached_ns) / 1e6


@pytest.fixture
def device() -> Device:
    return Device(FakeClock())


def test_a_wall_clock_waits_so_that_work_is_charged_to_who_queued_it(device: Device) -> None:
    """C104."""
    timed = WallClock(device.synchronize, now=device.host)
    device.launch(1.0)  # before: not ours
    with timed.interval():
        device.launch(0.05)
    with timed.interval():
        pass
    assert timed.seconds() == pytest.approx([0.05, 0.0])


def test_without_waiting_the_work_would_seem_free(device: Device) -> None:
    timed = WallClock(now=device.host)
    with timed.interval():
        device.launch(0.05)
    assert timed.seconds() == [0.0]


def test_an_event_clock_reads_the_device_s_time_and_lets_the_host_run_ahead(device: Device) -> None:
    timed = EventClock(torch.device("cuda"), event=lambda: Mark(device), synchronize=device.synchronize)
    for seconds in (0.05, 0.25):
        with timed.interval():
            device.launch(seconds)
        device.launch(7.0)  # between: not ours
    assert device.waits == 0
    assert timed.seconds() == pytest.approx([0.05, 0.25])
    assert device.waits == 1


def test_an_interval_that_fails_still_ends(device: Device) -> None:
    timed = WallClock(device.synchronize, now=device.host)
    with contextlib.suppress(RuntimeError), timed.interval():
        device.launch(0.5)
        raise RuntimeError
    assert timed.seconds() == [0.5]


def test_the_cpu_is_timed_by_the_wall_and_a_device_by_its_events() -> None:
    assert isinstance(clock(torch.device("cpu")), WallClock)
    assert isinstance(clock(torch.device("cuda")), EventClock)
