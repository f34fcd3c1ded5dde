"""What looking costs: the same run bare, under cProfile and under PyTorch's profiler (claim C3)."""

import cProfile
import pstats
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

from hybridrl.agents import PPO
from hybridrl.experiments import scale
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement, compare
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import Result, Row, cells

_NAME = "profilers"
_SEES = (
    "The phase timer sees named phases, not what happens inside one",
    "cProfile sees Python functions, not what a device still works on after a call has returned",
    "PyTorch's profiler sees operators and kernels, not the Python between them",
)


@dataclass(frozen=True)
class Hotspot:
    """One function in a profile."""

    function: str
    calls: int
    own_s: float


@dataclass(frozen=True)
class Watched:
    """One run under one tool."""

    wall_s: float
    """Of the training itself; what the tool does afterwards to prepare its tables isn't counted."""
    hotspots: tuple[Hotspot, ...]
    """Most time of their own first; the phase timer has phases instead."""


def under_phase_timer() -> Watched:
    """Train the classic CartPole set-up for some episodes, watched by the phase timer alone, which is always on."""
    return Watched(_train(), ())


def under_cprofile() -> Watched:
    """Do the same under cProfile; the hotspots are Python functions."""
    profiler = cProfile.Profile()
    wall = profiler.runcall(_train)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]  # typeshed leaves it out
    spots = [Hotspot(_short(*place), calls, own) for place, (_, calls, own, _, _) in stats.items()]
    return Watched(wall, _top(spots))


def under_torch_profiler() -> Watched:
    """Do the same under PyTorch's profiler; the hotspots are operators."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        wall = _train()
    spots = [Hotspot(e.key, e.count, e.self_cpu_time_total / 1e6) for e in profiler.key_averages()]
    return Watched(wall, _top(spots))


TOOLS: dict[str, Callable[[], Watched]] = {
    "phase timer": under_phase_timer,
    "cProfile": under_cprofile,
    "PyTorch profiler": under_torch_profiler,
}


def measure() -> dict[str, list[Watched]]:
    """Run the same training under each tool, in turns, after one warm-up."""
    _train()
    runs: dict[str, list[Watched]] = {tool: [] for tool in TOOLS}
    for _ in range(scale.pick(smoke=2, quick=3, full=5)):
        for tool, run in TOOLS.items():
            runs[tool].append(run())
    return runs


def table(runs: Mapping[str, Sequence[Watched]]) -> Result:
    """C3: what each tool costs, and what it sees."""
    times = {tool: Measurement([run.wall_s for run in watched], "s") for tool, watched in runs.items()}
    slowdown = [compare(time, times["phase timer"]).ratio for time in times.values()]
    return Result(
        title="The same training run under three tools",
        columns=tuple(times),
        rows=(
            Row("wall time", "here", "s", cells(list(times.values()), "measured")),
            Row("against the phase timer", "here", "x", cells(slowdown, "measured")),
        ),
        machine=describe(),
        notes=_SEES,
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
    """``module.py:function``, or the name of a built-in; without the machine's folders."""
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return function if name == "~" else f"{name}:{function}"


def _train() -> float:
    """Seconds that some episodes of the classic CartPole set-up take."""
    episodes = scale.pick(smoke=2, quick=20, full=60)
    return PPO("CartPole-v1", recipe="classic", seed=0).learn(total_episodes=episodes).report.wall_s


def _top(spots: list[Hotspot]) -> tuple[Hotspot, ...]:
    return tuple(sorted(spots, key=lambda spot: -spot.own_s)[:10])
