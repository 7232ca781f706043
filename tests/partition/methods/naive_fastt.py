"""FastT's two algorithms read off the page: everything anew each time, by recursion and plain lists."""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.graph.ir import Graph

Task = tuple[str, str]  # "f" or "b", and the node


@dataclass
class Steps:
    """Tasks of one step, in a topological order, and what feeds them: (task, [bytes of each variable])."""

    order: list[Task]
    feeds: dict[Task, list[tuple[Task, list[int]]]]

    @classmethod
    def of(cls, graph: Graph) -> Steps:
        reached = graph.requires_backward
        trained = [v for v, node in graph.nodes.items() if any(k in reached for k in node.outputs if k)]
        order = [("f", v) for v in graph.nodes] + [("b", v) for v in reversed(trained)]
        feeds: dict[Task, list[tuple[Task, list[int]]]] = {t: [] for t in order}
        for v in trained:
            feeds["b", v].append((("f", v), []))
        for v, node in graph.nodes.items():
            for u in graph.predecessors[v]:
                read = [k for k in node.inputs if graph.variables[k].producer == u]
                feeds["f", v].append((("f", u), [graph.variables[k].nbytes for k in read]))
                back = [graph.variables[k].nbytes for k in read if k in reached]
                if back and v in trained:
                    feeds["b", u].append((("b", v), back))
        return cls(order, feeds)
