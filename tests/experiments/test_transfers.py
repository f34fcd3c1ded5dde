"""Every way brings the same rollout to a device, in as many copies as it says, counted by a dispatch mode."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridrl.data import Rollout
from hybridrl.experiments import figures, transfer_figures, transfers
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.result import NEEDS_GPU
from hybridrl.experiments.transfers import WAYS, Lane, Size, Timed, Transfers, Way
from hybridrl.placement import copy_to, devices, pin, transfer

CPU = torch.device("cpu")
TINY = Size(rows=3, num_envs=2, shape=(2, 2), dtype=np.uint8)
NAMES = [way.name for way in WAYS]
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Counted(TorchDispatchMode):
    """Counts copies out of the tensors that were there before, and their bytes."""

    def __init__(self, sources: list[Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in sources}
        self.sizes: list[int] = []
        self.behind: list[bool] = []  # whether each may return before it has ended

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func in COPIES:
            to_copy = func is torch.ops.aten._to_copy.default
            source = args[0] if to_copy else args[1]
            if source.untyped_storage().data_ptr() in self._known:
                self.sizes.append(source.numel() * source.element_size())
                self.behind.append((kwargs or {}).get("non_blocking", False) if to_copy else args[2:] == (True,))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Lane:
    """With ordinary memory in place of page-locked, which needs an accelerator."""
    monkeypatch.setattr(transfers, "pin", lambda tensor: tensor)
    made = Lane.make(TINY, CPU)
    return dataclasses.replace(made, pinned=made.pageable)


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_every_way_delivers_every_field_as_it_was_in_other_memory(lane: Lane, way: Way) -> None:
    delivered = way.run(lane)
    assert set(delivered) == {field.name for field in dataclasses.fields(Rollout)}
    kept = {name: view.clone() for name, view in lane.pageable.views.items()}
    lane.pageable.block.fill_(7)
    for item in lane.items:
        item.fill_(7)
    for name, view in kept.items():
        assert torch.equal(delivered[name], view), name
        assert delivered[name].dtype == view.dtype


@pytest.mark.parametrize("way", [way for way in WAYS if way.name != "items stacked on the host"], ids=lambda w: w.name)
def test_copies_are_as_many_as_said(lane: Lane, way: Way) -> None:
    with Counted([lane.pageable.block, *lane.items]) as counted:
        way.run(lane)
    assert len(counted.sizes) == way.copies(TINY)
    payload = sum(view.numel() * view.element_size() for view in lane.pageable.views.values())
    assert sum(counted.sizes) in (payload, lane.pageable.nbytes)  # an arena's gaps travel along


def test_stacking_leaves_one_copy_a_field(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[Tensor] = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda tensors: stacks.append(stack(tensors)) or stacks[-1])
    names: list[Tensor] = []
    monkeypatch.setattr(transfers, "copy_to", lambda tensor, device: names.append(tensor) or tensor)
    transfers.stacked(lane)
    assert len(names) == 9
    assert len(stacks) == 1
    assert names[0].data_ptr() == stacks[0].data_ptr()


def test_a_rollout_of_items_is_the_rollout(lane: Lane) -> None:
    observations = lane.pageable.views["observation"]
    assert torch.equal(lane.items[3], observations[1, 1])
    assert len(lane.items) == TINY.items == 6


def test_only_copies_out_of_page_locked_memory_may_return_before_they_have_ended(lane: Lane) -> None:
    for way in WAYS:
        with Counted([lane.pageable.block]) as counted:
            way.run(lane)
        waits = not way.pins or way.name == "arena, pinned once"
        assert set(counted.behind) == {not waits}, way.name


def test_without_an_accelerator_pinned_ways_stay_empty_with_the_reason() -> None:
    found = transfers.measure([TINY], device="cpu", repeats=3)
    assert set(found.timed[0].seconds) == {way.name for way in WAYS if not way.pins}
    result = transfers.table(found)
    for row in result.rows:
        empty = any(way.pins and way.name in row.label for way in WAYS)
        (cell,) = row.cells
        assert (cell.number is None) == empty, row.label
        assert cell.text() == NEEDS_GPU if empty else cell.known
    assert "no bus" in result.caption()
    assert "one memory of the CPU to another" in result.title


def test_another_accelerator_that_gains_nothing_says_so() -> None:
    assert Transfers(device="mps", timed=()).reason == "copies to mps gain nothing from it"


def made_up(factor: float = 1.0) -> Transfers:
    """Seconds: a way's place in the list; the host is held for a tenth."""

    def timed(nbytes: int) -> Timed:
        seconds = {way.name: Measurement([factor * (i + 1)] * 5, "s") for i, way in enumerate(WAYS)}
        held = {name: Measurement([value / 10 for value in m.values], "s") for name, m in seconds.items()}
        first = dict.fromkeys(seconds, 9.0)
        return Timed(size=TINY, nbytes=nbytes, seconds=seconds, held=held, first_held_s=first)

    return Transfers(device="cuda", timed=(timed(1_000), timed(2_000_000)))


def cells(quantity: str, label: str) -> list[float | None]:
    (row,) = [r for r in transfers.table(made_up()).rows if (r.label, r.quantity) == (label, quantity)]
    return [cell.number for cell in row.cells]


def test_table_gives_ratios_times_and_rates() -> None:
    assert cells("time", "item by item / arena") == [0.25, 0.25]
    assert cells("until it is there", "arena") == [4e6, 4e6]
    assert cells("until the host may go on", "arena, pinned once, non-blocking") == pytest.approx([6e5, 6e5])
    assert cells("rate", "field by field") == pytest.approx([1e-6 / 3, 2e-3 / 3])
    assert "from the host to cuda" in transfers.table(made_up()).title
    assert "no bus" not in transfers.table(made_up()).caption()


def test_record_keeps_raw_repeats_and_verdicts() -> None:
    record = transfers.record(made_up())
    assert record.claims == ("B7", "C6")
    assert record.series["arena, 1000 bytes"].values == (4.0,) * 5
    assert record.series["arena, 1000 bytes, host held"].values == (0.4,) * 5
    assert len(record.series) == 2 * 2 * len(WAYS)
    assert "arena is 0.80 times arena, pinned once" in record.outcome["arena / arena, pinned once"]["1000"]
    assert record.outcome["host held by the first call, s"]["1000"]["arena"] == 9.0


def test_record_of_a_machine_without_accelerator_leaves_pinned_verdicts_unknown() -> None:
    record = transfers.record(transfers.measure([TINY], device="cpu", repeats=1))
    assert set(record.outcome["arena / arena, pinned each time"].values()) == {None}


def test_sizes_grow_and_full_scale_ends_with_atari(monkeypatch: pytest.MonkeyPatch) -> None:
    for scale in ("smoke", "quick", "full"):
        monkeypatch.setenv("HYBRIDRL_SCALE", scale)
        found = [size.storage(pin=False).nbytes for size in transfers.sizes()]
        assert found == sorted(found)
    assert 28e6 < found[-1] < 30e6


@pytest.mark.parametrize(("count", "text"), [(64, "64 bytes"), (8_900, "8.9 kB"), (28_900_000, "28.9 MB")])
def test_bytes_are_read_in_powers_of_ten(count: int, text: str) -> None:
    assert transfers.format_bytes(count) == text


@pytest.mark.parametrize("draw", [transfer_figures.draw_copies, transfer_figures.draw_pinning])
def test_figures_have_a_line_a_way_on_log_axes(draw: Any) -> None:
    import matplotlib.pyplot as plt

    with figures.use():
        figure, ax = plt.subplots()
        draw(ax, made_up())
        wanted = {transfer_figures.draw_copies: transfer_figures.COPIES}.get(draw, transfer_figures.PINNING)
        assert [line.get_label() for line in ax.get_lines()] == [name for name, _ in wanted]
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert list(ax.get_lines()[0].get_xdata()) == [1_000, 2_000_000]
        assert not any("page-locked memory:" in text.get_text() for text in ax.texts)
        plt.close(figure)


def test_figures_say_what_is_missing() -> None:
    import matplotlib.pyplot as plt

    with figures.use():
        figure, ax = plt.subplots()
        transfer_figures.draw_pinning(ax, transfers.measure([TINY], device="cpu", repeats=1))
        assert [line.get_label() for line in ax.get_lines()] == ["arena"]
        assert any(NEEDS_GPU in text.get_text() for text in ax.texts)
        plt.close(figure)


def test_figures_name_only_ways_that_there_are_and_leave_none_out() -> None:
    drawn = {name for name, _ in transfer_figures.COPIES + transfer_figures.PINNING}
    assert drawn == set(NAMES)
    assert {name for pair in transfers.COMPARED for name in pair} <= drawn


def test_a_copy_is_one_even_on_the_same_device() -> None:
    source = torch.arange(3)
    copy = copy_to(source, "cpu")
    assert torch.equal(copy, source)
    assert copy.data_ptr() != source.data_ptr()


def test_pinning_is_refused_where_nothing_can_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    with pytest.raises(ValueError, match="page-locked memory needs an accelerator"):
        pin(torch.zeros(2))
    monkeypatch.setattr(devices, "accelerator", lambda: "cuda")
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 1)
    assert transfer.pin(torch.zeros(2)).tolist() == [1, 1]


def test_a_way_that_cannot_be_taken_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="take another way"):
        transfers.pinned_arena(Lane.make(TINY, CPU))
