"""Vector environments behind one face: which rows are transitions, and the true final observations."""

from hybridrl.envs.check import check_env
from hybridrl.envs.episodes import Episode, EpisodeTracker, evaluate
from hybridrl.envs.factory import EnvFactory
from hybridrl.envs.make import Processes, make
from hybridrl.envs.probe import Forecast
from hybridrl.envs.processes import ProcessVectorEnv
from hybridrl.envs.spaces import ActionSpec, Bounds, ObservationSpec
from hybridrl.envs.vector import Autoreset, Environments, Step, final_observations, spread_seeds

__all__ = [
    "ActionSpec",
    "Autoreset",
    "Bounds",
    "EnvFactory",
    "Environments",
    "Episode",
    "EpisodeTracker",
    "Forecast",
    "ObservationSpec",
    "ProcessVectorEnv",
    "Processes",
    "Step",
    "check_env",
    "evaluate",
    "final_observations",
    "make",
    "spread_seeds",
]
