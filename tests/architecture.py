"""The rules of the house: who may import whom, who may name a device, what has a docstring.

A tree maps dotted module names to source text, so that the rules can be tried on planted violations.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LEVELS = {
    "ops": 0,
    "utilization": 0,
    "launch": 0,
    "profiling": 1,
    "placement": 1,
    "simgpu": 1,
    "data": 1,
    "networks": 1,
    "flat": 1,
    "envs": 1,
    "algorithms": 2,
    "execution": 3,
    "advisor": 3,
    "checkpoints": 4,
    "building": 4,
    "assembly": 4,
    "auto": 4,
    "progress": 4,
    "loggers": 4,
    "locks": 4,
    "runs": 4,
    "results": 4,
    "recipes": 4,
    "agents": 4,
    "experiments": 4,
    "cli": 4,
    "__main__": 4,
}
# `testing` serves the tests, and may use what is below execution; nothing but tests uses it.
TESTING_READS_UP_TO = 2
KNOWS_DEVICES = (
    "hybridrl.placement",
    "hybridrl.simgpu",
    "hybridrl.profiling.audit",
    "hybridrl.profiling.monitor",
)
Tree = Mapping[str, str]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def read_tree(root: Path = ROOT) -> dict[str, str]:
    """The sources of hybridrl, by module name; a package has its own name, without `__init__`."""
    files = sorted((root / "hybridrl").rglob("*.py"))
    return {module_name(path.relative_to(root)): path.read_text(encoding="utf-8") for path in files}


def module_name(path: Path) -> str:
    """`hybridrl.ops.returns` for hybridrl/ops/returns.py, `hybridrl.ops` for hybridrl/ops/__init__.py."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: Tree, module: str, *, for_types: bool = True) -> Iterator[tuple[str, int]]:
    """The modules that a module imports, with the line; also inside functions."""
    for node in walk(ast.parse(tree[module]), for_types):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve(tree, module, node)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield (name if name in tree else base), node.lineno


def walk(node: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    """Every node below, or all but what `if TYPE_CHECKING:` guards."""
    for child in ast.iter_child_nodes(node):
        if for_types or not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from walk(child, for_types)


def resolve(tree: Tree, module: str, node: ast.ImportFrom) -> str:
    """The absolute name of what a `from ... import` names, also when it begins with dots."""
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    is_package = any(name.startswith(module + ".") for name in tree)
    keep = len(parts) - node.level + (1 if is_package else 0)
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def part(module: str) -> str:
    """`ops` for `hybridrl.ops.returns`; empty for `hybridrl` itself."""
    return module.split(".")[1] if "." in module else ""


def wrong_imports(tree: Tree) -> list[str]:
    """Imports that go up, and parts that have no level."""
    found = []
    for module in tree:
        if part(module) and part(module) not in {*LEVELS, "testing"}:
            found.append(f"{module}: `{part(module)}` has no level in tests/architecture.py")
        for target, line in imports(tree, module):
            if target.split(".")[0] == "hybridrl" and goes_up(module, target):
                found.append(f"{module}:{line} imports {target}, which is above it")
    return found


def goes_up(module: str, target: str) -> bool:
    """Whether the target stands above the module. `hybridrl` itself is everybody's, for its version."""
    source, goal = part(module), part(target)
    if not source or not goal or source == goal:
        return False
    if goal == "testing":
        return True
    return LEVELS.get(goal, 0) > (TESTING_READS_UP_TO if source == "testing" else LEVELS.get(source, 0))


def cycles(tree: Tree) -> list[str]:
    """Circles of imports, each named once. Types make none, nor does `hybridrl`, which is lazy."""
    graph = {
        module: sorted({t for t, _ in imports(tree, module, for_types=False) if t in tree and t != module})
        for module in tree
        if module != "hybridrl"
    }
    found: dict[frozenset[str], str] = {}
    for start in graph:
        for path in circles_from(graph, start):
            found.setdefault(frozenset(path), " -> ".join([*path, start]))
    return sorted(found.values())


def circles_from(graph: Mapping[str, list[str]], start: str) -> Iterator[list[str]]:
    """A shortest path from a module back to itself, if there is one."""
    paths, seen = [[start]], {start}
    for path in paths:
        for target in graph.get(path[-1], []):
            if target == start:
                yield path
                return
            if target not in seen:
                seen.add(target)
                paths.append([*path, target])


def device_moves(tree: Tree) -> list[str]:
    """`torch.cuda`, `.cuda(`, `.cpu(` and `.to(` outside of the few modules that know devices."""
    return [
        f"{module}:{line} says `{what}`; only {', '.join(KNOWS_DEVICES)} may (for a dtype, use .type())"
        for module, source in tree.items()
        if not any(module == known or module.startswith(known + ".") for known in KNOWS_DEVICES)
        for what, line in device_words(ast.parse(source))
    ]


def device_words(module: ast.Module) -> Iterator[tuple[str, int]]:
    """The places where code, not text, names CUDA or moves something."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("cuda", "cpu", "to"):
                yield f".{node.func.attr}(", node.lineno
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda":
            yield "torch.cuda", node.lineno
        elif isinstance(node, ast.Import) and any(a.name.startswith("torch.cuda") for a in node.names):
            yield "import torch.cuda", node.lineno
        elif isinstance(node, ast.ImportFrom) and names_cuda(node):
            yield "from torch import cuda", node.lineno


def names_cuda(node: ast.ImportFrom) -> bool:
    """Whether the statement imports torch.cuda, or something from it."""
    base = node.module or ""
    return base.startswith("torch.cuda") or (base == "torch" and any(a.name == "cuda" for a in node.names))


def undocumented(tree: Tree) -> list[str]:
    """Public modules, classes, functions and methods without a docstring. Overloads and setters need none."""
    return [
        f"{module}: {name} has no docstring"
        for module, source in tree.items()
        if not any(p.startswith("_") for p in module.split("."))
        for name in without_docstring(ast.parse(source), "the module")
    ]


def without_docstring(node: Definition | ast.Module, name: str) -> Iterator[str]:
    """The name itself if it lacks a docstring, then those of its public members."""
    if not ast.get_docstring(node):
        yield name
    if isinstance(node, (ast.Module, ast.ClassDef)):
        prefix = "" if isinstance(node, ast.Module) else f"{name}."
        for child in node.body:
            if isinstance(child, Definition) and needs_docstring(child):
                yield from without_docstring(child, prefix + child.name)


def needs_docstring(node: Definition) -> bool:
    """Whether the name is public, and this is where it is defined first."""
    decorators = [ast.unparse(d) for d in node.decorator_list]
    repeats = any(d.split(".")[-1] in ("overload", "setter", "deleter", "override") for d in decorators)
    return not node.name.startswith("_") and not repeats


def torch_in_utilization(tree: Tree) -> list[str]:
    """Imports of torch, or of another part of ours, which might import it, in utilization."""
    return [
        f"{module}:{line} imports {target}; utilization is exact arithmetic, without torch"
        for module in tree
        if part(module) == "utilization"
        for target, line in imports(tree, module)
        if target.split(".")[0] == "torch" or is_other_part(target)
    ]


def is_other_part(target: str) -> bool:
    """Whether it is a module of ours, but neither utilization nor `hybridrl` itself."""
    return target.startswith("hybridrl.") and part(target) != "utilization"
