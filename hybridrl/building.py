"""How an agent is put together: recipe, environments, policy and storage from what the user named."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from hybridrl import envs, recipes
from hybridrl.algorithms import PPOConfig
from hybridrl.data import RolloutStorage
from hybridrl.envs import ActionSpec, Environments, Processes
from hybridrl.networks import (
    ActorCritic,
    CategoricalHead,
    GaussianHead,
    Head,
    MultiCategoricalHead,
    ObservationNormalizer,
    Policy,
)
from hybridrl.placement import Placement, devices
from hybridrl.recipes import PPORecipe

EnvSource = str | Callable[[], gym.Env[Any, Any]] | gym.vector.VectorEnv[Any, Any, Any]


def interface(environments: Environments) -> dict[str, list[Any]]:
    """What a policy sees of environments, in plain values."""
    action, observation = environments.action, environments.observation
    more: list[Any] = [action.bounds] if action.kind == "continuous" else list(action.sizes)
    return {
        "observations": [*observation.shape, observation.dtype.name],
        "actions": [action.kind, action.size, *more],
    }


def check_alike(environments: Environments, made_for: dict[str, Any], whose: str) -> None:
    """Raise a ``ValueError`` unless a policy made for those observations and actions fits the environments."""
    here = interface(environments)
    if here != made_for:
        raise ValueError(
            f"{whose} made for observations {made_for['observations']} and actions {made_for['actions']}; "
            f"this environment has {here['observations']} and {here['actions']}"
            + ("; see Environments.bound_actions" if _differ_in_bounds(here, made_for) else "")
        )


def _differ_in_bounds(a: dict[str, list[Any]], b: dict[str, list[Any]]) -> bool:
    continuous = a["actions"][0] == "continuous"
    return continuous and a["observations"] == b["observations"] and a["actions"][:2] == b["actions"][:2]


def resolve_recipe(recipe: str | PPORecipe | PPOConfig, env: EnvSource) -> PPORecipe:
    """The recipe that a name or a config stands for; a vector environment brings its own number of environments."""
    if isinstance(recipe, str):
        recipe = recipes.ppo(recipe, env if isinstance(env, str) else None)
    elif isinstance(recipe, PPOConfig):
        recipe = PPORecipe(ppo=recipe)
    elif not isinstance(recipe, PPORecipe):
        raise ValueError(f"recipe={recipe!r}: expected a name such as 'default', a PPORecipe or a PPOConfig")
    if isinstance(env, gym.vector.VectorEnv):
        return dataclasses.replace(recipe, num_envs=env.num_envs)
    return recipe


def make_environments(env: EnvSource, recipe: PPORecipe, processes: Processes = False) -> Environments:
    """The environments that a recipe asks for; ``processes`` as in :func:`hybridrl.envs.make`."""
    limit, bounds = recipe.max_episode_steps, recipe.bounds or "clip"
    made = envs.make(env, recipe.num_envs, max_episode_steps=limit, bounds=bounds, processes=processes)
    if recipe.bounds is None and made.action.kind == "continuous" and made.action.is_bounded:
        made.bound_actions("scale")
    return made


def make_policy(environments: Environments, network: nn.Module | None, recipe: PPORecipe, seed: int) -> Policy:
    """Build the policy; torch's global generator is left as it was."""
    head, shape = make_head(environments.action), environments.observation.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if network is not None:
            _check_network(network)
        built = network if network is not None else ActorCritic(int(np.prod(shape)), head, recipe.network)
        policy = Policy(built, head, ObservationNormalizer(shape, enabled=recipe.normalize_observation))
        policy.check(
            (torch.rand(2, *shape) * 2).type(torch.from_numpy(np.empty(0, environments.observation.dtype)).dtype)
        )
    return policy


def _check_network(network: nn.Module) -> None:
    if not isinstance(network, nn.Module):
        raise ValueError(f"network={network!r:.60}: expected a torch.nn.Module that returns (parameters, value)")
    for name, parameter in network.named_parameters():
        if parameter.is_meta:
            raise ValueError(f"the network's {name} is on the meta device, without values: build it on the CPU")
        if parameter.dtype != torch.float32:
            raise ValueError(f"the network's {name} is {parameter.dtype}: expected torch.float32, call network.float()")


def make_head(action: ActionSpec) -> Head:
    """The distribution over an environment's actions."""
    if action.kind == "multi-discrete":
        return MultiCategoricalHead(action.sizes)
    return CategoricalHead(action.size) if action.kind == "discrete" else GaussianHead(action.size)


def make_storage(environments: Environments, recipe: PPORecipe, placement: Placement) -> RolloutStorage:
    """Room for one rollout of a recipe, where a placement stores it."""
    rows = recipe.ppo.rollout_steps or environments.max_episode_steps
    if rows is None:
        raise ValueError("rollout_steps=None (whole episodes) needs a time limit: give the recipe max_episode_steps")
    action = environments.action
    return RolloutStorage(
        rows,
        environments.num_envs,
        observation_shape=environments.observation.shape,
        observation_dtype=environments.observation.dtype,
        action=(action.network_shape, torch.from_numpy(np.empty(0, action.network_dtype)).dtype),
        device=placement.store_device,
        pin=any(map(devices.can_pin, placement.devices)),
    )
