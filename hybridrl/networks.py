"""Networks: what maps observations to the parameters of an action distribution and to a value.

A network of your own is any module with ``forward(observation [B, ...]) -> (parameters [B, K], value [B])``, where K is
the head's ``parameter_size``. :class:`Policy` adds what the network needn't know: casting, normalisation, sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hybridrl.ops import distributions
from hybridrl.ops.returns import running_returns
from hybridrl.ops.statistics import Moments, combine_moments

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Shape and initialisation of the built-in actor and critic, which are separate networks of one shape.

    Raises:
        ValueError: a field is out of its range.
    """

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between layers. Tanh keeps small on-policy networks steadier."""
    initialization: Literal["orthogonal", "torch"] = "orthogonal"
    """Orthogonal weights with a small last actor layer (first actions nearly uniform), or torch's default."""
    deviation: Literal["free", "state"] = "free"
    """Of Gaussian policies, one learnt log standard deviation per dimension, or a softplus output of the network."""
    initial_log_std: float = 0.0
    """Where a free log standard deviation starts; 0 is a deviation of 1."""
    mean_bound: float | None = None
    """Of Gaussian policies, squash the mean by tanh into +- this many action units, or None to leave it free."""

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple) or not all(isinstance(n, int) and n >= 1 for n in self.hidden):
            raise ValueError(f"hidden={self.hidden}: expected a tuple of layer sizes of at least 1, such as (64, 64)")
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r}: expected one of {', '.join(_ACTIVATIONS)}")
        if self.initialization not in ("orthogonal", "torch"):
            raise ValueError(f"initialization={self.initialization!r}: expected 'orthogonal' or 'torch'")
        if self.deviation not in ("free", "state"):
            raise ValueError(f"deviation={self.deviation!r}: expected 'free' or 'state'")
        if self.deviation == "state" and self.initial_log_std != 0.0:
            raise ValueError(f"initial_log_std={self.initial_log_std}: used with deviation='free' only; leave it out")
        if not math.isfinite(self.initial_log_std):
            raise ValueError(f"initial_log_std={self.initial_log_std}: expected a finite number")
        if self.mean_bound is not None and not 0 < self.mean_bound < math.inf:
            raise ValueError(f"mean_bound={self.mean_bound}: expected None or a finite number above 0")


class Head(Protocol):
    """An action distribution: how many parameters it takes, and what to do with them."""

    @property
    def parameter_size(self) -> int:
        """Width K of the parameter tensor."""

    def sample(self, parameters: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions from parameters ``[..., K]``."""

    def evaluate(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of the actions and entropy, ``[...]`` each, in nats."""

    def mode(self, parameters: Tensor) -> Tensor:
        """Most probable actions."""


@dataclass(frozen=True)
class CategoricalHead:
    """``size`` discrete actions; the parameters are logits ``[..., size]``, actions int64 ``[...]``."""

    size: int

    @property
    def parameter_size(self) -> int:
        """One logit per action."""
        return self.size

    def sample(self, parameters: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions: see :func:`~hybridrl.ops.distributions.categorical_sample`."""
        return distributions.categorical_sample(parameters, generator=generator)

    def evaluate(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy: see :func:`~hybridrl.ops.distributions.categorical_evaluate`."""
        return distributions.categorical_evaluate(parameters, action)

    def mode(self, parameters: Tensor) -> Tensor:
        """Most probable action."""
        return distributions.categorical_mode(parameters)


@dataclass(frozen=True)
class MultiCategoricalHead:
    """Discrete actions in A dimensions, ``sizes[j]`` each; logits ``[..., sum(sizes)]``, actions int64 ``[..., A]``.

    Raises:
        ValueError: there are no sizes, or one is below 1.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes={self.sizes}: expected at least one, each of at least 1")

    @property
    def parameter_size(self) -> int:
        """One logit per action of each dimension."""
        return sum(self.sizes)

    def sample(self, parameters: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions: see :func:`~hybridrl.ops.distributions.multi_categorical_sample`."""
        return distributions.multi_categorical_sample(parameters, self.sizes, generator=generator)

    def evaluate(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy: see :func:`~hybridrl.ops.distributions.multi_categorical_evaluate`."""
        return distributions.multi_categorical_evaluate(parameters, action, self.sizes)

    def mode(self, parameters: Tensor) -> Tensor:
        """Most probable action of each dimension."""
        return distributions.multi_categorical_mode(parameters, self.sizes)


@dataclass(frozen=True)
class GaussianHead:
    """``size`` continuous dimensions; the parameters are means then log standard deviations ``[..., 2 size]``."""

    size: int

    @property
    def parameter_size(self) -> int:
        """A mean and a log standard deviation per dimension."""
        return 2 * self.size

    def sample(self, parameters: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions: see :func:`~hybridrl.ops.distributions.gaussian_sample`."""
        return distributions.gaussian_sample(parameters, generator=generator)

    def evaluate(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density and entropy: see :func:`~hybridrl.ops.distributions.gaussian_evaluate`."""
        return distributions.gaussian_evaluate(parameters, action)

    def mode(self, parameters: Tensor) -> Tensor:
        """Mean."""
        return distributions.gaussian_mode(parameters)


def mlp(sizes: Sequence[int], *, activation: str = "tanh", output_gain: float | None = 1.0) -> nn.Sequential:
    """Fully connected layers with an activation between them, none after the last.

    Args:
        sizes: units of input, hidden layers and output; at least two entries.
        activation: ``"tanh"`` or ``"relu"``.
        output_gain: scale of the last layer's orthogonal weights (hidden ones: sqrt 2); None keeps torch's default.

    Returns:
        A module ``[..., sizes[0]] -> [..., sizes[-1]]``.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), _ACTIVATIONS[activation]()]
    network = nn.Sequential(*layers[:-1])
    if output_gain is not None:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        for layer in linear:
            nn.init.orthogonal_(layer.weight, output_gain if layer is linear[-1] else math.sqrt(2.0))
            nn.init.zeros_(layer.bias)
    return network


class ActorCritic(nn.Module):
    """An actor and a critic of the same shape side by side, sharing nothing.

    Args:
        inputs: size of a flattened observation.
        head: the action distribution.
        config: shape and initialisation.
    """

    def __init__(self, inputs: int, head: Head, config: NetworkConfig) -> None:
        super().__init__()
        self._gaussian = head.size if isinstance(head, GaussianHead) else None
        self._mean_bound, self._state_deviation = config.mean_bound, config.deviation == "state"
        free = self._gaussian is not None and not self._state_deviation
        outputs = head.parameter_size // 2 if free else head.parameter_size
        orthogonal = config.initialization == "orthogonal"
        self.actor = mlp(
            (inputs, *config.hidden, outputs),
            activation=config.activation,
            output_gain=0.01 if orthogonal else None,
        )
        self.log_std = nn.Parameter(torch.full((outputs,), config.initial_log_std)) if free else None
        self.critic = mlp(
            (inputs, *config.hidden, 1), activation=config.activation, output_gain=1.0 if orthogonal else None
        )

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution parameters ``[B, K]`` and value ``[B]`` of observations ``[B, ...]``."""
        flat = observation.flatten(1)
        output = self.actor(flat)
        if self._gaussian is not None:
            output = self._gaussian_parameters(output)
        return output, self.critic(flat).squeeze(-1)

    def _gaussian_parameters(self, output: Tensor) -> Tensor:
        if self.log_std is not None:
            mean, log_std = output, self.log_std.expand_as(output)
        else:
            mean, raw = output.chunk(2, -1)
            log_std = (nn.functional.softplus(raw) + 1e-6).log()
        if self._mean_bound is not None:
            mean = mean.tanh() * self._mean_bound
        return torch.cat([mean, log_std], -1)


class ObservationNormalizer(nn.Module):
    """Shifts and scales observations by the moments of those seen so far, clipped to +-10 deviations.

    Its buffers are part of the policy: they are published with the weights and saved with the agent. They change only
    in :meth:`update`, so that acting on a rollout and learning from it see the same numbers.

    Args:
        shape: of one observation.
        enabled: False leaves observations alone.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: tuple[int, ...], *, enabled: bool = True) -> None:
        super().__init__()
        self.enabled = enabled
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    def forward(self, observation: Tensor) -> Tensor:
        """Normalised observations ``[B, *shape]``, in the buffers' dtype; bytes are first mapped to [0, 1]."""
        cast = observation.type(self.mean.dtype)
        if observation.dtype == torch.uint8:
            cast = cast / 255.0
        if not self.enabled:
            return cast
        return ((cast - self.mean) * (self.variance + 1e-8).rsqrt()).clamp(-10.0, 10.0)

    @torch.no_grad()
    def update(self, observation: Tensor) -> None:
        """Take in a batch ``[B, *shape]`` of raw observations."""
        if not self.enabled:
            return
        scaled = observation.type(self.mean.dtype) / (255.0 if observation.dtype == torch.uint8 else 1.0)
        _assign(self, combine_moments(Moments(self.count, self.mean, self.variance), scaled))


class RewardNormalizer(nn.Module):
    """Divides rewards by the standard deviation of the discounted sums of rewards seen so far, clipped to +-10.

    Args:
        num_envs: environments, each with its own running sum.
        gamma: discount per step.
        enabled: False leaves rewards alone.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    running: Tensor

    def __init__(self, num_envs: int, *, gamma: float, enabled: bool = True) -> None:
        super().__init__()
        self.enabled, self.gamma = enabled, gamma
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("variance", torch.ones(()))
        # Belongs to the episodes under way, which end with the process: not saved.
        self.register_buffer("running", torch.zeros(num_envs), persistent=False)

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor, valid: Tensor) -> Tensor:
        """Take in a rollout's rewards ``[T, N]`` and scale them; rows that aren't ``valid`` carry no reward."""
        if not self.enabled:
            return reward
        sums = running_returns(reward, done, self.running, gamma=self.gamma)
        self.running.copy_(torch.where(done[-1], 0.0, sums[-1]))
        _assign(self, combine_moments(Moments(self.count, self.mean, self.variance), sums[valid]))
        return (reward * (self.variance + 1e-8).rsqrt()).clamp(-10.0, 10.0)


def _assign(module: "ObservationNormalizer | RewardNormalizer", moments: Moments) -> None:
    """In place: whoever holds a buffer (a publisher, an acting copy) keeps seeing it."""
    module.count.copy_(moments.size)
    module.mean.copy_(moments.mean)
    module.variance.copy_(moments.variance)


class Decision(NamedTuple):
    """What a policy says to a batch of observations while acting."""

    action: Tensor  # int64 [B] or [B, A], or float [B, A]: as sampled, before clipping or scaling
    log_prob: Tensor  # [B], in nats
    value: Tensor  # [B]


class Policy(nn.Module):
    """A network with its observation normaliser and action head: what acts, is learnt, published and saved.

    Args:
        network: ``forward(observation [B, ...]) -> (parameters [B, K], value [B])``.
        head: the action distribution, with ``parameter_size`` K.
        normalizer: applied to raw observations before the network.
    """

    def __init__(self, network: nn.Module, head: Head, normalizer: ObservationNormalizer) -> None:
        super().__init__()
        self.network, self.head, self.normalizer = network, head, normalizer

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution parameters ``[B, K]`` and values ``[B]`` of raw observations ``[B, ...]``."""
        parameters, value = self.network(self.normalizer(observation))
        return parameters, value

    @torch.no_grad()
    def act(self, observation: Tensor, *, generator: torch.Generator) -> Decision:
        """Sample actions for a batch of raw observations ``[B, ...]``."""
        parameters, value = self(observation)
        action = self.head.sample(parameters, generator=generator)
        return Decision(action, self.head.evaluate(parameters, action)[0], value)

    @torch.no_grad()
    def value(self, observation: Tensor) -> Tensor:
        """Values ``[B]`` of raw observations ``[B, ...]``, without a gradient."""
        value: Tensor = self(observation)[1]
        return value

    @torch.no_grad()
    def predict(self, observation: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Most probable actions ``[B, ...]``, or with a generator sampled ones."""
        parameters, _ = self(observation)
        return self.head.mode(parameters) if generator is None else self.head.sample(parameters, generator=generator)

    def check(self, observation: Tensor) -> None:
        """Run one batch ``[B, ...]`` through the network twice, and see whether it suits the head and learning.

        Raises:
            ValueError: the network returns something other than ``(parameters [B, K], value [B])``, or it answers
                the same batch in two ways, or changes by answering.
        """
        batch, width = observation.shape[0], self.head.parameter_size
        before = [buffer.clone() for buffer in self.network.buffers()]
        try:
            with torch.no_grad():
                output, again = (self.network(self.normalizer(observation)) for _ in range(2))
        except RuntimeError as error:
            shape, why = list(observation.shape[1:]), " ".join(str(error).split())
            raise ValueError(f"the network doesn't take observations of shape [{batch}, *{shape}]: {why}") from None
        shapes = (
            [tuple(getattr(o, "shape", ())) for o in output] if isinstance(output, tuple) else type(output).__name__
        )
        if shapes != [(batch, width), (batch,)]:
            raise ValueError(
                f"the network returned {shapes} for {batch} observations; expected a tuple (parameters [{batch}, "
                f"{width}], value [{batch}]) for {type(self.head).__name__}({width} parameters)"
            )
        same = all(map(torch.equal, output, again)) and all(map(torch.equal, before, self.network.buffers()))
        if not same:
            raise ValueError(
                "the network answers one batch in two ways, or changes by answering (dropout, batch normalisation?): "
                "PPO compares what it said when acting with what it says when learning; call network.eval(), or "
                "take such layers out (LayerNorm is fine)"
            )
