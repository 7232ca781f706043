"""Rules proven by z3 from properties of operators, in first-order logic, for all sizes and degrees.

An operator is an uninterpreted function of its inputs and its degree; a property says that two terms are
equal, whatever their inputs, wherever both can be computed. `evaluation.cases` checks each property itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, reduce
from itertools import permutations
from operator import mul
from pathlib import Path
from typing import Any

from netsplit.lazy import of_extra
from netsplit.rewrite.algebra.evaluation import PARALLEL
from netsplit.rewrite.algebra.rule import Ref, Rule, Term, rule_of

__all__ = ["ASSOCIATIVE", "follows", "is_proven", "properties"]

LIMIT = 3_000_000
"""Of z3's own count of its work, which is the same on every machine."""

ASSOCIATIVE = "concat(concat(x, y, dim=d), z, dim=d) = concat(x, concat(y, z, dim=d), dim=d)"


@cache
def properties() -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    """Each property, and what it says of each dimension, part and operator."""
    text = Path(__file__).with_name("properties.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return tuple((line, tuple(map(rule_of, _written_out(line)))) for line in lines)


def _written_out(line: str) -> Iterator[str]:
    texts = [line]
    for word, values in (
        ("OP", ("add", "mul")), ("ONE", ("unary", "scale")), ("PAR", PARALLEL[:3]),
        ("[p]", ("[0]", "[1]")), ("[q]", ("[0]", "[1]")),
    ):  # fmt: skip
        texts = [text.replace(word, value) for text in texts for value in (values if word in text else ("",))]
    dims = (0, 1) if "split" in line or "transpose" in line else (-1, 0, 1)
    for text in texts:
        written = (
            text.replace("dim=d", f"dim={d}").replace("dim=e", f"dim={e}") for d, e in permutations(dims, 2)
        )
        yield from dict.fromkeys(written)


def is_proven(rule: Rule) -> bool:
    """Whether z3 proves it from the properties within its limit.

    Raises:
        NetSplitError: z3 is not installed.
    """
    return follows(rule, tuple(own for _, rules in properties() for own in rules))


def follows(rule: Rule, others: tuple[Rule, ...]) -> bool:
    """Whether z3 proves it from these within its limit.

    Raises:
        NetSplitError: z3 is not installed.
    """
    z3, solver = _solver(others, _splits(rule))
    solver.push()
    try:
        solver.add(z3.Or(*(a != b for a, b in _equations(z3, rule))))
        return bool(solver.check() == z3.unsat)
    finally:
        solver.pop()


def _splits(rule: Rule) -> bool:
    return any(term.op == "split" for term in (*rule.left, *rule.right))


@cache
def _solver(rules: tuple[Rule, ...], splits: bool) -> tuple[Any, Any]:
    """Where there are splits, which are where a concat met, a concat of three is two different ones."""
    z3 = of_extra("proofs", "Proving rules", "z3-solver", "z3")
    solver = z3.SimpleSolver()
    solver.set("rlimit", LIMIT, "mbqi", False)
    for rule in rules:
        joins_alone = all(term.op == "concat" for term in (*rule.left, *rule.right))
        if joins_alone if splits else _splits(rule):
            continue
        for a, b in _equations(z3, rule):
            both = _variables(z3, a) | _variables(z3, b)
            for pattern in (a, b):
                if pattern.num_args() and both <= _variables(z3, pattern):
                    solver.add(z3.ForAll(sorted(both, key=str), a == b, patterns=[pattern]))
    return z3, solver


def _variables(z3: Any, term: Any) -> set[Any]:
    if term.num_args() == 0:
        return set() if z3.is_int_value(term) else {term}
    return set().union(*(_variables(z3, child) for child in term.children()))


def _equations(z3: Any, rule: Rule) -> list[tuple[Any, Any]]:
    names = {*rule.inputs, *(ref for pair in rule.outputs for ref in pair if isinstance(ref, str))}
    left, right = (_side(z3, terms, names) for terms in (rule.left, rule.right))
    return [(left[a], right[b]) for a, b in rule.outputs]


def _side(z3: Any, terms: tuple[Term, ...], inputs: set[str]) -> Mapping[Ref, Any]:
    tensor, functions = z3.DeclareSort("Tensor"), z3.DeclareSort("Function")
    values: dict[Ref, Any] = {name: z3.Const(name, tensor) for name in inputs}
    for i, term in enumerate(terms):
        given, own = dict(term.parameters), [values[ref] for ref in term.inputs]
        if term.op == "concat":
            values[i, 0] = reduce(z3.Function(f"concat {given['dim']}", tensor, tensor, tensor), own)
            continue
        if "function" in given:
            own.insert(0, z3.Const(str(given["function"]), functions))
        if "degree" in given:
            factors = str(given["degree"]).split("*")
            own.insert(0, reduce(mul, (z3.IntVal(n) if n.isdigit() else z3.Int(n) for n in factors)))
        for j in range(2 if term.op == "split" else 1):
            name = f"{term.op} {given.get('dim', '')} {j}"
            values[i, j] = z3.Function(name, *(each.sort() for each in own), tensor)(*own)
    return values
