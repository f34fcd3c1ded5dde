"""How worker processes start: one thread each, without the main module.

Importing this loads nothing numerical: numpy and torch read their thread counts when they are loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)


def start_method() -> str:
    """Name the way to start workers; fork isn't one: it breaks threads and CUDA."""
    return "spawn" if sys.platform == "win32" else "forkserver"


def thread_variables() -> dict[str, str | None]:
    """Say what each variable shall be in a worker: as the user has set it, else 1; OMP_NUM_THREADS speaks for all."""
    default = None if "OMP_NUM_THREADS" in os.environ else "1"
    return {name: os.environ.get(name, default) for name in _THREADS}


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Start processes in here: they don't import the main module, which hides where it came from.

    They'd rerun a script that lacks its ``__main__`` guard, and load into each worker whatever the script loads.
    What they need of it must be sent by value.
    """
    main = vars(sys.modules["__main__"])
    origin: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(origin)


def enter(variables: Mapping[str, str | None], module: str, function: str, *arguments: Any) -> None:
    """Run ``module.function(*arguments)`` in this new process, with those variables (None unsets one).

    The target of a process must be this, and its arguments bytes or of the standard library: what a process is given
    is unpickled, and so imported, before it can set a variable. A fork server may have begun with other ones.
    """
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    getattr(importlib.import_module(module), function)(*arguments)
