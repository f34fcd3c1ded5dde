"""The classic CartPole set-up, timed by phase and by placement (claims C1, C2, B1).

Columns that this version or this machine can't run stay empty, with the reason; they are never zero. Explained in
the book, chapter 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from hybridrl.agents import PPO
from hybridrl.experiments import scale
from hybridrl.experiments.machine import Machine, describe
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, unknown
from hybridrl.profiling import Report
from hybridrl.profiling.phases import ACT, COLLECT, ENV, LEARN, OTHER, STORE, TRANSFER, UPDATE
from hybridrl.results import TrainingResult
from hybridrl.utilization.model import busy_share, speedup_bound

PLACEMENTS = ("cpu", "gpu", "cpu+gpu")
"""All on the CPU; all on the GPU; act on the CPU and learn on the GPU."""
PUBLISHED_WALL_S: Mapping[str, float | None] = {"cpu": 47.0, "gpu": 128.0, "cpu+gpu": None}
PUBLISHED_STEP_MS: Mapping[str, float | None] = {"cpu": 0.3, "gpu": 0.5, "cpu+gpu": None}
PUBLISHED_PHASES_MS: Mapping[str, Mapping[str, float]] = {
    "cpu": {ENV: 120.0, ACT: 45.0, UPDATE: 55.0, TRANSFER: 0.0},
    "gpu": {ENV: 180.0, ACT: 30.0, UPDATE: 40.0, TRANSFER: 150.0},
    "cpu+gpu": {ENV: 110.0, ACT: 32.0, UPDATE: 38.0, TRANSFER: 20.0},
}


@dataclass(frozen=True)
class Parts:
    """Acting and learning, each timed by itself."""

    step_s: float
    """Seconds of acting per environment step (a)."""
    update_s: float
    """Seconds of learning per update (b)."""

    def wall_s(self, *, steps: int, updates: int) -> float:
        """Seconds that a synchronous run of so many steps and updates should take."""
        return steps * self.step_s + updates * self.update_s

    def learner_share(self, *, steps: int, updates: int) -> float:
        """The utilization model's b / (a + b), for such a run."""
        return float(busy_share(steps * self.step_s, updates * self.update_s))


def episodes() -> int:
    """Episodes of a run at the current scale; the claims' own number is 500."""
    return scale.pick(smoke=6, quick=100, full=500)


def train(*, repeats: int, total_episodes: int | None = None) -> list[TrainingResult]:
    """Run the same work several times: the spread is then the machine's alone. One warm-up run goes first.

    Args:
        repeats: runs, all with one seed.
        total_episodes: None takes the scale's.
    """
    _agent().learn(total_episodes=2)
    return [_agent().learn(total_episodes=total_episodes or episodes()) for _ in range(repeats)]


def measure_parts(*, rollouts: int, repeats: int = 3, clock: Callable[[], float] = perf_counter) -> Parts:
    """Time acting without learning, then learning without acting; the fastest of the repeats.

    The policy is trained a little first, so that episodes are neither the shortest nor the longest. The fastest
    repeat is the one that other work on the machine disturbed least.

    Args:
        rollouts: episodes to act for, and updates to make on the last of them.
        repeats: of both.
        clock: seconds.
    """
    agent = _agent()
    agent.learn(total_episodes=rollouts)
    step, update = [], []
    for _ in range(repeats):
        before, start = agent.timesteps, clock()
        for _ in range(rollouts):
            rollout, _ = agent.collector.collect(None)
        acted = clock()
        for _ in range(rollouts):
            agent.learner.update(rollout)
        step.append((acted - start) / (agent.timesteps - before))
        update.append((clock() - acted) / rollouts)
    return Parts(min(step), min(update))


def phase_milliseconds(report: Report) -> dict[str, float]:
    """Milliseconds an episode: the claims' env, act, update (all of learning) and transfer, then store and other."""
    updates = report.counters["updates"]
    named = {ENV: report.seconds(ENV), ACT: report.seconds(ACT), UPDATE: report.seconds(LEARN), TRANSFER: 0.0}
    named[STORE] = report.seconds(STORE)
    parts = {name: 1e3 * (seconds or 0.0) / updates for name, seconds in named.items()}
    return parts | {OTHER: 1e3 * report.wall_s / updates - sum(parts.values())}


def why_empty(machine: Machine) -> str:
    """Why the columns with a GPU have no measurement on this machine."""
    return "this version runs on the CPU alone" if machine.accelerators else NEEDS_GPU


def wall_table(results: Sequence[TrainingResult], parts: Parts) -> Result:
    """C1 and B1: wall time of the whole run and latency of a step, published, predicted and here."""
    first = results[0]
    steps, updates = first.timesteps, len(first.updates)
    wall = Measurement([r.report.wall_s for r in results], "s")
    step = Measurement([1e3 * _step_seconds(r.report) / r.timesteps for r in results], "ms")
    learning = Measurement([100 * (r.report.share(LEARN) or 0.0) for r in results], "%")
    share = parts.learner_share(steps=steps, updates=updates)
    cpu = {
        ("all episodes, predicted from parts", "s"): Cell(parts.wall_s(steps=steps, updates=updates), "predicted"),
        (f"all {len(first.episodes)} episodes, here", "s"): Cell(wall, "measured"),
        ("one step (act + env), here", "ms"): Cell(step, "measured"),
        ("share of learning, predicted b/(a+b)", "%"): Cell(100 * share, "predicted"),
        ("share of learning, here", "%"): Cell(learning, "measured"),
        ("speed-up if learning took no time at all", "x"): Cell(float(speedup_bound(share)), "predicted"),
    }
    published = (
        _published("all 500 episodes, as published", "s", PUBLISHED_WALL_S),
        _published("one step (act + env), as published", "ms", PUBLISHED_STEP_MS, label="article B"),
    )
    machine = describe()
    here = tuple(Row("PPO", what, unit, _columns(cell, machine)) for (what, unit), cell in cpu.items())
    return Result(
        title="PPO on CartPole, classic set-up: where it runs and how long it takes",
        columns=PLACEMENTS,
        rows=published + here,
        machine=machine,
        notes=("The articles name no hardware: compare ratios, not seconds.",),
    )


def phase_table(results: Sequence[TrainingResult]) -> Result:
    """C2: milliseconds, phase by phase, published and here."""
    measured = [phase_milliseconds(result.report) for result in results]
    machine, rows = describe(), []
    for phase in (ENV, ACT, UPDATE, TRANSFER):
        published = {column: PUBLISHED_PHASES_MS[column][phase] for column in PLACEMENTS}
        rows.append(_published("as published, unit of work not stated", "ms", published, label=phase))
        here = Cell(0.0, "measured", "one device") if phase == TRANSFER else _cell([m[phase] for m in measured])
        rows.append(Row(phase, "an episode, here", "ms", _columns(here, machine)))
    rows += [
        Row(phase, "an episode, here", "ms", _columns(_cell([m[phase] for m in measured]), machine))
        for phase in (STORE, OTHER)
    ]
    return Result(
        title="Where the time goes, phase by phase",
        columns=PLACEMENTS,
        rows=tuple(rows),
        machine=machine,
        notes=(
            "The article doesn't state whether its times are those of an episode: compare shares, not milliseconds",
            "On one device nothing is transferred: that zero is by construction, not a reading.",
        ),
    )


def reproduce_wall() -> Outcome:
    """Run claims C1 and B1 at the current scale."""
    results, parts = _runs()
    return Outcome(wall_table(results, parts), _record("classic-cartpole-wall", ("C1", "B1"), results, parts))


def reproduce_phases() -> Outcome:
    """Run claim C2 at the current scale."""
    results, parts = _runs()
    return Outcome(phase_table(results), _record("classic-cartpole-phases", ("C2", "B4"), results, parts))


def _runs() -> tuple[list[TrainingResult], Parts]:
    rollouts = scale.pick(smoke=4, quick=30, full=100)
    return train(repeats=scale.pick(smoke=2, quick=3, full=5)), measure_parts(rollouts=rollouts)


def _record(name: str, claims: tuple[str, ...], results: Sequence[TrainingResult], parts: Parts) -> Record:
    phases = [phase_milliseconds(result.report) for result in results]
    series = {f"{phase} per episode": Series([p[phase] for p in phases], "ms") for phase in phases[0]}
    return Record(
        name=name,
        claims=claims,
        kind="measured",
        command=command(name, scale.current()),
        series={"wall": Series([r.report.wall_s for r in results], "s"), **series},
        config={"recipe": _agent().recipe.to_dict(), "seed": 0, "placement": "cpu", "episodes": episodes()},
        outcome={
            "steps": results[0].timesteps,
            "act and env, alone, s per step": parts.step_s,
            "learning, alone, s per update": parts.update_s,
            "mean return of the last 10 episodes": results[0].mean_return(last=10),
        },
        notes=("Repeats run the same seed: the spread is the machine's.",),
    )


def _agent() -> PPO:
    return PPO("CartPole-v1", recipe="classic", placement="cpu", seed=0)


def _step_seconds(report: Report) -> float:
    return (report.seconds(f"{COLLECT}/{ENV}") or 0.0) + (report.seconds(f"{COLLECT}/{ACT}") or 0.0)


def _cell(milliseconds: list[float]) -> Cell:
    return Cell(Measurement(milliseconds, "ms"), "measured")


def _columns(cpu: Cell, machine: Machine) -> tuple[Cell, ...]:
    return (cpu, *(unknown(why_empty(machine)) for _ in PLACEMENTS[1:]))


def _published(quantity: str, unit: str, values: Mapping[str, float | None], label: str = "article C") -> Row:
    cells = (
        Cell(values[column], "published", "" if values[column] is not None else "not given") for column in PLACEMENTS
    )
    return Row(label, quantity, unit, tuple(cells))
