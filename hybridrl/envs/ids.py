"""Environment ids: found, refused with the modern call, or met with the nearest ones that exist."""

from __future__ import annotations

import difflib
import importlib

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, parse_env_id


def resolve(env_id: str) -> EnvSpec:
    """Return the spec of an id, "Name-v0" or "package:Name-v0"; ValueError if unknown or out of date."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    if name not in gym.registry:
        _register_atari(name)
    if name not in gym.registry:
        raise ValueError(_unknown(name))
    spec = gym.registry[name]
    newest = _newest(spec.namespace, spec.name)
    if newest is not None and newest.version != spec.version:
        raise ValueError(_out_of_date(spec, newest))
    return spec


def _import(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"environment id {env_id!r}: cannot import {module!r} ({error}): install it first") from error


def _register_atari(name: str) -> None:
    """Register the Atari ids, which each process (a spawned worker too) must do for itself."""
    try:
        ale_py = importlib.import_module("ale_py")
    except ImportError as error:
        if name.startswith("ALE/") or "NoFrameskip" in name:
            raise ValueError(f'environment id {name!r} needs ale_py: pip install "hybridrl[atari]"') from error
        return
    gym.register_envs(ale_py)


def _newest(namespace: str | None, name: str) -> EnvSpec | None:
    same = [spec for spec in gym.registry.values() if (spec.namespace, spec.name) == (namespace, name)]
    versioned = [spec for spec in same if spec.version is not None]
    return max(versioned, key=lambda spec: spec.version or 0, default=None)


def _unknown(env_id: str) -> str:
    try:
        namespace, name, version = parse_env_id(env_id)
    except gym.error.Error:
        return f"environment id {env_id!r} is malformed: expected 'Name-v0' or 'namespace/Name-v0'"
    newest = _newest(namespace, name)
    if newest is not None:
        is_retired = version is not None and version < (newest.version or 0)
        what = "was removed from Gymnasium" if is_retired else "does not exist"
        return f"environment id {env_id!r} {what}: use {newest.id!r}"
    current = [spec.id for spec in gym.registry.values() if _newest(spec.namespace, spec.name) in (None, spec)]
    close = difflib.get_close_matches(env_id, current, n=3)
    cure = f"did you mean {' or '.join(map(repr, close))}?" if close else "see gymnasium.pprint_registry()"
    return f"environment id {env_id!r} is not registered: {cure} (ids of a package: 'package:Name-v0')"


def _out_of_date(spec: EnvSpec, newest: EnvSpec) -> str:
    limit = spec.max_episode_steps
    same_limit = limit == newest.max_episode_steps or limit is None
    suffix = "" if same_limit else f" with max_episode_steps={limit}"
    return f"environment id {spec.id!r} is out of date: use {newest.id!r}{suffix}"
