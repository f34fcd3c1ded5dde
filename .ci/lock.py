"""Write requirements.lock: every package that the library, its book and its tests need, pinned."""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

TORCH = "2.13.0"
EXTRAS = "book,dev"
# What a torch build for one vendor's GPU brings along is that build's business, and differs by machine.
BUILD_SPECIFIC = re.compile(r"^(nvidia-|cuda-|triton|pytorch-triton|intel-|hybridrl$|pip$)")
HEADER = f"""\
# Every package that `.[{EXTRAS}]` needs, pinned. Made by `make lock`; don't edit by hand.
# Resolved for Python 3.11.0, the oldest supported, so that 3.11 to 3.13 can install it.
# No hashes, and nothing that belongs to one build of torch: the build differs by machine.
"""


def resolve() -> list[dict[str, str]]:
    """The metadata of every package that pip would install, without installing any."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--python-version", "3.11.0", "--only-binary", ":all:", "--target", scratch]
        command += ["--report", str(report), f"torch=={TORCH}", *requirements()]
        subprocess.run(command, check=True)
        return [item["metadata"] for item in json.loads(report.read_text())["install"]]


def requirements() -> list[str]:
    """What pyproject.toml asks for, with the extras that the lock covers."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = [entry for extra in EXTRAS.split(",") for entry in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *extras]


def main() -> None:
    """Write the lock beside pyproject.toml."""
    pins = {m["name"].lower().replace("_", "-"): m["version"].split("+")[0] for m in resolve()}
    lines = [f"{name}=={pins[name]}\n" for name in sorted(pins) if not BUILD_SPECIFIC.match(name)]
    Path("requirements.lock").write_text(HEADER + "".join(lines))
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
