import random
import time
import tracemalloc

import pytest

from hybridrl.profiling import FakeClock, NullTimer, PhaseTimer, Timer, measure_overhead, scope_cost
from hybridrl.profiling.timer import MAX_PHASES


def make(**settings):
    clock = FakeClock(**settings)
    return clock, PhaseTimer(clock=clock, cpu_clock=clock)


def spend(timer, clock, name, seconds):
    with timer.phase(name):
        clock.advance(seconds)


def rows(report):
    return {row.label: (row.calls, row.total_s, row.self_s) for row in report.phases}


# --- what is counted, and where


def test_nested_phases_divide_the_wall_time():
    clock, timer = make()
    with timer.run():
        with timer.phase("collect"):
            spend(timer, clock, "act", 1)
            spend(timer, clock, "env", 2)
            clock.advance(0.5)
        spend(timer, clock, "wait", 3)
        clock.advance(0.25)
    report = timer.report()
    assert rows(report) == {
        "collect": (1, 3.5, 0.5),
        "collect/act": (1, 1.0, 1.0),
        "collect/env": (1, 2.0, 2.0),
        "wait": (1, 3.0, 3.0),
    }
    assert (report.wall_s, report.cpu_s, report.other_s) == (6.75, 6.75, 0.25)


def test_one_name_under_two_parents_is_two_rows():
    clock, timer = make()
    with timer.run():
        for parent, seconds in (("collect", 1), ("learn", 4)):
            with timer.phase(parent):
                spend(timer, clock, "transfer", seconds)
    report = timer.report()
    assert (rows(report)["collect/transfer"][1], rows(report)["learn/transfer"][1]) == (1, 4)
    assert report.seconds("transfer") == 5


def test_a_kept_scope_goes_where_it_is_entered():
    clock, timer = make()
    step = timer.phase("env")
    with timer.run():
        with step:
            clock.advance(1)
            with step:
                clock.advance(2)
        with timer.phase("collect"), step:
            clock.advance(4)
    assert rows(timer.report()) == {
        "env": (1, 3, 1),
        "env/env": (1, 2, 2),
        "collect": (1, 4, 0),
        "collect/env": (1, 4, 4),
    }


@pytest.mark.parametrize("seed", range(5))
def test_totals_equal_those_of_a_list_of_events(seed):
    """The reference keeps every event, and sums afterwards."""
    draw = random.Random(seed)
    clock, timer = make()
    events = []

    def visit(path):
        clock.advance(ns=draw.randrange(1000))
        for _ in range(draw.randrange(4) if len(path) < 4 else 0):
            name = draw.choice("abc")
            with timer.phase(name):
                begin = clock.now_ns
                visit((*path, name))
                events.append(((*path, name), clock.now_ns - begin))
            clock.advance(ns=draw.randrange(1000))

    for _ in range(20):
        with timer.run():
            visit(())
        clock.advance(7)  # between runs: nobody's time
    report = timer.report()

    def total(path):
        return sum(ns for other, ns in events if other == path)

    assert {row.path for row in report.phases} == {path for path, _ in events}
    for row in report.phases:
        inside = sum(total(path) for path in {p for p, _ in events} if path[:-1] == row.path)
        assert row.calls == sum(path == row.path for path, _ in events)
        assert (row.total_s, row.self_s) == (total(row.path) / 1e9, (total(row.path) - inside) / 1e9)


def test_known_phases_are_listed_in_the_order_of_an_iteration():
    """The first reset times "env" before anything has acted."""
    clock, timer = make()
    with timer.run():
        with timer.phase("learn"):
            spend(timer, clock, "update", 1)
            spend(timer, clock, "returns", 1)
        with timer.phase("collect"):
            for name in ("env", "store", "act"):
                spend(timer, clock, name, 1)
    labels = [row.label for row in timer.report().phases]
    assert labels == [
        "collect",
        "collect/act",
        "collect/env",
        "collect/store",
        "learn",
        "learn/returns",
        "learn/update",
    ]


def test_phases_with_names_of_their_own_are_listed_as_they_came():
    clock, timer = make()
    with timer.run():
        for name in ("update", "load", "act"):
            spend(timer, clock, name, 1)
    assert [row.label for row in timer.report().phases] == ["update", "load", "act"]


def test_phases_nest_as_deep_as_there_may_be_rows():
    clock, timer = make()

    def descend(levels):
        clock.advance(1)
        if levels:
            with timer.phase("deeper"):
                descend(levels - 1)

    with timer.run():
        descend(300)
    assert [row.total_s for row in timer.report().phases] == list(range(300, 0, -1))


def test_the_first_call_is_kept_apart():
    clock, timer = make()
    with timer.run():
        for seconds in (1, 0.001, 0.001):
            spend(timer, clock, "update", seconds)
    (row,) = timer.report().phases
    assert (row.first_s, row.total_s) == (1, 1.002)


def test_cpu_time_is_that_of_the_runs():
    clock, cpu = FakeClock(), FakeClock(start_ns=5)
    timer = PhaseTimer(clock=clock, cpu_clock=cpu)
    for _ in range(2):
        with timer.run():
            clock.advance(3)
            cpu.advance(2)
        cpu.advance(100)
    assert (timer.report().wall_s, timer.report().cpu_s) == (6, 4)


def test_a_report_inside_a_run_counts_open_phases_up_to_now():
    clock, timer = make()
    with timer.run(), timer.phase("collect"):
        spend(timer, clock, "env", 2)
        clock.advance(1)
        with timer.phase("act"):
            clock.advance(4)
            report = timer.report()
            assert rows(report) == {"collect": (0, 7, 1), "collect/env": (1, 2, 2), "collect/act": (0, 4, 4)}
            assert (report.wall_s, report.cpu_s) == (7, 7)
    assert rows(timer.report())["collect"] == (1, 7, 1)


# --- its own overhead


def test_overhead_of_empty_nested_scopes_is_subtracted_exactly():
    """Reading this clock takes 100 ns: of 2e4 empty scopes in each of 3 cycles, no phase gets any."""
    clock, timer = make(tick_ns=100)
    for _ in range(3):
        with timer.run(), timer.phase("collect"):
            for _ in range(10_000):
                with timer.phase("act"), timer.phase("inner"):
                    pass
            clock.advance(1)
    report = timer.report()
    assert rows(report) == {
        "collect": (3, 3, 3),
        "collect/act": (30_000, 0, 0),
        "collect/act/inner": (30_000, 0, 0),
    }
    assert report.overhead_s == pytest.approx(60_003 * 200e-9, abs=1e-12)
    assert report.wall_s == 3 + report.overhead_s + 3 * 100e-9  # and each run's own second reading


def test_scope_cost_separates_what_is_inside():
    cost = scope_cost(clock=FakeClock(tick_ns=70), scopes=20, batches=3)
    assert (cost.inside_ns, cost.outside_ns, cost.total_ns) == (70, 70, 140)


def test_real_empty_scopes_keep_the_identities():
    timer = PhaseTimer()
    for _ in range(3):
        with timer.run(), timer.phase("outer"):
            for _ in range(10_000):
                with timer.phase("inner"):
                    pass
    report = timer.report()
    outer, inner = report.phases
    assert (outer.calls, inner.calls) == (3, 30_000)
    assert outer.total_s >= inner.total_s >= 0
    assert outer.self_s >= 0
    assert outer.total_s + report.other_s == pytest.approx(report.wall_s, abs=1e-9)
    assert 0 < report.overhead_s <= report.other_s


def test_a_clock_dearer_at_calibration_makes_nothing_negative():
    clock, timer = make()
    with timer.run(), timer.phase("outer"):
        for _ in range(10):
            spend(timer, clock, "inner", 1e-6)
    clock.tick_ns = 5_000
    report = timer.report()
    assert [row.total_s for row in report.phases] == [0, 0]
    assert report.overhead_s <= report.other_s == report.wall_s


def test_a_scope_is_cheap():
    assert 0 < measure_overhead() < 20e-6  # about 0.6 us; the bound is for a busy machine


def test_memory_does_not_grow_with_calls():
    timer = PhaseTimer()

    def loop(times):
        with timer.run():
            for _ in range(times):
                with timer.phase("collect"), timer.phase("env"):
                    pass

    loop(100)
    tracemalloc.start()
    loop(20_000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 2_000


# --- asynchronous devices


class FakeDevice:
    """Queues work that only `synchronize` waits for."""

    def __init__(self, clock):
        self.clock, self.queued, self.synchronisations = clock, 0.0, 0

    def enqueue(self, seconds):
        self.queued += seconds

    def synchronize(self):
        self.synchronisations += 1
        self.clock.advance(self.queued)
        self.queued = 0.0


def two_phases(timer, device):
    device.enqueue(0.01)  # before any phase
    with timer.phase("a"):
        device.enqueue(0.05)
    with timer.phase("b"):
        device.synchronize()  # as reading a result would


def test_synchronizing_charges_the_phase_that_queued_the_work():
    """C104: 50 ms queued in one phase, waited for by nobody in it, and a trivial phase after it."""
    clock = FakeClock()
    device = FakeDevice(clock)
    timer = PhaseTimer(clock=clock, cpu_clock=clock, synchronize=device.synchronize)
    with timer.run():
        two_phases(timer, device)
    report = timer.report()
    assert rows(report) == {"a": (1, 0.05, 0.05), "b": (1, 0, 0)}
    assert report.other_s == 0.01
    assert device.synchronisations == 2 + 2 * 2 + 1  # the run's ends, two ends a phase, and b's own


def test_without_synchronize_the_cost_shows_up_later_and_nobody_waits():
    clock = FakeClock()
    device = FakeDevice(clock)
    timer = PhaseTimer(clock=clock, cpu_clock=clock)
    with timer.run():
        two_phases(timer, device)
    assert rows(timer.report()) == {"a": (1, 0, 0), "b": (1, 0.06, 0.06)}
    assert device.synchronisations == 1


def test_phases_that_are_not_named_do_not_wait():
    """C104: acting on the CPU, inside of a phase that waits or outside, reads the bare clock."""
    clock = FakeClock()
    device = FakeDevice(clock)
    timer = PhaseTimer(clock=clock, cpu_clock=clock, synchronize=device.synchronize, synchronize_in={"update", "learn"})
    with timer.run(), timer.phase("loop"):
        with timer.phase("learn"), timer.phase("update"):
            device.enqueue(0.05)
        waited = device.synchronisations
        for _ in range(3):
            with timer.phase("collect"):
                spend(timer, clock, "act", 0.01)
        assert device.synchronisations == waited == 1 + 2 * 2  # the run's start, and both ends of two phases
    assert device.synchronisations == waited + 1  # the run's end
    assert rows(timer.report()) == {
        "loop": (1, 0.08, 0),
        "loop/learn": (1, 0.05, 0),
        "loop/learn/update": (1, 0.05, 0.05),
        "loop/collect": (3, 0.03, 0),
        "loop/collect/act": (3, 0.03, 0.03),
    }


def test_with_no_phase_named_only_the_run_waits():
    clock = FakeClock()
    device = FakeDevice(clock)
    timer = PhaseTimer(clock=clock, cpu_clock=clock, synchronize=device.synchronize, synchronize_in=())
    with timer.run():
        with timer.phase("a"):
            device.enqueue(0.05)
        assert device.synchronisations == 1
    report = timer.report()
    assert device.synchronisations == 2
    assert (rows(report)["a"], report.other_s, report.wall_s) == ((1, 0, 0), 0.05, 0.05)


def test_what_a_phase_that_does_not_wait_queues_is_charged_where_it_is_waited_for():
    """Before the named phase that follows, which waits before it starts: here outside of all phases."""
    clock = FakeClock()
    device = FakeDevice(clock)
    timer = PhaseTimer(clock=clock, cpu_clock=clock, synchronize=device.synchronize, synchronize_in=("update",))
    with timer.run():
        with timer.phase("act"):
            device.enqueue(0.05)
        spend(timer, clock, "update", 0.01)
    report = timer.report()
    assert rows(report) == {"act": (1, 0, 0), "update": (1, 0.01, 0.01)}
    assert report.other_s == 0.05


def test_a_scope_of_a_phase_that_does_not_wait_reads_the_clock_itself():
    """No call in between: as cheap as without a device."""
    clock = FakeClock()
    timer = PhaseTimer(clock=clock, cpu_clock=clock, synchronize=lambda: None, synchronize_in=("update",))
    assert timer.phase("act")._clock is clock
    assert timer.phase("update")._clock is not clock
    assert timer.phase("act") is timer.phase("act")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"synchronize": lambda: None, "synchronize_in": "update"}, r"^synchronize_in='update': expected a collection"),
        ({"synchronize_in": ("update",)}, "without synchronize=: say how to wait"),
        ({"synchronize": lambda: None, "synchronize_in": ("learn/update",)}, "expected a name without"),
    ],
)
def test_what_cannot_be_synchronized_in(settings, expected):
    with pytest.raises(ValueError, match=expected):
        PhaseTimer(**settings)


# --- exceptions and misuse


def test_an_exception_closes_its_phases_and_the_run():
    clock, timer = make()

    def fail():
        with timer.run(), timer.phase("collect"), timer.phase("env"):
            clock.advance(2)
            raise RuntimeError("the environment broke")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="the environment broke"):
            fail()
    assert not timer.running
    assert rows(timer.report()) == {"collect": (2, 4, 0), "collect/env": (2, 4, 4)}


def test_an_exception_is_not_hidden_by_a_phase_left_open():
    """As when an interrupt arrives between a phase's entry and its body."""
    clock, timer = make()

    def fail():
        with timer.run(), timer.phase("collect"):
            timer.phase("env").__enter__()
            clock.advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert rows(timer.report()) == {"collect": (1, 1, 0), "collect/env": (1, 1, 1)}


def test_an_exception_is_not_hidden_by_a_phase_left_open_at_the_end_of_the_run():
    clock, timer = make()

    def fail():
        with timer.run():
            timer.phase("env").__enter__()
            clock.advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert rows(timer.report()) == {"env": (1, 1, 1)}


@pytest.mark.parametrize("name", ["", "a/b", "other", 3])
def test_names_that_cannot_be_rows(name):
    with pytest.raises(ValueError, match=r"phase .*: expected a name"):
        PhaseTimer().phase(name)


def test_a_phase_outside_a_run():
    clock, timer = make()
    with pytest.raises(ValueError, match=r'^phase "env" outside run\(\): put the loop inside'):
        spend(timer, clock, "env", 1)
    with timer.run():
        spend(timer, clock, "env", 1)
    with pytest.raises(ValueError, match="outside run"):
        spend(timer, clock, "env", 1)
    assert rows(timer.report()) == {"env": (1, 1, 1)}


def test_phases_closed_out_of_order():
    clock, timer = make()
    with timer.run():
        outer, inner = timer.phase("outer"), timer.phase("inner")
        outer.__enter__()
        inner.__enter__()
        clock.advance(1)
        with pytest.raises(ValueError, match=r'^phase "outer" closed while "inner" was open inside it'):
            outer.__exit__(None, None, None)
        with pytest.raises(ValueError, match=r'^phase "inner" closed while it was not open'):
            inner.__exit__(None, None, None)
        spend(timer, clock, "next", 2)
    assert rows(timer.report()) == {"outer": (1, 1, 0), "outer/inner": (1, 1, 1), "next": (1, 2, 2)}


def test_a_run_inside_a_run_and_a_stop_without_a_start():
    _, timer = make()
    with pytest.raises(ValueError, match=r"^stop\(\) without start\(\)"):
        timer.stop()
    timer.start()
    with pytest.raises(ValueError, match=r"inside an open run"), timer.run():
        pass
    timer.stop()


def test_stopping_with_a_phase_open_closes_it_and_says_so():
    clock, timer = make()
    timer.start()
    timer.phase("env").__enter__()
    clock.advance(1)
    with pytest.raises(ValueError, match='the run ended while phase "env" was open'):
        timer.stop()
    assert rows(timer.report()) == {"env": (1, 1, 1)}
    timer.start()
    timer.stop()


def test_names_made_in_a_loop_are_refused_before_they_fill_the_memory():
    clock, timer = make()
    with timer.run():
        for step in range(MAX_PHASES):
            spend(timer, clock, f"step {step}", 1)
        with pytest.raises(ValueError, match="expected a fixed set of names"):
            spend(timer, clock, "one more", 1)
    assert len(timer.report().phases) == MAX_PHASES


# --- the timer that is off


def test_a_null_timer_reads_no_clock(monkeypatch):
    def forbidden():
        raise AssertionError("a timer that is off read a clock")

    monkeypatch.setattr(time, "perf_counter_ns", forbidden)
    monkeypatch.setattr(time, "process_time_ns", forbidden)
    timer: Timer = NullTimer()
    with timer.run(), timer.phase("collect"), timer.phase("env"):
        pass
    timer.start()
    timer.stop()
    assert timer.report(threads=1, counters={"env_steps": 1}) is None


def test_two_reads_a_phase_and_no_more():
    clock, timer = make()
    with timer.run():
        before = clock.reads
        with timer.phase("env"):
            pass
        assert clock.reads - before == 2


def test_a_clock_does_not_go_back():
    with pytest.raises(ValueError, match="expected 0 or more"):
        FakeClock().advance(-1)
