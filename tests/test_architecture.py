"""The rules of tests/architecture.py hold in the tree, and each is seen to fail on a planted violation."""

import subprocess
import sys

import pytest

from tests.architecture import (
    LEVELS,
    ROOT,
    cycles,
    device_moves,
    read_tree,
    torch_in_utilization,
    undocumented,
    wrong_imports,
)

RULES = [wrong_imports, cycles, device_moves, undocumented, torch_in_utilization]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps(rule) -> None:
    assert rule(read_tree()) == []


def planted(**modules: str) -> dict[str, str]:
    """A tree of documented packages and the given modules; `ops__returns` stands for hybridrl.ops.returns."""
    packages = {f"hybridrl.{name}": '"""Here."""' for name in ("ops", "data", "execution", "placement")}
    sources = {f"hybridrl.{name.replace('__', '.')}": text for name, text in modules.items()}
    return {"hybridrl": '"""Here."""', **packages, **sources}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ops__returns", "import hybridrl.data"),
        ("ops__returns", "from hybridrl import data"),
        ("ops__returns", "from hybridrl.data import Arena"),
        ("ops__returns", "from ..data import Arena"),
        ("ops__returns", "from .. import data"),
        ("ops__returns", "def late():\n    from hybridrl import data"),
        ("ops__returns", "if TYPE_CHECKING:\n    from hybridrl.data import Arena"),
        ("data__arena", "from hybridrl.algorithms.ppo import PPO"),
        ("algorithms__ppo", "from hybridrl.execution import collect"),
        ("execution__sync", "from hybridrl.agents import PPO"),
        ("testing", "from hybridrl.execution import collect"),
        ("agents", "from hybridrl.testing import FakeClock"),
    ],
)
def test_import_upwards_is_seen(module: str, source: str) -> None:
    (problem,) = wrong_imports(planted(**{module: source}))
    assert "which is above it" in problem


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("data__arena", "from hybridrl.ops.returns import gae"),
        ("data__arena", "from .replay import Replay"),
        ("data__arena", "from hybridrl.networks import MLP"),
        ("agents", "from hybridrl import __version__"),
        ("testing", "from hybridrl.algorithms.ppo import PPO"),
        ("ops__returns", "import torch\nfrom torch import data"),
        ("ops__returns", "'''import hybridrl.data'''"),
    ],
)
def test_import_downwards_or_sideways_passes(module: str, source: str) -> None:
    assert wrong_imports(planted(**{module: source})) == []


def test_part_without_a_level_is_seen() -> None:
    (problem,) = wrong_imports(planted(novelty="x = 1"))
    assert "has no level" in problem


def test_circle_is_seen_and_named_once() -> None:
    tree = planted(ops__a="from hybridrl.ops import b", ops__b="import hybridrl.ops.c", ops__c="from .a import x")
    (circle,) = cycles(tree)
    assert circle == "hybridrl.ops.a -> hybridrl.ops.b -> hybridrl.ops.c -> hybridrl.ops.a"


def test_circle_through_a_package_is_seen() -> None:
    tree = planted(ops__a="from hybridrl.ops import gae") | {"hybridrl.ops": "from hybridrl.ops.a import gae"}
    assert cycles(tree) == ["hybridrl.ops -> hybridrl.ops.a -> hybridrl.ops"]


def test_circle_hidden_in_a_function_is_seen() -> None:
    later = "def f():\n    import hybridrl.ops.a"
    assert len(cycles(planted(ops__a="import hybridrl.ops.b", ops__b=later))) == 1


def test_imports_for_types_make_no_circle() -> None:
    typed = "if TYPE_CHECKING:\n    from hybridrl.ops.a import x"
    assert cycles(planted(ops__a="import hybridrl.ops.b", ops__b=typed)) == []


@pytest.mark.parametrize(
    "source",
    [
        "x.cuda()",
        "x.cpu()",
        "x.to('cuda')",
        "x.to(device=d)",
        "x.to(torch.float32)",
        "module.to(other)",
        "torch.cuda.synchronize()",
        "available = torch.cuda.is_available",
        "import torch.cuda",
        "import torch.cuda.amp as amp",
        "from torch import cuda",
        "from torch.cuda import Event",
    ],
)
def test_device_move_is_seen(source: str) -> None:
    assert len(device_moves(planted(data__arena=source))) >= 1
    assert device_moves(planted(placement__devices=source, simgpu__clock=source)) == []
    assert device_moves(planted(profiling__audit=source, profiling__monitor=source)) == []
    assert len(device_moves(planted(profiling__timer=source))) >= 1


@pytest.mark.parametrize("source", ["p = 'cpu+cuda'", "'''Call x.cuda().'''", "x.type(y.dtype)", "x.to_env(a)"])
def test_text_and_casts_are_no_device_moves(source: str) -> None:
    assert device_moves(planted(data__arena=source)) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = 1", "the module"),
        ("'''M.'''\ndef f(): ...", "f"),
        ("'''M.'''\nasync def f(): ...", "f"),
        ("'''M.'''\nclass C: ...", "C"),
        ("'''M.'''\nclass C:\n    '''C.'''\n    def f(self): ...", "C.f"),
        ("'''M.'''\nclass C:\n    '''C.'''\n    @property\n    def f(self): ...", "C.f"),
        ("'''M.'''\nclass C:\n    '''C.'''\n    class D: ...", "C.D"),
    ],
)
def test_missing_docstring_is_seen(source: str, name: str) -> None:
    assert undocumented(planted(data__arena=source)) == [f"hybridrl.data.arena: {name} has no docstring"]
    assert undocumented(planted(data___arena=source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "'''M.'''\ndef _f(): ...",
        "'''M.'''\nclass C:\n    '''C.'''\n    def __init__(self): ...",
        "'''M.'''\nclass C:\n    '''C.'''\n    @f.setter\n    def f(self, x): ...",
        "'''M.'''\n@overload\ndef f(x: int) -> int: ...",
        "'''M.'''\ndef f():\n    '''F.'''\n    def inner(): ...",
    ],
)
def test_what_needs_no_docstring_passes(source: str) -> None:
    assert undocumented(planted(data__arena=source)) == []


@pytest.mark.parametrize(
    "source",
    ["import torch", "from torch import nn", "def f():\n    import torch.nn", "from hybridrl import ops"],
)
def test_torch_in_utilization_is_seen(source: str) -> None:
    assert len(torch_in_utilization(planted(utilization__model=source))) == 1
    assert torch_in_utilization(planted(utilization__model="import math\nfrom . import timeline")) == []


@pytest.mark.parametrize("module", ["hybridrl", "hybridrl.utilization"])
def test_import_leaves_torch_alone(module: str) -> None:
    if not (ROOT / module.replace(".", "/")).exists():
        pytest.skip(f"{module} isn't there yet")
    code = f"import sys, {module}; print(*sorted({{'torch', 'gymnasium', 'matplotlib'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_levels_are_those_of_the_guide() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for level in range(5):
        (line,) = [text for text in guide.splitlines() if text.strip().startswith(f"L{level} ")]
        assert {name for name, at in LEVELS.items() if at == level} - {"__main__"} <= set(line.split()), line
