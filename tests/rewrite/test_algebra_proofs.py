"""Rules of the algebra: properties that hold, rules made anew, and what is read of others' files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.rewrite import matches
from netsplit.rewrite.algebra.foreign import read_rules
from netsplit.rewrite.algebra.proofs import is_proven, properties
from netsplit.rewrite.algebra.rule import FILE, Rule, rule_of, rules_builtin
from reproduce.evaluation import cases
from reproduce.rules import PARALLEL_PROPERTIES

ASSOCIATIVE = "concat(concat(x, y, dim=d), z, dim=d) = concat(x, concat(y, z, dim=d), dim=d)"
LINES = dict((*properties(), *properties(PARALLEL_PROPERTIES)))
DEAR = [
    line for line, rules in LINES.items()
    if rules[0].exact or (rules[0].is_parallel and len(rules[0].inputs) > 1)
]  # fmt: skip


def _exactly(line: str, rule: Rule, most: int) -> None:
    """Both sides split alike, or one not at all: z3 takes what is equal for equal in a split too."""
    sizes = range(1, min(most, {4: 3, 5: 2}.get(len(rule.inputs), most)) + 1)
    degrees = range(1, most + 1 if len(rule.inputs) == 1 else min(most, 3) + 1) if rule.is_parallel else ()
    both = list(cases(rule, sizes, degrees, (0, 1, 2) if rule.exact else (2, 3), both=True))
    assert both, f"{rule.name} exists nowhere"
    assert all(case.agrees for case in both), rule.name
    assert line == ASSOCIATIVE or all(case.splits_alike for case in both), rule.name


@pytest.mark.parametrize("line", [line for line in LINES if line not in DEAR])
def test_a_property_holds_at_all_sizes_to_four(line: str) -> None:
    for rule in LINES[line]:
        _exactly(line, rule, 4)


@pytest.mark.slow
@pytest.mark.parametrize("line", DEAR)
def test_a_property_of_tensors_in_pieces_or_of_convolutions_holds_at_all_sizes_to_four(line: str) -> None:
    """Degrees 1, 2 and 3; convolutions with a bias to size 2."""
    for rule in LINES[line]:
        _exactly(line, rule, 4)


@pytest.mark.parametrize("line", DEAR)
def test_a_property_of_tensors_in_pieces_or_of_convolutions_holds_at_small_sizes(line: str) -> None:
    for rule in LINES[line]:
        _exactly(line, rule, 3 if rule.exact else 2)


def test_every_rule_that_is_built_in_is_proven() -> None:
    """Along both dimensions; their reverses are as well, as equations."""
    assert all(rule.proof == "proven" for rule in rules_builtin())
    lines = FILE.with_name("builtin.txt").read_text(encoding="utf-8").splitlines()
    texts = {line.split(": ", 1)[1].replace("dim=d", f"dim={d}") for line in lines[3:] for d in (0, 1)}
    assert [text for text in texts if not is_proven(rule_of(text))] == []


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("linear(x, concat(y, z, dim=0)) = concat(linear(x, y), linear(x, z), dim=1)", True),
        ("linear(add(x, y), z) = add(linear(y, z), linear(x, z))", True),
        ("unary(add(x, y)) = add(unary(x), unary(y))", False),
        ("linear(x, y) = linear(y, x)", False),
        ("split(concat(x, y, dim=0), dim=0)[0] = y", False),
        ("x = y", False),
    ],
)
def test_what_is_true_is_proven_and_nothing_else(text: str, is_true: bool) -> None:
    """From `x = y`, all would follow: the properties do not contradict each other as far as z3 looks."""
    assert is_proven(rule_of(text)) == is_true


def _operator(kind: str, *inputs: int, **parameters: int) -> dict[str, Any]:
    return {
        "type": f"OP_{kind}",
        "input": [{"opId": i, "tsId": 0} for i in inputs],
        "para": [{"key": f"PM_{key.upper()}", "value": value} for key, value in parameters.items()],
    }


def _parallel(kind: str, given: int, dim: int) -> dict[str, Any]:
    return _operator(kind, given, parallel_dim=dim, parallel_degree=2)


def _concat(a: int, b: int, axis: int) -> dict[str, Any]:
    return _operator("CONCAT", a, b, num_inputs=2, axis=axis, numdim=3)


_ADD, _RELU = _operator("EW_ADD", -1, -2), _operator("RELU", -1)
_LINEAR = _operator("LINEAR", -1, -2, acti=0)


def _second(activation: int) -> dict[str, Any]:
    return _operator("LINEAR", 0, -2, acti=activation)


_ENDS: dict[str, tuple[list[Any], list[Any], str, str]] = {
    "one input of a weight": (
        [_operator("LINEAR", -1, -3, acti=0), _operator("LINEAR", -2, -3, acti=0), _concat(0, 1, 1)],
        [_concat(-1, -2, 1), _operator("LINEAR", 0, -3, acti=0)], "proven", "",
    ),
    "fused": ([_operator("LINEAR", -1, -2, acti=2)], [_LINEAR, _operator("RELU", 0)], "proven", ""),
    "widths apart": (
        [_concat(-1, -2, 2), _concat(-3, -4, 2), _operator("LINEAR", 0, 1, acti=0)],
        [_operator("LINEAR", -1, -3, acti=0), _operator("LINEAR", -2, -4, acti=0), _operator("EW_ADD", 0, 1)],
        "guarded", "where both sides exist",
    ),
    "another order": (
        [_concat(-1, -2, 2), _concat(-3, -4, 2), _operator("LINEAR", 0, 1, acti=0)],
        [_concat(-2, -1, 2), _concat(-4, -3, 2), _operator("LINEAR", 0, 1, acti=0)],
        "guarded", "where both sides exist",
    ),
    "cut after": ([_parallel("PARTITION", -1, 1), _parallel("COMBINE", 0, 1)],
                  [_parallel("PARTITION", -1, 2), _parallel("COMBINE", 0, 2)], "identity of layouts", ""),
    "rows": ([_LINEAR], [_parallel("PARTITION", -1, 1), _second(0), _parallel("COMBINE", 1, 1)], "way", ""),
    "rows of both": ([_LINEAR, _operator("RELU", 0)],
                     [_parallel("PARTITION", -1, 1), _second(2), _parallel("COMBINE", 1, 1)],
                     "identity of layouts", ""),
    "products": ([_parallel("REPLICATE", -1, 0), _parallel("REPLICATE", -2, 0), _operator("EW_MUL", 0, 1)],
                 [_operator("EW_MUL", -1, -2), _parallel("REPLICATE", 0, 0)], "way", ""),
    "parts stay apart": ([_LINEAR], [_parallel("PARTITION", -1, 1), _second(0)], "rejected",
                         "are in different pieces where inputs are x1 16 x 16 in 4 x 4 x 4 pieces"),
    "copies summed": (
        [_RELU], [_parallel("REPLICATE", -1, 0), _operator("RELU", 0), _parallel("REDUCE", 1, 0)],
        "rejected", "both sides differ",
    ),
    "a sum by reduce": ([_ADD], [_concat(-1, -2, 0), _parallel("REDUCE", 0, 0)], "rejected",
                        "without its parallel operators, both sides differ"),
    "merged, by rows": (
        [_parallel("PARTITION", -1, 1), _second(0), _operator("LINEAR", 0, -3, acti=0), _concat(1, 2, 2),
         _parallel("COMBINE", 3, 1)],
        [_concat(-2, -3, 1), _operator("LINEAR", -1, 0, acti=0)], "proven", "",
    ),
    "one function": ([_RELU, _operator("RELU", 0)], [_RELU], "rejected", "differ for functions in general"),
    "powers": ([_operator("EXP", -1), _operator("EXP", -2), _operator("EW_MUL", 0, 1)],
               [_ADD, _operator("EXP", 0)], "rejected", "differ for functions in general"),
    "no axis": ([_operator("CONCAT", -1, -2)], [_ADD], "rejected", "OP_CONCAT has no PM_AXIS"),
    "one input": ([_operator("EW_ADD", -1)], [_ADD], "rejected", "OP_EW_ADD reads 1 tensors, not 2"),
    "out of order": ([_operator("RELU", 1), _RELU], [_RELU], "rejected", "no operator before it"),
    "no part": ([_operator("RELU", -1)], [{**_RELU, "input": [{"opId": -1}]}], "rejected", "tsId is missing"),
    "dimension": ([_parallel("PARTITION", -1, 3)], [_RELU], "rejected", "along a dimension other"),
    "unbound": ([_RELU], [_operator("EW_ADD", -1, -2), _operator("RELU", 0)], "rejected", "reads x2"),
    "not linear": ([_operator("RELU", -1), _operator("RELU", -2), _operator("EW_ADD", 0, 1)],
                   [_ADD, _operator("RELU", 0)], "rejected", "differ"),
    "copies that differ": ([_LINEAR], [_concat(-2, -1, 0), _operator("LINEAR", -1, 0, acti=0)],
                           "rejected", "none of the sizes"),
    "no sizes": (
        [_concat(-1, -2, 1), _concat(-1, -2, 2), _operator("EW_ADD", 0, 1)], [_ADD], "rejected", "sizes",
    ),
    "split again": (
        [_operator("SIGMOID", -1), _operator("TANH", -2), _concat(0, 1, 2),
         _operator("SPLIT", 2, num_outputs=2, axis=2), _operator("EW_MUL", 3, 3)],
        [_operator("SIGMOID", -1), _operator("EW_MUL", 0, 0)], "proven", "",
    ),
    "convolution": ([_operator("CONV2D", -1, -2)], [_LINEAR], "rejected", "OP_CONV2D"),
    "activation": ([_operator("LINEAR", -1, -2, acti=9)], [_LINEAR], "rejected", "activation 9"),
    "three parts": ([_operator("SPLIT", -1, num_outputs=3, axis=1)], [_RELU], "rejected", "a split into 3"),
}  # fmt: skip


def test_each_rule_of_a_file_ends_as_what_it_is(tmp_path: Path) -> None:
    rules = [
        {
            "name": name, "srcOp": left, "dstOp": right,
            "mappedOutput": [
                {"srcOpId": len(left) - 1, "srcTsId": 0, "dstOpId": len(right) - 1, "dstTsId": 0}
            ],
        }
        for name, (left, right, _, _) in _ENDS.items()
    ]  # fmt: skip
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rule": rules}), encoding="utf-8")
    read = read_rules(path)
    for rule, (_, _, proof, reason) in zip(read, _ENDS.values(), strict=True):
        assert rule.proof == proof, rule
        assert reason in rule.reason, rule


@pytest.mark.parametrize(("second", "applies"), [(3, True), (4, False)])
def test_a_guarded_rule_applies_where_its_sizes_are_equal(second: int, applies: bool) -> None:
    """Elsewhere both sides can be computed, and differ."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Parameter(torch.randn(2, second))
            self.d = nn.Parameter(torch.randn(2, 7 - second))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return nn.functional.linear(torch.cat((a, b), 1), torch.cat((self.c, self.d), 1))

    left = "linear(concat(x1, x2, dim=1), concat(x3, x4, dim=1))"
    swapped = "linear(concat(x2, x1, dim=1), concat(x4, x3, dim=1))"
    rule = replace(rule_of(f"{left} = {swapped}"), equal=((("x1", 1), ("x3", 1)),))
    inputs = torch.randn(2, 3), torch.randn(2, 4)
    graph = capture(Joined(), nn.MSELoss(), (inputs, torch.zeros(2, 2)))
    assert bool(matches(graph, [rule])) == applies


def test_a_file_that_is_no_collection_is_refused(tmp_path: Path) -> None:
    """With what a collection has."""
    path = tmp_path / "rules.json"
    path.write_text('{"rules": []}', encoding="utf-8")
    with pytest.raises(RewriteError, match=r"rule\[\]"):
        read_rules(path)


def test_a_file_that_cannot_be_read_is_said() -> None:
    with pytest.raises(RewriteError, match=r"nowhere.json cannot be read \(No such file"):
        read_rules("nowhere.json")
