"""Recipes: complete, saved without loss, found by name."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from hybridrl import recipes
from hybridrl.algorithms import PPOConfig
from hybridrl.execution import Budget
from hybridrl.networks import NetworkConfig
from hybridrl.recipes import PPORecipe

ALL = (
    recipes.default_ppo,
    recipes.classic_ppo_cartpole,
    recipes.classic_ppo_pendulum,
    recipes.tuned_ppo_cartpole,
    recipes.tuned_ppo_pendulum,
)


@pytest.mark.parametrize("make", ALL)
def test_a_recipe_survives_json(make: Callable[[], PPORecipe]) -> None:
    recipe = make()
    assert PPORecipe.from_dict(json.loads(json.dumps(recipe.to_dict(), allow_nan=False))) == recipe


def test_every_field_survives_json() -> None:
    """Values that no recipe has: a field that were left out would come back as its default."""
    recipe = PPORecipe(
        ppo=PPOConfig(rollout_steps=7, target_kl=0.1, truncation="terminate"),
        network=NetworkConfig(hidden=(3, 5, 7), mean_bound=0.5),
        num_envs=3,
        max_episode_steps=11,
        bounds="scale",
        normalize_observation=True,
        normalize_reward=True,
        budget=Budget(episodes=13, first_episode=17),
    )
    assert PPORecipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize("part", ["", "ppo", "network", "budget"])
def test_a_field_of_another_version_is_refused_in_one_line(part: str) -> None:
    data = PPORecipe().to_dict()
    (data[part] if part else data)["invented"] = 1
    with pytest.raises(ValueError, match=r"not a recipe of this version.*invented") as error:
        PPORecipe.from_dict(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["ppo", "network", "budget"])
def test_a_missing_part_is_refused_in_one_line(field: str) -> None:
    data = PPORecipe().to_dict()
    del data[field]
    with pytest.raises(ValueError, match=f"not a recipe of this version.*{field}"):
        PPORecipe.from_dict(data)


@pytest.mark.parametrize(
    ("name", "env_id", "expected"),
    [
        ("default", None, recipes.default_ppo()),
        ("default", "Acrobot-v1", recipes.default_ppo()),
        ("classic", "CartPole-v1", recipes.classic_ppo_cartpole()),
        ("classic", "Pendulum-v1", recipes.classic_ppo_pendulum()),
        ("tuned", "CartPole-v1", recipes.tuned_ppo_cartpole()),
        ("tuned", "Pendulum-v1", recipes.tuned_ppo_pendulum()),
    ],
)
def test_recipes_are_found_by_name(name: str, env_id: str | None, expected: PPORecipe) -> None:
    assert recipes.ppo(name, env_id) == expected


@pytest.mark.parametrize(
    ("name", "env_id", "message"),
    [
        (
            "tuned",
            "Acrobot-v1",
            "no recipe 'tuned' for Acrobot-v1: there are 'default' for any, 'classic' for CartPole",
        ),
        ("tuned", None, "no recipe 'tuned' for this environment: there are 'default' for any"),
        ("best", "CartPole-v1", "no recipe 'best' for CartPole-v1: there are"),
    ],
)
def test_an_unknown_recipe_is_refused_with_those_there_are(name: str, env_id: str | None, message: str) -> None:
    with pytest.raises(ValueError) as error:
        recipes.ppo(name, env_id)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, "8"])
def test_the_number_of_environments_is_checked(num_envs: object) -> None:
    with pytest.raises(ValueError, match=r"num_envs=.*expected a whole number of at least 1"):
        PPORecipe(num_envs=num_envs)  # type: ignore[arg-type]


def test_whole_episodes_need_one_environment() -> None:
    with pytest.raises(ValueError, match=r"rollout_steps=None .* needs num_envs=1, got 8: give a number"):
        PPORecipe(ppo=PPOConfig(rollout_steps=None), num_envs=8)


def test_the_classic_recipe_is_the_claims_set_up() -> None:
    """As the ledger states it: one environment, ten full-batch epochs an episode, no extras."""
    for recipe, lengths in ((recipes.classic_ppo_cartpole(), 200), (recipes.classic_ppo_pendulum(), None)):
        c = recipe.ppo
        assert (recipe.num_envs, recipe.max_episode_steps, recipe.network.hidden) == (1, lengths, (128,))
        assert (c.rollout_steps, c.epochs, c.minibatch_size, c.clip_range) == (None, 10, None, 0.2)
        assert (c.normalize_advantage, c.max_gradient_norm, c.entropy_coefficient, c.anneal) == (
            False,
            None,
            0.0,
            False,
        )
        assert (recipe.normalize_observation, recipe.normalize_reward, c.truncation) == (False, False, "bootstrap")
    cartpole, pendulum = recipes.classic_ppo_cartpole(), recipes.classic_ppo_pendulum()
    rates = [
        (r.ppo.learning_rate, r.ppo.critic_learning_rate, r.ppo.gamma, r.ppo.gae_lambda) for r in (cartpole, pendulum)
    ]
    assert rates == [(1e-3, 1e-2, 0.98, 0.95), (1e-4, 5e-3, 0.9, 0.9)]
    assert (pendulum.ppo.reward_shift, pendulum.ppo.reward_scale) == (8.0, 1 / 8)
    assert cartpole.budget == Budget(episodes=500)


@pytest.mark.parametrize(
    ("make", "most"), [(recipes.tuned_ppo_cartpole, 100_000), (recipes.tuned_ppo_pendulum, 200_000)]
)
def test_the_tuned_recipes_keep_to_the_stated_steps(make: Callable[[], PPORecipe], most: int) -> None:
    budget = make().budget
    assert budget.timesteps is not None
    assert budget.timesteps <= most


def test_a_variant_is_a_replacement_away() -> None:
    base = recipes.tuned_ppo_cartpole()
    variant = dataclasses.replace(base, num_envs=2)
    assert variant.ppo is base.ppo
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.num_envs = 2  # type: ignore[misc]
