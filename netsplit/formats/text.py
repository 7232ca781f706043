"""What the readers share: numbers, and the order of nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.graph.quotient import topological_order

__all__ = ["ProfiledTask", "checked_number", "reading", "task_graph", "topological"]

PARAMETERS = "parameters"


@dataclass(frozen=True)
class ProfiledTask:
    """A task of a profile: `nbytes` are the bytes of its variable, `held` those that it keeps: parameters,
    which are trained, or others."""

    op: str
    title: str
    nbytes: int
    held: int
    holds: str = PARAMETERS
    differentiable: bool = False


LARGEST = 1e14  # bytes or time units; thousands of them, several times, still fit 64-bit integers
_SHOWN = 6  # nodes of a cycle that an error names


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Raises NetSplitError: what is read within is missing, or of another kind."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, NetSplitError):
            raise
        what = f"{error} is missing" if isinstance(error, KeyError) else f"it cannot be read ({error})"
        raise NetSplitError(f"{place}: {what}.") from error


def checked_number(value: Any, what: str, where: object, most: float = LARGEST) -> float:
    """A finite number from 0 to `most`.

    Raises:
        NetSplitError: anything else; names `where` and `what`.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise NetSplitError(f"{where}: {what} is {value!r}: it must be a finite number of 0 or more.")
    if number > most:
        raise NetSplitError(f"{where}: {what} is {number:g}: give at most {most:g}.")
    return number


def topological(
    names: Sequence[str],
    edges: Sequence[tuple[str, str]],
    places: Mapping[tuple[str, str], object],
    where: str,
    breadth_first: bool = False,
) -> list[str]:
    """The names in a topological order that follows the file's as closely as it can.

    Args:
        edges: (u, v), each once.
        places: where an edge stands, for the error.
        breadth_first: of the names that could come next, the one that could first, not the file's first.

    Raises:
        NetSplitError: a cycle; names its nodes and one of its edges.
    """
    rank = {name: i for i, name in enumerate(names)}
    after: list[list[int]] = [[] for _ in names]
    for u, v in edges:
        after[rank[u]].append(rank[v])
    order = topological_order(after, None if breadth_first else int)
    if len(order) < len(names):
        import networkx  # a fifth of a second to load

        cycle = [u for u, _ in networkx.find_cycle(networkx.DiGraph(edges))]
        place = places.get((cycle[0], cycle[1 % len(cycle)]), where)
        shown = " -> ".join(cycle[:_SHOWN]) + (" -> ..." if len(cycle) > _SHOWN else f" -> {cycle[0]}")
        raise NetSplitError(f"{place}: the edges form a cycle of {len(cycle)} nodes: {shown}.")
    return [names[i] for i in order]


def task_graph(
    order: Sequence[str],
    edges: Sequence[tuple[str, str]],
    tasks: Mapping[str, ProfiledTask],
    colocated: tuple[tuple[str, ...], ...] = (),
) -> Graph:
    """A graph of tasks, each of which makes one variable, called as the task is.

    Args:
        order: of the tasks, topological.
        edges: (u, v), each once.
    """
    rank = {name: i for i, name in enumerate(order)}
    before: dict[str, list[str]] = {name: [] for name in order}
    after: dict[str, list[str]] = {name: [] for name in order}
    for u, v in sorted(edges, key=lambda ends: (rank[ends[0]], rank[ends[1]])):
        after[u].append(v)
        before[v].append(u)
    nodes: dict[str, Node] = {}
    variables: dict[str, Variable] = {}
    initializers: dict[str, Initializer] = {}
    for v in order:
        task, name = tasks[v], f"{v}.{tasks[v].holds}"
        trained = task.holds == PARAMETERS
        if task.held:
            initializers[name] = Initializer(name, "uint8", (task.held,), trained, trained)
        holds = (name,) if task.held else ()
        nodes[v] = Node(v, task.op, tuple(before[v]), (v,), holds, module=task.title)
        variables[v] = Variable(v, "uint8", (task.nbytes,), v, tuple(after[v]), task.differentiable)
    outputs = tuple(v for v in order if not after[v])
    return Graph(nodes, variables, (), outputs, initializers, colocated=colocated)
