"""Placement: which device acts and which learns."""

from dataclasses import dataclass

_SUPPORTED = ("cpu",)
"""Devices that the schedules of this version can use."""


@dataclass(frozen=True)
class Placement:
    """Where acting and learning happen.

    Raises:
        ValueError: a device that this version cannot use; nothing falls back silently.
    """

    act: str
    """Device of the acting policy."""
    learn: str
    """Device of the learner."""

    def __post_init__(self) -> None:
        for device in (self.act, self.learn):
            if device not in _SUPPORTED:
                raise ValueError(f"placement {str(self)!r}: this version acts and learns on: {', '.join(_SUPPORTED)}")

    @classmethod
    def parse(cls, text: "str | Placement") -> "Placement":
        """Read ``"cpu"`` (one device for all), or ``"act+learn"``."""
        if isinstance(text, Placement):
            return text
        act, plus, learn = str(text).partition("+")
        return cls(act, learn if plus else act)

    def __str__(self) -> str:
        return self.act if self.act == self.learn else f"{self.act}+{self.learn}"
