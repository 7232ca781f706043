"""What a recording notes of every operator call, beside the operator."""

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from netsplit.graph import Graph, Node, capture, dumps
from tests.nets import CASES

_KEYS = (torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8))
QUICK = settings(deadline=None, max_examples=15)


def captured(model: nn.Module, width: int = 4, autocast: str | None = None) -> Graph:
    batch = (torch.randn(2, width), torch.randn(2, width))
    return capture(model, nn.MSELoss(), batch, autocast=autocast)


def only(graph: Graph, kind: str) -> Node:
    (node,) = [node for node in graph if node.kind == kind]
    return node


class Modes(nn.Module):
    """One operator of its own kind in every kind of block."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            still = y.sin()
            with torch.enable_grad():
                y = y + y.cos()
        with torch.autocast("cpu", torch.bfloat16):
            low = y.exp2()
            with torch.autocast("cpu", enabled=False):
                y = y.tanh()
        return y + still + low


def test_every_node_has_the_modes_that_it_was_called_in() -> None:
    graph = captured(Modes())
    assert {node.kind for node in graph if node.no_grad} == {"sin"}
    assert {node.kind: node.autocast for node in graph if node.autocast} == {"exp2": "bfloat16"}


def test_modes_are_told_by_what_differs_from_the_graphs_own() -> None:
    graph = captured(Modes(), autocast="bfloat16")
    assert graph.autocast == "bfloat16"
    assert {node.kind: node.autocast for node in graph if node.autocast} == {"tanh": "off"}


class Deep(nn.Module):
    """Each of `blocks` is run in a checkpoint or not."""

    def __init__(self, kept: list[bool], reentrant: bool) -> None:
        super().__init__()
        self.kept, self.reentrant = kept, reentrant
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in kept)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.ones(4, requires_grad=False)
        for block, kept in zip(self.blocks, self.kept, strict=True):
            x = block(x) if kept else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@QUICK
@given(kept=st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_checkpoint_has_a_name_of_its_own_for_all_its_nodes(kept: list[bool]) -> None:
    graph = captured(Deep(kept, reentrant=False))
    of_block: dict[str, set[str]] = {}
    for node in graph:
        if node.module.startswith("blocks."):
            of_block.setdefault(node.module.split(".")[1], set()).add(node.checkpoint)
        else:
            assert node.checkpoint == ""
    assert all(len(names) == 1 for names in of_block.values())
    names = [name for i in range(len(kept)) for name in of_block[str(i)]]
    assert [name == "" for name in names] == kept
    assert all(count == 1 for name, count in Counter(names).items() if name)


def helper(x: Tensor) -> Tensor:
    return x.sin()


HELPERS_LINE = inspect.getsourcelines(helper)[1] + 1


class Lines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU()))
        self.loop = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.loop(x)
        return helper(self.inner(x))


def test_a_node_has_the_line_and_the_module_that_called_it() -> None:
    graph = captured(Lines())
    assert only(graph, "sin").source == f"{__file__}:{HELPERS_LINE}"
    assert only(graph, "gelu").module == "inner.1.0"
    assert only(graph, "sin").module == ""
    assert Counter(node.module for node in graph if node.kind == "linear") == {"loop": 2, "inner.0": 1}
    first = inspect.getsourcelines(Lines.forward)[1]
    assert {node.source for node in graph if node.module == "loop"} == {f"{__file__}:{first + 2}"}


@pytest.mark.parametrize(
    "function",
    [
        partial(F.dropout, p=0.1),
        partial(F.dropout2d, p=0.1),
        partial(F.alpha_dropout, p=0.1, training=True),
        partial(F.scaled_dot_product_attention, *_KEYS),
        partial(F.scaled_dot_product_attention, *_KEYS, dropout_p=0.1),
        partial(F.gelu, approximate="tanh"),
        partial(F.group_norm, num_groups=2),
        partial(F.batch_norm, running_mean=None, running_var=None, training=True),
        partial(F.log_softmax, dim=-1),
        partial(F.interpolate, scale_factor=2.0, mode="bilinear"),
    ],
)
def test_what_is_saved_is_what_autograd_keeps_of_real_values(function: Callable[[Tensor], Tensor]) -> None:
    """Bytes beside the input and the output."""
    saved: list[Tensor] = []
    x = torch.randn(2, 4, 6, 8, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        output = function(x)
    known = {tensor.untyped_storage()._cdata for tensor in (x, output, *_KEYS)}
    kept = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}

    class Saves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, given: Tensor) -> Tensor:
            return function(given * self.scale)

    graph = capture(Saves(), lambda output, _: output.exp().sum(), (x.detach(), torch.zeros(2)))
    (node,) = [node for node in graph if "mul" in node.inputs]
    assert node.saved_bytes == sum(nbytes for key, nbytes in kept.items() if key not in known)


@pytest.mark.parametrize("steps", [7, 3000])
def test_an_lstm_keeps_the_workspace_of_its_library(steps: int) -> None:
    """In float32 on a CPU, where torch says of tensors without data that it is empty."""
    layer = nn.LSTM(8, 100)
    x = torch.randn(steps, 2, 8)
    saved: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        layer(x)
    (workspace,) = [tensor.nbytes for tensor in saved if tensor.dtype is torch.uint8]
    graph = capture(layer, lambda output, _: output[0].sum(), (x, torch.zeros(steps, 2)))
    states = 4 * 2 * 100 * 4  # in and out, of either kind
    kept = only(graph, "lstm").saved_bytes
    assert workspace <= kept * 1.001
    assert kept <= workspace * 1.001 + states


class Wasteful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unread = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.unread(y).exp().sum()  # nobody reads it
        F.dropout(y.cos(), 0.5)  # nobody reads it, but it draws before the next one draws
        return F.dropout(y, 0.5)


def test_what_nothing_depends_on_is_left_out_but_for_draws() -> None:
    graph = captured(Wasteful())
    kinds = Counter(node.kind for node in graph)
    assert kinds == {"linear": 1, "cos": 1, "dropout": 2, "broadcast_tensors": 1, "mse_loss": 1}
    assert set(graph.initializers) == {"layer.weight", "layer.bias"}


ODD = [
    "linear",
    "batch_0",
    "model",
    "loss",
    "found",
    "batch",
    "T",
    "weight of",
    "forward_",
    "class",
    "a-b",
    "ü",
]


@QUICK
@given(names=st.lists(st.sampled_from(ODD), min_size=1, max_size=6, unique=True))
def test_any_names_of_submodules_do(names: list[str]) -> None:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(4, 4))
    graph = captured(model)
    assert [node.module for node in graph if node.kind == "linear"] == names
    keys = {k for init in graph.initializers.values() for k in (init.name, *init.aliases)}
    assert keys == set(model.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_names_are_unique_and_a_second_capture_gives_an_equal_graph(name: str) -> None:
    case = CASES[name]
    model = case.fresh()
    first, again = (capture(model, case.loss, case.batch(4)) for _ in range(2))
    anew = capture(case.fresh(), case.loss, case.batch(4))
    assert first == again == anew
    assert dumps(first) == dumps(again) == dumps(anew)
    made = [k for node in first for k in node.outputs if k]
    assert len(set(made)) == len(made)
    assert not set(made) & set(first.input_variables)
