"""Keys of draws, which operators draw, and a plain model that draws by its graph's nodes."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import netsplit
from netsplit.errors import NetSplitError
from netsplit.graph import DrawKey, Node, capture, draws, initial_values, rebuild, run_microbatch
from netsplit.graph.batches.tree import flatten
from netsplit.graph.operators import _SWITCHED, node_draws, operator_draws
from netsplit.graph.random_draws import (
    CALL,
    drawing,
    drawn,
    generators_kept,
    in_logical_order,
    seed_generators,
)
from netsplit.graph.recording.whole import FunctionCall
from tests.builders import graph_of_nodes
from tests.nets import DRAWING, DROPPED

ATEN = torch.ops.aten


def test_keys_are_the_same_in_every_process_and_differ_in_every_part() -> None:
    """A change of this number would change what every training draws."""
    assert DrawKey(1, 2, 3).seed_of("dropout_4") == 13162757079225515003
    code = "from netsplit.graph.random_draws import DrawKey; print(DrawKey(1, 2, 3).seed_of('dropout_4'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == DrawKey(1, 2, 3).seed_of("dropout_4")
    keys = [
        DrawKey(seed, n, i, phase).seed_of(node)
        for seed in range(3)
        for n in range(12)
        for i in range(12)
        for phase in ("train", "predict")
        for node in ("dropout", "dropout_1", "dropout_11")
    ]
    assert len(set(keys)) == len(keys) == 3 * 12 * 12 * 2 * 3


def test_operators_that_can_be_told_not_to_draw_are_torchs_own_and_say_so() -> None:
    for name in _SWITCHED:
        packet = getattr(ATEN, name)
        for overload in packet.overloads():
            if overload.endswith("out"):
                continue
            op = getattr(packet, overload)
            assert torch.Tag.nondeterministic_seeded in op.tags, op
            names = {argument.name for argument in op._schema.arguments}
            assert names & {"p", "dropout_p", "dropout", "train", "training"}, op


X = torch.linspace(0.1, 0.9, 24).view(2, 3, 4)
WEIGHTS = nn.LSTM(4, 4, 2)._flat_weights
STATE = [torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)]
CALLS: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
    "dropout": (ATEN.dropout.default, (X, 0.5, True)),
    "dropout, rate 0": (ATEN.dropout.default, (X, 0.0, True)),
    "dropout, not training": (ATEN.dropout.default, (X, 0.5, False)),
    "native dropout": (ATEN.native_dropout.default, (X, 0.5, True)),
    "alpha dropout": (ATEN.alpha_dropout.default, (X, 0.5, True)),
    "feature dropout": (ATEN.feature_dropout.default, (X, 0.5, True)),
    "rrelu": (ATEN.rrelu.default, (-X, 0.1, 0.3, True)),
    "rrelu, by default not training": (ATEN.rrelu.default, (-X,)),
    "attention": (ATEN.scaled_dot_product_attention.default, (X, X, X, None, 0.5)),
    "attention without dropout": (ATEN.scaled_dot_product_attention.default, (X, X, X)),
    "lstm": (ATEN.lstm.input, (X, STATE, WEIGHTS, True, 2, 0.5, True, False, False)),
    "lstm without dropout": (ATEN.lstm.input, (X, STATE, WEIGHTS, True, 2, 0.0, True, False, False)),
    "rand": (ATEN.rand.default, ([3],)),
    "randn_like": (ATEN.randn_like.default, (X,)),
    "randint": (ATEN.randint.default, (9, [3])),
    "randperm": (ATEN.randperm.default, (9,)),
    "normal": (ATEN.normal.Tensor_Tensor, (X, X)),
    "bernoulli": (ATEN.bernoulli.default, (X,)),
    "multinomial": (ATEN.multinomial.default, (X[0], 2)),
    "poisson": (ATEN.poisson.default, (X,)),
    "exponential_": (ATEN.exponential_.default, (X.clone(),)),
    "uniform_": (ATEN.uniform_.default, (X.clone(),)),
    "relu": (ATEN.relu.default, (X,)),
    "linear": (ATEN.linear.default, (X, X[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_it_is_known_of_a_call_whether_it_draws(name: str) -> None:
    op, args = CALLS[name]
    before = torch.get_rng_state()
    op(*args)
    assert operator_draws(op, args, {}) == (not torch.equal(before, torch.get_rng_state()))


@pytest.mark.parametrize("name", ["dropout", "alpha dropout", "rrelu", "randn_like", "normal", "bernoulli",
    "poisson", "exponential_", "uniform_", "native dropout", "feature dropout"])  # fmt: skip
def test_draws_do_not_depend_on_how_a_tensor_lies_in_memory(name: str) -> None:
    op, args = CALLS[name]
    results = []
    for move in (lambda t: t.clone(), lambda t: t.transpose(0, 2).contiguous().transpose(0, 2)):
        given = [move(a) if isinstance(a, Tensor) else a for a in args]
        with generators_kept():
            seed_generators(5)
            result = in_logical_order(op, given, {})
        results.append(result[0] if isinstance(result, tuple) else result)
        if name.endswith("_"):
            assert result is given[0]
        else:
            assert results[-1].stride() == given[0].stride()
    assert torch.equal(*results)


@pytest.mark.parametrize("case", [DROPPED, DRAWING], ids=lambda case: case.name)
def test_the_plain_model_draws_what_its_rebuilt_graph_draws(case: object) -> None:
    """To the bit, gradients too; and neither touches torch's generator."""
    assert case in (DROPPED, DRAWING)
    model, loss = case.fresh(), case.loss
    inputs, targets = case.batch(3)
    graph = capture(model, loss, (inputs, targets))
    module = rebuild(graph, initial_values(case.fresh(), graph))
    before = torch.get_rng_state()
    for n, i in ((0, 0), (0, 1), (4, 0)):
        with netsplit.draws(graph, 2, n, microbatch=i):
            value = loss(model(*inputs), targets)
        value.backward()
        wanted = run_microbatch(module, graph, (*inputs, targets), DrawKey(2, n, i))
        wanted.backward()
        assert torch.equal(value, wanted)
    theirs = dict(module.named_parameters())
    assert all(torch.equal(p.grad, theirs[k].grad) for k, p in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_under_autocast_and_without_gradients_too() -> None:
    torch.manual_seed(7)
    block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True)
    model, loss = nn.Sequential(block, nn.Flatten(), nn.Linear(32, 5)), nn.CrossEntropyLoss()
    inputs, targets = torch.randn(3, 4, 8), torch.arange(3)
    graph = capture(model, loss, (inputs, targets), autocast="bfloat16")
    module = rebuild(graph, initial_values(model, graph))
    wanted = run_microbatch(module, graph, (inputs, targets), DrawKey())
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), draws(graph):
        assert torch.equal(loss(model(inputs), targets), wanted)
    with draws(graph), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(model(inputs), targets), wanted)
    assert not torch.equal(run_microbatch(module, graph, (inputs, targets), DrawKey(1)), wanted)


class Twice(torch.autograd.Function):
    """Draws two times, by one operator or another."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def node(name: str, op: str, *args: object) -> Node:
    return Node(name, op, (), (name,), args=args)


def test_a_python_call_is_seeded_once_and_counts_as_one_node() -> None:
    dropout = ({"var": "x"}, 0.5, True)
    graph = graph_of_nodes(
        node("first", "aten.dropout.default", *dropout),
        node("call", f"{CALL}.Twice"),
        node("quiet", f"{CALL}.Quiet"),
        node("last", "aten.dropout.default", *dropout),
    )
    assert all(map(node_draws, graph))
    x = torch.ones(4, 5, requires_grad=True)

    class Quiet(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x + 1

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient

    _, one, _ = flatten(((x,), {}))
    calls = {f"{CALL}.{each.__name__}": FunctionCall(each, one) for each in (Twice, Quiet)}
    with draws(replace(graph, calls=calls), 1):
        dropped = F.dropout(Quiet.apply(Twice.apply(F.dropout(x, 0.5))), 0.5)
    with generators_kept(), drawing(DrawKey(1)):
        wanted = drawn("first", ATEN.dropout.default, x, 0.5, True)
        wanted = drawn("quiet", Quiet.apply, drawn("call", Twice.apply, wanted))
        wanted = drawn("last", ATEN.dropout.default, wanted, 0.5, True)
    assert torch.equal(dropped, wanted)
    assert torch.equal(*torch.autograd.grad([dropped.sum(), wanted.sum()], [x], retain_graph=True) * 2)
    assert not torch.equal(Twice.apply(x), Twice.apply(x))


def test_a_plain_model_that_draws_otherwise_is_refused() -> None:
    model, loss = DROPPED.fresh(), DROPPED.loss
    (inputs,), targets = DROPPED.batch(3)
    graph = capture(model, loss, (inputs, targets))
    before = torch.get_rng_state()
    with (
        pytest.raises(NetSplitError, match=r"drew nothing for node 'dropout' \('aten.dropout.default' at "),
        draws(graph),
    ):
        model.eval()(inputs)
    model.train()
    again = nn.Sequential(model, nn.Dropout())
    with (
        pytest.raises(NetSplitError, match=r"with 'aten.dropout.default' where the graph draws no more"),
        draws(graph),
    ):
        again(inputs)
    noisy = nn.Sequential(nn.RReLU(), model)
    with (
        pytest.raises(NetSplitError, match=r"with 'aten.rrelu.default' where .* has node 'dropout'"),
        draws(graph),
    ):
        noisy(inputs)
    with pytest.raises(KeyError), draws(graph):
        raise KeyError  # is not hidden by what was not drawn
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_drawn_as_it_was_first(reentrant: bool) -> None:
    model, twin = DROPPED.fresh(), DROPPED.fresh()
    (inputs,), targets = DROPPED.batch(3)
    graph = capture(model, DROPPED.loss, (inputs, targets))
    inputs.requires_grad_()
    with draws(graph, 4):
        loss_value = DROPPED.loss(checkpoint(model, inputs, use_reentrant=reentrant), targets)
    loss_value.backward()  # outside of draws(…)
    with draws(graph, 4):
        wanted = DROPPED.loss(twin(inputs), targets)
    wanted.backward()
    assert torch.equal(loss_value, wanted)
    for (key, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, q.grad), key
