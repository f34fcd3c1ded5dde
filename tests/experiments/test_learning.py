"""Learning by threshold: exact on made-up runs; no training here."""

from types import SimpleNamespace

import pytest

from hybridrl.envs import Episode
from hybridrl.experiments import learning
from hybridrl.experiments.learning import THRESHOLDS, SeedRun, Threshold
from hybridrl.recipes import PPORecipe, tuned_ppo_cartpole

CARTPOLE = THRESHOLDS[0]


def made_up() -> list[SeedRun]:
    return [
        SeedRun(0, 475.0, 3.0, 100, ((50, 20.0), (100, 475.0))),
        SeedRun(1, 474.9, 5.0, 100, ((100, 474.9),)),
        SeedRun(2, 500.0, 4.0, 100, ((100, 500.0),)),
    ]


def test_a_seed_at_the_threshold_has_learnt_and_one_below_has_not() -> None:
    first = learning.table(CARTPOLE, made_up()).rows[0]
    assert first.quantity == "seeds at 475 or above"
    assert first.cells[0].value == "2 of 3"
    assert learning.record(CARTPOLE, made_up()).outcome["reached"] == 2


def test_record_holds_every_seed_and_its_curve() -> None:
    record = learning.record(CARTPOLE, made_up())
    assert record.series["score"].values == (475.0, 474.9, 500.0)
    assert record.series["return of seed 0"].values == (20.0, 475.0)
    assert record.series["steps of seed 0"].values == (50, 100)
    assert PPORecipe.from_dict(record.config["recipe"]) == tuned_ppo_cartpole()


@pytest.mark.parametrize(("scale", "count"), [("smoke", 1), ("quick", 3), ("full", 5)])
def test_seeds_by_scale(monkeypatch: pytest.MonkeyPatch, scale: str, count: int) -> None:
    monkeypatch.setenv("HYBRIDRL_SCALE", scale)
    assert list(learning.seeds()) == list(range(count))


def test_last_ten_are_the_last_ten() -> None:
    result = SimpleNamespace(mean_return=lambda last: float(last))
    assert learning.last_ten(None, result) == 10.0


def test_evaluation_is_the_mean_of_one_hundred_episodes() -> None:
    def evaluate(count: int) -> list[Episode]:
        return [Episode(float(i), 1, 0, False) for i in range(count)]

    assert learning.evaluated(SimpleNamespace(evaluate=evaluate), None) == 49.5


def test_promises_are_those_that_were_made() -> None:
    promised = {(t.env, t.recipe): t.at_least for t in THRESHOLDS}
    expected = {("CartPole-v1", "tuned"): 475, ("Pendulum-v1", "tuned"): -200, ("CartPole-v1", "classic"): 190}
    assert promised == expected


def test_environment_is_closed_even_where_judging_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Agent:
        def __init__(self, env: str, *, recipe: str, placement: str, seed: int) -> None: ...

        def learn(self) -> None: ...

        def close(self) -> None:
            closed.append(True)

    def fail(agent: object, result: object) -> float:
        raise RuntimeError("planted")

    monkeypatch.setattr(learning, "PPO", Agent)
    judged = Threshold(name="x", env="CartPole-v1", recipe="tuned", at_least=1, judged="never", score=fail)
    with pytest.raises(RuntimeError, match="planted"):
        learning.run_seed(judged, 0)
    assert closed == [True]
