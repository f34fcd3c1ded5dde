"""One allocation with typed views: what is allocated together moves together, in one transfer."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes: each view starts on a cache line, which also suits every dtype and vector load."""


def arena_views(fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Allocate one block of bytes on the host and cut it into typed views.

    The block starts filled with ones in every bit: NaN as a float, -1 as an integer. What nobody wrote shows.

    Args:
        fields: name -> (shape, dtype), in the order in which they shall lie.

    Returns:
        The block, uint8 ``[bytes]``, and name -> view of the wanted shape and dtype.
    """
    starts, total = [], 0
    for shape, dtype in fields.values():
        starts.append(total)
        total += -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    try:
        block = torch.full((total,), 0xFF, dtype=torch.uint8)
    except RuntimeError:
        raise ValueError(
            f"a rollout of {total / 2**30:,.0f} GiB doesn't fit: ask for fewer rows or environments"
        ) from None
    views = {}
    for start, (name, (shape, dtype)) in zip(starts, fields.items(), strict=True):
        stop = start + prod(shape) * dtype.itemsize
        views[name] = block[start:stop].view(dtype).view(shape)
    return block, views
