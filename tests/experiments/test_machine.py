import getpass
import json
import os
import socket
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hybridrl.experiments import machine
from hybridrl.experiments.machine import Accelerator, Machine, describe, machine_line, machine_slug
from hybridrl.profiling import limits

Example = Callable[..., Machine]
UNKNOWNS = dict.fromkeys(("cpu", "cores_physical", "cores_logical", "cores_available", "memory_gib", "threads"), None)


def test_this_machine_is_consistent() -> None:
    here = describe()
    assert here.threads == torch.get_num_threads()
    assert here.versions["torch"] == torch.__version__
    assert set(here.versions) == {"python", "torch", "gymnasium", "numpy", "hybridrl"}
    assert here.cores_available is not None
    assert here.cores_logical is not None
    assert 0 < here.cores_available <= here.cores_logical
    assert here.memory_gib is not None
    assert here.memory_gib > 0
    assert here.accelerators or here.accelerator_note
    assert here.one_line() == machine_line(json.loads(json.dumps(here.to_dict())))


def test_nothing_names_the_owner() -> None:
    text = json.dumps(describe().to_dict())
    private = {socket.gethostname(), str(Path.home()), os.getcwd(), getpass.getuser()} - {"", "/"}
    for word in private:
        assert f'"{word}"' not in text
    assert "/home/" not in text
    assert socket.gethostname() not in text


def test_unknown_prints_as_unknown_and_never_as_zero(example: Example) -> None:
    shown = dict(example(**UNKNOWNS).rows())
    assert shown["CPU"] == shown["memory"] == "unknown"
    assert shown["cores"] == "unknown physical, unknown logical, unknown available to this process"
    line = example(**UNKNOWNS, versions={"torch": None}).one_line()
    assert "unknown, unknown cores, unknown GiB" in line
    assert "torch unknown" in line
    assert "unknown torch threads" in line
    assert "None" not in line
    assert "None" not in str(shown)


def test_line_has_hardware_versions_and_threads(example: Example) -> None:
    line = example(accelerators=(Accelerator(type="cuda", index=0, name="NVIDIA T4", memory_gib=15.0),)).one_line()
    for part in (
        "Xeon",
        "1.5 cores",
        "24 GiB",
        "NVIDIA T4 15 GiB",
        "python 3.11.7",
        "torch 2.13.0",
        "2 torch threads",
    ):
        assert part in line
    assert "no accelerator" in example().one_line()
    assert "1 torch thread" in example(threads=1).one_line()
    assert "threads" not in example(threads=1).one_line()


def test_accelerators_of_a_torch_that_cannot_list_them_are_unknown_not_none(example: Example) -> None:
    old = example(accelerator_note="unknown: torch 2.5.1 cannot list them; 2.6 or newer can")
    assert "accelerators unknown" in old.one_line()
    assert "no accelerator" not in old.one_line()


def test_a_simulated_gpu_says_so(example: Example) -> None:
    simulated = Accelerator(type="simgpu", index=0, name="t4", memory_gib=15.0)
    assert "(simulated)" in str(simulated)
    assert "(simulated)" in example(accelerators=(simulated,)).one_line()
    assert "(simulated)" not in str(Accelerator(type="cuda", index=0, name="t4", memory_gib=15.0))


def test_slug_is_a_file_name_of_the_kind_of_machine(example: Example) -> None:
    assert example().slug == "intel-xeon-platinum-8480c-2c"
    two = tuple(Accelerator(type="cuda", index=i, name="NVIDIA H200", memory_gib=139.0) for i in range(2))
    assert example(accelerators=two).slug == "intel-xeon-platinum-8480c-2c-nvidia-h200"
    assert machine_slug(None) == "unknown"
    assert example(**UNKNOWNS).slug == "unknown-cpu"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 7B13\nmodel name\t: other\n", "AMD EPYC 7B13"),
        ("processor\t: 0\nmodel\t\t: 1\nBogoMIPS\t: 38.40\n", None),
        ("Hardware\t: BCM2711\nModel\t\t: Raspberry Pi 4\n", "BCM2711"),
        ("", None),
    ],
)
def test_cpu_name_from_cpuinfo(text: str, name: str | None) -> None:
    assert machine._cpuinfo_name(text) == name


def test_a_command_that_is_not_there_is_unknown() -> None:
    assert machine._command_output("no-such-command-anywhere") is None


@pytest.fixture
def control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs" / "mine").mkdir(parents=True)
    real = limits.control_group_values
    monkeypatch.setattr(limits, "control_group_values", lambda *names: real(*names, root=str(tmp_path)))
    read = limits.read_text
    own = {"/proc/self/cgroup": "0::/jobs/mine"}
    monkeypatch.setattr(limits, "read_text", lambda path: own.get(str(path)) or read(path))
    return tmp_path


def test_the_tightest_control_group_counts(control_groups: Path) -> None:
    (control_groups / "jobs" / "mine" / "cpu.max").write_text("max 100000\n")
    assert limits.control_group_cores() is None
    (control_groups / "jobs" / "cpu.max").write_text("150000 100000\n")
    assert limits.control_group_cores() == 1.5
    (control_groups / "jobs" / "mine" / "memory.max").write_text("max\n")
    (control_groups / "jobs" / "memory.max").write_text(str(2**29))
    assert machine._memory_gib() == 0.5


def test_old_control_groups(control_groups: Path) -> None:
    (control_groups / "cpu").mkdir()
    (control_groups / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert limits.control_group_cores() is None
    (control_groups / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    assert limits.control_group_cores() == 0.5


def fake_torch(monkeypatch: pytest.MonkeyPatch, properties: object) -> None:
    accelerator = types.SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: torch.device("cuda"),
        device_count=lambda: 2,
    )
    monkeypatch.setattr(torch, "accelerator", accelerator, raising=False)
    module = types.SimpleNamespace(get_device_properties=properties)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)


def test_accelerators_are_listed_with_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, lambda index: types.SimpleNamespace(name=f"GPU {index}", total_memory=16 * 2**30))
    found, note = machine._accelerators()
    assert [str(device) for device in found] == ["GPU 0 16 GiB", "GPU 1 16 GiB"]
    assert note == ""


def test_a_backend_without_properties_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> object:
        raise RuntimeError("not supported")

    fake_torch(monkeypatch, refuse)
    found, _ = machine._accelerators()
    assert (found[0].name, found[0].memory_gib) == (None, None)
    assert str(found[0]) == "cuda of unknown name"


def test_torch_before_2_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator", raising=False)
    found, note = machine._accelerators()
    assert found == ()
    assert note.startswith("unknown")


def test_table_shows_every_row(example: Example) -> None:
    assert example().table().row_count == len(example().rows())
