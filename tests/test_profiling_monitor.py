import json
import logging
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrl.profiling import FakeClock, Monitor, Usage
from hybridrl.profiling.collector import MOST_ENDED, Collector
from hybridrl.profiling.host import PsutilHost, _core, _descendants
from hybridrl.profiling.monitor import torch_devices
from hybridrl.profiling.readings import (
    ChildReading,
    CoreTimes,
    GpuReading,
    GpuReadings,
    HostReading,
    Unknown,
)
from hybridrl.profiling.track import MAX_POINTS, MOST_REASONS, Track
from hybridrl.profiling.usage import Summary, bytes_text

MIB = 2**20
NO_GPU = GpuReadings((), "no NVML; to read an NVIDIA GPU, install hybridrl[gpu]")


def host_reading(cpu_s=0.0, memory=100 * MIB, cores=(), children=()):
    return HostReading(
        process_cpu_s=cpu_s,
        process_memory=memory,
        cores=cores,
        machine_memory=2.0 * MIB,
        machine_memory_total=8.0 * MIB,
        children=children,
    )


def child(pid=7, cpu_s=0.0, *, age_s=100.0, created=1.0, name="worker", memory=MIB):
    return ChildReading(pid=pid, created=created, age_s=age_s, name=name, cpu_s=cpu_s, memory=memory)


def gpu_reading(utilization=50.0, *, key="GPU-a", index=0, **changes):
    reading = GpuReading(
        key=key,
        type="cuda",
        index=index,
        name="H100",
        bus_id="00000000:3B:00.0",
        utilization=utilization,
        sm_utilization=Unknown("no GPM: Hopper and newer GPUs have it"),
        memory_used=3.0 * MIB,
        memory_total=80.0 * MIB,
        process_memory=Unknown("not permitted"),
        torch_memory=1.0 * MIB,
    )
    return replace(reading, **changes)


class Machine:
    """A host and GPUs that read what they are told to, by a clock that moves when told to."""

    def __init__(self):
        self.clock = FakeClock()
        self.host = host_reading()
        self.gpus = NO_GPU
        self.opened = self.closed = 0

    def read(self, *, last=False):
        now_s = self.clock.now_ns / 1e9
        return replace(self.host, cores=self.host.cores or (CoreTimes(now_s / 4, now_s),))

    def monitor(self, interval_s=None, **changes):
        source = SimpleNamespace(open=self._open, read=lambda: self.gpus, close=self._close)
        return Monitor(
            interval_s, **{"host": self, "gpus": source, "clock": self.clock, "cpu_clock": FakeClock(), **changes}
        )

    def step(self, monitor, seconds, host=None, gpus=None):
        self.clock.advance(seconds)
        self.host, self.gpus = host or self.host, gpus or self.gpus
        monitor.sample_now()

    def _open(self):
        self.opened += 1

    def _close(self):
        self.closed += 1


@pytest.fixture
def machine():
    return Machine()


def test_cpu_is_in_percent_of_one_core_and_weighted_by_time(machine):
    machine.host = host_reading(cpu_s=10.0)
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0, host_reading(cpu_s=12.5))  # two and a half cores
        machine.step(monitor, 3.0, host_reading(cpu_s=13.0, memory=200 * MIB))
    usage = monitor.usage
    assert usage.process_cpu.mean == usage.cpu_percent == 100 * 3.0 / 4.0
    assert (usage.process_cpu.max, usage.process_cpu.min) == (250.0, pytest.approx(100 / 6))
    assert (usage.process_memory.mean, usage.process_memory.max) == ((100 + 3 * 200) / 4 * MIB, 200 * MIB)
    assert (usage.duration_s, usage.samples) == (4.0, 2)  # the last sample, at once after the second, has no length
    assert (usage.machine_memory.mean, usage.machine_memory_total) == (2 * MIB, 8 * MIB)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 4)), min_size=1, max_size=20))
def test_the_mean_is_the_whole_whatever_the_samples(steps):
    """Irregular samples: the weighted mean of shares is the counter's total over the total time."""
    machine = Machine()
    used = 0.0
    with machine.monitor() as monitor:
        for seconds, cores in steps:
            used += seconds * cores
            machine.step(monitor, seconds, host_reading(cpu_s=used))
    assert monitor.usage.cpu_percent == pytest.approx(100 * used / sum(seconds for seconds, _ in steps), abs=1e-4)


def test_a_run_shorter_than_the_interval_has_one_sample_over_its_length(machine):
    with machine.monitor(interval_s=60.0) as monitor:
        machine.clock.advance(0.25)
        machine.host = host_reading(cpu_s=0.125)
    assert (monitor.usage.samples, monitor.usage.duration_s) == (1, 0.25)
    assert (monitor.usage.process_cpu.mean, monitor.usage.process_cpu.max) == (50.0, 50.0)


def test_a_sliver_at_the_end_counts_in_the_mean_but_is_no_maximum():
    collector = Collector(0.5, lambda what, reason: None)
    collector.base(host_reading(), NO_GPU)
    collector.add(0.5, host_reading(cpu_s=0.25), NO_GPU)
    collector.add(0.51, host_reading(cpu_s=0.29), NO_GPU)  # 400% of 10 ms
    cpu = collector.usage(duration_s=0.51, start_cpu_s=0.0, sampling_cpu_s=0.0).process_cpu
    assert cpu.max == 50.0
    assert cpu.mean == pytest.approx(100 * 0.29 / 0.51)


def test_a_run_of_no_length_knows_nothing(machine):
    with machine.monitor() as monitor:
        pass
    usage = monitor.usage
    assert usage.samples == 0
    assert (usage.cpu_percent, usage.cpu_s_per_sample, usage.sampling_share) == (None, None, None)
    assert "unknown" in str(usage)


def test_unknown_is_none_with_its_reason_and_no_part_of_means(machine):
    """C111: field by field; averages ignore None."""
    machine.gpus = GpuReadings((gpu_reading(),))
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0, gpus=GpuReadings((gpu_reading(80.0),)))
        machine.step(monitor, 5.0, gpus=GpuReadings((gpu_reading(Unknown("not permitted")),)))
        machine.step(monitor, 3.0, gpus=GpuReadings((gpu_reading(40.0),)))
    (gpu,) = monitor.usage.gpu
    assert (gpu.utilization.mean, gpu.utilization.max) == ((80 + 3 * 40) / 4, 80.0)
    assert (gpu.utilization.known, gpu.utilization.total, gpu.utilization.reason) == (2, 3, "not permitted")
    assert (gpu.process_memory.mean, gpu.process_memory.known) == (None, 0)
    assert str(gpu.process_memory) == "unknown (not permitted)"
    assert gpu.memory_used.mean == 3 * MIB
    assert gpu.utilization.series == ((1.0, 80.0), (6.0, None), (9.0, 40.0))


def test_values_that_are_no_numbers_are_unknown():
    track = Track("load", "%", lambda what, reason: None)
    track.add(1.0, float("nan"), 1.0)
    track.add(2.0, 5.0, 1.0)
    assert (track.summary().mean, track.summary().known, track.summary().reason) == (5.0, 1, "reads nan")


def test_one_log_line_for_each_reason(machine, caplog):
    """C110: not one for each sample."""
    caplog.set_level(logging.INFO, logger="hybridrl")
    machine.gpus = GpuReadings((gpu_reading(Unknown("MIG")),))
    with machine.monitor() as monitor:
        for _ in range(5):
            machine.step(monitor, 1.0)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "monitor: SM utilization of GPU 0 unknown: no GPM: Hopper and newer GPUs have it",
        "monitor: memory of this process on GPU 0 unknown: not permitted",
        "monitor: utilization of GPU 0 unknown: MIG",
    ]


def test_reasons_that_never_repeat_take_no_more_memory(machine, caplog):
    caplog.set_level(logging.INFO, logger="hybridrl")
    with machine.monitor() as monitor:
        for number in range(300):
            machine.step(monitor, 1.0, replace(host_reading(), process_cpu_s=Unknown(f"error {number}")))
    assert 10 < len(caplog.records) <= 101
    track = Track("load", "%", lambda what, reason: None)
    for number in range(1000):
        track.add(float(number), Unknown(f"error {number}"), 1.0)
    assert len(track._reasons) == MOST_REASONS + 1


def test_a_series_stays_short_and_keeps_its_mean():
    track = Track("load", "%", lambda what, reason: None, series=True)
    values = [(7 * number) % 101 for number in range(5000)]
    for number, value in enumerate(values, start=1):
        track.add(float(number), float(value), 1.0)
    points = track.summary().series
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    ends = [0.0, *(end for end, _ in points)]
    assert ends[-1] == 5000
    for start, (end, mean) in zip(ends, points, strict=False):
        stretch = values[int(start) : int(end)]
        assert mean == pytest.approx(sum(stretch) / len(stretch))


def test_each_core_by_its_own_times_and_the_machine_by_their_sum(machine):
    machine.host = host_reading(cores=(CoreTimes(5.0, 50.0), CoreTimes(1.0, 50.0)))
    with machine.monitor() as monitor:
        machine.step(monitor, 2.0, host_reading(cores=(CoreTimes(7.0, 52.0), CoreTimes(1.5, 52.0))))
        machine.step(monitor, 2.0, host_reading(cores=(CoreTimes(7.0, 54.0), CoreTimes(1.4, 54.0))))  # back by a tick
    usage = monitor.usage
    assert [core.mean for core in usage.cores] == [50.0, 12.5]
    assert [core.max for core in usage.cores] == [100.0, 25.0]
    assert usage.machine_cpu.max == 100 * 2.5 / 4
    assert usage.machine_cpu.min == 0.0


def test_cores_that_come_are_unknown_at_first(machine):
    machine.host = host_reading(cores=(CoreTimes(0.0, 0.0),))
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0, host_reading(cores=(CoreTimes(1.0, 1.0),) * 2))
        machine.step(monitor, 1.0, host_reading(cores=(CoreTimes(1.5, 2.0),) * 2))
    assert [core.mean for core in monitor.usage.cores] == [50.0, 50.0]
    assert (monitor.usage.machine_cpu.known, monitor.usage.machine_cpu.total) == (1, 2)


def test_children_come_and_go(machine):
    """One there before, with CPU time of its own; one born in the run; one number used twice."""
    machine.host = host_reading(children=(child(7, cpu_s=50.0),))
    with machine.monitor() as monitor:
        machine.step(monitor, 2.0, host_reading(children=(child(7, 51.0), child(8, 0.75, age_s=1.0, created=2.0))))
        machine.step(monitor, 2.0, host_reading(children=(child(8, 2.75, age_s=3.0, created=2.0),)))
        machine.step(monitor, 2.0, host_reading(children=(child(8, 0.5, age_s=1.0, created=3.0, name="other"),)))
    found = {(each.pid, each.name, each.cpu_s, each.ended) for each in monitor.usage.children}
    assert found == {(7, "worker", 1.0, True), (8, "worker", 2.75, True), (8, "other", 0.5, False)}
    by_cpu = {each.cpu_s: each for each in monitor.usage.children}
    assert by_cpu[1.0].cpu.mean == 50.0
    assert by_cpu[2.75].cpu.mean == pytest.approx(100 * 2.75 / 3)  # since its birth, a second into the run
    assert by_cpu[0.5].cpu.mean == 50.0
    assert monitor.usage.children_cpu.mean == pytest.approx(100 * (1.0 + 2.75 + 0.5) / 6)
    assert monitor.usage.children_memory.max == 2 * MIB


def test_a_child_of_a_few_clock_ticks_has_no_share(machine):
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0, host_reading(children=(child(8, cpu_s=0.01, age_s=0.005),)))
        machine.step(monitor, 1.0, host_reading(children=()))
    (found,) = monitor.usage.children
    assert (found.cpu.mean, found.cpu.reason) == (None, "too short a time for the system's clock ticks")
    assert found.cpu_s == 0.01


def test_children_that_cannot_be_read_are_not_zero(machine):
    no = Unknown("not permitted")
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0, host_reading(children=(child(7, no, memory=no), child(8, 0.5, age_s=0.9))))
        machine.step(monitor, 1.0, host_reading(children=no))
    usage = monitor.usage
    assert (usage.children_cpu.mean, usage.children_memory.mean) == (None, None)
    assert {(each.pid, each.cpu_s) for each in usage.children} == {(7, None), (8, 0.5)}
    assert "not permitted" in str(usage)


def test_children_without_end_take_no_more_memory(machine):
    with machine.monitor() as monitor:
        for number in range(500):
            born = child(number, cpu_s=number / 1000, age_s=0.9, created=float(number))
            machine.step(monitor, 1.0, host_reading(children=(born,)))
        machine.step(monitor, 1.0, host_reading())
    usage = monitor.usage
    assert (len(usage.children), usage.other_children) == (MOST_ENDED, 500 - MOST_ENDED)
    assert {each.pid for each in usage.children} == set(range(500 - MOST_ENDED, 500))  # those that took most
    assert "and 492 more" in str(usage)


def test_a_device_named_later_keeps_what_was_counted_before(machine):
    """C114: first only CUDA's number is known, then torch says which card it is."""
    machine.gpus = GpuReadings((gpu_reading(Unknown("order"), key="cuda:0", name=None),))
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0)
        machine.step(monitor, 1.0, gpus=GpuReadings((gpu_reading(30.0, key="GPU-b"),)))
    (gpu,) = monitor.usage.gpu
    assert (gpu.utilization.known, gpu.utilization.total, gpu.utilization.mean) == (1, 2, 30.0)
    assert gpu.label == "cuda:0 H100"


def test_a_source_that_raises_never_reaches_the_code(caplog):
    """C110: training goes on, and the reason is there."""

    def fail(**_):
        raise RuntimeError("the driver\nis gone")

    caplog.set_level(logging.INFO, logger="hybridrl")
    clock = FakeClock(tick_ns=1000)
    broken = SimpleNamespace(open=fail, read=fail, close=fail)
    with Monitor(None, host=broken, gpus=broken, clock=clock, cpu_clock=clock) as monitor:
        monitor.sample_now()
    usage = monitor.usage
    assert (usage.cpu_percent, usage.process_cpu.reason) == (None, "RuntimeError: the driver is gone")
    assert (usage.gpu, usage.gpu_reason) == ((), "RuntimeError: the driver is gone")
    assert len(caplog.records) == 1


def test_the_thread_samples_by_itself_and_goes_with_the_run(machine):
    sampled, reads = threading.Event(), []

    def read(*, last=False):
        reads.append(threading.current_thread().name)
        machine.clock.advance(1.0)
        if len(reads) > 5:
            sampled.set()
        return host_reading(cpu_s=len(reads) / 2)

    with machine.monitor(interval_s=1e-4, host=SimpleNamespace(read=read)) as monitor:
        assert [each.daemon for each in threading.enumerate() if each.name == "hybridrl-monitor"] == [True]
        assert sampled.wait(10)
    assert "hybridrl-monitor" not in {each.name for each in threading.enumerate()}
    assert reads[0] == reads[-1] == threading.current_thread().name  # the first and the last are the caller's
    assert monitor.usage.samples >= 5


def test_an_exception_in_the_body_passes_and_leaves_no_thread(machine):
    monitor = machine.monitor(interval_s=60.0)
    with pytest.raises(KeyError, match="mine"), monitor:
        raise KeyError("mine")
    assert not monitor.running
    assert "hybridrl-monitor" not in {each.name for each in threading.enumerate()}
    assert machine.opened == machine.closed == 1


def test_where_no_thread_can_be_started_the_ends_are_sampled(machine, monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    caplog.set_level(logging.INFO, logger="hybridrl")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with machine.monitor(interval_s=0.5) as monitor:
        machine.clock.advance(2.0)
    assert monitor.usage.samples == 1
    assert "RuntimeError: can't start new thread" in caplog.text


def test_starting_twice_and_stopping_twice_are_refused_in_one_line(machine):
    monitor = machine.monitor()
    with pytest.raises(ValueError, match=re.escape("never ran: start() it, or put the code inside a with block")):
        _ = monitor.usage
    with monitor:
        with pytest.raises(ValueError, match=re.escape("running already: stop() it first, or use another")), monitor:
            pass
        assert monitor.running  # the outer one goes on
    for late in (monitor.stop, monitor.sample_now):
        with pytest.raises(ValueError, match=re.escape("not running: start() it first")):
            late()


@pytest.mark.parametrize("interval_s", [0, -1.0, float("nan"), float("inf")])
def test_impossible_intervals(interval_s):
    with pytest.raises(ValueError, match="expected seconds above 0, or None"):
        Monitor(interval_s)


def test_a_second_run_begins_anew(machine):
    monitor = machine.monitor()
    monitor.start()
    machine.step(monitor, 1.0, host_reading(cpu_s=1.0))
    assert monitor.usage.cpu_percent == 100.0  # also while it runs
    monitor.stop()
    monitor.start()
    machine.step(monitor, 2.0, host_reading(cpu_s=1.5))
    monitor.stop()
    assert (monitor.usage.cpu_percent, monitor.usage.duration_s, monitor.usage.samples) == (25.0, 2.0, 1)


def test_the_monitor_states_its_own_cost(machine):
    """Each reading of this clock takes 1 ms: a sample has two, one at its beginning and one at its end."""
    with machine.monitor(cpu_clock=FakeClock(tick_ns=1_000_000)) as monitor:
        machine.step(monitor, 1.0)
        machine.step(monitor, 1.0)
        machine.clock.advance(0.5)
    usage = monitor.usage
    assert (usage.samples, usage.sampling_cpu_s, usage.start_cpu_s) == (3, 0.003, 0.001)
    assert usage.cpu_s_per_sample == 0.001
    assert usage.sampling_share == 0.003 / 2.5
    assert "1.00 ms of CPU time each, 0.1% of one core" in str(usage)


def full_usage(machine):
    workers = tuple(child(pid, pid / 10, age_s=0.9, created=float(pid)) for pid in range(20))
    cores = tuple(CoreTimes(float(number), 20.0) for number in range(12))
    machine.host = host_reading(cores=(CoreTimes(0.0, 0.0),) * 12)
    machine.gpus = GpuReadings((gpu_reading(),))
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0, host_reading(cpu_s=1.5, cores=cores, children=workers))
    return monitor.usage


def test_a_usage_survives_json(machine):
    usage = full_usage(machine)
    values = json.loads(json.dumps(usage.to_dict(), allow_nan=False))
    assert Usage.from_dict(values) == usage
    assert values["cpu_percent"] == 150.0
    with pytest.raises(ValueError, match="not a usage, no key 'cores'"):
        Usage.from_dict({key: value for key, value in values.items() if key != "cores"})
    with pytest.raises(ValueError, match=r"not a usage, .*'colour'"):
        Usage.from_dict({**values, "colour": "blue"})


def test_the_table_names_the_busiest_and_says_what_a_percentage_is(machine):
    from rich.console import Console

    usage = full_usage(machine)
    shown = str(usage)
    out = StringIO()
    Console(file=out, width=200).print(usage.table())
    for text in (shown, out.getvalue()):
        assert re.search(r"CPU, this process\s+150.0%", text)
        assert "100% is one core busy" in text
        assert re.search(r"core 11\s+55.0%", text)
        assert "core 3" not in text
        assert "and 4 less busy" in text
        assert "19 worker" in text
        assert "and 12 more" in text
        assert "GPU cuda:0 H100" in text
        assert re.search(r"utilization\s+50.0%", text)
        assert "share of time with any kernel running" in text
        assert re.search(r"memory, all processes \(of 80.0 MiB\)\s+3.0 MiB", text)
    assert "hybridrl-table" in usage._repr_html_()


def test_without_a_gpu_the_reason_is_shown(machine):
    with machine.monitor() as monitor:
        machine.step(monitor, 1.0)
    assert monitor.usage.gpu_reason == "no NVML; to read an NVIDIA GPU, install hybridrl[gpu]"
    assert "GPU unknown: no NVML; to read an NVIDIA GPU, install hybridrl[gpu]" in str(monitor.usage)
    assert "unknown because" not in str(monitor.usage)  # no column for reasons where there are none


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (3 * MIB, "3.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (3 * 2**50, "3,072.0 TiB"),
    ],
)
def test_bytes_are_in_units_of_1024(value, text):
    """C111: the units."""
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": "GiB"}, "unit='GiB': expected one of %, B"),
        ({"known": 3, "total": 2}, "known=3 of total=2"),
        ({"mean": 0.0}, "known=0, mean=0.0"),
        ({"known": 1, "total": 1}, "known=1, mean=None"),
    ],
)
def test_impossible_summaries(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Summary(**{"unit": "%", **changes})


# The real machine


def busy(ready, go_on):
    ready.set()
    while not go_on.is_set():
        sum(range(1000))


def test_a_busy_child_of_this_process_is_seen_busy():
    context = multiprocessing.get_context("spawn")
    ready, go_on = context.Event(), context.Event()
    worker = context.Process(target=busy, args=(ready, go_on), daemon=True)
    with Monitor(0.05) as monitor:
        worker.start()
        try:
            assert ready.wait(30)
            deadline = time.monotonic() + 20
            while not any(each.pid == worker.pid and each.cpu_s for each in monitor.usage.children):
                assert time.monotonic() < deadline
                worker.join(0.02)
        finally:
            go_on.set()
            worker.join()
    (found,) = [each for each in monitor.usage.children if each.pid == worker.pid]
    assert found.cpu.mean > 0
    assert found.memory.mean > MIB
    assert monitor.usage.children_cpu.mean > 0
    assert monitor.usage.process_memory.mean > MIB
    assert len(monitor.usage.cores) == psutil.cpu_count()
    assert monitor.usage.gpu or monitor.usage.gpu_reason
    assert monitor.usage.sampling_cpu_s > 0


def test_torch_is_neither_imported_nor_initialized():
    code = (
        "import sys; from hybridrl.profiling import Monitor\n"
        "with Monitor(None) as monitor: monitor.sample_now()\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "with monitor: monitor.sample_now()\n"
        "assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def proc_tree(folder, children):
    """A /proc that has, by process and thread, the numbers of the children."""
    for (pid, thread), found in children.items():
        place = folder / f"{pid}/task/{thread}"
        place.mkdir(parents=True)
        (place / "children").write_text(" ".join(map(str, found)) + " ")
    return folder


def test_children_of_every_thread_and_theirs(tmp_path):
    tree = proc_tree(tmp_path, {(1, 1): [2], (1, 9): [3, 4], (2, 2): [5], (5, 5): [], (3, 3): []})
    assert set(_descendants(tree, 1)) == {2, 3, 4, 5}  # 4 has ended since
    assert set(_descendants(tree, 99)) == set()


@pytest.mark.parametrize("proc", [None, "without lists of children"])
def test_a_grandchild_is_found_with_and_without_the_lists_of_linux(proc, tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as started:
        try:
            host = PsutilHost() if proc is None else PsutilHost(proc=tmp_path)
            deadline = time.monotonic() + 20
            while len(psutil.Process(started.pid).children()) < 1:
                assert time.monotonic() < deadline
            wanted = {each.pid for each in psutil.Process().children(recursive=True)}
            assert len(wanted) >= 2
            if proc is None:
                assert {each.pid for each in host.read(last=True).children} == wanted
            else:
                host._search()
                assert set(host._children) == wanted
        finally:
            started.communicate(b"\n")


def test_looking_for_children_takes_a_small_share_of_a_core(tmp_path, monkeypatch):
    """It is put off for four hundred times as long as it took, but done at the end in any case."""
    now, cpu, searches = [0.0], [0.0], []

    def search():
        searches.append(now[0])
        cpu[0] += 0.01

    host = PsutilHost(proc=tmp_path, clock=lambda: now[0], cpu_clock=lambda: cpu[0])
    monkeypatch.setattr(host, "_search", search)
    for second in range(10):
        now[0] = float(second)
        host.read()
    now[0] = 9.5
    host.read(last=True)
    assert searches == [0.0, 4.0, 8.0, 9.5]


def test_what_the_system_refuses_is_unknown(monkeypatch):
    def refuse(*_, **__):
        raise psutil.AccessDenied

    host = PsutilHost()
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    monkeypatch.setattr(psutil, "cpu_times", refuse)
    monkeypatch.setattr(host._process, "memory_info", refuse)
    reading = host.read()
    no = Unknown("not permitted")
    assert (reading.machine_memory, reading.machine_memory_total, reading.cores) == (no, no, no)
    assert reading.process_memory == no
    assert reading.process_cpu_s > 0


def test_waiting_for_disks_is_not_busy_and_guests_count_once():
    times = psutil._pslinux.scputimes if sys.platform == "linux" else None
    if times is None:
        pytest.skip("the fields are Linux's")
    core = _core(times(*range(1, 1 + len(times._fields))))
    given = dict(zip(times._fields, range(1, 1 + len(times._fields)), strict=True))
    busy_s = sum(given[name] for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    assert core == CoreTimes(busy_s, busy_s + given["idle"] + given["iowait"])


# torch, which may be absent, half imported, or initialized


def fake_torch(**changes):
    absent = SimpleNamespace(is_initialized=lambda: False)
    values = {
        "compile": None,
        "cuda": absent,
        "xpu": absent,
        "backends": SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
        "version": SimpleNamespace(hip=None),
    }
    return SimpleNamespace(**{**values, **changes})


def fake_cuda(**properties):
    return SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="H100", total_memory=80 * MIB, **properties),
        memory_stats_as_nested_dict=lambda index: {"reserved_bytes": {"all": {"current": 5 * MIB}}},
    )


@pytest.mark.parametrize("torch", [None, SimpleNamespace(cuda=None), fake_torch()])
def test_a_torch_that_has_initialized_nothing_has_no_devices(torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch_devices() == ()


def test_a_cuda_device_as_torch_tells_it(monkeypatch):
    cuda = fake_cuda(uuid="aa-bb", pci_domain_id=0, pci_bus_id=59, pci_device_id=0)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(cuda=cuda))
    (device,) = torch_devices()
    assert (device.type, device.index, device.nvidia) == ("cuda", 0, True)
    assert (device.uuid, device.bus) == ("aa-bb", (0, 59, 0))
    assert (device.memory, device.memory_total) == (5 * MIB, 80 * MIB)


def test_amd_and_an_older_torch(monkeypatch):
    torch = fake_torch(cuda=fake_cuda(), version=SimpleNamespace(hip="6.2"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    (device,) = torch_devices()
    assert (device.nvidia, device.uuid, device.bus) == (False, None, None)


def test_xpu_and_mps_tell_their_memory(monkeypatch):
    xpu = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="Arc", total_memory=16 * MIB),
        memory_reserved=lambda index: 2 * MIB,
    )
    mps = SimpleNamespace(driver_allocated_memory=lambda: 3 * MIB)
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", fake_torch(xpu=xpu, mps=mps, backends=backends))
    found = {device.type: (device.memory, device.memory_total) for device in torch_devices()}
    assert found == {"xpu": (2 * MIB, 16 * MIB), "mps": (3 * MIB, Unknown("torch does not say"))}
