"""When each phase runs: collecting, learning, and the schedules that order them."""

from hybridrl.execution.actor import Acted, Actor, DeviceActor, HostActor
from hybridrl.execution.bridge import Bridge, OneMemory, StoredApart, TwoMemories
from hybridrl.execution.budget import Budget
from hybridrl.execution.collector import Collector
from hybridrl.execution.synchronous import Iteration, synchronous

__all__ = [
    "Acted",
    "Actor",
    "Bridge",
    "Budget",
    "Collector",
    "DeviceActor",
    "HostActor",
    "Iteration",
    "OneMemory",
    "StoredApart",
    "TwoMemories",
    "synchronous",
]
