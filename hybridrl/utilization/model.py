"""Step time and busy share of a device, from the times of one step's phases.

In every formula a is host time (acting, environments), b device time (learning), c copy time, all for the
same step and in the same unit. "Busy" is a share of *time*: some kernel was running, however few of the
device's cores it used. Floats and integers give floats; ``fractions.Fraction`` stays exact throughout.

The starting point b / (a + b) is the rule of thumb under test, not a law: it leaves out launch-bound work,
the growth of b with the batch, and contention between processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

Number: TypeAlias = float | Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTimes:
    """What one step costs: seconds on the host, on the device, and moving data between them.

    Raises ValueError for a time that is negative or not finite, and where all three are zero.
    """

    host_s: Number
    device_s: Number
    transfer_s: Number = 0

    def __post_init__(self) -> None:
        for name in ("host_s", "device_s", "transfer_s"):
            _check_time(name, getattr(self, name))
        if not serial_step_time(self):
            raise ValueError("host_s, device_s and transfer_s are all 0: expected a step that takes time")

    @property
    def bottleneck(self) -> Literal["host", "device", "transfer"]:
        """The longest part, the one that a perfect overlap would leave; the host on a tie."""
        longest = max(self.host_s, self.device_s, self.transfer_s)
        if longest == self.host_s:
            return "host"
        return "device" if longest == self.device_s else "transfer"


def busy_share(a: Number, b: Number) -> Number:
    """The device's busy share when host and device take turns: b / (a + b), from 0 to 1.

    ValueError for a negative or not finite time, and for two zeros.
    """
    return serial_busy_share(PhaseTimes(host_s=a, device_s=b))


def serial_step_time(times: PhaseTimes) -> Number:
    """One thing after another: a + b + c."""
    return times.host_s + times.device_s + times.transfer_s


def serial_busy_share(times: PhaseTimes) -> Number:
    """One thing after another: b / (a + b + c). A copy is not a kernel, so it counts as idle."""
    return times.device_s / serial_step_time(times)


def overlapped_step_time(times: PhaseTimes) -> Number:
    """Everything at once: max(a, b, c), which no schedule of one host, device and copy engine beats."""
    return max(times.host_s, times.device_s, times.transfer_s)


def overlapped_busy_share(times: PhaseTimes) -> Number:
    """Everything at once: b / max(a, b, c); 1 only where the device is the bottleneck."""
    return times.device_s / overlapped_step_time(times)


def k_processes(times: PhaseTimes, k: int, *, cores: int | None = None) -> Number:
    """The device's busy share with k serial processes on it: min(1, k b / (a + b + c), cores b / a).

    The last term is there where ``cores`` is given: the host can't do more than ``cores`` seconds of work a
    second. An upper bound: it supposes that the processes never collide while the device is free.
    ValueError for k or cores below 1.
    """
    _check_count("k", k)
    shares: list[Number] = [1, k * serial_busy_share(times)]
    if cores is not None:
        _check_count("cores", cores)
        if times.host_s:
            shares.append(cores * times.device_s / times.host_s)
    return min(shares)


def serial_speedup(times: PhaseTimes, device_speedup: Number) -> Number:
    """How much faster a serial step gets on a device so many times faster: (a + b + c) / (a + b / s + c).

    ``device_speedup`` is above 0, and may be ``math.inf``. Never above ``speedup_bound(b / (a + b + c))``.
    """
    return _ratio(serial_step_time(times), times.host_s + times.transfer_s + _faster(times, device_speedup))


def overlapped_speedup(times: PhaseTimes, device_speedup: Number = 1) -> Number:
    """The same against a perfectly overlapped step: (a + b + c) / max(a, b / s, c)."""
    longest = max(times.host_s, times.transfer_s, _faster(times, device_speedup))
    return _ratio(serial_step_time(times), longest)


def speedup_bound(train_share: Number) -> Number:
    """The most that a faster learner can gain in a serial loop: 1 / (1 - f), f the learner's share of it.

    Infinite for f = 1; ValueError outside 0 to 1. Amdahl's law (Amdahl, 1967).
    """
    if not 0 <= train_share <= 1:
        raise ValueError(f"train_share={train_share}: expected a share of the step, from 0 to 1")
    return _ratio(1, 1 - train_share)


def _faster(times: PhaseTimes, device_speedup: Number) -> Number:
    if not device_speedup > 0:
        raise ValueError(f"device_speedup={device_speedup}: expected above 0 (math.inf for a free device)")
    return 0 if device_speedup == math.inf else times.device_s / device_speedup


def _ratio(above: Number, below: Number) -> Number:
    return above / below if below else math.inf


def _check_time(name: str, value: Number) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value}: expected a finite time, 0 or more")


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}={value}: expected 1 or more")
