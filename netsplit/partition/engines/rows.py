"""Rows of a linear model, gathered one by one and given to PICOS as one sparse matrix constraint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import cvxopt
import picos

__all__ = ["Rows", "Term"]

Term = tuple[str, int, float]
"""(variable vector, element, coefficient)."""


class Rows:
    """Rows ``sum of terms <= rhs`` (or ``= rhs``). PICOS takes 2000 rows at once as fast as one."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[list[float], list[int], list[int]]] = {}
        self._rhs: list[float] = []

    def add(self, terms: Iterable[Term], rhs: float = 0.0) -> None:
        for name, element, coefficient in terms:
            values, rows, columns = self._entries.setdefault(name, ([], [], []))
            values.append(coefficient)
            rows.append(len(self._rhs))
            columns.append(element)
        self._rhs.append(rhs)

    def attach(self, model: picos.Problem, variables: Mapping[str, Any], *, equal: bool = False) -> None:
        """Add the rows, in terms of these PICOS variables, to the model."""
        if not self._rhs:
            return
        count = len(self._rhs)
        left = sum(
            picos.Constant(name, cvxopt.spmatrix(*entries, (count, len(variables[name])))) * variables[name]
            for name, entries in self._entries.items()
        )
        right = picos.Constant("rhs", cvxopt.matrix(self._rhs))
        model.add_constraint(left == right if equal else left <= right)
