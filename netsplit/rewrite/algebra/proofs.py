"""Rules proven by z3 from properties of operators, in first-order logic, for all sizes and degrees.

An operator is an uninterpreted function of its inputs and its degree; a property says that two terms are
equal, whatever their inputs, wherever both can be computed. `evaluation.cases` checks each property itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from itertools import permutations
from operator import mul
from typing import Any

from netsplit.lazy import of_extra
from netsplit.rewrite.algebra.evaluation import PARALLEL
from netsplit.rewrite.algebra.rule import Ref, Rule, Term

__all__ = ["ASSOCIATIVE", "PROPERTIES", "follows", "is_proven", "properties", "property_counts", "rule_of"]

LIMIT = 3_000_000
"""Of z3's own count of its work, which is the same on every machine."""

PROPERTIES = """
add(x, y) = add(y, x)
mul(x, y) = mul(y, x)
add(add(x, y), z) = add(x, add(y, z))
mul(mul(x, y), z) = mul(x, mul(y, z))
mul(add(x, y), z) = add(mul(x, z), mul(y, z))
scale(add(x, y)) = add(scale(x), scale(y))
scale(mul(x, y)) = mul(scale(x), y)
transpose(transpose(x)) = x
transpose(add(x, y)) = add(transpose(x), transpose(y))
transpose(mul(x, y)) = mul(transpose(x), transpose(y))
transpose(scale(x)) = scale(transpose(x))
transpose(unary(x)) = unary(transpose(x))
transpose(concat(x, y, dim=d)) = concat(transpose(x), transpose(y), dim=e)
transpose(split(x, dim=d, part=p)) = split(transpose(x), dim=e, part=p)
matmul(x, y) = linear(x, transpose(y))
transpose(linear(x, y)) = linear(y, x)
linear(linear(x, y), z) = linear(x, linear(z, transpose(y)))
linear(add(x, y), z) = add(linear(x, z), linear(y, z))
linear(scale(x), y) = scale(linear(x, y))
linear(concat(x, y, dim=0), z) = concat(linear(x, z), linear(y, z), dim=0)
linear(concat(x, y, dim=1), concat(z, w, dim=1)) = add(linear(x, z), linear(y, w))
linear(x, y) = add(linear(split(x, dim=1, part=0), split(y, dim=1, part=0)), linear(split(x, dim=1, part=1), split(y, dim=1, part=1)))
linear(x, concat(y, z, dim=0)) = concat(linear(x, y), linear(x, z), dim=1)
linear(split(x, dim=0, part=p), y) = split(linear(x, y), dim=0, part=p)
linear(x, split(y, dim=0, part=p)) = split(linear(x, y), dim=1, part=p)
linear(x, scale(y)) = scale(linear(x, y))
linear(x, add(y, z)) = add(linear(x, y), linear(x, z))
concat(concat(x, y, dim=d), z, dim=d) = concat(x, concat(y, z, dim=d), dim=d)
split(concat(x, y, dim=d), dim=d, part=0) = x
split(concat(x, y, dim=d), dim=d, part=1) = y
concat(split(x, dim=d, part=0), split(x, dim=d, part=1), dim=d) = x
concat(add(x, y), add(z, w), dim=d) = add(concat(x, z, dim=d), concat(y, w, dim=d))
concat(mul(x, y), mul(z, w), dim=d) = mul(concat(x, z, dim=d), concat(y, w, dim=d))
concat(scale(x), scale(y), dim=d) = scale(concat(x, y, dim=d))
concat(unary(x), unary(y), dim=d) = unary(concat(x, y, dim=d))
concat(concat(x, y, dim=d), concat(z, w, dim=d), dim=e) = concat(concat(x, z, dim=e), concat(y, w, dim=e), dim=d)
split(unary(x), dim=d, part=p) = unary(split(x, dim=d, part=p))
split(scale(x), dim=d, part=p) = scale(split(x, dim=d, part=p))
split(add(x, y), dim=d, part=p) = add(split(x, dim=d, part=p), split(y, dim=d, part=p))
split(mul(x, y), dim=d, part=p) = mul(split(x, dim=d, part=p), split(y, dim=d, part=p))
split(concat(x, y, dim=d), dim=e, part=p) = concat(split(x, dim=e, part=p), split(y, dim=e, part=p), dim=d)
split(split(x, dim=d, part=p), dim=e, part=q) = split(split(x, dim=e, part=q), dim=d, part=p)
combine(partition(x, dim=d, degree=k), dim=d, degree=k) = x
partition(partition(x, dim=d, degree=k), dim=d, degree=j) = partition(x, dim=d, degree=k*j)
combine(combine(x, dim=d, degree=k), dim=d, degree=j) = combine(x, dim=d, degree=k*j)
replicate(replicate(x, dim=d, degree=k), dim=d, degree=j) = replicate(x, dim=d, degree=k*j)
partition(partition(x, dim=d, degree=k), dim=e, degree=j) = partition(partition(x, dim=e, degree=j), dim=d, degree=k)
combine(partition(x, dim=d, degree=k), dim=e, degree=j) = partition(combine(x, dim=e, degree=j), dim=d, degree=k)
replicate(partition(x, dim=d, degree=k), dim=e, degree=j) = partition(replicate(x, dim=e, degree=j), dim=d, degree=k)
reduce(partition(x, dim=d, degree=k), dim=e, degree=j) = partition(reduce(x, dim=e, degree=j), dim=d, degree=k)
combine(combine(x, dim=d, degree=k), dim=e, degree=j) = combine(combine(x, dim=e, degree=j), dim=d, degree=k)
replicate(combine(x, dim=d, degree=k), dim=e, degree=j) = combine(replicate(x, dim=e, degree=j), dim=d, degree=k)
reduce(combine(x, dim=d, degree=k), dim=e, degree=j) = combine(reduce(x, dim=e, degree=j), dim=d, degree=k)
replicate(replicate(x, dim=d, degree=k), dim=e, degree=j) = replicate(replicate(x, dim=e, degree=j), dim=d, degree=k)
reduce(replicate(x, dim=d, degree=k), dim=e, degree=j) = replicate(reduce(x, dim=e, degree=j), dim=d, degree=k)
reduce(reduce(x, dim=d, degree=k), dim=e, degree=j) = reduce(reduce(x, dim=e, degree=j), dim=d, degree=k)
replicate(partition(x, dim=d, degree=k), dim=d, degree=j) = partition(replicate(x, dim=d, degree=j), dim=d, degree=k)
replicate(combine(x, dim=d, degree=k), dim=d, degree=j) = combine(replicate(x, dim=d, degree=j), dim=d, degree=k)
reduce(replicate(replicate(x, dim=d, degree=k), dim=e, degree=j), dim=d, degree=k) = reduce(replicate(replicate(x, dim=e, degree=k), dim=e, degree=j), dim=e, degree=k)
reduce(replicate(x, dim=d, degree=k), dim=d, degree=k) = reduce(replicate(x, dim=e, degree=k), dim=e, degree=k)
mul(reduce(replicate(x, dim=d, degree=k), dim=d, degree=k), y) = reduce(replicate(mul(x, y), dim=d, degree=k), dim=d, degree=k)
linear(reduce(replicate(x, dim=d, degree=k), dim=d, degree=k), y) = reduce(replicate(linear(x, y), dim=d, degree=k), dim=d, degree=k)
linear(x, reduce(replicate(y, dim=d, degree=k), dim=d, degree=k)) = reduce(replicate(linear(x, y), dim=d, degree=k), dim=d, degree=k)
reduce(concat(x, y, dim=d), dim=d, degree=2) = add(x, y)
concat(x, x, dim=d) = replicate(x, dim=d, degree=2)
reduce(concat(x, y, dim=d), dim=e, degree=k) = concat(reduce(x, dim=e, degree=k), reduce(y, dim=e, degree=k), dim=d)
OP(partition(x, dim=d, degree=k), partition(y, dim=d, degree=k)) = partition(OP(x, y), dim=d, degree=k)
OP(combine(x, dim=d, degree=k), combine(y, dim=d, degree=k)) = combine(OP(x, y), dim=d, degree=k)
OP(replicate(x, dim=d, degree=k), replicate(y, dim=d, degree=k)) = replicate(OP(x, y), dim=d, degree=k)
ONE(PAR(x, dim=d, degree=k)) = PAR(ONE(x), dim=d, degree=k)
scale(reduce(x, dim=d, degree=k)) = reduce(scale(x), dim=d, degree=k)
add(reduce(x, dim=d, degree=k), reduce(y, dim=d, degree=k)) = reduce(add(x, y), dim=d, degree=k)
concat(PAR(x, dim=d, degree=k), PAR(y, dim=d, degree=k), dim=e) = PAR(concat(x, y, dim=e), dim=d, degree=k)
concat(partition(x, dim=d, degree=k), partition(y, dim=d, degree=k), dim=d) = partition(concat(x, y, dim=d), dim=d, degree=k)
concat(combine(x, dim=d, degree=k), combine(y, dim=d, degree=k), dim=d) = combine(concat(x, y, dim=d), dim=d, degree=k)
linear(PAR(x, dim=0, degree=k), y) = PAR(linear(x, y), dim=0, degree=k)
linear(reduce(x, dim=0, degree=k), y) = reduce(linear(x, y), dim=0, degree=k)
linear(x, PAR(y, dim=0, degree=k)) = PAR(linear(x, y), dim=1, degree=k)
linear(x, reduce(y, dim=0, degree=k)) = reduce(linear(x, y), dim=1, degree=k)
linear(partition(x, dim=1, degree=k), partition(y, dim=1, degree=k)) = linear(x, y)
linear(combine(x, dim=1, degree=k), combine(y, dim=1, degree=k)) = linear(x, y)
linear(replicate(x, dim=1, degree=k), y) = linear(x, reduce(y, dim=1, degree=k))
linear(replicate(x, dim=-1, degree=k), y) = linear(x, y)
linear(partition(x, dim=-1, degree=k), y) = linear(x, y)
linear(combine(x, dim=-1, degree=k), y) = linear(x, y)
linear(x, replicate(y, dim=-1, degree=k)) = linear(x, y)
linear(x, partition(y, dim=-1, degree=k)) = linear(x, y)
linear(x, combine(y, dim=-1, degree=k)) = linear(x, y)
reduce(transpose(x), dim=d, degree=k) = transpose(reduce(x, dim=e, degree=k))
PAR(transpose(x), dim=d, degree=k) = transpose(PAR(x, dim=e, degree=k))
"""  # noqa: E501 -- one line is one property
"""`d` and `e` are two different dimensions, `p` and `q` a part of a split; OP is add or mul, ONE unary or
scale, PAR partition, combine or replicate. One line is one property."""
ASSOCIATIVE = "concat(concat(x, y, dim=d), z, dim=d) = concat(x, concat(y, z, dim=d), dim=d)"


@cache
def properties() -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    """Each property, and what it says of each dimension, part and operator."""
    return tuple((line, tuple(map(rule_of, _written_out(line)))) for line in PROPERTIES.strip().splitlines())


def _written_out(line: str) -> Iterator[str]:
    texts = [line]
    for word, values in (
        ("OP", ("add", "mul")), ("ONE", ("unary", "scale")), ("PAR", PARALLEL[:3]),
        ("=p)", ("=0)", "=1)")), ("=q)", ("=0)", "=1)")),
    ):  # fmt: skip
        texts = [text.replace(word, value) for text in texts for value in (values if word in text else ("",))]
    dims = (0, 1) if "split" in line or "transpose" in line else (-1, 0, 1)
    for text in texts:
        written = (
            text.replace("dim=d", f"dim={d}").replace("dim=e", f"dim={e}") for d, e in permutations(dims, 2)
        )
        yield from dict.fromkeys(written)


def property_counts() -> dict[str, int]:
    """How many properties have parallel operators, and how many none."""
    parallel = sum(any(op in line for op in (*PARALLEL, "PAR")) for line, _ in properties())
    return {"without parallel operators": len(properties()) - parallel, "with": parallel}


def rule_of(text: str) -> Rule:
    """A rule as it is written above: ``linear(x, y) = ...``."""
    left, right = (ast.parse(side.strip(), mode="eval").body for side in text.split(" = "))
    sides: tuple[list[Term], list[Term]] = ([], [])
    a, b = _terms(left, sides[0]), _terms(right, sides[1])
    return Rule(text, tuple(sides[0]), tuple(sides[1]), ((a, b),))


def _terms(node: ast.expr, terms: list[Term]) -> Ref:
    if isinstance(node, ast.Name):
        return node.id
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    op = node.func.id
    inputs = tuple(_terms(each, terms) for each in node.args)
    given: dict[str, Any] = {
        str(each.arg): ast.unparse(each.value).replace(" ", "") for each in node.keywords
    }
    parameters = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in given.items()}
    part = int(parameters.pop("part", 0))
    if op in ("unary", "scale"):
        parameters["function"] = "f"
    if op == "transpose":
        parameters |= {"first": 0, "second": 1}
    term = Term(op, inputs, tuple(parameters.items()))  # type: ignore[arg-type]
    if term not in terms:
        terms.append(term)
    return (terms.index(term), part)


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


def _sort(z3: Any) -> Any:
    return z3.DeclareSort("Tensor")


def _functions(z3: Any) -> Any:
    return z3.DeclareSort("Function")


def _variables(z3: Any, term: Any) -> set[Any]:
    if term.num_args() == 0:
        return set() if z3.is_int_value(term) else {term}
    return set().union(*(_variables(z3, child) for child in term.children()))


def _equations(z3: Any, rule: Rule) -> list[tuple[Any, Any]]:
    names = {*rule.inputs, *(ref for pair in rule.outputs for ref in pair if isinstance(ref, str))}
    left, right = (_side(z3, terms, names) for terms in (rule.left, rule.right))
    return [(left[a], right[b]) for a, b in rule.outputs]


def _side(z3: Any, terms: tuple[Term, ...], inputs: set[str]) -> Mapping[Ref, Any]:
    tensor, integers = _sort(z3), z3.IntSort()
    values: dict[Ref, Any] = {name: z3.Const(name, tensor) for name in inputs}
    for i, term in enumerate(terms):
        given = dict(term.parameters)
        if term.op == "concat":
            put = z3.Function(f"concat {given['dim']}", tensor, tensor, tensor)
            values[i, 0] = reduce(put, (values[ref] for ref in term.inputs))
            continue
        own, sorts = [], []
        if "function" in given:
            own, sorts = [z3.Const(str(given["function"]), _functions(z3))], [_functions(z3)]
        if "degree" in given:
            factors = [int(n) if n.isdigit() else z3.Int(n) for n in str(given["degree"]).split("*")]
            own, sorts = (
                [z3.IntVal(factors[0]) if isinstance(factors[0], int) else reduce(mul, factors)],
                [integers],
            )
        many = [tensor] * len(term.inputs)
        for j in range(2 if term.op == "split" else 1):
            name = f"{term.op} {given.get('dim', '')} {j}"
            values[i, j] = z3.Function(name, *sorts, *many, tensor)(
                *own, *(values[ref] for ref in term.inputs)
            )
    return values
