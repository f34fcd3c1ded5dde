"""From which size on one way is faster than another: a bracket, never a number that the spread doesn't support."""

from collections.abc import Mapping
from dataclasses import dataclass

from hybridrl.experiments.measurement import Comparison, format_value


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """Where the faster of two changes as a size grows; sizes between the two ends show no clear order."""

    first: str
    """Faster at small sizes, if there is a crossover."""
    second: str
    """Faster at large ones."""
    sizes: tuple[int, ...]
    """Those compared, ascending."""
    first_up_to: int | None
    """``first`` is clearly faster at every size up to this one; None: not even at the smallest."""
    second_from: int | None
    """``second`` is clearly faster at every size from this one on; None: not even at the largest."""

    @property
    def found(self) -> bool:
        """Whether both are clearly faster at their own end of the range."""
        return self.first_up_to is not None and self.second_from is not None

    def __str__(self) -> str:
        if self.found:
            return f"between {_size(self.first_up_to)} and {_size(self.second_from)}"
        return f"no crossover from {_size(self.sizes[0])} to {_size(self.sizes[-1])}: {self._winner()}"

    def _winner(self) -> str:
        if self.first_up_to is not None:
            return f"{self.first} faster {_until(self.first_up_to, self.sizes)}"
        if self.second_from is not None:
            return f"{self.second} faster {_since(self.second_from, self.sizes)}"
        return "no clear order"


def find(first: str, second: str, comparisons: Mapping[int, Comparison]) -> Crossover:
    """The crossover of two ways, from their times at each size.

    Args:
        first: expected to be faster at small sizes.
        second: at large ones.
        comparisons: time of ``first`` against time of ``second``, by size.

    Raises:
        ValueError: there are no sizes.
    """
    if not comparisons:
        raise ValueError("a crossover over no sizes; expected at least one comparison")
    sizes = tuple(sorted(comparisons))
    small = _while(sizes, comparisons, "lower")
    large = _while(sizes[::-1], comparisons, "higher")
    return Crossover(first=first, second=second, sizes=sizes, first_up_to=small, second_from=large)


def _while(sizes: tuple[int, ...], comparisons: Mapping[int, Comparison], verdict: str) -> int | None:
    """The last size, in this order, before the verdict changes."""
    last = None
    for size in sizes:
        if comparisons[size].verdict != verdict:
            break
        last = size
    return last


def _until(size: int, sizes: tuple[int, ...]) -> str:
    return "throughout" if size == sizes[-1] else f"up to {_size(size)}, then no clear order"


def _since(size: int, sizes: tuple[int, ...]) -> str:
    return "throughout" if size == sizes[0] else f"from {_size(size)} on, before that no clear order"


def _size(size: int | None) -> str:
    assert size is not None
    return format_value(size)
