"""Train one piece of work with hybridrl and print one JSON line. Run as a process of its own."""

import json
import sys

import torch
from measure import answer
from work import WORKS

import hybridrl as hrl
from hybridrl.recipes import PPORecipe

work = WORKS[sys.argv[1]]
torch.set_num_threads(int(sys.argv[2]))
recipe = PPORecipe(
    ppo=hrl.PPOConfig(
        rollout_steps=work.rollout_steps,
        minibatch_size=work.minibatch_size,
        epochs=work.epochs,
        learning_rate=work.learning_rate,
    ),
    network=hrl.NetworkConfig(hidden=work.hidden),
    num_envs=work.num_envs,
)
agent = hrl.PPO("CartPole-v1", recipe=recipe, seed=0)
agent.learn(work.num_envs * work.rollout_steps)  # warm-up: first calls pay for what later ones don't
print(json.dumps(answer("hybridrl", hrl.__version__, lambda: agent.learn(work.timesteps).timesteps)))
