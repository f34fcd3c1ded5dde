"""What looking costs: the same run bare, under cProfile and under PyTorch's profiler (claim C3).

Explained in the book, chapter 1.
"""

import cProfile
import os
import pstats
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

from hybridrl.agents import PPO
from hybridrl.execution import Iteration
from hybridrl.experiments import scale
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import Result, Row, cells
from hybridrl.profiling.phases import OTHER

_NAME = "profilers"
_SEES = (
    "The phase timer sees named phases, not what happens inside one",
    "cProfile sees Python functions, not what a device still works on after a call has returned",
    "PyTorch's profiler sees operators and kernels, not the Python between them",
)


@dataclass(frozen=True)
class Hotspot:
    """One phase, function or operator in a profile."""

    name: str
    calls: int
    own_s: float


@dataclass(frozen=True)
class Watched:
    """One run under one tool."""

    wall_s: float
    """Of the training itself; what the tool does before and afterwards isn't counted."""
    hotspots: tuple[Hotspot, ...]
    """Most time of their own first; empty where they were not asked for."""


def under_phase_timer(*, hotspots: bool = True) -> Watched:
    """Train the classic CartPole set-up for some episodes, watched by the phase timer alone, which is always on.

    Args:
        hotspots: list phases.
    """
    report = _agent().learn(total_episodes=_episodes()).report
    spots = [Hotspot(row.name, row.calls, row.self_s) for row in report.phases]
    return Watched(report.wall_s, _top([*spots, Hotspot(OTHER, 1, report.other_s)]) if hotspots else ())


def under_cprofile(*, hotspots: bool = True) -> Watched:
    """Do the same under cProfile; the hotspots are Python functions."""
    agent, profiler, episodes = _agent(), cProfile.Profile(), _episodes()

    def stop(iteration: Iteration) -> None:  # before the report: its calibration isn't training
        if iteration.episodes >= episodes:
            profiler.disable()

    profiler.enable()
    try:
        report = agent.learn(total_episodes=episodes, callback=stop).report
    finally:
        profiler.disable()
    stats = pstats.Stats(profiler).stats if hotspots else {}  # type: ignore[attr-defined]  # typeshed leaves it out
    spots = [Hotspot(_short(*place), calls, own) for place, (_, calls, own, _, _) in stats.items()]
    return Watched(report.wall_s, _top(spots))


def under_torch_profiler(*, hotspots: bool = True) -> Watched:
    """Do the same under PyTorch's profiler; the hotspots are operators.

    Listing them takes many times longer than the run.
    """
    agent, profiler = _agent(), profile(activities=[ProfilerActivity.CPU])
    with _quiet_stderr():
        profiler.start()
    try:
        report = agent.learn(total_episodes=_episodes()).report
    finally:
        with _quiet_stderr():
            profiler.stop()
    averages = profiler.key_averages() if hotspots else []
    return Watched(report.wall_s, _top([Hotspot(e.key, e.count, e.self_cpu_time_total / 1e6) for e in averages]))


TOOLS: dict[str, Callable[..., Watched]] = {
    "phase timer": under_phase_timer,
    "cProfile": under_cprofile,
    "PyTorch profiler": under_torch_profiler,
}


def measure() -> dict[str, list[Watched]]:
    """Run the same training under each tool, in turns, after one warm-up; the first of each lists its hotspots."""
    under_phase_timer()
    runs: dict[str, list[Watched]] = {tool: [] for tool in TOOLS}
    for turn in range(scale.pick(smoke=2, quick=3, full=5)):
        for tool, run in TOOLS.items():
            runs[tool].append(run(hotspots=turn == 0))
    return runs


def table(runs: Mapping[str, Sequence[Watched]]) -> Result:
    """C3: what each tool costs, and what it sees."""
    times = {tool: Measurement([run.wall_s for run in watched], "s") for tool, watched in runs.items()}
    bare = times["phase timer"].values
    slowdown = [Measurement([t / b for t, b in zip(time.values, bare, strict=True)], "x") for time in times.values()]
    return Result(
        title="The same training run under three tools",
        columns=tuple(times),
        rows=(
            Row("wall time", "here", "s", cells(list(times.values()), "measured")),
            Row("against the phase timer", "pair by pair", "x", cells(slowdown, "measured")),
        ),
        machine=describe(),
        notes=_SEES,
    )


def hotspot_table(runs: Mapping[str, Sequence[Watched]], *, top: int = 5) -> Result:
    """C3: what each tool puts first, and that part's share of the wall time under that tool."""
    columns = [_hottest(watched[0], top) for watched in runs.values()]
    rows = [
        Row(str(rank), "", "", cells(spots, "measured"))
        for rank, spots in enumerate(zip(*columns, strict=True), start=1)
    ]
    return Result(
        title="Where each tool says the time went: most time of its own first",
        columns=tuple(runs),
        rows=tuple(rows),
        machine=describe(),
        notes=("One run under each tool; shares of the wall time under it, which the tool itself lengthens", *_SEES),
    )


def reproduce() -> Outcome:
    """Run claim C3 at the current scale."""
    runs = measure()
    record = Record(
        name=_NAME,
        claims=("C3",),
        kind="measured",
        command=command(_NAME, scale.current()),
        series={tool: Series([run.wall_s for run in watched], "s") for tool, watched in runs.items()},
    )
    return Outcome(table(runs), record)


def _short(file: str, line: int, function: str) -> str:
    """`module.py:function`, or the name of a built-in; without the machine's folders."""
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    built_in = re.fullmatch(r"<(?:built-in )?method '?([^' >]+)'?.*>", function)
    bare = built_in.group(1) if built_in else function
    return bare if name == "~" else f"{name}:{bare}"


def _agent() -> PPO:
    return PPO("CartPole-v1", recipe="classic", seed=0)


def _episodes() -> int:
    return scale.pick(smoke=2, quick=5, full=20)


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Some builds of torch announce start and stop of their profiler on the process's own stderr, below Python's."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _hottest(watched: Watched, top: int) -> list[str]:
    spots = [f"{spot.name} {100 * spot.own_s / watched.wall_s:.0f}%" for spot in watched.hotspots[:top]]
    return spots + ["–"] * (top - len(spots))


def _top(spots: list[Hotspot]) -> tuple[Hotspot, ...]:
    return tuple(sorted(spots, key=lambda spot: -spot.own_s)[:10])
