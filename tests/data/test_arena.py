"""The arena: one block, aligned views of it, and absurd numbers where nobody wrote."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from hybridrl.data.arena import Arena

FIELDS = {
    "image": ((3, 5, 7), torch.uint8),
    "flag": ((3,), torch.bool),
    "index": ((3, 2), torch.int64),
    "number": ((3, 2), torch.float32),
    "exact": ((), torch.float64),
    "nothing": ((3, 0), torch.float32),
}


def span(view):
    start = view.data_ptr()
    return start, start + view.numel() * view.element_size()


def test_views_have_the_shapes_and_dtypes_asked_for():
    views = Arena(FIELDS).views
    assert {name: (tuple(v.shape), v.dtype) for name, v in views.items()} == FIELDS
    assert all(view.is_contiguous() for view in views.values())


def test_views_lie_in_the_block_in_order_aligned_and_apart():
    arena = Arena(FIELDS)
    block, views = arena.block, arena.views
    spans = [span(view) for view in views.values() if view.numel()]
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    low, high = span(block)
    assert low <= spans[0][0]
    assert spans[-1][1] <= high
    assert block.numel() == sum(-(-v.numel() * v.element_size() // 64) * 64 for v in views.values())


def test_writing_a_view_writes_the_block_and_copying_the_block_copies_all():
    arena = Arena(FIELDS)
    views = arena.views
    for number, view in enumerate(views.values()):
        view.fill_(number)
    copy = arena.like(torch.device("cpu"))
    copy.copy_(arena)
    other = copy.views
    assert all(torch.equal(other[name], views[name]) for name in FIELDS)
    assert other["index"].unique().tolist() == [2]


def test_what_nobody_wrote_shows():
    views = Arena(FIELDS).views
    assert views["number"].isnan().all()
    assert views["exact"].isnan().all()
    assert (views["index"] == -1).all()
    assert (views["image"] == 255).all()


def test_numpy_sees_the_same_memory():
    views = Arena(FIELDS).views
    views["number"].numpy()[:] = np.arange(6).reshape(3, 2)
    assert views["number"].flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_an_arena_of_another_layout_is_refused():
    with pytest.raises(ValueError, match=r"an arena of \['x'\] into one of \['y'\]: expected one layout"):
        Arena({"y": ((2,), torch.float32)}).copy_(Arena({"x": ((2,), torch.float32)}))


def test_an_arena_may_lie_elsewhere():
    arena = Arena(FIELDS).like(torch.device("meta"))
    assert arena.device.type == "meta"
    assert {name: (tuple(v.shape), v.dtype) for name, v in arena.views.items()} == FIELDS
    assert arena.nbytes == Arena(FIELDS).nbytes


@pytest.mark.parametrize(("device", "where"), [("cpu", "doesn't fit: ask"), ("meta", "doesn't fit on meta: ask")])
def test_what_does_not_fit_is_one_line_with_a_cure(device, where, monkeypatch):
    """Out of memory, on the host or a device, played by the allocator."""

    def refuse(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has ...")

    monkeypatch.setattr(torch, "full", refuse)
    with pytest.raises(ValueError, match=where) as error:
        Arena({"x": ((5, 2**30), torch.float32)}, device=torch.device(device))
    assert str(error.value).startswith("a rollout of 20.0 GiB ")
    assert "\n" not in str(error.value)


def test_page_locking_is_asked_for_only_where_wanted(monkeypatch):
    """C69."""
    asked = []
    real = torch.full
    monkeypatch.setattr(torch, "full", lambda *a, pin_memory, **k: asked.append(pin_memory) or real(*a, **k))
    Arena(FIELDS)
    Arena(FIELDS, pin=True)
    assert asked == [False, True]


def test_another_failure_than_want_of_memory_is_left_as_it_is(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr(torch, "full", broken)
    with pytest.raises(RuntimeError, match="no kernel image"):
        Arena({"x": ((5,), torch.float32)})
