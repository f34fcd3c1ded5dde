"""``hybridrl train``: a run from a recipe, or the rest of one that was interrupted."""

import argparse
import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hybridrl.cli.output import finite, print_json, set_threads
from hybridrl.cli.settings import changed
from hybridrl.cli.signals import Interrupted, StopSignals

if TYPE_CHECKING:
    from hybridrl.agents import PPO, Callback
    from hybridrl.envs import Processes
    from hybridrl.loggers import TensorBoardLogger
    from hybridrl.profiling import Monitor
    from hybridrl.recipes import PPORecipe
    from hybridrl.results import TrainingResult
    from hybridrl.runs import RunDescription, RunFolder


_PROCESSES: "dict[str, Processes]" = {"no": False, "yes": True, "auto": "auto"}


def add_train(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command's parser."""
    train = commands.add_parser("train", help="train an agent and show where the time went")
    train.add_argument("algorithm", nargs="?", choices=("ppo",), help="what learns; with --resume, leave it out")
    train.add_argument("env", nargs="?", help="a Gymnasium id, such as CartPole-v1; with --resume, leave it out")
    train.add_argument("--recipe", help="default, classic or tuned (default: default)")
    train.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field of the recipe")
    length = train.add_mutually_exclusive_group()
    length.add_argument("--total-timesteps", type=int, metavar="N", help="environment steps (default: the recipe's)")
    length.add_argument("--total-episodes", type=int, metavar="N", help="episodes, instead of steps")
    train.add_argument("--seed", type=int, metavar="N", help="(default: 0)")
    train.add_argument("--placement", help="cpu, cuda, cpu+cuda, cpu+cpu (acts+learns) or auto (default: cpu)")
    train.add_argument("--processes", choices=_PROCESSES, help="one for each environment (default: no)")
    train.add_argument("--threads", type=int, metavar="N", help="torch threads (default: 1)")
    folder = train.add_mutually_exclusive_group()
    folder.add_argument("--output", metavar="DIR", type=_folder, help="keep the run in this new folder")
    folder.add_argument("--resume", metavar="DIR", type=_folder, help="go on with the interrupted run in this folder")
    train.add_argument("--checkpoint-every", type=int, metavar="N", help="updates between saves (default: 50)")
    train.add_argument("--checkpoint-seconds", type=float, metavar="S", help="at most between saves (default: 300)")
    train.add_argument("--evaluate", type=int, default=20, metavar="N", help="episodes after training (0: none)")
    train.add_argument("--monitor", action="store_true", help="sample how busy CPU and GPU are, and show it")
    train.add_argument("--no-tensorboard", action="store_true", help="no event files in the run's folder")
    train.add_argument("--no-progress", action="store_true", help="no progress bar")
    train.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    train.set_defaults(run=_train)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected the path of a folder, got nothing")
    return Path(text)


def _train(options: argparse.Namespace) -> None:
    _check(options)
    if options.output or options.resume:
        _train_in_folder(options)
        return
    description = _description(options)
    set_threads(description.threads)
    with contextlib.closing(description.make_agent()) as agent:
        budget = description.budget
        with _watched(options) as monitor:
            result = agent.learn(budget.timesteps, total_episodes=budget.episodes, progress_bar=not options.no_progress)
        _show(agent, result, options, folder=None, episodes=options.evaluate, monitor=monitor)


def _train_in_folder(options: argparse.Namespace) -> None:
    cure = f"go on with: hybridrl train --resume {options.resume or options.output}"
    with StopSignals(cure) as stop, _opened(options) as (folder, agent):
        with _watched(options) as monitor:
            result = _learn(agent, folder, stop, options)
        stop.end()  # from here on Ctrl-C ends at once: nothing can be lost
        if stop.received is None:
            _show(agent, result, options, folder=folder, episodes=options.evaluate, monitor=monitor)
        elif result.stopped:
            raise Interrupted(stop.received, f"saved at step {agent.timesteps:,}; {cure}")
        else:
            _show(agent, result, options, folder=folder, episodes=0, monitor=monitor)
            raise Interrupted(stop.received, "training is finished")


def _watched(options: argparse.Namespace) -> "contextlib.AbstractContextManager[Monitor | None]":
    from hybridrl.profiling import Monitor

    return Monitor() if options.monitor else contextlib.nullcontext()


@contextlib.contextmanager
def _opened(options: argparse.Namespace) -> "Iterator[tuple[RunFolder, PPO]]":
    """The run's folder, and its agent: new, or as last saved."""
    from hybridrl.runs import RunFolder

    if not options.resume:
        description = _description(options)
        set_threads(description.threads)
        agent = description.make_agent()  # before the folder: a mistake leaves none
        with contextlib.closing(agent), RunFolder.create(options.output, description) as folder:
            yield folder, agent
        return
    with RunFolder.open(options.resume) as folder:
        _check_same(folder, options)
        set_threads(folder.description.threads if options.threads is None else options.threads)
        processes = None if options.processes is None else _PROCESSES[options.processes]
        agent = folder.restore(env=options.env, placement=options.placement, processes=processes)
        with contextlib.closing(agent):
            yield folder, agent


def _learn(agent: "PPO", folder: "RunFolder", stop: StopSignals, options: argparse.Namespace) -> "TrainingResult":
    with contextlib.ExitStack() as loggers:
        try:
            logger = None if options.no_tensorboard else _logger(folder, agent)
            callbacks: list[Callback] = [stop] if logger is None else [loggers.enter_context(logger), stop]
            return folder.learn(agent, callbacks=callbacks, progress_bar=not options.no_progress)
        except Exception as error:
            if stop.received is not None:  # a signal to the whole group has ended the environments' processes, say
                raise Interrupted(stop.received, f"the update was lost ({error}); {stop.cure}") from error
            if options.output and agent.timesteps == 0:  # such as a budget below one step of every environment
                loggers.close()
                folder.discard()
            raise


def _logger(folder: "RunFolder", agent: "PPO") -> "TensorBoardLogger | None":
    from hybridrl.loggers import TensorBoardLogger

    try:
        return TensorBoardLogger(folder.path, first_timestep=agent.timesteps)
    except ValueError as error:
        warnings.warn(f"no curves are logged: {error}", stacklevel=2)
        return None


def _show(
    agent: "PPO",
    result: "TrainingResult",
    options: argparse.Namespace,
    *,
    folder: "RunFolder | None",
    episodes: int,
    monitor: "Monitor | None",
) -> None:
    """Print the result and keep it in the folder, before the evaluation, which may never end, and after it."""
    environment = folder.description.environment if folder else options.env
    data = _data(agent, result, environment, folder)
    data["usage"] = None if monitor is None else monitor.usage.to_dict()
    if folder is not None:
        folder.write_result(data)
    if not options.json:
        print(result, flush=True)
        if monitor is not None:
            print(monitor.usage, flush=True)
        if folder is not None:
            print(f"saved: {folder.path}", flush=True)
    data["evaluation_returns"] = returns = [episode.return_ for episode in agent.evaluate(episodes)] if episodes else []
    if folder is not None:
        folder.write_result(data)
    if options.json:
        print_json(data)
    elif returns:
        print(f"evaluation: mean return {fmean(returns):.1f} over {len(returns)} episodes, most probable actions")


def _data(agent: "PPO", result: "TrainingResult", environment: str, folder: "RunFolder | None") -> dict[str, Any]:
    data = {
        "algorithm": "ppo",
        "environment": environment,
        "seed": agent.seed,
        "recipe": agent.recipe.to_dict(),
        "timesteps": result.timesteps,
        "total_timesteps": agent.timesteps,
        "episodes": len(result.episodes),
        "training_return_last_100": result.mean_return(last=100),
        "evaluation_returns": None,
        "report": result.report.to_dict(),
        "output": None if folder is None else str(folder.path),
        "checkpoint": None if folder is None else str(folder.checkpoint),
    }
    known: dict[str, Any] = finite(data)
    return known


def _check(options: argparse.Namespace) -> None:
    if not options.resume and None in (options.algorithm, options.env):
        raise ValueError("expected ALGORITHM and ENV, as in: hybridrl train ppo CartPole-v1; or --resume DIR")
    if options.evaluate < 0:
        raise ValueError(f"--evaluate {options.evaluate}: expected 0 or more episodes")
    if not (options.output or options.resume):
        for name in ("checkpoint_every", "checkpoint_seconds"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} without a folder to save in: add --output DIR")


def _description(options: argparse.Namespace) -> "RunDescription":
    from hybridrl.execution import Budget
    from hybridrl.runs import RunDescription

    recipe, budget = _wanted_recipe(options, options.env), None
    if options.total_timesteps is not None or options.total_episodes is not None:
        budget = Budget(timesteps=options.total_timesteps, episodes=options.total_episodes)
    given = {
        "seed": options.seed,
        "placement": options.placement,
        "processes": None if options.processes is None else _PROCESSES[options.processes],
        "threads": options.threads,
        "checkpoint_every": options.checkpoint_every,
        "checkpoint_seconds": options.checkpoint_seconds,
    }
    return RunDescription(
        algorithm=options.algorithm,
        environment=options.env,
        recipe=recipe,
        budget=budget or recipe.budget,
        **{name: value for name, value in given.items() if value is not None},
    )


def _check_same(folder: "RunFolder", options: argparse.Namespace) -> None:
    """A run that is gone on with keeps what it began with: what is said of that must agree."""
    d = folder.description
    pairs = {
        "ALGORITHM": (options.algorithm, d.algorithm),
        "ENV": (options.env, d.environment),
        "--seed": (options.seed, d.seed),
        "--total-timesteps": (options.total_timesteps, d.budget.timesteps),
        "--total-episodes": (options.total_episodes, d.budget.episodes),
        "--checkpoint-every": (options.checkpoint_every, d.checkpoint_every),
        "--checkpoint-seconds": (options.checkpoint_seconds, d.checkpoint_seconds),
    }
    if options.recipe or options.set:
        pairs["--recipe or --set"] = (_wanted_recipe(options, d.environment), d.recipe)
    for name, (given, kept) in pairs.items():
        if given is not None and given != kept:
            raise ValueError(f"{name} differs from what {folder.path} began with: leave it out to go on")


def _wanted_recipe(options: argparse.Namespace, environment: str) -> "PPORecipe":
    from hybridrl import recipes

    recipe: PPORecipe = changed(recipes.ppo(options.recipe or "default", environment), options.set)
    return recipe
