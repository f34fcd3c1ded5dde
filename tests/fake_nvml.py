"""A stand-in for the module pynvml: GPUs that read what they are told to, and errors of NVML's kind."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NOT_PERMITTED, NO_LIBRARY, NO_FUNCTION = 3, 4, 12, 13


class NVMLError(Exception):
    """As pynvml's: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"NVML error {self.value}"


@dataclass(eq=False)
class FakeGpu:
    """One GPU, or one slice of one. A reading may be an exception, which is then raised."""

    uuid: str
    bus: int = 0
    name: str = "NVIDIA A100"
    utilization: Any = 50
    memory: Any = (2**30, 4 * 2**30)
    processes: Any = ()
    mig: Any = 0
    slices: tuple["FakeGpu", ...] = ()
    handle: Any = None  # an exception here: the GPU may not be used
    sm: list[float] | None = None  # of the successive GPM samples: SM-seconds so far, in percent; None without GPM
    gpm_error: int = 0


@dataclass(eq=False)
class FakeNvml:
    """The functions of pynvml that the monitor uses."""

    gpus: list[FakeGpu] = field(default_factory=list)
    init: Any = None
    open_count: int = 0
    buffers: set[int] = field(default_factory=set)

    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2

    def nvmlInit(self) -> None:
        _raised(self.init)
        self.open_count += 1

    def nvmlShutdown(self) -> None:
        self.open_count -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        _raised(self.gpus[index].handle)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()  # as older versions do

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=gpu.bus, device=0)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [_raised(gpu.mig), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.slices):
            raise NVMLError(6)
        return gpu.slices[index]

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=_raised(gpu.utilization), memory=0)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        used, total = _raised(gpu.memory)
        return SimpleNamespace(used=used, total=total, free=total - used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _raised(gpu.processes)]

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int(gpu.sm is not None))

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:
        buffer = SimpleNamespace(at=None)
        self.buffers.add(id(buffer))
        return buffer

    def nvmlGpmSampleFree(self, buffer: SimpleNamespace) -> None:
        self.buffers.remove(id(buffer))

    def nvmlGpmSampleGet(self, gpu: FakeGpu, buffer: SimpleNamespace) -> SimpleNamespace:
        assert gpu.sm is not None
        buffer.at, buffer.error = gpu.sm.pop(0), gpu.gpm_error
        return buffer

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)])

    def nvmlGpmMetricsGet(self, request: SimpleNamespace) -> SimpleNamespace:
        assert (request.version, request.numMetrics) == (1, 1)
        assert request.metrics[0].metricId == self.NVML_GPM_METRIC_SM_UTIL
        metric = request.metrics[0]
        metric.value, metric.nvmlReturn = request.sample2.at - request.sample1.at, request.sample2.error
        return request


def _raised(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value
