"""Staging through page-locked memory, with events that note when they are asked."""

from typing import Any

import pytest
import torch

from hybridrl.data.arena import Arena
from hybridrl.placement import devices
from hybridrl.placement.staging import Staging

CPU = torch.device("cpu")
LAYOUT = {"x": ((2, 3), torch.float32), "n": ((2,), torch.int64)}


class Queue:
    """A device whose copies end only when somebody waits for them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.made = 0

    def event(self) -> "Marked":
        self.made += 1
        return Marked(self, f"event {self.made}")


class Marked:
    def __init__(self, queue: Queue, name: str) -> None:
        self.queue, self.name = queue, name

    def record(self) -> None:
        self.queue.log.append(f"record {self.name}")

    def synchronize(self) -> None:
        self.queue.log.append(f"wait {self.name}")


def staging(queue: Queue, **options: Any) -> Staging:
    return Staging(LAYOUT, CPU, event=queue.event, **options)


def test_what_is_filled_arrives() -> None:
    made = Staging(LAYOUT, CPU)
    host = made.next()
    host["x"].fill_(2.5)
    host["n"].copy_(torch.tensor([3, 4]))
    there = made.send()
    assert there["x"].tolist() == [[2.5] * 3] * 2
    assert there["n"].tolist() == [3, 4]
    assert there["x"].data_ptr() != host["x"].data_ptr()
    assert made.nbytes == 128


def test_a_host_arena_is_not_handed_out_before_its_copy_has_ended() -> None:
    """C68: two take turns; the third fill waits for the first copy, and for no other."""
    queue = Queue()
    made = staging(queue)
    pointers = []
    for _ in range(3):
        pointers.append(made.next()["x"].data_ptr())
        made.send()
    assert queue.log == ["record event 1", "record event 2", "wait event 1", "record event 1"]
    assert pointers[0] == pointers[2] != pointers[1]


def test_one_slot_waits_for_itself() -> None:
    queue = Queue()
    made = staging(queue, slots=1)
    for _ in range(2):
        made.next()
        made.send()
    assert queue.log == ["record event 1", "wait event 1", "record event 1"]


def test_filling_in_two_parts_is_one_fill() -> None:
    made = staging(Queue())
    assert made.next()["x"].data_ptr() == made.next()["x"].data_ptr()
    made.send()


def test_sending_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"send\(\) without next\(\): fill what next\(\) returns first"):
        staging(Queue()).send()


def test_no_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="slots=0: expected at least 1"):
        staging(Queue(), slots=0)


def test_page_locking_is_left_out_where_nothing_gains() -> None:
    """C69: None means where that helps; True, on a machine that can't, is one clear line."""
    assert not staging(Queue()).next()["x"].is_pinned()
    if devices.accelerator() is None:
        with pytest.raises(ValueError, match="page-locked memory needs an accelerator, and none is here") as error:
            staging(Queue(), pin=True)
        assert "\n" not in str(error.value)


def test_a_copy_is_left_to_run_only_out_of_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """C68: from pageable memory torch would wait anyway; to the host it would be read too early."""
    asked: list[bool] = []
    plain = Arena.copy_

    def noted(self: Arena, source: Arena, *, non_blocking: bool = False) -> None:
        asked.append(non_blocking)
        plain(self, source)

    monkeypatch.setattr(Arena, "copy_", noted)
    real = Arena.__init__
    monkeypatch.setattr(Arena, "__init__", lambda self, layout, *, device=CPU, pin=False: real(self, layout))
    for pin in (False, True):
        made = staging(Queue(), pin=pin)
        made.next()
        made.send()
    assert asked == [False, True]


def test_a_device_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Staging(LAYOUT, "cpu").next()["x"].shape == (2, 3)
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    with pytest.raises(ValueError, match=r"device 'gpu': .*this machine has cpu"):
        Staging(LAYOUT, "gpu")


def test_a_copy_has_memory_of_its_own_and_nothing_under_way() -> None:
    import copy

    queue = Queue()
    made = staging(queue)
    made.next()["x"].fill_(1.0)
    twin = copy.deepcopy(made)
    assert twin.next()["x"].data_ptr() != made.next()["x"].data_ptr()
    assert twin.nbytes == made.nbytes
