"""Placement: which device acts, which learns, and where what was seen is kept in between."""

from dataclasses import dataclass

import torch

from hybridrl.placement import devices


@dataclass(frozen=True)
class Placement:
    """Where acting and learning happen, and where rollouts are stored.

    ``"cpu"`` or ``"cuda"`` name one device for everything. ``"cpu+cuda"`` acts on the first and learns on the
    second: two copies of the policy, one bulk transfer a rollout, one copy of the weights back. ``"cpu+cpu"`` does the
    same between two memories of one device, to try the mechanics without a second.

    Args:
        act: device of the acting policy.
        learn: device of the learner.
        store: where rollouts are written, ``"cpu"`` or the acting device; None for the acting device.
        separate: whether the learner has memory of its own; None: where the two devices differ.

    Raises:
        ValueError: a device isn't here (nothing falls back silently), or the parts contradict one another.
    """

    act: str
    learn: str
    store: str | None = None
    separate: bool | None = None

    def __post_init__(self) -> None:
        for name in ("act", "learn"):
            object.__setattr__(self, name, devices.canonical(getattr(self, name)))
        object.__setattr__(self, "store", self.act if self.store is None else devices.canonical(self.store))
        if self.store not in (devices.CPU, self.act):
            raise ValueError(
                f"store={self.store!r}: a rollout is stored on the cpu or where it is acted ({self.act!r}), and moved "
                "once; leave store out"
            )
        if self.separate not in (None, True, False) or isinstance(self.separate, int) > isinstance(self.separate, bool):
            raise ValueError(f"separate={self.separate!r:.60}: expected True, False or None")
        differ = self.act != self.learn
        if self.separate is False and differ:
            raise ValueError(f"separate=False with act={self.act!r}, learn={self.learn!r}: two devices share no memory")
        object.__setattr__(self, "separate", differ if self.separate is None else self.separate)

    @classmethod
    def parse(cls, text: "str | torch.device | Placement") -> "Placement":
        """Read ``"cpu"`` (one device for all), or ``"act+learn"``.

        Raises:
            ValueError: it is written otherwise, or names a device that isn't here.
        """
        if isinstance(text, Placement):
            return text
        if isinstance(text, torch.device):
            text = str(text)
        parts = text.split("+") if isinstance(text, str) else []
        if not 1 <= len(parts) <= 2 or not all(parts):
            raise ValueError(f"placement {text!r:.60}: expected a device, or two as 'cpu+cuda' (act+learn)")
        try:
            return cls(parts[0], parts[-1], separate=len(parts) == 2)
        except ValueError as error:
            raise ValueError(f"placement {text!r}: {error}") from None

    @property
    def act_device(self) -> torch.device:
        """Where the policy acts."""
        return devices.resolve(self.act)

    @property
    def learn_device(self) -> torch.device:
        """Where the learner computes."""
        return devices.resolve(self.learn)

    @property
    def store_device(self) -> torch.device:
        """Where rollouts are written."""
        return devices.resolve(self.store or self.act)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices in use, each once."""
        return tuple(dict.fromkeys((self.act_device, self.learn_device, self.store_device)))

    def __str__(self) -> str:
        name = f"{self.act}+{self.learn}" if self.separate else self.act
        return name if self.store == self.act else f"{name} (stored on {self.store})"
