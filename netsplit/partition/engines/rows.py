"""A mixed-integer linear model as sparse arrays, gathered row by row.

Memory and time are linear in the coefficients: 12 bytes each, and 28 for a column and 24 for a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netsplit.placement.placement import Status

if TYPE_CHECKING:
    import highspy

__all__ = ["LinearModel", "Outcome", "Rows", "Term"]

Term = tuple[int, float]
"""(column, coefficient)."""

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]


class Rows:
    """Rows ``sum of terms <= rhs``, or ``= rhs``; a column stands in a row once."""

    def __init__(self) -> None:
        self._columns, self._values = array("i"), array("d")
        self._lengths, self._rhs, self._equal = array("i"), array("d"), array("b")

    def add(self, terms: Iterable[Term], rhs: float = 0.0, *, equal: bool = False) -> None:
        before = len(self._columns)
        for column, value in terms:
            self._columns.append(column)
            self._values.append(value)
        self._end([len(self._columns) - before], rhs, equal)

    def add_block(
        self, columns: ArrayLike, values: ArrayLike, rhs: float = 0.0, *, equal: bool = False
    ) -> None:
        """As many rows as `columns` [rows, width] has, with one right side; `values` broadcasts to it."""
        index = np.ascontiguousarray(columns, np.int32)
        self._columns.frombytes(index.tobytes())
        self._values.frombytes(np.broadcast_to(np.asarray(values, np.float64), index.shape).tobytes())
        self._end([index.shape[1]] * len(index), rhs, equal)

    def _end(self, lengths: list[int], rhs: float, equal: bool) -> None:
        self._lengths.extend(lengths)
        self._rhs.extend([rhs] * len(lengths))
        self._equal.extend([equal] * len(lengths))

    def model(self, lower: ArrayLike, upper: ArrayLike, cost: ArrayLike, integer: ArrayLike) -> LinearModel:
        """These rows over columns with these bounds, costs and kinds ([columns] each)."""
        rhs = np.array(self._rhs, np.float64)
        starts = np.zeros(len(self._lengths) + 1, np.int32)
        np.cumsum(np.array(self._lengths, np.int32), out=starts[1:])
        return LinearModel(
            lower=np.asarray(lower, np.float64),
            upper=np.asarray(upper, np.float64),
            cost=np.asarray(cost, np.float64),
            integer=np.asarray(integer, bool),
            row_lower=np.where(np.array(self._equal, bool), rhs, -np.inf),
            row_upper=rhs,
            starts=starts,
            columns=np.frombuffer(self._columns, np.int32),
            values=np.frombuffer(self._values, np.float64),
        )


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Minimise ``cost @ x`` with ``lower <= x <= upper`` and ``row_lower <= A @ x <= row_upper``.

    Shapes: n columns, m rows, c coefficients. Row i of A has ``values[starts[i] : starts[i + 1]]`` in the
    `columns` of the same slice.
    """

    lower: Floats  # [n]
    upper: Floats  # [n]
    cost: Floats  # [n]
    integer: NDArray[np.bool_]  # [n]
    row_lower: Floats  # [m]
    row_upper: Floats  # [m]
    starts: Indices  # [m + 1]
    columns: Indices  # [c]
    values: Floats  # [c]

    @property
    def matrix(self) -> Any:
        """A, a `scipy.sparse.csr_array`."""
        from scipy.sparse import csr_array

        return csr_array((self.values, self.columns, self.starts), (len(self.row_upper), len(self.cost)))

    def pass_to(self, solver: highspy.Highs) -> None:
        """Give HiGHS the model, which copies it."""
        import highspy

        passed = solver.passModel(
            len(self.cost),
            len(self.row_upper),
            len(self.values),
            int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize),
            0.0,
            self.cost,
            self.lower,
            self.upper,
            self.row_lower,
            self.row_upper,
            self.starts[:-1],
            self.columns,
            self.values,
            self.integer.astype(np.int32),
        )
        assert passed != highspy.HighsStatus.kError, "HiGHS refuses the model"


@dataclass(frozen=True)
class Outcome:
    """In the model's own units.

    Attributes:
        engine: its name and version.
        bound: no answer costs less; None where the engine gives none.
        values: [columns]; None without a solution.
        notes: the size of the model, why Gurobi was not used.
    """

    engine: str
    status: Status
    bound: float | None = None
    values: Floats | None = None
    notes: dict[str, Any] = field(default_factory=dict)
