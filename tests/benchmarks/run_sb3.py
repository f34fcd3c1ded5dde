"""Train one piece of work with Stable-Baselines3 and print one JSON line. Run by the peers' own Python."""

import json
import sys

import stable_baselines3
import torch
from measure import answer
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from work import WORKS

work = WORKS[sys.argv[1]]
torch.set_num_threads(int(sys.argv[2]))
agent = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=work.num_envs, seed=0),
    n_steps=work.rollout_steps,
    batch_size=work.minibatch_size,
    n_epochs=work.epochs,
    learning_rate=work.learning_rate,
    policy_kwargs={"net_arch": {"pi": list(work.hidden), "vf": list(work.hidden)}},
    device="cpu",
    seed=0,
)
agent.learn(work.num_envs * work.rollout_steps)


def train() -> int:
    """Environment steps taken."""
    before = agent.num_timesteps
    agent.learn(work.timesteps, reset_num_timesteps=False)
    return agent.num_timesteps - before


print(json.dumps(answer("stable-baselines3", stable_baselines3.__version__, train)))
