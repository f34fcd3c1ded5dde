"""How busy can a device be? Exact arithmetic on phase times; imports only the standard library."""

from hybridrl.utilization.model import (
    PhaseTimes,
    busy_share,
    k_processes,
    overlapped_busy_share,
    overlapped_speedup,
    overlapped_step_time,
    serial_busy_share,
    serial_speedup,
    serial_step_time,
    speedup_bound,
)

__all__ = [
    "PhaseTimes",
    "busy_share",
    "k_processes",
    "overlapped_busy_share",
    "overlapped_speedup",
    "overlapped_step_time",
    "serial_busy_share",
    "serial_speedup",
    "serial_step_time",
    "speedup_bound",
]
