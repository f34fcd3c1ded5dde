"""Devices listed, resolved and refused, with a machine's GPUs played by a stand-in."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridrl.placement import devices

CPU = torch.device("cpu")


class Gpu:
    """What torch.cuda says on a machine with two GPUs; notes what it is asked to do."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def device_count(self) -> int:
        return 2

    def synchronize(self, device: torch.device) -> None:
        self.calls.append(("synchronize", str(device)))

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def memory_allocated(self, device: torch.device) -> int:
        return 10 + (device.index or 0)

    def memory_reserved(self, device: torch.device) -> int:
        return 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(devices, "accelerator", lambda: "cuda")
    monkeypatch.setattr(devices, "_module", lambda kind: made)
    return made


def test_the_cpu_comes_first_and_the_first_gpu_has_no_number(gpu: Gpu) -> None:
    assert devices.available() == ("cpu", "cuda", "cuda:1")
    assert devices.canonical("cuda:0") == "cuda"
    assert devices.resolve("cuda") == torch.device("cuda", 0)
    assert devices.resolve("cuda:1") == torch.device("cuda", 1)


def test_torch_is_asked_as_every_version_of_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.6 has `current_accelerator()` without a parameter, and 2.5 no `torch.accelerator` at all."""
    old = SimpleNamespace(is_available=lambda: True, current_accelerator=lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "accelerator", old)
    assert devices.accelerator() == "cuda"
    old.is_available = lambda: False
    assert devices.accelerator() is None
    monkeypatch.delattr(torch, "accelerator")
    monkeypatch.setattr(devices, "_module", lambda kind: SimpleNamespace(is_available=lambda: kind == "mps"))
    assert devices.accelerator() == "mps"


def test_without_an_accelerator_there_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    assert devices.available() == ("cpu",)
    assert devices.resolve("cpu") == CPU


@pytest.mark.parametrize(
    ("name", "built", "visible", "why"),
    [
        ("cuda", None, None, "this torch was built without CUDA; this machine has cpu"),
        ("cuda:3", "12.8", None, "no GPU is visible; this machine has cpu"),
        ("cuda", "12.8", "", "no GPU is visible (CUDA_VISIBLE_DEVICES=''); this machine has cpu"),
        ("gpu", None, None, "name its kind, such as cuda, mps or xpu; this machine has cpu"),
        ("mps", None, None, "device 'mps': this machine has cpu"),
    ],
)
def test_what_is_not_here_is_refused_with_the_reason(
    name: str, built: str | None, visible: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C64, C110: nothing falls back, and the message says what there is."""
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ValueError) as error:
        devices.resolve(name)
    assert str(error.value).endswith(why)
    assert str(error.value).startswith(f"device {name!r}: ")


def test_a_gpu_too_many_is_refused_with_those_there_are(gpu: Gpu) -> None:
    with pytest.raises(ValueError, match=r"device 'cuda:2': this machine has cpu, cuda, cuda:1$"):
        devices.resolve("cuda:2")


def test_only_a_device_that_queues_is_waited_for(gpu: Gpu) -> None:
    assert devices.synchronizer(CPU) is None
    assert devices.synchronizer_of_all([CPU]) is None
    one = devices.synchronizer_of_all([CPU, torch.device("cuda", 1)])
    assert one is not None
    one()
    assert gpu.calls == [("synchronize", "cuda:1")]
    both = devices.synchronizer_of_all([torch.device("cuda", 0), CPU, torch.device("cuda", 1)])
    assert both is not None
    both()
    assert gpu.calls[1:] == [("synchronize", "cuda:0"), ("synchronize", "cuda:1")]


def test_apple_s_device_is_waited_for_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(devices, "_module", lambda kind: SimpleNamespace(synchronize=lambda: calls.append(kind)))
    wait = devices.synchronizer(torch.device("mps"))
    assert wait is not None
    wait()
    assert calls == ["mps"]


def test_an_event_of_the_cpu_has_always_passed() -> None:
    event = devices.event(CPU)
    event.record()
    event.synchronize()


def test_an_event_of_a_second_gpu_is_recorded_in_that_one_s_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
            self.log: list[Any] = [str(device), enable_timing]

        def record(self, stream: Any = "the current one") -> None:
            self.log.append(stream)

        def synchronize(self) -> None:
            self.log.append("waited")

        def elapsed_time(self, end: "Made") -> int:
            return 7 if isinstance(end, Made) else 0

    streams = SimpleNamespace(current_stream=lambda device: f"the one of {device}")
    monkeypatch.setattr(torch, "Event", Made)
    monkeypatch.setattr(devices, "_module", lambda kind: streams)
    first: Any = devices.event(torch.device("cuda", 0))
    first.record()
    assert first.log == ["cuda:0", False, "the current one"]
    second: Any = devices.event(torch.device("cuda", 1), timing=True)
    second.record()
    second.synchronize()
    assert second._made.log == ["cuda:1", True, "the one of cuda:1", "waited"]
    assert second.elapsed_time(devices.event(torch.device("cuda", 1))) == 7.0


def test_only_buses_gain_from_page_locked_memory() -> None:
    """C69: without an accelerator nothing is pinned, and nothing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [devices.can_pin(torch.device(kind)) for kind in ("cpu", "cuda", "xpu", "mps")] == [
            False,
            True,
            True,
            False,
        ]


def test_memory_is_what_the_allocator_says_and_unknown_where_it_says_nothing(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C71: both numbers, since freed tensors leave the second as it is."""
    found = devices.memory(torch.device("cuda", 0))
    assert (found.allocated, found.reserved) == (10, 30)
    assert devices.memory(torch.device("cuda", 1)).allocated == 11
    nothing = devices.memory(CPU)
    assert (nothing.allocated, nothing.reserved) == (None, None)
    apple = SimpleNamespace(current_allocated_memory=lambda: 5, driver_allocated_memory=lambda: 8)
    monkeypatch.setattr(devices, "_module", lambda kind: apple)
    assert devices.memory(torch.device("mps")) == devices.MemoryUse(allocated=5, reserved=8)
    monkeypatch.setattr(devices, "_module", lambda kind: SimpleNamespace())
    assert devices.memory(torch.device("xpu")).allocated is None


def test_cached_memory_is_released_where_there_is_a_cache(gpu: Gpu) -> None:
    devices.release_cached_memory(CPU)
    assert gpu.calls == []
    devices.release_cached_memory(torch.device("cuda", 0))
    assert gpu.calls == ["empty_cache"]


def test_a_generator_s_state_goes_on_on_its_own_kind_of_device() -> None:
    source = devices.generator(CPU, 3)
    torch.rand(5, generator=source)
    state, expected = source.get_state(), torch.rand(4, generator=source)
    target = devices.generator(CPU, 0)
    devices.restore_generator(target, state, kind="cpu")
    assert torch.equal(torch.rand(4, generator=target), expected)


def test_on_another_kind_a_sequence_is_derived_from_the_state() -> None:
    """C61: repeatable, and another for another state."""
    drawn = []
    for byte in (1, 1, 2):
        target = devices.generator(CPU, 0)
        devices.restore_generator(target, torch.full((16,), byte, dtype=torch.uint8), kind="cuda")
        drawn.append(torch.rand(4, generator=target).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != torch.rand(4, generator=devices.generator(CPU, 0)).tolist()
