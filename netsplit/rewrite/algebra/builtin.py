"""The rules that are built in. All of them have derivatives, and none changes what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from netsplit.rewrite.algebra.rule import Operator, Ref, Rule, Term

__all__ = ["rules_builtin"]


@cache
def rules_builtin() -> tuple[Rule, ...]:
    """Each both ways, where that may be."""
    forwards = [
        *_merged(), *_taken_apart(), *_by_rows(), *_linear(), *_reassociated(), *_of_concat(),
        *_element_wise(), *_inverses(), *_bags(), *_convolutions(),
    ]  # fmt: skip
    return tuple(own for rule in forwards for own in (rule, rule.reversed) if _is_bound(own))


def _is_bound(rule: Rule) -> bool:
    """Whether its left side has all that its right side needs."""
    there = {ref for term in rule.left for ref in term.inputs}
    numbers = {value for term in rule.left for _, value in term.parameters if isinstance(value, str)}
    read = {ref for term in rule.right for ref in term.inputs if isinstance(ref, str)}
    wanted = {value for term in rule.right for _, value in term.parameters if isinstance(value, str)}
    plain = all(term.op != "enlarge" for term in rule.left)
    return bool(rule.left) and plain and read <= there and wanted <= numbers


def _t(op: Operator, *inputs: Ref, **parameters: int | str) -> Term:
    return Term(op, inputs, tuple(parameters.items()))


def _named(stem: str, n: int) -> list[str]:
    return [f"{stem}{i}" for i in range(1, n + 1)]


_PRODUCTS: tuple[tuple[Operator, int, bool], ...] = (
    ("linear", 0, False), ("linear", 0, True), ("matmul", 1, False), ("matmul", 1, True),
)  # fmt: skip
"""Operator, the dimension of its weight that its output has, whether there is a bias."""


def _title(words: str, op: str, bias: bool, n: int | None = None) -> str:
    number = "" if n is None else f", {n}"
    return f"{words} ({op}{' with bias' if bias else ''}){number}"


def _merged() -> Iterator[Rule]:
    """Products of one input as one product."""
    for op, out, bias in _PRODUCTS:
        for n in (2, 3, 4):
            w, b = _named("w", n), _named("b", n) if bias else []
            left = [_t(op, "x", *each) for each in zip(w, *([b] if bias else []), strict=True)]
            right = [_t("concat", *w, dim=out), *([_t("concat", *b, dim=0)] if bias else [])]
            given: list[Ref] = [(i, 0) for i in range(len(right))]
            right += [_t(op, "x", *given), _t("split", (len(right), 0), dim=1)]
            outputs = tuple(((i, 0), (len(right) - 1, i)) for i in range(n))
            yield Rule(_title("products of one input merged", op, bias, n), (*left,), (*right,), outputs)


def _taken_apart() -> Iterator[Rule]:
    """A product whose result is split as products by parts of its weight."""
    for op, out, bias in _PRODUCTS:
        for n in (2, 3):
            left = (_t(op, "x", "w", *(["b"] if bias else [])), _t("split", (0, 0), dim=1))
            right = [_t("split", "w", dim=out), *([_t("split", "b", dim=0)] if bias else [])]
            parts = len(right)
            right += [_t(op, "x", *((j, i) for j in range(parts))) for i in range(n)]
            outputs = tuple(((1, i), (parts + i, 0)) for i in range(n))
            yield Rule(_title("a product taken apart", op, bias, n), left, (*right,), outputs)


def _by_rows() -> Iterator[Rule]:
    """Products of one weight as one of more rows."""
    for op, _, bias in _PRODUCTS:
        for n in (2, 3):
            x, weight = _named("x", n), ("w", *(["b"] if bias else []))
            left = tuple(_t(op, each, *weight) for each in x)
            right = (_t("concat", *x, dim=0), _t(op, (0, 0), *weight), _t("split", (1, 0), dim=0))
            outputs = tuple(((i, 0), (2, i)) for i in range(n))
            yield Rule(_title("products of one weight by rows", op, bias, n), left, right, outputs)


def _linear() -> Iterator[Rule]:
    """Linearity in the input, and in the weight."""
    for op, _, bias in _PRODUCTS:
        one, two = (["b1"], ["b1", "b2"]) if bias else ([], [])
        yield Rule(
            _title("linearity in the input", op, bias),
            (_t("add", "x", "y"), _t(op, (0, 0), "w", *one)),
            (_t(op, "x", "w", *one), _t(op, "y", "w"), _t("add", (0, 0), (1, 0))),
            (((1, 0), (2, 0)),),
        )
        sums = [_t("add", "w1", "w2"), *([_t("add", "b1", "b2")] if bias else [])]
        whole: list[Ref] = [(i, 0) for i in range(len(sums))]
        yield Rule(
            _title("linearity in the weight", op, bias),
            (_t(op, "x", "w1", *two[:1]), _t(op, "x", "w2", *two[1:]), _t("add", (0, 0), (1, 0))),
            (*sums, _t(op, "x", *whole)),
            (((2, 0), (len(sums), 0)),),
        )
        if not bias:
            yield Rule(
                _title("a product scaled", op, bias),
                (_t(op, "x", "w"), _t("scale", (0, 0), function="f")),
                (_t("scale", "x", function="f"), _t(op, (0, 0), "w")),
                (((1, 0), (1, 0)),),
            )


def _reassociated() -> Iterator[Rule]:
    yield Rule(
        "products reassociated (linear)",
        (_t("linear", "x", "w1"), _t("linear", (0, 0), "w2")),
        (_t("matmul", "w2", "w1"), _t("linear", "x", (0, 0))),
        (((1, 0), (1, 0)),),
    )
    yield Rule(
        "products reassociated (matmul)",
        (_t("matmul", "x", "y"), _t("matmul", (0, 0), "z")),
        (_t("matmul", "y", "z"), _t("matmul", "x", (0, 0))),
        (((1, 0), (1, 0)),),
    )
    for op in ("add", "mul"):
        words = "sums reassociated" if op == "add" else "element-wise products reassociated"
        yield Rule(
            words,
            (_t(op, "x", "y"), _t(op, (0, 0), "z")),
            (_t(op, "y", "z"), _t(op, "x", (0, 0))),
            (((1, 0), (1, 0)),),
        )  # fmt: skip


def _of_concat() -> Iterator[Rule]:
    """A product of tensors put together as a sum of products of each."""
    for op, out, bias in _PRODUCTS:
        for n in (2, 3, 4, 5, 6):
            x = _named("x", n)
            left = (_t("concat", *x, dim=1), _t(op, (0, 0), "w", *(["b"] if bias else [])))
            right = [_t("split", "w", dim=1 - out)]
            right += [_t(op, each, (0, i), *(["b"] if bias and not i else [])) for i, each in enumerate(x)]
            total: Ref = (1, 0)
            for i in range(1, n):
                right.append(_t("add", total, (i + 1, 0)))
                total = (len(right) - 1, 0)
            yield Rule(
                _title("a product of a cat as a sum", op, bias, n), left, (*right,), (((1, 0), total),)
            )


def _element_wise() -> Iterator[Rule]:
    """Through `cat` and `split`."""
    for n in (2, 3, 4):
        x, made = _named("x", n), _t("concat", *((i, 0) for i in range(n)), dim="d")
        yield Rule(
            f"element-wise through a cat, {n}",
            (_t("concat", *x, dim="d"), _t("unary", (0, 0), function="f")),
            (*(_t("unary", each, function="f") for each in x), made),
            (((1, 0), (n, 0)),),
        )
        yield Rule(
            f"element-wise through a split, {n}",
            (_t("unary", "x", function="f"), _t("split", (0, 0), dim="d")),
            (_t("split", "x", dim="d"), *(_t("unary", (0, i), function="f") for i in range(n))),
            tuple(((1, i), (i + 1, 0)) for i in range(n)),
        )
    for op in ("add", "mul"):
        x, y = _named("x", 2), _named("y", 2)
        yield Rule(
            f"{op} through a cat, 2",
            (_t("concat", *x, dim="d"), _t("concat", *y, dim="d"), _t(op, (0, 0), (1, 0))),
            (*(_t(op, *pair) for pair in zip(x, y, strict=True)), _t("concat", (0, 0), (1, 0), dim="d")),
            (((2, 0), (2, 0)),),
        )  # fmt: skip


def _inverses() -> Iterator[Rule]:
    dims = {"first": "a", "second": "b"}
    yield Rule(
        "transposed twice", (_t("transpose", "x", **dims), _t("transpose", (0, 0), **dims)), (),
        (((1, 0), "x"),),
    )  # fmt: skip
    for n in (2, 3, 4):
        x = _named("x", n)
        yield Rule(
            f"put together what was split, {n}",
            (_t("split", "x", dim="d"), _t("concat", *((0, i) for i in range(n)), dim="d")),
            (),
            (((1, 0), "x"),),
        )
        yield Rule(
            f"split what was put together, {n}",
            (_t("concat", *x, dim="d"), _t("split", (0, 0), dim="d")),
            (),
            tuple(((1, i), each) for i, each in enumerate(x)),
        )


def _bags() -> Iterator[Rule]:
    for mean, op in enumerate(("sum", "mean")):
        yield Rule(
            f"a bag as an embedding and its {op}",
            (_t("bag", "w", "index", mean=mean),),
            (_t("embedding", "w", "index"), _t(op, (0, 0), dim=1)),  # type: ignore[arg-type]
            (((0, 0), (1, 0)),),
        )


def _convolutions() -> Iterator[Rule]:
    numbers: dict[str, int | str] = {"stride": "s", "padding": "p", "dilation": "d", "groups": 1}
    for bias in (False, True):
        for n in (2, 3, 4):
            w, b = _named("w", n), _named("b", n) if bias else []
            left = [_t("conv", "x", *each, **numbers) for each in zip(w, *([b] if bias else []), strict=True)]
            right = [_t("concat", *w, dim=0), *([_t("concat", *b, dim=0)] if bias else [])]
            given: list[Ref] = [(i, 0) for i in range(len(right))]
            right += [_t("conv", "x", *given, **numbers), _t("split", (len(right), 0), dim=1)]
            outputs = tuple(((i, 0), (len(right) - 1, i)) for i in range(n))
            yield Rule(
                _title("convolutions of one input merged", "conv", bias, n), (*left,), (*right,), outputs
            )
        own = numbers | {"padding": "q", "dilation": 1}
        other = numbers | {"dilation": 1}
        b = ["b1", "b2"] if bias else []
        sums = [_t("concat", *b, dim=0)] if bias else []
        yield Rule(
            _title("a kernel enlarged, and merged with a larger one", "conv", bias),
            (_t("conv", "x", "w1", *b[:1], **own), _t("conv", "x", "w2", *b[1:], **other)),
            (
                _t("enlarge", "w1", "w2", padding="q", padding_of="p"),
                _t("concat", (0, 0), "w2", dim=0),
                *sums,
                _t("conv", "x", (1, 0), *([(2, 0)] if bias else []), **other),
                _t("split", (2 + bias, 0), dim=1),
            ),
            (((0, 0), (3 + bias, 0)), ((1, 0), (3 + bias, 1))),
        )
