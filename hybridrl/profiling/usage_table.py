"""How a ``Usage`` is shown: the rows of its table, and the lines beneath."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridrl.profiling.tables import Line, Sheet, share_text, text

if TYPE_CHECKING:
    from hybridrl.profiling.usage import GpuUsage, Summary, Usage

MOST_ROWS = 8
"""Of cores, and of children: the busiest are shown, the others only counted."""

_NVML = (
    "GPU utilization is the share of time with any kernel running, of any process; it does not say how much of the",
    "GPU is used, and over-reports where processes share it",
)


def sheet(usage: Usage) -> Sheet:
    """Headings, rows and footer; the column of reasons only where something is unknown."""
    lines = tuple(_lines(usage))
    reasons = any(line.cells[-1] for line in lines)
    headings: tuple[str, ...] = ("", "mean", "max", "samples", "unknown because")
    if not reasons:
        headings, lines = headings[:-1], tuple(line._replace(cells=line.cells[:-1]) for line in lines)
    return Sheet(headings, lines, tuple(_footer(usage)))


def _lines(usage: Usage) -> Iterator[Line]:
    yield _line("CPU, this process", usage.process_cpu)
    if usage.children or usage.other_children or usage.children_cpu.reason:
        yield _line("CPU, child processes", usage.children_cpu)
        yield from _children(usage)
    yield _line(f"CPU, machine ({len(usage.cores) or 'unknown'} cores)", usage.machine_cpu)
    yield from _cores(usage)
    yield _line("memory, this process", usage.process_memory)
    if usage.children or usage.other_children:
        yield _line("memory, child processes", usage.children_memory)
    yield _line(f"memory, machine{_of(usage.machine_memory, usage.machine_memory_total)}", usage.machine_memory)
    for gpu in usage.gpu:
        yield from _gpu(gpu)


def _children(usage: Usage) -> Iterator[Line]:
    busiest = sorted(usage.children, key=lambda child: child.cpu_s or 0.0, reverse=True)
    for child in busiest[:MOST_ROWS]:
        yield _line(f"{child.pid} {child.name}{' (ended)' if child.ended else ''}", child.cpu, depth=1)
    left = len(busiest[MOST_ROWS:]) + usage.other_children
    if left:
        yield Line(f"and {left:,} more", 1, ("", "", "", ""))


def _cores(usage: Usage) -> Iterator[Line]:
    busiest = sorted(enumerate(usage.cores), key=lambda item: item[1].mean or 0.0, reverse=True)[:MOST_ROWS]
    for number, core in sorted(busiest, key=lambda item: item[0]):
        yield _line(f"core {number}", core, depth=1)
    if len(usage.cores) > MOST_ROWS:
        yield Line(f"and {len(usage.cores) - MOST_ROWS} less busy", 1, ("", "", "", ""))


def _gpu(gpu: GpuUsage) -> Iterator[Line]:
    yield Line(f"GPU {gpu.label}", 0, ("", "", "", ""))
    yield _line("utilization", gpu.utilization, depth=1)
    yield _line("SM utilization", gpu.sm_utilization, depth=1)
    yield _line(f"memory, all processes{_of(gpu.memory_used, gpu.memory_total)}", gpu.memory_used, depth=1)
    yield _line("memory, this process", gpu.process_memory, depth=1)
    yield _line("memory, torch's allocator", gpu.torch_memory, depth=1)


def _line(name: str, summary: Summary, *, depth: int = 0) -> Line:
    samples = f"{summary.known}/{summary.total}"
    cells = (summary.text(summary.mean), summary.text(summary.max), samples, summary.reason or "")
    return Line(name, depth, cells)


def _of(summary: Summary, total: float | None) -> str:
    return "" if total is None else f" (of {summary.text(total)})"


def _footer(usage: Usage) -> Iterator[str]:
    each = "" if usage.interval_s is None else f", {usage.interval_s:g} s apart"
    yield f"measured: {text(usage.duration_s)} s, {usage.samples} samples{each}; processes: 100% is one core busy"
    cost = usage.cpu_s_per_sample
    yield (
        f"sampling cost {'unknown' if cost is None else f'{1e3 * cost:.2f} ms'} of CPU time each, "
        f"{share_text(usage.sampling_share)} of one core; starting {1e3 * usage.start_cpu_s:.0f} ms"
    )
    if not usage.gpu:
        yield f"GPU unknown: {usage.gpu_reason or 'no reading'}"
    if any(gpu.utilization.known for gpu in usage.gpu):
        yield from _NVML
