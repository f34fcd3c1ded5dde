"""The ``hybridrl`` command: train, machine, reproduce. A mistake gives one line on stderr and exit code 2."""

import argparse
import ast
import dataclasses
import json
import math
import os
import sys
import types
import typing
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Never

INTERRUPTED = 130
"""Exit code after Ctrl-C, the shells' 128 + SIGINT."""


class _Parser(argparse.ArgumentParser):
    """argparse prints its whole usage above an error; one line is enough."""

    def error(self, message: str) -> Never:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: after the command's name; None takes the process's.

    Returns:
        Exit code, 0, 1 where an experiment of a suite failed, 2 for a mistake in the arguments or the files they name,
        130 when interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without our characters gets "?", not a lost report
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _one_line_warning  # type: ignore[assignment]  # fewer parameters named
            return int(options.run(options) or 0)
    except BrokenPipeError:  # the reader of our output (head, say) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, OverflowError, MemoryError) as error:
        print(f"hybridrl {options.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        checkpoint = None if getattr(options, "trained", False) else getattr(options, "checkpoint", None)
        cure = f"; go on with --resume --checkpoint {checkpoint}" if checkpoint and checkpoint.exists() else ""
        print(f"hybridrl {options.command}: interrupted{cure}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    from hybridrl import __version__

    parser = _Parser(prog="hybridrl", description="Where should each phase of reinforcement learning run, and when?")
    parser.add_argument("--version", action="version", version=f"hybridrl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_train(commands)
    machine = commands.add_parser("machine", help="what this machine is, for captions and bug reports")
    machine.set_defaults(run=_machine)
    reproduce = commands.add_parser("reproduce", help="rerun the experiment behind a claim and write its record")
    what = reproduce.add_mutually_exclusive_group(required=True)
    what.add_argument("--claim", metavar="ID", help="a claim of the ledger, such as C1")
    what.add_argument("--experiment", metavar="NAME", help="an experiment by name, such as ppo-cartpole-tuned")
    what.add_argument("--suite", metavar="NAME", help="several experiments, each recorded when done, such as placement")
    what.add_argument("--list", action="store_true", help="list claims and experiments")
    reproduce.add_argument("--scale", choices=("smoke", "quick", "full"), help="how much work (default: quick)")
    reproduce.add_argument("--records", metavar="FOLDER", type=Path, help="where to write the record")
    reproduce.add_argument("--threads", type=int, metavar="N", help="torch threads (default: 1)", default=1)
    reproduce.add_argument("--budget-s", type=float, metavar="S", help="of a suite: seconds for all (default: 600)")
    reproduce.add_argument("--again", action="store_true", help="of a suite: run also what has a record already")
    reproduce.set_defaults(run=_reproduce)
    for command in (machine, reproduce):
        command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def _add_train(commands: "argparse._SubParsersAction[_Parser]") -> None:
    train = commands.add_parser("train", help="train an agent and show where the time went")
    train.add_argument("algorithm", choices=("ppo",))
    train.add_argument("env", help="a Gymnasium id, such as CartPole-v1")
    train.add_argument("--recipe", help="default, classic or tuned (default: default)")
    train.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field of the recipe")
    length = train.add_mutually_exclusive_group()
    length.add_argument("--total-timesteps", type=int, metavar="N", help="environment steps (default: the recipe's)")
    length.add_argument("--total-episodes", type=int, metavar="N", help="episodes, instead of steps")
    train.add_argument("--seed", type=int, metavar="N", help="(default: 0)")
    train.add_argument("--placement", default="cpu", help="(default: %(default)s)")
    processes = ("no", "yes", "auto")
    train.add_argument("--processes", choices=processes, default="no", help="one for each environment (default: no)")
    train.add_argument("--threads", type=int, default=1, metavar="N", help="torch threads (default: 1)")
    train.add_argument("--checkpoint", metavar="FILE", type=Path, help="save the agent here, during and after training")
    train.add_argument("--checkpoint-every", type=int, default=50, metavar="N", help="updates between saves")
    train.add_argument("--resume", action="store_true", help="go on from --checkpoint if it is there")
    train.add_argument("--evaluate", type=int, default=20, metavar="N", help="episodes after training (0: none)")
    train.add_argument("--no-progress", action="store_true", help="no progress bar")
    train.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> None:
    from hybridrl.agents import PPO

    _check_train(options)
    _set_threads(options.threads)
    resume = options.resume and options.checkpoint.exists()
    processes: Any = {"no": False, "yes": True, "auto": "auto"}[options.processes]
    if resume:
        _check_environment(options)
        agent = PPO.load(options.checkpoint, env=options.env, placement=options.placement, processes=processes)
        _check_same(agent, options)
    else:
        agent = PPO(
            *(options.env, _wanted_recipe(options)),
            placement=options.placement,
            seed=options.seed or 0,
            processes=processes,
        )
    try:
        _learn_and_show(agent, options, resume)
    finally:
        agent.close()


def _learn_and_show(agent: Any, options: argparse.Namespace, resume: bool) -> None:
    result = agent.learn(
        None if resume else options.total_timesteps,
        total_episodes=None if resume else options.total_episodes,
        progress_bar=not options.no_progress,
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
        resume=resume,
    )
    options.trained = True
    if not options.json:
        print(result, flush=True)  # before the evaluation, which may never end
        if options.checkpoint is not None:
            print(f"saved: {options.checkpoint}", flush=True)
    returns = [episode.return_ for episode in agent.evaluate(options.evaluate)] if options.evaluate else []
    if options.json:
        _print_json(
            {
                "algorithm": options.algorithm,
                "environment": options.env,
                "seed": agent.seed,
                "recipe": agent.recipe.to_dict(),
                "timesteps": result.timesteps,
                "total_timesteps": agent.timesteps,
                "episodes": len(result.episodes),
                "training_return_last_100": result.mean_return(last=100),
                "evaluation_returns": returns,
                "report": result.report.to_dict(),
                "checkpoint": None if options.checkpoint is None else str(options.checkpoint),
            }
        )
        return
    if returns:
        print(f"evaluation: mean return {fmean(returns):.1f} over {len(returns)} episodes, most probable actions")


def _check_train(options: argparse.Namespace) -> None:
    if options.resume and options.checkpoint is None:
        raise ValueError("--resume without --checkpoint: name the file to go on from")
    if options.evaluate < 0:
        raise ValueError(f"--evaluate {options.evaluate}: expected 0 or more episodes")
    if options.checkpoint is not None and options.checkpoint.exists() and not options.resume:
        raise ValueError(f"{options.checkpoint} exists: add --resume to go on from it, or name another file")


def _check_environment(options: argparse.Namespace) -> None:
    from hybridrl import checkpoints

    saved = checkpoints.read(options.checkpoint)[1].get("environment")
    if saved != options.env:
        raise ValueError(f"{options.checkpoint} was trained on {saved}, not {options.env}")


def _check_same(agent: Any, options: argparse.Namespace) -> None:
    """A resumed run keeps its own recipe, seed and budget: what is said of them must agree."""
    left = agent.unfinished
    if left is None:
        raise ValueError(
            f"{options.checkpoint}: its training is finished; to train it further, in Python: "
            f"hybridrl.PPO.load({str(options.checkpoint)!r}).learn(...)"
        )
    differs = {
        "--seed": options.seed not in (None, agent.seed),
        "--total-timesteps": options.total_timesteps not in (None, left.timesteps),
        "--total-episodes": options.total_episodes not in (None, left.episodes),
        "--recipe or --set": bool(options.recipe or options.set) and _wanted_recipe(options) != agent.recipe,
    }
    for name, different in differs.items():
        if different:
            raise ValueError(f"{name} differs from what {options.checkpoint} began with: leave it out to go on")


def _wanted_recipe(options: argparse.Namespace) -> Any:
    from hybridrl import recipes

    return _changed(recipes.ppo(options.recipe or "default", options.env), options.set)


def _changed(recipe: Any, assignments: Sequence[str]) -> Any:
    """The recipe with fields replaced; a field is looked for in the recipe and in the configs inside it."""
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise ValueError(f"--set {assignment}: expected FIELD=VALUE, such as learning_rate=1e-3")
        recipe = _replaced(recipe, name.strip(), text.strip())
    return recipe


def _replaced(recipe: Any, name: str, text: str) -> Any:
    holders = {"": recipe, "ppo": recipe.ppo, "network": recipe.network}
    known = {f.name for h in holders.values() for f in dataclasses.fields(h)} - {*holders, "budget"}
    if name not in known:
        raise ValueError(f"--set {name}: no such field; there are {', '.join(sorted(known))}")
    for where, holder in holders.items():
        if name in {f.name for f in dataclasses.fields(holder)}:
            value = _parsed(name, text, typing.get_type_hints(type(holder))[name])
            changed = dataclasses.replace(holder, **{name: value})
            return dataclasses.replace(recipe, **{where: changed}) if where else changed
    raise AssertionError(name)


def _parsed(name: str, text: str, kind: Any) -> Any:
    """The text as a value of the annotated kind; numbers, None, booleans, tuples, or a plain word."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"none": None, "true": True, "false": False}.get(text.lower(), text)
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if float in kinds and type(value) is int:
        value = float(value)
    if any(typing.get_origin(k) is tuple for k in kinds) and type(value) is int:
        value = (value,)
    if not any(_is_a(value, k) for k in kinds):
        expected = str(kind).replace("typing.", "").removeprefix("<class '").removesuffix("'>")
        raise ValueError(f"--set {name}={text}: expected {expected}")
    return value


def _is_a(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    return type(value) is (typing.get_origin(kind) or kind)


def _machine(options: argparse.Namespace) -> None:
    from hybridrl.experiments.machine import describe

    machine = describe()
    if options.json:
        _print_json(machine.to_dict())
    else:
        _print_table(machine.table())


def _reproduce(options: argparse.Namespace) -> int:
    from hybridrl.experiments import catalogue
    from hybridrl.experiments.records import stamp, write_record

    if options.suite is None and (options.again or options.budget_s is not None):
        raise ValueError("--budget-s and --again belong to --suite: leave them out, or name a suite")
    if options.list:
        _list_experiments(options)
        return 0
    if options.suite is not None:
        return _reproduce_suite(options)
    by_claim = options.claim is not None
    experiment = catalogue.by_claim(options.claim) if by_claim else catalogue.by_name(options.experiment)
    _prepare(options)
    outcome = experiment.run()
    path = write_record(stamp(outcome.record), options.records)
    if options.json:
        _print_json({"result": outcome.result.to_dict(), "record": str(path)})
    else:
        _print_table(outcome.result.table())
        print(f"record: {path}")
    return 0


def _prepare(options: argparse.Namespace) -> None:
    from hybridrl.experiments.records import records_folder
    from hybridrl.experiments.scale import VARIABLE

    records_folder(options.records).mkdir(parents=True, exist_ok=True)  # now, not after the run
    if options.scale:
        os.environ[VARIABLE] = options.scale
    _set_threads(options.threads)


def _reproduce_suite(options: argparse.Namespace) -> int:
    from hybridrl.experiments import catalogue, suite

    experiments, unanswered = catalogue.suite(options.suite)
    _prepare(options)
    entries = suite.run(
        experiments,
        run_one=lambda experiment, limit_s: suite.in_own_process(
            experiment, limit_s, folder=options.records, threads=options.threads, quiet=options.json
        ),
        find=lambda experiment: None if options.again else suite.kept_record(experiment, options.records),
        budget_s=suite.BUDGET_S if options.budget_s is None else options.budget_s,
        tell=lambda line: print(line, file=sys.stderr if options.json else sys.stdout, flush=True),
    )
    if options.json:
        found = [entry.to_dict() for entry in entries]
        _print_json({"suite": options.suite, "experiments": found, "claims_without_experiment": unanswered})
    else:
        print("\n".join(suite.summary(entries, unanswered)))
    return int(any(entry.status == "failed" for entry in entries))


def _list_experiments(options: argparse.Namespace) -> None:
    from hybridrl.experiments.catalogue import EXPERIMENTS

    if options.json:
        _print_json({e.name: {"claims": e.claims, "question": e.question} for e in EXPERIMENTS})
        return
    for experiment in EXPERIMENTS:
        print(f"{experiment.name:24} {', '.join(experiment.claims) or '-':12} {experiment.question}")


def _set_threads(threads: int) -> None:
    import torch

    if not 1 <= threads <= 1024:
        raise ValueError(f"--threads {threads}: expected at least 1, at most 1024")
    torch.set_num_threads(threads)


def _print_json(data: Any) -> None:
    print(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    """JSON knows no NaN: unknown is null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def _print_table(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


def _one_line_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    print(f"hybridrl: warning: {' '.join(str(message).split())}", file=sys.stderr)
