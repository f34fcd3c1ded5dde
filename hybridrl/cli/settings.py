"""``--set FIELD=VALUE``: a recipe with fields replaced."""

import ast
import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any


def changed(recipe: Any, assignments: Sequence[str]) -> Any:
    """The recipe with fields replaced; a field is looked for in the recipe and in the configs inside it."""
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise ValueError(f"--set {assignment}: expected FIELD=VALUE, such as learning_rate=1e-3")
        recipe = _replaced(recipe, name.strip(), text.strip())
    return recipe


def _replaced(recipe: Any, name: str, text: str) -> Any:
    holders = {"": recipe, "ppo": recipe.ppo, "network": recipe.network}
    known = {f.name for h in holders.values() for f in dataclasses.fields(h)} - {*holders, "budget"}
    if name not in known:
        raise ValueError(f"--set {name}: no such field; there are {', '.join(sorted(known))}")
    for where, holder in holders.items():
        if name in {f.name for f in dataclasses.fields(holder)}:
            value = _parsed(name, text, typing.get_type_hints(type(holder))[name])
            changed = dataclasses.replace(holder, **{name: value})
            return dataclasses.replace(recipe, **{where: changed}) if where else changed
    raise AssertionError(name)


def _parsed(name: str, text: str, kind: Any) -> Any:
    """The text as a value of the annotated kind; numbers, None, booleans, tuples, or a plain word."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"none": None, "true": True, "false": False}.get(text.lower(), text)
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if float in kinds and type(value) is int:
        value = float(value)
    if any(typing.get_origin(k) is tuple for k in kinds) and type(value) is int:
        value = (value,)
    if not any(_is_a(value, k) for k in kinds):
        expected = str(kind).replace("typing.", "").removeprefix("<class '").removesuffix("'>")
        raise ValueError(f"--set {name}={text}: expected {expected}")
    return value


def _is_a(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    return type(value) is (typing.get_origin(kind) or kind)
