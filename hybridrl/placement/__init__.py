"""Where each phase runs. The only folder that names devices."""

from hybridrl.placement import devices
from hybridrl.placement.clocks import EventClock, StopClock, WallClock, clock
from hybridrl.placement.placement import Placement
from hybridrl.placement.transfer import left_behind, move, move_training, to_host

__all__ = [
    "EventClock",
    "Placement",
    "StopClock",
    "WallClock",
    "clock",
    "devices",
    "left_behind",
    "move",
    "move_training",
    "to_host",
]
