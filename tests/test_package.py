"""The package itself: public names, laziness, version."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

import hybridrl as hrl


@pytest.mark.parametrize("name", hrl.__all__)
def test_every_public_name_is_there_and_explains_itself(name: str) -> None:
    assert (getattr(hrl, name).__doc__ or "").strip()


def test_public_names_are_listed_once() -> None:
    assert len(set(hrl.__all__)) == len(hrl.__all__)
    assert set(hrl.__all__) <= set(dir(hrl))


def test_another_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(AttributeError, match=r"module 'hybridrl' has no attribute 'TRPO'; it has: .*PPO"):
        hrl.TRPO  # noqa: B018


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import hybridrl", ("torch", "gymnasium", "numpy", "matplotlib")),
        ("import hybridrl; hybridrl.__version__; dir(hybridrl)", ("torch", "gymnasium", "numpy", "matplotlib")),
        ("import hybridrl.utilization", ("torch", "gymnasium", "numpy", "matplotlib")),
        ("import hybridrl; hybridrl.utilization", ("torch",)),
        ("import hybridrl; hybridrl.PPO", ("matplotlib", "rich", "IPython", "ipywidgets")),
    ],
)
def test_names_are_imported_when_they_are_used(code: str, heavy: tuple[str, ...]) -> None:
    check = f"{code}\nimport sys; print(sorted({set(heavy)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", hrl.__version__)


def test_the_installed_version_is_this_one() -> None:
    try:
        installed = metadata.version("hybridrl")
    except metadata.PackageNotFoundError:
        pytest.skip("run from the source tree, not installed")
    assert installed == hrl.__version__
