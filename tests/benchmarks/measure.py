"""What each library's process measures and says. No third-party imports: it runs in both environments."""

import sys
import time
from collections.abc import Callable


def answer(library: str, version: str, train: Callable[[], int]) -> dict[str, object]:
    """Train once and say how many steps, wall and CPU seconds, and how much memory at the peak."""
    wall, cpu = time.perf_counter(), time.process_time()
    steps = train()
    return {
        "library": library,
        "version": version,
        "steps": steps,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float | None:
    """Largest resident size of this process so far, in MiB; None where the platform doesn't say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / 2**20 if sys.platform == "darwin" else size / 2**10
