"""The command line: what it prints, and one line with exit code 2 for each mistake."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hybridrl import cli
from hybridrl.execution import Budget
from hybridrl.experiments import catalogue
from hybridrl.experiments.records import read_record

SMALL = ["--set", "rollout_steps=16", "--set", "num_envs=2", "--set", "hidden=(8,)", "--set", "epochs=1"]


pytestmark = pytest.mark.usefixtures("one_thread")  # it restores what --threads changes


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    try:
        code = cli.main(list(arguments))
    except SystemExit as stop:  # argparse's own way to end
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_prints_the_report_and_the_evaluation(capsys):
    code, out, err = run(
        capsys, "train", "ppo", "CartPole-v1", "--total-timesteps", "64", "--evaluate", "3", "--threads", "1", *SMALL
    )
    assert (code, err) == (0, "")
    assert "64 steps" in out
    assert "collect" in out
    assert "update" in out
    assert "over 3 episodes" in out


def test_train_as_json_is_one_object_with_the_changed_recipe(capsys):
    code, out, _ = run(
        capsys, "train", "ppo", "Pendulum-v1", "--total-timesteps", "64", "--evaluate", "1", "--json", *SMALL
    )
    data = json.loads(out)
    assert code == 0
    assert data["timesteps"] == 64
    assert data["recipe"]["ppo"]["rollout_steps"] == 16
    assert data["recipe"]["network"]["hidden"] == [8]
    assert data["recipe"]["num_envs"] == 2
    assert len(data["evaluation_returns"]) == 1
    top = [row for row in data["report"]["phases"] if len(row["path"]) == 1]
    assert sum(row["total_s"] for row in top) <= data["report"]["wall_s"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "ppo", "CartPole-v0"], "CartPole-v1"),
        (["train", "ppo", "CartPool-v1"], "CartPole"),
        (["train", "ppo"], "env"),
        (["train", "dqn", "CartPole-v1"], "ppo"),
        (["train", "ppo", "CartPole-v1", "--recipe", "fast"], "'tuned' for CartPole-v1"),
        (["train", "ppo", "Acrobot-v1", "--recipe", "tuned"], "'default' for any"),
        (["train", "ppo", "CartPole-v1", "--placement", "cuda"], "cpu"),
        (["train", "ppo", "CartPole-v1", "--total-timesteps", "0"], "at least 1"),
        (["train", "ppo", "CartPole-v1", "--total-timesteps", "many"], "invalid int"),
        (["train", "ppo", "CartPole-v1", "--total-timesteps", "5", "--total-episodes", "5"], "not allowed with"),
        (["train", "ppo", "CartPole-v1", "--set", "lr=1"], "learning_rate"),
        (["train", "ppo", "CartPole-v1", "--set", "gamma"], "FIELD=VALUE"),
        (["train", "ppo", "CartPole-v1", "--set", "gamma=2"], "at most 1"),
        (["train", "ppo", "CartPole-v1", "--set", "gamma=high"], "expected float"),
        (["train", "ppo", "CartPole-v1", "--set", "epochs=1.5"], "expected int"),
        (["train", "ppo", "CartPole-v1", "--set", "truncation=ignore"], "expected"),
        (["train", "ppo", "CartPole-v1", "--seed", "-1"], "seed"),
        (["train", "ppo", "CartPole-v1", "--threads", "0"], "at least 1"),
        (["train", "ppo", "CartPole-v1", "--evaluate", "-1"], "0 or more"),
        (["train", "ppo", "CartPole-v1", "--resume"], "--checkpoint"),
        (["train", "ppo", "CartPole-v1", "--checkpoint", "no/such/folder/x.safetensors"], "folder"),
        (["reproduce"], "--claim"),
        (["reproduce", "--claim", "Z9"], "C1"),
        (["reproduce", "--experiment", "ppo-cartpole-tunned"], "ppo-cartpole-tuned"),
        (["reproduce", "--claim", "C1", "--scale", "huge"], "smoke"),
        (["fly"], "train"),
        ([], "COMMAND"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, says):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert says in err


def test_settings_are_parsed_as_their_fields_are_annotated():
    from hybridrl import recipes

    changed = cli._changed(
        recipes.default_ppo(),
        ["learning_rate=1", "minibatch_size=none", "hidden=32", "anneal=false", "activation=relu", "gamma=0.5"],
    )
    assert changed.ppo.learning_rate == 1.0
    assert changed.ppo.minibatch_size is None
    assert changed.ppo.gamma == 0.5
    assert changed.ppo.anneal is False
    assert changed.network.hidden == (32,)
    assert changed.network.activation == "relu"


def test_machine_tells_this_machine(capsys):
    code, out, _ = run(capsys, "machine", "--json")
    assert code == 0
    assert json.loads(out)["versions"]["torch"] == torch.__version__


def test_reproduce_writes_the_record_it_names(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HYBRIDRL_SCALE", "smoke")
    code, out, _ = run(capsys, "reproduce", "--claim", "C2", "--records", str(tmp_path), "--json")
    record = read_record(json.loads(out)["record"])
    assert code == 0
    assert record.claims == ("C2", "B4")
    assert record.scale == "smoke"
    assert all(len(series.values) == 2 for series in record.series.values())


def test_reproduce_lists_every_experiment(capsys):
    _, out, _ = run(capsys, "reproduce", "--list")
    assert [line.split()[0] for line in out.splitlines()] == [e.name for e in catalogue.EXPERIMENTS]


def test_an_existing_checkpoint_is_not_overwritten_by_accident(capsys, tmp_path):
    path = tmp_path / "agent.safetensors"
    path.write_bytes(b"something dear")
    code, _, err = run(capsys, "train", "ppo", "CartPole-v1", "--checkpoint", str(path))
    assert code == 2
    assert "--resume" in err
    assert path.read_bytes() == b"something dear"


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long training run as a process of its own, which has saved once; it doesn't outlive the test."""
    path = tmp_path / "agent.safetensors"
    command = [sys.executable, "-m", "hybridrl", "train", "ppo", "CartPole-v1", "--total-timesteps", "3000000"]
    command += ["--checkpoint", str(path), "--checkpoint-every", "1", "--threads", "1", *SMALL]
    # What runs in the background of a shell script ignores Ctrl-C, and so would its children.
    heed = None if sys.platform == "win32" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, preexec_fn=heed)
    try:
        wait_for(path, process)
        yield process, path
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


def test_a_killed_run_resumes_with_its_budget(training):
    """Nothing is lost but the steps since the last save; a budget counts from where it began."""
    process, path = training
    process.kill()
    process.communicate()
    from hybridrl import PPO

    agent = PPO.load(path)
    saved = agent.timesteps
    assert 0 < saved < 3_000_000
    result = agent.learn(resume=True, callback=lambda _: False)
    assert result.stopped
    assert agent.timesteps == saved + result.timesteps


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_in_one_line(training):
    process, path = training
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == cli.INTERRUPTED
    assert err.splitlines() == [f"hybridrl train: interrupted; go on with --resume --checkpoint {path}"]
    assert [p.name for p in path.parent.iterdir()] == ["agent.safetensors"]


def command(path: Path, *more: str) -> list[str]:
    return [
        "train",
        "ppo",
        "CartPole-v1",
        "--total-timesteps",
        "64",
        "--evaluate",
        "0",
        "--checkpoint",
        str(path),
        *more,
    ]


def test_a_finished_run_is_not_resumed(capsys, tmp_path):
    path = tmp_path / "a"
    assert run(capsys, *command(path, *SMALL))[0] == 0
    code, _, err = run(capsys, *command(path, "--resume"))
    assert code == 2
    assert "finished" in err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--seed", "9"], "--seed"),
        (["--total-timesteps", "99"], "--total-timesteps"),
        (["--recipe", "tuned"], "--recipe"),
        (["--set", "gamma=0.5"], "--set"),
    ],
)
def test_what_resuming_cannot_change_is_refused_not_ignored(capsys, tmp_path, more, says):
    from hybridrl import PPO

    path = tmp_path / "a"
    agent = PPO("CartPole-v1", "default")
    agent.learn(total_timesteps=64, callback=lambda _: False, checkpoint=path)
    agent._unfinished = Budget(timesteps=64)
    agent.save(path)
    code, _, err = run(capsys, *command(path, "--resume", *more))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert says in err


def test_the_report_comes_before_an_evaluation_that_fails(capsys, monkeypatch):
    from hybridrl import PPO

    def fails(*_: object) -> None:
        raise ValueError("no evaluation")

    monkeypatch.setattr(PPO, "evaluate", fails)
    code, out, err = run(capsys, "train", "ppo", "CartPole-v1", "--total-timesteps", "64", *SMALL)
    assert code == 2
    assert "64 steps" in out
    assert err == "hybridrl train: error: no evaluation\n"


def test_a_reader_that_has_seen_enough_and_a_poor_encoding_are_no_errors():
    listing = [sys.executable, "-m", "hybridrl", "reproduce", "--list"]
    with subprocess.Popen(listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    poor = {**os.environ, "PYTHONIOENCODING": "ascii"}
    train = [sys.executable, "-m", "hybridrl", "train", "ppo", "CartPole-v1", "--total-timesteps", "64"]
    done = subprocess.run([*train, "--evaluate", "0", *SMALL], env=poor, capture_output=True, text=True, check=True)
    assert "collect" in done.stdout


def test_a_folder_that_cannot_be_made_is_noticed_before_the_experiment(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(catalogue.Experiment, "run", property(lambda self: pytest.fail("it ran")), raising=False)
    code, _, err = run(capsys, "reproduce", "--claim", "C2", "--records", str(tmp_path / "file" / "x"))
    assert code == 2
    assert len(err.splitlines()) == 1
