"""What the commands print, and what they share."""

import json
import math
import sys
from typing import Any


def print_json(data: Any) -> None:
    """One JSON value on stdout."""
    print(json.dumps(finite(data), indent=2, allow_nan=False))


def finite(data: Any) -> Any:
    """JSON knows no NaN: unknown is null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data


def print_table(table: Any) -> None:
    """A rich table on stdout."""
    from rich.console import Console

    Console().print(table)


def one_line_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """A warning as one line on stderr, in place of ``warnings.showwarning``."""
    print(f"hybridrl: warning: {' '.join(str(message).split())}", file=sys.stderr)


def set_threads(threads: int) -> None:
    """Let torch compute with so many threads."""
    import torch

    if not 1 <= threads <= 1024:
        raise ValueError(f"--threads {threads}: expected at least 1, at most 1024")
    torch.set_num_threads(threads)
