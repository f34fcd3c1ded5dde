"""Recipes: functions that return full configurations. A variant is ``dataclasses.replace`` away.

``classic_*`` repeat the set-up that the tested claims were made on; ``tuned_*`` learn as fast as we could make them.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from hybridrl.algorithms import PPOConfig
from hybridrl.envs import Bounds
from hybridrl.execution import Budget
from hybridrl.networks import NetworkConfig


@dataclass(frozen=True, kw_only=True)
class PPORecipe:
    """Everything that PPO needs besides an environment and a seed.

    Raises:
        ValueError: fields that contradict one another.
    """

    ppo: PPOConfig = field(default_factory=PPOConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    num_envs: int = 8
    """Environments stepped together."""
    max_episode_steps: int | None = None
    """Cut episodes here, or if None, where the environment's registration says."""
    bounds: Bounds | None = None
    """How continuous actions meet their Box, as ``ActionSpec`` says, or None to scale where all sides are bounded."""
    normalize_observation: bool = False
    """By running moments, which are part of the policy."""
    normalize_reward: bool = False
    """By the deviation of running discounted sums of rewards."""
    budget: Budget = field(default_factory=lambda: Budget(timesteps=100_000))
    """How long ``learn`` trains when it isn't told."""

    def __post_init__(self) -> None:
        for name, kind in (("ppo", PPOConfig), ("network", NetworkConfig), ("budget", Budget)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}={getattr(self, name)!r:.60}: expected a {kind.__name__}")
        if self.bounds not in (None, "scale", "clip"):
            raise ValueError(f"bounds={self.bounds!r}: expected 'scale', 'clip' or None")
        for name in ("normalize_observation", "normalize_reward"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected True or False")
        if type(self.num_envs) is not int or self.num_envs < 1:
            raise ValueError(f"num_envs={self.num_envs!r}: expected a whole number of at least 1")
        if self.ppo.rollout_steps is None and self.num_envs != 1:
            raise ValueError(
                f"rollout_steps=None (one whole episode a rollout) needs num_envs=1, got {self.num_envs}: "
                "give a number of rollout_steps"
            )

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Invert :meth:`to_dict`.

        Raises:
            ValueError: a field isn't known here, or is out of its range.
        """
        try:
            network = {**data["network"], "hidden": tuple(data["network"]["hidden"])}
            parts = {
                "ppo": PPOConfig(**data["ppo"]),
                "network": NetworkConfig(**network),
                "budget": Budget(**data["budget"]),
            }
            return cls(**{**data, **parts})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a recipe of this version: {error}; it may need another hybridrl") from None


def default_ppo() -> PPORecipe:
    """A steady start for any environment: 8 environments x 128 steps, minibatches of 256, 4 epochs."""
    return PPORecipe(ppo=PPOConfig(entropy_coefficient=0.01, anneal=True))


def classic_ppo_cartpole() -> PPORecipe:
    """The teaching set-up behind the CartPole claims: one environment, one update an episode, 500 episodes."""
    return PPORecipe(
        ppo=_classic(gamma=0.98, gae_lambda=0.95, learning_rate=1e-3, critic_learning_rate=1e-2),
        network=NetworkConfig(hidden=(128,), activation="relu", initialization="torch"),
        num_envs=1,
        max_episode_steps=200,
        budget=Budget(episodes=500),
    )


def classic_ppo_pendulum() -> PPORecipe:
    """The teaching set-up behind the Pendulum claims: rewards (r + 8) / 8, 2,000 episodes."""
    return PPORecipe(
        ppo=_classic(
            gamma=0.9,
            gae_lambda=0.9,
            learning_rate=1e-4,
            critic_learning_rate=5e-3,
            reward_shift=8.0,
            reward_scale=1 / 8,
        ),
        network=NetworkConfig(
            hidden=(128,), activation="relu", initialization="torch", deviation="state", mean_bound=2.0
        ),
        num_envs=1,
        bounds="clip",
        budget=Budget(episodes=2_000),
    )


def tuned_ppo_cartpole() -> PPORecipe:
    """CartPole-v1 to a mean return of 475: many short rollouts, reused often, with a rate that falls to zero."""
    return PPORecipe(
        ppo=PPOConfig(
            rollout_steps=32,
            epochs=8,
            minibatch_size=256,
            gamma=0.98,
            learning_rate=2.5e-3,
            anneal=True,
        ),
        num_envs=32,
        budget=Budget(timesteps=40_000),
    )


def tuned_ppo_pendulum() -> PPORecipe:
    """Pendulum-v1 to a mean return of -200: a short horizon, and rewards scaled to the size that Adam's rate suits."""
    return PPORecipe(
        ppo=PPOConfig(
            rollout_steps=128,
            epochs=10,
            minibatch_size=128,
            gamma=0.9,
            learning_rate=1e-3,
            anneal=True,
            reward_scale=0.1,
        ),
        num_envs=8,
        bounds="scale",
        budget=Budget(timesteps=200_000),
    )


def _classic(
    *,
    gamma: float,
    gae_lambda: float,
    learning_rate: float,
    critic_learning_rate: float,
    reward_shift: float = 0.0,
    reward_scale: float = 1.0,
) -> PPOConfig:
    """What the two classic set-ups share. Twice half the squared error is the mean squared error they minimise."""
    return PPOConfig(
        rollout_steps=None,
        epochs=10,
        minibatch_size=None,
        gamma=gamma,
        gae_lambda=gae_lambda,
        value_coefficient=2.0,
        learning_rate=learning_rate,
        critic_learning_rate=critic_learning_rate,
        adam_epsilon=1e-8,
        max_gradient_norm=None,
        normalize_advantage=False,
        value_target="one-step",
        reward_shift=reward_shift,
        reward_scale=reward_scale,
    )


_PPO: dict[tuple[str, str], Callable[[], PPORecipe]] = {
    ("classic", "CartPole-v1"): classic_ppo_cartpole,
    ("classic", "Pendulum-v1"): classic_ppo_pendulum,
    ("tuned", "CartPole-v1"): tuned_ppo_cartpole,
    ("tuned", "Pendulum-v1"): tuned_ppo_pendulum,
}


def ppo(name: str, env_id: str | None) -> PPORecipe:
    """Find PPO's recipe of a name for an environment.

    Args:
        name: ``"default"``, which suits any environment, ``"classic"`` or ``"tuned"``.
        env_id: a Gymnasium id; None for environments without one.

    Raises:
        ValueError: there is no such recipe; the message lists what there is.
    """
    if name == "default":
        return default_ppo()
    if (name, str(env_id)) not in _PPO:
        known = ", ".join(f"{recipe!r} for {env}" for recipe, env in _PPO)
        raise ValueError(f"no recipe {name!r} for {env_id or 'this environment'}: there are 'default' for any, {known}")
    return _PPO[name, str(env_id)]()
