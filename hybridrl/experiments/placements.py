"""PPO on Pendulum under every placement (claims B5, B6), and what crosses between two memories in one iteration.

Explained in the book, chapter 5.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hybridrl.agents import PPO
from hybridrl.algorithms import PPOConfig
from hybridrl.assembly import make_timer
from hybridrl.data import Rollout
from hybridrl.execution import Bridge, Budget, TwoMemories, synchronous
from hybridrl.experiments import classic_cartpole, figures, scale
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, cells, unknown
from hybridrl.networks import NetworkConfig
from hybridrl.placement.memories import TwoMemories as Watch
from hybridrl.profiling import Monitor, NullTimer, Report, Timer, Usage
from hybridrl.profiling.phases import LEARN, PUBLISH, TRANSFER
from hybridrl.recipes import PPORecipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TO_AND_FRO = "module to and fro"
COLUMNS = ("cpu", "cpu+cpu", "gpu", "cpu+gpu", TO_AND_FRO)
"""One memory; two memories of the CPU; all on the GPU; the hybrid; the hybrid that moves the module instead."""
PUBLISHED_WALL_S: Mapping[str, float] = {"gpu": 58.0, "cpu+gpu": 41.0}
PUBLISHED_CPU_PERCENT: Mapping[str, float] = {"gpu": 100.0, "cpu+gpu": 65.0}
PUBLISHED_GPU_PERCENT: Mapping[str, float] = {"gpu": 23.0, "cpu+gpu": 48.0}
_SAMPLE_S = 0.1
_NAME = "placements-pendulum"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, watched from outside."""

    report: Report
    """Phases; its counters hold steps, episodes and updates."""
    usage: Usage
    """CPU and GPU, sampled."""
    mean_return: float | None
    """Of the last ten episodes."""


class ToAndFro:
    """The article's hybrid: before learning the module goes to the learner's device, afterwards it comes back.

    It moves as ``module.to()`` moves it: every parameter and buffer by a copy of its own, into new memory. The learner
    goes on with the weights that it has, which are the same bits, and lets go of what arrived: time and crossings are
    those of a module that moves, and the results are the hybrid's.

    Args:
        bridge: of the hybrid, whose rollouts and weights it carries.
        new: makes memory like a tensor's where the learner is; None asks torch.
    """

    def __init__(self, bridge: TwoMemories, *, new: Callable[[Tensor], Tensor] | None = None) -> None:
        self.bridge, self.version = bridge, 0
        self._new = new or partial(torch.empty_like, device=bridge.learnt.values.device)

    def deliver(self, rollout: Rollout, *, timer: Timer) -> Rollout:
        """Move the module to the learner, then the rollout, which needs one copy here too."""
        with timer.phase(TRANSFER):
            for tensor in _tensors(self.bridge.acting.module):
                self._new(tensor).copy_(tensor)
        return self.bridge.deliver(rollout, timer=timer)

    def publish(self, *, timer: Timer) -> None:
        """Move the module back: one copy a tensor."""
        with timer.phase(PUBLISH):
            pairs = zip(_tensors(self.bridge.acting.module), _tensors(self.bridge.learnt.module), strict=True)
            for mine, theirs in pairs:
                mine.copy_(theirs)
        self.version += 1

    def refresh(self) -> None:
        """As the hybrid: publish what others have changed."""
        self.bridge.refresh()


def places() -> dict[str, str]:
    """The columns that this machine can run, and the placement that each of them is here."""
    classic = classic_cartpole.places()
    both = {TO_AND_FRO: classic["cpu+gpu"]} if "cpu+gpu" in classic else {}
    here = classic | {"cpu+cpu": "cpu+cpu"} | both
    return {column: here[column] for column in COLUMNS if column in here}


def episodes() -> int:
    """Episodes of a run at the current scale; the articles' own number isn't known."""
    return scale.pick(smoke=3, quick=20, full=100)


def pendulum(*, repeats: int | None = None, total_episodes: int | None = None) -> dict[str, list[Run]]:
    """Train the classic Pendulum set-up under every placement that is possible here, in turns, after a warm-up.

    Args:
        repeats: runs of each; None takes the scale's.
        total_episodes: of a run, of 200 steps each; None takes the scale's.

    Returns:
        Column -> its runs.
    """
    count = total_episodes or episodes()
    for column in places():
        run(column, total_episodes=1)
    runs: dict[str, list[Run]] = {column: [] for column in places()}
    for _ in range(repeats or scale.pick(smoke=1, quick=3, full=5)):
        for column in places():
            runs[column].append(run(column, total_episodes=count))
    return runs


def run(column: str, *, total_episodes: int) -> Run:
    """Train once under one column's placement."""
    agent = PPO("Pendulum-v1", recipe="classic", placement=places()[column], seed=0)
    bridge: Bridge = agent.bridge
    if column == TO_AND_FRO:
        assert isinstance(bridge, TwoMemories)
        bridge = ToAndFro(bridge)
    try:
        with Monitor(_SAMPLE_S) as monitor:
            report, returns = _train(agent, bridge, total_episodes)
    finally:
        agent.close()
    recent = returns[-10:]
    return Run(report=report, usage=monitor.usage, mean_return=sum(recent) / len(recent) if recent else None)


def _train(agent: PPO, bridge: Bridge, total_episodes: int) -> tuple[Report, list[float]]:
    """What ``agent.learn`` does, over a bridge of our own."""
    timer = agent.learner.timer = agent.collector.timer = make_timer(agent.placement)
    budget, rows = Budget(episodes=total_episodes), agent.recipe.ppo.rollout_steps
    returns, updates = list[float](), 0
    with timer.run():
        for iteration in synchronous(agent.collector, agent.learner, budget, rows=rows, timer=timer, bridge=bridge):
            returns += [episode.return_ for episode in iteration.finished]
            updates += 1
    counters = {"env_steps": agent.timesteps, "episodes": agent.episodes, "updates": updates}
    return timer.report(counters=counters), returns


def pendulum_table(runs: Mapping[str, Sequence[Run]]) -> Result:
    """B5 and B6: wall time, shares and use of both devices, published and here."""
    here = {
        "wall time": ("s", lambda r: r.report.wall_s),
        "share of learning": ("%", lambda r: 100 * (r.report.share(LEARN) or 0.0)),
        "share of moving data": ("%", _moving),
        "process's CPU use, 100 is one core": ("%", lambda r: r.usage.process_cpu.mean),
        "GPU use, share of time with a kernel": ("%", _gpu_use),
        "mean return of the last 10 episodes": ("", lambda r: r.mean_return),
    }
    rows: list[Row] = [
        _published("wall time, as published", "s", PUBLISHED_WALL_S),
        _published("CPU use, as published", "%", PUBLISHED_CPU_PERCENT),
        _published("GPU use, as published", "%", PUBLISHED_GPU_PERCENT),
    ]
    rows += [Row("PPO", f"{what}, here", unit, _cells(runs, unit, value)) for what, (unit, value) in here.items()]
    return Result(
        title="PPO on Pendulum, classic set-up, under every placement",
        columns=COLUMNS,
        rows=tuple(rows),
        machine=describe(),
        notes=(
            "The article prints its times as per episode, which 200 steps don't take: compare ratios, not seconds",
            "cpu+cpu: two memories of one CPU, which shows the mechanics, and is no GPU",
            *classic_cartpole.which_gpu(),
        ),
    )


def draw_pendulum(ax: "Axes", runs: Mapping[str, Sequence[Run]]) -> None:
    """Draw milliseconds an episode, phase by phase, one column a placement; medians of the repeats."""
    columns: dict[str, Mapping[str, float] | None] = {}
    for column in COLUMNS:
        each = [classic_cartpole.phase_milliseconds(one.report) for one in runs.get(column, ())]
        middle = {phase: median(ms[phase] for ms in each) for phase in each[0]} if each else None
        columns["to and fro" if column == TO_AND_FRO else column] = (
            None if middle is None else {phase: ms for phase, ms in middle.items() if ms > 0}
        )
    figures.stacked(ax, columns, unit="ms an episode", reason=NEEDS_GPU)


def reproduce() -> Outcome:
    """Run claims B5 and B6 at the current scale."""
    runs = pendulum()
    return Outcome(pendulum_table(runs), _record(runs))


# What crosses


@dataclass(frozen=True, kw_only=True)
class Crossings:
    """Copies between the actor's memory and the learner's in one iteration, counted by a dispatch mode."""

    to_learner: tuple[int, ...]
    """Bytes of each copy."""
    to_actor: tuple[int, ...]
    """Bytes of each copy."""


ROWS, ENVIRONMENTS = 8, 4
"""Of the rollout that is counted."""
_New = Callable[[Tensor], Tensor]
_Way = Callable[[_New], None]


def count_crossings() -> dict[str, Crossings]:
    """Bring one small CartPole rollout to the learner, and weights back, in four ways; the same on every machine."""
    config = PPOConfig(rollout_steps=ROWS, epochs=1)
    recipe = PPORecipe(ppo=config, network=NetworkConfig(hidden=(16,)), num_envs=ENVIRONMENTS)
    agent = PPO("CartPole-v1", recipe, placement="cpu+cpu", seed=0)
    rollout, _ = agent.collector.collect(ROWS)
    bridge = agent.bridge
    assert isinstance(bridge, TwoMemories)
    ways: dict[str, _Way] = {
        "hybrid": lambda new: _cross(bridge, rollout),
        TO_AND_FRO: lambda new: _cross(ToAndFro(bridge, new=new), rollout),
        "field by field": lambda new: _in_pieces(bridge, rollout, new, items=False),
        "item by item": lambda new: _in_pieces(bridge, rollout, new, items=True),
    }
    return {name: _watched(bridge, way) for name, way in ways.items()}


def crossings() -> Result:
    """What crosses in one iteration, as a table; exact counts, the same on every machine."""
    found = count_crossings()
    ways = {"to the learner": [c.to_learner for c in found.values()]}
    ways["back to the actor"] = [c.to_actor for c in found.values()]
    rows = []
    for label, each in ways.items():
        counts, totals = ([f(sizes) for sizes in each] for f in (len, sum))
        rows += [Row(label, "copies", "", cells(counts, "measured"))]
        rows += [Row(label, "in all", "bytes", cells(totals, "measured"))]
    return Result(
        title=f"What crosses in one iteration: CartPole, {ROWS} rows x {ENVIRONMENTS} environments, 16 hidden units",
        columns=tuple(found),
        rows=tuple(rows),
        notes=("Counted by a dispatch mode, which sees every copy between the two memories",),
    )


def _cross(bridge: Bridge, rollout: Rollout) -> None:
    bridge.deliver(rollout, timer=NullTimer())
    bridge.publish(timer=NullTimer())


def _in_pieces(bridge: TwoMemories, rollout: Rollout, new: _New, *, items: bool) -> None:
    """Each field by itself, or each field of each environment's each step; the weights as the hybrid's."""
    for field in fields(rollout):
        column = getattr(rollout, field.name)
        pieces = column.flatten(0, 1).unbind() if items else (column,)
        for piece in pieces:
            new(piece).copy_(piece)
    bridge.publish(timer=NullTimer())


def _watched(bridge: TwoMemories, way: _Way) -> Crossings:
    storage = bridge.copy.storage
    acting = [bridge.acting.state, *(part.block for part in storage.parts)]
    learning = [bridge.learnt.state, bridge.learnt.gradients, *bridge.copy.blocks]
    watch = Watch(acting=acting, learning=learning)

    def new(tensor: Tensor) -> Tensor:
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
        watch.claim(made, "learning")
        return made

    with watch:
        way(new)
    return Crossings(
        to_learner=tuple(watch.crossed("acting", "learning")), to_actor=tuple(watch.crossed("learning", "acting"))
    )


def _tensors(module: nn.Module) -> list[Tensor]:
    """What ``module.to()`` moves one by one."""
    return [*(p.detach() for p in module.parameters()), *module.buffers()]


# Cells


def _moving(one: Run) -> float:
    return classic_cartpole.moving_percent(one.report)


def _gpu_use(one: Run) -> float | None:
    return one.usage.gpu[0].utilization.mean if one.usage.gpu else None


def _why_unknown(one: Run) -> str:
    reason = one.usage.gpu[0].utilization.reason if one.usage.gpu else one.usage.gpu_reason
    return "unknown" if reason is None else f"unknown ({reason})"


def _cells(runs: Mapping[str, Sequence[Run]], unit: str, value: Callable[[Run], float | None]) -> tuple[Cell, ...]:
    return tuple(_cell(runs[c], unit, value) if c in runs else unknown(NEEDS_GPU) for c in COLUMNS)


def _cell(each: Sequence[Run], unit: str, value: Callable[[Run], float | None]) -> Cell:
    values = [value(one) for one in each]
    known = [number for number in values if number is not None]
    if len(known) == len(values):
        return Cell(Measurement(known, unit), "measured")
    return unknown(_why_unknown(each[0]) if value is _gpu_use else "unknown")


def _published(what: str, unit: str, values: Mapping[str, float]) -> Row:
    cells = (Cell(values.get(c), "published", "" if c in values else "not given") for c in COLUMNS)
    return Row("article B", what, unit, tuple(cells))


def _record(runs: Mapping[str, Sequence[Run]]) -> Record:
    quantities: dict[str, tuple[str, Callable[[Run], float | None]]] = {
        "wall": ("s", lambda r: r.report.wall_s),
        "learning": ("s", lambda r: r.report.seconds(LEARN)),
        "moving data": ("%", _moving),
        "CPU use": ("%", lambda r: r.usage.process_cpu.mean),
        "GPU use": ("%", _gpu_use),
        "return": ("return", lambda r: r.mean_return),
    }
    return Record(
        name=_NAME,
        claims=("B5", "B6"),
        kind="measured",
        command=command(_NAME, scale.current()),
        series={
            f"{column}: {what}": Series([value(one) for one in each], unit)
            for column, each in runs.items()
            for what, (unit, value) in quantities.items()
        },
        config={"seed": 0, "placements": places(), "episodes": episodes(), "sampled every": f"{_SAMPLE_S} s"},
        notes=("Repeats run the same seed: the spread is the machine's.",),
    )
