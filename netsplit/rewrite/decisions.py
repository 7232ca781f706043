"""What was decided while a graph was rewritten: taken again where the same is done at another size.

There other tensors may happen to be alike, and where there are fewer samples than parts, pieces are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from netsplit.errors import RewriteError
from netsplit.graph.ir import Node
from netsplit.rewrite.records import Split
from netsplit.rewrite.ways import Way

__all__ = ["Decisions", "Handed"]

Handed = tuple[tuple[str, ...], ...]
"""Of every piece of a tensor, the variables that make it up."""

_Choice = TypeVar("_Choice", str, Handed)


@dataclass(eq=False)
class Decisions:
    """One after another.

    Args:
        before: those to take again, of the same rewrites of a graph of more samples.
        moves: of every tensor that was to be cut, which pieces were there; of every node that moves
            tensors, which was there that does the same; None: none was.
        ways: of every operator that was cut, how.
        scaled: splits whose sizes are not this graph's own, with the axis by its own name; and why not.
    """

    before: Decisions | None = None
    moves: list[Any] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    scaled: list[tuple[Split, str]] = field(default_factory=list)

    def move(
        self, possible: _Choice | None, fits: Callable[[_Choice], bool], like: Node, samples: int
    ) -> _Choice | None:
        """What is possible; or what was decided before.

        Args:
            fits: whether that can be done here, where it is not what is possible.
            like: for which it is decided.

        Raises:
            RewriteError: it cannot.
        """
        chosen = possible if self.before is None else self.before.moves[len(self.moves)]
        if chosen is not None and chosen != possible and not fits(chosen):
            raise RewriteError(
                f"'{like.name}' ({like.kind}) is cut otherwise at {samples} samples than at "
                "more: use a number of samples that batch_size divides, or parts of equal sizes."
            )
        self.moves.append(chosen)
        return chosen

    @property
    def way_before(self) -> Way | None:
        """How the operator that is next was cut before; None: this is the first time."""
        return None if self.before is None else self.before.ways[len(self.ways)]
