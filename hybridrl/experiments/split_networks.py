"""The actor on one device and the critic on another: a published design made correct (claim C5)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hybridrl.data.arena import Arena
from hybridrl.envs import Environments, Episode, EpisodeTracker, Step
from hybridrl.flat import FlatParameters
from hybridrl.networks import CategoricalHead, mlp
from hybridrl.ops.losses import clipped_policy_loss, value_loss
from hybridrl.ops.returns import gae
from hybridrl.placement import devices, move
from hybridrl.profiling import Timer
from hybridrl.profiling.phases import ACT, COLLECT, ENV, LEARN, RETURNS, STORE, TRANSFER, UPDATE


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """The classic CartPole set-up, but for rollouts of a fixed length, so that every update is the same work."""

    rows: int = 200
    """Transitions an update."""
    hidden: int = 128
    """Units of each network's one hidden layer."""
    epochs: int = 10
    """Passes over each rollout, which is one batch."""
    gamma: float = 0.98
    """Discount per step."""
    gae_lambda: float = 0.95
    """Of the advantages."""
    clip_range: float = 0.2
    """PPO's epsilon."""
    actor_rate: float = 1e-3
    """Adam's."""
    critic_rate: float = 1e-2
    """Adam's."""


class SplitActorCritic:
    """PPO with the actor on one device and the critic on another, for one environment with discrete actions.

    As published, the class can't compute PPO's loss. The advantages in it need the critic's values, which are on one
    device, and weigh the actor's probabilities, which are on the other: torch joins no such tensors (only single
    numbers, such as two finished losses, may be added). It also acts greedily: nothing is explored, and there is no
    probability of a sampled action to form a ratio from.

    The two networks share no parameter, so that the loss is a sum of two, whose gradients can be taken apart. Here each
    network has a loss and an optimiser of its own, on its own device. Actions are sampled while training, and their
    log-probabilities kept. An update takes one transfer each way: what the critic needs goes there at once, and the
    values of all observations come back to where the advantages are computed.

    Args:
        observation_size: numbers in an observation.
        actions: how many there are.
        config: see :class:`SplitConfig`.
        actor_device: where it acts, and the actor learns, such as ``"cpu"``.
        critic_device: where the critic learns, such as ``"cuda"``.
        seed: of the networks and of the actions.
        timer: times the phases "returns", "update" and "transfer".

    Raises:
        ValueError: a device isn't here.

    Attributes:
        outgoing: what the critic needs of a rollout, on the host: observations and those that followed ``[2, T, K]``,
            rewards and terminations ``[T]``.
        kept: what it doesn't: actions, their log-probabilities and truncations ``[T]``.
        values: of both kinds of observations ``[2, T]``, on the host.
    """

    def __init__(
        self,
        observation_size: int,
        actions: int,
        config: SplitConfig,
        *,
        actor_device: str,
        critic_device: str,
        seed: int,
        timer: Timer,
    ) -> None:
        self.config, self.head, self.timer = config, CategoricalHead(actions), timer
        self._actor_device, critic_on = devices.resolve(actor_device), devices.resolve(critic_device)
        actor, critic = _networks(observation_size, actions, config.hidden, seed)
        self.actor = Learnt(move(actor, self._actor_device), config.actor_rate)
        self.critic = Learnt(move(critic, critic_on), config.critic_rate)
        self._generator = devices.generator(self._actor_device, seed)
        rows, boolean, number = (config.rows,), torch.bool, torch.float32
        sent = {"observation": ((2, *rows, observation_size), number), "reward": (rows, number)}
        self.outgoing = Arena(sent | {"terminated": (rows, boolean)}, pin=devices.can_pin(critic_on))
        self.arrived = self.outgoing.like(critic_on)
        kept = {"action": (rows, torch.int64), "log_prob": (rows, number), "truncated": (rows, boolean)}
        self.kept = Arena(kept)
        self.values = torch.empty(2, config.rows)
        self._row = 0

    @property
    def full(self) -> bool:
        """Whether a rollout is complete, and :meth:`update` next."""
        return self._row == self.config.rows

    @torch.no_grad()
    def act(self, observation: npt.NDArray[np.generic]) -> tuple[Tensor, Tensor]:
        """Sample actions for observations ``[N, K]``; returns them and their log-probabilities, on the host."""
        logits = self.actor.network(move(torch.from_numpy(observation), self._actor_device))
        action = self.head.sample(logits, generator=self._generator)
        return move((action, self.head.evaluate(logits, action)[0]), devices.CPU)

    def store(self, observation: npt.NDArray[np.generic], acted: tuple[Tensor, Tensor], step: Step) -> None:
        """Keep one transition; a step that only reset is none."""
        if not step.valid[0]:
            return
        followed = step.observation if step.final_observation is None else step.final_observation
        row, sent, kept = self._row, self.outgoing.views, self.kept.views
        sent["observation"][:, row] = torch.from_numpy(np.stack([observation[0], followed[0]]))
        sent["reward"][row], sent["terminated"][row] = float(step.reward[0]), bool(step.terminated[0])
        kept["action"][row], kept["log_prob"][row] = acted[0][0], acted[1][0]
        kept["truncated"][row] = bool(step.truncated[0])
        self._row = row + 1

    def update(self) -> None:
        """Learn from a full rollout, and begin the next.

        The critic's steps are queued first: an accelerator works on them while the host works on the actor's.
        """
        with self.timer.phase(TRANSFER):
            self.arrived.copy_(self.outgoing, non_blocking=self.outgoing.pinned)
        with self.timer.phase(RETURNS), torch.no_grad():
            values = self.critic.network(self.arrived.views["observation"]).squeeze(-1)
        with self.timer.phase(TRANSFER):
            self.values.copy_(values)  # waits: the way there has ended too, so that its source may be overwritten
        with self.timer.phase(UPDATE):
            self._learn_critic(values[1])
            self._learn_actor()
        self._row = 0

    def _learn_critic(self, next_value: Tensor) -> None:
        there, c = self.arrived.views, self.config
        target = there["reward"] + c.gamma * torch.where(there["terminated"], 0.0, next_value)
        for _ in range(c.epochs):
            self.critic.step(value_loss(self.critic.network(there["observation"][0]).squeeze(-1), target))

    def _learn_actor(self) -> None:
        here, kept, c = self.outgoing.views, self.kept.views, self.config
        columns = (here["reward"], *self.values, here["terminated"], kept["truncated"])
        advantage = gae(*(column.unsqueeze(-1) for column in columns), gamma=c.gamma, lambda_=c.gae_lambda).squeeze(-1)
        batch = (here["observation"][0], kept["action"], kept["log_prob"], advantage)
        observation, action, old_log_prob, advantage = move(batch, self._actor_device)
        for _ in range(c.epochs):
            log_prob, _ = self.head.evaluate(self.actor.network(observation), action)
            self.actor.step(clipped_policy_loss(log_prob, old_log_prob, advantage, clip_range=c.clip_range))


class Learnt:
    """A network with an optimiser of its own, on its own device.

    Args:
        network: its parameters become one flat vector.
        rate: Adam's.
    """

    def __init__(self, network: nn.Module, rate: float) -> None:
        self.network, self.flat = network, FlatParameters(network)
        self.optimizer = torch.optim.Adam(self.flat.leaves(), lr=rate, fused=True)

    def step(self, loss: Tensor) -> None:
        """Go one step down a loss."""
        self.flat.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.flat.gather_gradients()
        self.optimizer.step()


def train(agent: SplitActorCritic, environments: Environments, *, updates: int, seed: int | None) -> list[Episode]:
    """Act and learn in turns; each call starts new episodes.

    Args:
        agent: learns.
        environments: one of them.
        updates: how many.
        seed: of the environments; None goes on with the generators that they have.

    Returns:
        The episodes that ended.
    """
    observation, tracker, finished = environments.reset(seed), EpisodeTracker(1), list[Episode]()
    timer = agent.timer
    for _ in range(updates):
        with timer.phase(COLLECT):
            while not agent.full:
                with timer.phase(ACT):
                    acted = agent.act(observation)
                with timer.phase(ENV):
                    step = environments.step(acted[0].numpy())
                with timer.phase(STORE):
                    agent.store(observation, acted, step)
                    finished += tracker.update(step)
                observation = step.observation
        with timer.phase(LEARN):
            agent.update()
    return finished


def _networks(inputs: int, actions: int, hidden: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """Actor and critic; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        actor, critic = (mlp((inputs, hidden, n), activation="relu", output_gain=None) for n in (actions, 1))
    return actor, critic
