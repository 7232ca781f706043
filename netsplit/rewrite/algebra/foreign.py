"""Rules of FlexFlow's collections, read from JSON, computed at small sizes and proven by z3.

    rule[]: name, srcOp[], dstOp[]: (type, input[]: (opId, tsId), para[]: (key, value)), mappedOutput[]

An opId below 0 is an input. Rules with parallel operators are rejected: layouts say the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.proofs import is_proven
from netsplit.rewrite.algebra.rule import Ref, Rule, Term

__all__ = ["read_rules"]

FUNCTIONS = ("RELU", "SIGMOID", "TANH", "GELU", "ELU", "EXP", "SIN", "COS", "RSQRT")
OPERATORS = {
    "OP_LINEAR": "linear", "OP_EW_ADD": "add", "OP_EW_MUL": "mul", "OP_CONCAT": "concat", "OP_SPLIT": "split",
    **{f"OP_{name}": "unary" for name in FUNCTIONS},
}  # fmt: skip
ACTIVATIONS = {0: "", 1: "sigmoid", 2: "relu", 3: "tanh"}


def read_rules(path: str | Path) -> list[Rule]:
    """The rules of a file in its order, each proven, or rejected with the reason.

    Raises:
        RewriteError: it cannot be read, or is no collection of rules.
        NetSplitError: z3 is not installed.
    """
    try:
        texts = json.loads(Path(path).read_text(encoding="utf-8"))["rule"]
        return [_judged(text) for text in texts]
    except OSError as error:
        raise RewriteError(f"{path} cannot be read ({error.strerror}): give a JSON file of rules.") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RewriteError(
            f"{path} is no collection of rules: {brief(error)}. Give a JSON file with rule[], each of name, "
            "srcOp[], dstOp[] and mappedOutput[]."
        ) from error


def _judged(text: Mapping[str, Any]) -> Rule:
    """One rule of a file. Raises KeyError, TypeError, IndexError or ValueError: it is none."""
    name, sides, pairs = text["name"], (text["srcOp"], text["dstOp"]), text["mappedOutput"]
    unread = dict.fromkeys(filter(None, (_unread(each) for side in sides for each in side)))
    if unread:
        return Rule(name, (), (), (), "file", "rejected", "; ".join(unread))
    (left, left_term), (right, right_term) = map(_side, sides)
    outputs = (
        ((left_term[each["srcOpId"]], each["srcTsId"]), (right_term[each["dstOpId"]], each["dstTsId"]))
        for each in pairs
    )
    rule = Rule(name, left, right, tuple(outputs), "file")
    if rule.unbound:
        unbound = ", ".join(rule.unbound)
        reason = f"its right side reads {unbound}, which its left side does not bind"
    elif sizes := _differs_at(rule):
        reason = f"both sides differ where inputs are {sizes}"
    elif not is_proven(rule):
        reason = "z3 does not prove it"
    else:
        return replace(rule, proof="proven")
    return replace(rule, proof="rejected", reason=reason)


def _unread(operator: Mapping[str, Any]) -> str | None:
    """Why an operator is none of the rules'."""
    kind, given = operator["type"], _numbers(operator)
    if kind not in OPERATORS:
        return f"{kind} is no operator of the rules here"
    if given.get("PM_ACTI", 0) not in ACTIVATIONS:
        return f"unknown activation {given['PM_ACTI']}"
    if kind == "OP_SPLIT" and given.get("PM_NUM_OUTPUTS", 2) != 2:
        return f"a split in {given['PM_NUM_OUTPUTS']}"
    is_matrix = kind not in ("OP_CONCAT", "OP_SPLIT") or _dim(given) in (0, 1)
    return None if is_matrix else f"{kind} along another dimension than rows and columns"


def _numbers(operator: Mapping[str, Any]) -> dict[str, int]:
    return {para["key"]: para["value"] for para in operator["para"]}


def _dim(given: Mapping[str, int]) -> int:
    """The dimension of a matrix: FlexFlow's third from the end are copies."""
    return given["PM_AXIS"] + 2 - given.get("PM_NUMDIM", 3)


def _side(operators: Sequence[Mapping[str, Any]]) -> tuple[tuple[Term, ...], list[int]]:
    """Terms, and the number of the term that makes each operator's output: an activation is its own."""
    terms: list[Term] = []
    term_of: list[int] = []
    for each in operators:
        given, op = _numbers(each), OPERATORS[each["type"]]
        inputs: tuple[Ref, ...] = tuple(
            f"x{-t['opId']}" if t["opId"] < 0 else (term_of[t["opId"]], t["tsId"]) for t in each["input"]
        )
        parameters: dict[str, int | str] = {}
        if op in ("concat", "split"):
            parameters = {"dim": _dim(given)}
        elif op == "unary":
            parameters = {"function": each["type"][3:].lower()}
        terms.append(Term(op, inputs, tuple(parameters.items())))  # type: ignore[arg-type]
        if function := ACTIVATIONS[given.get("PM_ACTI", 0)]:
            terms.append(Term("unary", ((len(terms) - 1, 0),), (("function", function),)))
        term_of.append(len(terms) - 1)
    return tuple(terms), term_of


_Matrix: TypeAlias = tuple[np.ndarray, tuple[int, int]]
"""[rows, columns], and where a split cuts each: where a concat met, or in halves; 0: nowhere."""


def _differs_at(rule: Rule) -> str:
    """Sizes of inputs at which both sides can be computed and differ; "": none of up to three.

    A proof says nothing of sizes: it may go through a graph that cannot be computed at some of them.
    """
    kinds = [*product((1, 2, 3) if len(rule.inputs) < 4 else (1, 2), repeat=2)]
    draws = np.random.default_rng(0)
    drawn = {(name, n, m): draws.standard_normal((n, m)) for name in rule.inputs for n, m in kinds}
    for sizes in product(kinds, repeat=len(rule.inputs)):
        named = dict(zip(rule.inputs, sizes, strict=True))
        inputs: dict[Ref, _Matrix] = {k: (drawn[k, n, m], (n // 2, m // 2)) for k, (n, m) in named.items()}
        try:
            left, right = _computed(rule.left, inputs), _computed(rule.right, inputs)
            pairs = [(left[a][0], right[b][0]) for a, b in rule.outputs]
        except (ValueError, KeyError):
            continue
        if not all(a.shape == b.shape and np.allclose(a, b) for a, b in pairs):
            return ", ".join(f"{k} {n} x {m}" for k, (n, m) in named.items())
    return ""


def _computed(terms: Sequence[Term], inputs: Mapping[Ref, _Matrix]) -> Mapping[Ref, _Matrix]:
    """Raises ValueError: a term cannot be computed with these sizes."""
    values = dict(inputs)
    for i, term in enumerate(terms):
        given = [values[ref][0] for ref in term.inputs]
        cuts = [values[ref][1] for ref in term.inputs]
        (x, *others), d = given, int(term.value("dim") or 0)
        common = [own[0] if len({*own}) == 1 else 0 for own in zip(*cuts, strict=True)]
        if term.op == "split":
            if not (cut := common[d]):
                raise ValueError
            common[d] = 0
            parts = np.split(x, [cut], d)
        elif term.op == "linear":
            parts, common = [x @ others[0].T], [own[0] for own in cuts]
        elif term.op == "concat":
            parts, common[d] = [np.concatenate(given, d)], x.shape[d] if len(given) == 2 else 0
        elif term.op == "unary":
            parts = [np.sin(x + crc32(str(term.value("function")).encode()) % 97)]
        elif x.shape != others[0].shape:
            raise ValueError
        else:
            parts = [x + others[0] if term.op == "add" else x * others[0]]
        values |= {(i, j): (part, (common[0], common[1])) for j, part in enumerate(parts)}
    return values
