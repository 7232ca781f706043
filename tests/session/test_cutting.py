"""Batches are kept whole whose loss or gradients are no mean over micro-batches, unless these are named."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import netsplit
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import CaptureError, InfeasibleError
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.planning.plan import Plan
from netsplit.program.schedules import GPipe
from netsplit.session.costs import MeasuredCosts
from netsplit.session.sizes import BatchCuts
from netsplit.session.step import ModelStep
from tests.builders import costs_of
from tests.nets import SGD
from tests.workers import Pools, lent_to_sessions, set_costs

SAMPLES = 16
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(SAMPLES) % 5
WORDS = torch.randint(1, 5, (SAMPLES, 7), generator=torch.Generator().manual_seed(1))
PADDED = torch.where(torch.arange(7) < 2 + torch.arange(SAMPLES)[:, None] % 5, WORDS, -100)
WEIGHTS = torch.tensor([1.0, 5.0, 1.0, 2.0, 1.0])

LossFunction = Callable[..., Tensor]


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))


class Reader(nn.Module):
    """Logits of the next word at every place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.rnn, self.out = nn.Embedding(5, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.out(self.rnn(self.words(words.clamp(min=0)))[0])
        return logits.transpose(1, 2)


class Experts(nn.Module):
    """Two experts behind a gate, and how unevenly the batch is spread over them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 5)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gate(x).softmax(1)
        load = F.one_hot(gates.argmax(1), 2).to(gates).mean(0)
        mixed = torch.stack([gates[:, i : i + 1] * e(x) for i, e in enumerate(self.experts)]).sum(0)
        return mixed, 2 * (load * gates.mean(0)).sum()


class Whitened(nn.Module):
    """A batch normalisation by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return (y - y.mean(0)) / (y.std(0) + 1.0)


class Clipped(nn.Module):
    """Its gradients are made as long as one another by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.fc.weight.register_hook(lambda gradient: gradient / gradient.norm())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y


def views(o: Tensor) -> tuple[Tensor, Tensor]:
    """Two views of each sample, of length 1."""
    return F.normalize(o[:, :3]), F.normalize(o[:, 2:])


def nt_xent(o: Tensor, _: Tensor) -> Tensor:
    z = torch.cat(views(o))
    scores = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(z)).roll(len(o)))


def batch_hard_triplets(o: Tensor, y: Tensor) -> Tensor:
    far, same = (o[:, None] - o[None]).square().sum(-1), y[:, None] == y[None]
    furthest = (far * same).amax(1)
    nearest = far.masked_fill(same, 1e3).amin(1).clamp(max=1e2)
    return F.relu(furthest - nearest + 0.3).mean()


def batch_dice(o: Tensor, y: Tensor) -> Tensor:
    p, t = o.softmax(1), F.one_hot(y, 5).to(o)
    return 1 - ((2 * (p * t).sum(0) + 1) / (p.sum(0) + t.sum(0) + 1)).mean()


def ohem(o: Tensor, y: Tensor) -> Tensor:
    """The mean of the three samples with the largest losses."""
    return F.cross_entropy(o, y, reduction="none").topk(min(3, len(o))).values.mean()


def balanced(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], y) + 0.1 * outputs[1]


KEPT: dict[str, tuple[nn.Module, LossFunction, Any, Any]] = {
    "sum": (net(), nn.CrossEntropyLoss(reduction="sum"), X, Y),
    "penalty summed over the batch": (
        net(), lambda o, y: F.cross_entropy(o, y) + 0.01 * o.square().sum(), X, Y,
    ),
    "class weights": (net(), nn.CrossEntropyLoss(weight=WEIGHTS), X, Y),
    "padded language model": (Reader(), nn.CrossEntropyLoss(), WORDS, PADDED),
    "no target in a micro-batch": (
        net(), nn.CrossEntropyLoss(ignore_index=0), X, torch.where(torch.arange(SAMPLES) < 4, 0, Y),
    ),
    "NT-Xent": (net(), nt_xent, X, Y),
    "triplets": (net(), batch_hard_triplets, X, Y // 2),
    "batch dice": (net(), batch_dice, X, Y),
    "balance of experts": (Experts(), balanced, X, Y),
    "OHEM": (net(), ohem, X, Y),
    "root of a mean": (net(), lambda o, y: F.mse_loss(o[:, 0], y.to(o)).sqrt(), X, Y),
    "normalisation by hand": (Whitened(), nn.CrossEntropyLoss(), X, Y),
    "clipping hook": (Clipped(), nn.CrossEntropyLoss(), X, Y),
    "term of value 0": (
        net(), lambda o, y: F.cross_entropy(o, y) + 0.1 * (o.sum() - o.sum().detach()), X, Y,
    ),
    "by their number": (net(), lambda o, y: F.cross_entropy(o, y) * (2.0 if len(o) > 8 else 1.0), X, Y),
    "samples along another dimension": (
        net(), lambda o, y: F.cross_entropy(o.mean(0), y), torch.randn(8, SAMPLES, 6), Y,
    ),
}  # fmt: skip


class Noisy(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.exp(spread / 2) * torch.randn_like(mean)), mean, spread


def evidence(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    again, mean, spread = outputs
    return F.mse_loss(again, x) - 0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.mixed = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.mixed(self.rnn(x[:, None].expand(-1, 3, -1))[0])
        y: Tensor = self.out(F.dropout(steps.mean(1), 0.5))
        return y


class Halving(nn.Module):
    """Computes with fewer digits in between, as many language models do, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = net(), torch.tensor([0.5])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x.float()).to(torch.float32) * self.scale
        return y


def mixed_up(o: Tensor, y: Tensor) -> Tensor:
    """Mixup of targets."""
    part = torch.rand(())
    return part * F.cross_entropy(o, y) + (1 - part) * F.cross_entropy(o, y[torch.randperm(len(y))])


NORMED = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.RReLU(), nn.Dropout(), nn.Linear(8, 5))
CUT: dict[str, tuple[nn.Module, LossFunction | None, Any, Any]] = {
    "cross entropy": (net(), nn.CrossEntropyLoss(), X, Y),
    "in double precision": (net().double(), nn.CrossEntropyLoss(), X.double(), Y),
    "two terms": (net(), lambda o, y: F.huber_loss(o[:, 0], y.to(o)) + o.exp().mean(), X, Y),
    "sum over their number": (net(), lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(o), X, Y),
    "language model": (Reader(), nn.CrossEntropyLoss(), WORDS, WORDS),
    "batch normalisation and dropout": (NORMED, nn.CrossEntropyLoss(), X, Y),
    "dropout in layers": (Dropping(), nn.CrossEntropyLoss(), X, Y),
    "variational autoencoder": (Noisy(), evidence, X, X),
    "mixup": (net(), mixed_up, X, Y),
    "fewer digits in between": (Halving(), nn.CrossEntropyLoss(), X, Y),
}  # fmt: skip


def cutting(
    model: nn.Module,
    loss: Any,
    inputs: Any,
    targets: Any,
    named: bool = False,
    counts: tuple[int, ...] = (1, 4),
) -> tuple[BatchCuts, list[int]]:
    """What is left of these numbers, as a plan with the largest would have it compared."""
    whole = Batch.of(inputs, targets)
    graph = capture(model, loss, whole.rows(0, -(-whole.samples // max(counts))).own())
    cutting = BatchCuts(ModelStep(model, loss, (inputs, targets)), named)
    left = cutting.allowed(graph, counts)
    return cutting, cutting.at_size(graph, left) if max(left) > 1 else left


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_mean_over_micro_batches_is_kept_whole(name: str) -> None:
    model, loss, inputs, targets = KEPT[name]
    own, left = cutting(model, loss, inputs, targets)
    assert left == [1]
    assert ["kept whole" in remark for remark in own.notes_for(1)] == [True]
    own, left = cutting(model, loss, inputs, targets, named=True)
    assert left == [1, 4]
    assert ["as in gradient accumulation" in remark for remark in own.notes_for(4)] == [True]
    assert own.notes_for(1) == ()


@pytest.mark.parametrize("name", CUT)
def test_a_mean_over_micro_batches_is_cut_without_a_word(name: str) -> None:
    model, loss, inputs, targets = CUT[name]
    before = {k: t.clone() for k, t in model.state_dict().items()}
    drawn = torch.get_rng_state()
    own, left = cutting(model, loss, inputs, targets)
    assert (left, own.notes_for(4)) == ([1, 4], ())
    assert all(
        torch.equal(t, before[k]) and t.dtype == before[k].dtype for k, t in model.state_dict().items()
    )
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_rows_that_are_not_cut_are_named() -> None:
    own, _ = cutting(*KEPT["samples along another dimension"])
    assert (
        "its tensor of shape (16,) goes whole to every micro-batch; see netsplit.per_sample"
        in own.notes_for(1)[0]
    )
    inputs, targets = KEPT["samples along another dimension"][2:]
    marked = netsplit.per_sample(inputs, dim=1), targets
    assert cutting(net(), lambda o, y: F.cross_entropy(o.mean(0), y), *marked)[1] == [1, 4]


def test_what_only_the_decided_size_shows_is_decided_anew() -> None:
    """The hardest two of more than two samples."""

    def loss(o: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(o, y, reduction="none")
        return each.mean() if len(o) < 3 else each.topk(2).values.mean()

    batch = Batch.of(X, Y)
    graph = capture(net(), loss, batch.rows(0, 4).own())
    own = BatchCuts(ModelStep(net(), loss, (X, Y)), named=False)
    assert own.allowed(graph, [1, 2, 4]) == [1, 2, 4]
    assert own.at_size(graph, [1, 2, 4]) == [1]
    with pytest.raises(CaptureError, match="on 16 samples at once"):
        BatchCuts(ModelStep(net(), loss, (X, Y)), named=False).at_size(graph, [4])


def test_a_batch_that_cannot_be_computed_at_once_is_kept_whole() -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        assert len(o) == 4
        return F.cross_entropy(o, y)

    own, left = cutting(net(), loss, X, Y)
    assert left == [1]
    assert "cannot run its whole batch at once" in own.notes_for(1)[0]


def test_a_forward_that_writes_into_what_is_not_cut_is_refused() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 5)

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            table += 1
            y: Tensor = self.fc(x + table)
            return y

    inputs = (X, netsplit.shared(torch.zeros(6)))
    assert cutting(Writing(), nn.CrossEntropyLoss(), inputs, Y)[1] == [1]
    with pytest.raises(CaptureError, match="that every micro-batch gets whole"):
        cutting(Writing(), nn.CrossEntropyLoss(), inputs, Y, named=True, counts=(4,))


def fast() -> ClusterSpec:
    return replace(netsplit.cpu_cluster(2), latency_s=0.0, bandwidth=1e12)


def trained(
    pools: Pools, loss: Any, schedule: Any, **options: Any
) -> tuple[Plan, list[float], dict[str, Tensor]]:
    with lent_to_sessions(pools):
        parallel = netsplit.parallelize(
            net().double(), loss, (X.double(), Y), cluster=fast(), schedule=schedule, optimizer=SGD,
            progress=False, **options,
        )  # fmt: skip
    with parallel:
        losses = [parallel.train_batch(X.double(), Y) for _ in range(2)]
        return parallel.plan, losses, parallel.state_dict()


def plainly(loss: Any) -> tuple[list[float], dict[str, Tensor]]:
    """Whole batches in plain PyTorch."""
    model = net().double()
    optimizer, losses = SGD(list(model.parameters())), []
    for _ in range(2):
        value = loss(model(X.double()), Y)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses, model.state_dict()


summed, AUTO = nn.CrossEntropyLoss(reduction="sum"), netsplit.AutoSchedule(time_limit_s=1.0)


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators take as long as they have samples, so that cutting pays."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3 * graph.batch_size, 2e-3 * graph.batch_size))
    monkeypatch.setattr(MeasuredCosts, "in_turn", lambda *_: {})


@pytest.mark.usefixtures("by_size")
def test_a_training_keeps_the_batch_whole_and_says_so(pools: Pools) -> None:
    whole, *_ = trained(pools, nn.CrossEntropyLoss(), AUTO)
    assert whole.schedule.microbatches > 1
    assert whole.choice.remarks == ()
    for loss in (summed, nt_xent, ohem):
        whole, losses, state = trained(pools, loss, AUTO)
        assert whole.schedule.microbatches == 1
        assert ["the batch is kept whole" in note for note in whole.choice.remarks] == [True]
        wanted, plain = plainly(loss)
        assert losses == pytest.approx(wanted, rel=1e-9)
        torch.testing.assert_close(state, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize("schedule", [netsplit.AutoSchedule(time_limit_s=1.0, microbatches=4), GPipe(4)])
def test_a_named_number_is_warned_of_once(
    schedule: Any, pools: Pools, caplog: pytest.LogCaptureFixture
) -> None:
    method = {"partitioner": "m_topo"} if isinstance(schedule, GPipe) else {}
    with caplog.at_level(logging.WARNING):
        trained(pools, nn.CrossEntropyLoss(ignore_index=1), schedule, **method)
    warned = [each.getMessage() for each in caplog.records if "gradient accumulation" in each.getMessage()]
    assert len(warned) == 1
    assert warned[0].startswith("the loss of Sequential is ")


@pytest.mark.parametrize("schedule", [netsplit.AutoSchedule(time_limit_s=0.5), GPipe(4)])
def test_a_plan_says_it_too(schedule: Any) -> None:
    whole = netsplit.plan(net(), summed, (X, Y), fast(), schedule=schedule)
    named = isinstance(schedule, GPipe)
    assert whole.schedule.microbatches == (4 if named else 1)
    assert [
        ("gradient accumulation" if named else "kept whole") in note for note in whole.choice.remarks
    ] == [True]
    assert netsplit.plan(net(), nn.CrossEntropyLoss(), (X, Y), fast(), schedule=schedule).choice.remarks == ()


def test_where_only_whole_batches_are_left_and_do_not_fit_the_reason_is_said() -> None:
    spec = netsplit.cpu_cluster(2, capacity=3_000)
    with pytest.raises(InfeasibleError, match="the batch is kept whole"):
        netsplit.plan(net(), summed, (X, Y), spec, schedule=netsplit.AutoSchedule(time_limit_s=0.5))
