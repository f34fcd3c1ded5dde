from collections.abc import Callable

import pytest

from hybridrl.experiments.machine import Machine


def _example(**changes: object) -> Machine:
    values: dict[str, object] = {
        "cpu": "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz",
        "cores_physical": 8,
        "cores_logical": 16,
        "cores_available": 1.5,
        "memory_gib": 24.0,
        "accelerators": (),
        "accelerator_note": "none that torch can use",
        "platform": "Linux x86_64",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "threads": 2,
        "thread_env": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": None},
    }
    return Machine(**values | changes)  # type: ignore[arg-type]


@pytest.fixture
def example() -> Callable[..., Machine]:
    """Build a machine like no other here, with some fields changed."""
    return _example


@pytest.fixture
def machine() -> Machine:
    return _example()
