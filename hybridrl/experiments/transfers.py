"""How a rollout reaches a device: in how many copies, and out of which memory (claims B7, C6).

Without an accelerator the copies run between two memories of the CPU: that shows what many small copies cost the host,
and nothing about a bus. What needs page-locked memory stays empty there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybridrl.data import Rollout, RolloutStorage
from hybridrl.data.arena import Arena
from hybridrl.experiments import scale
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement, alternate, compare, format_value
from hybridrl.experiments.outcome import Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, unknown
from hybridrl.placement import copy_to, devices, pin

_NAME = "transfers"
_CLAIMS = ("B7", "C6")
FIELDS = len(fields(Rollout))


@dataclass(frozen=True, kw_only=True)
class Size:
    """A rollout's shape."""

    rows: int
    num_envs: int
    shape: tuple[int, ...]
    """Of one observation."""
    dtype: npt.DTypeLike
    """Of observations."""

    @property
    def items(self) -> int:
        """Observations in it."""
        return self.rows * self.num_envs

    def storage(self, *, pin: bool) -> RolloutStorage:
        """Room for it on the host."""
        return RolloutStorage(
            self.rows,
            self.num_envs,
            observation_shape=self.shape,
            observation_dtype=self.dtype,
            action=((), torch.int64),
            pin=pin,
        )

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.rows} x {self.num_envs} of {shape} {np.dtype(self.dtype).name}"


def sizes() -> tuple[Size, ...]:
    """From one classic CartPole episode to 128 x 8 Atari frames (29 MB at full scale), smallest first.

    Below full scale the frames are smaller, not fewer: the number of items stays.
    """
    edges = scale.pick(smoke=(21,), quick=(21, 42), full=(21, 42, 84))
    return (
        Size(rows=200, num_envs=1, shape=(4,), dtype=np.float32),
        Size(rows=128, num_envs=8, shape=(4,), dtype=np.float32),
        *(Size(rows=128, num_envs=8, shape=(4, edge, edge), dtype=np.uint8) for edge in edges),
    )


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What the ways of one size share: the rollout on the host, and memory for it on the device."""

    size: Size
    device: torch.device
    pageable: Arena
    pinned: Arena | None
    """The same rollout in page-locked memory; None where nothing gains from that."""
    there: Arena
    items: tuple[Tensor, ...]
    """Each observation by itself, as a list has them that was appended to step by step."""

    @classmethod
    def make(cls, size: Size, device: torch.device) -> "Lane":
        """Fill a rollout with random numbers; the same ones each time."""
        pageable = size.storage(pin=False).arena
        generator = torch.Generator().manual_seed(0)
        for view in pageable.views.values():
            view.copy_(torch.rand(view.shape, generator=generator) * 100)
        pinned = size.storage(pin=True).arena if devices.can_pin(device) else None
        if pinned is not None:
            pinned.copy_(pageable)
        observations = pageable.views["observation"].flatten(0, 1)
        items = tuple(observation.clone() for observation in observations)
        there = pageable.like(device)
        return cls(size=size, device=device, pageable=pageable, pinned=pinned, there=there, items=items)

    @property
    def others(self) -> Mapping[str, Tensor]:
        """Every field but the observations."""
        return {name: view for name, view in self.pageable.views.items() if name != "observation"}


Views = Mapping[str, Tensor]


def by_item(lane: Lane) -> Views:
    """A copy for each observation, stacked on the device; the other fields by a copy each."""
    observations = torch.stack([copy_to(item, lane.device) for item in lane.items])
    return {"observation": _shaped(lane, observations)} | _each(lane, lane.others)


def stacked(lane: Lane) -> Views:
    """The observations stacked on the host first, then a copy a field."""
    return _each(lane, {"observation": _shaped(lane, torch.stack(lane.items)), **lane.others})


def by_field(lane: Lane) -> Views:
    """A copy a field, into new memory."""
    return _each(lane, lane.pageable.views)


def by_pinned_field(lane: Lane) -> Views:
    """The published pattern, ``t.pin_memory().to(device, non_blocking=True)``, for each field."""
    pinned = {name: pin(view) for name, view in lane.pageable.views.items()}
    return {name: copy_to(view, lane.device, non_blocking=True) for name, view in pinned.items()}


def arena(lane: Lane) -> Views:
    """One copy of everything."""
    lane.there.copy_(lane.pageable)
    return lane.there.views


def pinned_arena(lane: Lane) -> Views:
    """One copy of everything, out of memory that was page-locked once."""
    lane.there.copy_(_pinned(lane))
    return lane.there.views


def pinned_arena_behind(lane: Lane) -> Views:
    """The same, without waiting: whoever overwrites the source must first wait for the copy."""
    lane.there.copy_(_pinned(lane), non_blocking=True)
    return lane.there.views


def arena_pinned_anew(lane: Lane) -> Views:
    """The trap: page-locked for this one copy."""
    lane.there.block.copy_(pin(lane.pageable.block), non_blocking=True)
    return lane.there.views


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to bring a rollout to a device."""

    name: str
    run: Callable[[Lane], Views]
    copies: Callable[[Size], int]
    """From one memory to the other, for a rollout."""
    pins: bool = False


WAYS = (
    Way(name="item by item", run=by_item, copies=lambda size: size.items + FIELDS - 1),
    Way(name="items stacked on the host", run=stacked, copies=lambda size: FIELDS),
    Way(name="field by field", run=by_field, copies=lambda size: FIELDS),
    Way(name="arena", run=arena, copies=lambda size: 1),
    Way(name="arena, pinned once", run=pinned_arena, copies=lambda size: 1, pins=True),
    Way(name="arena, pinned once, non-blocking", run=pinned_arena_behind, copies=lambda size: 1, pins=True),
    Way(name="arena, pinned each time", run=arena_pinned_anew, copies=lambda size: 1, pins=True),
    Way(name="fields, pinned each time (as published)", run=by_pinned_field, copies=lambda size: FIELDS, pins=True),
)
COMPARED = (
    ("item by item", "arena"),
    ("item by item", "items stacked on the host"),
    ("field by field", "arena"),
    ("arena", "arena, pinned once"),
    ("arena", "arena, pinned each time"),
    ("field by field", "fields, pinned each time (as published)"),
)
"""(slower, faster) by the claims, or by what follows from them."""
_HELD = ("arena", "arena, pinned once", "arena, pinned once, non-blocking")
"""Where it matters when the host may go on."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one size took."""

    size: Size
    nbytes: int
    """Of a rollout."""
    seconds: Mapping[str, Measurement]
    """Until everything has arrived, by way; ways that can't be taken here are missing."""
    held: Mapping[str, Measurement]
    """Until the host may go on."""
    first_held_s: Mapping[str, float]
    """The same for the very first call, which is no repeat: it may allocate, and page-lock for the first time."""


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Every size, and where to."""

    device: str
    timed: tuple[Timed, ...]

    @property
    def reason(self) -> str:
        """Why the ways with page-locked memory are empty, where they are."""
        return NEEDS_GPU if self.device == devices.CPU else f"copies to {self.device} gain nothing from it"


def measure(
    wanted: Sequence[Size], *, device: str | None = None, repeats: int, clock: Callable[[], float] = perf_counter
) -> Transfers:
    """Time every way for every size, the ways in turn (A B A B).

    Args:
        wanted: sizes.
        device: where to; None takes the first accelerator, or the CPU, where the copies run between two memories.
        repeats: of each.
        clock: seconds.
    """
    name = devices.available()[:2][-1] if device is None else device
    return Transfers(device=name, timed=tuple(_time(size, devices.resolve(name), repeats, clock) for size in wanted))


class _Held:
    """Takes one way, and notes when the call comes back."""

    def __init__(self, way: Way, lane: Lane, clock: Callable[[], float]) -> None:
        self._way, self._lane, self._clock = way, lane, clock
        self.seconds: list[float] = []

    def __call__(self) -> None:
        start = self._clock()
        self._way.run(self._lane)
        self.seconds.append(self._clock() - start)


def _time(size: Size, device: torch.device, repeats: int, clock: Callable[[], float]) -> Timed:
    lane = Lane.make(size, device)
    calls = {way.name: _Held(way, lane, clock) for way in WAYS if lane.pinned is not None or not way.pins}
    found = alternate(calls, repeats=repeats, warmup=2, clock=clock, synchronize=devices.synchronizer(device))
    held = {name: Measurement(call.seconds[-repeats:], "s") for name, call in calls.items()}
    first = {name: call.seconds[0] for name, call in calls.items()}
    return Timed(size=size, nbytes=lane.pageable.nbytes, seconds=dict(found), held=held, first_held_s=first)


def table(transfers: Transfers) -> Result:
    """B7 and C6: ratios that the claims are about, then times, rates and copies."""
    on_cpu = transfers.device == devices.CPU
    where = "from one memory of the CPU to another" if on_cpu else f"from the host to {transfers.device}"
    return Result(
        title=f"How a rollout gets {where}",
        columns=tuple(f"{format_bytes(t.nbytes)}: {t.size}" for t in transfers.timed),
        rows=(
            *(_ratio_row(transfers, slow, fast) for slow, fast in COMPARED),
            *(_row(transfers, way, "until it is there", "µs", _arrival) for way in WAYS),
            *(_row(transfers, way, "until the host may go on", "µs", _release) for way in WAYS if way.name in _HELD),
            *(_row(transfers, way, "rate", "GB/s", _rate) for way in WAYS),
        ),
        machine=describe(),
        notes=_notes(transfers),
    )


def format_bytes(count: int) -> str:
    """A size as a reader wants it, in powers of ten."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{format_value(count / size)} {unit}"
    return f"{count} bytes"


def reproduce() -> Outcome:
    """Run claims B7 and C6 at the current scale."""
    transfers = measure(sizes(), repeats=scale.pick(smoke=3, quick=15, full=31))
    return Outcome(table(transfers), record(transfers))


def record(transfers: Transfers) -> Record:
    """The raw repeats of every way and size."""
    series = {
        f"{name}, {t.nbytes} bytes": Series(m.values, "s") for t in transfers.timed for name, m in t.seconds.items()
    }
    held = {
        f"{name}, {t.nbytes} bytes, host held": Series(m.values, "s")
        for t in transfers.timed
        for name, m in t.held.items()
    }
    return Record(
        name=_NAME,
        claims=_CLAIMS,
        kind="measured",
        command=command(_NAME, scale.current()),
        series=series | held,
        config={"device": transfers.device, "sizes": {str(t.nbytes): str(t.size) for t in transfers.timed}},
        outcome={
            **{f"{slow} / {fast}": _verdicts(transfers, slow, fast) for slow, fast in COMPARED},
            "host held by the first call, s": {str(t.nbytes): t.first_held_s for t in transfers.timed},
        },
        notes=_notes(transfers),
    )


def _shaped(lane: Lane, observations: Tensor) -> Tensor:
    return observations.view(lane.size.rows, lane.size.num_envs, *lane.size.shape)


def _each(lane: Lane, views: Views) -> dict[str, Tensor]:
    return {name: copy_to(view, lane.device) for name, view in views.items()}


def _pinned(lane: Lane) -> Arena:
    if lane.pinned is None:
        raise ValueError(f"copies to {lane.device} gain nothing from page-locked memory: take another way")
    return lane.pinned


def _arrival(timed: Timed, way: Way) -> Cell:
    copies = way.copies(timed.size)
    return Cell(_micro(timed.seconds[way.name]), "measured", "one copy" if copies == 1 else f"{copies:,} copies")


def _release(timed: Timed, way: Way) -> Cell:
    return Cell(_micro(timed.held[way.name]), "measured")


def _rate(timed: Timed, way: Way) -> Cell:
    return Cell(timed.seconds[way.name].rate(timed.nbytes / 1e9, "GB/s"), "measured")


def _micro(seconds: Measurement) -> Measurement:
    return Measurement([1e6 * value for value in seconds.values], "µs")


def _row(transfers: Transfers, way: Way, quantity: str, unit: str, cell: Callable[[Timed, Way], Cell]) -> Row:
    reason = transfers.reason
    cells = (cell(t, way) if way.name in t.seconds else unknown(reason) for t in transfers.timed)
    return Row(way.name, quantity, unit, tuple(cells))


def _ratio_row(transfers: Transfers, slow: str, fast: str) -> Row:
    return Row(f"{slow} / {fast}", "time", "x", tuple(_ratio(transfers, t, slow, fast) for t in transfers.timed))


def _ratio(transfers: Transfers, timed: Timed, slow: str, fast: str) -> Cell:
    if fast not in timed.seconds:
        return unknown(transfers.reason)
    found = compare(timed.seconds[slow], timed.seconds[fast])
    ratios = [a / b for a, b in zip(found.a.values, found.b.values, strict=True)]
    return Cell(Measurement(ratios, "x"), "measured", "" if found.clear else found.verdict)


def _verdicts(transfers: Transfers, slow: str, fast: str) -> dict[str, str | None]:
    return {
        str(t.nbytes): compare(t.seconds[slow], t.seconds[fast]).sentence(slow, fast) if fast in t.seconds else None
        for t in transfers.timed
    }


def _notes(transfers: Transfers) -> tuple[str, ...]:
    notes = (
        "Items and fields get new memory on the device each time, as .to() gives them; the arena keeps its own",
        "A ratio above 1 says that the second way is faster",
    )
    if transfers.device == devices.CPU:
        return ("A copy within the host's memory; no bus is involved", *notes)
    reuse = "Torch keeps page-locked blocks for reuse: each time but the first, pinning anew costs a copy on the host"
    return (*notes, reuse) if devices.can_pin(torch.device(transfers.device)) else notes
