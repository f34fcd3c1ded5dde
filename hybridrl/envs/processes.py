"""A process for each environment: worth its messages where a step takes long.

Gymnasium's ``AsyncVectorEnv`` does this too. Here a worker never imports the main module (which reruns a script that
lacks its ``__main__`` guard, and loads torch into every worker), it sends no ``info``, and all its ways to die end in
one line.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from hybridrl.envs.factory import AnyEnv
from hybridrl.envs.spaces import Array
from hybridrl.envs.worker import STEP, Board, pack
from hybridrl.launch import enter, start_method, thread_variables, without_main

START_S = 120.0
"""Patience with workers that make their environments, where nobody says how long that takes."""
CLOSE_S = 5.0
"""Patience with workers that close their environments, before they are ended by force."""
_REMEDY = "define it in a module that can be imported there"


class ProcessVectorEnv(gym.vector.VectorEnv[Array, Array, Array]):
    """Steps N environments at once, each in a process of its own, started by forkserver (POSIX) or spawn, never fork.

    Actions, observations, rewards and flags lie in shared memory; what ``reset`` and ``step`` return are views of it
    that the next call writes again. Workers compute in one thread, unless OMP_NUM_THREADS says otherwise, and ignore
    Ctrl-C, which is the parent's to handle. They end when the parent closes them, or is gone.

    Args:
        factory: makes one environment; sent by value, so that a lambda or a local function will do.
        num_envs: N.
        like: one environment made here: its spaces, which all must have. It isn't stepped, and may be closed.
        autoreset_mode: of Gymnasium's three.
        step_timeout_s: patience with a step or a reset; None waits for ever.
        start_timeout_s: patience with the workers' start.

    Raises:
        ValueError: the factory can't be sent, or processes can't be started here.
        ChildProcessError: an environment raised, or its process died; all are closed then. So from every call.
        TimeoutError: an environment didn't answer in time; all are closed then.
    """

    def __init__(
        self,
        factory: Callable[[], AnyEnv],
        num_envs: int,
        *,
        like: AnyEnv,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        step_timeout_s: float | None = None,
        start_timeout_s: float = START_S,
    ) -> None:
        self.num_envs, self.autoreset_mode = num_envs, autoreset_mode
        self.metadata = {**(like.metadata or {}), "autoreset_mode": autoreset_mode}
        self.single_observation_space, self.single_action_space = like.observation_space, like.action_space
        self.observation_space = batch_space(like.observation_space, num_envs)
        self.action_space = batch_space(like.action_space, num_envs)
        self.step_timeout_s = step_timeout_s
        self.processes: list[Any] = []  # the context's own kind
        self._pipes: list[Connection] = []
        self._tag = b"\0"
        self._why_closed = ""
        fields = Board.fields(num_envs, like.observation_space, like.action_space)
        parcel = pack(factory, like, fields, autoreset_mode)
        context: Any = multiprocessing.get_context(start_method())
        block = context.RawArray(ctypes.c_uint8, Board.size(fields))
        self._board = Board.of(block, fields)
        try:
            self._start(context, parcel, block)
            self._hear(range(num_envs), start_timeout_s, starting=True)
        except BaseException:
            self.close()
            raise

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start new episodes, everywhere or in the rows of ``options["reset_mask"]`` (bool [N]).

        ``seed``: one for each environment, or one from which they count up.
        """
        self._check_open()
        unknown = set(options or ()) - {"reset_mask"}
        if unknown:
            raise ValueError(f"options {sorted(unknown)}: expected 'reset_mask' alone; no other reaches a process")
        mask = np.ones(self.num_envs, np.bool_) if options is None else np.asarray(options["reset_mask"], np.bool_)
        if mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask of shape {mask.shape}: expected {(self.num_envs,)}")
        rows = np.flatnonzero(mask).tolist()
        seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed or [None] * self.num_envs
        self._tell((row, f"reset {'' if seeds[row] is None else seeds[row]}".encode()) for row in rows)
        self._hear(rows, self.step_timeout_s)
        return self._board.observation, {}

    def step(self, actions: Array) -> tuple[Array, Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """Step all environments; ``infos`` has "final_obs" (SAME_STEP, right in rows that ended) and nothing else."""
        self._check_open()
        board, rows = self._board, range(self.num_envs)
        board.action[...] = actions
        self._tell((row, STEP) for row in rows)
        self._hear(rows, self.step_timeout_s)
        infos = {"final_obs": board.final} if self.autoreset_mode is AutoresetMode.SAME_STEP else {}
        return board.observation, board.reward, board.terminated, board.truncated, infos

    def close_extras(self, patience_s: float = CLOSE_S) -> None:
        """End the workers: they close their environments; those that don't in time are killed."""
        for pipe in self._pipes:
            pipe.close()  # which each worker takes as the order to end
        for patience, force in ((patience_s, "terminate"), (1.0, "kill"), (None, None)):
            deadline = None if patience is None else time.monotonic() + patience
            for process in self.processes:
                process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if force is not None and process.exitcode is None:
                    getattr(process, force)()

    def _start(self, context: Any, parcel: bytes, block: Any) -> None:
        if multiprocessing.current_process().daemon:
            raise ValueError("this process is itself a worker that may start none: use processes=False here")
        variables = thread_variables()
        with without_main():
            for index in range(self.num_envs):
                mine, theirs = context.Pipe()
                self._pipes.append(mine)
                with theirs:  # closed here once it is sent, or the worker's death would go unnoticed
                    arguments = (variables, "hybridrl.envs.worker", "work", index, theirs, parcel, block)
                    process = context.Process(target=enter, args=arguments, name=f"env-{index}", daemon=True)
                    try:
                        process.start()
                    except RuntimeError as error:  # multiprocessing's page-long advice about the main module
                        raise ValueError(_UNGUARDED) from error
                self.processes.append(process)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"these environments are closed{self._why_closed}: make new ones")

    def _tell(self, orders: Iterable[tuple[int, bytes]]) -> None:
        """Send orders to rows. Each has the round's tag, which the answer repeats: one left over is told apart."""
        self._tag = bytes([(self._tag[0] + 1) % 256])
        for row, order in orders:
            try:
                self._pipes[row].send_bytes(self._tag + order)
            except OSError:
                self._lost(row)

    def _hear(self, rows: Sequence[int], patience_s: float | None, *, starting: bool = False) -> None:
        """Wait until every row has done as it was told."""
        deadline = None if patience_s is None else time.monotonic() + patience_s
        for row in rows:
            answer = self._answer(row, deadline)
            if answer is None:
                late = [str(r) for r in rows if r >= row and not self._pipes[r].poll()]
                who = f"environment{'s' if len(late) > 1 else ''} {', '.join(late)} ha{'ve' if len(late) > 1 else 's'}"
                what = "been made" if starting else "answered"
                cure = "" if starting else "; look for what it waits for, or give a longer step_timeout_s"
                self._fail(TimeoutError(f"{who} not {what} within {patience_s:g} s{cure}"))
            if answer:
                line, _, trace = answer.decode().partition("\0")
                what = f"could not be made in its process: {line}; {_REMEDY}" if starting else f"raised {line}"
                error = ChildProcessError(f"environment {row} {what}")
                error.add_note(f"In the process of environment {row}:\n{trace}")
                self._fail(error)

    def _answer(self, row: int, deadline: float | None) -> bytes | None:
        """Receive what a row answers to this round: b"" for done, else what it raised; None if it is late."""
        pipe = self._pipes[row]
        try:
            while deadline is None or pipe.poll(max(0.0, deadline - time.monotonic())):
                answer = pipe.recv_bytes()
                if answer[:1] == self._tag:
                    return answer[1:]
        except (EOFError, OSError):
            self._lost(row)
        return None

    def _lost(self, row: int) -> NoReturn:
        process = self.processes[row]
        process.join(CLOSE_S)
        code = process.exitcode
        end = "closed its pipe" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            end = f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        self._fail(ChildProcessError(f"the process of environment {row} {end}"))

    def _fail(self, error: OSError) -> NoReturn:
        self._why_closed = f" ({error})"
        self.close(patience_s=min(CLOSE_S, 2.0))
        raise error


_UNGUARDED = (
    "processes can't be started while the main module is still being imported: put the script's code under "
    'if __name__ == "__main__":, or use processes=False'
)
