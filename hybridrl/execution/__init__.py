"""When each phase runs: collecting, learning, and the schedules that order them."""

from hybridrl.execution.budget import Budget
from hybridrl.execution.collector import Collector
from hybridrl.execution.synchronous import Iteration, synchronous

__all__ = ["Budget", "Collector", "Iteration", "synchronous"]
