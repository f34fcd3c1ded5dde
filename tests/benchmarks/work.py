"""The work that is compared, in terms that every library understands. Standard library only."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Work:
    """One training job: PPO on CartPole-v1, two separate tanh networks."""

    name: str
    num_envs: int
    rollout_steps: int
    minibatch_size: int
    epochs: int
    hidden: tuple[int, ...]
    timesteps: int
    learning_rate: float = 3e-4

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


WORKS = {
    work.name: work
    for work in (
        Work(
            name="v8",
            num_envs=8,
            rollout_steps=128,
            minibatch_size=256,
            epochs=4,
            hidden=(128, 128),
            timesteps=40 * 1024,
        ),
        Work(
            name="default",
            num_envs=1,
            rollout_steps=2048,
            minibatch_size=64,
            epochs=10,
            hidden=(128, 128),
            timesteps=5 * 2048,
        ),
    )
}
