"""What it costs to place the critic apart, against placing the learner apart, and all on the CPU (claim C5)."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import torch

from hybridrl import envs, recipes
from hybridrl.agents import PPO
from hybridrl.execution import Iteration, TwoMemories
from hybridrl.experiments import scale
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement, compare
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, unknown
from hybridrl.experiments.split_networks import SplitActorCritic, SplitConfig, train
from hybridrl.placement import devices
from hybridrl.profiling import PhaseTimer, Report
from hybridrl.profiling.phases import COLLECT, PUBLISH, TRANSFER
from hybridrl.recipes import PPORecipe

_NAME = "split-networks"
_ENV = "CartPole-v1"
ALL_CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """One way to place the same training."""

    name: str
    run: Callable[[int], Report]
    """Trains on for so many updates."""
    crossing: tuple[int, int]
    """Bytes to the other memory and back, for an update."""
    close: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the ways took; those that this machine hasn't the devices for are missing."""

    accelerator: str | None
    reports: Mapping[str, tuple[Report, ...]]
    """A report a round, by way; round i of all ways was taken in turn."""
    crossing: Mapping[str, tuple[int, int]]


def recipe(config: SplitConfig) -> PPORecipe:
    """The same set-up for PPO in one memory or two."""
    classic = recipes.classic_ppo_cartpole()
    ppo = replace(
        classic.ppo,
        rollout_steps=config.rows,
        epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        learning_rate=config.actor_rate,
        critic_learning_rate=config.critic_rate,
    )
    return replace(classic, ppo=ppo, network=replace(classic.network, hidden=(config.hidden,)))


def together(name: str, placement: str, config: SplitConfig) -> Trainee:
    """PPO: one policy in one memory, or an acting copy in one and the learner in another."""
    agent = PPO(_ENV, recipe(config), placement=placement, seed=0)

    def run(updates: int) -> Report:
        steps = 2 * updates * config.rows  # more than are taken: the callback ends it
        return agent.learn(total_timesteps=steps, callback=_stop_after(updates)).report

    bridge = agent.bridge
    weights = agent.learner.flat.state
    crossing = (
        (bridge.copy.nbytes, weights.numel() * weights.element_size()) if isinstance(bridge, TwoMemories) else (0, 0)
    )
    return Trainee(name=name, run=run, crossing=crossing, close=agent.close)


def apart(name: str, critic_device: str, config: SplitConfig) -> Trainee:
    """The actor on the CPU and the critic elsewhere."""
    environments = envs.make(_ENV, 1, max_episode_steps=recipes.classic_ppo_cartpole().max_episode_steps)
    used = [devices.resolve(name) for name in (devices.CPU, critic_device)]
    agent = SplitActorCritic(
        *(environments.observation.shape[0], environments.action.size),
        config,
        actor_device=devices.CPU,
        critic_device=critic_device,
        seed=0,
        timer=PhaseTimer(),
    )
    seeds = iter([0])  # once; afterwards the environments go on with the generators that they have

    def run(updates: int) -> Report:
        timer = agent.timer = PhaseTimer(synchronize=devices.synchronizer_of_all(used))
        with timer.run():
            train(agent, environments, updates=updates, seed=next(seeds, None))
        counters = {"env_steps": updates * config.rows, "updates": updates}
        return timer.report(threads=torch.get_num_threads(), counters=counters)

    crossing = (agent.outgoing.nbytes, agent.values.numel() * agent.values.element_size())
    return Trainee(name=name, run=run, crossing=crossing, close=environments.close)


def trainees(config: SplitConfig, accelerator: str | None) -> list[Trainee]:
    """All on the CPU; then in two memories of the CPU; then with an accelerator, where there is one."""
    others = [devices.CPU, *([accelerator] if accelerator else [])]
    pairs = ((together(_hybrid(o), f"cpu+{o}", config), apart(_split(o), o, config)) for o in others)
    return [together(ALL_CPU, devices.CPU, config), *(trainee for pair in pairs for trainee in pair)]


def measure(config: SplitConfig, *, updates: int, repeats: int) -> Costs:
    """Train every way in turns, after one round that isn't counted.

    Args:
        config: of all.
        updates: a round.
        repeats: rounds.
    """
    accelerator = next(iter(devices.available()[1:]), None)
    found = trainees(config, accelerator)
    try:
        rounds = [{trainee.name: trainee.run(updates) for trainee in found} for _ in range(repeats + 1)][1:]
    finally:
        for trainee in found:
            trainee.close()
    reports = {trainee.name: tuple(each[trainee.name] for each in rounds) for trainee in found}
    return Costs(accelerator=accelerator, reports=reports, crossing={t.name: t.crossing for t in found})


def step_us(report: Report) -> float:
    """Microseconds of acting, environment and storing a step."""
    return 1e6 * (report.seconds(COLLECT) or 0.0) / report.counters["env_steps"]


def update_ms(report: Report) -> float:
    """Milliseconds of everything else an update: learning, and what is moved for it."""
    return 1e3 * (report.wall_s - (report.seconds(COLLECT) or 0.0)) / report.counters["updates"]


def moving_ms(report: Report) -> float:
    """Milliseconds of that in transfers and publication."""
    moved = (report.seconds(TRANSFER) or 0.0) + (report.seconds(PUBLISH) or 0.0)
    return 1e3 * moved / report.counters["updates"]


def table(costs: Costs) -> Result:
    """C5: time a step and an update, and what crosses from one memory to the other."""
    other = costs.accelerator or "gpu"
    columns = (ALL_CPU, *(name for o in (devices.CPU, other) for name in (_hybrid(o), _split(o))))
    return Result(
        title="The critic apart, or the learner apart: CartPole, the same work an update",
        columns=columns,
        rows=(
            _row(costs, columns, "one step", "act, env and store", "µs", step_us),
            _row(costs, columns, "one update", "all the rest", "ms", update_ms),
            _row(costs, columns, "one update", "of that, moving data", "ms", moving_ms),
            _crossing_row(costs, columns, "to the other memory", 0),
            _crossing_row(costs, columns, "back", 1),
        ),
        machine=describe(),
        notes=(
            "Hybrid: acts on the first with a copy of the policy, learns both networks on the second",
            "Split: the actor lives on the first, the critic on the second",
            "cpu twice: two memories of one CPU, where a copy crosses no bus",
            *_verdict(costs),
        ),
    )


def reproduce() -> Outcome:
    """Run claim C5 at the current scale."""
    updates, repeats = scale.pick(smoke=(1, 2), quick=(10, 5), full=(25, 9))
    config = SplitConfig()
    costs = measure(config, updates=updates, repeats=repeats)
    return Outcome(table(costs), record(costs, config, updates=updates))


def record(costs: Costs, config: SplitConfig, *, updates: int) -> Record:
    """The raw repeats, a value a round."""
    quantities = {"step": (step_us, "µs"), "update": (update_ms, "ms"), "moving": (moving_ms, "ms")}
    return Record(
        name=_NAME,
        claims=("C5",),
        kind="measured",
        command=command(_NAME, scale.current()),
        series={
            f"{name}: {what}": Series([value(report) for report in reports], unit)
            for name, reports in costs.reports.items()
            for what, (value, unit) in quantities.items()
        },
        config={**asdict(config), "environment": _ENV, "updates a round": updates, "accelerator": costs.accelerator},
        outcome={"bytes to the other memory and back": costs.crossing, "verdict": list(_verdict(costs))},
        notes=("A repeat is a round of updates; the ways take turns. PPO's rollouts hold some rows that only reset.",),
    )


def _hybrid(other: str) -> str:
    return f"hybrid, cpu+{other}"


def _split(other: str) -> str:
    return f"split, cpu and {other}"


def _stop_after(updates: int) -> Callable[[Iteration], bool]:
    left = iter(range(updates - 1))
    return lambda _: next(left, None) is not None


def _verdict(costs: Costs) -> tuple[str, ...]:
    other = costs.accelerator or devices.CPU
    split, hybrid = (_measured(costs, name, "ms", update_ms) for name in (_split(other), _hybrid(other)))
    said = compare(split, hybrid).sentence(_split(other), _hybrid(other))
    return (f"Time an update: {said}",)


def _measured(costs: Costs, name: str, unit: str, value: Callable[[Report], float]) -> Measurement:
    return Measurement([value(report) for report in costs.reports[name]], unit)


def _row(
    costs: Costs, columns: tuple[str, ...], label: str, quantity: str, unit: str, value: Callable[[Report], float]
) -> Row:
    def cell(name: str) -> Cell:
        if name not in costs.reports:
            return unknown(NEEDS_GPU)
        if name == ALL_CPU and value is moving_ms:
            return Cell(0, "predicted", "one memory")
        return Cell(_measured(costs, name, unit, value), "measured")

    return Row(label, quantity, unit, tuple(map(cell, columns)))


def _crossing_row(costs: Costs, columns: tuple[str, ...], quantity: str, way: int) -> Row:
    """Exact, by the sizes of what is copied; they don't depend on the device."""
    sizes = {
        **costs.crossing,
        _hybrid("gpu"): costs.crossing[_hybrid("cpu")],
        _split("gpu"): costs.crossing[_split("cpu")],
    }
    return Row("one update", quantity, "bytes", tuple(Cell(sizes[name][way], "predicted") for name in columns))
