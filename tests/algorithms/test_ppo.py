"""PPO's learner against a slow one written from the paper, its golden losses, and the mistakes that others made."""

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hybridrl as hrl
from hybridrl.algorithms import PPOConfig, PPOLearner, PPOStatistics
from hybridrl.data import Rollout
from hybridrl.networks import (
    ActorCritic,
    CategoricalHead,
    GaussianHead,
    Head,
    NetworkConfig,
    ObservationNormalizer,
    Policy,
)
from hybridrl.profiling import NullTimer
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv

HEADS: dict[str, Head] = {"categorical": CategoricalHead(3), "gaussian": GaussianHead(2)}
INPUTS = 4


pytestmark = pytest.mark.usefixtures("one_thread")


def make_policy(head: Head, *, normalize: bool = False, seed: int = 0, dtype: torch.dtype = torch.float64) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ActorCritic(INPUTS, head, NetworkConfig(hidden=(8,), initialization="torch"))
    return Policy(network, head, ObservationNormalizer((INPUTS,), enabled=normalize)).type(dtype)


def make_learner(policy: Policy, config: PPOConfig, *, num_envs: int = 3, reward: bool = False) -> PPOLearner:
    learner = PPOLearner(
        policy,
        config,
        num_envs=num_envs,
        generator=torch.Generator().manual_seed(5),
        normalize_reward=reward,
        timer=NullTimer(),
    )
    learner.reward_normalizer.double()
    return learner


def waves(*shape: int, phase: float) -> Tensor:
    """Numbers that look random and are the same on every machine."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) * 1.7 + phase).sin().mul(3.0).reshape(shape)


def make_rollout(policy: Policy, phase: float, *, rows: int = 9, num_envs: int = 3) -> Rollout:
    """A fresh one: values and log-probabilities are the policy's; the first column resets in row 4."""
    shape = (rows, num_envs)
    observation = waves(*shape, INPUTS, phase=phase)
    flags = {name: torch.zeros(shape, dtype=torch.bool) for name in ("terminated", "truncated")}
    valid = torch.ones(shape, dtype=torch.bool)
    flags["terminated"][3, 0] = flags["truncated"][rows // 2, -1] = flags["truncated"][-1, -1] = True
    valid[4, 0] = False
    with torch.no_grad():
        parameters, value = policy(observation.flatten(0, 1))
        if isinstance(policy.head, CategoricalHead):
            action = waves(rows * num_envs, phase=phase + 1).abs().mul(1e3).type(torch.int64) % policy.head.size
        else:
            action = waves(rows * num_envs, policy.head.parameter_size // 2, phase=phase + 1)
        log_prob, _ = policy.head.evaluate(parameters, action)
        next_value = policy.value(waves(*shape, INPUTS, phase=phase + 2).flatten(0, 1))
    return Rollout(
        observation=observation,
        action=action.unflatten(0, shape),
        log_prob=log_prob.view(shape),
        value=value.view(shape),
        next_value=next_value.view(shape),
        reward=waves(*shape, phase=phase + 3),
        valid=valid,
        **flags,
    )


# The same algorithm, slow and plain


def reference_targets(r: Rollout, c: PPOConfig) -> tuple[Tensor, Tensor]:
    """Advantages and value targets, one environment and one step at a time."""
    advantage, target = torch.zeros_like(r.reward), torch.zeros_like(r.reward)
    for n in range(r.reward.shape[1]):
        running = 0.0
        for t in reversed(range(len(r))):
            dead = bool(r.terminated[t, n]) or (c.truncation == "terminate" and bool(r.truncated[t, n]))
            reward = (float(r.reward[t, n]) + c.reward_shift) * c.reward_scale if r.valid[t, n] else 0.0
            one_step = reward + (0.0 if dead else c.gamma * float(r.next_value[t, n]))
            ended = bool(r.terminated[t, n] or r.truncated[t, n])
            delta = one_step - float(r.value[t, n])
            running = delta + (0.0 if ended else c.gamma * c.gae_lambda * running)
            advantage[t, n] = running
            target[t, n] = one_step if c.value_target == "one-step" else running + float(r.value[t, n])
    return advantage, target


def reference_distribution(head: Head, parameters: Tensor) -> torch.distributions.Distribution:
    if isinstance(head, CategoricalHead):
        return torch.distributions.Categorical(logits=parameters)
    mean, log_std = parameters.chunk(2, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)


class Reference:
    """PPO with ``torch.distributions``, an optimiser that sees each parameter, and torch's own clipping."""

    def __init__(self, network: ActorCritic, head: Head, config: PPOConfig) -> None:
        self.network, self.head, self.config = network, head, config
        critic = {id(p) for p in network.critic.parameters()}
        self.rates = [
            config.learning_rate
            if id(p) not in critic or config.critic_learning_rate is None
            else config.critic_learning_rate
            for p in network.parameters()
        ]
        self.optimizer = torch.optim.Adam(
            [{"params": [p], "lr": rate} for p, rate in zip(network.parameters(), self.rates, strict=True)],
            eps=config.adam_epsilon,
            foreach=False,
            fused=False,
        )
        self.generator = torch.Generator().manual_seed(5)

    def update(self, r: Rollout, progress: float) -> None:
        c = self.config
        if c.anneal:
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * (1.0 - progress)
        advantage, target = reference_targets(r, c)
        keep = [(t, n) for t in range(len(r)) for n in range(r.reward.shape[1]) if r.valid[t, n]]
        rows = [torch.stack([x[t, n] for t, n in keep]) for x in (r.observation, r.action, r.log_prob, r.value)]
        rows += [torch.stack([x[t, n] for t, n in keep]) for x in (advantage, target)]
        parts = 1 if c.minibatch_size is None else math.ceil(len(keep) / c.minibatch_size)
        edges = [len(keep) * part // parts for part in range(parts + 1)]
        for _ in range(c.epochs):
            order = torch.randperm(len(keep), generator=self.generator)
            for start, stop in pairwise(edges):
                self.step(*(x[order[start:stop]] for x in rows))

    def step(self, obs: Tensor, action: Tensor, old: Tensor, old_value: Tensor, adv: Tensor, target: Tensor) -> None:
        c = self.config
        parameters, value = self.network(obs)
        distribution = reference_distribution(self.head, parameters)
        if c.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.var(correction=0).sqrt() + 1e-8)
        ratio = torch.exp(distribution.log_prob(action) - old)
        policy_loss = -torch.min(ratio * adv, torch.clip(ratio, 1 - c.clip_range, 1 + c.clip_range) * adv).mean()
        critic_loss = (value - target) ** 2
        if c.value_clip_range is not None:
            clipped = old_value + torch.clip(value - old_value, -c.value_clip_range, c.value_clip_range)
            critic_loss = torch.max(critic_loss, (clipped - target) ** 2)
        entropy = distribution.entropy().mean()
        self.optimizer.zero_grad()
        (policy_loss + c.value_coefficient * critic_loss.mean() / 2 - c.entropy_coefficient * entropy).backward()
        if c.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), c.max_gradient_norm)
        self.optimizer.step()


PLAIN = PPOConfig(epochs=3, minibatch_size=7, learning_rate=0.01)
VARIANTS = {
    "plain": PLAIN,
    "whole rollout": dataclasses.replace(PLAIN, minibatch_size=None),
    "entropy, no clipping": dataclasses.replace(PLAIN, entropy_coefficient=0.05, max_gradient_norm=None),
    "clipped values": dataclasses.replace(PLAIN, value_clip_range=0.05, value_coefficient=2.0),
    "critic's rate": dataclasses.replace(PLAIN, critic_learning_rate=0.03, anneal=True),
    "as it is": dataclasses.replace(PLAIN, normalize_advantage=False, reward_shift=1.5, reward_scale=0.25),
    "one-step": dataclasses.replace(PLAIN, value_target="one-step", gamma=0.7, gae_lambda=0.5),
    "terminate": dataclasses.replace(PLAIN, truncation="terminate", adam_epsilon=1e-3, clip_range=0.05),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_updates_equal_the_slow_reference(head: Head, config: PPOConfig) -> None:
    """Three updates of several epochs and uneven minibatches, in float64: the parameters agree to rounding."""
    policy = make_policy(head)
    reference = Reference(copy.deepcopy(policy.network), head, config)  # type: ignore[arg-type]
    learner = make_learner(policy, config)
    before = learner.flat.values.clone()
    for number in range(3):
        rollout = make_rollout(policy, phase=float(number))
        learner.update(rollout, progress=number / 4)
        reference.update(rollout, number / 4)
    for (name, mine), theirs in zip(policy.network.named_parameters(), reference.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11, msg=name)
    assert (learner.flat.values - before).abs().max() > 0.01


# Three updates of PLAIN with entropy_coefficient=0.01 on waves(), in float64 on one thread: policy loss, value loss,
# entropy, KL, clip fraction, gradient norm, explained variance. To regenerate after an intended change:
# python -c "import tests.algorithms.test_ppo as t; t.print_golden()"
GOLDEN = {
    "categorical": [
        [-0.02753922427, 3.199134179, 1.003067836, 0.02097927934, 0.2936507937, 1.890645541, 0.04879678845],
        [-0.01875562845, 3.670881633, 1.015662511, 0.004308240915, 0.04761904762, 1.881261648, -0.03588833906],
        [-0.006705928523, 4.03230684, 0.9998653249, 0.004250909919, 0.05952380952, 1.663918396, -0.05465192921],
    ],
    "gaussian": [
        [0.02208941278, 3.364114421, 3.339080781, 0.0697688089, 0.4861111111, 3.326635327, -0.05236497391],
        [0.01630987342, 3.668550362, 3.335060765, 0.07680194066, 0.3452380952, 3.291970317, 0.04604545314],
        [0.01680798052, 4.013784686, 3.339542929, 0.004881919262, 0.07341269841, 4.323890221, -0.03939641683],
    ],
}
FIELDS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approximate_kl",
    "clip_fraction",
    "gradient_norm",
    "explained_variance",
)


def golden_run(head: Head) -> list[list[float]]:
    policy = make_policy(head)
    for index, parameter in enumerate(policy.parameters()):  # independent of torch's initialisation
        parameter.data = waves(*parameter.shape, phase=float(index)) / 6
    learner = make_learner(policy, dataclasses.replace(PLAIN, entropy_coefficient=0.01))
    updates = [learner.update(make_rollout(policy, phase=float(number))) for number in range(3)]
    return [[getattr(update, name) for name in FIELDS] for update in updates]


def print_golden() -> None:
    torch.set_num_threads(1)
    for name, head in HEADS.items():
        print(f'    "{name}": [')
        for row in golden_run(head):
            print(f"        [{', '.join(f'{number:.10g}' for number in row)}],")
        print("    ],")


@pytest.mark.parametrize("name", HEADS)
def test_golden_losses(name: str) -> None:
    """Within 1e-8: float64 on other processors differs by rounding only."""
    np.testing.assert_allclose(golden_run(HEADS[name]), GOLDEN[name], rtol=1e-8, atol=1e-10)


# The ratio


@pytest.mark.parametrize("normalize", [False, True])
def test_the_ratio_is_one_before_the_first_step(normalize: bool) -> None:
    """C75: deviation 5 on Box(-1, 1); stored actions and log-probabilities belong together, in every rollout."""
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    recipe = PPORecipe(
        ppo=PPOConfig(rollout_steps=64, minibatch_size=None, epochs=1),
        network=NetworkConfig(hidden=(16,), initial_log_std=math.log(5.0)),
        num_envs=2,
        normalize_observation=normalize,
    )
    agent = hrl.PPO(lambda: CountingEnv(50, action_space=space), recipe, seed=1)
    collector, learner = agent.collector, agent.learner
    for _ in range(3):
        rollout, _ = collector.collect(64)
        with torch.no_grad():
            parameters, value = agent.policy(rollout.observation.flatten(0, 1))
            log_prob, _ = agent.policy.head.evaluate(parameters, rollout.action.flatten(0, 1))
        ratio = (log_prob - rollout.log_prob.flatten()).exp()
        assert (ratio - 1).abs().max() < 1e-5
        torch.testing.assert_close(value, rollout.value.flatten(), rtol=1e-4, atol=1e-5)
        assert rollout.action.abs().max() > 5
        learner.update(rollout)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_rate_of_zero_changes_nothing_in_any_epoch(head: Head) -> None:
    """So the ratio is one throughout, though the normaliser learns at the end of each update."""
    policy = make_policy(head, normalize=True)
    learner = make_learner(policy, dataclasses.replace(PLAIN, learning_rate=0.0))
    for number in range(3):
        rollout = make_rollout(policy, phase=float(number))
        before = policy.normalizer.mean.clone()
        statistics = learner.update(rollout)
        assert statistics.approximate_kl == pytest.approx(0.0, abs=1e-12)
        assert statistics.clip_fraction == 0.0
        assert not torch.equal(policy.normalizer.mean, before)


def test_the_normaliser_learns_from_transitions_only() -> None:
    policy = make_policy(HEADS["categorical"], normalize=True)
    rollout = make_rollout(policy, phase=0.0)
    make_learner(policy, PLAIN).update(rollout)
    seen = rollout.observation[rollout.valid]
    torch.testing.assert_close(policy.normalizer.mean, seen.mean(0))
    torch.testing.assert_close(policy.normalizer.variance, seen.var(0, correction=0))


# Minibatches


class Sizes(nn.Module):
    """Notes how many observations each training forward pass got."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = nn.Linear(INPUTS, 4), list[int]()

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            self.seen.append(len(observation))
        output = self.inner(observation)
        return output[:, :3], output[:, 3]


def sized(rows: int, minibatch_size: int | None) -> tuple[list[int], PPOStatistics, Policy]:
    network = Sizes()
    policy = Policy(network, CategoricalHead(3), ObservationNormalizer((INPUTS,), enabled=False)).double()
    learner = make_learner(policy, PPOConfig(epochs=2, minibatch_size=minibatch_size), num_envs=1)
    rollout = make_rollout(policy, phase=0.0, rows=rows, num_envs=1)
    rollout = dataclasses.replace(rollout, valid=torch.ones_like(rollout.valid))
    return network.seen, learner.update(rollout), policy


@pytest.mark.parametrize(
    ("rows", "size", "parts"),
    [
        (65, 64, [32, 33]),
        (64, 64, [64]),
        (20, None, [20]),
        (20, 100, [20]),
        (100, 30, [25, 25, 25, 25]),
        (21, 10, [7, 7, 7]),
    ],
)
def test_minibatches_are_near_equal(rows: int, size: int | None, parts: list[int]) -> None:
    """C78: no leftover of one sample."""
    seen, statistics, _ = sized(rows, size)
    assert sorted(seen[: len(parts)]) == parts
    assert sum(seen) == 2 * rows
    assert statistics.optimizer_steps == 2 * len(parts) == len(seen)


def test_minibatches_of_one_sample_warn_once_and_stay_finite() -> None:
    """C78."""
    with pytest.warns(UserWarning, match="a minibatch of one sample has no spread") as caught:
        seen, statistics, policy = sized(20, 1)
    assert len(caught) == 1
    assert seen == [1] * 40
    assert all(math.isfinite(getattr(statistics, name)) for name in FIELDS)
    assert all(p.isfinite().all() for p in policy.parameters())


def test_minibatches_of_one_sample_are_fine_where_nothing_is_normalised() -> None:
    policy = make_policy(HEADS["categorical"])
    config = PPOConfig(epochs=1, minibatch_size=1, normalize_advantage=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_learner(policy, config).update(make_rollout(policy, phase=0.0))


def test_each_epoch_sees_every_sample_in_an_order_of_its_own() -> None:
    seen = list[Tensor]()

    class Note(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(INPUTS, 4)

        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            if torch.is_grad_enabled():
                seen.append(observation[:, 0])
            output = self.inner(observation)
            return output[:, :3], output[:, 3]

    policy = Policy(Note(), CategoricalHead(3), ObservationNormalizer((INPUTS,), enabled=False)).double()
    rollout = make_rollout(policy, phase=0.0)
    make_learner(policy, PPOConfig(epochs=2, minibatch_size=9)).update(rollout)
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert not torch.equal(first, second)
    wanted = rollout.observation[rollout.valid][:, 0].sort().values
    assert torch.equal(first.sort().values, wanted)
    assert torch.equal(second.sort().values, wanted)


# Environments' actions and dtypes


def trained(factory: Callable[[], CountingEnv], **options: Any) -> tuple[hrl.PPO, list[CountingEnv]]:
    made = list[CountingEnv]()

    def make() -> CountingEnv:
        made.append(factory())
        return made[-1]

    recipe = PPORecipe(ppo=PPOConfig(rollout_steps=16, minibatch_size=16, epochs=2), num_envs=2, **options)
    agent = hrl.PPO(make, recipe, seed=0)
    result = agent.learn(total_timesteps=64)
    assert len(result.updates) >= 2
    assert all(math.isfinite(update.policy_loss) for update in result.updates)
    return agent, made


@pytest.mark.parametrize(("n", "start"), [(3, -1), (2, 10), (4, 0)])
def test_discrete_actions_start_where_the_space_says(n: int, start: int) -> None:
    """C83."""
    space = gym.spaces.Discrete(n, start=start)
    agent, made = trained(lambda: CountingEnv(5, action_space=space))
    received = [action for env in made for action in env.received]
    assert all(space.contains(action) for action in received)
    assert {int(action) for action in received} == set(range(start, start + n))
    stored = agent.collector.storage.rollout().action
    assert set(stored.flatten().tolist()) <= set(range(n))
    for deterministic in (False, True):
        action, _ = agent.predict(np.zeros(1, np.float32), deterministic=deterministic)
        assert space.contains(action)


@pytest.mark.parametrize("bounds", ["clip", "scale"])
def test_actions_of_several_dimensions(bounds: Any) -> None:
    """C84: a flat observation and Box(10, 10); Dict observations are refused with the wrapper to use."""
    space = gym.spaces.Box(-1, 1, (10, 10), np.float32)
    agent, made = trained(lambda: CountingEnv(5, action_space=space), bounds=bounds)
    assert all(space.contains(action) for env in made for action in env.received)
    assert agent.collector.storage.rollout().action.shape[-1] == 100
    action, _ = agent.predict(np.zeros((7, 1), np.float32))
    assert action.shape == (7, 10, 10)


@pytest.mark.parametrize("normalize", [False, True])
def test_doubles_are_cast_once_and_the_environment_gets_its_own_dtype(normalize: bool) -> None:
    """C39."""
    space = gym.spaces.Box(-1, 1, (3,), np.float64)
    agent, made = trained(lambda: CountingEnv(5, action_space=space, dtype=np.float64), normalize_observation=normalize)
    assert {action.dtype for env in made for action in env.received} == {np.dtype(np.float64)}
    assert all(space.contains(action) for env in made for action in env.received)
    assert {p.dtype for p in agent.policy.parameters()} == {torch.float32}
    assert agent.collector.storage.rollout().observation.dtype == torch.float32


def test_bytes_stay_bytes_until_they_are_learnt_from() -> None:
    agent, _ = trained(lambda: CountingEnv(5, dtype=np.uint8))
    assert agent.collector.storage.rollout().observation.dtype == torch.uint8


# Rates


def test_annealing_lets_the_rates_fall_linearly() -> None:
    policy = make_policy(HEADS["categorical"])
    learner = make_learner(policy, dataclasses.replace(PLAIN, anneal=True, critic_learning_rate=0.02))
    rates = [
        (learner.update(make_rollout(policy, phase=0.0), progress=p), learner.optimizer.param_groups[1]["lr"])
        for p in (0.0, 0.25, 0.5, 1.0)
    ]
    assert [statistics.learning_rate for statistics, _ in rates] == pytest.approx([0.01, 0.0075, 0.005, 0.0])
    assert [rate for _, rate in rates] == pytest.approx([0.02, 0.015, 0.01, 0.0])


def test_without_annealing_the_rate_stays() -> None:
    policy = make_policy(HEADS["categorical"])
    assert make_learner(policy, PLAIN).update(make_rollout(policy, phase=0.0), progress=0.9).learning_rate == 0.01


@pytest.mark.parametrize(("rate", "critic_rate"), [(0.0, 0.01), (0.01, 0.0)])
def test_the_critic_has_a_rate_of_its_own(rate: float, critic_rate: float) -> None:
    policy = make_policy(HEADS["gaussian"])
    learner = make_learner(policy, dataclasses.replace(PLAIN, learning_rate=rate, critic_learning_rate=critic_rate))
    before = {name: p.detach().clone() for name, p in policy.network.named_parameters()}
    learner.update(make_rollout(policy, phase=0.0))
    moved = {name for name, p in policy.network.named_parameters() if not torch.equal(p, before[name])}
    critic = {name for name in before if name.startswith("critic.")}
    assert moved == (critic if critic_rate else set(before) - critic)


def test_a_critic_rate_needs_a_critic() -> None:
    policy = Policy(Sizes(), CategoricalHead(3), ObservationNormalizer((INPUTS,), enabled=False))
    with pytest.raises(ValueError, match=r"a part named 'critic'"):
        make_learner(policy, PPOConfig(critic_learning_rate=1e-3))


@pytest.mark.parametrize(("target", "epochs"), [(None, 10), (1e3, 10), (1e-9, 2)])
def test_epochs_stop_at_the_target_divergence(target: float | None, epochs: int) -> None:
    """With one minibatch an epoch the first sees no divergence: the second is the first that can stop."""
    policy = make_policy(HEADS["categorical"])
    config = PPOConfig(epochs=10, minibatch_size=None, learning_rate=0.01, target_kl=target)
    assert make_learner(policy, config).update(make_rollout(policy, phase=0.0)).optimizer_steps == epochs


# Time limits, value targets, rewards: read from the value loss of a critic that cannot move


class Ten(nn.Module):
    """Every value is 10 (or what is given), all actions are as likely."""

    def __init__(self, value: float = 10.0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(3))
        self.value = value

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        size = len(observation)
        return self.logits.expand(size, -1), self.logits.sum().expand(size) * 0 + self.value


def fixed(value: float, config: PPOConfig, *, reward: bool = False) -> tuple[Policy, PPOLearner]:
    policy = Policy(Ten(value), CategoricalHead(3), ObservationNormalizer((INPUTS,), enabled=False)).double()
    plain = dataclasses.replace(config, learning_rate=0.0, epochs=1, minibatch_size=None, normalize_advantage=False)
    return policy, make_learner(policy, plain, num_envs=2, reward=reward)


def five_steps(policy: Policy, **changes: Tensor) -> Rollout:
    """Constant reward of 1 to a time limit at the fifth step, in two environments."""
    rollout = make_rollout(policy, phase=0.0, rows=5, num_envs=2)
    nothing = torch.zeros_like(rollout.valid)
    limit = nothing.clone()
    limit[4] = True
    constant = {"reward": torch.ones_like(rollout.reward), "valid": ~nothing}
    return dataclasses.replace(rollout, **{**constant, "terminated": nothing, "truncated": limit, **changes})


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_a_time_limit_is_no_termination(lambda_: float) -> None:
    """C79: reward 1, gamma 0.9 and V = 10 are a fixed point, so nothing is to be learnt."""
    policy, learner = fixed(10.0, PPOConfig(gamma=0.9, gae_lambda=lambda_))
    statistics = learner.update(five_steps(policy))
    assert statistics.policy_loss == pytest.approx(0.0, abs=1e-12)
    assert statistics.value_loss == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("labelled", [False, True])
def test_a_termination_cuts_the_bootstrap(labelled: bool) -> None:
    """C79: the last target is 1, the error 9, in one step of five; the switch treats a time limit so."""
    config = PPOConfig(gamma=0.9, gae_lambda=0.0, truncation="terminate" if labelled else "bootstrap")
    policy, learner = fixed(10.0, config)
    rollout = five_steps(policy)
    if not labelled:
        rollout = dataclasses.replace(rollout, terminated=rollout.truncated, truncated=rollout.terminated)
    assert learner.update(rollout).value_loss == pytest.approx(0.5 * 81 / 5)


def test_reset_rows_teach_nothing() -> None:
    """Whatever stands in them, the update is the same; a state that isn't a number doesn't leave its row."""
    results = []
    for filler in (0.0, 1e6, math.nan):
        policy = make_policy(HEADS["categorical"])
        learner = make_learner(policy, PLAIN, reward=True)
        for number in range(2):
            rollout = make_rollout(policy, phase=float(number))
            for column in (rollout.reward, rollout.log_prob, rollout.value, rollout.next_value, rollout.observation):
                column[4, 0] = filler
            learner.update(rollout)
        results.append(learner.flat.values.clone())
    assert torch.isfinite(results[0]).all()
    assert all(torch.equal(result, results[0]) for result in results)


def test_one_step_targets_are_the_reward_and_the_next_value_of_acting_time() -> None:
    policy, learner = fixed(10.0, PPOConfig(gamma=0.5, value_target="one-step", gae_lambda=1.0))
    rollout = five_steps(policy, next_value=torch.full((5, 2), 4.0, dtype=torch.float64))
    assert learner.update(rollout).value_loss == pytest.approx(0.5 * (1 + 0.5 * 4 - 10) ** 2)


def test_rewards_are_shifted_then_scaled() -> None:
    policy, learner = fixed(0.0, PPOConfig(gamma=0.0, reward_shift=8.0, reward_scale=1 / 8))
    rollout = five_steps(policy, reward=torch.full((5, 2), -4.0, dtype=torch.float64))
    assert learner.update(rollout).value_loss == pytest.approx(0.5 * 0.5**2)


def test_rewards_are_scaled_by_the_deviation_of_their_running_sums() -> None:
    """Against sums kept in a list, one environment and step at a time, over three rollouts."""
    gamma = 0.9
    # No bootstrap (the value is 0) and lambda 0, so the targets are the scaled rewards themselves.
    policy, learner = fixed(0.0, PPOConfig(gamma=gamma, gae_lambda=0.0), reward=True)
    history, running = list[float](), [0.0, 0.0]
    for number in range(3):
        rollout = make_rollout(policy, phase=float(number), rows=9, num_envs=2)
        for t in range(9):
            for n in range(2):
                if not rollout.valid[t, n]:
                    continue
                running[n] = float(rollout.reward[t, n]) + gamma * running[n]
                history.append(running[n])
                if rollout.terminated[t, n] or rollout.truncated[t, n]:
                    running[n] = 0.0
        scaled = (rollout.reward[rollout.valid].numpy() / np.sqrt(np.var(history) + 1e-8)).clip(-10, 10)
        assert learner.update(rollout).value_loss == pytest.approx(0.5 * np.mean(scaled**2), rel=1e-9)


def test_returns_that_do_not_vary_have_no_explained_variance() -> None:
    """Unknown, which isn't zero."""
    policy, learner = fixed(10.0, PPOConfig(gamma=0.9))
    assert math.isnan(learner.update(five_steps(policy)).explained_variance)


# Host reads


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for a device: scalars read, and shapes that depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars, self.shapes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.scalars += func is torch.ops.aten._local_scalar_dense.default
        self.shapes += func in (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("minibatch_size", [None, 2])
@pytest.mark.parametrize("target_kl", [None, 1e3])
def test_an_update_reads_from_the_device_once(
    minibatch_size: int | None, target_kl: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C67: however many minibatches there are; a target divergence costs one read an epoch more."""
    lists = list[int]()

    def tolist(tensor: Tensor) -> Any:
        lists.append(tensor.numel())
        return tensor.numpy().tolist()

    monkeypatch.setattr(Tensor, "tolist", tolist)
    policy = make_policy(HEADS["categorical"], normalize=True)
    config = dataclasses.replace(PLAIN, minibatch_size=minibatch_size, target_kl=target_kl)
    learner = make_learner(policy, config, reward=True)
    rollout = make_rollout(policy, phase=0.0)
    lists.clear()
    with HostReads() as reads:
        learner.update(rollout)
    assert lists == [8]
    assert reads.scalars == (0 if target_kl is None else config.epochs)
    assert reads.shapes <= 2  # which rows are valid: for the samples, and for the reward's moments


# Configuration


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("gamma", 1.1, "a number of at least 0 and at most 1"),
        ("gamma", None, "a number of at least 0 and at most 1"),
        ("gae_lambda", -0.1, "a number of at least 0 and at most 1"),
        ("gae_lambda", "0.9", "a number of at least 0 and at most 1"),
        ("rollout_steps", 0, "a whole number of at least 1, or None"),
        ("rollout_steps", 12.5, "a whole number of at least 1, or None"),
        ("epochs", 0, "a whole number of at least 1"),
        ("epochs", True, "a whole number of at least 1"),
        ("minibatch_size", -1, "a whole number of at least 1, or None"),
        ("clip_range", 0.0, "a number above 0"),
        ("value_clip_range", 0, "a number above 0, or None"),
        ("learning_rate", -1e-3, "a number of at least 0"),
        ("learning_rate", math.nan, "a number of at least 0"),
        ("critic_learning_rate", math.inf, "a number of at least 0, or None"),
        ("max_gradient_norm", 0, "a number above 0, or None"),
        ("target_kl", 0.0, "a number above 0, or None"),
        ("reward_scale", math.inf, "a number that is finite"),
        ("value_target", "td", "one of lambda, one-step"),
        ("truncation", None, "one of bootstrap, terminate"),
        ("anneal", "yes", "one of False, True"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_expected(field: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError) as error:
        PPOConfig(**{field: value})
    assert str(error.value) == f"{field}={value!r}: expected {expected}"


def test_every_number_has_a_range() -> None:
    """A field added without one would be taken as it comes."""
    from hybridrl.algorithms.ppo import _CHOICES, _RANGES

    assert {name for name, *_ in (*_RANGES, *_CHOICES)} == {f.name for f in dataclasses.fields(PPOConfig)}


class CriticFirst(nn.Module):
    """An ordinary layout in which the actor's parameters aren't adjacent: a bare one, the critic, the actor."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(2))
        self.critic = nn.Linear(INPUTS, 1)
        self.actor = nn.Linear(INPUTS, 2)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log deviations, and the value."""
        mean = self.actor(observation)
        return torch.cat([mean, self.log_std.expand_as(mean)], -1), self.critic(observation).squeeze(-1)


def test_the_critic_may_stand_anywhere_in_the_network() -> None:
    policy = Policy(CriticFirst(), GaussianHead(2), ObservationNormalizer((INPUTS,), enabled=False)).double()
    learner = make_learner(policy, PPOConfig(learning_rate=0.0, critic_learning_rate=1e-2))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    learner.update(make_rollout(policy, phase=0.0))
    changed = {name for name, value in policy.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"network.critic.weight", "network.critic.bias"}


def test_a_policy_that_was_cast_is_noticed_before_it_learns() -> None:
    policy = make_policy(HEADS["categorical"])
    learner, rollout = make_learner(policy, PLAIN), make_rollout(policy, phase=0.0)
    policy.float()
    with pytest.raises(ValueError, match="FlatParameters"):
        learner.update(rollout)
