"""Where experience is kept between acting and learning."""

from hybridrl.data.rollout import Rollout, RolloutStorage

__all__ = ["Rollout", "RolloutStorage"]
