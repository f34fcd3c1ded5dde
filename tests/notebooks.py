"""What a stored and an executed notebook must look like; each function returns what is wrong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from copy import deepcopy

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams, get_sanitize_patterns

from book._ext.notebooks import METADATA, code_cells, is_checked
from tests.smoke import BOOK

SANITIZE = BOOK / "sanitize.cfg"
WIDGETS = ("ipywidgets", "tqdm.notebook", "tqdm.auto", "tqdm.autonotebook", "rich.jupyter")


def stale_metadata(notebook: NotebookNode) -> list[str]:
    """A kernel that other machines lack, or what an editor left behind."""
    left = {key: value for key, value in notebook.metadata.items() if METADATA.get(key) != value}
    missing = sorted(METADATA.keys() - notebook.metadata.keys())
    found = [f"metadata {key!r} is {value!r}" for key, value in left.items()]
    return found + [f"metadata {key!r} is missing" for key in missing]


def stored_outputs(notebook: NotebookNode) -> list[str]:
    """Outputs where none belong, and checked cells that nbval would silently pass."""
    found = [] if any(map(is_checked, code_cells(notebook))) else ["no cell is tagged nbval-check-output"]
    for cell in code_cells(notebook):
        if not is_checked(cell) and (cell.outputs or cell.execution_count is not None):
            found.append(f"{first_line(cell)}: has outputs or an execution count, and isn't tagged")
        if is_checked(cell) and (not cell.outputs or cell.execution_count is None):
            found.append(f"{first_line(cell)}: is tagged, and has no outputs or no execution count")
    return found


def private_names(notebook: NotebookNode) -> list[str]:
    """Imports and attributes of hybridrl that begin with an underscore."""
    return [f"{name} is private" for node in syntax(notebook) for name in names(node) if is_private(name)]


def widget_imports(notebook: NotebookNode) -> list[str]:
    """Imports that need a notebook front end."""
    found = [name for node in syntax(notebook) for name in names(node) if name.startswith(WIDGETS)]
    return [f"{name} needs a front end with widgets" for name in found]


def syntax(notebook: NotebookNode) -> Iterator[ast.AST]:
    """Every node of every cell; cells are plain Python, without magics."""
    for cell in code_cells(notebook):
        yield from ast.walk(ast.parse(cell.source))


def names(node: ast.AST) -> Iterator[str]:
    """The dotted names that an import brings in, or that an attribute access spells."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield ast.unparse(node)


def is_private(name: str) -> bool:
    """Whether the last part of a dotted name, or any part of a module of ours, is private."""
    parts = name.split(".") if name.startswith("hybridrl.") else name.split(".")[-1:]
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


def images_without_alt_text(notebook: NotebookNode) -> list[str]:
    """Figures, executed or drawn in Markdown, that say nothing to who can't see them."""
    found = [
        f"{first_line(cell)}: shows an image; give it metadata mystnb.image.alt"
        for cell in code_cells(notebook)
        if any("image/" in kind for output in cell.outputs for kind in output.get("data", {}))
        and not cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "").strip()
    ]
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return found + [f"{image}: no alt text" for text in texts for image in re.findall(r"!\[\s*\]\([^)]*\)", text)]


def noise(executed: NotebookNode) -> list[str]:
    """Standard error, errors, progress bars and widgets among the outputs of an executed notebook."""
    return [
        f"{first_line(cell)}: {what}"
        for cell in code_cells(executed)
        for output in cell.outputs
        for what in noises(output)
    ]


def noises(output: NotebookNode) -> Iterator[str]:
    """What one output has that a page shouldn't."""
    if output.output_type == "error":
        yield f"error {output.ename}"
    if output.output_type == "stream" and output.name == "stderr":
        yield f"standard error {output.text[:80]!r}"
    if output.output_type == "stream" and ("\r" in output.text or re.search(r"\d%\|", output.text)):
        yield f"progress bar {output.text[:80]!r}"
    yield from (f"widget {kind}" for kind in output.get("data", {}) if "widget" in kind)


def differences(notebook: NotebookNode, executed: NotebookNode, session: pytest.Session) -> list[str]:
    """Where a checked cell's stored output isn't what the execution gave, by nbval's own comparison."""
    judge = nbval_judge(session)
    return [
        f"{first_line(cell)}: the output differs\n" + "\n".join(judge.comparison_traceback)
        for cell, ran in zip(code_cells(notebook), code_cells(executed), strict=True)
        if is_checked(cell) and not same(judge, ran.outputs, cell.outputs)
    ]


def nbval_judge(session: pytest.Session) -> IPyNbCell:
    """A cell of nbval without a kernel, for its comparison alone: the notebooks have run already."""
    file = IPyNbFile.from_parent(session, path=SANITIZE)
    file.sanitize_patterns.update(get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")))
    return IPyNbCell.from_parent(file, name="judge", cell_num=0, cell=None, options={})


def same(judge: IPyNbCell, new: list[NotebookNode], stored: list[NotebookNode]) -> bool:
    """nbval's verdict, on copies, since it merges streams in place."""
    return bool(judge.compare_outputs(coalesce_streams(deepcopy(new)), coalesce_streams(deepcopy(stored))))


def first_line(cell: NotebookNode) -> str:
    """How a cell is named in messages."""
    return repr(cell.source.split("\n")[0][:60])
