import math
import subprocess
import sys
from fractions import Fraction

import pytest

from hybridrl.utilization import (
    PhaseTimes,
    busy_share,
    k_processes,
    overlapped_busy_share,
    overlapped_speedup,
    overlapped_step_time,
    serial_busy_share,
    serial_speedup,
    serial_step_time,
    speedup_bound,
)

SPEEDUPS = (1, 2, 4, 8, math.inf)


def times(a, b, c=0):
    return PhaseTimes(host_s=Fraction(a), device_s=Fraction(b), transfer_s=Fraction(c))


def simulate(times, processes, steps):
    """Processes that take turns on one first-come first-served device: its busy share after `steps` of each.

    Process i starts i/processes of a step late, so that they don't all queue at once.
    """
    step = serial_step_time(times)
    ready = [step * i / processes + times.host_s + times.transfer_s for i in range(processes)]
    left, free, finished = [steps] * processes, Fraction(0), Fraction(0)
    while any(left):
        next_ready, i = min((ready[i], i) for i in range(processes) if left[i])
        free = max(free, next_ready) + times.device_s
        left[i] -= 1
        ready[i] = free + times.host_s + times.transfer_s
        finished = max(finished, free)
    return processes * steps * times.device_s / finished


def simulate_overlap(times, steps):
    """Double buffering: the host makes batch i + 1 while the device learns from batch i. Seconds a step."""
    made = learned = Fraction(0)
    before = Fraction(0)
    for _ in range(steps):
        made = max(made + times.host_s, before)  # a buffer is free once the batch before last was learned
        before = learned
        learned = max(made, learned) + times.device_s
    return learned / steps


def test_the_articles_formula():
    assert busy_share(Fraction(9), Fraction(1)) == Fraction(1, 10)
    assert busy_share(3, 1) == 0.25
    assert (busy_share(0, 1), busy_share(1, 0)) == (1, 0)


def test_serial_is_one_process_of_the_simulation():
    t = times(9, 3, 2)
    assert serial_step_time(t) == 14
    assert serial_busy_share(t) == Fraction(3, 14)
    assert simulate(t, 1, 50) == serial_busy_share(t)


@pytest.mark.parametrize(("a", "b"), [(9, 1), (3, 3), (1, 9), (0, 2), (2, 0)])
def test_overlap_approaches_the_longer_part(a, b):
    steps = 1000
    step_time = simulate_overlap(times(a, b), steps)
    bound = overlapped_step_time(times(a, b))
    assert bound <= step_time <= bound + Fraction(a + b, steps)
    assert overlapped_busy_share(times(a, b)) == Fraction(b, max(a, b))


@pytest.mark.parametrize(("a", "b", "c"), [(9, 1, 0), (2, 1, 1), (1, 3, 0), (5, 5, 1)])
@pytest.mark.parametrize("k", [1, 2, 3, 8, 20])
def test_k_processes_bounds_and_meets_the_simulation(a, b, c, k):
    steps = 200
    bound = k_processes(times(a, b, c), k)
    assert bound == min(1, Fraction(k * b, a + b + c))
    simulated = simulate(times(a, b, c), k, steps)
    assert simulated <= bound
    assert simulated >= bound * (1 - Fraction(2 * (k + 1), steps))


def test_k_processes_are_capped_by_the_cores():
    t = times(9, 1)
    assert k_processes(t, 8) == Fraction(8, 10)
    assert k_processes(t, 8, cores=2) == Fraction(2, 9)  # two cores feed two steps every 9 seconds
    assert k_processes(t, 1, cores=2) == Fraction(1, 10)
    assert k_processes(times(0, 1), 1, cores=1) == 1


def test_four_gpus_barely_help_a_serial_loop():
    t = times(9, 1)
    bound = speedup_bound(Fraction(1, 10))
    gains = [serial_speedup(t, s) for s in SPEEDUPS]
    assert gains == [1, Fraction(20, 19), Fraction(40, 37), Fraction(80, 73), bound]
    assert gains == sorted(gains)
    assert bound == Fraction(10, 9)
    assert float(bound) == pytest.approx(1.11, abs=0.005)


@pytest.mark.parametrize(("a", "b", "c"), [(9, 1, 0), (1, 9, 0), (4, 4, 2), (0, 1, 1)])
def test_speedups_grow_and_stay_below_their_bounds(a, b, c):
    t = times(a, b, c)
    serial = [serial_speedup(t, s) for s in SPEEDUPS]
    overlapped = [overlapped_speedup(t, s) for s in SPEEDUPS]
    assert serial == sorted(serial)
    assert overlapped == sorted(overlapped)
    assert max(serial) <= speedup_bound(serial_busy_share(t))
    assert all(o >= s for o, s in zip(overlapped, serial, strict=True))
    assert max(overlapped) <= serial_step_time(t) / max(t.host_s, t.transfer_s)


def test_asynchronous_is_bounded_by_the_longer_of_collecting_and_training():
    assert overlapped_speedup(times(9, 1), math.inf) == Fraction(10, 9)
    assert overlapped_speedup(times(1, 9)) == Fraction(10, 9)
    assert overlapped_speedup(times(5, 5)) == 2


def test_copies_bound_the_overlap_too():
    assert overlapped_step_time(times(2, 1, 4)) == 4
    assert overlapped_busy_share(times(2, 1, 4)) == Fraction(1, 4)


def test_a_run_that_is_all_learning_has_no_bound():
    assert speedup_bound(1) == math.inf
    assert serial_speedup(times(0, 1), math.inf) == math.inf
    assert speedup_bound(0) == 1


def test_a_single_cartpole_agent_keeps_the_gpu_idle_because_of_its_host():
    """2 ms of environment, 0.4 ms of inference and 0.5 ms of update, the last two on the device."""
    t = PhaseTimes(host_s=Fraction(20, 10_000), device_s=Fraction(9, 10_000))
    assert serial_busy_share(t) == Fraction(9, 29)
    assert t.bottleneck == "host"
    assert times(1, 2).bottleneck == "device"
    assert times(1, 2, 3).bottleneck == "transfer"


def test_fractions_stay_exact_and_floats_stay_floats():
    t = times(2, 1, 1)
    for value in (serial_busy_share(t), overlapped_step_time(t), k_processes(t, 2), serial_speedup(t, 3)):
        assert isinstance(value, Fraction)
    assert isinstance(busy_share(2.0, 1.0), float)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: busy_share(-1, 2), "host_s=-1: expected a finite time, 0 or more"),
        (lambda: busy_share(1, math.nan), "device_s=nan: expected a finite time, 0 or more"),
        (lambda: busy_share(math.inf, 1), "host_s=inf: expected a finite time, 0 or more"),
        (lambda: busy_share(0, 0), "all 0: expected a step that takes time"),
        (lambda: times(1, 1, -1), "transfer_s=-1: expected a finite time"),
        (lambda: k_processes(times(1, 1), 0), "k=0: expected 1 or more"),
        (lambda: k_processes(times(1, 1), 1, cores=0), "cores=0: expected 1 or more"),
        (lambda: speedup_bound(1.5), "train_share=1.5: expected a share of the step, from 0 to 1"),
        (lambda: speedup_bound(math.nan), "train_share=nan: expected a share"),
        (lambda: serial_speedup(times(1, 1), 0), "device_speedup=0: expected above 0"),
        (lambda: overlapped_speedup(times(1, 1), math.nan), "device_speedup=nan: expected above 0"),
    ],
)
def test_mistakes_get_one_clear_line(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_importing_the_model_loads_only_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import hybridrl.utilization;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['hybridrl']"
