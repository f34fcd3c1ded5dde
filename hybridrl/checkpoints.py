"""Checkpoints: one safetensors file, its header holding what isn't a tensor as JSON. Nothing in it can execute."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = 1
"""Version of the layout; a reader refuses what it doesn't know."""
_KEY = "hybridrl"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> Path:
    """Write a checkpoint so that a reader, or a crash at any moment, sees the old file or the new one, whole.

    Args:
        path: of the file; its folder must exist.
        tensors: by name, on any device.
        data: what JSON can hold.

    Returns:
        The path.

    Raises:
        ValueError: see :func:`check_target`.
    """
    target = check_target(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    header = {_KEY: json.dumps({"format": FORMAT, **data}, allow_nan=False)}
    try:
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, partial, header)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return target


def check_target(path: str | os.PathLike[str]) -> Path:
    """Check a path before the work is done that shall be saved there.

    Args:
        path: of the file.

    Returns:
        The path.

    Raises:
        ValueError: it is a folder, its folder doesn't exist, or may not be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"{target}: is a folder; name a file in it")
    if not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {str(target.parent)!r}; create it first")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"{target}: the folder {str(target.parent)!r} can't be written to; name another")
    return target


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
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{os.fspath(path)}: not a readable checkpoint ({error}); was it cut short?") from None
    if _KEY not in header:
        raise ValueError(f"{os.fspath(path)}: a safetensors file, but not a checkpoint of this library")
    data = json.loads(header[_KEY])
    if data.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(path)}: format {data.get('format')}, expected {FORMAT}; update hybridrl")
    return tensors, data
