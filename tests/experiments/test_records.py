import json
import math
import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

import hybridrl
from hybridrl.experiments import commit, records
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.record import Record
from hybridrl.experiments.records import (
    Series,
    find_records,
    read_record,
    records_folder,
    stamp,
    write_record,
)

MACHINE = {"cpu": "AMD EPYC", "cores_available": 2, "accelerators": []}


@dataclass(frozen=True, kw_only=True)
class Config:
    hidden: tuple[int, ...] = (64, 64)
    rate: float = 3e-4


def example(**changes: object) -> Record:
    values: dict[str, object] = {
        "name": "ppo-cartpole-threshold",
        "claims": ("C1", "B9b"),
        "kind": "measured",
        "command": "hybridrl reproduce --claim C1",
        "series": {
            "steps to 475": Series([51_200, None, 40_960], "steps"),
            "seconds": Series([0.25, 0.5], "s"),
        },
        "config": {"seeds": [0, 1, 2]},
        "outcome": {"reached": 2},
        "notes": ("one seed never reached it",),
        "created": "2030-01-31T09:30:00Z",
        "scale": "quick",
        "machine": MACHINE,
    }
    return Record(**values | changes)  # type: ignore[arg-type]


def test_round_trip(tmp_path: Path) -> None:
    record = example(commit="abc", dirty=False)
    path = write_record(record, tmp_path)
    assert path == tmp_path / "ppo-cartpole-threshold.measured.amd-epyc-2c.quick.json"
    assert read_record(path) == record


def test_same_record_same_bytes(tmp_path: Path) -> None:
    first = write_record(example(), tmp_path / "a").read_bytes()
    backwards = dict(reversed(example().series.items()))
    second = write_record(example(series=backwards, config={"seeds": (0, 1, 2)}), tmp_path / "b").read_bytes()
    assert first == second
    assert first.endswith(b"}\n")
    assert b"\r" not in first


def test_configs_and_numpy_become_plain(tmp_path: Path) -> None:
    record = example(config={"agent": Config(), "seed": np.int64(3)}, outcome={"mean": np.float32(0.5)})
    back = read_record(write_record(record, tmp_path))
    assert back.config == {"agent": {"hidden": [64, 64], "rate": 3e-4}, "seed": 3}
    assert back.outcome == {"mean": 0.5}
    series = example(series={"x": Series(np.array([1.0, 2.0]), "s")})
    assert read_record(write_record(series, tmp_path)).series["x"].values == (1.0, 2.0)


def test_changing_the_given_config_afterwards_changes_nothing() -> None:
    config = {"seeds": [0, 1]}
    record = example(config=config)
    config["seeds"].append(2)
    assert record.config == {"seeds": [0, 1]}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float32("nan")])
@pytest.mark.parametrize("place", ["series", "config", "outcome", "machine"])
def test_not_a_number_is_refused_and_none_kept(bad: float, place: str) -> None:
    """Unknown is None: a not-a-number in a file is neither JSON nor an answer."""
    wrapped = {"x": Series([1.0, bad], "s")} if place == "series" else {"x": [1.0, bad]}
    with pytest.raises(ValueError, match=rf"field '{place}.x.*None") as error:
        example(**{place: wrapped})
    assert "\n" not in str(error.value)
    wrapped = {"x": Series([1.0, None], "s")} if place == "series" else {"x": [1.0, None]}
    assert getattr(example(**{place: wrapped}), place)["x"]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", "PPO CartPole", "a slug"),
        ("name", "../up", "a slug"),
        ("kind", "guessed", "one of measured, simulated, published"),
        ("command", "", "what to type"),
        ("claims", ("claim 1",), "ids such as"),
        ("claims", "C1", "a list of text"),
        ("notes", "one note", "a list of text"),
        ("series", [1, 2], "a mapping"),
        ("series", {"x": [1, 2]}, "a Series"),
        ("series", {"x": Series(["fast"], "s")}, "a number or None"),  # type: ignore[list-item]
        ("series", {"x": Series([True], "s")}, "a number or None"),
        ("config", {1: 2}, "text as keys"),
        ("config", {"path": Path("x")}, "plain values"),
        ("config", [1], "a mapping"),
        ("created", "yesterday", "UTC as"),
        ("scale", "huge", "one of smoke, quick, full"),
        ("dirty", "no", "true, false or None"),
        ("machine", None, "the machine of a measured run"),
        ("machine", "laptop", "a mapping"),
    ],
)
def test_each_mistake_names_field_expected_and_given(field: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"expected {expected}") as error:
        example(**{field: value})
    assert f"field '{field}" in str(error.value)
    assert "got" in str(error.value)
    assert "\n" not in str(error.value)


def damaged(tmp_path: Path, change: object) -> Path:
    path = write_record(example(), tmp_path)
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)  # type: ignore[operator]
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema=99), r"field 'schema': expected 1, got 99"),
        (lambda data: data.pop("schema"), r"field 'schema': expected 1, got None"),
        (lambda data: data.pop("command"), r"field 'command': missing"),
        (lambda data: data.update(comand="x"), r"field 'comand': unknown"),
        (lambda data: data.update(series=[]), r"field 'series': expected an object"),
        (
            lambda data: data["series"].update(x=[1]),
            r"field 'series.x': expected an object of values and unit",
        ),
        (lambda data: data["series"].update(x={"values": 1, "unit": ""}), r"field 'series.x.values'"),
        (lambda data: data["series"]["seconds"]["values"].append("2"), r"field 'series.seconds.values\[2\]'"),
        (lambda data: data["series"]["seconds"]["values"].append(math.nan), r"holds NaN; expected a finite"),
        (lambda data: data.update(outcome={"x": -math.inf}), r"holds -Infinity; expected a finite"),
        (lambda data: data.update(kind="guess"), r"field 'kind'"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, change: object, message: str) -> None:
    path = damaged(tmp_path, change)
    with pytest.raises(ValueError, match=message) as error:
        read_record(path)
    assert str(error.value).startswith(path.name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"\x80\x04K\x01."])
def test_no_file_that_is_not_a_record_is_read(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"^x\.json: ") as error:
        read_record(path)
    assert "\n" not in str(error.value)


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_record(example(), tmp_path)
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_record(example(notes=("new",)), tmp_path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_scale_kind_and_machine_never_replace_one_another(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [
        {},
        {"scale": "full"},
        {"kind": "simulated"},
        {"kind": "published", "machine": None},
        {"machine": MACHINE | {"cores_available": 4}},
        {"name": "ppo-cartpole"},
    ]
    paths = [write_record(example(**change), tmp_path) for change in changes]
    assert len(set(paths)) == len(changes)
    assert write_record(example(notes=("again",)), tmp_path) == paths[0]
    assert len(find_records(folder=tmp_path)) == len(changes)
    assert [record.name for record in find_records("ppo-cartpole", tmp_path)] == ["ppo-cartpole"]
    assert find_records("never-run", tmp_path) == []


def test_unstamped_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"stamp\(record\)"):
        write_record(example(created=None), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_stamp_fills_in_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDRL_SCALE", "smoke")
    east = datetime(2030, 1, 31, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    record = stamp(example(created=None, scale=None, machine=None), now=lambda: east)
    assert record.created == "2030-01-31T10:00:00Z"
    assert record.scale == "smoke"
    assert record.machine is not None
    assert record.machine["versions"]["hybridrl"] == hybridrl.__version__
    assert read_record(write_record(record, tmp_path)) == record


def test_a_published_record_is_not_given_our_machine() -> None:
    published = replace(example(created=None), kind="published", machine=None)
    assert stamp(published, now=lambda: datetime.now(UTC)).machine is None


def test_unknown_repeats_are_not_dropped_silently() -> None:
    series = Series([3.0, None, 1.0], "steps")
    assert series.unknown == 1
    with pytest.raises(ValueError, match="1 of 3 repeats unknown"):
        series.measurement()
    assert series.measurement(skip_unknown=True) == Measurement([3.0, 1.0], "steps")


def test_folder_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert records_folder(tmp_path) == tmp_path
    checkout = Path(hybridrl.__file__).resolve().parent.parent
    assert records_folder() == checkout / "book" / "records"
    monkeypatch.setattr(records, "source_folder", lambda: None)
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "book" / "chapters")
    assert records_folder() == Path.cwd() / "records"
    (tmp_path / "book" / "records").mkdir()
    assert records_folder().resolve() == (tmp_path / "book" / "records").resolve()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("hybridrl/__init__.py", "book/records/old.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "start")):
        subprocess.run((*git, *words), check=True, capture_output=True)
    return tmp_path


def test_commit_and_whether_the_source_differs(checkout: Path) -> None:
    head, dirty = commit.commit_of(checkout)
    assert head is not None
    assert len(head) == 40
    assert dirty is False
    (checkout / "book" / "records" / "new.json").write_text("{}")
    assert commit.commit_of(checkout) == (head, False)  # one record does not taint the next
    (checkout / "hybridrl" / "__init__.py").write_text("2")
    assert commit.commit_of(checkout) == (head, True)


def test_no_commit_is_unknown_not_clean(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert commit.commit_of(None) == (None, None)
    assert commit.commit_of(tmp_path_factory.mktemp("plain")) == (None, None)
    # an installation inside somebody else's repository: its commit is not ours
    inside = checkout / "venv"
    inside.mkdir()
    assert commit.commit_of(inside) == (None, None)
