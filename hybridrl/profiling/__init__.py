"""Where does the time go? Named phases, their timer, and its report."""

from hybridrl.profiling.clock import FakeClock
from hybridrl.profiling.compare import Comparison, compare
from hybridrl.profiling.report import PhaseRow, Report
from hybridrl.profiling.timer import NullTimer, PhaseTimer, Timer, measure_overhead, scope_cost
from hybridrl.profiling.tree import ScopeCost

__all__ = [
    "Comparison",
    "FakeClock",
    "NullTimer",
    "PhaseRow",
    "PhaseTimer",
    "Report",
    "ScopeCost",
    "Timer",
    "compare",
    "measure_overhead",
    "scope_cost",
]
