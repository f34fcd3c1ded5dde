"""The face of the library: an algorithm bound to environments, a placement and a schedule."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hybridrl import checkpoints, envs
from hybridrl.algorithms import PPOConfig, PPOLearner
from hybridrl.building import (
    EnvSource,
    check_alike,
    interface,
    make_environments,
    make_policy,
    make_storage,
    resolve_recipe,
)
from hybridrl.envs import Environments, Episode
from hybridrl.execution import Budget, Collector, Iteration, synchronous
from hybridrl.ops.checks import NonFiniteError, first_non_finite
from hybridrl.placement import Placement
from hybridrl.profiling import NullTimer, PhaseTimer
from hybridrl.progress import ProgressBar
from hybridrl.recipes import PPORecipe
from hybridrl.results import TrainingLog, TrainingResult

Callback = Callable[[Iteration], bool | None]
Array = npt.NDArray[Any]


class PPO:
    """Proximal policy optimisation, ready to train.

    Args:
        env: a Gymnasium id, a callable that makes one environment, or a ``gymnasium.vector.VectorEnv``.
        recipe: ``"default"``, ``"classic"``, ``"tuned"``, a :class:`~hybridrl.recipes.PPORecipe`, or a
            :class:`~hybridrl.algorithms.ppo.PPOConfig` (the rest is then default).
        network: a module of your own with ``forward(observation [B, ...]) -> (parameters [B, K], value [B])``, where
            K is the number of actions, or twice the number of continuous dimensions (means, then log deviations);
            None builds the recipe's. It is trained in place.
        placement: ``"cpu"``.
        schedule: ``"sync"``: act and learn in turns.
        seed: of initialisation, action sampling, shuffling and environments, each of which gets its own stream.

    Raises:
        ValueError: an argument is wrong: what was given, what was expected, what to do.

    Attributes:
        recipe: the configuration in use.
        environments: those it trains on.
        policy: network, normaliser and action distribution.
        collector: acts on the environments.
        learner: improves the policy.
    """

    def __init__(
        self,
        env: EnvSource,
        recipe: str | PPORecipe | PPOConfig = "default",
        *,
        network: nn.Module | None = None,
        placement: str | Placement = "cpu",
        schedule: str = "sync",
        seed: int = 0,
    ) -> None:
        if schedule != "sync":
            raise ValueError(f"schedule={schedule!r}: expected 'sync', the one that this version has")
        self.placement, self.schedule = Placement.parse(placement), schedule
        initial, *streams, self._env_seed = envs.spread_seeds(seed, 5)
        self.seed = int(seed)
        self._learning = False
        self.recipe = resolve_recipe(recipe, env)
        self.environments = make_environments(env, self.recipe)
        self.policy = make_policy(self.environments, network, self.recipe, initial)
        self._generators = {
            name: torch.Generator().manual_seed(stream)
            for name, stream in zip(("act", "learn", "predict"), streams, strict=True)
        }
        # Only an id says everything about an environment: a callable may wrap what it makes.
        self._env_id = env if isinstance(env, str) else None
        self._custom_network = network is not None
        self._unfinished: Budget | None = None
        self._resumes = 0
        self.learner = PPOLearner(
            self.policy,
            self.recipe.ppo,
            num_envs=self.environments.num_envs,
            generator=self._generators["learn"],
            normalize_reward=self.recipe.normalize_reward,
            timer=NullTimer(),
        )
        self.collector = Collector(
            self.environments,
            self.policy,
            make_storage(self.environments, self.recipe),
            generator=self._generators["act"],
            seed=self._env_seed,
            timer=NullTimer(),
        )

    @property
    def timesteps(self) -> int:
        """Environment steps taken since the agent was made."""
        return self.collector.timesteps

    @property
    def unfinished(self) -> Budget | None:
        """The budget that ``learn(resume=True)`` would go on with; None where nothing was interrupted."""
        return self._unfinished

    @property
    def episodes(self) -> int:
        """Episodes finished since the agent was made."""
        return self.collector.episodes

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        total_episodes: int | None = None,
        progress_bar: bool = False,
        callback: Callback | Sequence[Callback] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 50,
        checkpoint_seconds: float | None = None,
        resume: bool = False,
    ) -> TrainingResult:
        """Train for a budget; calling again trains further.

        Args:
            total_timesteps: environment steps to take; no more are taken.
            total_episodes: or episodes to finish. Neither: the recipe's budget.
            progress_bar: show one on stderr, where that is a terminal.
            callback: called after each update, or several, called in turn; one returning False ends training.
            checkpoint: save the agent here now and then and at the end, so that a killed run loses little.
            checkpoint_every: updates between two saves.
            checkpoint_seconds: save after the first update that ends this long after the last save, too.
            resume: spend what is left of the budget that a saved agent was interrupted in.

        Returns:
            Episodes, statistics and the phase report of this call.

        Raises:
            ValueError: both budgets are given, there is nothing to resume, or no place for a checkpoint.
            NonFiniteError: a NaN or an infinity arose: what gave it, and the last checkpoint, which is untouched.
        """
        saving, callbacks = checkpoints.Schedule(checkpoint_every, checkpoint_seconds), _callbacks(callback)
        if self._learning:
            raise ValueError("learn() was called inside learn(): a callback may evaluate and save, but not learn")
        if checkpoint is not None:
            checkpoints.check_target(checkpoint)  # now, not after hours of training
        budget = self._budget(total_timesteps, total_episodes, resume)
        log = TrainingLog(first_timestep=self.timesteps)
        rows = self.recipe.ppo.rollout_steps
        progress = ProgressBar(budget, wanted=progress_bar)
        with _naming(checkpoint, self.collector), self._timed() as timer, progress as bar:
            for iteration in synchronous(self.collector, self.learner, budget, rows=rows, timer=timer):
                log.add(iteration)
                bar.advance(budget.spent(timesteps=self.timesteps, episodes=self.episodes), log.episodes)
                if checkpoint is not None and saving.is_due():
                    self.save(checkpoint)
                answers = [call(iteration) for call in callbacks]  # each is called, whatever others say
                if any(map(_says_stop, answers)):
                    break
        if self._is_spent(budget):
            self._unfinished = None
        if checkpoint is not None:
            self.save(checkpoint)
        return log.result(timer, notes=self._notes(), stopped=self._unfinished is not None)

    def predict(self, observation: Array, state: None = None, *, deterministic: bool = False) -> tuple[Array, None]:
        """Choose actions, as Stable-Baselines3's ``predict`` does.

        Args:
            observation: one observation ``[*shape]``, or a batch ``[B, *shape]``.
            state: for recurrent policies; these have none.
            deterministic: take the most probable action instead of sampling.

        Returns:
            Action or actions in the environment's own terms, and None.

        Raises:
            ValueError: the observation's shape isn't the environment's.
        """
        spec = self.environments.observation
        batch = np.array(observation, spec.dtype, order="C")  # a copy: torch takes no read-only or reversed views
        single = batch.shape == spec.shape
        if not single and batch.shape[1:] != spec.shape:
            raise ValueError(f"observation of shape {batch.shape}: expected {spec.shape}, or a batch of those")
        actions = self.environments.action.to_env(self._choose(batch[None] if single else batch, deterministic))
        return (actions[0] if single else actions), None

    def evaluate(
        self,
        episodes: int = 100,
        *,
        environments: Environments | None = None,
        deterministic: bool = True,
        seed: int | None = None,
    ) -> list[Episode]:
        """Play episodes with the policy as it is, on environments of their own.

        Args:
            episodes: how many, exactly.
            environments: where; None makes fresh ones like those trained on.
            deterministic: take the most probable actions.
            seed: of the environments; None derives one from the agent's that training doesn't use.

        Returns:
            The episodes, with raw returns.

        Raises:
            ValueError: no episodes are asked for, or the environments aren't like those trained on.
        """
        if type(episodes) is not int or episodes < 1:
            raise ValueError(f"episodes={episodes!r}: expected a whole number of at least 1")
        if environments is not None:
            if not isinstance(environments, Environments):
                raise ValueError(f"environments={environments!r:.60}: expected what hybridrl.envs.make(...) returns")
            if environments is self.environments:
                raise ValueError("these are the environments trained on, in the middle of episodes: give others")
            check_alike(environments, interface(self.environments), "the agent was")
        chosen = environments or self.environments.clone(min(episodes, 16))
        seed = envs.spread_seeds(self.seed, 6)[-1] if seed is None else seed
        try:
            return envs.evaluate(lambda o: self._choose(o, deterministic), chosen, episodes=episodes, seed=seed)
        finally:
            if environments is None:
                chosen.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that training needs to go on into one safetensors file, whole or not at all.

        Networks, normalisers, optimiser, random number generators and counters are kept. Environments aren't: a
        loaded agent starts new episodes, from seeds derived from its own.

        Raises:
            NonFiniteError: a weight, a moment or a state of the optimiser is NaN or infinite; an old file is untouched.
        """
        self._check_finite(path)
        seen = interface(self.environments)
        data = {
            "algorithm": "ppo",
            "environment": self._env_id,
            "observations": seen["observations"],
            "actions": seen["actions"],
            "recipe": self.recipe.to_dict(),
            "custom_network": self._custom_network,
            "seed": self.seed,
            "timesteps": self.timesteps,
            "episodes": self.episodes,
            "resumes": self._resumes,
            "unfinished": None if self._unfinished is None else dataclasses.asdict(self._unfinished),
        }
        checkpoints.write(path, self._tensors(), data)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        env: EnvSource | None = None,
        network: nn.Module | None = None,
        placement: str | Placement = "cpu",
    ) -> Self:
        """Read an agent that :meth:`save` wrote, on any machine.

        Args:
            path: of the file.
            env: needed where the agent was made with something other than a Gymnasium id.
            network: needed where the agent was made with one; of the same architecture.
            placement: where it shall run, whatever it was saved on.

        Raises:
            ValueError: the file can't be read, or doesn't fit the environment or the network.
        """
        tensors, data = checkpoints.read(path)
        missing = [name for name in _SAVED if name not in data]
        if missing or data["algorithm"] != "ppo":
            what = f"lacks {', '.join(missing)}" if missing else f"holds {data['algorithm']!r}, expected 'ppo'"
            raise ValueError(f"{os.fspath(path)}: {what}; give a file that PPO.save wrote")
        if data["custom_network"] and network is None:
            raise ValueError(f"{os.fspath(path)}: made with a network of your own; give one like it as network=")
        if env is None and data["environment"] is None:
            raise ValueError(f"{os.fspath(path)}: made without a Gymnasium id; give the environment as env=")
        if env is None and ":" in data["environment"]:
            # "module:Id" imports the module: a file must not decide what is imported.
            raise ValueError(f"{os.fspath(path)}: made with {data['environment']!r}; if you trust it, give it as env=")
        recipe = PPORecipe.from_dict(data["recipe"])
        source: EnvSource = data["environment"] if env is None else env
        agent = cls(source, recipe, network=network, placement=placement, seed=data["seed"])
        saved = {"observations": data["observations"], "actions": data["actions"]}
        check_alike(agent.environments, saved, f"{os.fspath(path)}:")
        checkpoints.check_same_shapes(tensors, agent._wanted_tensors(tensors), os.fspath(path))
        try:
            agent._restore(tensors, data)
        except (TypeError, RuntimeError, KeyError, AttributeError) as error:
            raise ValueError(f"{os.fspath(path)}: damaged ({' '.join(str(error).split())})") from None
        return agent

    def close(self) -> None:
        """Release the environments; closing twice is fine."""
        self.environments.close()

    @contextmanager
    def _timed(self) -> Iterator[PhaseTimer]:
        """Time the phases of collector and learner; outside, they run untimed."""
        timer = self.learner.timer = self.collector.timer = PhaseTimer()
        self._learning = True
        try:
            with timer.run():
                yield timer
        finally:
            self._learning = False
            self.learner.timer = self.collector.timer = NullTimer()

    def _budget(self, timesteps: int | None, episodes: int | None, resume: bool) -> Budget:
        if resume and (timesteps is not None or episodes is not None):
            raise ValueError("resume=True goes on with the saved budget: give no other")
        if resume:
            if self._unfinished is None:
                raise ValueError("resume=True: nothing is unfinished; give a budget to train further")
            return self._unfinished
        if timesteps is None and episodes is None:
            timesteps, episodes = self.recipe.budget.timesteps, self.recipe.budget.episodes
        budget = Budget(
            timesteps=timesteps, episodes=episodes, first_timestep=self.timesteps, first_episode=self.episodes
        )
        if self._is_spent(budget):
            envs_text = f"one step of each of {self.environments.num_envs} environments"
            raise ValueError(f"total_timesteps={timesteps}: less than {envs_text}; give more")
        self._unfinished = budget
        return budget

    def _is_spent(self, budget: Budget) -> bool:
        num_envs = self.environments.num_envs
        return budget.is_spent(timesteps=self.timesteps, episodes=self.episodes, num_envs=num_envs)

    def _notes(self) -> tuple[str, ...]:
        action = self.environments.action
        bounds = {"scale": "scaled to", "clip": "clipped to"}[action.bounds]
        actions = (f"actions {bounds} their bounds",) if action.kind == "continuous" else ()
        return (self.environments.description, *actions, f"placement {self.placement}, schedule {self.schedule}")

    def _choose(self, observation: Array, deterministic: bool) -> Array:
        """Actions in the network's terms."""
        generator = None if deterministic else self._generators["predict"]
        actions: Array = self.policy.predict(torch.from_numpy(observation), generator=generator).numpy()
        return actions

    def _modules(self) -> dict[str, nn.Module]:
        return {"policy": self.policy, "reward_normalizer": self.learner.reward_normalizer}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"generator.{name}": g.get_state() for name, g in self._generators.items()}
        for part, module in self._modules().items():
            tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
        for index, state in self.learner.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        return tensors

    def _check_finite(self, path: str | os.PathLike[str]) -> None:
        """Of a network's own buffers and frozen parameters nothing is known: a mask may hold infinities."""
        network = self.policy.network
        frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
        own = {f"policy.network.{name}" for name in (*dict(network.named_buffers()), *frozen)}
        if bad := first_non_finite({name: t for name, t in self._tensors().items() if name not in own}):
            raise NonFiniteError(f"{os.fspath(path)}: not saved, {bad[0]} holds {bad[1]:g}, expected finite numbers")

    def _wanted_tensors(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a file should hold to be restored here; the optimiser's part is empty before its first step."""
        wanted = self._tensors()
        if any(name.startswith("optimizer.") for name in found):
            leaves = (leaf for group in self.learner.optimizer.param_groups for leaf in group["params"])
            for index, leaf in enumerate(leaves):
                moments = {"step": torch.zeros(()), "exp_avg": leaf, "exp_avg_sq": leaf}
                wanted |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        return wanted

    def _restore(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        for part, module in self._modules().items():
            module.load_state_dict(_under(tensors, part))
        for name, generator in self._generators.items():
            generator.set_state(tensors[f"generator.{name}"])
        optimizer = self.learner.optimizer
        leaves = sum(len(group["params"]) for group in optimizer.param_groups)
        states = {i: _under(tensors, f"optimizer.{i}") for i in range(leaves)}
        optimizer.load_state_dict(
            {"state": {i: s for i, s in states.items() if s}, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        self.collector.timesteps, self.collector.episodes = data["timesteps"], data["episodes"]
        self._unfinished = None if data["unfinished"] is None else Budget(**data["unfinished"])
        self._resumes = data["resumes"] + 1
        self.collector.seed = envs.spread_seeds(self._env_seed, self._resumes + 1)[-1]


_SAVED = (
    *("algorithm", "environment", "observations", "actions", "recipe", "custom_network", "seed"),
    *("timesteps", "episodes", "resumes", "unfinished"),
)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _callbacks(given: Callback | Sequence[Callback] | None) -> tuple[Callback, ...]:
    """One, several or none, as a tuple."""
    several = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    for each in several:
        if not callable(each):
            raise ValueError(f"callback={each!r:.60}: expected a function of one Iteration, or several")
    return several


@contextmanager
def _naming(checkpoint: str | os.PathLike[str] | None, collector: Collector) -> Iterator[None]:
    """Add when it was, and what can be gone back to, to the error that ends a run for a number that isn't finite."""
    try:
        yield
    except NonFiniteError as error:
        when = f"the update at step {collector.timesteps:,}: " if error.step is None else ""
        last = "" if checkpoint is None else f"; {checkpoints.last_saved(checkpoint)}"
        raise NonFiniteError(f"{when}{error}{last}", collector.timesteps) from error.__cause__


def _says_stop(answer: object) -> bool:
    """False does, NumPy's and torch's too (a comparison of means gives one); None doesn't."""
    if isinstance(answer, np.ndarray | Tensor):
        answer = answer.item()
    return isinstance(answer, bool | np.bool_) and not answer
