"""The command line: what it prints, and one line with exit code 2 for each mistake."""

import json
import os
import subprocess
import sys

import pytest
import torch

from hybridrl import cli
from hybridrl.cli.settings import changed
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
        (["train", "ppo"], "ENV"),
        (["train"], "ALGORITHM"),
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
        (["train", "--resume"], "expected one argument"),
        (["train", "--resume", "no/such/folder"], "no run.json"),
        (["train", "--resume", "a", "--output", "b"], "not allowed with"),
        (["train", "ppo", "CartPole-v1", "--checkpoint-every", "9"], "--output"),
        (["train", "ppo", "CartPole-v1", "--checkpoint-seconds", "9"], "--output"),
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

    recipe = changed(
        recipes.default_ppo(),
        ["learning_rate=1", "minibatch_size=none", "hidden=32", "anneal=false", "activation=relu", "gamma=0.5"],
    )
    assert recipe.ppo.learning_rate == 1.0
    assert recipe.ppo.minibatch_size is None
    assert recipe.ppo.gamma == 0.5
    assert recipe.ppo.anneal is False
    assert recipe.network.hidden == (32,)
    assert recipe.network.activation == "relu"


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


def test_a_monitored_run_shows_what_was_sampled(capsys):
    short = ["train", "ppo", "CartPole-v1", "--total-timesteps", "64", "--evaluate", "0", "--monitor", *SMALL]
    code, out, _ = run(capsys, *short)
    assert code == 0
    assert "CPU, this process" in out
    assert "GPU" in out
    usage = json.loads(run(capsys, *short, "--json")[1])["usage"]
    assert usage["process_cpu"]["mean"] > 0
    assert json.loads(run(capsys, *[a for a in short if a != "--monitor"], "--json")[1])["usage"] is None


def test_a_placement_is_named_in_the_report(capsys):
    _, out, _ = run(
        capsys,
        "train",
        "ppo",
        "CartPole-v1",
        "--total-timesteps",
        "64",
        "--evaluate",
        "0",
        "--placement",
        "cpu+cpu",
        *SMALL,
    )
    assert "placement cpu+cpu, schedule sync" in out
    assert "publish" in out
