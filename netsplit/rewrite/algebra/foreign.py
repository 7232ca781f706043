"""Rules of FlexFlow's collections, read from JSON, computed at small sizes and proven by z3.

    rule[]: name, srcOp[], dstOp[]: (type, input[]: (opId, tsId), para[]: (key, value)), mappedOutput[]

An opId below 0 is an input. Parallel operators are tried as written, then left out: layouts say the same.
To try a rule, a tensor is its array of copies, rows and columns, and the number of pieces of each, which is
the shape of a second array: a partition and a combine change that alone, a replicate and a reduce both.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.proofs import is_proven
from netsplit.rewrite.algebra.rule import PARALLEL, Ref, Rule, Term, rule_of

__all__ = ["read_rules"]

log = logging.getLogger(__name__)

OPERATORS = {
    "OP_LINEAR": "linear", "OP_EW_ADD": "add", "OP_EW_MUL": "mul", "OP_CONCAT": "concat", "OP_SPLIT": "split",
    "OP_PARTITION": "partition", "OP_REPARTITION": "partition", "OP_COMBINE": "combine",
    "OP_REPLICATE": "replicate", "OP_REDUCE": "reduce", "OP_REDUCTION": "reduce",
    **dict.fromkeys(
        ("OP_RELU", "OP_SIGMOID", "OP_TANH", "OP_GELU", "OP_ELU", "OP_EXP", "OP_SIN", "OP_COS", "OP_RSQRT"),
        "unary",
    ),
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
            f"{path} is not a collection of rules: {brief(error)}. Give a JSON file with rule[], each with "
            "name, srcOp[], dstOp[] and mappedOutput[]."
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
        reason = (
            f"{error.args[0]} is missing" if isinstance(error, KeyError) else f"not a rule: {brief(text)}"
        )
        return Rule(name, (), (), (), "file", "rejected", reason)
    ours = [(left_term[each["srcOpId"]], each["srcTsId"]) for each in pairs]
    outputs = zip(ours, [(right_term[each["dstOpId"]], each["dstTsId"]) for each in pairs], strict=True)
    kinds = [sum(OPERATORS[each["type"]] not in PARALLEL for each in side) for side in sides]
    return _judged(Rule(name, left, right, tuple(outputs), "file"), kinds == [1, 1])


def _malformed(side: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why operators of a side are none of the rules'."""
    for i, each in enumerate(side):
        kind, given, count = each["type"], _numbers(each), len(each["input"])
        op = OPERATORS.get(kind)
        if op is None:
            yield f"{kind} is not a known operator"
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
            yield f"a split into {given['PM_NUM_OUTPUTS']} outputs, not 2"
        if given.get("PM_PARALLEL_DEGREE", 2) != 2:
            yield f"a degree of {given['PM_PARALLEL_DEGREE']}, where 2 stands for any"
        if op in ALONG and ALONG[op] not in given:
            yield f"{kind} has no {ALONG[op]}"
        elif op in ALONG and _dim(given) not in (-1, 0, 1):
            yield f"{kind} along a dimension other than copies, rows and columns"


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
        parameters |= {"degree": 2} if op in PARALLEL else {}
        parameters |= {"function": each["type"][3:].lower()} if op == "unary" else {}
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
    cases = list(islice(_trials(rule), MOST))
    both, wrong = [case for case in cases if case.right], [case for case in cases if case.differs]
    if not both:
        return rejected("both sides exist at none of the sizes tried")
    equal = () if rule.is_parallel else _equal_sizes(rule, both)
    if wrong and not equal:
        of = " for functions in general" if any(term.op == "unary" for term in rule.terms) else ""
        return rejected(f"both sides {wrong[0].differs}{of} where inputs are {wrong[0]}")
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
        return rejected("it is along copies, a dimension that no captured graph has")
    if not is_proven(rule):
        return rejected("z3 does not prove it")
    if len(both) == len(cases) and not wrong:
        return replace(rule, proof="proven")
    return replace(rule, proof="guarded", equal=equal, reason="where both sides exist and agree")


def _equal_sizes(rule: Rule, both: Sequence[_Trial]) -> tuple[tuple[tuple[str, int], tuple[str, int]], ...]:
    """Pairs of inputs' dimensions that are equal where both sides agree and never all where they differ."""

    def holds(pair: Any, case: _Trial) -> bool:
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


_Shape: TypeAlias = tuple[int, ...]
_Array: TypeAlias = tuple[np.ndarray, _Shape]
"""[copies, rows, columns], and where a split cuts each: where a concat met, or in halves; 0: nowhere."""


@dataclass(frozen=True)
class _Trial:
    """Sizes and pieces of inputs; whether the right side exists; in what the sides differ, "": nothing."""

    inputs: Mapping[str, tuple[_Shape, _Shape]]
    right: bool
    differs: str

    def __str__(self) -> str:
        """Rows and columns, and pieces of copies, rows and columns: ``x1 4 x 8 in 1 x 2 x 4 pieces``."""
        return ", ".join(
            f"{name} {n} x {m}" + (" in {} x {} x {} pieces".format(*pieces) if pieces else "")
            for name, ((_, n, m), pieces) in self.inputs.items()
        )


def _trials(rule: Rule) -> Iterator[_Trial]:
    """All of some few sizes at which the left side exists; with parallel operators, both sides. Functions are
    stand-ins, so that a rule holds only if it does for any."""
    copies = (1, 2) if any(term.value("dim") == -1 for term in rule.terms) else (1,)
    small = (1, 2, 3) if len(rule.inputs) < 4 else (1, 2)
    kinds: list[tuple[_Shape, _Shape]] = [(sizes, ()) for sizes in product(copies, small, small)]
    if rule.is_parallel:  # one dimension, or copies and another, unlike those of others
        one, others = (16, 4), ((16, 2), (16, 8), (32, 4), (32, 8))
        dims = [(c, one, one) for c in (one, (1, 1), (2, 2), *others)]
        dims += [own for c in (one, (1, 1)) for k in others for own in ((c, k, one), (c, one, k))]
        kinds = [(tuple(n for n, _ in own), tuple(k for _, k in own)) for own in dims]
    alike = any(term.op == "linear" for term in rule.terms)

    def extended(given: Mapping[str, tuple[_Shape, _Shape]]) -> Iterator[_Trial]:
        """One input after another; after each, what can be computed of those that are there."""
        arrays, pieces = (
            {name: _drawn(name, own[i], alike) for name, own in given.items() if own[i]} for i in (0, 1)
        )
        there: list[tuple[Mapping[Ref, _Array], Mapping[Ref, _Array]]] = []
        for terms in (rule.left, rule.right):
            try:
                there.append((_computed(terms, arrays), _computed(terms, pieces, pieces=True)))
            except ValueError:
                if rule.is_parallel or not there:
                    return
        if len(given) < len(rule.inputs):
            for kind in kinds:
                yield from extended({**given, rule.inputs[len(given)]: kind})
            return
        differs = ""
        for a, b in rule.outputs if len(there) == 2 else ():
            (ours, own), (theirs, others) = there
            x, y = ours[a][0], theirs[b][0]
            if x.shape != y.shape or not np.allclose(x, y, equal_nan=True):
                differs = "differ"
            elif pieces and own[a][0].shape != others[b][0].shape:
                differs = differs or "are in different pieces"
        yield _Trial(given, len(there) == 2, differs)

    yield from extended({})


@cache
def _drawn(name: str, shape: _Shape, alike: bool) -> _Array:
    """An input; with copies that are alike, or not."""
    draws = np.random.default_rng(crc32(repr((name, shape)).encode()))
    array = draws.standard_normal((1, *shape[1:]) if alike else shape)
    return np.broadcast_to(array, shape), tuple(n // 2 for n in shape)


def _computed(
    terms: Sequence[Term], given: Mapping[str, _Array], pieces: bool = False
) -> Mapping[Ref, _Array]:
    """What can be computed of these inputs. Raises ValueError: a term cannot be with their sizes."""
    values: dict[Ref, _Array] = dict(given.items())
    for i, term in enumerate(terms):
        if not all(ref in values for ref in term.inputs):
            continue
        arrays, own = zip(*(values[ref] for ref in term.inputs), strict=True)
        cuts = [each[0] if len({*each}) == 1 else 0 for each in zip(*own, strict=True)]
        x, y, op, d = arrays[0], arrays[-1], term.op, int(term.value("dim") or 0) + 1
        if op == "unary":
            parts = [np.sin(x + crc32(str(term.value("function")).encode()) % 97)]
        elif op == "linear":
            if not all((each == each[:1]).all() for each in arrays):
                raise ValueError
            parts, cuts = [(x[0] @ y[0].T)[None]], [0, own[0][1], own[1][1]]
        elif op == "split":
            if not (cut := cuts[d]):
                raise ValueError
            parts, cuts[d] = np.split(x, [cut], d), 0
        elif op == "concat":
            parts, cuts[d] = [np.concatenate(arrays, d)], x.shape[d] if len(arrays) == 2 else 0
        elif op in ("add", "mul"):
            if x.shape != y.shape:
                raise ValueError
            parts = [x + y if op == "add" else x * y]
        elif op in ("partition", "combine") and not pieces:
            parts = [x]
        else:
            k, more = int(term.value("degree") or 1), op in ("partition", "replicate")
            parts = [np.concatenate([x] * k, d) if more else np.sum(np.split(x, k, d), axis=0)]
            cuts[d] = {"partition": cuts[d] * k, "combine": cuts[d] // k * (cuts[d] % k == 0)}.get(op, 0)
        values |= {(i, j): (part, tuple(cuts)) for j, part in enumerate(parts)}
    return values
