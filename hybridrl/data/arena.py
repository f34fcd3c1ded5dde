"""One allocation with typed views: what is allocated together moves together, in one transfer."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes: each view starts on a cache line, which also suits every dtype and vector load."""
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "invalid size", "storage size")
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
_HOST = torch.device("cpu")


class Arena:
    """A block of bytes on one device, cut into typed views.

    The block starts filled with ones in every bit: NaN as a float, -1 as an integer. What nobody wrote shows.

    Args:
        layout: name -> (shape, dtype), in the order in which they shall lie.
        device: where.
        pin: page-lock it (on the host), so that copies to a GPU run at full speed and beside other work.

    Raises:
        ValueError: it doesn't fit, or nothing here can use page-locked memory.

    Attributes:
        layout: as given.
        block: uint8 ``[bytes]``.
        views: name -> view of the wanted shape and dtype.
    """

    def __init__(self, layout: Layout, *, device: torch.device = _HOST, pin: bool = False) -> None:
        self.layout, self.pinned = dict(layout), pin
        self.block = _allocate(_bytes(self.layout), device, pin)
        self.views = dict(zip(self.layout, _cut(self.block, self.layout), strict=True))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.block.device

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.block.numel()

    def like(self, device: torch.device, *, pin: bool = False) -> "Arena":
        """Another of the same layout."""
        return Arena(self.layout, device=device, pin=pin)

    def copy_(self, source: "Arena", *, non_blocking: bool = False) -> None:
        """Take over everything from another arena of the same layout, by one copy.

        Args:
            source: on any device.
            non_blocking: let the copy run beside the host's work; the source must be page-locked, and left alone
                until the copy has ended. Only towards a device: the host could read too early.

        Raises:
            ValueError: the layouts differ.
        """
        if source.layout != self.layout:
            raise ValueError(f"an arena of {list(source.layout)} into one of {list(self.layout)}: expected one layout")
        self.block.copy_(source.block, non_blocking=non_blocking)


def _bytes(layout: Layout) -> int:
    return sum(_aligned(prod(shape) * dtype.itemsize) for shape, dtype in layout.values())


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _allocate(size: int, device: torch.device, pin: bool) -> Tensor:
    try:
        return torch.full((size,), 0xFF, dtype=torch.uint8, device=device, pin_memory=pin)
    except RuntimeError as error:
        text = str(error).lower()
        if pin and "pin_memory=true requires" in text:
            raise ValueError("page-locked memory needs an accelerator, and none is here: leave pinning out") from None
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in text for words in _NO_MEMORY):
            raise
        where = "" if device.type == "cpu" else f" on {device}"
        raise ValueError(
            f"a rollout of {size / 2**30:,.1f} GiB doesn't fit{where}: ask for fewer rows or environments"
        ) from None


def _cut(block: Tensor, layout: Layout) -> list[Tensor]:
    views, start = [], 0
    for shape, dtype in layout.values():
        size = prod(shape) * dtype.itemsize
        views.append(block[start : start + size].view(dtype).view(shape))
        start += _aligned(size)
    return views
