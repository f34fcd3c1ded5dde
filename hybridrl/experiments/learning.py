"""Does it learn? Recipes over several seeds, judged by a threshold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hybridrl.agents import PPO
from hybridrl.experiments import scale
from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.outcome import Experiment, Outcome, command
from hybridrl.experiments.record import Record, Series
from hybridrl.experiments.result import Cell, Result, Row
from hybridrl.results import TrainingResult


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What a recipe promises: over every seed, the final weights reach a return within its budget."""

    name: str
    env: str
    recipe: str
    at_least: float
    """Mean return that counts as learnt."""
    judged: str
    """How the return is taken, in words."""
    score: Callable[[PPO, TrainingResult], float]


@dataclass(frozen=True)
class SeedRun:
    """One seed's training."""

    seed: int
    score: float
    training_s: float
    timesteps: int
    curve: tuple[tuple[int, float], ...]
    """(environment steps, return) of each training episode."""


def evaluated(agent: PPO, result: TrainingResult) -> float:
    """Mean return of 100 evaluation episodes, most probable actions."""
    return fmean(episode.return_ for episode in agent.evaluate(100))


def last_ten(agent: PPO, result: TrainingResult) -> float:
    """Mean return of the last ten training episodes."""
    return result.mean_return(last=10) or 0.0


_EVALUATED = "100 evaluation episodes, most probable actions, final weights"
THRESHOLDS = (
    Threshold(
        name="ppo-cartpole-tuned", env="CartPole-v1", recipe="tuned", at_least=475, judged=_EVALUATED, score=evaluated
    ),
    Threshold(
        name="ppo-pendulum-tuned", env="Pendulum-v1", recipe="tuned", at_least=-200, judged=_EVALUATED, score=evaluated
    ),
    Threshold(
        name="ppo-cartpole-classic",
        env="CartPole-v1",
        recipe="classic",
        at_least=190,
        judged="the last ten of 500 training episodes, of 200 steps at most",
        score=last_ten,
    ),
)


def run_seed(threshold: Threshold, seed: int) -> SeedRun:
    """Train one seed for the recipe's own budget, and judge it. The clock leaves evaluation out."""
    agent = PPO(threshold.env, recipe=threshold.recipe, placement="cpu", seed=seed)
    try:
        result = agent.learn()
        score = threshold.score(agent, result)
    finally:
        agent.close()
    curve = tuple(zip(result.episode_timesteps, result.returns, strict=True))
    return SeedRun(seed, score, result.report.wall_s, result.timesteps, curve)


def seeds() -> range:
    """One seed at smoke scale, three at quick, five at full."""
    return range(scale.pick(smoke=1, quick=3, full=5))


def table(threshold: Threshold, runs: Sequence[SeedRun]) -> Result:
    """One row a quantity: how many seeds reached the threshold, and how far and how fast they came."""
    reached = sum(run.score >= threshold.at_least for run in runs)
    return Result(
        title=f"PPO, recipe {threshold.recipe!r}, on {threshold.env}",
        columns=(f"{len(runs)} seeds" if len(runs) > 1 else "one seed",),
        rows=(
            Row(
                "learnt",
                f"seeds at {threshold.at_least:g} or above",
                "",
                (Cell(f"{reached} of {len(runs)}", "measured"),),
            ),
            _row("mean return", "", [run.score for run in runs]),
            _row("training time", "s", [run.training_s for run in runs]),
            _row("environment steps", "steps", [float(run.timesteps) for run in runs]),
        ),
        machine=describe(),
        notes=(f"Return: {threshold.judged}.",),
    )


def record(threshold: Threshold, runs: Sequence[SeedRun]) -> Record:
    """The raw repeats: a value a seed, and each seed's learning curve."""
    curves = {f"return of seed {run.seed}": Series([r for _, r in run.curve], "return") for run in runs}
    steps = {f"steps of seed {run.seed}": Series([s for s, _ in run.curve], "steps") for run in runs}
    return Record(
        name=threshold.name,
        kind="measured",
        command=command(threshold.name, scale.current()),
        series={
            "score": Series([run.score for run in runs], "return"),
            "training time": Series([run.training_s for run in runs], "s"),
            "environment steps": Series([run.timesteps for run in runs], "steps"),
            **curves,
            **steps,
        },
        config={
            "seeds": [run.seed for run in runs],
            "recipe": PPO(threshold.env, recipe=threshold.recipe).recipe.to_dict(),
            "environment": threshold.env,
        },
        outcome={
            "threshold": threshold.at_least,
            "judged": threshold.judged,
            "reached": sum(run.score >= threshold.at_least for run in runs),
            "of": len(runs),
        },
    )


def experiment(threshold: Threshold) -> Experiment:
    """The experiment that keeps one promise."""

    def run() -> Outcome:
        runs = [run_seed(threshold, seed) for seed in seeds()]
        return Outcome(table(threshold, runs), record(threshold, runs))

    question = f"Does PPO's {threshold.recipe!r} recipe reach {threshold.at_least:g} on {threshold.env}, every seed?"
    return Experiment(name=threshold.name, claims=(), question=question, run=run)


def _row(label: str, unit: str, values: list[float]) -> Row:
    return Row(label, "", unit, (Cell(Measurement(values, unit), "measured"),))
