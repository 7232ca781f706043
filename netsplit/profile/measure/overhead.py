"""What an instruction costs beside its operators."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from netsplit.graph.ir import Graph, Initializer, Node, Variable

__all__ = ["instruction_seconds", "trivial_step"]


def trivial_step() -> Graph:
    """A training step of one number times one parameter: what it costs to run is all overhead."""
    return Graph(
        nodes={
            "mul": Node("mul", "aten.mul.Tensor", ("x",), ("y",), ("w",), args=({"var": "x"}, {"init": "w"}))
        },
        variables={
            "x": Variable("x", "float32", (1,), None, ("mul",)),
            "y": Variable("y", "float32", (1,), "mul", (), requires_grad=True),
        },
        input_variables=("x",),
        output_variables=("y",),
        initializers={"w": Initializer("w", "float32", (1,), is_parameter=True, requires_grad=True)},
    )


def instruction_seconds(run: Callable[[], float], instructions: int, repeats: int = 40) -> float:
    """Seconds to begin and end one computation.

    Args:
        run: executes a program of `trivial_step` with that many instructions; its seconds.
    """
    runs = [run() for _ in range(repeats)]
    return median(runs[repeats // 4 :]) / instructions
