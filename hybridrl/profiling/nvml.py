"""NVML, the library that NVIDIA's driver brings for monitoring: each answer is a value or ``Unknown``, never an error.

The functions are those of nvidia-ml-py (module ``pynvml``, the extra ``hybridrl[gpu]``), loaded when first needed.
Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hybridrl.profiling.readings import Reading, Unknown

MIG = Unknown("MIG")
"""A slice of a GPU: NVML's readings are those of the whole one, zero or refused."""

_REASONS = {
    1: "NVML is not initialized",
    3: "not supported by this GPU, driver or system",
    4: "not permitted",
    9: "no NVIDIA driver is loaded",
    12: "no NVML: no NVIDIA driver here",
    13: "this driver has no such function",
    15: "the GPU is lost",
    18: "the driver and its NVML library differ in version: restart the machine",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """A MIG device: part of a GPU, with an identity of its own."""

    uuid: str
    handle: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Gpu:
    """A physical GPU. ``bus`` is its PCI domain, bus and device number; ``mig`` whether it is cut in slices."""

    uuid: str | None
    bus: tuple[int, int, int] | None
    name: str | None
    mig: bool | Unknown
    slices: tuple[Slice, ...]
    handle: Any

    @property
    def bus_id(self) -> str | None:
        """As nvidia-smi writes it: ``00000000:3B:00.0``."""
        return None if self.bus is None else "{:08X}:{:02X}:{:02X}.0".format(*self.bus)


@dataclass(eq=False)
class _GpmState:
    """Two of GPM's buffers, which swap places: a metric is computed between two samples."""

    last: Any
    spare: Any
    filled: bool = False


@dataclass(eq=False)
class Nvml:
    """An initialized NVML; ``module`` is pynvml, or what stands in for it."""

    module: Any
    gpus: tuple[Gpu, ...] = ()
    _gpm: dict[int, _GpmState | Unknown] = field(default_factory=dict, init=False)

    @classmethod
    def open(cls, load: Callable[[], Any]) -> Nvml | Unknown:
        """Load, initialize and list the GPUs; or why that can't be done."""
        try:
            nvml = cls(load())
        except ImportError:
            return Unknown("no NVML; to read an NVIDIA GPU, install hybridrl[gpu]")
        started = nvml.ask("nvmlInit")
        if isinstance(started, Unknown):
            return started
        count = nvml.ask("nvmlDeviceGetCount")
        if isinstance(count, Unknown):
            nvml.ask("nvmlShutdown")
            return count
        nvml.gpus = tuple(gpu for index in range(count) if (gpu := nvml._gpu(index)) is not None)
        return nvml

    def close(self) -> None:
        """Free GPM's buffers and leave NVML."""
        for state in self._gpm.values():
            for buffer in () if isinstance(state, Unknown) else (state.last, state.spare):
                self.ask("nvmlGpmSampleFree", buffer)
        self._gpm.clear()
        self.ask("nvmlShutdown")

    def ask(self, function: str, *arguments: Any) -> Any:
        """What NVML answers, or ``Unknown``: whatever goes wrong here must not end the training that is watched."""
        try:
            return getattr(self.module, function)(*arguments)
        except AttributeError:
            return Unknown(f"this nvidia-ml-py has no {function}: install a newer one")
        except Exception as error:  # noqa: BLE001  its errors are of a class in a module that may not be installed
            return Unknown(_reason(error))

    def _gpu(self, index: int) -> Gpu | None:
        """GPU number ``index`` in NVML's order; None if this process may not use it: CUDA doesn't see it either."""
        handle = self.ask("nvmlDeviceGetHandleByIndex", index)
        if isinstance(handle, Unknown):
            return None
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        unable = isinstance(mode, Unknown) and mode.reason in (_REASONS[3], _REASONS[13])
        mig = False if unable else mode if isinstance(mode, Unknown) else bool(mode[0])
        return Gpu(
            uuid=_text(self.ask("nvmlDeviceGetUUID", handle)),
            bus=None if isinstance(pci, Unknown) else (int(pci.domain), int(pci.bus), int(pci.device)),
            name=_text(self.ask("nvmlDeviceGetName", handle)),
            mig=mig,
            slices=self._slices(handle) if mig is True else (),
            handle=handle,
        )

    def _slices(self, handle: Any) -> tuple[Slice, ...]:
        most = self.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
        places = range(0 if isinstance(most, Unknown) else most)
        handles = [self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in places]
        named = [
            (_text(self.ask("nvmlDeviceGetUUID", each)), each) for each in handles if not isinstance(each, Unknown)
        ]
        return tuple(Slice(uuid=uuid, handle=each) for uuid, each in named if uuid is not None)

    def utilization(self, gpu: Gpu) -> Reading:
        """Percentage of the driver's last sample period, 1/6 to 1 s, in which any kernel was running."""
        if gpu.mig is not False:
            return MIG if gpu.mig is True else gpu.mig
        rates = self.ask("nvmlDeviceGetUtilizationRates", gpu.handle)
        return rates if isinstance(rates, Unknown) else _percent(rates.gpu)

    def sm_utilization(self, gpu: Gpu) -> Reading:
        """Percentage of SMs that were busy since the last call (GPM: Hopper and newer)."""
        if gpu.mig is not False:
            return MIG if gpu.mig is True else gpu.mig
        if id(gpu) not in self._gpm:
            self._gpm[id(gpu)] = self._gpm_state(gpu)
        state = self._gpm[id(gpu)]
        return state if isinstance(state, Unknown) else self._gpm_step(gpu, state)

    def _gpm_state(self, gpu: Gpu) -> _GpmState | Unknown:
        support = self.ask("nvmlGpmQueryDeviceSupport", gpu.handle)
        if isinstance(support, Unknown):
            return support
        if not support.isSupportedDevice:
            return Unknown("no GPM: Hopper and newer GPUs have it")
        buffers = [self.ask("nvmlGpmSampleAlloc") for _ in range(2)]
        refused = next((buffer for buffer in buffers if isinstance(buffer, Unknown)), None)
        return _GpmState(*buffers) if refused is None else refused

    def _gpm_step(self, gpu: Gpu, state: _GpmState) -> Reading:
        taken = self.ask("nvmlGpmSampleGet", gpu.handle, state.spare)
        if isinstance(taken, Unknown):
            return taken
        found = self._gpm_between(state.last, state.spare) if state.filled else Unknown("needs two samples")
        state.last, state.spare, state.filled = state.spare, state.last, True
        return found

    def _gpm_between(self, early: Any, late: Any) -> Reading:
        request = self.ask("c_nvmlGpmMetricsGet_t")
        if isinstance(request, Unknown):
            return request
        request.version = self.module.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics, request.sample1, request.sample2 = 1, early, late
        request.metrics[0].metricId = self.module.NVML_GPM_METRIC_SM_UTIL
        answer = self.ask("nvmlGpmMetricsGet", request)
        if isinstance(answer, Unknown):
            return answer
        metric = request.metrics[0]
        return Unknown(_code_reason(metric.nvmlReturn)) if metric.nvmlReturn else _percent(metric.value)

    def memory(self, gpu: Gpu, part: Slice | None) -> tuple[Reading, Reading]:
        """Bytes in use by all processes, and in all; of the slice, where there is one."""
        if gpu.mig is True and part is None:
            return (no := Unknown("MIG, and which slice is not known")), no
        memory = self.ask("nvmlDeviceGetMemoryInfo", gpu.handle if part is None else part.handle)
        if isinstance(memory, Unknown):
            return memory, memory
        if not 0 <= memory.used <= memory.total:
            return (no := Unknown("NVML reads more memory in use than there is")), no
        return memory.used, memory.total

    def process_memory(self, gpu: Gpu, part: Slice | None) -> Reading:
        """Bytes of this process. In a container NVML may list none, or the host's numbers: then it isn't found."""
        if gpu.mig is True and part is None:
            return Unknown("MIG, and which slice is not known")
        listed = self.ask("nvmlDeviceGetComputeRunningProcesses", gpu.handle if part is None else part.handle)
        if isinstance(listed, Unknown):
            return listed
        own = [each.usedGpuMemory for each in listed if each.pid == os.getpid()]
        if not own:
            return Unknown("NVML does not list this process: it has not used the GPU, or is in a container")
        return Unknown("NVML does not say (WSL, or a Windows display driver)") if None in own else sum(own)


def load() -> Any:
    """The module pynvml; ImportError where it isn't installed."""
    return import_module("pynvml")


def _percent(value: float) -> Reading:
    return value if 0 <= value <= 100 else Unknown("NVML reads no percentage")


def _text(answer: Any) -> str | None:
    """Older versions of nvidia-ml-py return bytes."""
    if isinstance(answer, Unknown):
        return None
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def _reason(error: Exception) -> str:
    code = getattr(error, "value", None)
    known = _REASONS.get(code) if isinstance(code, int) else None
    return known or f"NVML: {' '.join(str(error).split()) or type(error).__name__}"


def _code_reason(code: int) -> str:
    return _REASONS.get(code, f"NVML error {code}")
