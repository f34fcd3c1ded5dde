"""Checkpoints: one safetensors file, its header holding what isn't a tensor as JSON. Nothing in it can execute."""

import contextlib
import glob
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = 1
"""Version of the layout; a reader refuses what it doesn't know."""
_KEY = "hybridrl"
_PARTIAL = ".partial"


def check_target(path: str | os.PathLike[str]) -> Path:
    """Check what can be checked before there is anything to write, so that no training is lost to a slip.

    Args:
        path: of the file; its folder must exist.

    Returns:
        The path.

    Raises:
        ValueError: there is no such folder, or the path is one.
    """
    try:
        target = Path(os.path.realpath(path))  # through a link, to the file that it names
    except TypeError:
        raise ValueError(f"path {path!r:.60}: expected the path of a file") from None
    if not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {str(target.parent)!r}; create it first")
    if target.is_dir():
        raise ValueError(f"{target}: is a folder; give the path of a file")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"{target}: the folder {str(target.parent)!r} can't be written to; name another")
    return target


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> Path:
    """Write a checkpoint so that a reader, or a crash at any moment, sees the old file or the new one, whole.

    Args:
        path: of the file; its folder must exist.
        tensors: by name, on any device.
        data: what JSON can hold.

    Returns:
        The path.

    Raises:
        ValueError: there is no such folder, or the path is one.
        OSError: the file can't be written; the old one, if any, is untouched.
    """
    target = check_target(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}{_PARTIAL}")
    header = {_KEY: json.dumps({"format": FORMAT, **data}, allow_nan=False, default=_number)}
    _remove_abandoned(target)
    try:
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, partial, header)
        with partial.open("r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
        os.replace(partial, target)
    except (SafetensorError, OSError) as error:
        raise OSError(f"{target}: can't be written ({_one_line(error)})") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return target


def save_file(tensors: Mapping[str, Tensor], path: Path, header: Mapping[str, str]) -> None:
    """Write a safetensors file; safetensors' own way makes it private, by a hidden file that a kill leaves for good."""
    path.write_bytes(save(dict(tensors), dict(header)))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint, onto the host whatever device wrote it.

    Args:
        path: of the file.

    Returns:
        Tensors by name, and the data.

    Raises:
        ValueError: the file is missing, damaged, not a checkpoint, or of a later format.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError:
        raise ValueError(f"{os.fspath(path)}: no such file") from None
    except TypeError:
        raise ValueError(f"path {path!r:.60}: expected the path of a file") from None
    except (SafetensorError, OSError) as error:
        if Path(path).is_dir():
            raise ValueError(f"{os.fspath(path)}: is a folder; give the path of a file") from None
        message = f"{os.fspath(path)}: not a readable checkpoint ({_one_line(error)}); was it cut short?"
        raise ValueError(message) from None
    return tensors, _data(os.fspath(path), header)


def last_saved(path: str | os.PathLike[str]) -> str:
    """What a run that had to stop can go back to, in words: the file at a path and the step that it was saved at."""
    if not Path(path).exists():
        return f"no checkpoint yet at {os.fspath(path)}"
    try:
        step = read(path)[1].get("timesteps")
    except ValueError as error:
        return f"last checkpoint: {error}"
    return f"last checkpoint: {os.fspath(path)}" + (f" (step {step:,})" if isinstance(step, int) else "")


class Schedule:
    """When to save: every so many updates, and at least every so many seconds.

    Args:
        every: updates between two saves.
        seconds: since the last save, after which the next update is followed by one; None: time doesn't matter.
        clock: nanoseconds.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self, every: int, seconds: float | None = None, *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        if type(every) is not int or every < 1:
            raise ValueError(f"checkpoint_every={every!r}: expected a whole number of at least 1 update")
        if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < math.inf):
            raise ValueError(f"checkpoint_seconds={seconds!r}: expected a number above 0, or None")
        self._every, self._seconds, self._clock = every, seconds, clock
        self._updates, self._saved_at = 0, clock()

    def is_due(self) -> bool:
        """Whether to save after this update; call it once for each, and save where it says so."""
        self._updates += 1
        late = self._seconds is not None and self._clock() - self._saved_at >= self._seconds * 1e9
        if not late and self._updates < self._every:
            return False
        self._updates, self._saved_at = 0, self._clock()
        return True


def check_same_shapes(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: str) -> None:
    """Check that a file's tensors are those that are wanted.

    Args:
        found: what the file holds, by name.
        expected: what belongs there.
        path: of the file, for the message.

    Raises:
        ValueError: one is missing, superfluous or of another shape; the message names the first.
    """
    theirs = {name: list(t.shape) for name, t in found.items()}
    mine = {name: list(t.shape) for name, t in expected.items()}
    for name in dict.fromkeys((*mine, *theirs)):
        if theirs.get(name) != mine.get(name):
            raise ValueError(
                f"{path}: {name} is {theirs.get(name, 'missing')} in the file and {mine.get(name, 'missing')} here; "
                "give the network it was saved with, and an undamaged file"
            )


def _data(path: str, header: Mapping[str, str]) -> dict[str, Any]:
    if _KEY not in header:
        raise ValueError(f"{path}: a safetensors file, but not a checkpoint of this library")
    try:
        data = json.loads(header[_KEY])
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: its header is damaged ({error})") from None
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise ValueError(f"{path}: format {found}, expected {FORMAT}; update hybridrl")
    return dict(data)


def _number(value: Any) -> Any:
    """NumPy's scalars as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _remove_abandoned(target: Path) -> None:
    """Remove what writers left that were killed in the middle."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{_PARTIAL}"):
        owner = left.name.split(".")[-3]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            left.unlink(missing_ok=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
