"""Loggers: callbacks for ``learn`` that write down how training goes while it goes on."""

import io
import math
import os
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from hybridrl.envs import Episode
from hybridrl.execution import Iteration

WINDOW = 100
"""Episodes that the means of return and length are taken over, as in Stable-Baselines3."""
_PREFIX = "events.out.tfevents"


class TensorBoardLogger:
    """Writes one event file for TensorBoard: give it to ``learn(callback=...)``, and close it afterwards.

    After each update, against environment steps: ``rollout/ep_rew_mean`` and ``rollout/ep_len_mean`` (raw, over the
    last 100 episodes that this logger saw), ``time/fps`` and ``time/time_elapsed`` (seconds; both since this logger
    was made), and ``train/`` with ``policy_loss``, ``value_loss``, ``entropy``, ``approx_kl``, ``clip_fraction``,
    ``explained_variance``, ``grad_norm`` and ``learning_rate``. A number that isn't known is left out.

    What one update gave is one record, handed to the system before training goes on: a killed run loses none. If
    writing fails (a full disk), training goes on, with one warning; logging goes on when writing works again.

    Args:
        folder: of the run; made if it isn't there.
        first_timestep: steps that the agent took before. Points beyond it that the folder holds from a run that was
            killed after its last checkpoint are purged, so that curves don't double back.
        clock: nanoseconds.

    Raises:
        ValueError: TensorBoard isn't installed, or the steps are below 0.
        OSError: the folder can't be written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        first_timestep: int = 0,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if type(first_timestep) is not int or first_timestep < 0:
            raise ValueError(f"first_timestep={first_timestep!r}: expected a whole number of at least 0")
        self._first, self._clock, self._start = first_timestep, clock, clock()
        self._episodes = deque[Episode](maxlen=WINDOW)
        self._events = _EventFile(Path(folder), first_timestep + 1)

    @property
    def path(self) -> Path:
        """The event file."""
        return self._events.path

    def __call__(self, iteration: Iteration) -> None:
        """Write one update's scalars.

        Raises:
            ValueError: the logger is closed.
        """
        self._episodes.extend(iteration.finished)
        elapsed = (self._clock() - self._start) / 1e9
        scalars = {**_rollout(self._episodes), **_train(iteration), "time/time_elapsed": elapsed}
        if elapsed > 0:
            scalars["time/fps"] = (iteration.timesteps - self._first) / elapsed
        known = {tag: value for tag, value in scalars.items() if math.isfinite(value)}
        self._events.write_scalars(known, iteration.timesteps)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _rollout(episodes: deque[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    return {
        "rollout/ep_rew_mean": fmean(episode.return_ for episode in episodes),
        "rollout/ep_len_mean": fmean(episode.length for episode in episodes),
    }


def _train(iteration: Iteration) -> dict[str, float]:
    s = iteration.statistics
    return {
        "train/policy_loss": s.policy_loss,
        "train/value_loss": s.value_loss,
        "train/entropy": s.entropy,
        "train/approx_kl": s.approximate_kl,
        "train/clip_fraction": s.clip_fraction,
        "train/explained_variance": s.explained_variance,
        "train/grad_norm": s.gradient_norm,
        "train/learning_rate": s.learning_rate,
    }


class _EventFile:
    """An event file, written without a thread: torch's SummaryWriter reports a full disk late, from another one."""

    def __init__(self, folder: Path, purge_from: int) -> None:
        """Begin a file that voids what older ones in the folder say of a step and later ones."""
        self._format, self._failing = _Format(), False
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{_PREFIX}.{_stamp(folder):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("xb", buffering=0)
        try:
            self._append(self._format.start(purge_from))
        except OSError:
            self.close()
            raise

    def write_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Write them as one record, or warn that it can't be done, once for each time that it begins to fail."""
        if self._file.closed:
            raise ValueError(f"{self.path}: the logger is closed; make another")
        try:
            self._append(self._format.scalars(scalars, step))
        except OSError as error:
            if not self._failing:
                self._failing = True
                warnings.warn(f"{self.path}: not logged ({error}); training goes on", stacklevel=2)
        else:
            self._failing = False

    def _append(self, record: bytes) -> None:
        """All of it or nothing: a reader stops for good at a torn record with others behind it."""
        end = self._file.tell()
        try:
            written = self._file.write(record)
            if written != len(record):
                raise OSError(f"{written} of {len(record)} bytes written: is the disk full?")
        except OSError:
            self._file.truncate(end)
            self._file.seek(end)
            raise

    def close(self) -> None:
        self._file.close()


def _stamp(folder: Path) -> int:
    """Seconds of now, but later than every other file's: TensorBoard reads them in the order of their names."""
    stamps = [path.name.split(".")[3] for path in folder.glob(f"{_PREFIX}.*")]
    return max([int(time.time()), *(int(stamp) + 1 for stamp in stamps if stamp.isdigit())])


class _Format:
    """TensorBoard's records as bytes."""

    def __init__(self) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ValueError(
                f"TensorBoard can't be imported ({error}): pip install 'hybridrl[tensorboard]', or log without it"
            ) from None
        self._event, self._session = event_pb2.Event, event_pb2.SessionLog
        self._summary, self._writer = summary_pb2.Summary, RecordWriter

    def start(self, step: int) -> bytes:
        """What a file begins with; a start at a step purges what older files say of it and later ones."""
        version = self._event(wall_time=time.time(), file_version="brain.Event:2")
        session = self._session(status=self._session.START)
        return self._record(version) + self._record(self._event(wall_time=time.time(), step=step, session_log=session))

    def scalars(self, scalars: Mapping[str, float], step: int) -> bytes:
        """One record of several scalars."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        return self._record(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def _record(self, event: Any) -> bytes:
        buffer = io.BytesIO()
        self._writer(buffer).write(event.SerializeToString())
        return buffer.getvalue()
