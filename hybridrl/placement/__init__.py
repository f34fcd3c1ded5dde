"""Where each phase runs. The only folder that names devices."""

from hybridrl.placement.placement import Placement

__all__ = ["Placement"]
