"""Rules of FlexFlow's collections, read from JSON, tried at small sizes and degrees, and proven.

    rule[]: name, srcOp[], dstOp[]: (type, input[]: (opId, tsId), para[]: (key, value)), mappedOutput[]

An opId below 0 is an input. Dimensions 0, 1 and 2 are copies, rows and columns; degree 2 stands for any.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.evaluation import Case, cases
from netsplit.rewrite.algebra.proofs import is_proven
from netsplit.rewrite.algebra.rule import PARALLEL, Guard, Ref, Rule, Term

__all__ = ["applicable", "judged", "read_rules"]

OPERATORS = {
    "OP_LINEAR": "linear", "OP_EW_ADD": "add", "OP_EW_MUL": "mul", "OP_CONCAT": "concat", "OP_SPLIT": "split",
    "OP_PARTITION": "partition", "OP_REPARTITION": "partition", "OP_COMBINE": "combine",
    "OP_REPLICATE": "replicate", "OP_REDUCE": "reduce", "OP_REDUCTION": "reduce",
}  # fmt: skip
FUNCTIONS = (
    "OP_RELU",
    "OP_SIGMOID",
    "OP_TANH",
    "OP_GELU",
    "OP_ELU",
    "OP_EXP",
    "OP_SIN",
    "OP_COS",
    "OP_RSQRT",
)
ACTIVATIONS = {0: "", 1: "sigmoid", 2: "relu", 3: "tanh"}


def read_rules(path: str | Path) -> list[Rule]:
    """The rules of a file in its order, each with what came of proving it.

    Raises:
        RewriteError: it cannot be read, or is no collection of rules.
        NetSplitError: z3 is not installed.
    """
    try:
        texts = json.loads(Path(path).read_text(encoding="utf-8"))["rule"]
        return [judged(text) for text in texts]
    except OSError as error:
        raise RewriteError(f"{path} cannot be read ({error.strerror}): give a JSON file of rules.") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RewriteError(
            f"{path} is no collection of rules: {brief(error)}. Give a JSON file with rule[], each of name, "
            "srcOp[], dstOp[] and mappedOutput[]."
        ) from error


def applicable(rules: Sequence[Rule]) -> list[Rule]:
    """Those that a graph of one device may be rewritten by: proven or guarded, and about no layouts."""
    return [
        rule
        for rule in rules
        if rule.proof in ("proven", "guarded") and not rule.is_parallel
        if all(term.of("dim") != -1 for term in rule.terms)
    ]


def judged(text: Mapping[str, Any]) -> Rule:
    """One rule of a file. Raises KeyError, TypeError, IndexError or ValueError: it is none."""
    name, sides, pairs = text["name"], (text["srcOp"], text["dstOp"]), text["mappedOutput"]
    unread = [_unread(each) for side in sides for each in side]
    if any(unread):
        return Rule(name, (), (), (), (), "file", "rejected", "; ".join(dict.fromkeys(filter(None, unread))))
    (left, given), (right, made) = map(_side, sides)
    outputs = [
        ((given[each["srcOpId"]], each["srcTsId"]), (made[each["dstOpId"]], each["dstTsId"]))
        for each in pairs
    ]
    rule = Rule(name, left, right, tuple(outputs), origin="file")
    if rule.unbound:
        unbound = ", ".join(rule.unbound)
        return _rejected(rule, f"its right side reads {unbound}, which its left side does not bind")
    tried = _tried(rule)
    if tried.proof == "rejected" and rule.is_parallel:
        two = [tuple(replace(t, parameters=_of_degree_two(t)) for t in side) for side in (left, right)]
        own = _tried(replace(rule, left=two[0], right=two[1]))
        if own.proof != "rejected":
            return replace(own, reason="; ".join(filter(None, (own.reason, "of degree 2 alone"))))
    return tried


def _of_degree_two(term: Term) -> tuple[tuple[str, int | str], ...]:
    return tuple((k, 2 if v == "k" else v) for k, v in term.parameters)


def _unread(operator: Mapping[str, Any]) -> str | None:
    """Why nobody can say what an operator computes."""
    kind, given = operator["type"], _numbers(operator)
    if kind not in OPERATORS and kind not in FUNCTIONS:
        return f"unknown operator {kind}"
    if given.get("PM_ACTI", 0) not in ACTIVATIONS:
        return f"unknown activation {given['PM_ACTI']}"
    if kind == "OP_SPLIT" and given.get("PM_NUM_OUTPUTS", 2) != 2:
        return f"a split in {given['PM_NUM_OUTPUTS']}"
    axis = given.get("PM_PARALLEL_DIM", given.get("PM_AXIS", 0) + 3 - given.get("PM_NUMDIM", 3))
    return None if 0 <= axis < 3 else f"{kind} along a fourth dimension"


def _numbers(operator: Mapping[str, Any]) -> dict[str, int]:
    return {para["key"]: para["value"] for para in operator["para"]}


def _side(operators: Sequence[Mapping[str, Any]]) -> tuple[tuple[Term, ...], list[int]]:
    """Terms, and the number of the term that makes each operator's output: an activation is its own."""
    terms: list[Term] = []
    made: list[int] = []
    for each in operators:
        given, op = _numbers(each), OPERATORS.get(each["type"], "unary")
        inputs: tuple[Ref, ...] = tuple(
            f"x{-t['opId']}" if t["opId"] < 0 else (made[t["opId"]], t["tsId"]) for t in each["input"]
        )
        parameters: dict[str, int | str] = {}
        if op in PARALLEL:
            degree = given["PM_PARALLEL_DEGREE"]
            parameters = {"dim": given["PM_PARALLEL_DIM"] - 1, "degree": "k" if degree == 2 else degree}
        elif op in ("concat", "split"):
            parameters = {"dim": given["PM_AXIS"] + 2 - given.get("PM_NUMDIM", 3)}
        elif op == "unary":
            parameters = {"function": each["type"][3:].lower()}
        terms.append(Term(op, inputs, tuple(parameters.items())))  # type: ignore[arg-type]
        if function := ACTIVATIONS[given.get("PM_ACTI", 0)]:
            terms.append(Term("unary", ((len(terms) - 1, 0),), (("function", function),)))
        made.append(len(terms) - 1)
    return tuple(terms), made


def _rejected(rule: Rule, reason: str) -> Rule:
    return replace(rule, proof="rejected", reason=reason)


def _tried(rule: Rule) -> Rule:
    there = _cases(rule)
    both = [case for case in there if case.right]
    wrong = [case for case in both if not case.agrees]
    everywhere = len(both) - len(wrong) == len(there)
    if not both:
        return _rejected(rule, "there are no sizes and degrees at which both sides exist")
    guards = () if everywhere or len(wrong) == len(both) else _guards(rule, there)
    if wrong and not guards:
        tensors = (f"{name} {t.array.shape} in {t.degrees} pieces" for name, t in wrong[0].inputs.items())
        numbers = (f"{name} = {number}" for name, number in wrong[0].numbers.items())
        return _rejected(rule, f"both sides differ, as at {'; '.join((*tensors, *numbers))}")
    if not is_proven(rule):
        where = "where its guards hold" if wrong else "at all sizes that were tried"
        return _rejected(rule, f"both sides agree {where}, but z3 does not prove it")
    own = [Counter(t.op for t in side if t.op not in PARALLEL) for side in (rule.left, rule.right)]
    if not own[0] and not own[1]:
        return replace(rule, proof="identity of layouts", guards=guards)
    if own[0] == own[1] and own[0].total() == 1:
        return replace(rule, proof="way", guards=guards)
    if everywhere:
        return replace(rule, proof="proven")
    where = "" if guards else ", which sizes alone do not tell"
    return replace(rule, proof="guarded", guards=guards, reason=f"where both sides exist and agree{where}")


def _cases(rule: Rule) -> list[Case]:
    """At degrees 2 and 3, and sizes that they divide; of larger ones where none of the smaller fits."""
    if not rule.is_parallel:
        return list(cases(rule, (1, 2, 3, 4) if len(rule.inputs) < 4 else (1, 2, 3)))
    there: list[Case] = []
    for k in (2, 3):
        for sizes, degrees in (((1, k, k + 1), (1, k)), ((1, k, k * k), (1, k, k * k))):
            own = list(cases(rule, sizes, degrees, (k,)))
            there += own
            if len(rule.inputs) > 1 and (k == 3 or any(case.right for case in own)):
                break
    return there


def _guards(rule: Rule, there: Sequence[Case]) -> tuple[Guard, ...]:
    """What holds where both sides agree and, together, nowhere else; none where nothing tells."""

    def holds(guard: Guard, case: Case) -> bool:
        return guard.holds(lambda name, d: case.inputs[name].array.shape[d + 1], case.numbers)

    dims: list[tuple[Ref, int]] = [(name, d) for name in rule.inputs for d in (0, 1, -1)]
    degrees: list[int | str] = ["k", 2] if any(t.of("degree") == "k" for t in rule.terms) else [2]
    conditions = [Guard("equal", a, b) for a, b in combinations(dims, 2)]
    conditions += [Guard("divides", a, k) for a, k in product(dims, degrees)]
    conditions += [Guard("equal", a, 1) for a in dims]
    right = [case for case in there if case.agrees]
    rest = [case for case in there if not case.agrees]
    usable = [guard for guard in conditions if all(holds(guard, case) for case in right)]
    chosen: list[Guard] = []
    while rest and usable:
        best = max(usable, key=lambda guard: sum(not holds(guard, case) for case in rest))
        left = [case for case in rest if holds(best, case)]
        if len(left) == len(rest):
            return ()
        chosen, rest = [*chosen, best], left
    return () if rest else tuple(chosen)
