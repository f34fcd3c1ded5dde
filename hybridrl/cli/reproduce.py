"""``hybridrl reproduce``: the experiment behind a claim once more, or a suite of them, and the records they write."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hybridrl.cli.output import print_json, print_table, set_threads


def add_reproduce(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command's parser."""
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
    reproduce.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


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
        print_json({"result": outcome.result.to_dict(), "record": str(path)})
    else:
        print_table(outcome.result.table())
        print(f"record: {path}")
    return 0


def _prepare(options: argparse.Namespace) -> None:
    from hybridrl.experiments.records import records_folder
    from hybridrl.experiments.scale import VARIABLE

    records_folder(options.records).mkdir(parents=True, exist_ok=True)  # now, not after the run
    if options.scale:
        os.environ[VARIABLE] = options.scale
    set_threads(options.threads)


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
        print_json({"suite": options.suite, "experiments": found, "claims_without_experiment": unanswered})
    else:
        print("\n".join(suite.summary(entries, unanswered)))
    return int(any(entry.status == "failed" for entry in entries))


def _list_experiments(options: argparse.Namespace) -> None:
    from hybridrl.experiments.catalogue import EXPERIMENTS

    if options.json:
        print_json({e.name: {"claims": e.claims, "question": e.question} for e in EXPERIMENTS})
        return
    for experiment in EXPERIMENTS:
        print(f"{experiment.name:24} {', '.join(experiment.claims) or '-':12} {experiment.question}")
