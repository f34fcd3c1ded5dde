"""One process to a folder; the dead, whose numbers may come back, keep nobody out."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hybridrl.locks import PREFIX, FolderLock

HOST = socket.gethostname()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """A process that waits to be told to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def mark(folder: Path, process: int, *, late_s: float = 0.0, host: str = HOST) -> Path:
    """What a process leaves that holds the folder."""
    started = psutil.Process(process).create_time() if psutil.pid_exists(process) else 0.0
    path = folder / f"{PREFIX}{host}.{process}.{round((started + late_s) * 1000)}"
    path.touch()
    return path


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_lock_says_who_holds_it_until_it_is_released(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert marks(tmp_path) == [f"{PREFIX}{HOST}.{os.getpid()}.{round(psutil.Process().create_time() * 1000)}"]
    lock.release()
    lock.release()
    assert marks(tmp_path) == []
    FolderLock(tmp_path).release()


def test_a_living_process_keeps_others_out(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    held = mark(tmp_path, other.pid)
    with pytest.raises(ValueError, match=rf"process {other.pid} is training there; wait for it, or end it$"):
        FolderLock(tmp_path)
    assert marks(tmp_path) == [held.name]


def test_this_process_keeps_itself_out(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(ValueError, match="this process is training there already"):
        FolderLock(tmp_path)
    assert len(marks(tmp_path)) == 1
    lock.release()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no zombies")
def test_a_killed_process_that_nobody_waited_for_keeps_nobody_out(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    """In a container without an init process, a killed run stays as a zombie."""
    held = mark(tmp_path, other.pid)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(other.pid).status() == psutil.STATUS_ZOMBIE
    FolderLock(tmp_path).release()
    assert not held.exists()


def test_a_process_that_has_gone_keeps_nobody_out(tmp_path: Path) -> None:
    mark(tmp_path, 4_194_999)
    FolderLock(tmp_path).release()
    assert marks(tmp_path) == []


@pytest.mark.parametrize("late_s", [-60.0, 60.0])
def test_a_number_that_came_back_keeps_nobody_out(tmp_path: Path, other: subprocess.Popen[str], late_s: float) -> None:
    """After a restart of the machine, another process may have the number; or this one (in a container, always)."""
    mark(tmp_path, other.pid, late_s=late_s)
    mark(tmp_path, os.getpid(), late_s=late_s / 60)
    FolderLock(tmp_path).release()
    assert marks(tmp_path) == []


def test_a_clock_that_was_set_lets_nobody_in(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    """The system tells a process's start by the clock."""
    mark(tmp_path, other.pid, late_s=1.0)
    with pytest.raises(ValueError, match="is training there"):
        FolderLock(tmp_path)


def test_of_another_machine_nothing_is_known(tmp_path: Path) -> None:
    held = mark(tmp_path, 12, host="far.away.example")
    with pytest.raises(ValueError, match=r"process 12 on far\.away\.example is training there; if it has ended"):
        FolderLock(tmp_path)
    assert marks(tmp_path) == [held.name]


def test_a_process_that_cannot_be_looked_at_is_taken_for_alive(
    tmp_path: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(tmp_path, other.pid)

    def status(process: psutil.Process) -> str:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "status", status)
    with pytest.raises(ValueError, match="is training there"):
        FolderLock(tmp_path)


@pytest.mark.parametrize("name", [".lock.", ".lock.x", ".lock.host.a.b", ".lock.host.1.-2", "run.json"])
def test_other_files_are_no_marks(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    FolderLock(tmp_path).release()
    assert marks(tmp_path) == [name]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(OSError, match=rf"{tmp_path}: can't be written to \(Permission denied\)$"):
        FolderLock(tmp_path)


def test_of_many_that_come_at_once_at_most_one_is_let_in(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hybridrl.locks import FolderLock\n"
        "print('ready', flush=True); input()\n"
        "try: FolderLock(Path(sys.argv[1])); print('in', flush=True)\n"
        "except ValueError: print('out', flush=True)\n"
        "input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    crowd = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], **pipes, text=True) for _ in range(6)]
    try:
        for process in crowd:
            assert process.stdout.readline() == "ready\n"
        for process in crowd:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [process.stdout.readline().strip() for process in crowd]
    finally:
        for process in crowd:
            process.kill()
            process.communicate()
    assert answers.count("in") <= 1
    assert answers.count("in") + answers.count("out") == 6
