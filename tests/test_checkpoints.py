"""Checkpoint files: whole or not at all, readable by anyone, executable by no one."""

import ast
import errno
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hybridrl import checkpoints
from hybridrl.profiling.clock import FakeClock

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b.c": torch.tensor(7), "bytes": torch.arange(5, dtype=torch.uint8)}


def one_line(error: pytest.ExceptionInfo[BaseException], path: Path) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path / "agent.safetensors", TENSORS, {"number": 1.5, "nested": {"none": None}})
    tensors, data = checkpoints.read(path)
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert data == {"format": checkpoints.FORMAT, "number": 1.5, "nested": {"none": None}}
    assert [p.name for p in tmp_path.iterdir()] == ["agent.safetensors"]


def test_views_and_tensors_with_gradients_are_written(tmp_path: Path) -> None:
    """Flat parameters share memory, which the format refuses."""
    base = torch.arange(8.0, requires_grad=True)
    path = checkpoints.write(tmp_path / "x", {"left": base[:4], "right": base[2:], "t": base.view(2, 4).T}, {})
    assert torch.equal(checkpoints.read(path)[0]["t"], base.detach().view(2, 4).T)


def test_the_file_is_a_safetensors_file(tmp_path: Path) -> None:
    """A length, JSON, numbers: its bytes hold no pickle, and other tools can read it."""
    path = checkpoints.write(tmp_path / "x", TENSORS, {"k": "v"})
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    assert len(raw) == 8 + size + end
    with safe_open(path, framework="np") as file:
        assert sorted(file.keys()) == sorted(TENSORS)


def test_no_module_of_the_library_can_unpickle() -> None:
    """Neither pickle nor its users (torch.load, numpy with allow_pickle, shelve, joblib) are named anywhere."""
    root = Path(inspect.getfile(checkpoints)).parent
    banned_modules = {"pickle", "cloudpickle", "dill", "shelve", "joblib", "marshal"}
    found = []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            loads = isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save")
            allows = isinstance(node, ast.keyword) and node.arg == "allow_pickle"
            if loads or allows or banned_modules & {name.partition(".")[0] for name in names}:
                found.append(f"{path.name}:{getattr(node, 'lineno', '?')}")
    assert found == []


def test_an_old_file_survives_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoints.write(tmp_path / "x", TENSORS, {"old": True})

    def full(tensors: Any, target: Path, header: Any) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(OSError, match=r"can't be written .*No space left on device") as error:
        checkpoints.write(path, TENSORS, {"old": False})
    one_line(error, path)
    assert checkpoints.read(path)[1]["old"] is True
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What safetensors says to it has a type of its own. (An administrator's tests can write anywhere.)"""
    real = checkpoints.save_file
    monkeypatch.setattr(checkpoints, "save_file", lambda t, _, h: real(t, tmp_path / "missing" / "x", h))
    with pytest.raises(OSError, match="can't be written") as error:
        checkpoints.write(tmp_path / "x", TENSORS, {})
    one_line(error, tmp_path / "x")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*; create it first") as error:
        checkpoints.write(tmp_path / "no" / "x", TENSORS, {})
    one_line(error, tmp_path / "no" / "x")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; give the path of a file"):
        checkpoints.write(tmp_path, TENSORS, {})
    with pytest.raises(ValueError, match="is a folder; give the path of a file") as error:
        checkpoints.read(tmp_path)
    one_line(error, tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r": no such file$") as error:
        checkpoints.read(tmp_path / "x")
    one_line(error, tmp_path / "x")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = checkpoints.write(tmp_path / "x", TENSORS, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"not a readable checkpoint \(.*\); was it cut short\?") as error:
        checkpoints.read(path)
    one_line(error, path)


@pytest.mark.parametrize("content", [b"not a checkpoint at all", b"\x80\x04K\x01.", b"\xff" * 64])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="not a readable checkpoint") as error:
        checkpoints.read(tmp_path / "x")
    one_line(error, tmp_path / "x")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "a safetensors file, but not a checkpoint of this library"),
        ({"format": "pt"}, "a safetensors file, but not a checkpoint of this library"),
        ({"hybridrl": "{"}, "its header is damaged"),
        ({"hybridrl": "[]"}, "format None, expected 1"),
        ({"hybridrl": '{"format": 2}'}, "format 2, expected 1; update hybridrl"),
    ],
)
def test_a_header_that_is_not_ours_is_refused(tmp_path: Path, header: dict[str, str] | None, message: str) -> None:
    tensors: dict[str, Tensor] = {"a": torch.zeros(1)}
    save_file(tensors, tmp_path / "x", header)
    with pytest.raises(ValueError, match=message) as error:
        checkpoints.read(tmp_path / "x")
    one_line(error, tmp_path / "x")


def test_infinity_is_not_written(tmp_path: Path) -> None:
    """JSON has no word for it; a reader of another language would fail."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        checkpoints.write(tmp_path / "x", TENSORS, {"x": float("inf")})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"net.a": torch.zeros(2)}, r"x: net\.b is missing in the file and \[3\] here"),
        ({"net.a": torch.zeros(2), "net.b": torch.zeros(4)}, r"net\.b is \[4\] in the file and \[3\] here"),
        (
            {"net.a": torch.zeros(2), "net.b": torch.zeros(3), "net.c": torch.zeros(1)},
            r"net\.c is \[1\] in the file and missing here",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(found: dict[str, Tensor], message: str) -> None:
    expected = {"net.a": torch.zeros(2), "net.b": torch.zeros(3)}
    with pytest.raises(ValueError, match=message):
        checkpoints.check_same_shapes(found, expected, "x")


def test_tensors_that_fit_are_taken() -> None:
    same = {"net.a": torch.zeros(2)}
    checkpoints.check_same_shapes(same, dict(same), "x")


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    """A process number that no process has; a living writer's file is left alone."""
    dead, living = tmp_path / ".a.4194999.1.partial", tmp_path / f".a.{os.getpid()}.1.partial"
    for left in (dead, living):
        left.touch()
    checkpoints.write(tmp_path / "a", {}, {})
    assert not dead.exists()
    assert living.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")
def test_a_checkpoint_is_as_public_as_any_file_and_goes_through_links(tmp_path: Path) -> None:
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.touch()
    link.symlink_to(tmp_path / "a")
    checkpoints.write(link, {}, {})
    assert link.is_symlink()
    assert (tmp_path / "a").stat().st_mode == plain.stat().st_mode
    checkpoints.read(tmp_path / "a")


# When to save, and what was saved


def test_a_save_is_due_every_so_many_updates() -> None:
    schedule = checkpoints.Schedule(3, clock=FakeClock())
    assert [schedule.is_due() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_a_save_is_due_after_so_many_seconds_too() -> None:
    """Counted from the save before it, whichever made it due."""
    clock = FakeClock()
    schedule = checkpoints.Schedule(3, 10.0, clock=clock)
    seconds = (4, 5, 1, 1, 9, 1, 10, 10, 10, 1, 1, 1)
    due = []
    for passed in seconds:
        clock.advance(seconds=passed)
        due.append(schedule.is_due())
    assert due == [False, False, True, False, True, False, True, True, True, False, False, True]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_seconds_between_saves_are_checked(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"checkpoint_seconds=.*: expected a number above 0, or None"):
        checkpoints.Schedule(1, seconds)


def test_the_last_checkpoint_is_named_with_its_step(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert checkpoints.last_saved(path) == f"no checkpoint yet at {path}"
    checkpoints.write(path, TENSORS, {"timesteps": 12_345})
    assert checkpoints.last_saved(path) == f"last checkpoint: {path} (step 12,345)"
    path.write_bytes(b"?")
    assert checkpoints.last_saved(path).startswith(f"last checkpoint: {path}: not a readable checkpoint")


def test_reading_goes_through_the_host_whatever_the_device(tmp_path: Path) -> None:
    """C64: the file names no device, and what is read is on the host even where another one is the default."""
    path = checkpoints.write(tmp_path / "x", TENSORS, {})
    header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
    assert b"cpu" not in header
    assert b"cuda" not in header
    with torch.device("meta"):
        tensors, _ = checkpoints.read(path)
    assert {tensor.device.type for tensor in tensors.values()} == {"cpu"}
    assert torch.equal(tensors["a"], TENSORS["a"])
