"""Write book/api/NAME.md for every public module of hybridrl, and remove pages whose module has gone."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hybridrl"
PAGES = ROOT / "book" / "api"


def pages() -> dict[str, str]:
    """File name -> text, for each module that isn't private and has a docstring.

    A package's page holds its docstring alone: what it re-exports is described where it is defined.
    """
    return {name: page(name, path) for path in sorted(PACKAGE.rglob("*.py")) if (name := page_name(path))}


def page_name(path: Path) -> str:
    """`ops.returns` for hybridrl/ops/returns.py; empty for what gets no page."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    private = any(part.startswith("_") for part in parts)
    return "" if private or not documented else ".".join(("hybridrl", *parts))


def page(name: str, path: Path) -> str:
    """The page of one module."""
    members = [] if path.name == "__init__.py" else ["   :members:"]
    directive = "\n".join([f".. automodule:: {name}", *members])
    return f"# {name.removeprefix('hybridrl.')}\n\n```{{eval-rst}}\n{directive}\n```\n"


def main() -> None:
    """Bring book/api up to date."""
    wanted = pages()
    for old in PAGES.glob("*.md"):
        if old.stem not in wanted:
            old.unlink()
            print(f"removed {old.relative_to(ROOT)}")
    for name, text in wanted.items():
        target = PAGES / f"{name}.md"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
            print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
