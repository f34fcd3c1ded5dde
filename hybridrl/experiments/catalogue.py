"""Every experiment that one command runs, by name and by the claims that it bears on."""

import difflib

from hybridrl.experiments import classic_cartpole, learning, profilers, update_cost
from hybridrl.experiments.outcome import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="classic-cartpole-wall",
        claims=("C1", "B1"),
        question="How long does classic CartPole PPO take, by placement, and how long one step?",
        run=classic_cartpole.reproduce_wall,
    ),
    Experiment(
        name="classic-cartpole-phases",
        claims=("C2", "B4"),
        question="Where does its time go, phase by phase?",
        run=classic_cartpole.reproduce_phases,
    ),
    Experiment(
        name="profilers",
        claims=("C3",),
        question="What do cProfile and PyTorch's profiler cost, and what does each miss?",
        run=profilers.reproduce,
    ),
    Experiment(
        name="update-cost",
        claims=("B2", "B3"),
        question="What does an update cost by width and batch, and from which width on is a GPU faster?",
        run=update_cost.reproduce_update,
    ),
    Experiment(
        name="acting-cost",
        claims=("C4",),
        question="What does acting cost by width and batch, transfers included?",
        run=update_cost.reproduce_acting,
    ),
    *(learning.experiment(threshold) for threshold in learning.THRESHOLDS),
)


def by_name(name: str) -> Experiment:
    """The experiment of that name; a ``ValueError`` lists those there are."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    names = [experiment.name for experiment in EXPERIMENTS]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"no experiment {name!r}: {hint}there are {', '.join(names)}")


def by_claim(claim: str) -> Experiment:
    """The experiment that bears on a claim; a ``ValueError`` lists the claims that have one."""
    for experiment in EXPERIMENTS:
        if claim.upper() in {known.upper() for known in experiment.claims}:
            return experiment
    known = ", ".join(claim for experiment in EXPERIMENTS for claim in experiment.claims)
    raise ValueError(f"no experiment for claim {claim!r} yet: there are {known}")
