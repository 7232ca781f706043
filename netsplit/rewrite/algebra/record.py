"""One application of a rule, as a placement's file has it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.rule import Rule

__all__ = ["Algebra"]


@dataclass(frozen=True)
class Algebra:
    """A rule, and where it is applied: before any operator is cut, each to the graph that those before made.

    Args:
        rule: in full, so that a file means the same whatever rules there are.
        nodes: of each term of its left side, the operator.
        reads: of its inputs name, "var" or "init", and what that is called.

    Raises:
        RewriteError: there is not a node for each term.
    """

    rule: Rule
    nodes: tuple[str, ...]
    reads: tuple[tuple[str, str, str], ...] = ()

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.rule.left):
            raise RewriteError(
                f"'{self.rule.name}' is of {len(self.rule.left)} operators, and is given {len(self.nodes)}: "
                "give one for each."
            )

    @property
    def node(self) -> str:
        """The first of its operators."""
        return self.nodes[0]

    def to_dict(self) -> dict[str, Any]:
        rule = self.rule.to_dict()
        return {"kind": "algebra", "rule": rule, "nodes": list(self.nodes), "reads": [*map(list, self.reads)]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Algebra:
        """Of what `to_dict` gave, after JSON.

        Raises:
            RewriteError: it is something else.
        """
        try:
            reads = tuple((str(name), str(tag), str(k)) for name, tag, k in values["reads"])
            return cls(Rule.from_dict(values["rule"]), tuple(map(str, values["nodes"])), reads)
        except (TypeError, KeyError, ValueError) as error:
            raise RewriteError(f"algebra is {brief(values)}: give what its to_dict answers.") from error
