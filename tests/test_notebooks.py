"""The notebooks are stored clean, and what they print when executed is what they promise.

`make smoke` executes each notebook once, for the HTML; the outputs checked here are that execution's.
"""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from book._ext.notebooks import METADATA, TAG, accept, code_cells, strip
from tests import notebooks as rules
from tests.smoke import BOOK, EXECUTED, ROOT, require_smoke_build, unavailable

NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
STORED_RULES = [
    rules.stale_metadata,
    rules.stored_outputs,
    rules.private_names,
    rules.widget_imports,
    rules.images_without_alt_text,
]
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def executed(path: Path) -> NotebookNode:
    """The notebook as the smoke build ran it; it must be of the same source."""
    require_smoke_build()
    ran = EXECUTED / path.name
    if not ran.exists() or sources(read(ran)) != sources(read(path)):
        unavailable(f"{path.name} has changed since the smoke build: run `make smoke` or `make test`")
    return read(ran)


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def sources(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in code_cells(notebook)]


@each_notebook
@pytest.mark.parametrize("rule", STORED_RULES, ids=lambda rule: rule.__name__)
def test_stored(path: Path, rule) -> None:
    assert rule(read(path)) == []


@each_notebook
def test_stored_format_is_valid_and_linted(path: Path) -> None:
    nbformat.validate(read(path))
    subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", str(path)], cwd=ROOT, check=True)


@each_notebook
def test_executed_quietly_and_with_alt_text(path: Path) -> None:
    notebook = executed(path)
    assert rules.noise(notebook) == []
    assert rules.images_without_alt_text(notebook) == []


@each_notebook
def test_executed_outputs_are_the_stored_ones(path: Path, request: pytest.FixtureRequest) -> None:
    assert rules.differences(read(path), executed(path), request.session) == []


@each_notebook
def test_executed_first_cell_tells_the_scale(path: Path) -> None:
    first = code_cells(executed(path))[0]
    assert "smoke" in str(first.outputs)


def test_there_are_notebooks_and_all_are_in_the_table_of_contents() -> None:
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    assert NOTEBOOKS
    assert [path.stem for path in NOTEBOOKS if f"file: book/{path.stem}\n" not in toc] == []


# The rules themselves, on planted notebooks.


def planted(source: str = "x = 1", *, tagged: bool = False, outputs=(), count=None, **metadata) -> NotebookNode:
    checked = new_code_cell("2 + 2", metadata={"tags": [TAG]}, execution_count=1, outputs=[result("4")])
    tags = {"tags": [TAG]} if tagged else {}
    cell = new_code_cell(source, metadata=tags | metadata, execution_count=count, outputs=list(outputs))
    return new_notebook(cells=[checked, cell], metadata=METADATA)


def result(text: str, **data: str) -> NotebookNode:
    return new_output("execute_result", data={"text/plain": text, **data}, execution_count=1)


def stream(text: str, name: str = "stdout") -> NotebookNode:
    return new_output("stream", name=name, text=text)


PICTURE = new_output("display_data", data={"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"})
OTHER_PICTURE = new_output("display_data", data={"image/png": "AAAA", "text/plain": "<Figure>"})


@pytest.mark.parametrize("rule", [*STORED_RULES, rules.noise], ids=lambda rule: rule.__name__)
def test_sound_notebook_passes(rule) -> None:
    source = "import hybridrl as hrl\nfrom hybridrl.ops import gae\nprint(hrl.__version__, hrl.PPO.__name__)"
    assert rule(planted(source)) == []


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        METADATA | {"kernelspec": {"display_name": "Py", "language": "python", "name": "python385jvsc74a57bd0"}},
        METADATA | {"language_info": {"name": "python", "version": "3.8.5"}},
        METADATA | {"interpreter": {"hash": "31f2aee4e71d21fb"}},
        METADATA | {"widgets": {}},
    ],
)
def test_stale_metadata_is_seen(metadata) -> None:
    """C101."""
    assert rules.stale_metadata(new_notebook(metadata=metadata)) != []


@pytest.mark.parametrize(
    "notebook",
    [
        planted(outputs=[result("1")], count=1),
        planted(count=1),
        planted(tagged=True),
        planted(tagged=True, count=1),
        planted(tagged=True, outputs=[result("1")]),
        new_notebook(cells=[new_code_cell("x = 1")]),
    ],
)
def test_stored_output_is_seen(notebook: NotebookNode) -> None:
    assert len(rules.stored_outputs(notebook)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import hybridrl._secret",
        "from hybridrl import _secret",
        "from hybridrl._secret import x",
        "from hybridrl.ops.returns import _gae",
        "import hybridrl as hrl\nhrl._secret",
        "agent._learner",
    ],
)
def test_private_name_is_seen(source: str) -> None:
    assert rules.private_names(planted(source)) != []


@pytest.mark.parametrize(
    "source", ["import ipywidgets", "from ipywidgets import interact", "from tqdm.notebook import tqdm"]
)
def test_widget_import_is_seen(source: str) -> None:
    assert rules.widget_imports(planted(source)) != []


def test_image_without_alt_text_is_seen() -> None:
    assert rules.images_without_alt_text(planted(outputs=[PICTURE])) != []
    assert rules.images_without_alt_text(planted(outputs=[PICTURE], mystnb={"image": {"alt": "A curve."}})) == []
    drawn = new_notebook(cells=[new_markdown_cell("![](a.svg)"), new_markdown_cell("![A grid](b.svg)")])
    assert rules.images_without_alt_text(drawn) == ["![](a.svg): no alt text"]


@pytest.mark.parametrize(
    "output",
    [
        stream("UserWarning: planted", "stderr"),
        stream("\r 10%|#    | 1/10"),
        stream("100%|#####| 10/10"),
        new_output("error", ename="ValueError", evalue="planted", traceback=[]),
        new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}}),
    ],
)
def test_noise_is_seen(output: NotebookNode) -> None:
    assert rules.noise(planted(outputs=[output])) != []


@pytest.mark.parametrize(
    ("stored", "new", "same"),
    [
        ([result("4")], [result("4")], True),
        ([result("4")], [result("5")], False),
        ([result("4")], [], False),
        ([stream("a\n"), stream("b\n")], [stream("a\nb\n")], True),
        ([stream("a\nb\n")], [stream("a\n")], False),
        ([stream("a\nb\n")], [stream("a\n\nb\n")], True),  # as the builder joins "a" and "\nb\n"
        ([result("took 1.25 s")], [result("took 18 ms")], True),
        ([result("<A at 0x7f00dead00>")], [result("<A at 0x7f00beef00>")], True),
        ([result("38,000 steps/s")], [result("9 steps/s")], True),
        ([result("38,000 steps")], [result("9 steps")], False),
        ([PICTURE], [OTHER_PICTURE], True),
    ],
)
def test_comparison_is_that_of_nbval(stored, new, same: bool, request: pytest.FixtureRequest) -> None:
    before, after = planted(tagged=True, outputs=stored, count=1), planted(tagged=True, outputs=new, count=7)
    assert (rules.differences(before, after, request.session) == []) is same


def test_sanitise_file_says_what_nbval_reads() -> None:
    """C99."""
    patterns = get_sanitize_patterns(rules.SANITIZE.read_text(encoding="utf-8"))
    assert len(patterns) >= 5
    assert all(re.compile(pattern).groups >= 0 for pattern, _ in patterns)


def test_strip_keeps_checked_cells_alone_and_accept_renews_them() -> None:
    notebook = planted(outputs=[result("1")], count=3, vscode={"languageId": "python"})
    notebook.metadata["interpreter"] = {"hash": "31f2"}
    ran = planted()
    code_cells(ran)[0].outputs = [result("5")]
    accept(notebook, ran)
    strip(notebook)
    assert [rule(notebook) for rule in STORED_RULES] == [[]] * len(STORED_RULES)
    assert code_cells(notebook)[0].outputs[0].data["text/plain"] == "5"
    assert "vscode" not in code_cells(notebook)[1].metadata
