"""The TensorBoard logger, read back with TensorBoard's own reader."""

import errno
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hybridrl as hrl
from hybridrl.algorithms import PPOConfig, PPOStatistics
from hybridrl.envs import Episode
from hybridrl.execution import Iteration
from hybridrl.loggers import TensorBoardLogger
from hybridrl.networks import NetworkConfig
from hybridrl.profiling.clock import FakeClock
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv

SMALL = PPORecipe(
    ppo=PPOConfig(rollout_steps=16, minibatch_size=16, epochs=1), network=NetworkConfig(hidden=(8,)), num_envs=2
)
Curve = list[tuple[int, float]]

pytestmark = pytest.mark.usefixtures("one_thread")


def curves(folder: Path) -> dict[str, Curve]:
    """Every scalar as TensorBoard shows it: step and value."""
    accumulator = EventAccumulator(str(folder)).Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in tags}


def statistics(**changes: float) -> PPOStatistics:
    numbers: dict[str, Any] = {
        "policy_loss": 1.0,
        "value_loss": 2.0,
        "entropy": 3.0,
        "approximate_kl": 4.0,
        "clip_fraction": 0.5,
        "gradient_norm": 6.0,
        "explained_variance": 0.25,
        "optimizer_steps": 7,
        "learning_rate": 0.125,
    }
    return PPOStatistics(**{**numbers, **changes})


def iteration(timesteps: int, *returns: float, **changes: float) -> Iteration:
    finished = tuple(Episode(value, int(value) * 2, 0, False) for value in returns)
    return Iteration(timesteps, len(returns), finished, statistics(**changes))


def test_every_number_is_where_its_name_says(tmp_path: Path) -> None:
    clock = FakeClock()
    with TensorBoardLogger(tmp_path, first_timestep=100, clock=clock) as log:
        clock.advance(seconds=2)
        log(iteration(164, 10.0, 20.0))
    assert curves(tmp_path) == {
        "rollout/ep_rew_mean": [(164, 15.0)],
        "rollout/ep_len_mean": [(164, 30.0)],
        "time/fps": [(164, 32.0)],
        "time/time_elapsed": [(164, 2.0)],
        "train/policy_loss": [(164, 1.0)],
        "train/value_loss": [(164, 2.0)],
        "train/entropy": [(164, 3.0)],
        "train/approx_kl": [(164, 4.0)],
        "train/clip_fraction": [(164, 0.5)],
        "train/explained_variance": [(164, 0.25)],
        "train/grad_norm": [(164, 6.0)],
        "train/learning_rate": [(164, 0.125)],
    }


def test_means_are_over_the_last_hundred_episodes(tmp_path: Path) -> None:
    with TensorBoardLogger(tmp_path) as log:
        log(iteration(10, *[0.0] * 60))
        log(iteration(20, *[1.0] * 90))
        log(iteration(30))
    assert curves(tmp_path)["rollout/ep_rew_mean"] == [(10, 0.0), (20, pytest.approx(0.9)), (30, pytest.approx(0.9))]


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """No episode yet, a variance that explains nothing, no time passed: no point, rather than a zero or NaN."""
    with TensorBoardLogger(tmp_path, clock=FakeClock()) as log:
        log(iteration(10, explained_variance=math.nan))
    assert {"rollout/ep_rew_mean", "train/explained_variance", "time/fps"} & curves(tmp_path).keys() == set()


def test_a_resumed_runs_curves_do_not_double_back(tmp_path: Path) -> None:
    """Killed at 50 with a checkpoint at 30: what was logged of 40 and 50 is purged, what was of 30 stays."""
    for start, stop in ((0, 50), (30, 60), (60, 70)):
        with TensorBoardLogger(tmp_path, first_timestep=start) as log:
            for step in range(start + 10, stop + 1, 10):
                log(iteration(step, policy_loss=start + step))
    expected = [(10, 10.0), (20, 20.0), (30, 30.0), (40, 70.0), (50, 80.0), (60, 90.0), (70, 130.0)]
    assert curves(tmp_path)["train/policy_loss"] == expected
    assert len(list(tmp_path.iterdir())) == 3


def test_files_sort_by_age_even_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads them by name, which begins with seconds; then a process number, which isn't an age."""
    paths = []
    for now in (1_000.0, 1_000.0, 400.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        with TensorBoardLogger(tmp_path) as log:
            paths.append(log.path.name)
    assert paths == sorted(paths)
    assert len(set(paths)) == 3


def test_a_record_torn_by_a_kill_hides_no_other(tmp_path: Path) -> None:
    with TensorBoardLogger(tmp_path) as log:
        log(iteration(10))
        log(iteration(20))
    with log.path.open("r+b") as file:
        file.truncate(log.path.stat().st_size - 3)
    with TensorBoardLogger(tmp_path, first_timestep=10) as log:
        log(iteration(20, policy_loss=5.0))
    assert curves(tmp_path)["train/policy_loss"] == [(10, 1.0), (20, 5.0)]


def test_records_are_there_before_the_logger_is_closed(tmp_path: Path) -> None:
    log = TensorBoardLogger(tmp_path)
    log(iteration(10))
    assert curves(tmp_path)["train/policy_loss"] == [(10, 1.0)]
    log.close()
    log.close()
    with pytest.raises(ValueError, match=r"the logger is closed; make another$"):
        log(iteration(20))


class FullDisk:
    """A file that takes half of each write, or none, while ``full``."""

    def __init__(self, file: Any, *, half: bool) -> None:
        self._file, self.half, self.full = file, half, False

    def write(self, data: bytes) -> int:
        if self.full and self.half:
            return int(self._file.write(data[: len(data) // 2]))
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("half", [True, False])
def test_a_full_disk_stops_logging_with_one_warning_and_not_training(tmp_path: Path, half: bool) -> None:
    with TensorBoardLogger(tmp_path) as log:
        disk = log._events._file = FullDisk(log._events._file, half=half)
        log(iteration(10))
        disk.full, size = True, log.path.stat().st_size
        with pytest.warns(UserWarning, match=r"not logged \(.*(full\?|No space left).*\); training goes on") as seen:
            log(iteration(20))
        assert "\n" not in str(seen[0].message)
        log(iteration(30))  # without another warning, which would be an error here
        assert log.path.stat().st_size == size
        disk.full = False
        log(iteration(40))
        disk.full = True
        with pytest.warns(UserWarning, match="not logged"):
            log(iteration(50))
    assert curves(tmp_path)["train/policy_loss"] == [(10, 1.0), (40, 1.0)]


def test_a_missing_tensorboard_is_one_line_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'hybridrl\[tensorboard\]'") as error:
        TensorBoardLogger(tmp_path / "x")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_the_first_step_is_checked(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"first_timestep=.*: expected a whole number of at least 0"):
        TensorBoardLogger(tmp_path, first_timestep=step)


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        TensorBoardLogger(tmp_path / "file")


def test_training_logs_each_update_against_its_steps(tmp_path: Path) -> None:
    agent = hrl.PPO(lambda: CountingEnv(5, truncates=True), SMALL)
    with TensorBoardLogger(tmp_path) as log:
        result = agent.learn(160, callback=log)
    found = curves(tmp_path)
    assert [step for step, _ in found["train/value_loss"]] == [32, 64, 96, 128, 160]
    assert [value for _, value in found["train/value_loss"]] == pytest.approx([u.value_loss for u in result.updates])
    assert {value for _, value in found["rollout/ep_rew_mean"]} == {5.0}
    assert all(value > 0 for _, value in found["time/fps"])
