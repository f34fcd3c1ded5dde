"""A suite: each experiment recorded when it is done, in time, whatever becomes of the others."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridrl import cli
from hybridrl.experiments import catalogue, suite
from hybridrl.experiments.machine import describe
from hybridrl.experiments.outcome import Experiment
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.records import read_record, write_record
from hybridrl.experiments.suite import Entry, Finished

COMMIT = "0" * 40


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """The smallest scale, also where --scale changes it; and the number of threads."""
    monkeypatch.setenv("HYBRIDRL_SCALE", "smoke")


def fake(name: str, *claims: str) -> Experiment:
    def run() -> Any:
        pytest.fail("it ran in this process")

    return Experiment(name=name, claims=claims, question=f"What of {name}?", run=run)


A, B, C = fake("a", "B1"), fake("b", "B2", "C2"), fake("c")


class Machine:
    """Runs experiments by the book: seconds that they take, how they end, and a clock that follows."""

    def __init__(self, *, takes: float = 10.0, ends: dict[str, Finished] | None = None) -> None:
        self.now, self.takes, self.ends = 0.0, takes, ends or {}
        self.ran: list[tuple[str, float]] = []
        self.told: list[str] = []

    def run(self, experiment: Experiment, limit_s: float) -> Finished:
        self.ran.append((experiment.name, limit_s))
        self.now += min(self.takes, limit_s)
        if self.takes > limit_s:
            return Finished(code=None)
        return self.ends.get(experiment.name, Finished(code=0, record=Path(f"{experiment.name}.json")))

    def suite(
        self, *experiments: Experiment, find: Callable[[Experiment], Path | None] | None = None, **more: Any
    ) -> list[Entry]:
        found = find or (lambda _: None)
        return suite.run(
            experiments, run_one=self.run, find=found, tell=self.told.append, clock=lambda: self.now, **more
        )


def test_every_experiment_runs_in_order_with_what_is_left_of_the_budget() -> None:
    machine = Machine()
    entries = machine.suite(A, B, C)
    assert machine.ran == [("a", 600.0), ("b", 590.0), ("c", 580.0)]
    assert [(e.status, e.seconds, e.record) for e in entries] == [("recorded", 10.0, Path(f"{n}.json")) for n in "abc"]
    assert machine.told[::2] == ["[1/3] a: What of a?", "[2/3] b: What of b?", "[3/3] c: What of c?"]
    assert machine.told[3] == "b (B2, C2) recorded, 10.0 s: b.json"


def test_one_that_fails_does_not_stop_the_others_and_says_why() -> None:
    broken = Finished(code=2, error="Traceback\n\nValueError: no such thing\n")
    entries = Machine(ends={"a": broken}).suite(A, B)
    assert [entry.status for entry in entries] == ["failed", "recorded"]
    assert entries[0].record is None
    assert "exit code 2: ValueError: no such thing; alone: hybridrl reproduce --experiment a" in entries[0].note


def test_success_without_a_record_is_a_failure() -> None:
    (entry,) = Machine(ends={"a": Finished(code=0)}).suite(A)
    assert entry.status == "failed"
    assert "it wrote no record" in entry.note


def test_what_no_longer_fits_is_stopped_or_skipped_with_the_command_to_run_it_alone() -> None:
    machine = Machine(takes=400.0)
    first, second, third = machine.suite(A, B, C)
    assert [first.status, second.status, third.status] == ["recorded", "skipped", "skipped"]
    assert second.note.startswith("stopped after 200 s, when the budget was spent; alone: hybridrl reproduce --exp")
    assert third.note == "the budget is spent; alone: hybridrl reproduce --experiment c --scale smoke"
    assert machine.now == 600.0
    assert machine.ran == [("a", 600.0), ("b", 200.0)]


@pytest.mark.parametrize("budget_s", [-1.0, float("nan"), float("inf")])
def test_a_budget_is_a_number_of_seconds(budget_s: float) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        Machine().suite(A, budget_s=budget_s)


def test_what_has_a_record_is_kept_even_when_no_time_is_left() -> None:
    machine = Machine()
    entries = machine.suite(A, B, find=lambda e: Path("old.json") if e is B else None, budget_s=0.0)
    assert [(entry.status, entry.record) for entry in entries] == [("skipped", None), ("kept", Path("old.json"))]
    assert machine.ran == []


def test_summary_counts_and_names_what_has_no_record() -> None:
    entries = Machine(takes=400.0).suite(A, B)
    lines = suite.summary(entries, ["B5", "C9"])
    assert lines[0] == "1 recorded, 0 kept, 0 failed, 1 skipped; 600.0 s in all"
    assert [line.split()[0] for line in lines[1:-1]] == ["b"]
    assert lines[-1] == "no experiment of this version answers B5, C9"
    assert len(suite.summary(entries[:1], [])) == 1


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout without changes."""
    monkeypatch.setattr(suite, "commit_of", lambda _: (COMMIT, False))


def written(folder: Path, **changes: Any) -> Path:
    record = Record(
        name="a",
        kind="measured",
        command="x",
        series={"t": Series([1.0], "s")},
        created="2030-01-31T09:30:00Z",
        commit=COMMIT,
        dirty=False,
        scale="smoke",
        machine=describe().to_dict(),
    )
    return write_record(dataclasses.replace(record, **changes), folder)


@pytest.mark.usefixtures("clean")
def test_a_record_of_this_machine_scale_and_commit_is_found(tmp_path: Path) -> None:
    assert suite.kept_record(A, tmp_path) is None
    path = written(tmp_path)
    assert suite.kept_record(A, tmp_path) == path
    assert suite.kept_record(B, tmp_path) is None


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "changes",
    [
        {"commit": "1" * 40},
        {"commit": None},
        {"dirty": True},
        {"dirty": None},
        {"scale": "full"},
        {"machine": {**describe().to_dict(), "threads": 77}},
        {"machine": {**describe().to_dict(), "versions": {"torch": "1.0"}}},
    ],
)
def test_a_record_of_anything_else_is_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    written(tmp_path, **changes)
    assert suite.kept_record(A, tmp_path) is None


@pytest.mark.parametrize("source", [(None, None), (COMMIT, True), (COMMIT, None)])
def test_a_source_that_is_unknown_or_changed_is_never_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: tuple[str | None, bool | None]
) -> None:
    monkeypatch.setattr(suite, "commit_of", lambda _: source)
    for commit, dirty in (source, (COMMIT, False)):
        written(tmp_path, commit=commit, dirty=dirty)
        assert suite.kept_record(A, tmp_path) is None


@pytest.mark.usefixtures("clean")
def test_a_file_that_cannot_be_read_is_no_record(tmp_path: Path) -> None:
    written(tmp_path).write_text("{", encoding="utf-8")
    assert suite.kept_record(A, tmp_path) is None


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let a process of its own run this code, with the arguments that the command would have had."""
    real = subprocess.run
    monkeypatch.setattr(
        suite.subprocess, "run", lambda words, **more: real([sys.executable, "-c", code, *words[3:]], **more)
    )


def in_own_process(folder: Path, limit_s: float = 60.0) -> Finished:
    return suite.in_own_process(A, limit_s, folder=folder, threads=3, quiet=True)


WRITE = """
import pathlib, sys
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert words["--threads"] == "3" and words["--scale"] == "smoke" and words["--experiment"] == "a", words
pathlib.Path(words["--records"], "a.measured.here.smoke.json").write_text("new and longer")
"""


def test_a_process_is_told_what_to_do_and_its_record_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.measured.away.smoke.json").write_text("of another machine", encoding="utf-8")
    child(monkeypatch, WRITE)
    finished = in_own_process(tmp_path)
    assert finished == Finished(code=0, record=tmp_path / "a.measured.here.smoke.json")


def test_a_process_that_fails_tells_its_code_and_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child(monkeypatch, "import sys; sys.exit('no luck')")
    assert in_own_process(tmp_path) == Finished(code=1, error="no luck\n")
    assert capsys.readouterr().err == "no luck\n"


def test_a_process_that_crashes_takes_nothing_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import os; os.abort()")
    finished = in_own_process(tmp_path)
    assert finished.code not in (0, None)
    assert finished.record is None


def test_a_process_is_stopped_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import threading; threading.Event().wait()")
    assert in_own_process(tmp_path, limit_s=0.5) == Finished(code=None)


def test_a_suite_has_each_of_its_experiments_once_and_says_which_claims_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "EXPERIMENTS", (C, B, A))
    monkeypatch.setattr(catalogue, "SUITES", {"some": ("C2", "B9", "B1", "B2")})
    assert catalogue.suite("some") == ((B, A), ("B9",))
    with pytest.raises(ValueError, match=r"no suite 'sum': there are some"):
        catalogue.suite("sum")


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """The placement suite made of fakes, and what runs them."""

    def make(**settings: Any) -> Machine:
        machine = Machine(**settings)
        monkeypatch.setattr(catalogue, "EXPERIMENTS", (A, B, C))
        monkeypatch.setattr(catalogue, "SUITES", {"placement": ("B1", "B2", "C4")})
        monkeypatch.setattr(suite, "in_own_process", lambda e, limit_s, **_: machine.run(e, limit_s))
        return machine

    return make


def call(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> tuple[int, str, str]:
    code = cli.main(["reproduce", "--suite", "placement", "--scale", "smoke", "--records", str(folder), *more])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_runs_a_suite(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, three: Callable[..., Machine]
) -> None:
    machine = three()
    code, out, err = call(capsys, tmp_path)
    assert (code, err) == (0, "")
    assert [name for name, _ in machine.ran] == ["a", "b"]
    assert "2 recorded, 0 kept, 0 failed, 0 skipped" in out
    assert out.splitlines()[-1] == "no experiment of this version answers C4"


def test_a_failure_ends_in_exit_code_1_after_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, three: Callable[..., Machine]
) -> None:
    machine = three(ends={"a": Finished(code=1, error="boom")})
    code, out, _ = call(capsys, tmp_path)
    assert code == 1
    assert len(machine.ran) == 2
    assert "boom" in out


def test_as_json_it_is_one_object_and_progress_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, three: Callable[..., Machine]
) -> None:
    three(ends={"b": Finished(code=1, error="boom")})
    code, out, err = call(capsys, tmp_path, "--json")
    data = json.loads(out)
    assert code == 1
    assert [entry["status"] for entry in data["experiments"]] == ["recorded", "failed"]
    assert data["experiments"][0]["record"] == "a.json"
    assert data["claims_without_experiment"] == ["C4"]
    assert "[1/2] a" in err


@pytest.mark.usefixtures("clean")
def test_it_resumes_unless_all_is_wanted_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, three: Callable[..., Machine]
) -> None:
    machine = three()
    written(tmp_path)
    assert "1 recorded, 1 kept" in call(capsys, tmp_path)[1]
    assert [name for name, _ in machine.ran] == ["b"]
    assert "2 recorded, 0 kept" in call(capsys, tmp_path, "--again")[1]


def test_the_command_s_budget_is_the_suite_s(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, three: Callable[..., Machine]
) -> None:
    limits: list[float] = []
    machine = three()
    real, machine.run = machine.run, lambda e, limit_s: limits.append(limit_s) or real(e, limit_s)  # type: ignore[method-assign]
    code, out, _ = call(capsys, tmp_path, "--budget-s", "3")
    assert code == 0
    assert "2 skipped" in out
    call(capsys, tmp_path, "--budget-s", "12.5")
    assert 12 < limits[0] <= 12.5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--suite", "plaecment"], "there are placement"),
        (["--claim", "C1", "--again"], "belong to --suite"),
        (["--claim", "C1", "--budget-s", "5"], "belong to --suite"),
        (["--suite", "placement", "--budget-s", "-5"], "0 or more"),
        (["--suite", "placement", "--claim", "C1"], "not allowed with"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], says: str) -> None:
    try:
        code = cli.main(["reproduce", *words, "--records", str(tmp_path)])
    except SystemExit as stop:
        code = int(str(stop.code))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert says in err


def test_a_real_experiment_in_a_process_of_its_own(tmp_path: Path) -> None:
    experiment = catalogue.by_name("transfers")
    finished = suite.in_own_process(experiment, 300.0, folder=tmp_path, threads=1, quiet=True)
    assert finished.code == 0, finished.error
    assert finished.record is not None
    record = read_record(finished.record)
    assert (record.name, record.claims, record.scale) == ("transfers", experiment.claims, "smoke")
