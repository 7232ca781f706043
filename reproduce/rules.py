"""All small graphs with the same fingerprint are candidates for rules; what z3 proves of them is kept.

    expressions of n operators over the first of each fingerprint ──► two of one fingerprint ──► Rule
    ──► without renamings, and what contains a smaller rule ──► true at other sizes ──► proven ──► the file

``python -m reproduce.rules`` makes the file of the package anew, which takes some minutes;
``python -m reproduce.rules FILE`` counts how rules of a FlexFlow file end.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

from netsplit.rewrite.algebra.foreign import read_rules
from netsplit.rewrite.algebra.proofs import follows, properties
from netsplit.rewrite.algebra.rule import FILE, PARALLEL, Ref, Rule, Term
from reproduce.evaluation import Absent, DrawnTensor, cases, drawn_tensor, operator_values

__all__ = [
    "ALGEBRA",
    "PARALLELISM",
    "Kind",
    "basis",
    "main",
    "property_counts",
    "prove",
    "rule_candidates",
    "summary",
]

log = logging.getLogger(__name__)

Kind = tuple[str, int, tuple[tuple[str, int | str], ...]]
"""Operator, how many inputs it has, parameters."""

ALGEBRA: tuple[Kind, ...] = (
    ("linear", 2, ()), ("matmul", 2, ()), ("add", 2, ()), ("mul", 2, ()),
    ("unary", 1, (("function", "f"),)), ("scale", 1, (("function", "s"),)),
    ("transpose", 1, (("first", 0), ("second", 1))),
    *((op, n, (("dim", d),)) for op, n in (("concat", 2), ("split", 1)) for d in (0, 1)),
)  # fmt: skip
PARALLELISM: tuple[Kind, ...] = (
    *ALGEBRA,
    *((op, 1, (("dim", d), ("degree", 2))) for op in PARALLEL for d in (-1, 0, 1)),
)
COMMUTE = ("add", "mul")
UNPROVEN = "not proven"
PARALLEL_PROPERTIES = Path(__file__).with_name("parallel_properties.txt")


@dataclass
class _Space:
    """Expressions by number; an input is by its name, what an expression makes by (number, which)."""

    kinds: Sequence[Kind]
    inputs: dict[str, DrawnTensor]
    terms: list[Term] = field(default_factory=list)
    values: dict[Ref, DrawnTensor] = field(default_factory=dict)
    under: dict[Ref, frozenset[int]] = field(default_factory=dict)
    first: dict[bytes, Ref] = field(default_factory=dict)
    at: dict[frozenset[int], list[Ref]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in self.inputs.items():
            self._add(name, tensor, frozenset(), True)

    def _add(self, ref: Ref, tensor: DrawnTensor, under: frozenset[int], kept: bool) -> Ref | None:
        """What has the same fingerprint with no more operators; None: this is the first."""
        known = self.first.setdefault(tensor.key, ref)
        self.under[ref] = under
        if known != ref:
            return known
        if kept:
            self.values[ref] = tensor
            self.at.setdefault(under, []).append(ref)
        return None

    def grow(self, n: int, last: bool) -> Iterator[tuple[Ref, Ref | None]]:
        """All expressions of n operators, with what is the same as them."""
        for under, given in list(self._givens(n - 1)):
            for op, count, parameters in self.kinds:
                if count != len(given) or (op in COMMUTE and str(given[0]) > str(given[1])):
                    continue
                term = Term(op, given, parameters)  # type: ignore[arg-type]
                try:
                    made = operator_values(term, [self.values[ref] for ref in given], {})
                except Absent:
                    continue
                number = len(self.terms)
                self.terms.append(term)
                for j, tensor in enumerate(made):
                    ref = (number, j)
                    yield ref, self._add(ref, tensor, under | {number}, not last)

    def _givens(self, n: int) -> Iterator[tuple[frozenset[int], tuple[Ref, ...]]]:
        """Inputs of an operator that make it one of n others."""
        ones = [under for under in self.at if len(under) == 1]
        sets = {under for under in self.at if len(under) == n}
        if n == 2:
            sets |= {a | b for a, b in combinations(ones, 2)}
        for under in sorted(sets, key=sorted):
            whole = self.at.get(under, [])
            yield from ((under, (ref,)) for ref in whole)
            inside = [
                part for size in range(n + 1) for part in map(frozenset, combinations(sorted(under), size))
            ]
            there = [ref for part in inside for ref in self.at.get(part, [])]
            for pair in product(there, repeat=2):
                if self.under[pair[0]] | self.under[pair[1]] == under:
                    yield under, pair

    def side(self, refs: Sequence[Ref]) -> tuple[tuple[Term, ...], tuple[Ref, ...]]:
        """Terms that make these, each after those that it reads, and what they are there."""
        numbers: list[int] = []

        def visit(ref: Ref) -> None:
            if not isinstance(ref, str) and ref[0] not in numbers:
                for each in self.terms[ref[0]].inputs:
                    visit(each)
                numbers.append(ref[0])

        def own(ref: Ref) -> Ref:
            return ref if isinstance(ref, str) else (numbers.index(ref[0]), ref[1])

        for ref in refs:
            visit(ref)
        terms = (replace(self.terms[n], inputs=tuple(map(own, self.terms[n].inputs))) for n in numbers)
        return tuple(terms), tuple(map(own, refs))

    def rule(self, left: Sequence[Ref], right: Sequence[Ref]) -> Rule:
        (a, own_a), (b, own_b) = self.side(left), self.side(right)
        return _renamed(Rule("", a, b, tuple(zip(own_a, own_b, strict=True)), origin="generated"))


def _renamed(rule: Rule) -> Rule:
    read = [*rule.inputs, *(ref for pair in rule.outputs for ref in pair if isinstance(ref, str))]
    names = {name: f"x{i}" for i, name in enumerate(dict.fromkeys(read))}

    def own(ref: Ref) -> Ref:
        return names[ref] if isinstance(ref, str) else ref

    left, right = (
        tuple(replace(term, inputs=tuple(map(own, term.inputs))) for term in side)
        for side in (rule.left, rule.right)
    )
    outputs = tuple((own(a), own(b)) for a, b in rule.outputs)
    return _named(replace(rule, left=left, right=right, outputs=outputs))


def _named(rule: Rule) -> Rule:
    (a, b), sides = zip(*rule.outputs, strict=True), (rule.left, rule.right)
    return replace(
        rule, name=" = ".join(_text(terms, refs) for terms, refs in zip(sides, (a, b), strict=True))
    )


def _text(terms: Sequence[Term], outputs: Sequence[Ref]) -> str:
    """``linear(x0, x1)``; of several outputs, with a comma between them."""

    def one(ref: Ref) -> str:
        if isinstance(ref, str):
            return ref
        term = terms[ref[0]]
        given = [*map(one, term.inputs), *(f"{k}={v}" for k, v in term.parameters)]
        return f"{term.op}({', '.join(given)})" + (f"[{ref[1]}]" if term.op == "split" else "")

    return ", ".join(map(one, outputs))


def rule_candidates(kinds: Sequence[Kind], size: int, inputs: int) -> tuple[list[Rule], dict[str, int]]:
    """Pairs of graphs to this size that compute the same at one size, each once whatever its inputs are
    called, and counts of what was met. With parallel operators, pairs without any are left out."""
    parallel = any(op in PARALLEL for op, _, _ in kinds)
    space = _Space(kinds, _drawn([f"x{i}" for i in range(inputs)], parallel))
    rules: dict[str, Rule] = {}
    counts = {"graphs": 0, "same": 0, "renamed": 0}
    splits: dict[int, list[Ref]] = {}
    for n in range(1, size + 1):
        for ref, known in space.grow(n, n == size):
            counts["graphs"] += 1
            if known is None:
                continue
            assert not isinstance(ref, str)
            pairs = [([ref], [known])]
            if space.terms[ref[0]].op == "split":
                splits.setdefault(ref[0], []).append(known)
                if len(splits[ref[0]]) == 2:
                    pairs.append(([(ref[0], 0), ref], splits[ref[0]]))
            for left, right in pairs:
                counts["same"] += 1
                if len(frozenset().union(*(space.under[r] for r in right))) > size:
                    continue
                rule = space.rule(left, right)
                counts["renamed"] += rule.name in rules
                if rule.is_parallel == parallel:
                    rules.setdefault(rule.name, rule)
    return list(rules.values()), counts


def _drawn(names: Iterable[str], parallel: bool) -> dict[str, DrawnTensor]:
    """Inputs alike, which may be cut twice more, and less, where anything is in pieces."""
    sizes, degree = ((4, 16, 16), 4) if parallel else ((1, 4, 4), 0)
    return {name: drawn_tensor(name, sizes, (degree,) * 3, parallel) for name in names}


def _side(terms: Sequence[Term], inputs: Mapping[str, DrawnTensor], k: int = 2) -> dict[Ref, DrawnTensor]:
    """The values of inputs and terms. Raises Absent: one cannot be computed."""
    values: dict[Ref, DrawnTensor] = dict(inputs.items())
    for i, term in enumerate(terms):
        made = operator_values(term, [values[ref] for ref in term.inputs], {"k": k})
        values |= {(i, j): tensor for j, tensor in enumerate(made)}
    return values


def _agrees(rule: Rule, inputs: Mapping[str, DrawnTensor], k: int = 2) -> bool | None:
    """Whether both sides are the same; None: one of them cannot be computed."""
    try:
        left, right = _side(rule.left, inputs, k), _side(rule.right, inputs, k)
    except Absent:
        return None
    return all(left[a].key == right[b].key for a, b in rule.outputs)


def _like(tensor: DrawnTensor, name: str) -> DrawnTensor:
    """Another tensor of the same sizes and degrees, that splits where this does."""
    equal = len(tensor.array) > 1 and bool((tensor.array == tensor.array[:1]).all())
    return replace(tensor, array=drawn_tensor(name, tensor.array.shape, (0, 0, 0), equal).array)


def _contains_smaller(rule: Rule) -> bool:
    """Whether what both sides compute alike may be any input."""
    inputs = _drawn(rule.inputs, rule.is_parallel)
    for i, j in product(range(len(rule.left)), range(len(rule.right))):
        if rule.left[i] != rule.right[j] or any(not isinstance(ref, str) for ref in rule.left[i].inputs):
            continue
        if any(a == (i, 0) or b == (j, 0) for a, b in rule.outputs) and rule.left[i].op != "split":
            return True
        made = operator_values(rule.left[i], [inputs[str(ref)] for ref in rule.left[i].inputs], {})
        sides = (_without(rule.left, i), _without(rule.right, j))
        outputs = tuple((_moved(a, i), _moved(b, j)) for a, b in rule.outputs)
        smaller = replace(rule, left=sides[0], right=sides[1], outputs=outputs)
        if _agrees(smaller, inputs | {f"y{p}": _like(own, f"y{p}") for p, own in enumerate(made)}):
            return True
    return False


def _is_special(rule: Rule) -> bool:
    """Whether an input that is read several times may be several inputs."""
    inputs = _drawn((*rule.inputs, "y"), rule.is_parallel)
    reads = [ref for term in rule.terms for ref in term.inputs]
    outputs = [ref for pair in rule.outputs for ref in pair]
    for name in rule.inputs:
        places = [i for i, ref in enumerate([*reads, *outputs]) if ref == name]
        for chosen in (c for n in range(1, len(places)) for c in combinations(places[1:], n)):
            own = ["y" if i in chosen else ref for i, ref in enumerate([*reads, *outputs])]
            rest = iter(own)
            left, right = (
                tuple(replace(term, inputs=tuple(next(rest) for _ in term.inputs)) for term in side)
                for side in (rule.left, rule.right)
            )
            pairs = tuple((next(rest), next(rest)) for _ in rule.outputs)
            general = replace(rule, left=left, right=right, outputs=pairs)
            if not general.unbound and _agrees(general, inputs):
                return True
    return False


def _moved(ref: Ref, i: int) -> Ref:
    if isinstance(ref, str):
        return ref
    return f"y{ref[1]}" if ref[0] == i else (ref[0] - (ref[0] > i), ref[1])


def _without(terms: Sequence[Term], i: int) -> tuple[Term, ...]:
    rest = (term for j, term in enumerate(terms) if j != i)
    return tuple(replace(term, inputs=tuple(_moved(ref, i) for ref in term.inputs)) for term in rest)


def _is_true(rule: Rule, numbers: Sequence[int] = (2,)) -> bool:
    """Whether both sides agree where both exist, which is somewhere.

    Args:
        numbers: of pieces; the inputs of rules with parallel operators are alike.
    """
    if not rule.is_parallel:
        there = [case.agrees for case in islice(cases(rule, (1, 2, 3), both=True), 400)]
        return bool(there) and all(there)
    for k in numbers:
        answers = list[bool | None]()
        for power, longer, equal in product((1, 2), (1, 2), (True, False)):
            three, degrees = (k**power, longer * k**3, k**3), (k**power,) * 3
            tensors = {name: drawn_tensor(name, three, degrees, equal) for name in rule.inputs}
            answers.append(_agrees(rule, tensors, k))
        if True not in answers or False in answers:
            return False
    return True


def prove(rules: Iterable[Rule], workers: int = 1) -> tuple[list[Rule], dict[str, list[str]]]:
    """Those that hold at other sizes and are proven, and why others are not, each with their names.

    Raises:
        NetSplitError: z3 is not installed.
    """
    proven, rest = list[Rule](), dict[str, list[str]]()
    with multiprocessing.get_context("spawn").Pool(workers) if workers > 1 else nullcontext() as pool:
        for rule, why in pool.imap(_judged, rules, 16) if pool else map(_judged, rules):
            if why:
                rest.setdefault(why, []).append(rule.name)
            else:
                proven.append(replace(rule, proof="proven"))
    return proven, rest


def _judged(rule: Rule) -> tuple[Rule, str]:
    """A rule for as many degrees as may be, and why it is none."""
    if _contains_smaller(rule) or _is_special(rule):
        return rule, "contains a smaller rule"
    if rule.is_parallel and _is_true(general := _any_degree(rule), (2, 3)):
        rule = general
    elif not _is_true(rule):
        return rule, "differs at other sizes"
    return rule, "" if follows(rule, _of_all()) else UNPROVEN


def _any_degree(rule: Rule) -> Rule:
    def own(terms: Sequence[Term]) -> tuple[Term, ...]:
        return tuple(
            replace(t, parameters=tuple((k, "k" if k == "degree" else v) for k, v in t.parameters))
            for t in terms
        )

    left, right = own(rule.left), own(rule.right)
    return _named(replace(rule, left=left, right=right))


@cache
def _of_all() -> tuple[Rule, ...]:
    known = (*properties(), *properties(PARALLEL_PROPERTIES))
    return tuple(own for _, rules in known for own in rules)


def property_counts() -> dict[str, int]:
    """How many properties have parallel operators, and how many none."""
    return {"without parallel operators": len(properties()), "with": len(properties(PARALLEL_PROPERTIES))}


def parallel_kind(rule: Rule) -> str:
    """What a rule with parallel operators is where layouts are annotations of plain operators."""
    left, right = ([term.op for term in side if term.op not in PARALLEL] for side in (rule.left, rule.right))
    if not left and not right:
        return "identity of layouts"
    if sorted(left) != sorted(right):
        return "operator computed by parallel ones"
    return "way of one operator" if len(left) == 1 else "layouts moved through several operators"


def summary() -> str:
    """What the file of the package came from, beside the counts of Unity's paper (with TASO's)."""
    text = json.loads(FILE.read_text(encoding="utf-8"))
    algebra, parallel, known = text["algebra"], text["parallel"], text["properties"]
    return (
        f"{known['without parallel operators']} + {known['with']} properties (43 + 33 in the paper)\n"
        f"{algebra['proven']} + {parallel['proven']} rules proven (743 + 651), {algebra['kept']} kept\n"
        f"with parallel operators: {parallel['kinds']}\n"
        f"not proven, so not used: {algebra['not proven']} + {parallel['not proven']}\n"
        + "\n".join(f"    {each}" for each in text["not proven"])
    )


def basis(rules: Iterable[Rule], size: int = 2) -> list[Rule]:
    """Without those of one output and more operators than `size` that follow from those of fewer.

    Those of several outputs stay, as what merges operators is no sequence of rules that a search would
    take: it begins with a concat that nothing reads.

    Raises:
        NetSplitError: z3 is not installed.
    """
    rules = list(rules)
    few = tuple(rule for rule in rules if max(len(rule.left), len(rule.right)) <= size)
    return [rule for rule in rules if rule in few or len(rule.outputs) > 1 or not follows(rule, few)]


def main(size: int = 3, parallel_size: int = 2, workers: int = 2) -> dict[str, Any]:
    """Generates, proves and writes the file of the package; its counts.

    Args:
        parallel_size: operators of graphs with parallel ones, which are counted and not kept: a captured
            graph has none, and what they say is in the ways and layouts of its operators.
    """
    made: dict[str, Any] = {"properties": property_counts(), "not proven": []}
    for kind, kinds, own, inputs in (
        ("algebra", ALGEBRA, size, 4),
        ("parallel", PARALLELISM, parallel_size, 2),
    ):
        candidates, counts = rule_candidates(kinds, own, inputs)
        proven, rest = prove(candidates, workers)
        made[kind] = counts | {why: len(names) for why, names in rest.items()} | {"proven": len(proven)}
        log.info("%s: %s", kind, made[kind])
        made["not proven"] += rest.get(UNPROVEN, []) if kind == "algebra" else []
        if kind == "parallel":
            made[kind]["kinds"] = dict(Counter(map(parallel_kind, proven)))
        else:
            made["rules"] = [rule.name for rule in basis(proven)]
            made[kind]["kept"] = len(made["rules"])
    FILE.write_text(json.dumps(made, indent=0) + "\n", encoding="utf-8")
    return made


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if sys.argv[1:]:
        for each in read_rules(sys.argv[1]):
            log.info("%s: %s", each.name, ": ".join(filter(None, (each.proof, each.reason))))
    else:
        main()
        log.info(summary())
