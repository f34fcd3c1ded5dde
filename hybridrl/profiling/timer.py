"""The phase timer: nested named phases, waiting included, against a clock that is passed in.

The current node of the tree is the whole stack: entering goes to a child, leaving goes back to the parent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median
from types import TracebackType
from typing import Protocol

from hybridrl.profiling.phases import OTHER
from hybridrl.profiling.report import Report, Source
from hybridrl.profiling.tree import Node, ScopeCost, totals

MAX_PHASES = 500  # paths; beyond this a name surely holds a counter, and memory would grow without end

Clock = Callable[[], int]


class _Scope:
    """What ``phase(name)`` returns: one object per name, reusable under any parent."""

    __slots__ = ("_clock", "_name", "_timer")

    def __init__(self, timer: PhaseTimer, name: str, clock: Clock) -> None:
        self._timer = timer
        self._name = name
        self._clock = clock

    def __enter__(self) -> None:
        timer = self._timer
        try:
            node = timer._node.children[self._name]
        except KeyError:
            node = timer._add(self._name)
        timer._node = node
        node.start_ns = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._clock()  # first, so that the bookkeeping below isn't charged to the phase
        timer = self._timer
        node = timer._node
        if node.name is not self._name:
            timer._unwind(self._name, end, failing=kind is not None)
            return
        # The way back first: an interrupt between these lines loses one call, never the place in the tree.
        timer._node = node.parent  # type: ignore[assignment]  # only a root has none, and no scope has its name
        # Node.close without the call: it runs at every step of every environment.
        elapsed = end - node.start_ns
        if not node.calls:
            node.first_ns = elapsed
        node.calls += 1
        node.total_ns += elapsed


class _Scopes(dict[str, _Scope]):
    """The scopes of a timer by name, made at first use: which clock a name reads is settled once."""

    def __init__(self, timer: PhaseTimer, clock_of: Callable[[str], Clock]) -> None:
        super().__init__()
        self._timer = timer
        self._clock_of = clock_of

    def __missing__(self, name: str) -> _Scope:
        scope = self[name] = _Scope(self._timer, _checked(name), self._clock_of(name))
        return scope


class _Run:
    __slots__ = ("_timer",)

    def __init__(self, timer: PhaseTimer) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer._finish(failing=kind is not None)


class Timer(Protocol):
    """The face that ``PhaseTimer`` and ``NullTimer`` share: what training code may ask of a timer."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context manager that times one phase under the phase now open."""

    def run(self) -> AbstractContextManager[None]:
        """A context manager around everything whose time the phases divide."""

    def start(self) -> None:
        """Begin to count wall and CPU time; ``run()`` does this on entry."""

    def stop(self) -> None:
        """End what ``start()`` began."""

    def report(
        self,
        *,
        threads: int | None = None,
        counters: Mapping[str, int] | None = None,
        notes: Sequence[str] = (),
        source: Source = "measured",
    ) -> Report | None:
        """The times so far, or None from a timer that is off."""


class PhaseTimer:
    """Divides a run's wall time among named, nested phases.

    Around a loop of your own::

        timer = PhaseTimer()
        with timer.run():
            with timer.phase("collect"), timer.phase("env"):
                envs.step(actions)
        print(timer.report(threads=1, counters={"env_steps": 1}))

    ``clock`` and ``cpu_clock`` return integer nanoseconds. The same name under two parents is two rows. Runs
    accumulate. A timer serves one thread.

    ``synchronize``, where given, is called at both ends of every phase, so that work queued on an asynchronous
    device is charged to the phase that queued it (``hybridrl.placement.devices.synchronizer_of_all`` makes one); leave
    it out on the CPU. It slows the run by the overlap
    that it prevents, which the report's overhead doesn't include. ``synchronize_in`` names the phases that wait, at any
    depth: what another one queues is charged to whichever phase is open when it is next waited for. The run's own
    start and end always synchronise.

    The book builds a small one in chapter 1, "The GPU that made it slower".
    """

    def __init__(
        self,
        clock: Clock = time.perf_counter_ns,
        cpu_clock: Clock = time.process_time_ns,
        synchronize: Callable[[], None] | None = None,
        synchronize_in: Collection[str] | None = None,
    ) -> None:
        _check_names(synchronize_in, synchronize)
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._synchronized_clock = clock if synchronize is None else _synchronized(clock, synchronize)
        self._synchronize_in = None if synchronize_in is None else frozenset(synchronize_in)
        # The method below without its Python frame: 45 of about 600 ns a scope.
        self.phase = _Scopes(self, self._clock_of).__getitem__  # type: ignore[method-assign, assignment]
        self._root = Node("", None)
        self._idle = Node("", None)  # childless, so that a phase outside run() takes the slow path and raises
        self._node = self._idle
        self._paths = 0
        self._wall_ns = 0
        self._cpu_ns = 0
        self._start_ns = 0
        self._cpu_start_ns = 0

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context manager that times ``name`` under the phase now open; it may be kept and entered again.

        Entering raises ValueError outside ``run()``, for an empty name, a name with "/", and for "other".
        """
        raise AssertionError("replaced at construction")

    def run(self) -> AbstractContextManager[None]:
        """A context manager around everything whose time the phases divide; may be entered again."""
        return _Run(self)

    @property
    def running(self) -> bool:
        """Whether a run is open."""
        return self._node is not self._idle

    def start(self) -> None:
        """Begin to count wall and CPU time; ValueError if a run is open."""
        if self.running:
            raise ValueError("run() or start() inside an open run: expected one at a time; stop() the first")
        self._node = self._root
        self._cpu_start_ns = self._cpu_clock()
        self._start_ns = self._synchronized_clock()

    def stop(self) -> None:
        """End the run; ValueError if none is open, or if a phase still is (it is closed first)."""
        if not self.running:
            raise ValueError("stop() without start(): no run is open")
        self._finish(failing=False)

    def report(
        self,
        *,
        threads: int | None = None,
        counters: Mapping[str, int] | None = None,
        notes: Sequence[str] = (),
        source: Source = "measured",
    ) -> Report:
        """All runs so far, as a ``Report``, less the timer's own overhead as calibrated here and now.

        Allowed inside a run: phases still open count up to this moment. ``threads`` is what the caller knows
        (say ``torch.get_num_threads()``); None is unknown. ``counters`` name what was done, such as ``env_steps``.
        """
        now, wall, cpu = self._snapshot()
        running = {node: now - node.start_ns for node in self._open_nodes()}
        cost = scope_cost(type(self), self._clock)
        found = totals(self._root, (), cost, running)
        return Report(
            wall_s=wall / 1e9,
            cpu_s=cpu / 1e9,
            threads=threads,
            phases=found.rows,
            # Where the estimate exceeds what was left outside the phases, it was the estimate that was wrong.
            overhead_s=min(round(found.scopes * cost.total_ns), wall - found.busy_ns) / 1e9,
            counters=dict(counters or {}),
            notes=tuple(notes),
            source=source,
        )

    def _clock_of(self, name: str) -> Clock:
        waits = self._synchronize_in is None or name in self._synchronize_in
        return self._synchronized_clock if waits else self._clock

    def _snapshot(self) -> tuple[int, int, int]:
        if not self.running:
            return 0, self._wall_ns, self._cpu_ns
        now, cpu = self._clock(), self._cpu_clock()
        return now, self._wall_ns + now - self._start_ns, self._cpu_ns + cpu - self._cpu_start_ns

    def _open_nodes(self) -> list[Node]:
        """The open phases, innermost first."""
        nodes, node = [], self._node
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def _add(self, name: str) -> Node:
        if not self.running:
            raise ValueError(f'phase "{name}" outside run(): put the loop inside "with timer.run():"')
        if self._paths >= MAX_PHASES:
            raise ValueError(
                f'phase "{name}" after {MAX_PHASES} others: expected a fixed set of names; count in counters='
            )
        self._paths += 1
        node = self._node.children[name] = Node(name, self._node)
        return node

    def _unwind(self, name: str, end_ns: int, *, failing: bool) -> None:
        """Close ``name`` and what is open inside it; complain, unless an exception is on its way."""
        opened = self._open_nodes()
        names = [node.name for node in opened]
        if name in names:
            for node in opened[: names.index(name) + 1]:
                self._close(node, end_ns)
        if not failing:
            state = f'while "{names[0]}" was open inside it' if name in names else "while it was not open"
            raise ValueError(f'phase "{name}" closed {state}: close phases in the reverse of their order')

    def _close(self, node: Node, end_ns: int) -> None:
        assert node.parent is not None
        self._node = node.parent
        node.close(end_ns)

    def _finish(self, *, failing: bool) -> None:
        end, cpu = self._synchronized_clock(), self._cpu_clock()
        opened = self._open_nodes()
        for node in opened:
            self._close(node, end)
        self._node = self._idle
        self._wall_ns += end - self._start_ns
        self._cpu_ns += cpu - self._cpu_start_ns
        if opened and not failing:
            raise ValueError(f'the run ended while phase "{opened[0].name}" was open: close it before')


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_NOTHING = _Nothing()


class NullTimer:
    """A timer that is off: the same face, no clock reads, no synchronisation, and no report."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context manager that does nothing."""
        return _NOTHING

    def run(self) -> AbstractContextManager[None]:
        """A context manager that does nothing."""
        return _NOTHING

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def report(
        self,
        *,
        threads: int | None = None,
        counters: Mapping[str, int] | None = None,
        notes: Sequence[str] = (),
        source: Source = "measured",
    ) -> None:
        """None: nothing was measured, which is not the same as zero."""


def scope_cost(
    timer_class: type[PhaseTimer] = PhaseTimer,
    clock: Clock = time.perf_counter_ns,
    *,
    scopes: int = 2000,
    batches: int = 5,
) -> ScopeCost:
    """The timer's own cost, from ``batches`` batches of empty nested scopes; the median of each part.

    With x charged inside a scope and y outside it, an empty scope reads x and one around it reads 2x + y.
    """
    samples = [_empty_scopes(timer_class(clock=clock, cpu_clock=clock), scopes // 2) for _ in range(batches)]
    return ScopeCost(median(cost.inside_ns for cost in samples), median(cost.outside_ns for cost in samples))


def measure_overhead(timer_class: type[PhaseTimer] = PhaseTimer, clock: Clock = time.perf_counter_ns) -> float:
    """Seconds that one scope of ``timer_class`` costs on this machine, now, read on ``clock``."""
    return scope_cost(timer_class, clock).total_ns / 1e9


def _empty_scopes(timer: PhaseTimer, pairs: int) -> ScopeCost:
    with timer.run():
        for _ in range(pairs):
            with timer.phase("outer"), timer.phase("inner"):
                pass
    outer = timer._root.children["outer"]
    inside = outer.children["inner"].total_ns / pairs
    return ScopeCost(inside, max(0.0, outer.total_ns / pairs - 2 * inside))


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name or "/" in name or name == OTHER:
        raise ValueError(f'phase {name!r}: expected a name without "/", other than "{OTHER}" (the remainder)')
    return name


def _check_names(synchronize_in: Collection[str] | None, synchronize: Callable[[], None] | None) -> None:
    if synchronize_in is None:
        return
    if isinstance(synchronize_in, str):
        raise ValueError(f"synchronize_in={synchronize_in!r}: expected a collection of names: ({synchronize_in!r},)")
    if synchronize is None:
        raise ValueError(f"synchronize_in={synchronize_in!r} without synchronize=: say how to wait for the device")
    for name in synchronize_in:
        _checked(name)


def _synchronized(clock: Clock, synchronize: Callable[[], None]) -> Clock:
    def read() -> int:
        synchronize()
        return clock()

    return read
