"""How much work a page or an experiment does: smoke, quick or full."""

import os
from typing import Literal, TypeVar, get_args

Scale = Literal["smoke", "quick", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)
VARIABLE = "HYBRIDRL_SCALE"

T = TypeVar("T")


def current() -> Scale:
    """The scale that ``HYBRIDRL_SCALE`` asks for; ``quick`` where it is unset or empty.

    ``smoke`` is for CI (each notebook within 30 s on 2 cores), ``quick`` for a laptop (2 minutes), ``full`` for a
    machine that may take its time. Raises ``ValueError`` on any other word.
    """
    given = os.environ.get(VARIABLE, "") or "quick"
    for scale in SCALES:
        if given == scale:
            return scale
    raise ValueError(f"{VARIABLE} is {given!r}; expected one of {', '.join(SCALES)}, or unset it")


def pick(*, smoke: T, quick: T, full: T) -> T:
    """The value for the current scale."""
    return {"smoke": smoke, "quick": quick, "full": full}[current()]
