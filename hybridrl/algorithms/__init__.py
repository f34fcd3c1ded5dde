"""Algorithms: each a Config and a Learner, which knows tensors, not devices or environments."""

from hybridrl.algorithms.ppo import PPOConfig, PPOLearner, PPOStatistics

__all__ = ["PPOConfig", "PPOLearner", "PPOStatistics"]
