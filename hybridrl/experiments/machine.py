"""What machine a number was measured on: hardware, versions and threads, and nothing that names its owner."""

import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import psutil

import hybridrl
from hybridrl.profiling import limits

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "unknown"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device that torch can use besides the CPU."""

    type: str  # torch's word for it
    index: int
    name: str | None
    memory_gib: float | None

    @property
    def simulated(self) -> bool:
        """Whether this is the simulated GPU, which no number may hide."""
        return self.type == "simgpu"

    def __str__(self) -> str:
        name = self.name or f"{self.type} of unknown name"
        memory = "" if self.memory_gib is None else f" {self.memory_gib:g} GiB"
        return f"{name}{memory}{' (simulated)' if self.simulated else ''}"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine this process runs on. ``None`` is unknown, and prints so; it is never a zero."""

    cpu: str | None  # model name
    cores_physical: int | None
    cores_logical: int | None
    cores_available: float | None  # what affinity and the control group leave to this process
    memory_gib: float | None  # what the control group leaves, where it limits
    accelerators: tuple[Accelerator, ...]
    accelerator_note: str  # why there are none, or ""; begins with "unknown" where torch can't list them
    platform: str
    versions: Mapping[str, str | None]  # python, torch, gymnasium, numpy, hybridrl
    threads: int | None  # torch's threads within one operation
    thread_env: Mapping[str, str | None]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for a record."""
        return asdict(self) | {"accelerators": [asdict(device) for device in self.accelerators]}

    @property
    def slug(self) -> str:
        """A short name for file names, the same on machines of the same kind, such as ``amd-epyc-2c``."""
        return machine_slug(self.to_dict())

    def one_line(self) -> str:
        """Hardware, versions and threads in one line, for captions."""
        return machine_line(self.to_dict())

    def rows(self) -> list[tuple[str, str]]:
        """What ``table`` shows, as text."""
        cores = f"{_or_unknown(self.cores_physical)} physical, {_or_unknown(self.cores_logical)} logical, "
        devices = ", ".join(map(str, self.accelerators)) or self.accelerator_note
        set_here = [f"{name}={value}" for name, value in self.thread_env.items() if value is not None]
        threads_from = ", ".join(set_here) or "no thread variable set"
        return [
            ("CPU", _or_unknown(self.cpu)),
            ("cores", cores + f"{_or_unknown(self.cores_available)} available to this process"),
            ("memory", UNKNOWN if self.memory_gib is None else f"{self.memory_gib:g} GiB"),
            ("accelerators", devices),
            ("platform", self.platform),
            *((name, _or_unknown(version)) for name, version in self.versions.items()),
            ("torch threads", f"{_or_unknown(self.threads)} ({threads_from})"),
        ]

    def table(self) -> "Table":
        """A rich table of it all."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title="This machine", show_header=False)
        for name, value in self.rows():
            table.add_row(Text(name), Text(value))
        return table


def describe() -> Machine:
    """The machine this process runs on; imports torch. Holds no host name, user name or path."""
    import torch

    accelerators, note = _accelerators()
    return Machine(
        cpu=_cpu_name(),
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count(logical=True),
        cores_available=limits.available_cores(),
        memory_gib=_memory_gib(),
        accelerators=accelerators,
        accelerator_note=note,
        platform=" ".join(filter(None, (platform.system(), platform.machine()))) or UNKNOWN,
        versions=_versions(str(torch.__version__)),
        threads=torch.get_num_threads(),
        thread_env={name: os.environ.get(name) for name in THREAD_VARIABLES},
    )


def machine_line(machine: Mapping[str, object]) -> str:
    """The caption's line from a machine as a record holds it."""
    names = list(map(str, _devices(machine)))
    cores, memory, threads = (machine.get(key) for key in ("cores_available", "memory_gib", "threads"))
    versions = machine.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    unlisted = str(machine.get("accelerator_note", UNKNOWN)).startswith(UNKNOWN)
    parts = [
        f"{_or_unknown(machine.get('cpu'))}, {_or_unknown(cores)} cores, {_or_unknown(memory)} GiB",
        " + ".join(names) or ("accelerators unknown" if unlisted else "no accelerator"),
        str(machine.get("platform", UNKNOWN)),
        ", ".join(f"{name} {_or_unknown(version)}" for name, version in known.items()),
        f"{_or_unknown(threads)} torch thread{'' if threads == 1 else 's'}",
    ]
    return " · ".join(part for part in parts if part)


def machine_slug(machine: Mapping[str, object] | None) -> str:
    """The file-name part for a machine as a record holds it; ``unknown`` for none."""
    if machine is None:
        return UNKNOWN
    cores = machine.get("cores_available")
    names = [device.name or device.type for device in _devices(machine)]
    cpu = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|@.*", " ", str(machine.get("cpu") or "unknown cpu"))
    count = f"{math.ceil(cores)}c" if isinstance(cores, int | float) else ""
    words = " ".join([cpu, count, *dict.fromkeys(names)]).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


def _devices(machine: Mapping[str, object]) -> list[Accelerator]:
    devices = machine.get("accelerators")
    return [Accelerator(**device) for device in devices] if isinstance(devices, list | tuple) else []


def _or_unknown(value: object) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:g}" if isinstance(value, float) else str(value)


def _versions(torch_version: str) -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "torch": torch_version}
    for package in ("gymnasium", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions | {"hybridrl": hybridrl.__version__}


def _accelerators() -> tuple[tuple[Accelerator, ...], str]:
    import torch

    if not hasattr(torch, "accelerator"):  # torch < 2.6
        return (), f"unknown: torch {torch.__version__} cannot list them; 2.6 or newer can"
    if not torch.accelerator.is_available():
        return (), "none that torch can use"
    device = torch.accelerator.current_accelerator()
    if device is None:
        return (), "none that torch can use"
    return tuple(_accelerator(device.type, index) for index in range(torch.accelerator.device_count())), ""


def _accelerator(kind: str, index: int) -> Accelerator:
    import torch

    try:
        properties = torch.get_device_module(kind).get_device_properties(index)
    except (AttributeError, RuntimeError):  # a backend without properties: say so by leaving them unknown
        properties = None
    memory = getattr(properties, "total_memory", None)
    return Accelerator(
        type=kind,
        index=index,
        name=getattr(properties, "name", None),
        memory_gib=None if memory is None else round(memory / 2**30, 1),
    )


def _cpu_name() -> str | None:
    if sys.platform == "darwin":
        return _command_output("sysctl", "-n", "machdep.cpu.brand_string")
    if sys.platform == "win32":
        return _windows_cpu_name()
    return _cpuinfo_name(limits.read_text("/proc/cpuinfo") or "")


def _cpuinfo_name(text: str) -> str | None:
    found = re.search(r"^(?:model name|Model|Hardware|cpu model)\s*:\s*(\S.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


def _windows_cpu_name() -> str | None:
    if sys.platform != "win32":
        return None
    import winreg

    place = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    except OSError:
        return platform.processor() or None


def _command_output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _memory_gib() -> float | None:
    found = limits.control_group_values("memory", "memory.max", "memory.limit_in_bytes")
    caps = [int(text) for text in found if text.isdigit()]  # "max" is no limit
    total = int(psutil.virtual_memory().total)
    return round(min([total, *caps]) / 2**30, 1)
