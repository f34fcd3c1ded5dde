"""Proximal policy optimisation (Schulman et al., 2017), plain: the book teaches it, and faster code must equal it."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hybridrl.algorithms.divergence import diverged
from hybridrl.data import Rollout
from hybridrl.flat import FlatParameters
from hybridrl.networks import Policy, RewardNormalizer
from hybridrl.ops.checks import NonFiniteError
from hybridrl.ops.losses import clipped_policy_loss, clipped_value_loss, value_loss
from hybridrl.ops.returns import gae
from hybridrl.ops.statistics import approximate_kl, clip_fraction, explained_variance, standardize
from hybridrl.placement import to_host
from hybridrl.profiling import Timer
from hybridrl.profiling.phases import RETURNS, UPDATE


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """What PPO does with a rollout. All rates are per optimiser step, all lengths in environment steps.

    Raises:
        ValueError: a field is out of its range.
    """

    rollout_steps: int | None = 128
    """Steps of each environment between updates, or None for one whole episode (with one environment)."""
    epochs: int = 4
    """Passes over each rollout. More reuse, more policy lag."""
    minibatch_size: int | None = 256
    """Samples per optimiser step, or None for the whole rollout. Uneven rollouts are cut into near-equal parts."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Bias (0) against variance (1) of the advantages."""
    clip_range: float = 0.2
    """How far the probability ratio may move before its gradient is cut."""
    value_clip_range: float | None = None
    """The same for values, in units of the reward, or None for no clipping, which usually learns better."""
    value_coefficient: float = 0.5
    """Weight of the value loss. Matters where actor and critic share parameters or a gradient norm."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus, per nat."""
    learning_rate: float = 3e-4
    """Adam's, of the whole network, or of all but the critic."""
    critic_learning_rate: float | None = None
    """Adam's for the parameters named ``critic.``, or None for the same as the rest."""
    anneal: bool = False
    """Let the learning rates fall linearly to zero over the budget of ``learn``."""
    adam_epsilon: float = 1e-5
    """Adam's denominator offset."""
    max_gradient_norm: float | None = 0.5
    """Bound on the whole network's gradient norm, or None for no clipping."""
    normalize_advantage: bool = True
    """Standardise advantages in each minibatch."""
    value_target: Literal["lambda", "one-step"] = "lambda"
    """Fit the value to advantage + value (the lambda-return), or to r + gamma V(s') of acting time."""
    truncation: Literal["bootstrap", "terminate"] = "bootstrap"
    """What a time limit means. "terminate" repeats a common mistake, and is here to rerun work that made it."""
    reward_shift: float = 0.0
    """Added to each reward before learning."""
    reward_scale: float = 1.0
    """Multiplies each shifted reward before learning. Reported returns stay raw."""
    target_kl: float | None = None
    """Stop a rollout's epochs once the approximate KL divergence passes this, in nats. Costs one host read an epoch."""

    def __post_init__(self) -> None:
        kinds = {field.name: get_args(field.type) or (field.type,) for field in fields(self)}
        for name, low, high in _RANGES:
            _check_number(name, getattr(self, name), kinds[name], low, high)
        for name, choices in _CHOICES:
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(str, choices))}")


def _check_number(name: str, value: object, kinds: tuple[Any, ...], low: float, high: float) -> None:
    if value is None and NoneType in kinds:
        return
    wanted = int if int in kinds else int | float
    if isinstance(value, bool) or not isinstance(value, wanted) or not (isfinite(value) and low <= value <= high):
        what = "a whole number" if int in kinds else "a number"
        least = "above 0" if low == _TINY else f"of at least {low:g}" if isfinite(low) else "that is finite"
        most = f" and at most {high:g}" if isfinite(high) else ""
        raise ValueError(f"{name}={value!r}: expected {what} {least}{most}{', or None' if NoneType in kinds else ''}")


_INFINITY, _TINY = float("inf"), 1e-12
_RANGES = (
    ("rollout_steps", 1, _INFINITY),
    ("epochs", 1, _INFINITY),
    ("minibatch_size", 1, _INFINITY),
    ("gamma", 0, 1),
    ("gae_lambda", 0, 1),
    ("clip_range", _TINY, _INFINITY),
    ("value_clip_range", _TINY, _INFINITY),
    ("value_coefficient", 0, _INFINITY),
    ("entropy_coefficient", -_INFINITY, _INFINITY),
    ("learning_rate", 0, _INFINITY),
    ("critic_learning_rate", 0, _INFINITY),
    ("adam_epsilon", 0, _INFINITY),
    ("max_gradient_norm", _TINY, _INFINITY),
    ("reward_shift", -_INFINITY, _INFINITY),
    ("reward_scale", -_INFINITY, _INFINITY),
    ("target_kl", _TINY, _INFINITY),
)
_CHOICES: tuple[tuple[str, tuple[str | bool, ...]], ...] = (
    ("value_target", ("lambda", "one-step")),
    ("truncation", ("bootstrap", "terminate")),
    ("anneal", (False, True)),
    ("normalize_advantage", (False, True)),
)


@dataclass(frozen=True, kw_only=True)
class PPOStatistics:
    """One update, averaged over its minibatches; divergences and entropies in nats."""

    policy_loss: float
    value_loss: float
    entropy: float
    approximate_kl: float
    clip_fraction: float
    gradient_norm: float
    """Before clipping."""
    explained_variance: float
    """Of the returns, by the values of acting time; NaN where the returns don't vary."""
    optimizer_steps: int
    learning_rate: float


_STATISTICS = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction", "gradient_norm")
"""Of one optimiser step, in the order in which they are computed."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Valid samples of a rollout, flattened; B of them."""

    observation: Tensor  # [B, *shape]
    action: Tensor  # [B] or [B, A]
    log_prob: Tensor  # [B]
    value: Tensor  # [B]
    advantage: Tensor  # [B]
    target: Tensor  # [B]

    def take(self, index: Tensor) -> "_Batch":
        return _Batch(*(getattr(self, f.name)[index] for f in fields(_Batch)))

    def parts(self, size: int | None) -> int:
        """Minibatches of an epoch."""
        return 1 if size is None else -(-len(self.log_prob) // size)

    def minibatches(self, size: int | None, generator: torch.Generator) -> Iterator["_Batch"]:
        """Shuffle once, then slice: near-equal parts, so that no leftover of one or two samples takes a step."""
        count, parts = len(self.log_prob), self.parts(size)
        shuffled = self.take(torch.randperm(count, generator=generator, device=generator.device))
        edges = [count * part // parts for part in range(parts + 1)]
        for start, stop in pairwise(edges):
            yield _Batch(*(getattr(shuffled, f.name)[start:stop] for f in fields(_Batch)))


class PPOLearner:
    """Improves a policy from rollouts. It computes where the policy's parameters and the rollout live.

    Args:
        policy: its parameters become one flat vector.
        config: see :class:`PPOConfig`.
        num_envs: columns of the rollouts.
        generator: shuffles samples; on the parameters' device.
        normalize_reward: scale rewards by the deviation of their running discounted sums.
        timer: times the phases "returns" and "update".
    """

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig,
        *,
        num_envs: int,
        generator: torch.Generator,
        normalize_reward: bool = False,
        timer: Timer,
    ) -> None:
        self.policy, self.config, self.generator, self.timer = policy, config, generator, timer
        self.flat = FlatParameters(policy)
        with self.flat.values.device:
            self.reward_normalizer = RewardNormalizer(num_envs, gamma=config.gamma, enabled=normalize_reward)
        self.optimizer = _adam(self.flat, config)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._warned = False

    def update(self, rollout: Rollout, *, progress: float = 0.0) -> PPOStatistics:
        """Learn from one rollout.

        Args:
            rollout: fresh from the current policy.
            progress: share of the budget already spent, in [0, 1]; used by annealing only.

        Returns:
            What the update did; read from the device once, at its end.

        Raises:
            ValueError: the module was moved or cast.
            NonFiniteError: the update diverged, naming the first number in it that isn't finite.
        """
        self.flat.check()  # a module moved or cast since would train a vector that nobody reads
        self._anneal(progress)
        with self.timer.phase(RETURNS):
            batch = self._batch(rollout)
        with self.timer.phase(UPDATE):
            steps = self._epochs(batch)
            self.policy.normalizer.update(batch.observation)
            fit, fine = explained_variance(batch.value, batch.target), self._is_finite(batch, steps)
            *means, fitted, finite = to_host(torch.cat([steps.mean(0), torch.stack([fit, fine])])).tolist()
        if not finite:
            raise self._diverged(batch, steps)
        return PPOStatistics(
            **dict(zip(_STATISTICS, means, strict=True)),
            explained_variance=fitted,
            optimizer_steps=len(steps),
            learning_rate=self.optimizer.param_groups[0]["lr"],
        )

    @torch.no_grad()
    def _batch(self, rollout: Rollout) -> _Batch:
        """Advantages and value targets over ``[T, N]``, then the valid samples in one row."""
        c, r = self.config, rollout
        # What stands in a reset row belongs to no transition, and may be NaN: 0 x NaN would spread it.
        reward = torch.where(r.valid, (r.reward + c.reward_shift) * c.reward_scale, 0.0)
        value, next_value = (torch.where(r.valid, column, 0.0) for column in (r.value, r.next_value))
        done = r.terminated | r.truncated
        reward = self.reward_normalizer(reward, done, r.valid)
        terminated = done if c.truncation == "terminate" else r.terminated
        advantage = gae(reward, value, next_value, terminated, r.truncated, gamma=c.gamma, lambda_=c.gae_lambda)
        target = advantage + value
        if c.value_target == "one-step":
            target = reward + c.gamma * torch.where(terminated, 0.0, next_value)
        index = r.valid.flatten().nonzero().squeeze(-1)
        columns = (r.observation, r.action, r.log_prob, value, advantage, target)
        return _Batch(*(column.flatten(0, 1)[index] for column in columns))

    def _is_finite(self, batch: _Batch, steps: Tensor) -> Tensor:
        """1 where all that was learnt from and all that was learnt is finite, else 0; not read on the host."""
        trainable = self.flat.values[: self.flat.gradients.numel()]
        moments = (self.policy.normalizer.variance, self.reward_normalizer.variance)
        numbers = (steps, batch.advantage, batch.target, trainable, *moments)
        return torch.stack([torch.isfinite(tensor).all() for tensor in numbers]).all().type(steps.dtype)

    def _diverged(self, batch: _Batch, steps: Tensor) -> NonFiniteError:
        rewards = {"the variance of rewards": self.reward_normalizer.variance}
        return diverged(
            inputs={**rewards, "advantages": batch.advantage, "value targets": batch.target},
            steps=steps,
            statistics=_STATISTICS,
            minibatches=batch.parts(self.config.minibatch_size),
            weights={name: p for name, p in self.policy.named_parameters() if p.requires_grad},
            moments={"the variance of observations": self.policy.normalizer.variance},
        )

    def _epochs(self, batch: _Batch) -> Tensor:
        """Every epoch's minibatches; returns the statistics ``[S, 6]`` of the S optimiser steps."""
        steps = list[Tensor]()
        for _ in range(self.config.epochs):
            before = len(steps)
            steps += map(self._step, batch.minibatches(self.config.minibatch_size, self.generator))
            if self.config.target_kl and torch.stack(steps[before:])[:, 3].mean().item() > self.config.target_kl:
                break
        return torch.stack(steps)

    def _step(self, batch: _Batch) -> Tensor:
        """One optimiser step; returns its statistics ``[6]`` without reading them on the host."""
        self.flat.zero_grad()
        loss, statistics = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.flat.gather_gradients()
        norm = self.flat.clip_gradients_(self.config.max_gradient_norm or _INFINITY)
        self.optimizer.step()
        return torch.stack([*statistics, norm])

    def _loss(self, batch: _Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """PPO's loss on a minibatch, and policy loss, value loss, entropy, KL and clip fraction, detached."""
        c = self.config
        parameters, value = self.policy(batch.observation)
        log_prob, entropy = self.policy.head.evaluate(parameters, batch.action)
        policy = clipped_policy_loss(log_prob, batch.log_prob, self._advantage(batch), clip_range=c.clip_range)
        if c.value_clip_range is None:
            critic = value_loss(value, batch.target)
        else:
            critic = clipped_value_loss(value, batch.value, batch.target, clip_range=c.value_clip_range)
        loss = policy + c.value_coefficient * critic - c.entropy_coefficient * entropy.mean()
        with torch.no_grad():
            kl = approximate_kl(log_prob, batch.log_prob)
            clipped = clip_fraction(log_prob, batch.log_prob, clip_range=c.clip_range)
            return loss, (policy.detach(), critic.detach(), entropy.mean(), kl, clipped)

    def _advantage(self, batch: _Batch) -> Tensor:
        if not self.config.normalize_advantage:
            return batch.advantage
        if len(batch.advantage) == 1 and not self._warned:
            self._warned = True
            warnings.warn(
                "a minibatch of one sample has no spread: its advantage isn't normalised; use a larger minibatch_size",
                stacklevel=2,
            )
        return standardize(batch.advantage)

    def _anneal(self, progress: float) -> None:
        if self.config.anneal:
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * max(0.0, 1.0 - progress)


def _adam(flat: FlatParameters, config: PPOConfig) -> torch.optim.Adam:
    """One fused step for the whole network, or one for the critic and one for the rest."""
    if config.critic_learning_rate is None:
        groups = [{"params": flat.leaves(), "lr": config.learning_rate}]
    else:
        critic = "network.critic."
        groups = [
            {"params": flat.leaves(without=critic), "lr": config.learning_rate},
            {"params": _critic_leaves(flat, critic), "lr": config.critic_learning_rate},
        ]
    try:
        return torch.optim.Adam(groups, eps=config.adam_epsilon, fused=True)
    except RuntimeError:  # this device or dtype has no fused kernel; the arithmetic is the same
        return torch.optim.Adam(groups, eps=config.adam_epsilon)


def _critic_leaves(flat: FlatParameters, prefix: str) -> list[nn.Parameter]:
    try:
        return flat.leaves(prefix=prefix)
    except ValueError:
        raise ValueError(
            "critic_learning_rate needs a network with a part named 'critic': name it so, or leave the rate out"
        ) from None
