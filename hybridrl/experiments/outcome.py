"""What an experiment is, and what it leaves."""

from collections.abc import Callable
from dataclasses import dataclass

from hybridrl.experiments.record import Record
from hybridrl.experiments.result import Result


@dataclass(frozen=True)
class Outcome:
    """A table to read, and the record behind it (not yet stamped)."""

    result: Result
    record: Record


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One runnable question. ``run`` works at the scale that ``scale.current()`` names."""

    name: str
    claims: tuple[str, ...]
    question: str
    run: Callable[[], Outcome]


def command(name: str, scale: str) -> str:
    """What to type to run an experiment again."""
    return f"hybridrl reproduce --experiment {name} --scale {scale}"
