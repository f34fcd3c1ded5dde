import logging
import os

import pytest

from hybridrl.profiling import FakeClock, Monitor
from hybridrl.profiling.gpus import Accelerators, TorchDevice
from hybridrl.profiling.nvml import load
from hybridrl.profiling.readings import Unknown
from tests.fake_nvml import NO_FUNCTION, NO_LIBRARY, NOT_PERMITTED, NOT_SUPPORTED, FakeGpu, FakeNvml, NVMLError

GIB = 2**30
A, B, C = FakeGpu("GPU-aaaa-1", 0x3B), FakeGpu("GPU-bbbb-2", 0x5E), FakeGpu("GPU-bbcc-3", 0x86)
NO_UTILIZATION = {"utilization": NVMLError(NOT_SUPPORTED)}


def accelerators(nvml, *devices, **environ):
    source = Accelerators(lambda: devices, load=lambda: nvml, environ=environ)
    source.open()
    return source


def read(nvml, *devices, **environ):
    return accelerators(nvml, *devices, **environ).read()


def only(readings):
    (device,) = readings.devices
    return device


def cuda(index=0, **changes):
    return TorchDevice(type="cuda", index=index, name="card", **{"nvidia": True, **changes})


def usage_of(source, caplog):
    """A monitored run of four samples, which must end well whatever NVML does."""
    caplog.set_level(logging.INFO, logger="hybridrl")
    clock = FakeClock(tick_ns=10**8)
    with Monitor(None, gpus=source, clock=clock, cpu_clock=clock) as monitor:
        for _ in range(3):
            monitor.sample_now()
    return monitor.usage


def missing():
    raise ModuleNotFoundError("No module named 'pynvml'")


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (missing, "no NVML; to read an NVIDIA GPU, install hybridrl[gpu]"),
        (lambda: FakeNvml([A], init=NVMLError(NO_LIBRARY)), "no NVML: no NVIDIA driver here"),
        (lambda: FakeNvml([A], init=NVMLError(9)), "no NVIDIA driver is loaded"),
        (lambda: FakeNvml([A], init=OSError("bad\nlibrary")), "NVML: bad library"),
        (lambda: object(), "this nvidia-ml-py has no nvmlInit: install a newer one"),
    ],
)
def test_no_nvml_on_the_machine(loader, reason, caplog):
    """C110 (a) not importable, (b) no library, (c) no function: a reason, one log line, and the run goes on."""
    usage = usage_of(Accelerators(lambda: (), load=loader, environ={}), caplog)
    assert (usage.gpu, usage.gpu_reason) == ((), reason)
    assert usage.cpu_percent is not None
    assert [record.getMessage() for record in caplog.records if reason in record.getMessage()] == [
        f"monitor: GPUs unknown: {reason}"
    ]


@pytest.mark.parametrize(
    "missing", ["nvmlDeviceGetUtilizationRates", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMigMode"]
)
@pytest.mark.parametrize("how", ["absent from nvidia-ml-py", "absent from the driver"])
def test_a_function_is_missing(missing, how, caplog):
    """C110 (c): that field is unknown, the others are read."""

    def refuse(*_):
        raise AttributeError(missing) if how == "absent from nvidia-ml-py" else NVMLError(NO_FUNCTION)

    nvml = FakeNvml([FakeGpu("GPU-a", utilization=70, processes=((os.getpid(), GIB),))])
    setattr(nvml, missing, refuse)
    (gpu,) = usage_of(Accelerators(lambda: (), load=lambda: nvml, environ={}), caplog).gpu
    assert gpu.memory_used.mean == gpu.process_memory.mean == GIB
    assert gpu.memory_total == 4 * GIB
    unreadable = missing == "nvmlDeviceGetUtilizationRates" or (missing, how[-6:]) == ("nvmlDeviceGetMigMode", "-ml-py")
    assert gpu.utilization.mean == (None if unreadable else 70)
    assert gpu.sm_utilization.mean is None


def test_where_pynvml_is_absent_the_loader_says_so():
    try:
        assert load().__name__ == "pynvml"
    except ImportError as error:
        assert error.name == "pynvml"  # noqa: PT017  either is right: it depends on what is installed


def test_wsl_reads_some_fields_only(caplog):
    """C111: memory is there, utilization not supported, the process's memory not available: None, never 0."""
    gpu = FakeGpu("GPU-a", memory=(3 * GIB, 8 * GIB), processes=((os.getpid(), None),), **NO_UTILIZATION)
    (found,) = usage_of(Accelerators(lambda: (), load=lambda: FakeNvml([gpu]), environ={}), caplog).gpu
    assert (found.utilization.mean, found.utilization.known, found.utilization.total) == (None, 0, 4)
    assert str(found.utilization) == "unknown (not supported by this GPU, driver or system)"
    assert found.process_memory.mean is None
    assert "WSL" in found.process_memory.reason
    assert (found.memory_used.mean, found.memory_total) == (3 * GIB, 8 * GIB)
    assert str(found.memory_used) == "3.0 GiB on average, at most 3.0 GiB"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"utilization": 4294967295}, "utilization"),
        ({"memory": (2**64 - 1, 8 * GIB)}, "memory_used"),
        ({"memory": (-1, 8 * GIB)}, "memory_used"),
    ],
)
def test_nonsense_is_unknown(changes, field):
    """C111: nonsense values."""
    assert isinstance(getattr(only(read(FakeNvml([FakeGpu("GPU-a", **changes)]))), field), Unknown)


def test_this_process_alone_and_a_container_that_hides_it():
    own = ((os.getpid(), GIB), (os.getpid(), GIB), (1, 5 * GIB))
    assert only(read(FakeNvml([FakeGpu("GPU-a", processes=own)]))).process_memory == 2 * GIB
    hidden = only(read(FakeNvml([FakeGpu("GPU-a", processes=((1, GIB),))]))).process_memory
    assert isinstance(hidden, Unknown)
    assert "container" in hidden.reason
    refused = only(read(FakeNvml([FakeGpu("GPU-a", processes=NVMLError(NOT_PERMITTED))]))).process_memory
    assert refused == Unknown("not permitted")


# MIG


PART, OTHER_PART = FakeGpu("MIG-1111-a", memory=(GIB, 2 * GIB)), FakeGpu("MIG-2222-b", memory=(0, 2 * GIB))


@pytest.mark.parametrize("utilization", [0, NVMLError(NOT_SUPPORTED), NVMLError(NOT_PERMITTED)])
def test_a_mig_slice_is_unknown_also_where_nvml_reads_zero(utilization, caplog):
    """C112: 0% isn't mistaken for an idle GPU."""
    card = FakeGpu("GPU-a", mig=1, slices=(PART, OTHER_PART), utilization=utilization, sm=[0.0] * 9)
    source = Accelerators(lambda: (), load=lambda: FakeNvml([card]), environ={"CUDA_VISIBLE_DEVICES": "MIG-2222-b"})
    usage = usage_of(source, caplog)
    (gpu,) = usage.gpu
    for summary in (gpu.utilization, gpu.sm_utilization):
        assert (summary.mean, summary.known, str(summary)) == (None, 0, "unknown (MIG)")
    assert (gpu.memory_used.mean, gpu.memory_total) == (0, 2 * GIB)  # the slice's own
    assert "unknown" in str(usage)
    assert sum("unknown: MIG" in record.getMessage() for record in caplog.records) == 1


def test_which_slice_is_told_by_torch_or_because_there_is_but_one():
    """C112"""
    card = FakeGpu("GPU-a", 0x3B, mig=1, slices=(PART, OTHER_PART))
    assert only(read(FakeNvml([card]))).memory_used == Unknown("MIG, and which slice is not known")
    assert only(read(FakeNvml([card]), cuda(uuid="2222-b"))).memory_used == 0
    one = FakeGpu("GPU-a", 0x3B, mig=1, slices=(PART,))
    assert only(read(FakeNvml([one]), cuda(uuid="a"))).memory_used == GIB
    assert only(read(FakeNvml([one]), cuda(bus=(0, 0x3B, 0)))).memory_used == GIB


def test_a_mig_mode_that_may_not_be_read_leaves_utilization_unknown():
    """C112: then 0% could be a slice's."""
    reading = only(read(FakeNvml([FakeGpu("GPU-a", mig=NVMLError(NOT_PERMITTED), utilization=0, sm=[0.0])])))
    assert reading.utilization == reading.sm_utilization == Unknown("not permitted")


def test_a_gpu_without_mig_is_read():
    assert only(read(FakeNvml([FakeGpu("GPU-a", mig=NVMLError(NOT_SUPPORTED), utilization=0)]))).utilization == 0


# Which GPU


def watched(mask, gpus=(A, B, C), order="PCI_BUS_ID"):
    """The UUIDs read, in CUDA's order; the reason in place of one that can't be told."""
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    readings = read(FakeNvml(list(gpus)), **environ, **({} if order is None else {"CUDA_DEVICE_ORDER": order}))
    return [reading.key if reading.bus_id else reading.utilization.reason for reading in readings.devices]


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (None, [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2", [B, C]),
        ("GPU-bbbb-2", [B]),
        ("GPU-bbc,GPU-a", [C, A]),
        ("0,GPU-bbbb-2", [A, B]),
        ("GPU-bbbb-2,0", [B, A]),
        ("2,-1,0", [C]),
        ("1,7,0", [B]),
        ("0,none", [A]),
        ("1gpu", [B]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("1,GPU-bbbb-2", []),
        ("GPU-bbbb-2,GPU-bbbb", []),
    ],
)
def test_cuda_visible_devices(mask, found):
    """C113: numbers, UUIDs, mixtures, nothing; by the rules of CUDA's guide."""
    assert watched(mask) == [gpu.uuid for gpu in found]


def test_no_visible_gpu_has_its_reason():
    """C113"""
    readings = read(FakeNvml([A, B]), CUDA_VISIBLE_DEVICES="")
    assert readings == ((), "CUDA_VISIBLE_DEVICES='' leaves none of the 2 GPUs here")
    assert read(FakeNvml([])) == ((), "NVML lists no GPU that this process may use")


def test_a_uuid_that_fits_none_or_two_is_unknown_not_dropped():
    """C113: CUDA would use the GPU that NVML doesn't list, say in a container."""
    (none,) = watched("GPU-dddd")
    (two,) = watched("GPU-bb")
    (slice_,) = watched("MIG-1234-5678")
    assert none == "CUDA_VISIBLE_DEVICES names GPU-dddd, which fits 0 of NVML's GPUs"
    assert two == "CUDA_VISIBLE_DEVICES names GPU-bb, which fits 2 of NVML's GPUs"
    assert slice_ == "MIG: CUDA_VISIBLE_DEVICES names MIG-1234-5678, which fits 0 of NVML's GPUs"


@pytest.mark.parametrize("word", ["MIG-2222-b", "MIG-GPU-a/2/0"])
def test_slices_by_both_forms_of_their_names(word):
    """C113"""
    card = FakeGpu("GPU-a", mig=1, slices=(PART, OTHER_PART))
    (found,) = read(FakeNvml([B, card]), CUDA_VISIBLE_DEVICES=word).devices
    assert found.key == ("MIG-2222-b" if word == "MIG-2222-b" else "GPU-a")
    assert found.utilization == Unknown("MIG")


def test_the_numbers_of_cuda_are_not_those_of_nvml():
    """C114: fastest first, the default, isn't told by NVML; by PCI id, both sort alike, whatever NVML's order is."""
    (reason,) = watched("1", order=None)
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in reason
    assert watched("1", order="FASTEST_FIRST") == [reason]
    assert watched("0,1", gpus=(C, B, A)) == watched("0,1", gpus=(B, A, C)) == [A.uuid, B.uuid]
    assert watched("0", gpus=(A,), order=None) == [A.uuid]  # one GPU has one order


def test_all_gpus_are_known_also_where_their_numbers_are_not():
    """C114"""
    readings = read(FakeNvml([A, B]))
    assert [(reading.key, reading.index) for reading in readings.devices] == [(A.uuid, None), (B.uuid, None)]


def test_torch_says_which_card_it_uses():
    """C114: two cards, the faster one second on the bus; CUDA_VISIBLE_DEVICES="1" is the slower, by UUID or PCI id."""
    slow, fast = FakeGpu("GPU-5105", 0x3B, utilization=10), FakeGpu("GPU-fa57", 0x5E, utilization=90)
    nvml = FakeNvml([slow, fast])
    environ = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert isinstance(only(read(nvml, **environ)).utilization, Unknown)
    for device in (cuda(uuid="5105"), cuda(uuid="GPU-5105"), cuda(bus=(0, 0x3B, 0)), cuda(uuid="x", bus=(0, 0x3B, 0))):
        assert only(read(nvml, device, **environ)).utilization == 10


def test_a_device_that_nvml_does_not_list_says_so():
    """C114: no reading of another card in its place."""
    reading = only(read(FakeNvml([A, B]), cuda(uuid="ffff", memory=GIB, memory_total=9 * GIB)))
    assert reading.utilization == Unknown("NVML lists no GPU with this device's UUID or PCI id")
    assert (reading.torch_memory, reading.memory_total) == (GIB, 9 * GIB)


def test_a_card_that_may_not_be_used_is_left_out():
    """C114: CUDA doesn't number it either."""
    barred = FakeGpu("GPU-0000", 0x01, handle=NVMLError(NOT_PERMITTED))
    assert watched("0", gpus=(barred, B)) == [B.uuid]


def test_a_run_in_which_torch_starts_cuda(caplog):
    """C114: unknown until then, and the counts go on under one device."""
    devices = []
    source = Accelerators(lambda: devices, load=lambda: FakeNvml([A, B]), environ={"CUDA_VISIBLE_DEVICES": "1"})
    clock = FakeClock(tick_ns=10**8)
    with Monitor(None, gpus=source, clock=clock, cpu_clock=clock) as monitor:
        monitor.sample_now()
        devices.append(cuda(uuid="bbbb-2", memory=GIB))
        monitor.sample_now()
    (gpu,) = monitor.usage.gpu
    assert (gpu.bus_id, gpu.utilization.known, gpu.utilization.total) == ("00000000:5E:00.0", 2, 3)
    assert gpu.torch_memory.reason == "torch has not initialized CUDA"


# Other accelerators


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (TorchDevice(type="mps", index=0, name=None, memory=GIB), "no NVML for mps"),
        (TorchDevice(type="xpu", index=0, name="Arc", memory=GIB), "no NVML for xpu"),
        (cuda(nvidia=False, memory=GIB), "cuda is not NVIDIA's: only NVML is read"),
    ],
)
def test_others_tell_memory_but_no_utilization(device, reason):
    readings = Accelerators(lambda: [device], load=missing, environ={})
    readings.open()
    reading = only(readings.read())
    assert reading.utilization == reading.memory_used == Unknown(reason)
    assert (reading.type, reading.torch_memory) == (device.type, GIB)


def test_cuda_without_nvml_still_tells_torchs_memory():
    source = Accelerators(lambda: [cuda(memory=GIB)], load=missing, environ={})
    source.open()
    reading = only(source.read())
    assert reading.utilization == Unknown("no NVML; to read an NVIDIA GPU, install hybridrl[gpu]")
    assert reading.torch_memory == GIB


# GPM


def test_gpm_compares_each_sample_with_the_one_before():
    """The two buffers swap places: 0 -> 30 -> 100 are 30% and 70%."""
    nvml = FakeNvml([FakeGpu("GPU-a", sm=[0.0, 30.0, 100.0, 100.0])])
    source = accelerators(nvml)
    found = [only(source.read()).sm_utilization for _ in range(4)]
    assert found == [Unknown("needs two samples"), 30.0, 70.0, 0.0]
    assert len(nvml.buffers) == 2
    source.close()
    assert (nvml.buffers, nvml.open_count) == (set(), 0)


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (FakeGpu("GPU-a"), "no GPM: Hopper and newer GPUs have it"),
        (FakeGpu("GPU-a", sm=[0.0, 5.0], gpm_error=NOT_SUPPORTED), "not supported by this GPU, driver or system"),
        (FakeGpu("GPU-a", sm=[0.0, 5.0], gpm_error=99), "NVML error 99"),
        (FakeGpu("GPU-a", sm=[0.0, float("nan")]), "NVML reads no percentage"),
        (FakeGpu("GPU-a", sm=[0.0, 130.0]), "NVML reads no percentage"),
    ],
)
def test_where_gpm_fails_it_is_unknown(gpu, reason):
    source = accelerators(FakeNvml([gpu]))
    source.read()
    assert only(source.read()).sm_utilization == Unknown(reason)


def test_gpm_begins_with_the_run(caplog):
    """The reading at the start is the first of the two: each sample of the run has a value."""
    nvml = FakeNvml([FakeGpu("GPU-a", sm=[0.0, 20.0, 40.0, 60.0, 80.0])])
    (gpu,) = usage_of(Accelerators(lambda: (), load=lambda: nvml, environ={}), caplog).gpu
    assert (gpu.sm_utilization.known, gpu.sm_utilization.total, gpu.sm_utilization.mean) == (4, 4, 20.0)
    assert nvml.open_count == 0
