"""The agent as its user meets it: training, going on, saving, predicting, and what it says to mistakes."""

import copy
import dataclasses
import io
import math
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

import hybridrl as hrl
from hybridrl import checkpoints, envs
from hybridrl.algorithms import PPOConfig
from hybridrl.execution import Budget, Iteration
from hybridrl.networks import NetworkConfig
from hybridrl.profiling import NullTimer
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv, IdentityEnv

CONFIG = PPOConfig(rollout_steps=16, minibatch_size=16, epochs=2)
SMALL = PPORecipe(ppo=CONFIG, network=NetworkConfig(hidden=(8,)), num_envs=2, budget=Budget(timesteps=96))
NORMALIZED = dataclasses.replace(SMALL, normalize_observation=True, normalize_reward=True)
CRITIC = dataclasses.replace(SMALL, ppo=dataclasses.replace(CONFIG, critic_learning_rate=1e-2, anneal=True))


pytestmark = pytest.mark.usefixtures("one_thread")


def counting(length: int = 5, **options: Any) -> Callable[[], CountingEnv]:
    return lambda: CountingEnv(length, **options)


def weights(agent: hrl.PPO) -> Tensor:
    return agent.learner.flat.values.clone()


def state(agent: hrl.PPO) -> dict[str, Tensor]:
    """All that is saved, apart from the counters."""
    return {name: tensor.clone() for name, tensor in agent._parts.tensors().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# One seed, one run


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("recipe", [SMALL, NORMALIZED], ids=["plain", "normalised"])
def test_a_seed_repeats_a_run_exactly(env: str, recipe: PPORecipe) -> None:
    def run(seed: int) -> tuple[Any, dict[str, Tensor]]:
        agent = hrl.PPO(env, recipe, seed=seed)
        result = agent.learn(total_timesteps=160)
        return (result.episodes, [dataclasses.astuple(u)[:6] for u in result.updates]), state(agent)

    first, again, other = run(3), run(3), run(4)
    assert first[0] == again[0]
    assert same(first[1], again[1])
    assert not torch.equal(first[1]["policy.network.actor.0.weight"], other[1]["policy.network.actor.0.weight"])
    assert first[0] != other[0]


def test_global_random_states_are_left_alone() -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index,union-attr]  # noqa: NPY002
    agent = hrl.PPO("CartPole-v1", SMALL, seed=0)
    agent.learn(total_timesteps=64)
    agent.predict(np.zeros(4, np.float32))
    agent.evaluate(2, deterministic=False)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]  # noqa: NPY002
    assert before[2] == random.getstate()


def test_the_global_random_state_does_not_matter() -> None:
    torch.manual_seed(1)
    first = weights(hrl.PPO("CartPole-v1", SMALL, seed=0))
    torch.manual_seed(2)
    assert torch.equal(first, weights(hrl.PPO("CartPole-v1", SMALL, seed=0)))


def test_each_use_of_randomness_has_a_stream_of_its_own() -> None:
    """C51: and the environments' first observations differ from one another."""
    agent = hrl.PPO("CartPole-v1", SMALL, seed=0)
    seeds = [g.initial_seed() for g in agent._parts.generators.named().values()] + [agent._seeds.environments]
    assert len(set(seeds)) == 4
    rollout, _ = agent.collector.collect(1)
    assert not torch.equal(rollout.observation[0, 0], rollout.observation[0, 1])


@pytest.mark.parametrize("seed", [-1, 1.5, None, "0"])
def test_a_wrong_seed_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed=.*an integer of at least 0") as error:
        hrl.PPO("CartPole-v1", SMALL, seed=seed)
    line(error)


# Budgets


def test_learning_again_goes_on() -> None:
    agent = hrl.PPO(counting(), SMALL)
    first = agent.learn(total_timesteps=64)
    between = weights(agent)
    second = agent.learn(total_timesteps=50)
    assert agent.timesteps == first.timesteps + second.timesteps
    assert first.timesteps == 64
    assert second.timesteps in (49, 50)
    assert agent.episodes == len(first.episodes) + len(second.episodes)
    assert not torch.equal(between, weights(agent))
    assert second.episode_timesteps[0] > 64
    assert not first.stopped


def test_two_calls_see_what_one_does() -> None:
    """The environments aren't reset between calls."""
    one, two = hrl.PPO(counting(), SMALL, seed=0), hrl.PPO(counting(), SMALL, seed=0)
    one.learn(total_timesteps=128)
    rows = []
    for steps in (64, 64):
        rows += two.learn(total_timesteps=steps).episodes
    assert [e.length for e in rows] == [5] * len(rows)
    assert two.episodes == one.episodes


def test_the_recipe_s_budget_is_used_where_none_is_given() -> None:
    agent = hrl.PPO(counting(100), SMALL)
    assert agent.learn().timesteps == 96


@pytest.mark.parametrize("steps", [2, 3, 33, 95])
def test_no_step_is_taken_beyond_the_budget(steps: int) -> None:
    made = list[CountingEnv]()

    def make() -> CountingEnv:
        made.append(CountingEnv(5))
        return made[-1]

    agent = hrl.PPO(make, SMALL)
    result = agent.learn(total_timesteps=steps)
    assert sum(len(env.received) for env in made) == agent.timesteps == result.timesteps
    assert steps - 2 < result.timesteps <= steps
    assert not result.stopped


def test_a_budget_of_episodes_ends_with_them() -> None:
    recipe = dataclasses.replace(
        SMALL, ppo=dataclasses.replace(CONFIG, rollout_steps=None), num_envs=1, max_episode_steps=7
    )
    agent = hrl.PPO(counting(50), recipe)
    result = agent.learn(total_episodes=3)
    assert [(e.length, e.truncated) for e in result.episodes] == [(7, True)] * 3
    assert (agent.episodes, agent.timesteps, len(result.updates)) == (3, 21, 3)


def test_whole_episodes_need_a_limit() -> None:
    recipe = dataclasses.replace(SMALL, ppo=dataclasses.replace(CONFIG, rollout_steps=None), num_envs=1)
    with pytest.raises(ValueError, match=r"needs a time limit: give the recipe max_episode_steps"):
        hrl.PPO(counting(), recipe)


def test_both_budgets_are_one_too_many() -> None:
    with pytest.raises(ValueError, match=r"total_timesteps=10, total_episodes=10: expected exactly one") as error:
        hrl.PPO(counting(), SMALL).learn(10, total_episodes=10)
    line(error)


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_checkpoint_every_is_checked(every: Any) -> None:
    with pytest.raises(ValueError, match=r"checkpoint_every=.*expected a whole number of at least 1 update"):
        hrl.PPO(counting(), SMALL).learn(10, checkpoint_every=every)


# Callbacks


@pytest.mark.parametrize("no", [False, np.False_])
def test_a_callback_stops_training_and_resume_spends_the_rest(no: Any) -> None:
    agent = hrl.PPO(counting(100), SMALL)
    seen = list[Iteration]()

    def stop(iteration: Iteration) -> Any:
        seen.append(iteration)
        return no if len(seen) == 2 else None

    result = agent.learn(total_timesteps=160, callback=stop)
    assert result.stopped
    assert [i.timesteps for i in seen] == [32, 64]
    rest = agent.learn(resume=True)
    assert not rest.stopped
    assert (rest.timesteps, agent.timesteps) == (96, 160)
    with pytest.raises(ValueError, match="resume=True: nothing is unfinished"):
        agent.learn(resume=True)


def test_every_one_of_several_callbacks_is_called_and_any_stops() -> None:
    agent, seen = hrl.PPO(counting(100), SMALL), list[tuple[str, int]]()

    def first(iteration: Iteration) -> bool:
        seen.append(("first", iteration.timesteps))
        return iteration.timesteps < 64

    assert agent.learn(total_timesteps=160, callback=[first, lambda i: seen.append(("second", i.timesteps))]).stopped
    assert seen == [("first", 32), ("second", 32), ("first", 64), ("second", 64)]
    assert not agent.learn(resume=True, callback=()).stopped


@pytest.mark.parametrize("wrong", [3, "print", [print, None]])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"callback=.*expected a function of one Iteration, or several"):
        hrl.PPO(counting(), SMALL).learn(10, callback=wrong)


@pytest.mark.parametrize("answer", [None, True, 0, "", np.True_])
def test_other_answers_of_a_callback_go_on(answer: Any) -> None:
    result = hrl.PPO(counting(100), SMALL).learn(total_timesteps=96, callback=lambda _: answer)
    assert (len(result.updates), result.stopped) == (3, False)


def test_a_callback_that_stops_at_the_end_stops_nothing() -> None:
    agent = hrl.PPO(counting(100), SMALL)
    assert not agent.learn(total_timesteps=32, callback=lambda _: False).stopped
    with pytest.raises(ValueError, match="nothing is unfinished"):
        agent.learn(resume=True)


def test_resuming_anneals_over_the_whole_budget() -> None:
    stopped, whole = hrl.PPO(counting(100), CRITIC), hrl.PPO(counting(100), CRITIC)
    first = stopped.learn(total_timesteps=128, callback=lambda i: i.timesteps < 64)
    rates = [u.learning_rate for u in (*first.updates, *stopped.learn(resume=True).updates)]
    assert rates == [u.learning_rate for u in whole.learn(total_timesteps=128).updates]
    assert rates == pytest.approx([3e-4, 2.25e-4, 1.5e-4, 0.75e-4])
    assert torch.equal(weights(stopped), weights(whole))


def test_resume_takes_no_other_budget() -> None:
    with pytest.raises(ValueError, match="resume=True goes on with the saved budget: give no other"):
        hrl.PPO(counting(), SMALL).learn(10, resume=True)


def test_an_agent_survives_a_callback_that_raises() -> None:
    agent = hrl.PPO(counting(100), SMALL)

    def fail(iteration: Iteration) -> None:
        if iteration.timesteps == 64:
            raise RuntimeError("the user's mistake")

    with pytest.raises(RuntimeError, match="the user's mistake"):
        agent.learn(total_timesteps=128, callback=fail)
    assert agent.timesteps == 64
    assert agent.learn(resume=True).timesteps == 64
    assert agent.learn(total_timesteps=32).report.wall_s > 0


def test_evaluating_in_a_callback_disturbs_nothing() -> None:
    def run(callback: Callable[[hrl.PPO], None]) -> tuple[Tensor, Any]:
        agent = hrl.PPO("CartPole-v1", NORMALIZED, seed=0)
        result = agent.learn(total_timesteps=128, callback=lambda _: callback(agent))
        return weights(agent), result.episodes

    plain = run(lambda _: None)
    for deterministic in (True, False):
        found = run(lambda agent, d=deterministic: agent.evaluate(3, deterministic=d) and None)  # type: ignore[misc]
        assert torch.equal(plain[0], found[0])
        assert plain[1] == found[1]


# Results


def test_the_report_accounts_for_the_run() -> None:
    result = hrl.PPO(counting(), SMALL).learn(total_timesteps=96)
    report = result.report
    assert report.source == "measured"
    assert report.threads == 1
    top = math.fsum(row.total_s for row in report.phases if len(row.path) == 1)
    assert top + report.other_s == pytest.approx(report.wall_s, abs=1e-9)
    assert {row.label for row in report.phases} == {
        *("collect", "collect/env", "collect/act", "collect/store"),
        *("learn", "learn/returns", "learn/update"),
    }
    assert report.counters == {
        "env_steps": result.timesteps,
        "episodes": len(result.episodes),
        "updates": len(result.updates),
        "optimizer_steps": sum(u.optimizer_steps for u in result.updates),
    }
    assert report.notes == ("CountingEnv x 2, in-process vectorisation, NEXT_STEP", "placement cpu, schedule sync")


def test_each_call_reports_its_own_time() -> None:
    agent = hrl.PPO(counting(), SMALL)
    agent.learn(total_timesteps=96)
    report = agent.learn(total_timesteps=32).report
    assert report.counters["env_steps"] <= 32
    assert next(row.calls for row in report.phases if row.label == "learn") == report.counters["updates"]


def test_a_result_tells_what_was_learnt() -> None:
    result = hrl.PPO(counting(), SMALL).learn(total_timesteps=96)
    assert result.returns == [5.0] * len(result.episodes)
    assert result.mean_return() == result.mean_return(last=2) == 5.0
    assert len(result.episode_timesteps) == len(result.episodes) > 0
    assert str(result).startswith(
        f"{result.timesteps} steps, {len(result.episodes)} episodes, mean return 5.0 over the"
    )


def test_no_episode_means_no_mean() -> None:
    """Unknown, which isn't zero."""
    result = hrl.PPO(counting(100), SMALL).learn(total_timesteps=32)
    assert result.mean_return() is None
    assert "no episode finished" in str(result)


# Prediction and evaluation


def test_predict_takes_one_observation_or_a_batch() -> None:
    agent = hrl.PPO("CartPole-v1", SMALL)
    space = agent.environments.action
    single, none = agent.predict(np.zeros(4, np.float32))
    assert (np.shape(single), none) == ((), None)
    assert gym.spaces.Discrete(space.size).contains(single)
    batch, _ = agent.predict(np.zeros((7, 4), np.float32))
    assert batch.shape == (7,)
    assert agent.predict(np.zeros((0, 4)))[0].shape == (0,)


@pytest.mark.parametrize("bounds", ["clip", "scale"])
def test_predict_speaks_the_environment_s_language(bounds: Any) -> None:
    agent = hrl.PPO("Pendulum-v1", dataclasses.replace(SMALL, bounds=bounds))
    space = gym.spaces.Box(-2, 2, (1,), np.float32)
    actions = [agent.predict(np.zeros(3))[0] for _ in range(50)]
    assert all(space.contains(a) for a in actions)
    assert len({float(a[0]) for a in actions}) > 20
    best = {float(agent.predict(np.ones(3), deterministic=True)[0][0]) for _ in range(5)}
    assert len(best) == 1


def test_predict_starts_where_the_space_does() -> None:
    """C83."""
    agent = hrl.PPO(counting(action_space=gym.spaces.Discrete(3, start=-1)), SMALL)
    assert {int(agent.predict(np.zeros(1))[0]) for _ in range(50)} == {-1, 0, 1}
    assert {int(a) for a in agent.predict(np.zeros((50, 1)))[0]} == {-1, 0, 1}


@pytest.mark.parametrize("given", ["list", "float64", "reversed", "strided", "read-only"])
def test_predict_takes_any_array_of_numbers(given: str) -> None:
    agent = hrl.PPO("CartPole-v1", SMALL)
    agent.learn(total_timesteps=32)
    plain = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    wide = np.repeat(plain, 2, axis=1)
    frozen = plain.copy()
    frozen.flags.writeable = False
    forms: dict[str, Any] = {
        "list": plain.tolist(),
        "float64": plain.astype(np.float64),
        "reversed": plain[::-1].copy()[::-1],
        "strided": wide[:, ::2],
        "read-only": frozen,
    }
    wanted, _ = agent.predict(plain, deterministic=True)
    np.testing.assert_array_equal(agent.predict(forms[given], deterministic=True)[0], wanted)


@pytest.mark.parametrize("shape", [(), (3,), (5,), (2, 3), (2, 2, 4)])
def test_predict_refuses_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as error:
        hrl.PPO("CartPole-v1", SMALL).predict(np.zeros(shape))
    assert line(error) == f"observation of shape {shape}: expected (4,), or a batch of those"


def test_predicting_leaves_training_alone() -> None:
    agents = [hrl.PPO("CartPole-v1", SMALL, seed=0) for _ in range(2)]
    agents[0].predict(np.zeros((100, 4)))
    for agent in agents:
        agent.learn(total_timesteps=64)
    assert torch.equal(weights(agents[0]), weights(agents[1]))


@pytest.mark.parametrize("episodes", [1, 5, 17])
def test_evaluate_plays_exactly_so_many_episodes(episodes: int) -> None:
    played = hrl.PPO(counting(5), SMALL).evaluate(episodes)
    assert [(e.return_, e.length) for e in played] == [(5.0, 5)] * episodes


def test_evaluations_repeat_and_their_seed_matters() -> None:
    agent = hrl.PPO("CartPole-v1", SMALL)
    assert agent.evaluate(4) == agent.evaluate(4)
    assert agent.evaluate(4, seed=1) != agent.evaluate(4, seed=2)


def test_evaluate_takes_other_environments_and_leaves_them_open() -> None:
    agent = hrl.PPO(counting(5), SMALL)
    with envs.make(counting(9), 3) as nine:
        assert [e.length for e in agent.evaluate(4, environments=nine)] == [9] * 4
        nine.reset()


def test_evaluate_refuses_what_it_cannot_play() -> None:
    agent = hrl.PPO(counting(5), SMALL)
    for episodes in (0, -1, 2.5):
        with pytest.raises(ValueError, match=r"episodes=.*expected a whole number of at least 1"):
            agent.evaluate(episodes)  # type: ignore[arg-type]
    with (
        envs.make("CartPole-v1", 2) as other,
        pytest.raises(ValueError, match=r"this environment has \[4, 'float32'\]") as error,
    ):
        agent.evaluate(2, environments=other)
    line(error)


# Sources


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_environment_brings_its_own_number(mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([counting(5)] * 3, autoreset_mode=mode)
    agent = hrl.PPO(vector, SMALL)
    assert agent.recipe.num_envs == 3
    assert SMALL.num_envs == 2
    result = agent.learn(total_timesteps=150)
    assert result.timesteps == 150
    assert set(result.returns) == {5.0}
    with pytest.raises(ValueError, match="cannot be built again: give the evaluation environments explicitly"):
        agent.evaluate(3)


def test_dict_observations_are_refused_with_the_wrapper() -> None:
    """C84."""

    class Dicts(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,))})
        action_space = gym.spaces.Box(-1, 1, (10, 10))

    with pytest.raises(ValueError, match=r"expected a Box; wrap each environment.*FlattenObservation") as error:
        hrl.PPO(Dicts, SMALL)
    line(error)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPole-v0", "use 'CartPole-v1'"),
        ("Pendulum-v0", "use 'Pendulum-v1'"),
        ("CartPool-v1", "did you mean 'CartPole-v1'"),
        (3, "expected an id, a callable that makes one, or a VectorEnv"),
    ],
)
def test_a_wrong_environment_gets_one_line(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        hrl.PPO(env, SMALL)
    line(error)


def test_closed_environments_say_so() -> None:
    agent = hrl.PPO("CartPole-v1", SMALL)
    agent.close()
    agent.close()
    with pytest.raises(ValueError, match="these environments are closed"):
        agent.learn(total_timesteps=32)


# Recipes, schedules


def test_recipes_come_by_name_whole_or_in_part() -> None:
    assert hrl.PPO("CartPole-v1").recipe == hrl.recipes.default_ppo()
    assert hrl.PPO("CartPole-v1", recipe="tuned").recipe == hrl.recipes.tuned_ppo_cartpole()
    assert hrl.PPO("CartPole-v1", SMALL).recipe is SMALL
    assert hrl.PPO("CartPole-v1", CONFIG).recipe == PPORecipe(ppo=CONFIG)


@pytest.mark.parametrize("recipe", [None, 3, {"gamma": 0.9}, NetworkConfig()])
def test_anything_else_is_no_recipe(recipe: Any) -> None:
    with pytest.raises(ValueError, match="expected a name such as 'default', a PPORecipe or a PPOConfig") as error:
        hrl.PPO("CartPole-v1", recipe)
    line(error)


def test_a_recipe_is_for_the_environment_it_was_made_for() -> None:
    with pytest.raises(ValueError, match="no recipe 'tuned' for Acrobot-v1") as error:
        hrl.PPO("Acrobot-v1", "tuned")
    line(error)


def test_there_is_one_schedule() -> None:
    with pytest.raises(ValueError, match="schedule='async': expected 'sync'"):
        hrl.PPO("CartPole-v1", SMALL, schedule="async")


def test_no_device_is_replaced_by_another() -> None:
    with pytest.raises(ValueError, match=r"placement 'npu': device 'npu': this machine has cpu") as error:
        hrl.PPO("CartPole-v1", SMALL, placement="npu")
    line(error)


# Networks of the user's own


class Own(nn.Module):
    """Shares its first layer, holds a buffer and a frozen parameter."""

    def __init__(self, inputs: int = 4, outputs: int = 2, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, width)
        self.policy, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.register_buffer("shift", torch.full((width,), 0.5))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.body(observation)) * self.frozen + self.shift
        return self.policy(features), self.value(features).squeeze(-1)


def test_a_network_of_one_s_own_is_trained_in_place() -> None:
    network = Own()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    hrl.PPO("CartPole-v1", SMALL, network=network).learn(total_timesteps=64)
    moved = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before) - {"frozen"}


def test_a_continuous_network_gives_means_and_log_deviations() -> None:
    agent = hrl.PPO("Pendulum-v1", NORMALIZED, network=Own(inputs=3, outputs=2))
    assert len(agent.learn(total_timesteps=64).updates) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, v: (p, v.unsqueeze(-1)), r"returned \[\(2, 2\), \(2, 1\)\] for 2 observations; expected a tuple"),
        (lambda p, v: (p[:, :1], v), r"returned \[\(2, 1\), \(2,\)\] .* \(parameters \[2, 2\], value \[2\]\)"),
        (lambda p, v: p, "returned Tensor for 2 observations"),
        (lambda p, v: [p, v], "returned list for 2 observations"),
        (lambda p, v: (p, v, v), r"returned \[\(2, 2\), \(2,\), \(2,\)\]"),
    ],
)
def test_a_network_with_another_output_is_refused(change: Callable[..., Any], message: str) -> None:
    class Wrong(Own):
        def forward(self, observation: Tensor) -> Any:
            return change(*super().forward(observation))

    with pytest.raises(ValueError, match=message) as error:
        hrl.PPO("CartPole-v1", SMALL, network=Wrong())
    line(error)


def test_a_network_in_double_precision_is_refused() -> None:
    """C39."""
    with pytest.raises(
        ValueError, match=r"the network.s frozen is torch.float64: expected torch.float32, call network.float"
    ):
        hrl.PPO("CartPole-v1", SMALL, network=Own().double())


def test_a_network_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        hrl.PPO("CartPole-v1", SMALL, network=Own().requires_grad_(False))


# Tensors


def reachable(root: object) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that can be reached through attributes and containers, with its path."""
    seen, waiting = set[int](), [("agent", root)]
    while waiting:
        path, item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield path, item
        if isinstance(item, dict):
            waiting += [(f"{path}[{key!r}]", value) for key, value in item.items()]
        elif isinstance(item, list | tuple | set):
            waiting += [(f"{path}[{i}]", value) for i, value in enumerate(item)]
        elif type(item).__module__.startswith(("hybridrl", "torch.nn", "torch.optim", "tests", "test_")):
            slots = [name for cls in type(item).__mro__ for name in getattr(cls, "__slots__", ())]
            names = {*getattr(item, "__dict__", {}), *slots}
            waiting += [(f"{path}.{name}", getattr(item, name)) for name in sorted(names) if hasattr(item, name)]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_no_tensor_is_left_behind_when_modules_move(env: str, tmp_path: Path) -> None:
    """C63: each is a parameter or a buffer, or part of the flat vectors, the optimiser or the rollout's arena."""
    agent = hrl.PPO(env, dataclasses.replace(NORMALIZED, bounds="scale", ppo=CRITIC.ppo))
    agent.learn(total_timesteps=64)
    check_homes(agent)
    agent.save(tmp_path / "x")  # and so it is after loading
    loaded = hrl.PPO.load(tmp_path / "x")
    check_homes(loaded)
    loaded.learn(total_timesteps=64)
    check_homes(loaded)


def check_homes(agent: hrl.PPO) -> None:
    known = [t for module in agent._parts._modules().values() for t in (*module.parameters(), *module.buffers())]
    flat, optimizer = agent.learner.flat, agent.learner.optimizer
    known += [flat.values, flat.gradients, agent.collector.storage.arena.block]
    known += [t for per in optimizer.state.values() for t in per.values()]
    homes = {t.untyped_storage().data_ptr() for t in known}
    found = dict(reachable(agent))
    assert len(found) > 20
    assert [path for path, t in found.items() if t.untyped_storage().data_ptr() not in homes] == []


# Saving and loading


RECIPES = {"plain": SMALL, "normalised": NORMALIZED, "two rates": CRITIC}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_saved_agent_comes_back(env: str, recipe: PPORecipe, tmp_path: Path) -> None:
    agent = hrl.PPO(env, recipe, seed=3)
    agent.learn(total_timesteps=100)
    agent.save(tmp_path / "x")
    loaded = hrl.PPO.load(tmp_path / "x")
    assert loaded.recipe == agent.recipe
    assert (loaded.timesteps, loaded.episodes, loaded.seed) == (agent.timesteps, agent.episodes, 3)
    assert same(state(loaded), state(agent))
    # C61: the optimiser's state is where the parameters are.
    places = {t.device for moments in loaded.learner.optimizer.state.values() for t in moments.values()}
    assert places == {loaded.learner.flat.values.device}
    observation = np.random.default_rng(0).normal(size=(20, *agent.environments.observation.shape))
    for deterministic in (True, False):  # the sampling goes on with the same random numbers
        mine, theirs = (a.predict(observation, deterministic=deterministic)[0] for a in (agent, loaded))
        np.testing.assert_array_equal(mine, theirs)
    assert agent.evaluate(3) == loaded.evaluate(3)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_loaded_agent_learns_as_the_saved_one(recipe: PPORecipe, tmp_path: Path) -> None:
    """From one rollout both make the same update: moments, rates and shuffling came back too."""
    agent = hrl.PPO("CartPole-v1", recipe)
    agent.learn(total_timesteps=96)
    agent.save(tmp_path / "x")
    loaded = hrl.PPO.load(tmp_path / "x")
    agent.learner.timer = agent.collector.timer = NullTimer()
    rollout, _ = agent.collector.collect(16)
    # Environments start new episodes, and so do the running sums of their rewards.
    agent.learner.reward_normalizer.running.zero_()
    for one in (agent, loaded):
        one.learner.update(rollout, progress=0.5)
    assert torch.equal(weights(agent), weights(loaded))


def test_a_loaded_agent_starts_episodes_of_its_own(tmp_path: Path) -> None:
    """From seeds derived anew at each loading, stated in the documentation."""
    agent = hrl.PPO("CartPole-v1", SMALL)
    first = [agent.collector.seed]
    agent.learn(total_timesteps=32)
    for _ in range(3):
        agent.save(tmp_path / "x")
        agent = hrl.PPO.load(tmp_path / "x")
        first.append(agent.collector.seed)
        agent.learn(total_timesteps=32)
    assert len(set(first)) == 4


def test_an_unfinished_budget_is_saved(tmp_path: Path) -> None:
    agent = hrl.PPO("CartPole-v1", SMALL)
    agent.learn(total_timesteps=50)
    agent.learn(total_timesteps=160, callback=lambda i: i.timesteps < 100)
    agent.save(tmp_path / "x")
    loaded = hrl.PPO.load(tmp_path / "x")
    loaded.learn(resume=True)
    assert 208 < loaded.timesteps <= 210


def test_an_agent_is_saved_at_the_end_and_now_and_then(tmp_path: Path) -> None:
    agent, found = hrl.PPO(counting(100), SMALL), []

    def look(_: Iteration) -> None:
        found.append(checkpoints.read(path)[1]["timesteps"] if path.exists() else None)

    path = tmp_path / "x"
    agent.learn(total_timesteps=160, checkpoint=path, checkpoint_every=2, callback=look)
    assert found == [None, 64, 64, 128, 128]
    _, data = checkpoints.read(path)
    assert (data["timesteps"], data["unfinished"]) == (160, None)


def test_an_agent_is_saved_after_so_many_seconds_too(tmp_path: Path) -> None:
    path, found = tmp_path / "x", []
    hrl.PPO(counting(100), SMALL).learn(
        total_timesteps=96,
        checkpoint=path,
        checkpoint_seconds=1e-9,
        callback=lambda _: found.append(checkpoints.read(path)[1]["timesteps"]),
    )
    assert found == [32, 64, 96]


@pytest.mark.parametrize("placement", ["cuda:7", "cpu+cuda:7"])
def test_a_saved_agent_is_not_put_where_there_is_no_device(placement: str, tmp_path: Path) -> None:
    """C64: loading goes through the host; a device that isn't there is an error, not another device."""
    hrl.PPO("CartPole-v1", SMALL).save(tmp_path / "x")
    with pytest.raises(ValueError, match=r"cuda:7|cpu") as error:
        hrl.PPO.load(tmp_path / "x", placement=placement)
    line(error)


def test_a_checkpoint_without_a_folder_is_refused_before_training(tmp_path: Path) -> None:
    agent = hrl.PPO(counting(), SMALL)
    for path in (tmp_path / "no" / "x", tmp_path):
        with pytest.raises(ValueError, match=r"create it first|give the path of a file") as error:
            agent.learn(total_timesteps=32, checkpoint=path)
        line(error)
    assert agent.timesteps == 0


def test_a_full_disk_leaves_the_agent_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = hrl.PPO(counting(100), SMALL)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save_file", full)
        with pytest.raises(OSError, match="can't be written") as error:
            agent.learn(total_timesteps=128, checkpoint=tmp_path / "x", checkpoint_every=1)
    line(error)
    agent.learn(resume=True, checkpoint=tmp_path / "x")
    assert hrl.PPO.load(tmp_path / "x", env=counting(100)).timesteps == 128


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x"
    script = f"""
        import os, signal, torch
        import hybridrl as hrl
        from hybridrl.recipes import PPORecipe
        torch.set_num_threads(1)
        def kill(iteration):
            if iteration.timesteps >= 90:
                os.kill(os.getpid(), signal.SIGKILL)
        recipe = PPORecipe(ppo=hrl.PPOConfig(rollout_steps=16), num_envs=2)
        agent = hrl.PPO("CartPole-v1", recipe, seed=5)
        agent.learn(total_timesteps=200, checkpoint={str(path)!r}, checkpoint_every=2, callback=kill)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    agent = hrl.PPO.load(path)
    saved = agent.timesteps
    assert 0 < saved < 90
    result = agent.learn(resume=True)
    assert 198 < agent.timesteps <= 200
    assert result.timesteps == agent.timesteps - saved
    assert agent.episodes >= len(result.episodes)


def test_a_callable_is_not_replaced_by_the_id_it_wraps(tmp_path: Path) -> None:
    """Its wrappers would be lost without a word."""
    agent = hrl.PPO(lambda: gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda r: 2 * r), SMALL)
    agent.save(tmp_path / "x")
    with pytest.raises(ValueError, match="made without a Gymnasium id; give the environment as env=") as error:
        hrl.PPO.load(tmp_path / "x")
    line(error)
    assert hrl.PPO.load(tmp_path / "x", env="CartPole-v1").recipe == SMALL


def test_another_environment_is_refused(tmp_path: Path) -> None:
    hrl.PPO("CartPole-v1", SMALL).save(tmp_path / "x")
    with pytest.raises(ValueError) as error:
        hrl.PPO.load(tmp_path / "x", env="Pendulum-v1")
    assert line(error) == (
        f"{tmp_path / 'x'}: made for observations [4, 'float32'] and actions ['discrete', 2]; "
        "this environment has [3, 'float32'] and ['continuous', 1, 'scale']"
    )


def test_a_network_of_one_s_own_is_needed_again(tmp_path: Path) -> None:
    agent = hrl.PPO("CartPole-v1", SMALL, network=Own())
    agent.learn(total_timesteps=64)
    agent.save(tmp_path / "x")
    with pytest.raises(ValueError, match="made with a network of your own; give one like it as network=") as error:
        hrl.PPO.load(tmp_path / "x")
    line(error)
    with pytest.raises(ValueError, match=r"policy\.network\.frozen is \[8\] in the file and \[9\] here") as error:
        hrl.PPO.load(tmp_path / "x", network=Own(width=9))
    line(error)
    assert same(state(hrl.PPO.load(tmp_path / "x", network=Own())), state(agent))


class CriticBetween(nn.Module):
    """The rest of the parameters lies in two stretches, before and after the critic's."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.critic, self.actor = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 2)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.body(observation))
        return self.actor(features), self.critic(features).squeeze(-1)


def test_a_critic_between_other_layers_is_saved_with_its_moments(tmp_path: Path) -> None:
    agent = hrl.PPO("CartPole-v1", CRITIC, network=CriticBetween())
    agent.learn(total_timesteps=64)
    agent.save(tmp_path / "x")
    loaded = hrl.PPO.load(tmp_path / "x", network=CriticBetween())
    assert same(state(loaded), state(agent))
    loaded.learn(total_timesteps=64)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "x", {}, {"algorithm": "dqn"})
    with pytest.raises(ValueError, match=r"lacks environment, .*give a file that PPO.save wrote") as error:
        hrl.PPO.load(tmp_path / "x")
    line(error)
    hrl.PPO("CartPole-v1", SMALL).save(tmp_path / "x")
    tensors, data = checkpoints.read(tmp_path / "x")
    checkpoints.write(tmp_path / "x", tensors, {**data, "algorithm": "dqn"})
    with pytest.raises(ValueError, match="holds 'dqn', expected 'ppo'"):
        hrl.PPO.load(tmp_path / "x")


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    agent = hrl.PPO("CartPole-v1", SMALL)
    agent.learn(total_timesteps=32)
    agent.save(tmp_path / "x")
    tensors, data = checkpoints.read(tmp_path / "x")
    for name in tensors:
        checkpoints.write(tmp_path / "y", {k: v for k, v in tensors.items() if k != name}, data)
        with pytest.raises(ValueError, match=name.replace(".", r"\.")) as error:
            hrl.PPO.load(tmp_path / "y")
        line(error)


def test_a_loaded_agent_says_where_it_runs(tmp_path: Path) -> None:
    hrl.PPO("CartPole-v1", SMALL).save(tmp_path / "x")
    assert str(hrl.PPO.load(tmp_path / "x", placement="cpu").placement) == "cpu"
    with pytest.raises(ValueError, match="placement 'npu'"):
        hrl.PPO.load(tmp_path / "x", placement="npu")


# The progress bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "wanted", "shown"),
    [
        (Terminal, "", True, True),
        (Terminal, "", False, False),
        (Terminal, "1", True, False),
        (io.StringIO, "", True, False),
    ],
)
def test_the_bar_is_shown_on_a_terminal_only(
    stream: type[io.StringIO], quiet: str, wanted: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C98."""
    monkeypatch.setenv("HYBRIDRL_QUIET", quiet)
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    hrl.PPO(counting(5), SMALL).learn(total_timesteps=96, progress_bar=wanted)
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("96" in written and "steps" in written and "return 5.0" in written) if shown else written == ""
    assert sys.stdout.getvalue() == ""  # type: ignore[attr-defined]


def test_training_in_a_process_of_its_own_writes_nothing() -> None:
    """C98: nothing but what the user prints reaches a notebook's output."""
    script = """
        import torch, hybridrl as hrl
        torch.set_num_threads(1)
        hrl.PPO("CartPole-v1", hrl.PPOConfig(rollout_steps=16)).learn(total_timesteps=128, progress_bar=True)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        check=True,
        env={key: value for key, value in os.environ.items() if key != "HYBRIDRL_QUIET"},
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_an_identity_is_learnt_a_little() -> None:
    """The shortest proof that all the parts pull in one direction; more in the learning tests."""
    recipe = dataclasses.replace(
        SMALL, num_envs=8, ppo=PPOConfig(rollout_steps=32, minibatch_size=64, learning_rate=3e-3, gamma=0.0)
    )
    agent = hrl.PPO(lambda: IdentityEnv(gym.spaces.Discrete(3)), recipe, seed=0)
    before = np.mean([e.return_ for e in agent.evaluate(16)])
    agent.learn(total_timesteps=3_000)
    after = np.mean([e.return_ for e in agent.evaluate(16)])
    assert before < 14 < 18 < after


def test_a_budget_below_one_vector_step_is_refused_not_ignored() -> None:
    agent = hrl.PPO("CartPole-v1", recipe="default")
    with pytest.raises(ValueError, match="one step of each of 8 environments") as error:
        agent.learn(total_timesteps=7)
    line(error)
    assert agent.timesteps == 0


class OneBadReward(CountingEnv):
    """Its twentieth reward isn't a number."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, (math.nan if len(self.received) == 20 else reward), *rest


def test_a_reward_that_is_no_number_ends_training_before_it_is_learnt_from(tmp_path: Path) -> None:
    agent = hrl.PPO(lambda: OneBadReward(5), SMALL, seed=0)
    with pytest.raises(ValueError, match=r"reward of environment 0 at step \d+: nan, expected") as error:
        agent.learn(total_timesteps=4_000, checkpoint=tmp_path / "a", checkpoint_every=1)
    line(error)
    assert all(torch.isfinite(p).all() for p in agent.policy.parameters())
    kept = hrl.PPO.load(tmp_path / "a", env=lambda: CountingEnv(5))
    assert 0 < kept.timesteps < agent.timesteps


def test_a_run_that_diverges_says_so_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    steep = dataclasses.replace(SMALL, ppo=dataclasses.replace(CONFIG, learning_rate=1e30))
    agent = hrl.PPO(counting(), steep, seed=0)
    with pytest.raises(ValueError, match=r"expected (a )?finite number") as error:
        agent.learn(total_timesteps=4_000, checkpoint=tmp_path / "a", checkpoint_every=1)
    line(error)
    if (tmp_path / "a").exists():
        kept = hrl.PPO.load(tmp_path / "a", env=counting())
        assert all(torch.isfinite(p).all() for p in kept.policy.parameters())


def test_a_file_does_not_decide_what_is_imported(tmp_path: Path) -> None:
    agent = hrl.PPO("gymnasium:CartPole-v1", SMALL)
    agent.save(tmp_path / "a")
    with pytest.raises(ValueError, match="give it as env=") as error:
        hrl.PPO.load(tmp_path / "a")
    line(error)
    hrl.PPO.load(tmp_path / "a", env="gymnasium:CartPole-v1").close()


@pytest.mark.parametrize("recipe", [SMALL, CRITIC, NORMALIZED], ids=["small", "critic", "normalized"])
def test_a_copied_agent_learns_as_the_original_does(recipe: PPORecipe) -> None:
    agent = hrl.PPO("CartPole-v1", recipe, seed=3)
    agent.learn(total_timesteps=128)
    twin = copy.deepcopy(agent)
    before = twin.learner.flat.values.clone()
    for one in (agent, twin):
        one.learn(total_timesteps=128)
    assert not torch.equal(twin.learner.flat.values, before)
    assert torch.equal(twin.learner.flat.values, agent.learner.flat.values)


def test_the_environments_trained_on_are_not_evaluated_on() -> None:
    agent = hrl.PPO("Pendulum-v1", SMALL)
    agent.learn(total_timesteps=64)
    with pytest.raises(ValueError, match="in the middle of episodes") as error:
        agent.evaluate(2, environments=agent.environments)
    line(error)


def test_environments_that_treat_actions_otherwise_are_refused() -> None:
    agent = hrl.PPO("Pendulum-v1", dataclasses.replace(SMALL, bounds="scale"))
    environments = hrl.envs.make("Pendulum-v1", 2)
    with pytest.raises(ValueError, match="bound_actions") as error:
        agent.evaluate(1, environments=environments)
    line(error)
    environments.bound_actions("scale")
    assert len(agent.evaluate(1, environments=environments)) == 1


def test_learning_inside_a_callback_is_refused() -> None:
    agent = hrl.PPO(counting(), SMALL)
    with pytest.raises(ValueError, match="inside learn") as error:
        agent.learn(total_timesteps=64, callback=lambda _: bool(agent.learn(total_timesteps=64)))
    line(error)
    assert agent.learn(total_timesteps=64).timesteps == 64


class Layered(nn.Module):
    """A network with a layer of choice in its middle."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), layer, nn.Tanh())
        self.actor, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and value."""
        hidden = self.body(observation)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(16)], ids=["dropout", "batch norm"])
def test_a_network_that_answers_in_two_ways_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match="in two ways") as error:
        hrl.PPO("CartPole-v1", SMALL, network=Layered(layer))
    line(error)
    hrl.PPO("CartPole-v1", SMALL, network=Layered(layer).eval()).close()
    hrl.PPO("CartPole-v1", SMALL, network=Layered(nn.LayerNorm(16))).close()


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path: Path) -> None:
    network = dataclasses.replace(SMALL.network, hidden=(8,), initial_log_std=np.float32(0.5))
    agent = hrl.PPO("CartPole-v1", dataclasses.replace(SMALL, network=network), seed=np.int64(3))
    agent.save(tmp_path / "a")
    assert hrl.PPO.load(tmp_path / "a").seed == 3


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [(None, [-1, 0, 10], [1, 5, 20]), ("clip", [-1, 0, 1], [1, 1, 1])],
    ids=["default", "clip"],
)
def test_bounded_boxes_are_scaled_to_unless_told_otherwise(bounds: Any, low: list[float], high: list[float]) -> None:
    """C73: -1 and 1 are the sides of every dimension."""
    space = gym.spaces.Box(np.float32([-1, 0, 10]), np.float32([1, 5, 20]))
    agent = hrl.PPO(lambda: IdentityEnv(space), dataclasses.replace(SMALL, bounds=bounds))
    ends = agent.environments.action.to_env(np.float32([[-1, -1, -1], [1, 1, 1]]))
    expected = [low, high] if bounds is None else [[-1, 0, 10], [1, 1, 10]]
    assert ends.tolist() == expected
    assert "their bounds" in str(agent.learn(total_timesteps=32).report)


def test_evaluation_takes_a_seed_that_training_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(envs, "evaluate", lambda *_, seed, **__: taken.append(seed) or [])
    agent = hrl.PPO("CartPole-v1", SMALL, seed=4)
    agent.evaluate(2)
    assert len(taken) == 1
    assert taken[0] not in envs.spread_seeds(4, 5)


# Hints


def report_of(env_s: float, wall_s: float, steps: int) -> hrl.Report:
    from hybridrl.profiling.report import PhaseRow

    row = PhaseRow(("env",), steps, env_s, env_s)
    return hrl.Report(wall_s=wall_s, phases=(row,), counters={"env_steps": steps})


@pytest.mark.parametrize(
    ("env_s", "num_envs", "batched", "cores", "hinted"),
    [
        (0.9, 4, False, 2.0, True),
        (0.4, 4, False, 2.0, False),  # other phases took longer
        (0.9, 1, False, 2.0, False),  # nothing to run at once
        (0.9, 4, True, 2.0, False),  # not in turn
        (0.9, 4, False, 1.0, False),
        (0.9, 4, False, None, False),
    ],
)
def test_slow_environments_stepped_in_turn_are_pointed_out(
    env_s: float, num_envs: int, batched: bool, cores: float | None, hinted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C06: the environment is the cost, and the advice is about it; from measurement only."""
    from hybridrl import results

    monkeypatch.setattr(results, "available_cores", lambda: cores)
    environments = hrl.envs.make("CartPole-v1", num_envs, batched=batched)
    notes = results.advised(report_of(env_s, 1.0, 1000), environments).notes
    wanted = (
        "stepping the environments in turn took 90% of the time, 0.9 ms a step; "
        "processes='auto' measures whether processes pay"
    )
    assert notes == ((wanted,) if hinted else ())


def test_fast_environments_are_not_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridrl import results

    environments = hrl.envs.make("CartPole-v1", 4, batched=False)
    assert results.advised(report_of(0.9, 1.0, 100_000), environments).notes == ()


def test_an_agent_that_fails_to_be_made_leaves_no_process() -> None:
    """C47."""
    import multiprocessing

    with pytest.raises(ValueError, match="expected a torch"):
        hrl.PPO(counting(), SMALL, network=3, processes=True)  # type: ignore[arg-type]
    assert multiprocessing.active_children() == []


def test_a_device_without_memory_ends_the_run_with_what_to_make_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, played by the learner at the second update; the last checkpoint is named and untouched."""
    agent = hrl.PPO("CartPole-v1", SMALL)
    real, calls = agent.learner.update, []

    def update(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1 GiB free.")
        return real(*arguments, **options)

    monkeypatch.setattr(agent.learner, "update", update)
    with pytest.raises(MemoryError) as error:
        agent.learn(total_timesteps=96, checkpoint=tmp_path / "x", checkpoint_every=1)
    assert re.fullmatch(
        r"at step \d+: CUDA out of memory\. Tried to allocate 2\.00 GiB; use a smaller minibatch_size, or fewer "
        r"rollout_steps or environments; last checkpoint: \S+x \(step \d+\)",
        line(error),
    )
    assert hrl.PPO.load(tmp_path / "x").timesteps > 0
