"""Steps per second of plain PPO beside Stable-Baselines3's: A B A B, each in its own process and environment.

    python -m venv .venv-peers && .venv-peers/bin/pip install -r tests/benchmarks/peers.txt
    .venv/bin/python tests/benchmarks/ppo_cartpole.py --peer-python .venv-peers/bin/python

Prints one JSON line a library and a piece of work, and writes the record that the book draws.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from work import WORKS, Work

from hybridrl.experiments.machine import describe
from hybridrl.experiments.measurement import Measurement, compare
from hybridrl.experiments.records import Record, Series, stamp, write_record

HERE = Path(__file__).parent


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="the Python that has the peers installed")
    parser.add_argument("--work", choices=[*WORKS, "all"], default="all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for work in WORKS.values() if options.work == "all" else (WORKS[options.work],):
        runs = _alternate(work, options.peer_python, options.repeats, options.threads)
        record = stamp(_record(work, runs, options.threads))
        for library, lines in runs.items():
            print(json.dumps(_line(work, library, lines, record, options.threads)), flush=True)
        print(write_record(record))


def _alternate(work: Work, peer: str, repeats: int, threads: int) -> dict[str, list[dict[str, object]]]:
    programs = {"hybridrl": (sys.executable, "run_hybridrl.py"), "stable-baselines3": (peer, "run_sb3.py")}
    runs: dict[str, list[dict[str, object]]] = {library: [] for library in programs}
    for _ in range(repeats):
        for library, (python, program) in programs.items():
            runs[library].append(_run(python, program, work, threads))
    return runs


def _run(python: str, program: str, work: Work, threads: int) -> dict[str, object]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [python, str(HERE / program), work.name, str(threads)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _rates(lines: list[dict[str, object]]) -> list[float]:
    return [float(line["steps"]) / float(line["wall_s"]) for line in lines]  # type: ignore[arg-type]


def _record(work: Work, runs: dict[str, list[dict[str, object]]], threads: int) -> Record:
    ours, theirs = (Measurement(_rates(lines), "steps/s") for lines in runs.values())
    return Record(
        name=f"ppo-cartpole-peers-{work.name}",
        kind="measured",
        command=f"python tests/benchmarks/ppo_cartpole.py --peer-python PYTHON --work {work.name}",
        series={library: Series(_rates(lines), "steps/s") for library, lines in runs.items()},
        config={
            **work.to_dict(),
            "threads": threads,
            "versions": {library: lines[0]["version"] for library, lines in runs.items()},
        },
        outcome={
            "ratio": compare(ours, theirs).ratio,
            "verdict": compare(ours, theirs).sentence("hybridrl", "stable-baselines3"),
        },
        notes=("Runs alternate, each in a process of its own, after one warm-up rollout.",),
    )


def _line(work: Work, library: str, lines: list[dict[str, object]], record: Record, threads: int) -> dict[str, object]:
    rates = _rates(lines)
    return {
        "name": "ppo-cartpole",
        "work": work.name,
        "library": library,
        "version": lines[0]["version"],
        "threads": threads,
        "repeats": len(rates),
        "median_steps_per_s": median(rates),
        "min": min(rates),
        "max": max(rates),
        "peak_mib": max((float(line["peak_mib"]) for line in lines if line["peak_mib"]), default=None),  # type: ignore[arg-type]
        "hardware": describe().one_line(),
        "commit": record.commit,
    }


if __name__ == "__main__":
    main()
