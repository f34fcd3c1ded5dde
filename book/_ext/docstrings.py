"""Let docstrings be plain prose: `code` is code, a star is a star, and a name is found where it is re-exported."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

# Markup that stays as it is, `code` that becomes ``code``, or a star that would begin an emphasis.
MARKUP = re.compile(r"(``.+?``|:[\w:]+:`[^`]+`|`[^`\n]+`_|\*\*?[^*\s]([^*\n]*[^*\s])?\*\*?(?!\w))|`([^`\n]+)`|(\*)")


def plain(line: str) -> str:
    """One line of a docstring as reStructuredText."""
    return MARKUP.sub(lambda m: m[1] or (f"``{m[3]}``" if m[3] else r"\*"), line)


def process(app: Sphinx, what: str, name: str, target: object, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring's lines in place."""
    lines[:] = list(with_examples(lines))
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # a comment; else napoleon takes what stands before a colon for a type


def with_examples(lines: list[str]) -> Iterator[str]:
    """The lines as reStructuredText; what is indented after a paragraph and a blank line is an example."""
    last, literal = "", False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and number and not lines[number - 1] and not last.startswith((" ", "..")):
            literal = True
            if not last.endswith("::"):
                yield from ("::", "")
        elif line and not indented:
            literal = line.startswith("..")  # a directive, until the next paragraph
        yield line if literal else plain(line)
        last = line or last


def signature(
    app: Sphinx, what: str, name: str, target: object, options: Any, text: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A dataclass's signature that Sphinx can parse: it shows made defaults as <factory>."""
    return text and text.replace("<factory>", "..."), returns


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """A link to hybridrl.ops.returns.gae for hybridrl.ops.gae, or for gae alone, if there is only one."""
    if node["refdomain"] != "py":
        return None
    package, _, last = node["reftarget"].rpartition(".")
    domain = env.get_domain("py")
    known = [name for name in domain.objects if name.startswith(package) and name.split(".")[-1] == last]
    if len(known) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", known[0], node, content)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx, before napoleon."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
