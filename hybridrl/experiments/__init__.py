"""The tools every experiment uses: machine, measurements, records, result tables, figures, scale.

Light to import: torch, matplotlib and rich are imported by the functions that need them.
"""

from hybridrl.experiments import figures, palette, scale
from hybridrl.experiments.machine import Accelerator, Machine, describe
from hybridrl.experiments.measurement import Comparison, Interval, Measurement, Timings, alternate, compare
from hybridrl.experiments.records import (
    Record,
    Series,
    find_records,
    read_record,
    records_folder,
    stamp,
    write_record,
)
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, cells, unknown

__all__ = [
    "NEEDS_GPU",
    "Accelerator",
    "Cell",
    "Comparison",
    "Interval",
    "Machine",
    "Measurement",
    "Record",
    "Result",
    "Row",
    "Series",
    "Timings",
    "alternate",
    "cells",
    "compare",
    "describe",
    "figures",
    "find_records",
    "palette",
    "read_record",
    "records_folder",
    "scale",
    "stamp",
    "unknown",
    "write_record",
]
