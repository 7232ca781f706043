"""Rules of FlexFlow's collections, read from JSON, computed at small sizes and proven by z3.

    rule[]: name, srcOp[], dstOp[]: (type, input[]: (opId, tsId), para[]: (key, value)), mappedOutput[]

An opId below 0 is an input. Parallel operators are tried as written, then left out: layouts say the same.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.proofs import is_proven
from netsplit.rewrite.algebra.rule import PARALLEL, Ref, Rule, Term, rule_of
from netsplit.rewrite.algebra.trials import FUNCTIONS, Trial, trials

__all__ = ["read_rules"]

log = logging.getLogger(__name__)

OPERATORS = {
    "OP_LINEAR": "linear", "OP_EW_ADD": "add", "OP_EW_MUL": "mul", "OP_CONCAT": "concat", "OP_SPLIT": "split",
    "OP_PARTITION": "partition", "OP_REPARTITION": "partition", "OP_COMBINE": "combine",
    "OP_REPLICATE": "replicate", "OP_REDUCE": "reduce", "OP_REDUCTION": "reduce",
    **{f"OP_{name.upper()}": "unary" for name in FUNCTIONS},
}  # fmt: skip
ALONG = dict.fromkeys(("concat", "split"), "PM_AXIS") | dict.fromkeys(PARALLEL, "PM_PARALLEL_DIM")
MOST = 4096  # sizes at which a rule is tried
ACTIVATIONS = {0: "", 1: "sigmoid", 2: "relu", 3: "tanh"}


def read_rules(path: str | Path) -> list[Rule]:
    """The rules of a file in its order, each with what came of it; those that are no rules are rejected.

    Raises:
        RewriteError: it cannot be read, or is no collection of rules.
        NetSplitError: z3 is not installed.
    """
    try:
        texts = list(json.loads(Path(path).read_text(encoding="utf-8"))["rule"])
    except OSError as error:
        raise RewriteError(f"{path} cannot be read ({error.strerror}): give a JSON file of rules.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RewriteError(
            f"{path} is no collection of rules: {brief(error)}. Give a JSON file with rule[], each of name, "
            "srcOp[], dstOp[] and mappedOutput[]."
        ) from error
    rules = [_read(i, text) for i, text in enumerate(texts)]
    log.info("%s: %s", path, ", ".join(f"{n} {end}" for end, n in Counter(r.proof for r in rules).items()))
    return rules


def _read(i: int, text: Any) -> Rule:
    name = f"rule {i}"
    try:
        name = str(text.get("name", name))
        sides, pairs = (text["srcOp"], text["dstOp"]), text["mappedOutput"]
        wrong = [reason for side in sides for reason in _malformed(side)] + ["no outputs"] * (not pairs)
        for side, which in zip(sides, ("src", "dst"), strict=True):
            refs = [(each[f"{which}OpId"], each[f"{which}TsId"]) for each in pairs]
            wrong += [f"{which}Op has no output {ref}" for ref in refs if not _makes(side, *ref)]
        if wrong:
            return Rule(name, (), (), (), "file", "rejected", "; ".join(dict.fromkeys(wrong)))
        (left, left_term), (right, right_term) = map(_side, sides)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else f"no rule: {brief(text)}"
        return Rule(name, (), (), (), "file", "rejected", reason)
    outputs = (
        ((left_term[each["srcOpId"]], each["srcTsId"]), (right_term[each["dstOpId"]], each["dstTsId"]))
        for each in pairs
    )
    kinds = [sum(OPERATORS[each["type"]] not in PARALLEL for each in side) for side in sides]
    return _judged(Rule(name, left, right, tuple(outputs), "file"), kinds == [1, 1])


def _malformed(side: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why operators of a side are none of the rules'."""
    for i, each in enumerate(side):
        kind, given, count = each["type"], _numbers(each), len(each["input"])
        op = OPERATORS.get(kind)
        if op is None:
            yield f"{kind} is no operator of the rules here"
            continue
        needed = 2 if op in ("linear", "add", "mul", "concat") else 1
        if count < needed or (count > needed and op != "concat"):
            yield f"{kind} reads {count} tensors, not {needed}"
        for opid, part in ((own["opId"], own["tsId"]) for own in each["input"]):
            if opid >= 0 and not _makes(side[:i], opid, part):
                yield f"{kind} reads output {(opid, part)}, which no operator before it has"
        if given.get("PM_ACTI", 0) not in ACTIVATIONS:
            yield f"unknown activation {given['PM_ACTI']}"
        if op == "split" and given.get("PM_NUM_OUTPUTS", 2) != 2:
            yield f"a split in {given['PM_NUM_OUTPUTS']}"
        if given.get("PM_PARALLEL_DEGREE", 2) != 2:
            yield f"a degree of {given['PM_PARALLEL_DEGREE']}, where 2 stands for any"
        if op in ALONG and ALONG[op] not in given:
            yield f"{kind} has no {ALONG[op]}"
        elif op in ALONG and _dim(given) not in (-1, 0, 1):
            yield f"{kind} along another dimension than copies, rows and columns"


def _makes(side: Sequence[Mapping[str, Any]], opid: int, part: int) -> bool:
    return 0 <= opid < len(side) and 0 <= part <= (OPERATORS.get(side[opid]["type"]) == "split")


def _numbers(operator: Mapping[str, Any]) -> dict[str, int]:
    return {para["key"]: para["value"] for para in operator["para"]}


def _dim(given: Mapping[str, int]) -> int:
    """The dimension of a matrix: FlexFlow's third from the end are copies, -1."""
    return given.get("PM_PARALLEL_DIM", given.get("PM_AXIS", 0) + 3 - given.get("PM_NUMDIM", 3)) - 1


def _side(operators: Sequence[Mapping[str, Any]]) -> tuple[tuple[Term, ...], list[int]]:
    """Terms, and the number of the term that makes each operator's output: an activation is its own."""
    terms: list[Term] = []
    term_of: list[int] = []
    for each in operators:
        given, op = _numbers(each), OPERATORS[each["type"]]
        inputs: tuple[Ref, ...] = tuple(
            f"x{-t['opId']}" if t["opId"] < 0 else (term_of[t["opId"]], t["tsId"]) for t in each["input"]
        )
        parameters: dict[str, int | str] = {"dim": _dim(given)} if op in ALONG else {}
        if op in PARALLEL:
            parameters["degree"] = 2
        elif op == "unary":
            parameters = {"function": each["type"][3:].lower()}
        terms.append(Term(op, inputs, tuple(parameters.items())))  # type: ignore[arg-type]
        if function := ACTIVATIONS[given.get("PM_ACTI", 0)]:
            terms.append(Term("unary", ((len(terms) - 1, 0),), (("function", function),)))
        term_of.append(len(terms) - 1)
    return tuple(terms), term_of


def _judged(rule: Rule, is_one: bool) -> Rule:
    """A rule with what came of it; `is_one`: each side has one operator, but for parallel ones."""

    def rejected(reason: str) -> Rule:
        return replace(rule, proof="rejected", reason=reason)

    if rule.unbound:
        return rejected(f"its right side reads {', '.join(rule.unbound)}, which its left side does not bind")
    cases = list(islice(trials(rule), MOST))
    both, wrong = [case for case in cases if case.right], [case for case in cases if case.differs]
    if not both:
        return rejected("there are no sizes, of those tried, at which both sides exist")
    equal = () if rule.is_parallel else _equal_sizes(rule, both)
    if wrong and not equal:
        if not any(case.differs for case in islice(trials(rule, stand_ins=False), MOST)):
            names = {str(t.value("function")) for t in rule.terms if t.op == "unary"}
            return rejected(f"holds for {', '.join(sorted(names))} only; functions are stand-ins here")
        return rejected(f"both sides {wrong[0].differs} where inputs are {wrong[0]}")
    if rule.is_parallel:
        ours, theirs = (
            ", ".join(_written(side, pair[i]) for pair in rule.outputs)
            for i, side in enumerate((rule.left, rule.right))
        )
        if ours == theirs:
            return replace(rule, proof="way" if is_one else "identity of layouts")
        plain = _judged(rule_of(f"{ours} = {theirs}", rule.name, "file"), False)
        return replace(plain, reason=plain.reason and f"without its parallel operators, {plain.reason}")
    if any(term.value("dim") == -1 for term in rule.terms):
        return rejected("it is along copies, and no captured graph has such a dimension")
    if not is_proven(rule):
        return rejected("z3 does not prove it")
    if len(both) == len(cases) and not wrong:
        return replace(rule, proof="proven")
    return replace(rule, proof="guarded", equal=equal, reason="where both sides exist and agree")


def _equal_sizes(rule: Rule, both: Sequence[Trial]) -> tuple[tuple[tuple[str, int], tuple[str, int]], ...]:
    """Pairs of inputs' dimensions that are equal where both sides agree and never all where they differ."""

    def holds(pair: tuple[tuple[str, int], tuple[str, int]], case: Trial) -> bool:
        return len({case.inputs[name][0][d + 1] for name, d in pair}) == 1

    agree, differ = [each for each in both if not each.differs], [each for each in both if each.differs]
    pairs = combinations(product(rule.inputs, (0, 1)), 2)
    kept = tuple(pair for pair in pairs if differ and all(holds(pair, each) for each in agree))
    return () if not agree or any(all(holds(pair, each) for pair in kept) for each in differ) else kept


def _written(terms: Sequence[Term], ref: Ref) -> str:
    """An output as `rule_of` reads it, without parallel operators; sums and products in one order."""
    if isinstance(ref, str):
        return ref
    term = terms[ref[0]]
    given = [_written(terms, own) for own in term.inputs]
    if term.op in PARALLEL:
        return given[0]
    given = sorted(given) if term.op in ("add", "mul") else given
    call = f"{term.op}({', '.join([*given, *(f'{k}={v}' for k, v in term.parameters)])})"
    return f"{call}[{ref[1]}]" if term.op == "split" else call
