"""Where does the time go? Named phases, their timer and its report; how busy CPU and GPU were meanwhile."""

from hybridrl.profiling.clock import FakeClock
from hybridrl.profiling.compare import Comparison, compare
from hybridrl.profiling.monitor import Monitor
from hybridrl.profiling.report import PhaseRow, Report
from hybridrl.profiling.timer import NullTimer, PhaseTimer, Timer, measure_overhead, scope_cost
from hybridrl.profiling.tree import ScopeCost
from hybridrl.profiling.usage import ChildUsage, GpuUsage, Summary, Usage

__all__ = [
    "ChildUsage",
    "Comparison",
    "FakeClock",
    "GpuUsage",
    "Monitor",
    "NullTimer",
    "PhaseRow",
    "PhaseTimer",
    "Report",
    "ScopeCost",
    "Summary",
    "Timer",
    "Usage",
    "compare",
    "measure_overhead",
    "scope_cost",
]
