"""Keep notebooks clean: `strip` drops what must not be stored, `accept` renews what checked cells store."""

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

BOOK = Path(__file__).resolve().parents[1]
EXECUTED = BOOK.parent / "build" / "smoke" / "_build" / "jupyter_execute" / "book"
TAG = "nbval-check-output"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_checked(cell: NotebookNode) -> bool:
    """Whether the cell's stored output is compared with a new one."""
    return TAG in cell.metadata.get("tags", [])


def strip(notebook: NotebookNode) -> None:
    """Remove outputs, but for checked cells, and what an editor or another machine left in the metadata."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in code_cells(notebook):
        for left_behind in ("execution", "collapsed", "scrolled", "ExecuteTime", "vscode"):
            cell.metadata.pop(left_behind, None)
        if not is_checked(cell):
            cell.outputs, cell.execution_count = [], None


def accept(notebook: NotebookNode, executed: NotebookNode) -> None:
    """Store the outputs that the last smoke build gave in checked cells."""
    for cell, ran in zip(code_cells(notebook), code_cells(executed), strict=True):
        if is_checked(cell) and cell.source == ran.source:
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count


def main(action: str) -> None:
    """Apply the action to every notebook of the book."""
    for path in sorted(BOOK.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if action == "accept":
            accept(notebook, nbformat.read(EXECUTED / path.name, as_version=4))
        strip(notebook)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1])
