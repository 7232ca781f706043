"""Rules proven by z3 from properties of operators, in first-order logic, for all sizes and degrees.

An operator is an uninterpreted function of its inputs and its degree; a property says that two terms are
equal, whatever their inputs, wherever both can be computed. `evaluation.cases` checks each property itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from itertools import permutations, product
from pathlib import Path
from typing import Any

from netsplit.lazy import of_extra
from netsplit.rewrite.algebra.rule import PARALLEL, Ref, Rule, rule_of

__all__ = ["follows", "is_proven", "properties"]

_FILE = Path(__file__).with_name("properties.txt")
WORK, INSTANCES, DEPTH = 3_000_000, 100_000, 5.0
"""Limits of z3: its own count of its work, instances of properties, and of what they make; no clock."""


@cache
def properties(path: Path = _FILE) -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    """Each property of a file, and what it says of each dimension, part and operator."""
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return tuple((line, tuple(map(rule_of, _written_out(line)))) for line in lines)


def _written_out(line: str) -> Iterator[str]:
    texts = list(dict.fromkeys([re.sub("{.*?}", "", line), re.sub("[{}]", "", line)]))
    for word, values in (
        ("OP", ("add", "mul")), ("ONE", ("unary", "scale")), ("PAR", PARALLEL[:3]),
        ("[p]", ("[0]", "[1]")), ("[q]", ("[0]", "[1]")),
    ):  # fmt: skip
        texts = [text.replace(word, value) for text in texts for value in (values if word in text else ("",))]
    dims = (0, 1) if "split" in line or "transpose" in line else (-1, 0, 1)
    for text in texts:
        pairs = permutations(dims, 2)
        yield from {text.replace("dim=d", f"dim={d}").replace("dim=e", f"dim={e}"): None for d, e in pairs}


def is_proven(rule: Rule) -> bool:
    """Whether z3 proves it from the properties within its limit. Raises as `follows`."""
    return follows(rule, tuple(own for _, rules in properties() for own in rules))


def follows(rule: Rule, others: tuple[Rule, ...]) -> bool:
    """Whether z3 proves it from these within its limit.

    Raises:
        NetSplitError: z3 is not installed.
    """
    z3 = of_extra("proofs", "Proving rules", "z3-solver", "z3")
    axioms = _axioms(others, rule.splits, rule.is_parallel)
    for left, right in _equations(z3, rule):
        solver = z3.SimpleSolver()  # a new one, so that no answer depends on what was asked before
        solver.set("rlimit", WORK, "qi.max_instances", INSTANCES, "mbqi", False)
        solver.set("qi.eager_threshold", DEPTH, "qi.lazy_threshold", DEPTH)
        solver.add(*axioms, left != right)
        if solver.check() != z3.unsat:
            return False
    return True


@cache
def _axioms(rules: tuple[Rule, ...], splits: bool, parallel: bool) -> list[Any]:
    """The axioms that the rules about such operators need.

    Where there are splits, which are where a concat met, a concat of three is two different ones.
    """
    z3 = of_extra("proofs", "Proving rules", "z3-solver", "z3")
    sort = z3.DeclareSort("Number")
    times, (j, k) = z3.Function("times", sort, sort, sort), z3.Consts("j k", sort)
    axioms = [z3.ForAll([j, k], times(j, k) == times(k, j))]
    for a, b in product((2, 3, 4), repeat=2):
        axioms.append(times(z3.Const(str(a), sort), z3.Const(str(b), sort)) == z3.Const(str(a * b), sort))
    for rule in rules:
        joins_alone = all(term.op == "concat" for term in rule.terms)
        if (joins_alone if splits else rule.splits) or (rule.is_parallel and not parallel):
            continue
        for a, b in _equations(z3, rule):
            both = _variables(z3, a) | _variables(z3, b)
            for pattern in (a, b):
                if pattern.num_args() and both <= _variables(z3, pattern):
                    axioms.append(z3.ForAll(sorted(both, key=str), a == b, patterns=[pattern]))
    return axioms


def _variables(z3: Any, term: Any) -> set[Any]:
    if term.num_args() == 0:
        return set() if str(term).isdigit() else {term}
    return set().union(*(_variables(z3, child) for child in term.children()))


def _equations(z3: Any, rule: Rule) -> list[tuple[Any, Any]]:
    left, right = (_side(z3, rule, is_right) for is_right in (False, True))
    return [(left[a], right[b]) for a, b in rule.outputs]


def _side(z3: Any, rule: Rule, right: bool) -> Mapping[Ref, Any]:
    """A `cat` of three is one of the first and one of the others; so is what is split in three."""
    tensor = z3.DeclareSort("Tensor")
    values: dict[Ref, Any] = {name: z3.Const(name, tensor) for name in rule.inputs}
    for i, term in enumerate(rule.right if right else rule.left):
        given, own = dict(term.parameters), [values[ref] for ref in term.inputs]
        name = f"{term.op} {int(given['dim']) + (not rule.exact) if 'dim' in given else ''}"
        if term.op == "concat":
            join = z3.Function(name, tensor, tensor, tensor)
            values[i, 0] = own.pop()
            while own:
                values[i, 0] = join(own.pop(), values[i, 0])
            continue
        if term.op == "split":
            first, others = (z3.Function(f"{name} {part}", tensor, tensor) for part in (0, 1))
            rest, last = own[0], rule.arity(right, i) - 1
            for j in range(last):
                values[i, j], rest = first(rest), others(rest)
            values[i, last] = rest
            continue
        for key in sorted(given.keys() - {"dim", "first", "second"}, reverse=True):
            sort = z3.DeclareSort("Function" if key == "function" else "Number")
            factors = [z3.Const(each, sort) for each in str(given[key]).split("*")]
            own.insert(0, reduce(z3.Function("times", sort, sort, sort), factors))
        values[i, 0] = z3.Function(name, *(each.sort() for each in own), tensor)(*own)
    return values
