"""What the operating system leaves to this process: cores, and what its control groups say."""

import os
import re
import sys
from pathlib import Path


def available_cores() -> float | None:
    """Cores that affinity and the control groups leave to this process; None where nobody knows."""
    count: float | None = os.cpu_count()
    if sys.platform != "darwin" and hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = control_group_cores()
    return count if quota is None else min(quota, count or quota)


def control_group_cores() -> float | None:
    """The tightest quota of the control groups, in cores; None where there is none."""
    limits = []
    for text in control_group_values("cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")  # "max 100000"; in version 1 the quota alone, -1 for none
        if quota.isdigit():
            limits.append(int(quota) / int(period or 100_000))
    return min(limits) if limits else None


def control_group_values(controller: str, name: str, old_name: str, root: str = "/sys/fs/cgroup") -> list[str]:
    """What the control groups of this process, and all above it, say under ``name`` (Linux; else nothing)."""
    own = re.search(r"^0::/(.*)$", read_text("/proc/self/cgroup") or "", re.MULTILINE)
    folder = Path(root, own.group(1)) if own else Path(root)
    folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    paths = [*(place / name for place in folders), Path(root, controller, old_name)]
    return [text for text in (read_text(path) for path in paths) if text]


def read_text(path: str | Path) -> str | None:
    """A file's text without the white space around it; None where it can't be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
