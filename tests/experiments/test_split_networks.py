"""The critic apart from the actor: only the intended copies cross, the loss is PPO's, and it learns."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest
import torch

from hybridrl import envs
from hybridrl.envs import Environments, Step
from hybridrl.experiments import split_cost
from hybridrl.experiments.result import NEEDS_GPU
from hybridrl.experiments.split_cost import Costs
from hybridrl.experiments.split_networks import Learnt, SplitActorCritic, SplitConfig, train
from hybridrl.ops.losses import clipped_policy_loss, value_loss
from hybridrl.placement import devices
from hybridrl.placement.memories import MixedMemories, TwoMemories
from hybridrl.profiling import NullTimer, Report
from hybridrl.profiling.report import PhaseRow
from hybridrl.testing import CountingEnv, slow_gae

SMALL = SplitConfig(rows=12, hidden=8, epochs=3)


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Sums in one order."""


def agent(config: SplitConfig = SMALL, *, size: int = 4) -> SplitActorCritic:
    return SplitActorCritic(size, 2, config, actor_device="cpu", critic_device="cpu", seed=0, timer=NullTimer())


def cartpole() -> Environments:
    return envs.make("CartPole-v1", 1, max_episode_steps=200)


def memories(made: SplitActorCritic) -> TwoMemories:
    def learnt(part: Learnt) -> list[torch.Tensor]:
        return [part.flat.state, part.flat.gradients]

    return TwoMemories(
        actor=[*learnt(made.actor), made.outgoing.block, made.kept.block, made.values],
        critic=[*learnt(made.critic), made.arrived.block],
    )


def test_one_copy_each_way_an_update_and_nothing_else_crosses() -> None:
    """Counted by a dispatch mode, which raises where an operation joins the two memories."""
    made = agent()
    with memories(made) as watched:
        train(made, cartpole(), updates=3, seed=0)
    assert watched.crossed("actor", "critic") == [made.outgoing.nbytes] * 3
    assert watched.crossed("critic", "actor") == [2 * 12 * 4] * 3
    assert len(watched.crossings) == 6


def test_what_the_published_class_does_is_what_the_watch_refuses() -> None:
    """Its advantages join the critic's values, on one device, with what the actor has, on the other."""
    made = agent()
    train(made, cartpole(), updates=1, seed=0)
    with memories(made):
        values = made.critic.network(made.arrived.views["observation"][0]).squeeze(-1)
        with pytest.raises(MixedMemories):
            made.outgoing.views["reward"] - values


def test_it_learns_cartpole() -> None:
    finished = train(agent(SplitConfig(actor_rate=3e-3)), cartpole(), updates=25, seed=0)
    assert fmean(episode.return_ for episode in finished[:15]) < 40
    assert fmean(episode.return_ for episode in finished[-20:]) > 80


def test_actions_are_sampled_in_proportion_with_their_log_probabilities() -> None:
    made = agent()
    observation = np.tile(np.array([[0.5, -1.0, 0.25, 2.0]], np.float32), (4_000, 1))
    action, log_prob = made.act(observation)
    with torch.no_grad():
        expected = made.actor.network(torch.from_numpy(observation[:1])).log_softmax(-1)[0]
    assert torch.allclose(log_prob, expected[action])
    assert action.type(torch.float32).mean().item() == pytest.approx(expected[1].exp().item(), abs=0.03)


def full(made: SplitActorCritic) -> None:
    """Play a rollout, without learning."""
    environments = cartpole()
    observation = environments.reset(5)
    while not made.full:
        acted = made.act(observation)
        step = environments.step(acted[0].numpy())
        made.store(observation, acted, step)
        observation = step.observation


def test_an_update_is_one_step_down_ppo_s_loss_summed_over_both_networks() -> None:
    """One loss and one optimiser over both, which is possible in one memory, give the same weights."""
    made, twin = agent(SplitConfig(rows=40, hidden=8, epochs=2)), agent(SplitConfig(rows=40, hidden=8, epochs=2))
    full(made)
    sent, kept = ({n: v.clone() for n, v in arena.views.items()} for arena in (made.outgoing, made.kept))
    made.update()
    assert kept["truncated"].sum() + sent["terminated"].sum() >= 1  # the rollout spans episodes

    with torch.no_grad():
        value, next_value = twin.critic.network(sent["observation"]).squeeze(-1)
    columns = [sent["reward"], value, next_value, sent["terminated"], kept["truncated"]]
    arrays = [column.numpy()[:, None] for column in columns]
    advantage = torch.from_numpy(slow_gae(*arrays, gamma=0.98, lambda_=0.95)[:, 0]).type(torch.float32)
    target = sent["reward"] + 0.98 * next_value * (~sent["terminated"]).type(torch.float32)
    groups = [
        {"params": list(twin.actor.network.parameters()), "lr": 1e-3},
        {"params": list(twin.critic.network.parameters()), "lr": 1e-2},
    ]
    optimizer = torch.optim.Adam(groups)
    for _ in range(2):
        optimizer.zero_grad()
        log_p = twin.actor.network(sent["observation"][0]).log_softmax(-1)
        log_prob = log_p[torch.arange(40), kept["action"]]
        policy = clipped_policy_loss(log_prob, kept["log_prob"], advantage, clip_range=0.2)
        (policy + value_loss(twin.critic.network(sent["observation"][0]).squeeze(-1), target)).backward()
        optimizer.step()
    for mine, theirs in ((made.actor, twin.actor), (made.critic, twin.critic)):
        for a, b in zip(mine.network.parameters(), theirs.network.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("truncates", [False, True])
def test_a_rollout_holds_transitions_only_with_what_really_followed(truncates: bool) -> None:
    made = agent(SplitConfig(rows=8, hidden=4, epochs=1), size=1)
    environments = envs.make(lambda: CountingEnv(3, truncates=truncates), 1)
    finished = train(made, environments, updates=1, seed=0)
    before, after = made.outgoing.views["observation"].squeeze(-1).tolist()
    assert before == [0, 1, 2, 0, 1, 2, 0, 1]
    assert after == [1, 2, 3, 1, 2, 3, 1, 2]
    ends = [False, False, True, False, False, True, False, False]
    assert made.outgoing.views["terminated"].tolist() == [end and not truncates for end in ends]
    assert made.kept.views["truncated"].tolist() == [end and truncates for end in ends]
    assert [episode.length for episode in finished] == [3, 3]


def test_same_step_resets_keep_the_observation_that_ended_the_episode() -> None:
    made = agent(SMALL, size=1)
    flags = np.array([True]), np.array([False]), np.array([True])
    step = Step(np.zeros((1, 1), np.float32), np.ones(1, np.float32), *flags, np.full((1, 1), 9, np.float32))
    made.store(np.full((1, 1), 8, np.float32), made.act(np.zeros((1, 1), np.float32)), step)
    assert made.outgoing.views["observation"][:, 0].flatten().tolist() == [8, 9]


def test_devices_that_are_not_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    with pytest.raises(ValueError, match="this machine has cpu"):
        SplitActorCritic(4, 2, SMALL, actor_device="cpu", critic_device="cuda", seed=0, timer=NullTimer())


def test_an_update_stays_in_the_global_generator_s_sequence() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    train(agent(), cartpole(), updates=1, seed=0)
    assert torch.equal(torch.rand(2), expected)


@pytest.fixture(scope="module")
def costs() -> Costs:
    return split_cost.measure(SMALL, updates=2, repeats=3)


def test_every_way_does_the_same_work(costs: Costs) -> None:
    assert list(costs.reports) == ["cpu", "hybrid, cpu+cpu", "split, cpu and cpu"]
    for name, reports in costs.reports.items():
        assert [report.counters["updates"] for report in reports] == [2, 2, 2], name
        for report in reports:  # PPO's rows may hold a reset
            assert 18 <= report.counters["env_steps"] <= 24, name


def test_without_an_accelerator_its_columns_are_empty_with_the_reason(costs: Costs) -> None:
    result = split_cost.table(costs)
    assert result.columns[-2:] == ("hybrid, cpu+gpu", "split, cpu and gpu")
    for row in result.rows[:3]:
        assert [cell.known for cell in row.cells] == [True, True, True, False, False]
        assert {cell.text() for cell in row.cells[3:]} == {NEEDS_GPU}


def test_what_crosses_is_what_a_dispatch_mode_counts(costs: Costs) -> None:
    there, back = split_cost.table(costs).rows[3:]
    made = agent()
    assert [there.cells[2].value, back.cells[2].value] == [made.outgoing.nbytes, 2 * 12 * 4]
    assert costs.crossing["cpu"] == (0, 0)
    weights = 4 * (4 * 8 + 8 + 8 * 2 + 2 + 4 * 8 + 8 + 8 + 1)
    normalizer = 4 * (1 + 4 + 4)
    assert costs.crossing["hybrid, cpu+cpu"][1] == weights + normalizer


def test_record_keeps_every_round(costs: Costs) -> None:
    record = split_cost.record(costs, SMALL, updates=2)
    assert record.claims == ("C5",)
    assert set(record.series) == {f"{name}: {what}" for name in costs.reports for what in ("step", "update", "moving")}
    assert all(len(series.values) == 3 for series in record.series.values())
    assert record.config["rows"] == 12


def made_up(*, collect: float, transfer: float) -> Report:
    rows = [PhaseRow(("collect",), 2, collect, collect), PhaseRow(("learn",), 2, 0.5, 0.5 - transfer)]
    moved = PhaseRow(("learn", "transfer"), 4, transfer, transfer)
    return Report(wall_s=2.0, phases=(*rows, moved), counters={"env_steps": 100, "updates": 10})


def test_an_update_is_all_that_is_not_acting() -> None:
    report = made_up(collect=1.0, transfer=0.25)
    assert split_cost.step_us(report) == pytest.approx(10_000)
    assert split_cost.update_ms(report) == pytest.approx(100)
    assert split_cost.moving_ms(report) == pytest.approx(25)


def test_with_an_accelerator_the_verdict_is_about_it() -> None:
    slow, fast = (made_up(collect=c, transfer=0.1) for c in (0.5, 1.0))
    names = {"cpu": fast, "hybrid, cpu+cuda": fast, "split, cpu and cuda": slow}
    names |= {"hybrid, cpu+cpu": fast, "split, cpu and cpu": fast}
    found = Costs(
        accelerator="cuda",
        reports={name: (report,) * 5 for name, report in names.items()},
        crossing=dict.fromkeys(names, (1, 1)),
    )
    result = split_cost.table(found)
    assert result.columns[-1] == "split, cpu and cuda"
    assert "split, cpu and cuda is 1.50 times hybrid, cpu+cuda" in result.caption()
    assert all(cell.known for row in result.rows for cell in row.cells)


def test_training_stops_after_so_many_updates() -> None:
    stop: Callable[..., bool] = split_cost._stop_after(3)
    assert [stop(None) for _ in range(3)] == [True, True, False]
