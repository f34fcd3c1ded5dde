"""The tree of phases behind a timer: one node a path, integers only.

A run of any length needs the memory of its tree of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hybridrl.profiling.phases import DESCRIPTIONS
from hybridrl.profiling.report import PhaseRow

_ORDER = tuple(DESCRIPTIONS)


class ScopeCost(NamedTuple):
    """What one phase costs: nanoseconds charged to the phase itself, and to whatever encloses it."""

    inside_ns: float
    outside_ns: float

    @property
    def total_ns(self) -> float:
        """Both parts together, in nanoseconds."""
        return self.inside_ns + self.outside_ns


class Node:
    """One path of the phase tree and its totals."""

    __slots__ = ("calls", "children", "first_ns", "name", "parent", "start_ns", "total_ns")

    def __init__(self, name: str, parent: Node | None) -> None:
        self.name = name
        self.parent = parent
        self.children: dict[str, Node] = {}
        self.calls = 0
        self.total_ns = 0
        self.first_ns = 0
        self.start_ns = 0

    def close(self, end_ns: int) -> None:
        """Count one call, from ``start_ns`` to ``end_ns``."""
        elapsed = end_ns - self.start_ns
        if not self.calls:
            self.first_ns = elapsed
        self.total_ns += elapsed
        self.calls += 1


class Totals(NamedTuple):
    """The rows under a node, parents before children, with their scopes and nanoseconds in all."""

    rows: tuple[PhaseRow, ...]
    scopes: int
    busy_ns: int


def totals(node: Node, path: tuple[str, ...], cost: ScopeCost, running_ns: Mapping[Node, int]) -> Totals:
    """What happened under ``node``, less what the timer cost; ``running_ns`` has what open phases took so far.

    A phase loses the inside of its own scopes, and all of those within it. Phases beside one another stand in the order
    of an iteration where each has a name of ours, else in that of their first occurrence.
    """
    rows: list[PhaseRow] = []
    scopes = busy_ns = 0
    for child in _in_order(node.children.values()):
        child_path = (*path, child.name)
        inner = totals(child, child_path, cost, running_ns)
        overhead_ns = round(child.calls * cost.inside_ns + inner.scopes * cost.total_ns)
        spent_ns = child.total_ns + running_ns.get(child, 0) - overhead_ns
        total_ns = max(spent_ns, inner.busy_ns)  # an estimate: never below the children, so never below 0
        first = max(0, child.first_ns - round(cost.inside_ns)) / 1e9 if child.calls else None
        row = PhaseRow(child_path, child.calls, total_ns / 1e9, (total_ns - inner.busy_ns) / 1e9, first)
        rows += (row, *inner.rows)
        scopes += child.calls + inner.scopes
        busy_ns += total_ns
    return Totals(tuple(rows), scopes, busy_ns)


def _in_order(siblings: Iterable[Node]) -> list[Node]:
    nodes = list(siblings)
    if all(node.name in _ORDER for node in nodes):
        nodes.sort(key=lambda node: _ORDER.index(node.name))
    return nodes
