"""A budget is one amount in one unit, counted from where it began."""

import math

import pytest

from hybridrl.execution import Budget


@pytest.mark.parametrize(
    ("timesteps", "episodes"), [(None, None), (10, 10), (0, None), (None, 0), (-1, None), (None, -5)]
)
def test_exactly_one_amount_of_at_least_one_is_taken(timesteps: int | None, episodes: int | None) -> None:
    with pytest.raises(
        ValueError, match=r"total_timesteps=.*expected exactly one of the two, an integer of at least 1"
    ) as e:
        Budget(timesteps=timesteps, episodes=episodes)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("amount", [2.5, "100", True, math.nan])
def test_an_amount_is_a_whole_number(amount: object) -> None:
    with pytest.raises(ValueError, match="expected exactly one of the two, an integer of at least 1"):
        Budget(timesteps=amount)  # type: ignore[arg-type]


def test_steps_are_counted_from_where_the_budget_began() -> None:
    budget = Budget(timesteps=100, first_timestep=40, first_episode=3)
    assert budget.amount == 100
    assert budget.spent(timesteps=40, episodes=3) == 0
    assert budget.spent(timesteps=95, episodes=9) == 55


def test_episodes_are_counted_from_where_the_budget_began() -> None:
    budget = Budget(episodes=7, first_timestep=40, first_episode=3)
    assert budget.amount == 7
    assert budget.spent(timesteps=1_000, episodes=8) == 5


@pytest.mark.parametrize(
    ("timesteps", "num_envs", "rows"), [(40, 8, 12), (135, 8, 0), (132, 8, 1), (140, 1, 0), (139, 1, 1)]
)
def test_rows_left_are_whole_vector_steps(timesteps: int, num_envs: int, rows: int) -> None:
    assert Budget(timesteps=100, first_timestep=40).rows_left(timesteps=timesteps, num_envs=num_envs) == rows


def test_episodes_limit_no_rows() -> None:
    assert Budget(episodes=2).rows_left(timesteps=10**9, num_envs=8) == math.inf
