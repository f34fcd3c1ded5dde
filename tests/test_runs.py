"""Run folders, as Python code uses them; tests/test_cli_runs.py has the command's side."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

import hybridrl
from hybridrl import checkpoints, runs
from hybridrl.algorithms import PPOConfig
from hybridrl.execution import Budget, Iteration
from hybridrl.networks import NetworkConfig
from hybridrl.recipes import PPORecipe
from hybridrl.runs import RunDescription, RunFolder

SMALL = PPORecipe(
    ppo=PPOConfig(rollout_steps=16, epochs=1), network=NetworkConfig(hidden=(8,)), num_envs=2, bounds="scale"
)
RUN = RunDescription(environment="CartPole-v1", recipe=SMALL, budget=Budget(timesteps=128), checkpoint_every=1)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_description_comes_back_from_json() -> None:
    for budget in (Budget(timesteps=5), Budget(episodes=7)):
        run = dataclasses.replace(RUN, budget=budget, seed=3, placement="auto", threads=2, checkpoint_seconds=7.5)
        assert RunDescription.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False))) == run
    assert RUN.version == hybridrl.__version__


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": None}, "'seed' is missing; expected algorithm, budget"),
        ({"sead": 1}, "'sead' is unknown"),
        ({"algorithm": "dqn"}, "algorithm='dqn': expected 'ppo'"),
        ({"budget": {"timesteps": 0}}, "expected exactly one of the two"),
        ({"budget": {"hours": 1}}, "not a budget: .*hours"),
        ({"budget": 5}, "not a budget"),
        ({"recipe": {}}, "not a recipe of this version"),
        ({"recipe": 5}, "not a recipe of this version"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"checkpoint_seconds": "soon"}, "checkpoint_seconds='soon'"),
    ],
)
def test_a_damaged_description_is_one_line(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    data = {name: value for name, value in {**RUN.to_dict(), **changes}.items() if value is not None}
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=says) as error:
        RunFolder.open(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: ")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]  # and no lock stays behind


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", '{"a": 1}}'])
def test_a_file_that_is_no_description_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json: damaged \(") as error:
        RunFolder.open(tmp_path)
    assert "\n" not in str(error.value)


def test_a_run_is_begun_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "deep" / "run", RUN) as folder:
        agent = RUN.make_agent()
        folder.learn(agent, callbacks=[lambda i: i.timesteps < 60])
        stopped = agent.timesteps
    with RunFolder.open(tmp_path / "deep" / "run") as folder:
        assert folder.description == RUN
        agent = folder.restore()
        assert agent.timesteps == stopped < 70
        folder.learn(agent)
        assert 126 < agent.timesteps <= 128
    assert not list((tmp_path / "deep" / "run").glob(".lock*"))


@pytest.mark.parametrize("times", [{"checkpoint_every": 1}, {"checkpoint_every": 99, "checkpoint_seconds": 1e-9}])
def test_a_run_is_saved_as_its_description_says(times: dict[str, Any], tmp_path: Path) -> None:
    saved = list[int]()
    with RunFolder.create(tmp_path, dataclasses.replace(RUN, **times)) as folder:
        agent = folder.description.make_agent()

        def look(iteration: Iteration) -> None:
            saved.append(checkpoints.read(folder.checkpoint)[1]["timesteps"])
            assert saved[-1] == iteration.timesteps

        folder.learn(agent, callbacks=[look])
    assert len(saved) >= 4


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, RUN):
        pass  # killed
    with RunFolder.open(tmp_path) as folder:
        agent = folder.restore()
        assert agent.timesteps == 0
        assert folder.learn(agent).timesteps > 126


def test_what_a_run_leaves_that_was_killed_before_it_began_is_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock.nowhere").touch()
    (tmp_path / ".run.json.1234.partial").touch()
    RunFolder.create(tmp_path, RUN).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock.nowhere", "run.json"]


def test_a_run_that_ended_before_the_lock_was_had_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = runs.FolderLock

    def late(folder: Path) -> runs.FolderLock:
        (folder / "run.json").write_text("another's")
        return lock(folder)

    monkeypatch.setattr(runs, "FolderLock", late)
    with pytest.raises(ValueError, match="holds a run"):
        RunFolder.create(tmp_path, RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "another's"


def test_a_file_that_could_not_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path, RUN) as folder:
        folder.write_result({"a": 1})

        def full(_: int) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            folder.write_result({"a": 2})
        assert json.loads(folder.result.read_text()) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "run.json"]


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    others = {
        "environment": dataclasses.replace(RUN, environment="Acrobot-v1"),
        "seed": dataclasses.replace(RUN, seed=1),
        "recipe": dataclasses.replace(RUN, recipe=dataclasses.replace(SMALL, normalize_reward=True)),
    }
    with RunFolder.create(tmp_path, RUN) as folder:
        for name, other in others.items():
            agent = other.make_agent()
            agent.learn(64, callback=lambda _: False, checkpoint=folder.checkpoint)
            agent.close()
            with pytest.raises(ValueError, match=rf"checkpoint\.safetensors: ({name} differs|made for)") as error:
                folder.restore()
            assert "\n" not in str(error.value)


def test_a_module_is_imported_only_when_its_id_is_said_again(tmp_path: Path) -> None:
    run = dataclasses.replace(RUN, environment="gymnasium:CartPole-v1")
    with RunFolder.create(tmp_path, run) as folder:
        cure = f"go on with: hybridrl train ppo gymnasium:CartPole-v1 --resume {tmp_path}"
        for _ in range(2):  # without a checkpoint and with one
            with pytest.raises(ValueError, match="imports a module; if you trust it") as error:
                folder.restore()
            assert str(error.value).endswith(cure)
            agent = folder.restore(env="gymnasium:CartPole-v1")
            folder.learn(agent, callbacks=[lambda _: False])
