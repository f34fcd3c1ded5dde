"""The ``hybridrl`` command: train, machine, reproduce. A mistake gives one line on stderr and exit code 2."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Never

from hybridrl.cli.output import one_line_warning, print_json, print_table
from hybridrl.cli.reproduce import add_reproduce
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
        Exit code, 0, 1 where an experiment of a suite failed, 2 for a mistake in the arguments or the files they name,
        130 or 143 when interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without our characters gets "?", not a lost report
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = one_line_warning  # type: ignore[assignment]  # fewer parameters named
            return int(options.run(options) or 0)
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
    machine.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    add_reproduce(commands)
    return parser


def _machine(options: argparse.Namespace) -> None:
    from hybridrl.experiments.machine import describe

    machine = describe()
    if options.json:
        print_json(machine.to_dict())
    else:
        print_table(machine.table())
