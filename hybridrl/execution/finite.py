"""Numbers that aren't finite in what acting left: who gave the first, in order of cause and effect."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybridrl.data import Rollout
from hybridrl.networks import Decision
from hybridrl.ops.checks import NonFiniteError
from hybridrl.placement import move

_ENVIRONMENT = "mend the environment"
_POLICY = "look for weights that diverged (lower the learning rate) or observations too large (normalize_observation)"


class _Culprit(NamedTuple):
    when: tuple[int, int]  # its row, and its place among what that row holds: the least is the cause of the others
    what: str
    environment: int
    value: float
    cure: str
    element: str = ""


def check_rollout(rollout: Rollout, following: npt.NDArray[np.generic] | None, *, step: int) -> None:
    """Refuse to learn from what isn't finite: one such reward makes every weight one.

    Reset rows, and what follows a termination, are no part of any transition and may hold anything. Where all is
    fine, the rollout's device is read once.

    Args:
        rollout: T rows.
        following: ``[N, *shape]``, the observations after the last row; on the host.
        step: environment steps taken before the rollout.

    Raises:
        NonFiniteError: naming the first such number in order of cause and effect.
    """
    if not bool(_is_finite(rollout)) or (following is not None and not _all_finite(following)):
        rollout = move(rollout, "cpu")
        _raise_first([*_in_rows(rollout), *_in_next_values(rollout), *_after(rollout, following)], rollout, step)


def check_final(final: npt.NDArray[np.generic], truncated: npt.NDArray[np.bool_], *, step: int) -> None:
    """Refuse the observations that truncated episodes ended with, where one isn't finite.

    Their values are what the episodes are continued by; and a squashing network, or a normaliser that clips, makes a
    finite value of an infinite observation.

    Args:
        final: ``[N, *shape]``.
        truncated: ``[N]``, whose episode was truncated, and not terminated.
        step: environment steps taken.

    Raises:
        NonFiniteError: naming the first.
    """
    if _all_finite(final[truncated]):
        return
    environment, *place = np.argwhere(~np.isfinite(final) & truncated.reshape(-1, *[1] * (final.ndim - 1)))[0].tolist()
    raise NonFiniteError(
        f"final observation of environment {environment} at step {step:,}{_element(place)}: "
        f"{float(final[environment][tuple(place)]):g}, expected finite numbers; {_ENVIRONMENT}",
        step,
    )


def explain_crash(
    error: Exception,
    rollout: Rollout,
    observation: npt.NDArray[np.generic] | None,
    decision: Decision | None,
    *,
    step: int,
) -> None:
    """Name the number behind a crash of an environment or a policy, if one that isn't finite came before it.

    Args:
        error: what was raised.
        rollout: the rows written before; the last one's next value isn't known yet.
        observation: ``[N, *shape]``, what was acted on when it was raised.
        decision: what the policy says to that.
        step: environment steps taken before the rollout.

    Raises:
        NonFiniteError: with the crash as its consequence.
    """
    rollout = move(rollout, "cpu")
    found = [*_in_rows(rollout), *_after(rollout, observation)]
    if decision is not None:
        found += _in_decision(rollout, move(decision, "cpu"))
    try:
        _raise_first(found, rollout, step)
    except NonFiniteError as cause:
        then = " ".join(f"{type(error).__name__}: {error}".split())
        raise NonFiniteError(f"{cause} (it led to {then:.200})", cause.step) from error


def _is_finite(rollout: Rollout) -> Tensor:
    """Whether every number that counts is finite, as one boolean on the rollout's device."""
    r = rollout
    numbers = torch.stack([r.reward, r.log_prob, r.value, r.next_value])
    counted = torch.stack([r.valid, r.valid, r.valid, r.valid & ~r.terminated])
    fine = (torch.isfinite(numbers) | ~counted).all()
    if r.observation.is_floating_point():
        fine &= (torch.isfinite(r.observation).flatten(2).all(-1) | ~r.valid).all()
    return fine


def _in_rows(rollout: Rollout) -> Iterator[_Culprit]:
    r = rollout
    if r.observation.is_floating_point():
        # A reset row holds the observation that a truncated episode ended with, whose value was used.
        used = r.valid.clone()
        used[1:] |= (r.valid & ~r.terminated)[:-1]
        bad = ~torch.isfinite(r.observation)
        for row, environment in _first(bad.flatten(2).any(-1) & used):
            place = bad[row, environment].nonzero()[0].tolist()
            value = r.observation[row, environment][tuple(place)].item()
            yield _Culprit((row, 0), "observation", environment, value, _ENVIRONMENT, _element(place))
    columns = (("log-probability", r.log_prob, 2, _POLICY), ("value", r.value, 3, _POLICY))
    for what, column, order, cure in (*columns, ("reward", r.reward, 4, _ENVIRONMENT)):
        for row, environment in _first(~torch.isfinite(column) & r.valid):
            yield _Culprit((row, order), what, environment, column[row, environment].item(), cure)


def _in_next_values(rollout: Rollout) -> Iterator[_Culprit]:
    """A next value is what the policy says to the observation of the row below."""
    for row, environment in _first(~torch.isfinite(rollout.next_value) & rollout.valid & ~rollout.terminated):
        value = rollout.next_value[row, environment].item()
        cure = f"look for final observations that aren't finite; else {_POLICY}"
        yield _Culprit((row + 1, 1), "value of the next observation", environment, value, cure)


def _after(rollout: Rollout, observation: npt.NDArray[np.generic] | None) -> Iterator[_Culprit]:
    """In the observations after the last row."""
    if observation is None or observation.dtype.kind != "f":
        return
    for environment in _going_on(rollout, len(observation)):
        places = np.argwhere(~np.isfinite(observation[environment]))
        if len(places):
            place = places[0].tolist()
            value = float(observation[environment][tuple(place)])
            yield _Culprit((len(rollout), 0), "observation", environment, value, _ENVIRONMENT, _element(place))


def _in_decision(rollout: Rollout, decision: Decision) -> Iterator[_Culprit]:
    for order, (what, column) in enumerate((("log-probability", decision.log_prob), ("value", decision.value)), 2):
        numbers = column.tolist()
        for environment in _going_on(rollout, len(numbers)):
            if not np.isfinite(numbers[environment]):
                yield _Culprit((len(rollout), order), what, environment, numbers[environment], _POLICY)


def _going_on(rollout: Rollout, num_envs: int) -> list[int]:
    """Environments whose episode didn't terminate in the last row: what others say next may be anything."""
    terminated = rollout.terminated[-1].tolist() if len(rollout) else [False] * num_envs
    return [environment for environment in range(num_envs) if not terminated[environment]]


def _first(bad: Tensor) -> list[tuple[int, int]]:
    """Row and environment of the first True in ``[T, N]``; empty where there is none."""
    return [(int(row), int(environment)) for row, environment in bad.nonzero()[:1].tolist()]


def _raise_first(found: list[_Culprit], rollout: Rollout, step: int) -> None:
    if not found:
        return
    first = min(found, key=lambda culprit: culprit.when)
    row, order = first.when
    at = step + int(rollout.valid[: row + (order == _AFTER_THE_STEP)].sum())
    raise NonFiniteError(
        f"{first.what} of environment {first.environment} at step {at:,}{first.element}: {first.value:g}, "
        f"expected finite numbers; {first.cure}",
        at,
    )


_AFTER_THE_STEP = 4  # a reward is known one step later than what stands beside it


def _element(place: list[int]) -> str:
    return f" (element {', '.join(map(str, place))})"


def _all_finite(array: npt.NDArray[np.generic]) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
