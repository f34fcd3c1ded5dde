"""The ``hybridrl`` command: train, machine, reproduce. A mistake gives one line on stderr and exit code 2."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Never

from hybridrl.cli.output import one_line_warning, print_json, print_table, set_threads
from hybridrl.cli.train import add_train

INTERRUPTED = 130
"""Exit code after Ctrl-C, the shells' 128 + SIGINT; after SIGTERM it is 143."""


class _Parser(argparse.ArgumentParser):
    """argparse prints its whole usage above an error; one line is enough."""

    def error(self, message: str) -> Never:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: after the command's name; None takes the process's.

    Returns:
        Exit code, 0, or 2 for a mistake in the arguments or the files they name, 130 or 143 when interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without our characters gets "?", not a lost report
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = one_line_warning  # type: ignore[assignment]  # fewer parameters named
            options.run(options)
    except BrokenPipeError:  # the reader of our output (head, say) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, OverflowError, MemoryError) as error:
        print(f"hybridrl {options.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        # A signal that training heard says which it was, and what to do; an earlier or later one is Python's own.
        cure = getattr(stop, "cure", "")
        print(f"hybridrl {options.command}: interrupted{f'; {cure}' if cure else ''}", file=sys.stderr)
        return 128 + getattr(stop, "number", INTERRUPTED - 128)
    return 0


def _parser() -> argparse.ArgumentParser:
    from hybridrl import __version__

    parser = _Parser(prog="hybridrl", description="Where should each phase of reinforcement learning run, and when?")
    parser.add_argument("--version", action="version", version=f"hybridrl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    add_train(commands)
    machine = commands.add_parser("machine", help="what this machine is, for captions and bug reports")
    machine.set_defaults(run=_machine)
    reproduce = commands.add_parser("reproduce", help="rerun the experiment behind a claim and write its record")
    what = reproduce.add_mutually_exclusive_group(required=True)
    what.add_argument("--claim", metavar="ID", help="a claim of the ledger, such as C1")
    what.add_argument("--experiment", metavar="NAME", help="an experiment by name, such as ppo-cartpole-tuned")
    what.add_argument("--list", action="store_true", help="list claims and experiments")
    reproduce.add_argument("--scale", choices=("smoke", "quick", "full"), help="how much work (default: quick)")
    reproduce.add_argument("--records", metavar="FOLDER", type=Path, help="where to write the record")
    reproduce.add_argument("--threads", type=int, metavar="N", help="torch threads (default: 1)", default=1)
    reproduce.set_defaults(run=_reproduce)
    for command in (machine, reproduce):
        command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def _machine(options: argparse.Namespace) -> None:
    from hybridrl.experiments.machine import describe

    machine = describe()
    if options.json:
        print_json(machine.to_dict())
    else:
        print_table(machine.table())


def _reproduce(options: argparse.Namespace) -> None:
    from hybridrl.experiments import catalogue
    from hybridrl.experiments.records import records_folder, stamp, write_record
    from hybridrl.experiments.scale import VARIABLE

    if options.list:
        _list_experiments(options)
        return
    by_claim = options.claim is not None
    experiment = catalogue.by_claim(options.claim) if by_claim else catalogue.by_name(options.experiment)
    records_folder(options.records).mkdir(parents=True, exist_ok=True)  # now, not after the run
    if options.scale:
        os.environ[VARIABLE] = options.scale
    set_threads(options.threads)
    outcome = experiment.run()
    path = write_record(stamp(outcome.record), options.records)
    if options.json:
        print_json({"result": outcome.result.to_dict(), "record": str(path)})
    else:
        print_table(outcome.result.table())
        print(f"record: {path}")


def _list_experiments(options: argparse.Namespace) -> None:
    from hybridrl.experiments.catalogue import EXPERIMENTS

    if options.json:
        print_json({e.name: {"claims": e.claims, "question": e.question} for e in EXPERIMENTS})
        return
    for experiment in EXPERIMENTS:
        print(f"{experiment.name:24} {', '.join(experiment.claims) or '-':12} {experiment.question}")
