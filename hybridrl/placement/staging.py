"""Staging: from the host to a device through page-locked memory that is allocated once.

Page-locking is a slow copy in itself, so that pinning each batch anew costs more than it saves.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hybridrl.data.arena import Arena, Layout
from hybridrl.placement import devices


class Staging:
    """Pairs of a host arena and a device arena, used in turns: while one is copied the next is filled.

    A host arena isn't handed out again before the device has finished reading it. What :meth:`send` returns stays
    valid until it has been called ``slots`` times more::

        staging = Staging({"x": ((256, 4), torch.float32)}, "cuda")
        for batch in batches:
            staging.next()["x"].copy_(batch)
            loss = model(staging.send()["x"]).mean()

    Args:
        layout: name -> (shape, dtype) of a batch.
        device: where to, by name or as torch's.
        slots: pairs; two let filling and copying overlap.
        pin: page-lock the host's side; None where that helps.
        event: makes a mark in the device's queue.

    Raises:
        ValueError: ``slots`` is below 1, it doesn't fit, or pinning was asked for where nothing can use it.
    """

    def __init__(
        self,
        layout: Layout,
        device: torch.device | str,
        *,
        slots: int = 2,
        pin: bool | None = None,
        event: Callable[[], devices.Event] | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots={slots}: expected at least 1")
        device = devices.resolve(device) if isinstance(device, str) else device
        self._made = (dict(layout), device, slots, pin, event)
        self._pin = devices.can_pin(device) if pin is None else pin
        make_event = event or partial(devices.event, device)
        self._slots = [(Arena(layout, pin=self._pin), Arena(layout, device=device), make_event()) for _ in range(slots)]
        self._sent = [False] * slots
        self._turn = slots - 1
        self._filling = False

    def __deepcopy__(self, memo: dict[int, object]) -> "Staging":
        """Another of the same make, with nothing under way: events can't be copied."""
        layout, device, slots, pin, event = self._made
        return Staging(layout, device, slots=slots, pin=pin, event=event)

    @property
    def nbytes(self) -> int:
        """Bytes of one batch."""
        return self._slots[0][0].nbytes

    def next(self) -> dict[str, Tensor]:
        """Views of a host arena that is free to be filled; waits for the copy that last read it."""
        if not self._filling:
            self._turn, self._filling = (self._turn + 1) % len(self._slots), True
        host, _, event = self._slots[self._turn]
        if self._sent[self._turn]:
            event.synchronize()
            self._sent[self._turn] = False
        return host.views

    def send(self) -> dict[str, Tensor]:
        """Copy what was filled, in one transfer; returns its views on the device.

        Raises:
            ValueError: nothing was filled since the last.
        """
        if not self._filling:
            raise ValueError("send() without next(): fill what next() returns first")
        host, there, event = self._slots[self._turn]
        there.copy_(host, non_blocking=self._pin)
        event.record()
        self._sent[self._turn], self._filling = True, False
        return there.views
