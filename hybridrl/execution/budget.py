"""How long to train: in environment steps or in episodes."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """An amount of training, in exactly one of two units.

    Raises:
        ValueError: not exactly one of the two is given, or it is below 1.
    """

    timesteps: int | None = None
    """Environment steps, summed over environments. Reset rows don't count."""
    episodes: int | None = None
    """Finished episodes, summed over environments."""
    first_timestep: int = 0
    """Steps taken before this budget began; they aren't part of it."""
    first_episode: int = 0
    """Episodes finished before it began."""

    def __post_init__(self) -> None:
        given = [amount for amount in (self.timesteps, self.episodes) if amount is not None]
        if len(given) != 1 or type(given[0]) is not int or given[0] < 1:
            raise ValueError(
                f"total_timesteps={self.timesteps!r}, total_episodes={self.episodes!r}: "
                "expected exactly one of the two, an integer of at least 1"
            )

    @property
    def amount(self) -> int:
        """Steps or episodes in all."""
        return self.timesteps or self.episodes or 0

    def spent(self, *, timesteps: int, episodes: int) -> int:
        """Steps or episodes spent, given the totals since the agent was made."""
        return timesteps - self.first_timestep if self.timesteps else episodes - self.first_episode

    def rows_left(self, *, timesteps: int, num_envs: int) -> float:
        """Whole vector steps that fit into what is left; infinite when counting episodes."""
        if self.timesteps is None:
            return float("inf")
        return (self.timesteps - self.spent(timesteps=timesteps, episodes=0)) // num_envs

    def is_spent(self, *, timesteps: int, episodes: int, num_envs: int) -> bool:
        """Whether nothing more fits: less than one step of every environment is left, or no episode."""
        left = self.amount - self.spent(timesteps=timesteps, episodes=episodes)
        return left < (num_envs if self.timesteps else 1)
