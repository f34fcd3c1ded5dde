"""Where should each phase of reinforcement learning run, and when? Measured, predicted, chosen.

Names are imported when they are first used: ``hybridrl.utilization``, pure arithmetic, never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrl.agents import PPO as PPO
    from hybridrl.algorithms import PPOConfig as PPOConfig
    from hybridrl.loggers import TensorBoardLogger as TensorBoardLogger
    from hybridrl.networks import NetworkConfig as NetworkConfig
    from hybridrl.ops.checks import NonFiniteError as NonFiniteError
    from hybridrl.placement import Placement as Placement
    from hybridrl.profiling import Monitor as Monitor
    from hybridrl.profiling import PhaseTimer as PhaseTimer
    from hybridrl.profiling import Report as Report
    from hybridrl.profiling import Usage as Usage
    from hybridrl.recipes import PPORecipe as PPORecipe
    from hybridrl.results import TrainingResult as TrainingResult
    from hybridrl.runs import RunFolder as RunFolder

__version__ = "0.1.0"

_HOMES = {
    "PPO": "agents",
    "PPOConfig": "algorithms",
    "NetworkConfig": "networks",
    "Placement": "placement",
    "Monitor": "profiling",
    "PhaseTimer": "profiling",
    "Report": "profiling",
    "Usage": "profiling",
    "PPORecipe": "recipes",
    "TrainingResult": "results",
    "RunFolder": "runs",
    "TensorBoardLogger": "loggers",
    "NonFiniteError": "ops.checks",
}
_MODULES = (
    "algorithms",
    "envs",
    "execution",
    "experiments",
    "networks",
    "ops",
    "placement",
    "profiling",
    "recipes",
    "utilization",
)

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"hybridrl.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"hybridrl.{name}")
    raise AttributeError(f"module 'hybridrl' has no attribute {name!r}; it has: {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
