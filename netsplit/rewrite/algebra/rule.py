"""A rule of the algebra: two small graphs over the same inputs that compute the same. Needs no torch.

    add(linear(x, w1), linear(x, w2)) = linear(x, add(w1, w2))

Operators are those of `Operator`, few and abstract: `patterns.py` says which of torch's they are.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.tasks import tuples_of

__all__ = [
    "FILE", "PARALLEL", "Algebra", "Operator", "Origin", "Proof", "Ref", "Rule", "Term", "both_ways",
    "generated_rules", "rule_of", "rules_builtin",
]  # fmt: skip

Ref: TypeAlias = str | tuple[int, int]
"""An input of the rule by its name; or of the term of this number, the output of that."""

Operator: TypeAlias = Literal[
    "linear", "matmul", "conv", "add", "mul", "scale", "unary", "concat", "split", "transpose", "embedding",
    "bag", "sum", "mean", "enlarge", "partition", "combine", "replicate", "reduce",
]  # fmt: skip
"""`unary` is any one element-wise function, the same on both sides where its name is the same. The last
four change in how many pieces a tensor is, and along which dimension, alone.

Inputs, and parameters by their keys, where a rule is applied to a graph of torch's operators:

    linear(x, w[o, i], b?)   matmul(x, y, b?)    conv(x, w, b?; stride, padding, dilation, groups)
    add(x, y)   mul(x, y)    unary(x; function)  scale(x; function)
    concat(x, ...; dim)      split(x; dim)       transpose(x; first, second)
    embedding(w, index)      bag(w, index; mean) sum(x; dim)   mean(x; dim)
    enlarge(w, like; padding, padding_of)        kernels with zeros around them, as large as those of `like`

Dimensions are those of matrices: 1 is the last of a tensor, 0 any other; those of a rule that has
convolutions or embeddings are a tensor's own.
"""

PARALLEL = ("partition", "combine", "replicate", "reduce")

Origin: TypeAlias = Literal["built in", "generated", "file"]

Proof: TypeAlias = Literal["proven", "guarded", "identity of layouts", "way", "rejected", "none"]
"""What came of it: proven for all sizes at which the left side exists; for some of them; about layouts alone,
of several operators or none, or of one; why not is its `reason`; nobody has tried."""


@dataclass(frozen=True)
class Term:
    """One operator of a side: its inputs in order, with weights, and its parameters.

    These are whole numbers, or names that a match gives numbers (the same name, the same number):
    ``{"dim": 1, "degree": "d", "function": "f"}``.
    """

    op: Operator
    inputs: tuple[Ref, ...]
    parameters: tuple[tuple[str, int | str], ...] = ()

    def value(self, key: str) -> int | str | None:
        return dict(self.parameters).get(key)


@dataclass(frozen=True)
class Rule:
    """`left` may be replaced by `right`, wherever both can be computed."""

    name: str
    left: tuple[Term, ...]
    right: tuple[Term, ...]
    outputs: tuple[tuple[Ref, Ref], ...]  # what is the same: of the left side, of the right
    origin: Origin = "built in"
    proof: Proof = "none"
    reason: str = ""  # why it is rejected, or guarded
    equal: tuple[tuple[tuple[str, int], tuple[str, int]], ...] = ()
    """Pairs of inputs' dimensions, as (name, 0 rows or 1 columns), that have to be as large."""

    @property
    def terms(self) -> tuple[Term, ...]:
        return (*self.left, *self.right)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of both sides' inputs, in the order in which they are met."""
        sources = [*(term.inputs for term in self.terms), *self.outputs]
        return tuple(dict.fromkeys(ref for refs in sources for ref in refs if isinstance(ref, str)))

    @property
    def unbound(self) -> list[str]:
        """Inputs that its right side reads, and its left side does not have."""
        left = {ref for term in self.left for ref in term.inputs} | {a for a, _ in self.outputs}
        return sorted({*self.inputs} - left)

    @property
    def is_parallel(self) -> bool:
        """Whether it changes in how many pieces a tensor is."""
        return any(term.op in PARALLEL for term in self.terms)

    @property
    def splits(self) -> bool:
        return any(term.op == "split" for term in self.terms)

    @property
    def exact(self) -> bool:
        """Whether its dimensions are those of tensors, not of matrices."""
        return any(term.op in ("conv", "enlarge", "embedding", "bag") for term in self.terms)

    def arity(self, right: bool, i: int) -> int:
        """How many outputs a term of a side has."""
        side = self.right if right else self.left
        read = [ref for term in side for ref in term.inputs] + [pair[right] for pair in self.outputs]
        count = max((ref[1] + 1 for ref in read if not isinstance(ref, str) and ref[0] == i), default=1)
        return max(count, 2) if side[i].op == "split" else count

    @property
    def reversed(self) -> Rule:
        pairs = tuple((b, a) for a, b in self.outputs)
        return replace(self, name=f"{self.name}, reversed", left=self.right, right=self.left, outputs=pairs)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rule:
        """A rule from its fields, after JSON. Raises `RewriteError`: they are something else."""
        try:
            own = {key: tuples_of(value) for key, value in values.items() if key != "guards"}  # older files'
            for side in ("left", "right"):
                own[side] = tuple(Term(**{k: tuples_of(v) for k, v in each.items()}) for each in values[side])
            return cls(**own)
        except (TypeError, KeyError, AttributeError) as error:
            raise RewriteError(f"a rule is {brief(values)}: give name, left, right and outputs.") from error


@dataclass(frozen=True)
class Algebra:
    """A rule, and where it is applied: before any operator is cut, each to the graph that those before made.

    Args:
        rule: in full, so that a file means the same whatever rules there are.
        nodes: the operator of each term of its left side.
        reads: name of each input, "var" or "init", and what that is called.
    """

    rule: Rule
    nodes: tuple[str, ...]
    reads: tuple[tuple[str, str, str], ...] = ()

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.rule.left):
            raise RewriteError(
                f"'{self.rule.name}' has {len(self.rule.left)} operators but got {len(self.nodes)} nodes: "
                "give one for each."
            )

    @property
    def node(self) -> str:
        return self.nodes[0]

    def to_dict(self) -> dict[str, Any]:
        reads = [*map(list, self.reads)]
        return {"kind": "algebra", "rule": asdict(self.rule), "nodes": list(self.nodes), "reads": reads}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Algebra:
        """Reads what `to_dict` gave, after JSON. Raises `RewriteError`: it is something else."""
        try:
            reads = tuple((str(name), str(tag), str(k)) for name, tag, k in values["reads"])
            return cls(Rule.from_dict(values["rule"]), tuple(map(str, values["nodes"])), reads)
        except (TypeError, KeyError, ValueError) as error:
            raise RewriteError(f"algebra is {brief(values)}: give what its to_dict() returns.") from error


def rule_of(text: str, name: str | None = None, origin: Origin = "built in", proof: Proof = "none") -> Rule:
    """A rule as it is written: ``linear(x, w) = ...``; of several outputs, with commas between them.

    ``split(x, dim=0)[1]`` is the second part of a split; terms that are written alike are one.
    """
    sides = tuple(ast.parse(f"({side},)", mode="eval").body.elts for side in text.split(" = "))  # type: ignore
    left, right = list[Term](), list[Term]()
    outputs = [(_read(a, left), _read(b, right)) for a, b in zip(*sides, strict=True)]
    return Rule(name or text, tuple(left), tuple(right), tuple(outputs), origin=origin, proof=proof)


def _read(node: ast.expr, terms: list[Term]) -> Ref:
    part = 0
    if isinstance(node, ast.Subscript):
        part, node = ast.literal_eval(node.slice), node.value
    if isinstance(node, ast.Name):
        return node.id
    assert isinstance(node, ast.Call)
    op = ast.unparse(node.func)
    inputs = tuple(_read(each, terms) for each in node.args)
    texts = {str(each.arg): ast.unparse(each.value).replace(" ", "") for each in node.keywords}
    parameters: dict[str, int | str] = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in texts.items()}
    if op in ("unary", "scale"):
        parameters.setdefault("function", "f")
    if op == "transpose":
        parameters = {"first": 0, "second": 1, **parameters}
    term = Term(op, inputs, tuple(parameters.items()))  # type: ignore[arg-type]
    if term not in terms:
        terms.append(term)
    return (terms.index(term), part)


FILE = Path(__file__).with_name("generated.json")
"""``python -m reproduce.rules`` makes it."""


@cache
def rules_builtin() -> tuple[Rule, ...]:
    """Those of `builtin.txt`, each both ways, where that may be."""
    text = FILE.with_name("builtin.txt").read_text(encoding="utf-8")
    named = [line.split(": ", 1) for line in text.splitlines() if not line.startswith("#")]
    return both_ways([rule_of(equation, name, proof="proven") for name, equation in named])


@cache
def generated_rules() -> list[Rule]:
    """Those of the file, one way round."""
    texts = json.loads(FILE.read_text(encoding="utf-8"))["rules"]
    return [rule_of(text, origin="generated", proof="proven") for text in texts]


def both_ways(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules and their reverses whose left side says what the right side needs."""
    both = [own for rule in rules for own in (rule, rule.reversed)]
    return tuple(rule for rule in both if rule.left and not rule.unbound and rule.left[0].op != "enlarge")
