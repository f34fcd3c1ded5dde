"""Runs in folders, from the command line: kept, interrupted, killed, gone on with."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hybridrl as hrl
from hybridrl import checkpoints, cli
from hybridrl.algorithms import PPOLearner
from hybridrl.runs import RunFolder
from hybridrl.testing import CountingEnv

SMALL = ["--set", "rollout_steps=16", "--set", "num_envs=2", "--set", "hidden=(8,)", "--set", "epochs=1"]
SMALL += ["--set", "normalize_observation=true", "--set", "normalize_reward=true"]

# It restores what --threads changes.
pytestmark = pytest.mark.usefixtures("one_thread")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of a command, which leaves signals as they were."""

    def command(*arguments: object) -> tuple[int, str, str]:
        heard = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse's own way to end
            code = int(str(stop.code))
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == heard
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def begin(folder: Path, *more: object, steps: int = 160) -> tuple[object, ...]:
    """A command that begins a run of five updates."""
    budget = ("--total-timesteps", steps, "--evaluate", 0)
    return ("train", "ppo", "CartPole-v1", "--output", folder, *budget, *SMALL, *more)


def resume(folder: Path, *more: object) -> tuple[object, ...]:
    return ("train", "--resume", folder, "--evaluate", 0, *more)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Send this process signals in the middle of its n-th update from now on, whoever trains."""

    def at(update: int, *numbers: int) -> None:
        real, calls = PPOLearner.update, list[int]()

        def interrupted(learner: PPOLearner, *arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == update:
                for number in numbers:
                    signal.raise_signal(number)
            return real(learner, *arguments, **options)

        monkeypatch.setattr(PPOLearner, "update", interrupted)

    return at


def names(folder: Path) -> list[str]:
    """What lies in a folder; event files by their beginning."""
    return sorted(re.sub(r"(events\.out\.tfevents).*", r"\1", path.name) for path in folder.iterdir())


def logged_steps(folder: Path) -> list[int]:
    return [point.step for point in EventAccumulator(str(folder)).Reload().Scalars("train/value_loss")]


KEPT = ["checkpoint.safetensors", "events.out.tfevents", "result.json", "run.json"]


def test_a_folder_holds_all_of_a_run(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    code, out, err = run(*begin(folder, "--json", "--evaluate", 2, "--seed", 3, "--threads", 2))
    assert (code, err) == (0, "")
    assert names(folder) == KEPT
    result = json.loads(out)
    assert json.loads((folder / "result.json").read_text()) == result
    assert len(result["evaluation_returns"]) == 2
    assert (result["output"], result["checkpoint"]) == (str(folder), str(folder / "checkpoint.safetensors"))
    began = json.loads((folder / "run.json").read_text())
    assert (began["algorithm"], began["environment"], began["seed"]) == ("ppo", "CartPole-v1", 3)
    assert (began["placement"], began["threads"], began["version"]) == ("cpu", 2, hrl.__version__)
    assert (began["checkpoint_every"], began["checkpoint_seconds"]) == (50, 300.0)
    assert began["budget"] == {"timesteps": 160, "episodes": None}
    assert began["recipe"] == result["recipe"]
    agent = hrl.PPO.load(folder / "checkpoint.safetensors")
    assert agent.timesteps == result["total_timesteps"] == logged_steps(folder)[-1]


def test_without_a_folder_nothing_is_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("train", "ppo", "CartPole-v1", "--total-timesteps", 64, "--evaluate", 0, "--json", *SMALL)
    assert code == 0
    assert json.loads(out)["output"] is None
    assert list(tmp_path.iterdir()) == []


def test_the_result_is_kept_before_an_evaluation_that_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # nothing can be lost any more
        raise ValueError("no evaluation")

    monkeypatch.setattr(hrl.PPO, "evaluate", fails)
    code, out, err = run(*begin(tmp_path, "--evaluate", 1))
    assert (code, err) == (2, "hybridrl train: error: no evaluation\n")
    assert f"saved: {tmp_path}\n" in out
    assert json.loads((tmp_path / "result.json").read_text())["evaluation_returns"] is None


# Ctrl-C and SIGTERM


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_update_saves_and_says_how_to_go_on(
    number: int, code: int, run: Run, signals: Callable[..., None], tmp_path: Path
) -> None:
    """What is saved is, bit by bit, what an uninterrupted run has after that update."""
    signals(3, number)
    found, out, err = run(*begin(tmp_path))
    assert (found, out) == (code, "")
    assert names(tmp_path) == ["checkpoint.safetensors", "events.out.tfevents", "run.json"]
    interrupted = RunFolder.open(tmp_path)
    agent, updates = interrupted.description.make_agent(), list[int]()
    agent.learn(160, callback=lambda i: updates.append(i.timesteps) or len(updates) < 3)
    tensors, data = checkpoints.read(interrupted.checkpoint)
    assert (data["timesteps"], data["episodes"]) == (agent.timesteps, agent.episodes) == (updates[2], data["episodes"])
    expected = agent._parts.tensors()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    loaded = interrupted.restore()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded._parts.tensors().items())
    assert loaded.unfinished == agent.unfinished
    cure = f"go on with: hybridrl train --resume {tmp_path}"
    assert err == f"hybridrl train: interrupted; saved at step {updates[2]}; {cure}\n"
    interrupted.close()


def test_an_interrupted_run_goes_on_to_its_end(run: Run, signals: Callable[..., None], tmp_path: Path) -> None:
    signals(2, signal.SIGTERM)
    assert run(*begin(tmp_path))[0] == 143
    before = logged_steps(tmp_path)
    assert len(before) == 2
    code, out, err = run(*resume(tmp_path, "--json"))
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert 158 < result["total_timesteps"] <= 160
    assert result["timesteps"] == result["total_timesteps"] - before[-1]
    steps = logged_steps(tmp_path)
    assert steps[:2] == before
    assert steps == sorted(set(steps))
    assert steps[-1] == result["total_timesteps"]
    assert not list(tmp_path.glob(".lock*"))


@pytest.mark.parametrize(
    ("first", "second", "code"), [(signal.SIGINT, signal.SIGTERM, 143), (signal.SIGTERM, signal.SIGINT, 130)]
)
def test_a_second_signal_ends_at_once(
    first: int, second: int, code: int, run: Run, signals: Callable[..., None], tmp_path: Path
) -> None:
    signals(3, first, second)
    found, out, err = run(*begin(tmp_path, "--checkpoint-every", 1))
    cure = f"go on with: hybridrl train --resume {tmp_path}"
    assert (found, out, err) == (code, "", f"hybridrl train: interrupted; {cure}\n")
    assert checkpoints.read(tmp_path / "checkpoint.safetensors")[1]["timesteps"] == logged_steps(tmp_path)[1]


def test_an_update_that_a_signal_broke_is_told_as_an_interruption(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager sends SIGTERM to the environments' processes as well."""

    def broken(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise ChildProcessError("the process of environment 0 is gone")

    monkeypatch.setattr(PPOLearner, "update", broken)
    why = "the update was lost (the process of environment 0 is gone)"
    cure = f"go on with: hybridrl train --resume {tmp_path}"
    assert run(*begin(tmp_path)) == (143, "", f"hybridrl train: interrupted; {why}; {cure}\n")


def test_a_signal_in_the_last_update_ends_a_finished_run(
    run: Run, signals: Callable[..., None], tmp_path: Path
) -> None:
    signals(1, signal.SIGTERM)
    code, out, err = run(*begin(tmp_path, "--evaluate", 9, steps=32))
    assert (code, err) == (143, "hybridrl train: interrupted; training is finished\n")
    assert "evaluation" not in out
    assert names(tmp_path) == KEPT
    assert "training is finished" in run(*resume(tmp_path))[2]


def test_an_ignored_signal_stays_ignored(run: Run, signals: Callable[..., None], tmp_path: Path) -> None:
    """As in the background of a shell script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signals(2, signal.SIGINT)
        assert run(*begin(tmp_path))[0] == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_forked_worker_heeds_its_owner(number: int, ends: bool) -> None:
    """Ctrl-C goes to every process of a terminal; the owner finishes its update with its workers alive."""
    script = f"""
        import os, signal, time
        from hybridrl.cli.signals import StopSignals
        with StopSignals("") as stop:
            worker = os.fork()
            if worker == 0:
                for _ in range(2):
                    signal.raise_signal({int(number)})
                os._exit(7)
            _, status = os.waitpid(worker, 0)
        print(os.waitstatus_to_exitcode(status), stop.received)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(-number if ends else 7), "None"]


# What can be gone on with, and how


def test_a_run_killed_before_its_first_checkpoint_begins_again(run: Run, tmp_path: Path) -> None:
    assert run(*begin(tmp_path / "whole"))[0] == 0
    assert run(*begin(tmp_path / "killed"))[0] == 0
    for name in ("checkpoint.safetensors", "result.json"):
        (tmp_path / "killed" / name).unlink()
    assert run(*resume(tmp_path / "killed"))[0] == 0
    whole, again = (checkpoints.read(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(tensor, again[0][name]) for name, tensor in whole[0].items())
    assert whole[1] == again[1]
    assert logged_steps(tmp_path / "killed") == logged_steps(tmp_path / "whole")


def test_a_run_killed_after_its_last_update_is_finished_by_resuming(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save after the last update, made now and then, doesn't know yet that it was the last."""
    real = hrl.PPO.save

    def killed(agent: hrl.PPO, path: Any) -> None:
        if agent.unfinished is None:
            raise OSError("killed")
        real(agent, path)

    with monkeypatch.context() as patched:
        patched.setattr(hrl.PPO, "save", killed)
        assert run(*begin(tmp_path, "--checkpoint-every", 1))[0] == 2
    code, out, err = run(*resume(tmp_path, "--json"))
    assert (code, err) == (0, "")
    assert json.loads(out)["timesteps"] == 0
    assert "finished" in run(*resume(tmp_path))[2]


def test_a_finished_run_is_not_resumed(run: Run, tmp_path: Path) -> None:
    run(*begin(tmp_path))
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    code, out, err = run(*resume(tmp_path))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert f"{tmp_path}: its training is finished (160 steps)" in err or "finished (159 steps)" in err
    assert f"hybridrl.PPO.load('{tmp_path / 'checkpoint.safetensors'}').learn(...)" in err
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


@pytest.fixture
def interrupted(run: Run, signals: Callable[..., None], tmp_path: Path) -> Path:
    """The folder of an interrupted run."""
    signals(2, signal.SIGTERM)
    assert run(*begin(tmp_path / "run"))[0] == 143
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--seed", "9"], "--seed differs"),
        (["--total-timesteps", "99"], "--total-timesteps differs"),
        (["--total-episodes", "160"], "--total-episodes differs"),
        (["--recipe", "tuned"], "--recipe or --set differs"),
        (["--set", "gamma=0.5"], "--recipe or --set differs"),
        (["--checkpoint-every", "51"], "--checkpoint-every differs"),
        (["--checkpoint-seconds", "9"], "--checkpoint-seconds differs"),
        (["ppo", "Pendulum-v1"], "ENV differs"),
        (["--placement", "cuda:7"], "cuda:7"),  # C64: one line, not another device
        (["--threads", "0"], "--threads 0"),
        (["--output", "elsewhere"], "not allowed with"),
    ],
)
def test_what_resuming_cannot_do_is_refused_not_ignored(
    run: Run, interrupted: Path, more: list[str], says: str
) -> None:
    before = {path.name: path.read_bytes() for path in interrupted.iterdir()}
    code, out, err = run(*resume(interrupted, *more))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert says in err
    assert {path.name: path.read_bytes() for path in interrupted.iterdir()} == before


def test_what_agrees_or_only_shows_may_be_said_again(run: Run, interrupted: Path) -> None:
    same = ("ppo", "CartPole-v1", "--seed", 0, "--total-timesteps", 160, "--recipe", "default", *SMALL)
    may_differ = (
        "--threads",
        2,
        "--placement",
        "cpu+cpu",
        "--processes",
        "yes",
        "--no-progress",
        "--evaluate",
        1,
        "--no-tensorboard",
        "--json",
    )
    code, out, err = run(*resume(interrupted, *same, "--checkpoint-every", 50, *may_differ))
    assert (code, err) == (0, "")
    assert json.loads(out)["total_timesteps"] > 158
    assert names(interrupted).count("events.out.tfevents") == 1  # of the first part


def test_a_damaged_checkpoint_is_one_line(run: Run, interrupted: Path) -> None:
    with (interrupted / "checkpoint.safetensors").open("r+b") as file:
        file.truncate(1_000)
    code, _, err = run(*resume(interrupted))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "checkpoint.safetensors: not a readable checkpoint" in err


# Where a run may begin


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("run.json", "holds a run; go on with it by --resume"),
        ("thesis.tex", "isn't empty; name a folder"),
        ("", "a file"),
    ],
)
def test_a_folder_in_use_is_refused_with_the_cure(made: str, says: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir() if made else folder.write_text("dear")
    (folder / made).write_text("dear")
    code, _, err = run(*begin(folder))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert says in err
    assert (folder / made).read_text() == "dear"
    assert not list(tmp_path.glob("**/.lock*"))


def test_a_folder_that_cannot_be_made_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run(*begin(tmp_path / "file" / "a"))
    assert code == 2
    assert err == f"hybridrl train: error: {tmp_path / 'file' / 'a'}: can't be made (Not a directory)\n"


@pytest.mark.parametrize("mistake", [["--set", "lr=1"], ["--seed", "-1"], ["--checkpoint-seconds", "0"]])
def test_a_mistake_makes_no_folder(mistake: list[str], run: Run, tmp_path: Path) -> None:
    assert run(*begin(tmp_path / "a", *mistake))[0] == 2
    assert not (tmp_path / "a").exists()


def test_a_mistake_noticed_late_leaves_the_folder_empty(run: Run, tmp_path: Path) -> None:
    assert "give more" in run(*begin(tmp_path / "a", steps=1))[2]
    assert list((tmp_path / "a").iterdir()) == []
    assert run(*begin(tmp_path / "a"))[0] == 0


# Curves


@pytest.mark.filterwarnings("default")
def test_without_tensorboard_training_goes_on_with_one_warning(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    code, _, err = run(*begin(tmp_path / "a"))
    assert code == 0
    assert len(err.splitlines()) == 1
    assert err.startswith("hybridrl: warning: no curves are logged: TensorBoard can't be imported")
    assert "pip install 'hybridrl[tensorboard]'" in err
    assert names(tmp_path / "a") == ["checkpoint.safetensors", "result.json", "run.json"]
    assert run(*begin(tmp_path / "b", "--no-tensorboard"))[::2] == (0, "")


# What isn't finite


class Spoilt(CountingEnv):
    """Its observations turn into NaN."""

    at = 40

    def __init__(self) -> None:
        super().__init__(1_000)

    def _observation(self) -> Any:
        return super()._observation() * (np.nan if self._count > self.at else 1)


def test_a_nan_ends_a_run_in_one_line_and_the_mended_one_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gym.registry, "Spoilt-v0", gym.envs.registration.EnvSpec("Spoilt-v0", Spoilt))
    command = [word if word != "CartPole-v1" else "Spoilt-v0" for word in begin(tmp_path, "--checkpoint-every", 1)]
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    where = "observation of environment 0 at step 82 (element 0): nan, expected finite numbers; mend the environment"
    last = f"last checkpoint: {tmp_path / 'checkpoint.safetensors'} (step 64)"
    assert err == f"hybridrl train: error: {where}; {last}\n"
    monkeypatch.setattr(Spoilt, "at", 10_000)
    assert run(*resume(tmp_path))[0] == 0


# Killed


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long training run as a process of its own, which has saved once; it doesn't outlive the test."""
    command = [sys.executable, "-m", "hybridrl", *begin(tmp_path / "run", "--checkpoint-every", 1, steps=3_000_000)]
    # What runs in the background of a shell script ignores Ctrl-C, and so would its children.
    heed = None if sys.platform == "win32" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([str(word) for word in command], **pipes, text=True, preexec_fn=heed)
    try:
        wait_for(tmp_path / "run" / "checkpoint.safetensors", process)
        yield process, tmp_path / "run"
    finally:
        process.kill()
        process.communicate()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has saved once."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_folder_is_one_processs_until_it_ends(training: tuple[subprocess.Popen[str], Path], run: Run) -> None:
    process, folder = training
    code, _, err = run(*resume(folder))
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"process {process.pid} is training there" in err
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED
    assert re.fullmatch(
        rf"hybridrl train: interrupted; saved at step [\d,]+; go on with: hybridrl train --resume {folder}\n", err
    )
    assert names(folder) == ["checkpoint.safetensors", "events.out.tfevents", "run.json"]


KILLS = 10
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
import tensorboard.compat.proto.summary_pb2, tensorboard.summary.writer.record_writer
from hybridrl import PPO, PPORecipe, checkpoints, cli, loggers, runs
torch.set_num_threads(1)
folder, begin, resume = Path(sys.argv[1]), *(a.split("|") for a in sys.argv[2:4])
checkpoint, rng = folder / "checkpoint.safetensors", random.Random(int(sys.argv[4]))

def saved():
    return checkpoints.read(checkpoint)[1]["timesteps"] if checkpoint.exists() else 0

def die_in_save():
    # at the n-th call of one of a save's stages: half a file, not yet on the disk, not yet in place, just in place
    stage, left = rng.choice([(checkpoints, "save_file"), (os, "fsync"), (os, "replace")]), rng.randrange(1, 9)
    real = getattr(*stage)
    def call(*arguments):
        nonlocal left
        left -= 1
        if left == 0:
            if stage[1] == "save_file":
                Path(arguments[1]).write_bytes(b"half")
            if stage[1] == "replace" and rng.random() < 0.5:
                real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    setattr(*stage, call)

def child(arguments, in_save):
    sys.stdout = sys.stderr = open(os.devnull, "w")
    if in_save:
        die_in_save()
    os._exit(cli.main(arguments))

PPO("CartPole-v1", PPORecipe(num_envs=2)).learn(512)  # imports what is imported late, once for all
for kill in range(int(sys.argv[5])):
    before, in_save = saved(), kill % 2 == 0
    pid = os.fork()
    if pid == 0:
        child(resume if (folder / "run.json").exists() else begin, in_save)
    if not in_save:
        time.sleep(rng.uniform(0.0, 0.6))
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        break  # a fast machine: it had come to its end
    after = saved()
    print(before, after, *(p.name for p in folder.glob(".*.partial")))
    if after < before:
        sys.exit("went back")
pid = os.fork()
if pid == 0:
    child(resume, False)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code if code != 2 or checkpoints.read(checkpoint)[1]["unfinished"] else 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_kills_at_random_moments_lose_at_most_what_follows_the_last_save(tmp_path: Path) -> None:
    """SIGKILL, half of the times inside a save; each resumption goes on from the last whole checkpoint."""
    folder, steps, seed = tmp_path / "run", 8_000, random.randrange(2**31)
    words = [
        "|".join(map(str, command)) for command in (begin(folder, "--checkpoint-every", 1, steps=steps), resume(folder))
    ]
    command = [sys.executable, "-c", KILLED, str(folder), *words, str(seed), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (seed, done.stdout, done.stderr)
    kills = [line.split() for line in done.stdout.splitlines()]
    assert len(kills) >= 3
    assert any(len(kill) > 2 for kill in kills), "no kill left half a file"
    assert int(kills[-1][1]) > 0
    _, data = checkpoints.read(folder / "checkpoint.safetensors")
    assert steps - 2 < data["timesteps"] <= steps
    assert data["unfinished"] is None
    assert names(folder) == [KEPT[0], *["events.out.tfevents"] * names(folder).count("events.out.tfevents"), *KEPT[2:]]
    steps_logged = logged_steps(folder)
    assert steps_logged == sorted(set(steps_logged))
    assert steps_logged[-1] == data["timesteps"]
    assert json.loads((folder / "result.json").read_text())["total_timesteps"] == data["timesteps"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_the_command_itself_killed_goes_on(training: tuple[subprocess.Popen[str], Path], run: Run) -> None:
    """`python -m hybridrl`, from a shell's point of view."""
    process, folder = training
    process.kill()  # and not waited for: it may still be a zombie when the next one comes
    saved = checkpoints.read(folder / "checkpoint.safetensors")[1]["timesteps"]
    command = [sys.executable, "-m", "hybridrl", *map(str, resume(folder))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as again:
        while checkpoints.read(folder / "checkpoint.safetensors")[1]["timesteps"] <= saved:
            assert again.poll() is None, again.communicate()
            time.sleep(0.05)
        again.terminate()
        _, err = again.communicate(timeout=60)
    assert again.returncode == 143
    assert err.endswith(f"go on with: hybridrl train --resume {folder}\n")
