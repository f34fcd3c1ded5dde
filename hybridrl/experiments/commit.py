"""Which version of the source is running, when it is a checkout."""

import subprocess
from pathlib import Path

import hybridrl


def source_folder() -> Path | None:
    """The checkout that ``hybridrl`` was imported from, or ``None`` where it was installed as a package."""
    folder = Path(hybridrl.__file__).resolve().parent.parent
    return folder if (folder / "pyproject.toml").is_file() else None


def commit_of(folder: Path | None) -> tuple[str | None, bool | None]:
    """The commit at ``folder`` and whether the source differs from it; ``(None, None)`` where git can't say.

    Records themselves don't count as a difference: writing one must not taint the next.
    """
    if folder is None or _git(folder, "ls-files", "--error-unmatch", "hybridrl/__init__.py") is None:
        return None, None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".", ":(exclude)book/records")
    return commit, None if commit is None or changes is None else changes != ""


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *words), capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
