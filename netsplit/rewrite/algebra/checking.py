"""Whether algebra computes what the captured graph does: both sides on the same drawn values, in float64.

All other operators read the same of both, so the loss and the gradients of parameters are the same, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, read_by
from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.rewrite.algebra.applying import CAPTURED, applied_rule
from netsplit.rewrite.algebra.matching import Match, match_of
from netsplit.rewrite.algebra.patterns import shape_of
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.lowering import lowered_from

__all__ = ["require_same_algebra", "require_same_training"]

_CHECKED = "rewrite.algebra.checked"

TOLERANCE = 1e-10
"""Relative to the largest number of a tensor."""

ROWS = 32
"""The most rows of a table that is drawn."""


def require_same_algebra(graph: Graph) -> None:
    """`require_same_training` of what a graph with algebra was made of, once; others pass.

    Raises:
        RewriteError: as that.
    """
    lowered = lowered_from(graph)
    after = graph if lowered is None else lowered.captured
    captured = after.derived.get(CAPTURED)
    if captured is not None and _CHECKED not in after.derived:
        require_same_training(captured, after)
        after.derived[_CHECKED] = True


def require_same_training(captured: Graph, after: Graph) -> None:
    """Results and gradients of each rule that was applied, at its sizes; what is alike is compared once.

    Raises:
        RewriteError: some differ; names the rule and the operator.
    """
    graph, known = captured, set[str]()
    for each in after.rewrites[len(captured.rewrites) :]:
        match = match_of(graph, each) if isinstance(each, Algebra) else None
        if match is None:
            continue
        changed = applied_rule(graph, match)
        calls, read = [(call.node.op, call.parameters) for call in match.calls], [*match.bound.values()]
        alike = repr((match.rule, calls, match.shapes, [(own[0], read.index(own)) for own in read]))
        if alike not in known and not _same(graph, changed, match):
            raise RewriteError(
                f"'{match.rule.name}' in the place of '{each.node}' computes something else: a rule is wrong."
            )
        known.add(alike)
        graph = changed


def _same(graph: Graph, changed: Graph, match: Match) -> bool:
    given = _drawn(graph, match)
    ones = _computed(graph, given, [("var", k) for k, _ in match.kept])
    others = _computed(
        changed, given, [match.bound[ref] if isinstance(ref, str) else ("var", k) for k, ref in match.kept]
    )
    for one, other in zip(ones, others, strict=True):
        atol = TOLERANCE * float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
        if one.shape != other.shape or not torch.allclose(one, other, 0.0, atol, equal_nan=True):
            return False
    return True


def _drawn(graph: Graph, match: Match) -> dict[Reference, Tensor]:
    """Values of what both sides read; of tables that are only looked up in, the first rows."""
    generator = torch.Generator().manual_seed(0)
    reads = [own for call in match.calls for own in enumerate(call.inputs) if call.op in ("embedding", "bag")]
    tables = {reference for i, reference in reads if i == 0}
    rows = min([ROWS, *(shape_of(graph, each)[0] for each in tables)])
    given: dict[Reference, Tensor] = {}
    for tag, k in match.bound.values():
        shape = shape_of(graph, (tag, k))
        if (tag, k) in tables:
            shape = (rows, *shape[1:])
        if (graph.variables if tag == "var" else graph.initializers)[k].dtype.startswith("int"):
            given[tag, k] = torch.randint(rows, shape, generator=generator)
        else:
            drawn = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
            given[tag, k] = nn.Parameter(drawn) if tag == "init" else drawn
    return given


def _computed(graph: Graph, given: Mapping[Reference, Tensor], wanted: Sequence[Reference]) -> list[Tensor]:
    """What is wanted, and the gradients of all that is given."""
    names, left = set[str](), [each for each in wanted if each not in given]
    while left:
        tag, k = left.pop()
        name = graph.variables[k].producer if tag == "var" else None
        if name is not None and name not in names:
            names.add(name)
            left += [each for each in read_by(graph.nodes[name]) if each not in given]
    inputs = [k for tag, k in given if tag == "var"]
    values = {k: value for (tag, k), value in given.items() if tag == "init"}
    outputs = [k for tag, k in wanted if (tag, k) not in given]
    module = rebuild(graph, values, nodes=names, inputs=inputs, outputs=outputs)
    results = iter(module(*(given["var", k] for k in inputs)))
    wanted_values = [given[each] if each in given else next(results) for each in wanted]
    draws = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, dtype=each.dtype, generator=draws) for each in wanted_values]
    trained = [value for value in given.values() if value.requires_grad]
    grads = torch.autograd.grad(wanted_values, trained, weights, allow_unused=True, materialize_grads=True)
    return [*(each.detach() for each in wanted_values), *grads]
