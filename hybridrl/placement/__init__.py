"""Where each phase runs. The only folder that names devices."""

from hybridrl.placement import devices
from hybridrl.placement.clocks import EventClock, StopClock, WallClock, clock
from hybridrl.placement.placement import Placement
from hybridrl.placement.staging import Staging
from hybridrl.placement.transfer import copy_to, left_behind, move, move_training, pin, to_host

__all__ = [
    "EventClock",
    "Placement",
    "Staging",
    "StopClock",
    "WallClock",
    "clock",
    "copy_to",
    "devices",
    "left_behind",
    "move",
    "move_training",
    "pin",
    "to_host",
]
