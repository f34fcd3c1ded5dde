"""Locks: one process to a folder, and none kept out by a process that has died."""

import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

import psutil

PREFIX = ".lock."
_TOLERANCE_MS = 5_000
"""Of a process's start: an adjusted clock moves what the system says of it."""


class _Holder(NamedTuple):
    host: str
    process: int
    started_ms: int

    @property
    def file_name(self) -> str:
        return f"{PREFIX}{self.host}.{self.process}.{self.started_ms}"


class FolderLock:
    """Marks a folder as this process's, until it is released or the process dies.

    The mark is an empty file whose name says who holds the folder: host, process, and when that started, for numbers of
    processes come back. So a mark appears whole, and a dead process's can be removed without meeting a new one's.
    Of two processes that come in the same instant, both may be refused, never both let in.

    Args:
        folder: exists.

    Raises:
        ValueError: another process holds it.
        OSError: it can't be written to.
    """

    def __init__(self, folder: Path) -> None:
        mine = _Holder(socket.gethostname(), os.getpid(), _start_of(psutil.Process()))
        self._path = folder / mine.file_name
        try:
            self._path.open("xb").close()
        except FileExistsError:
            raise ValueError(f"{folder}: this process is training there already; name another folder") from None
        except OSError as error:
            raise OSError(f"{folder}: can't be written to ({error.strerror or error})") from None
        try:
            _refuse_others(folder, mine)
        except ValueError:
            self.release()
            raise

    def release(self) -> None:
        """Let others in; releasing twice is fine."""
        self._path.unlink(missing_ok=True)


def _refuse_others(folder: Path, mine: _Holder) -> None:
    for path in sorted(folder.glob(f"{PREFIX}*")):
        other = _read(path.name)
        if other is None or other == mine:
            continue
        if other.host != mine.host:
            raise ValueError(
                f"{folder}: process {other.process} on {other.host} is training there; if it has ended, remove {path}"
            )
        if _is_alive(other, mine):
            raise ValueError(f"{folder}: process {other.process} is training there; wait for it, or end it")
        path.unlink(missing_ok=True)


def _read(name: str) -> _Holder | None:
    """Who a mark's name says holds it; None for another file."""
    host, *numbers = name.removeprefix(PREFIX).rsplit(".", 2)
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        return None
    return _Holder(host, int(numbers[0]), int(numbers[1]))


def _is_alive(other: _Holder, mine: _Holder) -> bool:
    """Whether the very process still runs: not one that took its number, nor one that only awaits its burial."""
    if other.process == mine.process:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(other.process)
        try:
            started, status = _start_of(process), process.status()
        except psutil.AccessDenied:
            return True
        return abs(started - other.started_ms) <= _TOLERANCE_MS and status != psutil.STATUS_ZOMBIE
    return False


def _start_of(process: psutil.Process) -> int:
    return round(process.create_time() * 1000)
