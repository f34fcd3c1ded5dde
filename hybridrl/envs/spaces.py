"""What a network sees of an environment's spaces: shapes, dtypes, and the way back for actions."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
Bounds = Literal["scale", "clip"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationSpec:
    """Shape and dtype of one environment's observation, as the library stores it.

    ``dtype`` is uint8 where the environment's is (images), float32 otherwise; ``note`` says when that is a cast.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    note: str = ""

    @classmethod
    def of(cls, space: gym.Space[Any]) -> ObservationSpec:
        """Describe a Box; any other space raises a ValueError that names the wrapper to use."""
        if not isinstance(space, spaces.Box):
            raise ValueError(_refused_observation(space))
        if space.shape == ():
            raise ValueError(
                "observation space Box(shape=()): expected at least one dimension; wrap each environment in "
                "gymnasium.wrappers.ReshapeObservation(env, (1,))"
            )
        if space.dtype in (np.dtype(np.uint8), np.dtype(np.float32)):
            return cls(shape=space.shape, dtype=np.dtype(space.dtype))
        note = f"observations stored as float32, the environment's are {space.dtype}"
        return cls(shape=space.shape, dtype=np.dtype(np.float32), note=note)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ActionSpec:
    """One environment's actions: the network's terms on one side, the environment's own on the other.

    discrete: ``size`` actions, indices 0..size-1 for the network, start..start+size-1 for the environment.
    multi-discrete: ``size`` of those at once, in C order; ``sizes`` [size] says how many actions each has, ``start``
    [size] where each begins. A MultiBinary is one whose sizes are all 2.
    continuous: ``size`` numbers for the network, an array of ``shape`` and ``dtype`` for the environment, with
    per-dimension bounds ``low``, ``high`` [size]. ``bounds`` says how the two meet: "scale" maps [-1, 1] affinely
    onto [low, high] and then clips; "clip" only clips, and lets unbounded dimensions through.
    """

    kind: Literal["discrete", "multi-discrete", "continuous"]
    size: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: tuple[int, ...] = ()
    start: int | Array = 0
    low: Array | None = None
    high: Array | None = None
    bounds: Bounds = "clip"

    def __post_init__(self) -> None:
        if self.bounds not in ("scale", "clip"):
            raise ValueError(f"bounds={self.bounds!r}: expected 'scale' or 'clip'")
        if self.kind == "multi-discrete" and not self.sizes:
            raise ValueError("an action space of no dimensions: expected at least one")
        if self.bounds == "clip" or self.is_bounded:
            return
        dims = ", ".join(map(str, np.flatnonzero(~self._finite())))
        raise ValueError(
            f"bounds='scale' needs a bounded Box, but dimension {dims} of {self.size} is unbounded: "
            "use bounds='clip', or wrap the environment in gymnasium.wrappers.TransformAction"
        )

    @classmethod
    def of(cls, space: gym.Space[Any], bounds: Bounds = "clip") -> ActionSpec:
        """Describe a Discrete, MultiDiscrete, MultiBinary or float Box; others raise a ValueError that says more."""
        if isinstance(space, spaces.Discrete):
            dtype: np.dtype[Any] = np.dtype(space.dtype)
            return cls(
                kind="discrete",
                size=int(space.n),
                shape=(),
                dtype=dtype,
                start=int(space.start),
                bounds=bounds,
            )
        if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            return _multi_discrete(space, bounds)
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            dtype = np.dtype(space.dtype)
            return cls(
                kind="continuous",
                size=low.size,
                shape=space.shape,
                dtype=dtype,
                low=low,
                high=high,
                bounds=bounds,
            )
        raise ValueError(_refused_action(space))

    @property
    def is_bounded(self) -> bool:
        """True when every dimension has two finite bounds (and for discrete actions)."""
        return self.kind != "continuous" or bool(self._finite().all())

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Shape of one action in the network's terms: () for discrete actions, else (size,)."""
        return () if self.kind == "discrete" else (self.size,)

    @property
    def network_dtype(self) -> np.dtype[Any]:
        """Dtype of actions in the network's terms: float32 for continuous ones, else int64."""
        return np.dtype(np.float32 if self.kind == "continuous" else np.int64)

    def with_bounds(self, bounds: Bounds) -> ActionSpec:
        """Return the same actions with the other bounds handling; "scale" raises on an unbounded Box."""
        return dataclasses.replace(self, bounds=bounds)

    def to_env(self, actions: Array) -> Array:
        """Turn the network's actions ``[N, *network_shape]`` into the environment's ``[N, *shape]``."""
        if self.low is None or self.high is None:
            shifted = actions + self.start if self._shifts else actions
            cast = shifted.astype(self.dtype)  # a copy: what an environment does to it must not reach what is stored
            return cast.reshape(len(cast), *self.shape)
        if self.bounds == "scale":
            # In float64, since high - low of a float32 Box may overflow; -1 gives `low` exactly.
            actions = self.low + (actions + 1.0) * self._half_range
        cast = actions.astype(self.dtype)
        np.maximum(cast, self.low, out=cast)
        np.minimum(cast, self.high, out=cast)
        return cast.reshape(len(cast), *self.shape)

    def from_env(self, actions: Array) -> Array:
        """Invert ``to_env``: the environment's actions to the network's, int64 or float32 ``[N, *network_shape]``."""
        flat = np.asarray(actions).reshape(len(actions), *self.network_shape)
        if self.low is None:
            return flat.astype(np.int64) - self.start
        if self.bounds == "scale":
            half = self._half_range
            # A dimension whose bounds coincide has one action; any number stands for it.
            flat = np.divide(flat - self.low.astype(np.float64), half, out=np.ones(flat.shape), where=half > 0) - 1.0
        return flat.astype(np.float32)

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Draw ``count`` uniform actions in the network's terms, int64 or float32 ``[count, *network_shape]``.

        Dimensions without two finite bounds are drawn from a standard normal ("clip" only).
        """
        if self.low is None or self.high is None:
            return rng.integers(self.sizes or self.size, size=(count, *self.network_shape), dtype=np.int64)
        unit = rng.uniform(-1.0, 1.0, (count, self.size))
        if self.bounds == "scale":
            return unit.astype(np.float32)
        finite = self._finite()
        low, high = np.where(finite, self.low, 0.0), np.where(finite, self.high, 0.0)
        normal = np.clip(rng.standard_normal((count, self.size)), self.low, self.high)
        return np.where(finite, low + (unit + 1.0) * (high - low) / 2.0, normal).astype(np.float32)

    def _finite(self) -> npt.NDArray[np.bool_]:
        if self.low is None or self.high is None:
            return np.ones(0, dtype=np.bool_)
        return np.isfinite(self.low) & np.isfinite(self.high)

    @functools.cached_property
    def _shifts(self) -> bool:
        return bool(np.any(self.start))

    @functools.cached_property
    def _half_range(self) -> npt.NDArray[np.float64]:
        if self.low is None or self.high is None:
            raise AssertionError("only continuous actions have a range")
        return (self.high.astype(np.float64) - self.low.astype(np.float64)) / 2.0


def _multi_discrete(space: spaces.MultiDiscrete | spaces.MultiBinary, bounds: Bounds) -> ActionSpec:
    nvec: Array = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
    start: Array = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(space.shape)
    return ActionSpec(
        kind="multi-discrete",
        size=nvec.size,
        shape=space.shape,
        dtype=np.dtype(space.dtype),
        sizes=tuple(nvec.reshape(-1).tolist()),
        start=start.reshape(-1).astype(np.int64),
        bounds=bounds,
    )


def _refused_observation(space: gym.Space[Any]) -> str:
    if space.is_np_flattenable:
        cure = "env=lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make(...))"
    else:
        cure = "gymnasium.wrappers.TransformObservation, with a function that returns one array"
    return f"observation space {_short(space)}: expected a Box; wrap each environment, {cure}"


def _refused_action(space: gym.Space[Any]) -> str:
    return (
        f"action space {_short(space)}: expected a Discrete, MultiDiscrete, MultiBinary or float Box; wrap each "
        "environment in gymnasium.wrappers.TransformAction, to one of these"
    )


def _short(space: gym.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else text[:77] + "..."
