"""Every experiment that one command runs, by name and by the claims that it bears on."""

import difflib

from hybridrl.experiments import classic_cartpole, learning, profilers, split_cost, transfers, update_cost
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
    Experiment(
        name="transfers",
        claims=("B7", "C6"),
        question="How does a rollout reach a device fastest: in how many copies, and out of which memory?",
        run=transfers.reproduce,
    ),
    Experiment(
        name="split-networks",
        claims=("C5",),
        question="What does it cost to keep the actor on the CPU and the critic on the GPU?",
        run=split_cost.reproduce,
    ),
    *(learning.experiment(threshold) for threshold in learning.THRESHOLDS),
)

SUITES: dict[str, tuple[str, ...]] = {
    "placement": ("B1", "B2", "B4", "B5", "B6", "B7", "C1", "C2", "C4", "C5"),
}
"""Claims that one command answers, in order: by claim, so that a suite needn't know what answers it."""


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


def suite(name: str) -> tuple[tuple[Experiment, ...], tuple[str, ...]]:
    """The experiments of a suite, each once, in the order of its claims; and the claims that have none yet.

    Raises:
        ValueError: there is no such suite.
    """
    if name not in SUITES:
        raise ValueError(f"no suite {name!r}: there are {', '.join(SUITES)}")
    found = {claim: [e for e in EXPERIMENTS if claim in e.claims] for claim in SUITES[name]}
    experiments = dict.fromkeys(e for answers in found.values() for e in answers)
    return tuple(experiments), tuple(claim for claim, answers in found.items() if not answers)
