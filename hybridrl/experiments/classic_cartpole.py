"""The classic CartPole set-up, timed by phase and by placement (claims C1, C2, B1).

Columns that this machine can't run stay empty, with the reason; they are never zero. Explained in the book, chapter 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from hybridrl.agents import PPO
from hybridrl.data import Rollout
from hybridrl.execution import Bridge
from hybridrl.experiments import scale
from hybridrl.experiments.machine import Machine, describe
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, unknown
from hybridrl.placement import devices
from hybridrl.profiling import NullTimer, Report
from hybridrl.profiling.phases import ACT, COLLECT, ENV, LEARN, OTHER, PUBLISH, STORE, TRANSFER, UPDATE
from hybridrl.results import TrainingResult
from hybridrl.utilization.model import busy_share, speedup_bound

PLACEMENTS = ("cpu", "gpu", "cpu+gpu")
"""All on the CPU; all on the GPU; act on the CPU and learn on the GPU."""
PUBLISHED_MOVING_PERCENT: Mapping[str, float | None] = {"cpu": None, "gpu": 37.0, "cpu+gpu": None}
PUBLISHED_WALL_S: Mapping[str, float | None] = {"cpu": 47.0, "gpu": 128.0, "cpu+gpu": None}
PUBLISHED_STEP_MS: Mapping[str, float | None] = {"cpu": 0.3, "gpu": 0.5, "cpu+gpu": None}
PUBLISHED_PHASES_MS: Mapping[str, Mapping[str, float]] = {
    "cpu": {ENV: 120.0, ACT: 45.0, UPDATE: 55.0, TRANSFER: 0.0},
    "gpu": {ENV: 180.0, ACT: 30.0, UPDATE: 40.0, TRANSFER: 150.0},
    "cpu+gpu": {ENV: 110.0, ACT: 32.0, UPDATE: 38.0, TRANSFER: 20.0},
}


@dataclass(frozen=True)
class Parts:
    """Acting, learning and the copies between them, each timed by itself."""

    step_s: float
    """Seconds of acting per environment step (a)."""
    update_s: float
    """Seconds of learning per update (b)."""
    copy_s: float = 0.0
    """Seconds of the copies between two memories per update (c); next to nothing where there is one."""

    def wall_s(self, *, steps: int, updates: int) -> float:
        """Seconds that a synchronous run of so many steps and updates should take."""
        return steps * self.step_s + updates * (self.copy_s + self.update_s)

    def learner_share(self, *, steps: int, updates: int) -> float:
        """The utilization model's b / (a + b) for such a run; copies count with a, for the learner waits for them."""
        return float(busy_share(steps * self.step_s + updates * self.copy_s, updates * self.update_s))


def episodes() -> int:
    """Episodes of a run at the current scale; the claims' own number is 500."""
    return scale.pick(smoke=6, quick=100, full=500)


def places() -> dict[str, str]:
    """The columns that this machine can run, and the placement that each of them is here."""
    _, *accelerators = devices.available()
    if not accelerators:
        return {"cpu": "cpu"}
    return {"cpu": "cpu", "gpu": accelerators[0], "cpu+gpu": f"cpu+{accelerators[0]}"}


Runs = Mapping[str, Sequence[TrainingResult]]


def train(*, repeats: int, total_episodes: int | None = None) -> dict[str, list[TrainingResult]]:
    """Run the same work several times under every placement that is possible here, in turns.

    One warm-up run of each goes first. All have one seed: the spread is then the machine's alone. Devices draw
    different random numbers, so that the work is the same within a column, and not quite between columns.

    Args:
        repeats: runs of each.
        total_episodes: None takes the scale's.

    Returns:
        Column -> its runs.
    """
    for placement in places().values():
        _agent(placement).learn(total_episodes=2)
    runs: dict[str, list[TrainingResult]] = {column: [] for column in places()}
    for _ in range(repeats):
        for column, placement in places().items():
            runs[column].append(_agent(placement).learn(total_episodes=total_episodes or episodes()))
    return runs


def measure_parts(
    *, rollouts: int, repeats: int = 3, placement: str = "cpu", clock: Callable[[], float] = perf_counter
) -> Parts:
    """Time acting, the copies and learning, each without the others; the fastest of the repeats.

    The policy is trained a little first, so that episodes are neither the shortest nor the longest. The fastest
    repeat is the one that other work on the machine disturbed least.

    Args:
        rollouts: episodes to act for; then one more, to copy and to learn from as often.
        repeats: of all three.
        placement: where.
        clock: seconds.
    """
    agent = _agent(placement)
    agent.learn(total_episodes=rollouts)
    wait = devices.synchronizer_of_all(agent.placement.devices) or (lambda: None)
    timed = partial(_seconds, times=rollouts, wait=wait, clock=clock)
    step, copies, update = [], [], []
    for _ in range(repeats):
        before = agent.timesteps
        acted = timed(lambda: agent.collector.collect(None))
        step.append(acted / (agent.timesteps - before))
        rollout, _ = agent.collector.collect(None)
        copies.append(timed(partial(_carry, agent.bridge, rollout)) / rollouts)
        delivered = agent.bridge.deliver(rollout, timer=NullTimer())
        update.append(timed(partial(agent.learner.update, delivered)) / rollouts)
        agent.bridge.publish(timer=NullTimer())
    return Parts(min(step), min(update), min(copies))


def _seconds(work: Callable[[], object], *, times: int, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    wait()
    start = clock()
    for _ in range(times):
        work()
    wait()
    return clock() - start


def _carry(bridge: Bridge, rollout: Rollout) -> None:
    bridge.deliver(rollout, timer=NullTimer())
    bridge.publish(timer=NullTimer())


def phase_milliseconds(report: Report) -> dict[str, float]:
    """Milliseconds an episode: the claims' env, act, update (all of learning) and transfer, then store and other.

    Transfer is all that moves data, with its synchronisation: observations and actions, the rollout, the weights. It is
    taken out of the phase that it happens in.
    """
    updates, moving = report.counters["updates"], report.seconds(TRANSFER) or 0.0
    named = {ENV: report.seconds(ENV), ACT: (report.seconds(ACT) or 0.0) - _moving_while_acting(report)}
    named |= {UPDATE: report.seconds(LEARN), TRANSFER: moving + (report.seconds(PUBLISH) or 0.0)}
    named[STORE] = report.seconds(STORE)
    parts = {name: 1e3 * (seconds or 0.0) / updates for name, seconds in named.items()}
    return parts | {OTHER: 1e3 * report.wall_s / updates - sum(parts.values())}


def moving_percent(report: Report) -> float:
    """The share of the wall time that moves data, in percent."""
    milliseconds = phase_milliseconds(report)
    return 100 * milliseconds[TRANSFER] / sum(milliseconds.values())


def _moving_while_acting(report: Report) -> float:
    return sum(row.total_s for row in report.phases if row.path[-2:] == (ACT, TRANSFER))


def why_empty(machine: Machine) -> str:
    """Why the columns with a GPU have no measurement on this machine."""
    return "not run" if machine.accelerators else NEEDS_GPU


def wall_table(runs: Runs, parts: Mapping[str, Parts]) -> Result:
    """C1 and B1: wall time of the whole run and latency of a step, published, predicted and here."""
    table = _Table(runs)
    published = (
        _published("all 500 episodes, as published", "s", PUBLISHED_WALL_S),
        _published("one step (act + env), as published", "ms", PUBLISHED_STEP_MS, label="article B"),
    )

    def predicted(column: str) -> Cell:
        return Cell(parts[column].wall_s(**_work(runs[column])), "predicted")

    def share(column: str) -> float:
        return parts[column].learner_share(**_work(runs[column]))

    def step(result: TrainingResult) -> float:
        return 1e3 * _step_seconds(result.report) / result.timesteps

    count = len(next(iter(runs.values()))[0].episodes)
    here = (
        table.row("all episodes, predicted from parts", "s", predicted),
        table.measured(f"all {count} episodes, here", "s", lambda r: r.report.wall_s),
        table.measured("one step (act + env), here", "ms", step),
        table.row("share of learning, predicted from parts", "%", lambda c: Cell(100 * share(c), "predicted")),
        table.measured("share of learning, here", "%", lambda r: 100 * (r.report.share(LEARN) or 0.0)),
        table.row(
            "speed-up if learning took no time at all",
            "x",
            lambda c: Cell(float(speedup_bound(share(c))), "predicted"),
        ),
    )
    return Result(
        title="PPO on CartPole, classic set-up: where it runs and how long it takes",
        columns=PLACEMENTS,
        rows=published + here,
        machine=table.machine,
        notes=("The articles name no hardware: compare ratios, not seconds.", *which_gpu()),
    )


def phase_table(runs: Runs) -> Result:
    """C2 and B4: milliseconds, phase by phase, and the share of moving data, published and here."""
    table, rows = _Table(runs), []
    for phase in (ENV, ACT, UPDATE, TRANSFER):
        published = {column: PUBLISHED_PHASES_MS[column][phase] for column in PLACEMENTS}
        rows.append(_published("as published, unit of work not stated", "ms", published, label=phase))
        rows.append(table.phase(phase))
    rows += [table.phase(STORE), table.phase(OTHER)]
    rows.append(
        _published(
            "share of the wall time, as published", "%", PUBLISHED_MOVING_PERCENT, label="moving data, article B"
        )
    )
    rows.append(table.row("share of the wall time, here", "%", table.moving, label="moving data"))
    return Result(
        title="Where the time goes, phase by phase",
        columns=PLACEMENTS,
        rows=tuple(rows),
        machine=table.machine,
        notes=(
            "The article doesn't state whether its times are those of an episode: compare shares, not milliseconds",
            "On one device nothing is transferred: that zero is by construction, not a reading.",
            *which_gpu(),
        ),
    )


class _Table:
    """Rows with a cell for each column that was run; the others say why not."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.machine = runs, describe()

    def row(self, what: str, unit: str, cell: Callable[[str], Cell], *, label: str = "PPO") -> Row:
        empty = unknown(why_empty(self.machine))
        cells = tuple(cell(column) if column in self.runs else empty for column in PLACEMENTS)
        return Row(label, what, unit, cells)

    def measured(self, what: str, unit: str, value: Callable[[TrainingResult], float], *, label: str = "PPO") -> Row:
        return self.row(
            what, unit, lambda c: Cell(Measurement(map(value, self.runs[c]), unit), "measured"), label=label
        )

    def phase(self, phase: str) -> Row:
        def cell(column: str) -> Cell:
            if phase == TRANSFER and column == "cpu":
                return Cell(0.0, "measured", "one device")
            values = [phase_milliseconds(result.report)[phase] for result in self.runs[column]]
            return Cell(Measurement(values, "ms"), "measured")

        return self.row("an episode, here", "ms", cell, label=phase)

    def moving(self, column: str) -> Cell:
        if column == "cpu":
            return Cell(0.0, "measured", "one device")
        return Cell(Measurement([moving_percent(result.report) for result in self.runs[column]], "%"), "measured")


def reproduce_wall() -> Outcome:
    """Run claims C1 and B1 at the current scale."""
    runs, parts = _runs()
    return Outcome(wall_table(runs, parts), _record("classic-cartpole-wall", ("C1", "B1"), runs, parts))


def reproduce_phases() -> Outcome:
    """Run claims C2 and B4 at the current scale."""
    runs, parts = _runs()
    return Outcome(phase_table(runs), _record("classic-cartpole-phases", ("C2", "B4"), runs, parts))


def measure_all_parts(*, rollouts: int) -> dict[str, Parts]:
    """The parts under every placement that is possible here; arguments as for :func:`measure_parts`."""
    return {column: measure_parts(rollouts=rollouts, placement=placement) for column, placement in places().items()}


def _runs() -> tuple[dict[str, list[TrainingResult]], dict[str, Parts]]:
    parts = measure_all_parts(rollouts=scale.pick(smoke=4, quick=30, full=100))
    return train(repeats=scale.pick(smoke=2, quick=3, full=5)), parts


def _record(name: str, claims: tuple[str, ...], runs: Runs, parts: Mapping[str, Parts]) -> Record:
    series = {}
    for column, results in runs.items():
        phases = [phase_milliseconds(result.report) for result in results]
        series[f"{column}: wall"] = Series([r.report.wall_s for r in results], "s")
        series |= {f"{column}: {phase} per episode": Series([p[phase] for p in phases], "ms") for phase in phases[0]}
    return Record(
        name=name,
        claims=claims,
        kind="measured",
        command=command(name, scale.current()),
        series=series,
        config={"recipe": _agent("cpu").recipe.to_dict(), "seed": 0, "placements": places(), "episodes": episodes()},
        outcome={column: _outcome(results, parts[column]) for column, results in runs.items()},
        notes=("Repeats run the same seed: the spread is the machine's.",),
    )


def _outcome(results: Sequence[TrainingResult], parts: Parts) -> dict[str, float | None]:
    return {
        "steps": results[0].timesteps,
        "act and env, alone, s per step": parts.step_s,
        "learning, alone, s per update": parts.update_s,
        "copies, alone, s per update": parts.copy_s,
        "mean return of the last 10 episodes": results[0].mean_return(last=10),
    }


def _agent(placement: str) -> PPO:
    return PPO("CartPole-v1", recipe="classic", placement=placement, seed=0)


def _work(results: Sequence[TrainingResult]) -> dict[str, int]:
    return {"steps": results[0].timesteps, "updates": len(results[0].updates)}


def which_gpu() -> tuple[str, ...]:
    """Torch's name of what the columns call gpu, for a table's notes."""
    gpu = places().get("gpu")
    return () if gpu is None else (f"gpu is torch's {gpu!r}",)


def _step_seconds(report: Report) -> float:
    return (report.seconds(f"{COLLECT}/{ENV}") or 0.0) + (report.seconds(f"{COLLECT}/{ACT}") or 0.0)


def _published(quantity: str, unit: str, values: Mapping[str, float | None], label: str = "article C") -> Row:
    cells = (
        Cell(values[column], "published", "" if values[column] is not None else "not given") for column in PLACEMENTS
    )
    return Row(label, quantity, unit, tuple(cells))
