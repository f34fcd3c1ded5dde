"""The schema of a record: what a run must say about itself to be worth keeping."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Literal, get_args

from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.scale import SCALES, Scale

SCHEMA = 1  # raised when a reader of the old form could misread the new one
Kind = Literal["measured", "simulated", "published"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CLAIM = re.compile(r"[A-Z][0-9]+[a-z]?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Series:
    """The raw repeats of one quantity, in order; ``None`` where one is unknown (a threshold never reached)."""

    values: tuple[float | None, ...]
    unit: str

    def __init__(self, values: Iterable[float | None], unit: str) -> None:
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "unit", unit)

    @property
    def unknown(self) -> int:
        """How many repeats are unknown."""
        return sum(value is None for value in self.values)

    def measurement(self, *, skip_unknown: bool = False) -> Measurement:
        """The repeats as a measurement; unknown ones raise unless skipping them was asked for.

        A summary of the seeds that reached a threshold flatters: say how many did not.
        """
        if self.unknown and not skip_unknown:
            known = f"{self.unknown} of {len(self.values)} repeats unknown"
            raise ValueError(f"{known}; expected all known, or skip_unknown=True (and say so)")
        return Measurement((value for value in self.values if value is not None), self.unit)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One kept run. What is ``None`` is unknown; ``stamp`` fills in time, commit, scale and machine."""

    name: str  # what was run, lower case and hyphens
    claims: tuple[str, ...] = ()  # ids in the ledger that it bears on
    kind: Kind
    command: str  # what to type to run it again
    series: Mapping[str, Series]
    config: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)  # what the run concluded from its series
    notes: tuple[str, ...] = ()
    created: str | None = None  # UTC, to the second
    commit: str | None = None
    dirty: bool | None = None  # whether the code differed from the commit
    scale: Scale | None = None
    machine: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check_words()
        for name in ("claims", "notes"):
            object.__setattr__(self, name, _strings(getattr(self, name), name))
        for claim in self.claims:
            _check(CLAIM.fullmatch(claim), "claims", "ids such as A1 or B9b", claim)
        for name in ("config", "outcome"):
            _check(isinstance(plain(getattr(self, name), name), dict), name, "a mapping", getattr(self, name))
            object.__setattr__(self, name, plain(getattr(self, name), name))
        self._check_series()
        self._check_stamp()

    def _check_words(self) -> None:
        _check(
            isinstance(self.name, str) and NAME.fullmatch(self.name),
            "name",
            "a slug such as ppo-pong",
            self.name,
        )
        _check(self.kind in KINDS, "kind", f"one of {', '.join(KINDS)}", self.kind)
        _check(isinstance(self.command, str) and self.command, "command", "what to type", self.command)

    def _check_series(self) -> None:
        _check(isinstance(self.series, Mapping), "series", "a mapping of names to Series", self.series)
        checked = {}
        for name, series in self.series.items():
            _check(isinstance(series, Series), f"series.{name}", "a Series", series)
            _check(isinstance(series.unit, str), f"series.{name}.unit", "text", series.unit)
            values = [plain(value, f"series.{name}.values[{i}]") for i, value in enumerate(series.values)]
            for index, value in enumerate(values):
                known_number = isinstance(value, int | float) and not isinstance(value, bool)
                _check(value is None or known_number, f"series.{name}.values[{index}]", "a number or None", value)
            checked[name] = Series(values, series.unit)  # type: ignore[arg-type]  # checked just above
        object.__setattr__(self, "series", checked)

    def _check_stamp(self) -> None:
        stamped = self.created is not None
        _check(
            not stamped or TIME.fullmatch(str(self.created)),
            "created",
            "UTC as 2030-01-31T09:30:00Z",
            self.created,
        )
        _check(self.commit is None or isinstance(self.commit, str), "commit", "text or None", self.commit)
        _check(self.dirty is None or isinstance(self.dirty, bool), "dirty", "true, false or None", self.dirty)
        _check(self.scale is None or self.scale in SCALES, "scale", f"one of {', '.join(SCALES)}", self.scale)
        _check(self.machine is None or isinstance(self.machine, Mapping), "machine", "a mapping", self.machine)
        ours = stamped and self.kind != "published"
        _check(not ours or self.machine, "machine", f"the machine of a {self.kind} run", self.machine)
        if self.machine is not None:
            object.__setattr__(self, "machine", plain(self.machine, "machine"))


def plain(value: object, place: str) -> object:
    """``value`` as JSON can hold it exactly; raises ``ValueError`` naming the ``place`` that it can't.

    Mappings with text keys, dataclasses, sequences, text, booleans, integers, finite floats, None, and
    anything with numpy's ``tolist``. Not-a-number and infinity are refused: unknown is None.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        _check(math.isfinite(value), place, "a finite number, or None for unknown", value)
        return value
    if isinstance(value, Mapping):
        for key in value:
            _check(isinstance(key, str), place, "text as keys", key)
        return {key: plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise ValueError(f"field {place!r}: expected plain values, got {type(value).__name__}")


def _strings(value: object, name: str) -> tuple[str, ...]:
    fine = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    _check(fine, name, "a list of text", value)
    return tuple(value)  # type: ignore[arg-type]  # checked just above


def _check(fine: object, name: str, expected: str, got: object) -> None:
    if not fine:
        raise ValueError(f"field {name!r}: expected {expected}, got {got!r:.60}")
