"""Records: longer runs kept as JSON in ``book/records/``, with all that is needed to judge or repeat them.

A record's file is ``<name>.<kind>.<machine>.<scale>.json``, for instance
``ppo-cartpole-threshold.measured.amd-epyc-2c.full.json``: running the same command again on the same kind of
machine replaces it (git keeps the old one), a smoke run never replaces a full one, and a figure finds all
machines' records of one name with ``find_records(name)``.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from hybridrl.experiments import scale as scales
from hybridrl.experiments.commit import commit_of, source_folder
from hybridrl.experiments.machine import describe, machine_slug
from hybridrl.experiments.record import SCHEMA, Record, Series, plain

__all__ = ["Record", "Series", "find_records", "read_record", "records_folder", "stamp", "write_record"]


def stamp(record: Record, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Record:
    """The record with time, commit and scale filled in, and this machine unless the kind is ``published``."""
    commit, dirty = commit_of(source_folder())
    return replace(
        record,
        created=now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        commit=commit,
        dirty=dirty,
        scale=scales.current(),
        machine=record.machine if record.kind == "published" else describe().to_dict(),
    )


def records_folder(folder: str | Path | None = None) -> Path:
    """Where records live: ``folder`` if given, else ``book/records`` of the source checkout.

    Installed without a checkout: the nearest ``book/records`` at or above the current directory, else ``records``
    below it. Nothing is created.
    """
    if folder is not None:
        return Path(folder)
    checkout = source_folder()
    if checkout is not None:
        return checkout / "book" / "records"
    here = Path.cwd()
    above = (place / "book" / "records" for place in (here, *here.parents))
    return next((place for place in above if place.is_dir()), here / "records")


def file_name(record: Record) -> str:
    """The record's stable file name."""
    return f"{record.name}.{record.kind}.{machine_slug(record.machine)}.{record.scale}.json"


def write_record(record: Record, folder: str | Path | None = None) -> Path:
    """Write a stamped record and return its path; a reader never sees half a file.

    The same record gives the same bytes. Raises ``ValueError`` on one that was not stamped.
    """
    if record.created is None or record.scale is None:
        raise ValueError(f"record {record.name!r} has no time or scale; expected a stamped one: stamp(record)")
    text = json.dumps(_to_json(record), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    path = records_folder(folder) / file_name(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        half.write_text(text + "\n", encoding="utf-8", newline="\n")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return path


def read_record(path: str | Path) -> Record:
    """Read and check one record; ``ValueError`` in one line says which field, what was expected and given."""
    place = Path(path)
    try:
        return _from_json(json.loads(place.read_text(encoding="utf-8"), parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        raise ValueError(f"{place.name}: not JSON: {error}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{place.name}: {error}") from None


def find_records(name: str | None = None, folder: str | Path | None = None) -> list[Record]:
    """All records of one name (of any name if ``None``), every machine, kind and scale, by file name."""
    pattern = "*.json" if name is None else f"{name}.*.json"
    return [read_record(path) for path in sorted(records_folder(folder).glob(pattern))]


def _to_json(record: Record) -> dict[str, object]:
    values = {field.name: getattr(record, field.name) for field in fields(Record)}
    values["series"] = {name: asdict(series) for name, series in record.series.items()}
    checked = plain(values, "record")
    assert isinstance(checked, dict)
    return {"schema": SCHEMA, **checked}


def _from_json(data: object) -> Record:
    if not isinstance(data, dict):
        raise ValueError(f"expected an object of fields, got {type(data).__name__}")
    if data.get("schema") != SCHEMA:
        given = data.get("schema")
        raise ValueError(f"field 'schema': expected {SCHEMA}, got {given!r}: use the hybridrl that wrote it")
    values = {name: value for name, value in data.items() if name != "schema"}
    known = {field.name for field in fields(Record)}
    for problem, names in (("missing", known - values.keys()), ("unknown", values.keys() - known)):
        if names:
            raise ValueError(f"field {min(names)!r}: {problem}; expected exactly {', '.join(sorted(known))}")
    return Record(**values | {"series": _series(values["series"])})


def _series(data: object) -> dict[str, Series]:
    if not isinstance(data, dict):
        raise ValueError(f"field 'series': expected an object, got {type(data).__name__}")
    for name, entry in data.items():
        if not isinstance(entry, dict) or entry.keys() != {"values", "unit"}:
            raise ValueError(f"field 'series.{name}': expected an object of values and unit, got {entry!r:.60}")
        if not isinstance(entry["values"], list):
            raise ValueError(f"field 'series.{name}.values': expected a list, got {entry['values']!r:.60}")
    return {name: Series(entry["values"], entry["unit"]) for name, entry in data.items()}


def _refuse_constant(word: str) -> object:
    raise ValueError(f"holds {word}; expected a finite number, or null for unknown")
