"""A training program for fewer samples than it was compiled for: the last batch of an epoch."""

from __future__ import annotations

from dataclasses import replace

from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph
from netsplit.program.instructions import Program, origin
from netsplit.program.transfers import insert_transfers

__all__ = ["require_same_operators", "with_tail"]


def with_tail(program: Program, graph: Graph, tail: Graph) -> Program:
    """The program whose last micro-batch is computed by `tail`, a capture of the same model at fewer samples.

    Raises:
        NetSplitError: the model computes something else with so many samples: other operators, or other
            constants.
    """
    require_same_operators(graph, tail)
    for k, init in graph.initializers.items():
        differs = k not in tail.initializers or tail.initializers[k].shape != init.shape
        if differs or (k in graph.constants and not graph.constants[k].equal(tail.constants[k])):
            raise NetSplitError(
                f"the model's tensor '{k}' is another for {tail.batch_size} samples than for "
                f"{graph.batch_size}: use a number of samples that batch_size divides."
            )
    for k in program.lasting:
        own = origin(program.graph, k)
        if tail.variables[own].shape != graph.variables[own].shape:
            raise NetSplitError(
                f"'{own}', made of the model's weights, has another size for {tail.batch_size} samples than "
                f"for {graph.batch_size}: use a number of samples that batch_size divides."
            )
    device_of = {name: program.device_of[name] for name in graph.nodes}
    return replace(program, tail=insert_transfers(tail, device_of, program.exchanges)[0])


def require_same_operators(graph: Graph, tail: Graph) -> None:
    """Raises as `with_tail`, where the operators are others."""
    same_names = (
        list(tail.nodes) == list(graph.nodes)
        and list(tail.variables) == list(graph.variables)
        and tail.output_variables == graph.output_variables
    )
    if not same_names or any(
        tail.nodes[n].op != graph.nodes[n].op and not _reads_nothing(tail, n) for n in graph.nodes
    ):
        raise NetSplitError(
            f"the model has other operators for {tail.batch_size} samples than for {graph.batch_size}: use a "
            "number of samples that batch_size divides."
        )


def _reads_nothing(tail: Graph, name: str) -> bool:
    """Whether a node is an empty part of an operator, of more parts than there are samples."""
    return any(0 in tail.variables[k].shape for k in tail.nodes[name].inputs)
