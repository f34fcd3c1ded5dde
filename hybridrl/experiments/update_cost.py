"""What an update and a forward pass cost, by width and batch, on each device (claims B2, B3, C4).

"The GPU is faster from 128 units on" is a number where there is a curve: the width from which on it pays depends on
the batch. The set-up is the articles': CartPole's four inputs and one hidden layer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hybridrl.experiments import crossover, scale
from hybridrl.experiments.classic_cartpole import PUBLISHED_PHASES_MS
from hybridrl.experiments.crossover import Crossover
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Comparison, Measurement, alternate, compare, format_value
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, unknown
from hybridrl.flat import FlatParameters
from hybridrl.networks import ActorCritic, CategoricalHead, NetworkConfig, ObservationNormalizer, Policy, mlp
from hybridrl.ops.losses import value_loss
from hybridrl.placement import devices
from hybridrl.placement.transfer import move
from hybridrl.profiling.phases import ACT, UPDATE

PUBLISHED_SPEEDUP = 1.8
"""B2: how many times faster the GPU updates a value function of ``PUBLISHED_WIDTH`` units; batch not stated."""
PUBLISHED_WIDTH = 256
PUBLISHED_CROSSOVER = (128, 256)
"""B3: the CPU is faster below the first width, the GPU above the second; batch not stated."""
OBSERVATIONS, ACTIONS = 4, 2
_BASELINE = "the baseline"


class Case(NamedTuple):
    """One size on one device."""

    device: str
    width: int
    """Units of the hidden layer."""
    batch: int
    """Observations."""

    def __str__(self) -> str:
        return f"{self.device}, {self.width} units, batch {self.batch}"


Work = Callable[[Case], Callable[[], object]]
"""Builds what is timed: a function that returns when its device has done the work."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Which sizes are timed, and how often."""

    widths: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    warmup: int = 3

    def __post_init__(self) -> None:
        for name, sizes in (("widths", self.widths), ("batches", self.batches)):
            if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
                raise ValueError(f"{name}={sizes}: expected ascending whole numbers of at least 1")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a sweep found."""

    sweep: Sweep
    devices: tuple[str, ...]
    """The CPU, and an accelerator where there is one."""
    times: Mapping[Case, Measurement]
    """Seconds, a repeat a call; repeat i of both devices belongs to one round."""
    first_s: Mapping[Case, float]
    """Seconds of each first call, which is no repeat: on an accelerator it loads kernels."""

    def comparison(self, device: str, width: int, batch: int) -> Comparison:
        """The CPU's time against a device's: how many times faster the device is."""
        return compare(self.times[Case("cpu", width, batch)], self.times[Case(device, width, batch)])

    def by_width(self, device: str, batch: int) -> Crossover:
        """From which width on a device is faster than the CPU, at one batch."""
        found = {width: self.comparison(device, width, batch) for width in self.sweep.widths}
        return crossover.find("cpu", device, found)

    def by_batch(self, device: str, width: int) -> Crossover:
        """From which batch on a device is faster than the CPU, at one width."""
        found = {batch: self.comparison(device, width, batch) for batch in self.sweep.batches}
        return crossover.find("cpu", device, found)


def sweep() -> Sweep:
    """The sizes of the current scale."""
    return scale.pick(
        smoke=Sweep(widths=(16, 256), batches=(1, 64), repeats=3, warmup=1),
        quick=Sweep(widths=(16, 128, 256, 1024), batches=(1, 32, 256, 4096), repeats=15),
        full=Sweep(widths=(16, 32, 64, 128, 256, 512, 1024), batches=(1, 4, 16, 64, 256, 1024, 4096), repeats=31),
    )


def update(case: Case) -> Callable[[], None]:
    """Forward, backward and Adam of a value function, on a batch that is on the device already."""
    device = devices.resolve(case.device)
    critic = move(mlp((OBSERVATIONS, case.width, 1), activation="relu", output_gain=None), device)
    flat, wait = FlatParameters(critic), devices.synchronizer(device) or _nothing
    optimizer = _adam(flat)
    observation, target = move((torch.randn(case.batch, OBSERVATIONS), torch.randn(case.batch)), device)

    def run() -> None:
        flat.zero_grad()
        value_loss(critic(observation).squeeze(-1), target).backward()  # type: ignore[no-untyped-call]
        flat.gather_gradients()
        optimizer.step()
        wait()

    return run


def acting(case: Case) -> Callable[[], npt.NDArray[np.int64]]:
    """Observations on the host to sampled actions on the host: on an accelerator, one array in and one out."""
    device = devices.resolve(case.device)
    head = CategoricalHead(ACTIONS)
    config = NetworkConfig(hidden=(case.width,), activation="relu", initialization="torch")
    normalizer = ObservationNormalizer((OBSERVATIONS,), enabled=False)
    policy = move(Policy(ActorCritic(OBSERVATIONS, head, config), head, normalizer), device)
    observation = np.random.default_rng(0).normal(size=(case.batch, OBSERVATIONS)).astype(np.float32)
    generator = devices.generator(device, 0)

    def run() -> npt.NDArray[np.int64]:
        decision = policy.act(move(torch.from_numpy(observation), device), generator=generator)
        return move(decision.action, "cpu").numpy()  # waits for the device

    return run


def measure(
    work: Work, sizes: Sweep, *, names: Sequence[str] | None = None, clock: Callable[[], float] = perf_counter
) -> Costs:
    """Time one kind of work over a sweep, the devices in turn (A B A B) at each size.

    Args:
        work: :func:`update`, :func:`acting`, or one like them.
        sizes: which, and how often.
        names: of devices; None takes the CPU and the first accelerator (a second one of its kind tells nothing new).
        clock: seconds.
    """
    present = tuple(devices.available()[:2] if names is None else names)
    times: dict[Case, Measurement] = {}
    first: dict[Case, float] = {}
    for width, batch in product(sizes.widths, sizes.batches):
        cases = {name: Case(name, width, batch) for name in present}
        functions = {name: work(case) for name, case in cases.items()}
        found = alternate(functions, repeats=sizes.repeats, warmup=sizes.warmup, clock=clock)
        times |= {case: found[name] for name, case in cases.items()}
        first |= {case: found.first_s[name] for name, case in cases.items()}
    return Costs(sweep=sizes, devices=present, times=times, first_s=first)


def update_table(costs: Costs) -> Result:
    """B2 and B3: what an update takes, how many times faster a device is at 256 units, and from which width on."""
    published = (
        _row(costs, "article B", f"{PUBLISHED_WIDTH} units, CPU time / this, as published", "x", PUBLISHED_SPEEDUP),
        _row(costs, "articles B, C", "crossover, as published", "units", "{} to {}".format(*PUBLISHED_CROSSOVER)),
    )
    faster = [
        _compared(costs, f"{PUBLISHED_WIDTH} units", f"batch {batch:,}, CPU time / this", "x", _ratio(costs, batch))
        for batch in costs.sweep.batches
        if PUBLISHED_WIDTH in costs.sweep.widths
    ]
    crossovers = [
        _compared(costs, "crossover", f"batch {batch:,}, here", "units", _crossing(costs.by_width, batch))
        for batch in costs.sweep.batches
    ]
    return Result(
        title="One update of a value function with one hidden layer",
        columns=_columns(costs),
        rows=(*published, *faster, *crossovers, *_times(costs, "an update")),
        machine=describe(),
        notes=(
            "Forward, backward and Adam; the batch is on the device already, and each update is waited for",
            "The articles state no batch: the crossover is a width for each batch, not a width",
            *_first_calls(costs),
        ),
    )


def acting_table(costs: Costs) -> Result:
    """C4: what acting takes, and from which batch on a device is faster in spite of its transfers."""
    ratios = {phase: PUBLISHED_PHASES_MS["cpu"][phase] / PUBLISHED_PHASES_MS["gpu"][phase] for phase in (ACT, UPDATE)}
    published = [
        _row(costs, "article C", f"{phase}, CPU time / this, as published", "x", ratio)
        for phase, ratio in ratios.items()
    ]
    crossovers = [
        _compared(costs, "crossover", f"{width:,} units, here", "observations", _crossing(costs.by_batch, width))
        for width in costs.sweep.widths
    ]
    return Result(
        title="Acting: a batch of observations to a batch of actions, both on the host",
        columns=_columns(costs),
        rows=(*published, *crossovers, *_times(costs, "acting")),
        machine=describe(),
        notes=(
            "On an accelerator the transfers of observations and actions are included: part of acting there",
            "The article's own figures name no batch, and leave the transfers to a phase of their own",
            *_first_calls(costs),
        ),
    )


def reproduce_update() -> Outcome:
    """Run claims B2 and B3 at the current scale."""
    costs = measure(update, sweep())
    return Outcome(update_table(costs), _record("update-cost", ("B2", "B3"), costs))


def reproduce_acting() -> Outcome:
    """Run claim C4 at the current scale."""
    costs = measure(acting, sweep())
    return Outcome(acting_table(costs), _record("acting-cost", ("C4",), costs))


def _record(name: str, claims: tuple[str, ...], costs: Costs) -> Record:
    others = costs.devices[1:]
    crossings = {f"crossover on {d}, batch {b}": str(costs.by_width(d, b)) for d in others for b in costs.sweep.batches}
    by_batch = {f"crossover on {d}, {w} units": str(costs.by_batch(d, w)) for d in others for w in costs.sweep.widths}
    return Record(
        name=name,
        claims=claims,
        kind="measured",
        command=command(name, scale.current()),
        series={str(case): Series(times.values, "s") for case, times in costs.times.items()},
        config={"sweep": costs.sweep, "hidden layers": 1, "observation": OBSERVATIONS, "actions": ACTIONS},
        outcome={"first call, s": {str(case): s for case, s in costs.first_s.items()}, **crossings, **by_batch},
        notes=("A repeat is one call, waited for; the devices take turns at each size.",),
    )


def _adam(flat: FlatParameters) -> torch.optim.Adam:
    try:
        return torch.optim.Adam(flat.leaves(), fused=True)
    except RuntimeError:  # this device has no fused kernel; the arithmetic is the same
        return torch.optim.Adam(flat.leaves())


def _nothing() -> None:
    return None


def _columns(costs: Costs) -> tuple[str, ...]:
    return costs.devices if len(costs.devices) > 1 else (*costs.devices, "gpu")


def _times(costs: Costs, what: str) -> list[Row]:
    return [
        Row(f"{width:,} units", f"{what}, batch {batch:,}", "µs", _cells(costs, width, batch))
        for width, batch in product(costs.sweep.widths, costs.sweep.batches)
    ]


def _cells(costs: Costs, width: int, batch: int) -> tuple[Cell, ...]:
    times = [costs.times[Case(device, width, batch)] for device in costs.devices]
    known = [Cell(Measurement([1e6 * s for s in time.values], "µs"), "measured") for time in times]
    return (*known, *(unknown(NEEDS_GPU) for _ in _columns(costs)[len(known) :]))


def _row(costs: Costs, label: str, quantity: str, unit: str, published: float | str) -> Row:
    others = (Cell(published, "published") for _ in _columns(costs)[1:])
    return Row(label, quantity, unit, (unknown(_BASELINE), *others))


def _compared(costs: Costs, label: str, quantity: str, unit: str, cell: Callable[[str], Cell]) -> Row:
    others = [cell(device) for device in costs.devices[1:]] or [unknown(NEEDS_GPU)]
    return Row(label, quantity, unit, (unknown(_BASELINE), *others))


def _ratio(costs: Costs, batch: int) -> Callable[[str], Cell]:
    def cell(device: str) -> Cell:
        found = costs.comparison(device, PUBLISHED_WIDTH, batch)
        ratios = [cpu / other for cpu, other in zip(found.a.values, found.b.values, strict=True)]
        return Cell(Measurement(ratios, "x"), "measured", "" if found.clear else found.verdict)

    return cell


def _crossing(crossing: Callable[[str, int], Crossover], size: int) -> Callable[[str], Cell]:
    return lambda device: Cell(str(crossing(device, size)), "measured")


def _first_calls(costs: Costs) -> tuple[str, ...]:
    earliest = Case("", costs.sweep.widths[0], costs.sweep.batches[0])
    found = {device: costs.first_s[earliest._replace(device=device)] for device in costs.devices}
    said = ", ".join(f"{format_value(1e3 * seconds)} ms on {device}" for device, seconds in found.items())
    return (f"The very first call, which is in no number above: {said}",)
