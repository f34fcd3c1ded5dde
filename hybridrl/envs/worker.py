"""The other side of ``processes``: what is sent to a worker, and what it does there."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from hybridrl.envs.factory import AnyEnv, first_line, load
from hybridrl.envs.spaces import Array

STEP = b"step"
"""The order to step; the others begin with ``reset``, and end with a seed or nothing."""
_LINE = 64
Fields = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """What parent and workers share, a row for each environment."""

    action: Array  # [N, *shape], in the environment's terms; written by the parent, the rest by the workers
    observation: Array  # [N, *shape]
    final: Array  # [N, *shape]; SAME_STEP: the observation that ended an episode
    reward: npt.NDArray[np.float64]  # [N]
    terminated: npt.NDArray[np.bool_]  # [N]
    truncated: npt.NDArray[np.bool_]  # [N]

    @staticmethod
    def fields(count: int, observation: gym.Space[Any], action: gym.Space[Any]) -> Fields:
        """Name each array's shape and dtype."""
        spaces = {"action": action, "observation": observation, "final": observation}
        batched = {name: ((count, *(space.shape or ())), np.dtype(space.dtype)) for name, space in spaces.items()}
        flags = dict.fromkeys(("terminated", "truncated"), ((count,), np.dtype(np.bool_)))
        return {**batched, "reward": ((count,), np.dtype(np.float64)), **flags}

    @staticmethod
    def size(fields: Fields) -> int:
        """Count the bytes that the arrays take, each from a cache line of its own on."""
        return sum(_padded(shape, dtype) for shape, dtype in fields.values())

    @classmethod
    def of(cls, block: Any, fields: Fields) -> Board:
        """Cut a block of memory into arrays."""
        memory, views, start = np.frombuffer(block, np.uint8), {}, 0
        for name, (shape, dtype) in fields.items():
            stop = start + math.prod(shape) * dtype.itemsize
            views[name] = memory[start:stop].view(dtype).reshape(shape)
            start += _padded(shape, dtype)
        return cls(**views)


def _padded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _LINE) * _LINE


# What is sent


@dataclasses.dataclass(frozen=True)
class _Parcel:
    """What a worker needs to make its environment."""

    factory: Callable[[], AnyEnv]
    spec: EnvSpec | None  # of its id, in case only this process has registered it
    spaces: tuple[gym.Space[Any], gym.Space[Any]]  # of observations and actions
    fields: Fields
    mode: AutoresetMode


def pack(factory: Callable[[], AnyEnv], like: AnyEnv, fields: Fields, mode: AutoresetMode) -> bytes:
    """Pack a factory by value, with what the worker can't know; a ValueError says why it can't be sent."""
    parcel = _Parcel(factory, _registered(like), (like.observation_space, like.action_space), fields, mode)
    try:
        return bytes(ForkingPickler.dumps(CloudpickleWrapper(parcel)))  # type: ignore[arg-type]  # it wraps anything
    except Exception as error:
        raise ValueError(
            f"the callable can't be sent to another process ({first_line(error)}): define it in a module, and let it "
            "make what it needs itself"
        ) from error


def _registered(like: AnyEnv) -> EnvSpec | None:
    spec = gym.registry.get(like.spec.id) if like.spec is not None else None
    if spec is not None and str(spec.entry_point).startswith("__main__:"):
        return dataclasses.replace(spec, entry_point=load(spec.entry_point or ""))  # that module isn't there
    return spec


# What a worker does


def work(index: int, pipe: Connection, parcel: bytes, block: Any) -> None:
    """Make an environment and do as the parent says, until it closes its end of the pipe, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resident = _Resident(index, block)
    tag, failure = b"\0", _attempt(resident.move_in, parcel)
    _limit_torch()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send_bytes(tag + failure)
            if failure:
                break
            order = pipe.recv_bytes()
            tag, failure = order[:1], _attempt(resident.obey, order[1:])
    resident.move_out()


def _limit_torch() -> None:
    """Torch counted its threads when it was loaded, which may have been in the fork server, for somebody else."""
    torch = sys.modules.get("torch")
    if torch is not None and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(1)


def _attempt(what: Callable[[bytes], None], order: bytes) -> bytes:
    """Do it; b"" if that went well, else a line about what it raised and where, a NUL, and the traceback."""
    try:
        what(order)
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent is told
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
        return f"{type(error).__name__}: {first_line(error)} ({where})\0{traceback.format_exc()}".encode()
    return b""


class _Resident:
    """An environment, and the row of the board that is its."""

    _board: Board
    _mode: AutoresetMode

    def __init__(self, index: int, block: Any) -> None:
        self._index, self._block = index, block
        self._env: Any = None
        self._ended = False

    def move_in(self, parcel: bytes) -> None:
        """Make the environment."""
        made: _Parcel = ForkingPickler.loads(parcel).fn  # what the parent sent, as all that starts a process
        self._board, self._mode = Board.of(self._block, made.fields), made.mode
        if made.spec is not None:
            gym.registry.setdefault(made.spec.id, made.spec)
        self._env = made.factory()
        if (self._env.observation_space, self._env.action_space) != made.spaces:
            raise ValueError("its spaces aren't those of the one made in the parent: all must be alike")

    def move_out(self) -> None:
        """Close it."""
        if self._env is not None:
            self._env.close()

    def obey(self, order: bytes) -> None:
        """Step or reset."""
        if order != STEP:
            seed = order.decode().removeprefix("reset ")
            self._reset(int(seed) if seed else None)
        elif self._ended and self._mode is AutoresetMode.NEXT_STEP:
            self._reset(None)
        else:
            self._step()

    def _reset(self, seed: int | None) -> None:
        observation, _ = self._env.reset(seed=seed)
        self._write(observation, 0.0, False, False)
        self._ended = False

    def _step(self) -> None:
        # A copy: what an environment keeps of its actions must not change.
        observation, reward, terminated, truncated, _ = self._env.step(self._board.action[self._index].copy())
        self._ended = bool(terminated or truncated)
        if self._ended and self._mode is AutoresetMode.SAME_STEP:
            self._put(self._board.final, observation)
            observation, _ = self._env.reset()
        self._write(observation, reward, terminated, truncated)

    def _write(self, observation: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        board, i = self._board, self._index
        self._put(board.observation, observation)
        board.reward[i], board.terminated[i], board.truncated[i] = reward, terminated, truncated

    def _put(self, column: Array, observation: Any) -> None:
        if np.shape(observation) != column.shape[1:]:
            raise ValueError(f"an observation of shape {np.shape(observation)}: expected {column.shape[1:]}")
        np.copyto(column[self._index : self._index + 1], observation, casting="same_kind")
