"""The rules of the package, each proven.

Those that are built in are what a search takes first: with biases, of up to six tensors, of convolutions and
tables, none of which the generated ones have. All have derivatives, and none changes what is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from netsplit.rewrite.algebra.rule import Rule, rule_of

__all__ = ["FILE", "generated_rules", "rules_builtin"]

FILE = Path(__file__).with_name("generated.json")
"""``python -m reproduce.rules`` makes it."""

_NUMBERS = "stride=s, padding=p, dilation=d, groups=1"
_KERNELS = "stride=s, padding=p, dilation=1, groups=1"
_SMALLER = "stride=s, padding=q, dilation=1, groups=1"


@cache
def rules_builtin() -> tuple[Rule, ...]:
    """Each both ways, where that may be."""
    texts = [*_products(), *_convolutions(), *_element_wise(), *_others()]
    rules = [rule_of(text, name, proof="proven") for name, text in texts]
    both = [own for rule in rules for own in (rule, rule.reversed)]
    return tuple(rule for rule in both if rule.left and not rule.unbound and rule.left[0].op != "enlarge")


@cache
def generated_rules() -> list[Rule]:
    """Those of the file, one way round."""
    texts = json.loads(FILE.read_text(encoding="utf-8"))["rules"]
    return [rule_of(text, origin="generated", proof="proven") for text in texts]


def _each(n: int, text: Callable[[int], str]) -> str:
    return ", ".join(map(text, range(1, n + 1)))


def _parts(n: int, text: str, dim: int | str) -> str:
    return _each(n, lambda i: f"split({text}, dim={dim})[{i - 1}]")


def _products() -> Iterator[tuple[str, str]]:
    """`o` and `i`: the dimensions of a weight that its output and its input have; `b`: with a bias."""
    for op, o, i in (("linear", 0, 1), ("matmul", 1, 0)):
        for b in (False, True):
            kind = f"({op}{' with bias' if b else ''})"
            bias, one, two = (", b", ", b1", ", b2") if b else ("", "", "")
            for n in (2, 3, 4):
                biases = f", concat({_each(n, 'b{}'.format)}, dim=0)" if b else ""
                merged = f"{op}(x, concat({_each(n, 'w{}'.format)}, dim={o}){biases})"
                apart = ", ".join(f"{op}(x, w{j}{f', b{j}' if b else ''})" for j in range(1, n + 1))
                yield f"products of one input merged {kind}, {n}", f"{apart} = {_parts(n, merged, 1)}"
            for n in (2, 3):
                part = ", split(b, dim=0)[%d]" if b else "%.0s"
                apart = ", ".join(f"{op}(x, split(w, dim={o})[{j}]{part % j})" for j in range(n))
                whole = _parts(n, f"{op}(x, w{bias})", 1)
                yield f"a product taken apart {kind}, {n}", f"{whole} = {apart}"
                rows = ", ".join(f"{op}(x{j}, w{bias})" for j in range(1, n + 1))
                merged = _parts(n, f"{op}(concat({_each(n, 'x{}'.format)}, dim=0), w{bias})", 0)
                yield f"products of one weight by rows {kind}, {n}", f"{rows} = {merged}"
            for n in (2, 3, 4, 5, 6):
                total = f"{op}(x1, split(w, dim={i})[0]{bias})"
                for j in range(1, n):
                    total = f"add({total}, {op}(x{j + 1}, split(w, dim={i})[{j}]))"
                whole = f"{op}(concat({_each(n, 'x{}'.format)}, dim=1), w{bias})"
                yield f"a product of a cat as a sum {kind}, {n}", f"{whole} = {total}"
            yield (
                f"linearity in the input {kind}",
                f"{op}(add(x, y), w{one}) = add({op}(x, w{one}), {op}(y, w))",
            )
            weights = "add(w1, w2), add(b1, b2)" if b else "add(w1, w2)"
            sides = f"add({op}(x, w1{one}), {op}(x, w2{two})) = {op}(x, {weights})"
            yield f"linearity in the weight {kind}", sides
        yield f"a product scaled ({op})", f"scale({op}(x, w)) = {op}(scale(x), w)"


def _convolutions() -> Iterator[tuple[str, str]]:
    for b in (False, True):
        kind, one, two = ("(conv with bias)", ", b1", ", b2") if b else ("(conv)", "", "")
        for n in (2, 3, 4):
            biases = f", concat({_each(n, 'b{}'.format)}, dim=0)" if b else ""
            merged = f"conv(x, concat({_each(n, 'w{}'.format)}, dim=0){biases}, {_NUMBERS})"
            apart = ", ".join(f"conv(x, w{j}{f', b{j}' if b else ''}, {_NUMBERS})" for j in range(1, n + 1))
            yield f"convolutions of one input merged {kind}, {n}", f"{apart} = {_parts(n, merged, 1)}"
        biases = ", concat(b1, b2, dim=0)" if b else ""
        weights = "concat(enlarge(w1, w2, padding=q, padding_of=p), w2, dim=0)"
        merged = _parts(2, f"conv(x, {weights}{biases}, {_KERNELS})", 1)
        apart = f"conv(x, w1{one}, {_SMALLER}), conv(x, w2{two}, {_KERNELS})"
        yield f"a kernel enlarged, and merged with a larger one {kind}", f"{apart} = {merged}"


def _element_wise() -> Iterator[tuple[str, str]]:
    """Through `cat` and `split`, and these two cancelled."""
    for n in (2, 3, 4):
        x = _each(n, "x{}".format)
        ones, parts = _each(n, "unary(x{})".format), _parts(n, "x", "d")
        whole = f"unary(concat({x}, dim=d)) = concat({ones}, dim=d)"
        yield f"element-wise through a cat, {n}", whole
        apart = ", ".join(f"unary(split(x, dim=d)[{j}])" for j in range(n))
        yield f"element-wise through a split, {n}", f"{_parts(n, 'unary(x)', 'd')} = {apart}"
        yield f"put together what was split, {n}", f"concat({parts}, dim=d) = x"
        yield f"split what was put together, {n}", f"{_parts(n, f'concat({x}, dim=d)', 'd')} = {x}"


def _others() -> Iterator[tuple[str, str]]:
    yield "products reassociated (linear)", "linear(linear(x, w1), w2) = linear(x, matmul(w2, w1))"
    yield "products reassociated (matmul)", "matmul(matmul(x, y), z) = matmul(x, matmul(y, z))"
    for op, words in (("add", "sums"), ("mul", "element-wise products")):
        yield f"{words} reassociated", f"{op}({op}(x, y), z) = {op}(x, {op}(y, z))"
        sides = f"concat({op}(x1, y1), {op}(x2, y2), dim=d)"
        yield f"{op} through a cat, 2", f"{op}(concat(x1, x2, dim=d), concat(y1, y2, dim=d)) = {sides}"
    yield "transposed twice", "transpose(transpose(x, first=a, second=b), first=a, second=b) = x"
    for mean, op in enumerate(("sum", "mean")):
        yield (
            f"a bag as an embedding and its {op}",
            f"bag(w, index, mean={mean}) = {op}(embedding(w, index), dim=1)",
        )
