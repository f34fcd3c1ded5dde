"""Run folders: all that a training run leaves, and all that going on with it takes.

``run.json`` says how it began, ``checkpoint.safetensors`` is the agent as last saved, ``result.json`` what came out at
the end; a logger's event files lie beside them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import hybridrl
from hybridrl import checkpoints
from hybridrl.agents import PPO, Callback
from hybridrl.envs import Processes
from hybridrl.execution import Budget
from hybridrl.locks import PREFIX, FolderLock
from hybridrl.recipes import PPORecipe
from hybridrl.results import TrainingResult


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """How a run begins; a run that is gone on with keeps it.

    Raises:
        ValueError: a field is out of its range.
    """

    algorithm: str = "ppo"
    environment: str
    """A Gymnasium id."""
    recipe: PPORecipe
    budget: Budget
    seed: int = 0
    placement: str = "cpu"
    processes: Processes = False
    """Of the environments."""
    threads: int = 1
    checkpoint_every: int = 50
    """Updates."""
    checkpoint_seconds: float = 300.0
    version: str = hybridrl.__version__
    """Of the library that it began with."""

    def __post_init__(self) -> None:
        for name in ("environment", "placement", "version"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r:.60}: expected text")
        for name in ("seed", "threads"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r:.60}: expected a whole number of at least 0")
        if self.processes not in (False, True, "auto"):
            raise ValueError(f"processes={self.processes!r:.60}: expected false, true or 'auto'")
        checkpoints.Schedule(self.checkpoint_every, self.checkpoint_seconds)
        if self.algorithm != "ppo":
            raise ValueError(f"algorithm={self.algorithm!r}: expected 'ppo'")

    def make_agent(self) -> PPO:
        """The agent at its beginning."""
        return PPO(self.environment, self.recipe, placement=self.placement, seed=self.seed, processes=self.processes)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, for JSON."""
        budget = {"timesteps": self.budget.timesteps, "episodes": self.budget.episodes}
        return {**asdict(self), "recipe": self.recipe.to_dict(), "budget": budget}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Invert :meth:`to_dict`.

        Raises:
            ValueError: a field is missing, unknown or out of its range.
        """
        known = {field.name for field in fields(cls)}
        for problem, names in (("missing", known - data.keys()), ("unknown", data.keys() - known)):
            if names:
                raise ValueError(f"{min(names)!r} is {problem}; expected {', '.join(sorted(known))}")
        try:
            parts = {"recipe": PPORecipe.from_dict(data["recipe"]), "budget": Budget(**data["budget"])}
        except TypeError as error:
            raise ValueError(f"not a budget: {error}") from None
        return cls(**{**data, **parts})


class RunFolder:
    """One run's folder, which no other process may train in meanwhile; :meth:`create` or :meth:`open` it.

    Attributes:
        path: of the folder.
        description: how the run began.
        checkpoint: where the agent is saved.
        result: where the result will be.
    """

    def __init__(self, path: Path, description: RunDescription, lock: FolderLock) -> None:
        self.path, self.description, self._lock = path, description, lock
        self.checkpoint, self.result = path / "checkpoint.safetensors", path / "result.json"
        # By a run that was killed while it wrote: the lock says so.
        for pattern in (".*.json.*.partial", ".*.safetensors.*.partial"):
            for left in path.glob(pattern):
                left.unlink(missing_ok=True)

    @classmethod
    def create(cls, path: str | os.PathLike[str], description: RunDescription) -> Self:
        """Begin a run in a folder that is empty, or isn't there.

        Raises:
            ValueError: it isn't empty, or isn't a folder, or another process is at it.
            OSError: it can't be made or written to.
        """
        folder = Path(path)
        _check_empty(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{folder}: can't be made ({error.strerror or error})") from None
        lock = FolderLock(folder)
        try:
            _check_empty(folder)  # again: another run may have begun and ended in between
            run = cls(folder, description, lock)
            _write_json(folder / "run.json", description.to_dict())
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Take up a run that was interrupted.

        Raises:
            ValueError: it isn't a run's folder, or is damaged, or another process is at it.
            OSError: it can't be written to.
        """
        folder = Path(path)
        description = _read_description(folder)
        return cls(folder, description, FolderLock(folder))

    def restore(
        self, *, env: str | None = None, placement: str | None = None, processes: Processes | None = None
    ) -> PPO:
        """The agent as last saved; at its beginning where the run was killed before that.

        Args:
            env: the environment's id once more, needed where it imports a module.
            placement: other than it began with.
            processes: other than it began with.

        Raises:
            ValueError: the checkpoint is damaged or another run's, the run is finished, or ``env`` is needed.
        """
        d = self.description
        if ":" in d.environment and env is None:  # a file must not decide what is imported
            raise ValueError(
                f"{self.path}: trains on {d.environment!r}, which imports a module; if you trust it, go on with: "
                f"hybridrl train {d.algorithm} {d.environment} --resume {self.path}"
            )
        placement = d.placement if placement is None else placement
        processes = d.processes if processes is None else processes
        if not self.checkpoint.exists():
            return replace(d, placement=placement, processes=processes).make_agent()
        agent = PPO.load(self.checkpoint, env=d.environment, placement=placement, processes=processes)
        try:
            self._check_own(agent)
        except ValueError:
            agent.close()
            raise
        return agent

    def learn(self, agent: PPO, *, callbacks: Sequence[Callback] = (), progress_bar: bool = False) -> TrainingResult:
        """Train an agent of this run for what is left of its budget, saving it here."""
        d, goes_on = self.description, agent.unfinished is not None
        return agent.learn(
            None if goes_on else d.budget.timesteps,
            total_episodes=None if goes_on else d.budget.episodes,
            resume=goes_on,
            progress_bar=progress_bar,
            callback=callbacks,
            checkpoint=self.checkpoint,
            checkpoint_every=d.checkpoint_every,
            checkpoint_seconds=d.checkpoint_seconds,
        )

    def write_result(self, data: Mapping[str, Any]) -> None:
        """Write ``result.json``, whole or not at all."""
        _write_json(self.result, data)

    def discard(self) -> None:
        """Take back the beginning of a run that came to nothing, so that its folder can be named again."""
        for path in (self.path / "run.json", *self.path.glob("events.out.tfevents.*")):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes in; closing twice is fine."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_own(self, agent: PPO) -> None:
        d, environment = self.description, checkpoints.read(self.checkpoint)[1]["environment"]
        pairs = {"environment": (environment, d.environment), "seed": (agent.seed, d.seed)}
        for name, (saved, expected) in {**pairs, "recipe": (agent.recipe, d.recipe)}.items():
            if saved != expected:
                raise ValueError(f"{self.checkpoint}: {name} differs from run.json's; put back this run's checkpoint")
        left = agent.unfinished
        if left is not None and (left.timesteps, left.episodes) != (d.budget.timesteps, d.budget.episodes):
            raise ValueError(f"{self.checkpoint}: budget differs from run.json's; put back what this run began with")
        if left is None:
            raise ValueError(
                f"{self.path}: its training is finished ({agent.timesteps:,} steps); to train further, in Python: "
                f"hybridrl.PPO.load({str(self.checkpoint)!r}).learn(...)"
            )


def _check_empty(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; name a folder that is empty or isn't there yet")
    if (folder / "run.json").exists():
        raise ValueError(f"{folder}: holds a run; go on with it by --resume {folder}, or name another folder")
    # What a run leaves that was killed before it began is nothing.
    if folder.exists() and any(not path.name.startswith((PREFIX, ".run.json.")) for path in folder.iterdir()):
        raise ValueError(f"{folder}: isn't empty; name a folder that is empty or isn't there yet")


def _read_description(folder: Path) -> RunDescription:
    path = folder / "run.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: holds no run.json; give a folder that --output made") from None
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: damaged (expected an object, got {type(data).__name__})")
    try:
        return RunDescription.from_dict(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    """A reader, or a crash at any moment, sees the old file or the new one, whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
