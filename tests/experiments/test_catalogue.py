"""Experiments are found by name and by claim, and a near miss is helped."""

import pytest

from hybridrl.experiments import catalogue
from hybridrl.experiments.catalogue import EXPERIMENTS
from hybridrl.experiments.record import CLAIM, NAME


def test_names_are_unique_slugs_and_questions_are_questions() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(names) == len(set(names))
    assert all(NAME.fullmatch(name) for name in names)
    assert all(experiment.question.endswith("?") for experiment in EXPERIMENTS)


def test_no_claim_has_two_experiments() -> None:
    claims = [claim for experiment in EXPERIMENTS for claim in experiment.claims]
    assert len(claims) == len(set(claims))
    assert all(CLAIM.fullmatch(claim) for claim in claims)


def test_every_experiment_is_found_by_its_name_and_its_claims() -> None:
    for experiment in EXPERIMENTS:
        assert catalogue.by_name(experiment.name) is experiment
        for claim in experiment.claims:
            assert catalogue.by_claim(claim.lower()) is experiment


def test_unknown_names_and_claims_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'profilers'\? there are classic-cartpole-wall"):
        catalogue.by_name("profiler")
    with pytest.raises(ValueError, match="no experiment for claim 'Z9' yet: there are C1, B1, C2, B4, C3"):
        catalogue.by_claim("Z9")
