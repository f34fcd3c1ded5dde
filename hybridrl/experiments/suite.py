"""Many experiments by one command, within a budget of time: each in a process of its own, each kept when it is done.

A process of its own starts as if the experiment were run alone, can be stopped when the budget is spent, and takes
nothing with it when it crashes: a device that was left in error serves the next one again.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal, get_args

from hybridrl.experiments import scale
from hybridrl.experiments.commit import commit_of, source_folder
from hybridrl.experiments.machine import describe
from hybridrl.experiments.outcome import Experiment, command
from hybridrl.experiments.record import plain
from hybridrl.experiments.records import read_record, records_folder

BUDGET_S = 600.0
SHORTEST_S = 5.0
"""With less left than this, an experiment isn't begun: loading torch takes about as long."""
Status = Literal["recorded", "kept", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a process ended."""

    code: int | None
    """Its exit code, or None where it was stopped at its limit."""
    record: Path | None = None
    """What it wrote."""
    error: str = ""
    """What it said on stderr."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one experiment."""

    name: str
    claims: tuple[str, ...]
    status: Status
    """Recorded now; kept from before; failed; or skipped, for want of time."""
    seconds: float
    record: Path | None
    note: str = ""
    """Why there is no record, and how to get one."""

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        record = None if self.record is None else str(self.record)
        return {**asdict(self), "claims": list(self.claims), "record": record}

    def __str__(self) -> str:
        claims = f" ({', '.join(self.claims)})" if self.claims else ""
        where = "" if self.record is None else f": {self.record}"
        note = f": {self.note}" if self.note else ""
        return f"{self.name}{claims} {self.status}, {self.seconds:.1f} s{where}{note}"


Run = Callable[[Experiment, float], Finished]
"""Runs one experiment for at most so many seconds."""
Find = Callable[[Experiment], Path | None]
"""Finds the record that an experiment has already."""


def run(
    experiments: Sequence[Experiment],
    *,
    run_one: Run,
    find: Find,
    budget_s: float = BUDGET_S,
    tell: Callable[[str], None] = print,
    clock: Callable[[], float] = perf_counter,
) -> list[Entry]:
    """Run experiments in order; one that fails doesn't stop the others.

    Args:
        experiments: which.
        run_one: runs one of them.
        find: what is found isn't run again.
        budget_s: seconds for all. What is running when they are over is stopped, and the rest skipped.
        tell: is given a line before and after each.
        clock: seconds.

    Raises:
        ValueError: the budget is below zero, or not finite.
    """
    if not 0 <= budget_s < float("inf"):
        raise ValueError(f"a budget of {budget_s} s: expected 0 or more, such as {BUDGET_S:.0f}")
    end, entries = clock() + budget_s, list[Entry]()
    for number, experiment in enumerate(experiments, start=1):
        tell(f"[{number}/{len(experiments)}] {experiment.name}: {experiment.question}")
        start = clock()
        status, record, note = _attempt(experiment, run_one, find, end - start)
        seconds = clock() - start
        entries.append(_entry(experiment, status, seconds, record, note))
        tell(str(entries[-1]))
    return entries


def summary(entries: Sequence[Entry], unanswered: Sequence[str]) -> list[str]:
    """What became of all, in lines: how many of each and their time, then each that has no record."""
    counts = [f"{sum(entry.status == status for entry in entries)} {status}" for status in get_args(Status)]
    lines = [f"{', '.join(counts)}; {sum(entry.seconds for entry in entries):.1f} s in all"]
    lines += [str(entry) for entry in entries if entry.record is None]
    if unanswered:
        lines.append(f"no experiment of this version answers {', '.join(unanswered)}")
    return lines


def kept_record(experiment: Experiment, folder: Path | None) -> Path | None:
    """The record of an experiment that this machine, scale and commit left, or None.

    The same machine has the same hardware, versions and threads. A commit that isn't known, or from which the source
    differed, is never the same. A file that can't be read is no record.
    """
    commit, dirty = commit_of(source_folder())
    if commit is None or dirty is not False:
        return None
    wanted = (scale.current(), plain(describe().to_dict(), "machine"), commit, False)
    for path in _files(experiment, folder):
        try:
            record = read_record(path)
        except (ValueError, OSError):
            continue
        if (record.scale, record.machine, record.commit, record.dirty) == wanted:
            return path
    return None


def in_own_process(
    experiment: Experiment, limit_s: float, *, folder: Path | None, threads: int, quiet: bool
) -> Finished:
    """Run one experiment by the command line.

    Args:
        experiment: of the catalogue.
        limit_s: seconds, after which it is stopped.
        folder: for its record; None is the usual one.
        threads: torch's.
        quiet: leave its table out. What it says on stderr follows on stderr, when it has ended.
    """
    words = ["-m", "hybridrl", "reproduce", "--experiment", experiment.name, "--scale", scale.current()]
    words += ["--threads", str(threads), "--records", str(records_folder(folder))]
    before = _times(experiment, folder)
    try:
        done = subprocess.run(
            [sys.executable, *words],
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finished(code=None)
    sys.stderr.write(done.stderr)
    written = [path for path, time in _times(experiment, folder).items() if before.get(path) != time]
    return Finished(code=done.returncode, record=next(iter(written), None), error=done.stderr)


def _attempt(experiment: Experiment, run_one: Run, find: Find, left_s: float) -> tuple[Status, Path | None, str]:
    kept = find(experiment)
    if kept is not None:
        return "kept", kept, ""
    alone = f"alone: {command(experiment.name, scale.current())}"
    if left_s < SHORTEST_S:
        return "skipped", None, f"the budget is spent; {alone}"
    finished = run_one(experiment, left_s)
    if finished.code is None:
        return "skipped", None, f"stopped after {left_s:.0f} s, when the budget was spent; {alone}"
    if finished.code == 0 and finished.record is not None:
        return "recorded", finished.record, ""
    said = [line for line in finished.error.splitlines() if line.strip()] or ["it wrote no record"]
    return "failed", None, f"exit code {finished.code}: {said[-1].strip()}; {alone}"


def _entry(experiment: Experiment, status: Status, seconds: float, record: Path | None, note: str) -> Entry:
    name, claims = experiment.name, experiment.claims
    return Entry(name=name, claims=claims, status=status, seconds=seconds, record=record, note=note)


def _files(experiment: Experiment, folder: Path | None) -> list[Path]:
    return sorted(records_folder(folder).glob(f"{experiment.name}.*.json"))


def _times(experiment: Experiment, folder: Path | None) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in _files(experiment, folder)}
