"""The arena: one block, aligned views of it, and absurd numbers where nobody wrote."""

from itertools import pairwise

import numpy as np
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
