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
from hybridrl.assembly import Assembly, Seeds, assemble, make_timer
from hybridrl.auto import choose
from hybridrl.building import EnvSource, check_alike, interface, make_environments, make_policy, resolve_recipe
from hybridrl.envs import Environments, Episode, Processes
from hybridrl.execution import Bridge, Budget, Collector, Iteration, synchronous
from hybridrl.networks import Policy
from hybridrl.ops.checks import NonFiniteError, first_non_finite
from hybridrl.placement import Placement, devices, to_host
from hybridrl.profiling import NullTimer, PhaseTimer
from hybridrl.progress import ProgressBar
from hybridrl.recipes import PPORecipe
from hybridrl.results import TrainingLog, TrainingResult, advised

Callback = Callable[[Iteration], bool | None]
Array = npt.NDArray[Any]


class PPO:
    """Proximal policy optimisation, ready to train.

    Args:
        env: a Gymnasium id, a callable that makes one environment, or a ``gymnasium.vector.VectorEnv``.
        recipe: ``"default"``, ``"classic"``, ``"tuned"``, a :class:`~hybridrl.recipes.PPORecipe`, or a
            :class:`~hybridrl.algorithms.ppo.PPOConfig` (the rest is then default).
        network: a module of your own with ``forward(observation [B, ...]) -> (parameters [B, K], value [B])``, where
            K is the number of actions (of all dimensions), or twice the continuous dimensions (means, log deviations);
            None builds the recipe's. It is trained in place.
        placement: where it acts and learns: ``"cpu"``, ``"cuda"`` (or another accelerator that torch has here),
            ``"cpu+cuda"`` (acts on the first, learns on the second), a :class:`~hybridrl.placement.Placement`, or
            ``"auto"``, which measures those that are possible here and takes the fastest.
        schedule: ``"sync"``: act and learn in turns.
        seed: of initialisation, action sampling, shuffling and environments, each of which gets its own stream.
        processes: True steps each environment in a process of its own, ``"auto"`` where a short measurement says that
            this is clearly faster; see :func:`hybridrl.envs.make`. Evaluation is in-process.

    Raises:
        ValueError: an argument is wrong: what was given, what was expected, what to do.

    Attributes:
        recipe: the configuration in use.
        environments: those it trains on.
        placement: where it acts and learns.
        choice: what ``placement="auto"`` measured, or None.
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
        processes: Processes = False,
    ) -> None:
        if schedule != "sync":
            raise ValueError(f"schedule={schedule!r}: expected 'sync', the one that this version has")
        self.schedule = schedule
        initial, act, learn, predict, environments = envs.spread_seeds(seed, 5)
        self.seed = int(seed)
        self._seeds = Seeds(act=act, learn=learn, predict=predict, environments=environments)
        self._learning = False
        self.recipe = resolve_recipe(recipe, env)
        self.choice = choose(env, self.recipe, network, self.seed) if placement == "auto" else None
        self.placement = Placement.parse(placement) if self.choice is None else self.choice.placement
        self.environments = make_environments(env, self.recipe, processes)
        # Only an id says everything about an environment: a callable may wrap what it makes.
        self._env_id = env if isinstance(env, str) else None
        self._custom_network = network is not None
        self._unfinished: Budget | None = None
        self._resumes = 0
        try:
            policy = make_policy(self.environments, network, self.recipe, initial)
            self._parts = assemble(policy, self.environments, self.recipe, self.placement, self._seeds)
        except BaseException:
            self.environments.close()  # in processes, they would outlive the agent that never was
            raise

    @property
    def policy(self) -> Policy:
        """What is learnt: network, normaliser and action distribution, where the learner computes."""
        return self._parts.policy

    @property
    def learner(self) -> PPOLearner:
        """Improves the policy."""
        return self._parts.learner

    @property
    def collector(self) -> Collector:
        """Acts on the environments."""
        return self._parts.collector

    @property
    def bridge(self) -> Bridge:
        """Between acting and learning."""
        return self._parts.bridge

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
            MemoryError: a device has too little; the message says what to make smaller.
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
            self.bridge.publish(timer=timer)  # what the caller may have changed in the policy
            for iteration in synchronous(
                self.collector, self.learner, budget, rows=rows, timer=timer, bridge=self.bridge
            ):
                log.add(iteration)
                bar.advance(budget.spent(timesteps=self.timesteps, episodes=self.episodes), log.episodes)
                if checkpoint is not None and saving.is_due():
                    self.save(checkpoint)
                answers = [call(iteration) for call in callbacks]  # each is called, whatever others say
                self.bridge.refresh()  # a callback may have changed the policy
                if any(map(_says_stop, answers)):
                    break
        if self._is_spent(budget):
            self._unfinished = None
        if checkpoint is not None:
            self.save(checkpoint)
        result = log.result(timer, notes=self._notes(), stopped=self._unfinished is not None)
        return dataclasses.replace(result, report=advised(result.report, self.environments))

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
        tensors = self._parts.tensors()
        self._check_finite(tensors, path)
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
            "generators": self._parts.generator_kinds(),
        }
        checkpoints.write(path, tensors, data)

    def move(self, placement: str | Placement) -> None:
        """Go on elsewhere: networks, optimiser, normalisers and random numbers move along, and episodes go on.

        Between devices of one kind nothing changes but the place. On another kind, random numbers are a new sequence,
        derived from the present one.

        Args:
            placement: as at construction, but not ``"auto"``.

        Raises:
            ValueError: it isn't possible here, or ``learn`` is running.
        """
        if self._learning:
            raise ValueError("move() was called inside learn(): move between two calls of it")
        wanted, before = Placement.parse(placement), self._parts
        tensors, kinds = before.tensors(), before.generator_kinds()
        running = to_host(before.learner.reward_normalizer.running)
        try:
            self._place(before, wanted, tensors, kinds, running)
        except BaseException:
            self._place(before, self.placement, tensors, kinds, running)  # back: there it fitted
            raise
        left = set(self.placement.devices) - set(wanted.devices)
        self.placement = wanted
        del before  # what lives on the device that was left goes first: the cache holds no live tensor
        for device in left:
            devices.release_cached_memory(device)

    def _place(
        self, before: Assembly, placement: Placement, tensors: dict[str, Tensor], kinds: dict[str, str], running: Tensor
    ) -> None:
        """Build all that a placement binds around the policy and the environments that there are."""
        self._parts = assemble(
            before.policy, self.environments, self.recipe, placement, self._seeds, collector=before.collector
        )
        self._parts.restore(tensors, kinds)
        self._parts.learner.reward_normalizer.running.copy_(running)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        env: EnvSource | None = None,
        network: nn.Module | None = None,
        placement: str | Placement = "cpu",
        processes: Processes = False,
    ) -> Self:
        """Read an agent that :meth:`save` wrote, on any machine.

        Args:
            path: of the file.
            env: needed where the agent was made with something other than a Gymnasium id.
            network: needed where the agent was made with one; of the same architecture.
            placement: where it shall run, whatever it was saved on.
            processes: of its environments, whatever it was saved with.

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
        agent = cls(source, recipe, network=network, placement=placement, seed=data["seed"], processes=processes)
        saved = {"observations": data["observations"], "actions": data["actions"]}
        check_alike(agent.environments, saved, f"{os.fspath(path)}:")
        kinds = data.get("generators", {})
        checkpoints.check_same_shapes(tensors, agent._parts.wanted(tensors, kinds), os.fspath(path))
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
        timer = self.learner.timer = self.collector.timer = make_timer(self.placement)
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
        chosen = () if self.choice is None else (self.choice.note,)
        where = f"placement {self.placement}, schedule {self.schedule}"
        return (self.environments.description, *actions, where, *chosen)

    def _choose(self, observation: Array, deterministic: bool) -> Array:
        """Actions in the network's terms."""
        generator = None if deterministic else self._parts.generators.predict
        self.bridge.refresh()
        return self.collector.actor.predict(observation, generator=generator)

    def _check_finite(self, tensors: dict[str, Tensor], path: str | os.PathLike[str]) -> None:
        """Of a network's own buffers and frozen parameters nothing is known: a mask may hold infinities."""
        network = self.policy.network
        frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
        own = {f"policy.network.{name}" for name in (*dict(network.named_buffers()), *frozen)}
        if bad := first_non_finite({name: t for name, t in tensors.items() if name not in own}):
            raise NonFiniteError(f"{os.fspath(path)}: not saved, {bad[0]} holds {bad[1]:g}, expected finite numbers")

    def _restore(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        self._parts.restore(tensors, data.get("generators", {}))
        self.collector.timesteps, self.collector.episodes = data["timesteps"], data["episodes"]
        self._unfinished = None if data["unfinished"] is None else Budget(**data["unfinished"])
        self._resumes = data["resumes"] + 1
        self.collector.seed = envs.spread_seeds(self._seeds.environments, self._resumes + 1)[-1]


_SAVED = (
    *("algorithm", "environment", "observations", "actions", "recipe", "custom_network", "seed"),
    *("timesteps", "episodes", "resumes", "unfinished"),
)


def _callbacks(given: Callback | Sequence[Callback] | None) -> tuple[Callback, ...]:
    """One, several or none, as a tuple."""
    several = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    for each in several:
        if not callable(each):
            raise ValueError(f"callback={each!r:.60}: expected a function of one Iteration, or several")
    return several


@contextmanager
def _naming(checkpoint: str | os.PathLike[str] | None, collector: Collector) -> Iterator[None]:
    """Add when it was, and what can be gone back to, to an error that ends a run for a number or for want of memory."""
    try:
        yield
    except NonFiniteError as error:
        when = f"the update at step {collector.timesteps:,}: " if error.step is None else ""
        raise NonFiniteError(f"{when}{error}{_last(checkpoint)}", collector.timesteps) from error.__cause__
    except torch.OutOfMemoryError as error:
        what = str(error).partition("\n")[0].rstrip(".")
        cure = "use a smaller minibatch_size, or fewer rollout_steps or environments"
        raise MemoryError(f"at step {collector.timesteps:,}: {what}; {cure}{_last(checkpoint)}") from error


def _last(checkpoint: str | os.PathLike[str] | None) -> str:
    return "" if checkpoint is None else f"; {checkpoints.last_saved(checkpoint)}"


def _says_stop(answer: object) -> bool:
    """False does, NumPy's and torch's too (a comparison of means gives one); None doesn't."""
    if isinstance(answer, np.ndarray | Tensor):
        answer = answer.item()
    return isinstance(answer, bool | np.bool_) and not answer
