"""Batches whose micro-batches would train something else are not cut, unless that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import netsplit
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import CaptureError, InfeasibleError
from netsplit.experiment.here.costs import CostsHere
from netsplit.experiment.whole import cutting as cutting_of_plans
from netsplit.experiment.whole.cutting import RightCuts
from netsplit.experiment.whole.seen_in_graphs import gradients_too
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.apart.cut_apart import CutApart
from netsplit.graph.checks.apart.elsewhere import elsewhere_apart
from netsplit.graph.checks.apart.losses import loss_apart
from netsplit.graph.checks.cutting import CuttingError
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.program.schedules import GPipe
from tests.builders import costs_of
from tests.nets import SGD
from tests.workers import Pools, lent_to_sessions, set_costs

SAMPLES = 16
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(SAMPLES) % 5


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def contrastive(outputs: Tensor, _: Tensor) -> Tensor:
    unit = F.normalize(outputs)
    return F.cross_entropy(unit @ unit.T / 0.1, torch.arange(len(unit), device=unit.device))


def counted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean over samples of losses above a threshold, which on these are all."""
    losses = F.cross_entropy(outputs, targets, reduction="none")
    kept = losses > 1e-6
    return (losses * kept).sum() / kept.sum()


def ranked(outputs: Tensor, targets: Tensor) -> Tensor:
    """With a hinge between neighbours, of which none is that far apart."""
    return F.cross_entropy(outputs, targets) + F.relu(outputs[1:] - outputs[:-1] - 50).mean()


def limited(outputs: Tensor, targets: Tensor) -> Tensor:
    """With a sum over the samples of what is above a limit, which here is nothing."""
    return F.cross_entropy(outputs, targets) + 0.01 * F.relu(outputs - 50).sum()


class Limits(torch.autograd.Function):
    """Its value is not read: of all samples, above a limit that none passes."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        ctx.save_for_backward(outputs)
        return F.relu(outputs - 50).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        return gradients[0] * (outputs > 50)


def limited_unread(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets) + Limits.apply(outputs)  # type: ignore[no-untyped-call]


def net(device: str = "cpu") -> nn.Module:
    torch.manual_seed(3)
    with torch.device(device):
        return nn.Sequential(
            nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5)
        ).double()


def fast() -> ClusterSpec:
    return replace(netsplit.cpu_cluster(2), latency_s=0.0, bandwidth=1e12)


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators take as long as they have samples, so that cutting pays."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3 * graph.batch_size, 2e-3 * graph.batch_size))
    monkeypatch.setattr(CostsHere, "in_turn", lambda *_: {})


def trained(
    pools: Pools, loss: Any, targets: Tensor = Y, **open_: Any
) -> tuple[WholePlan, list[float], dict[str, Tensor]]:
    schedule = netsplit.AutoSchedule(time_limit_s=1.0, **open_)
    with lent_to_sessions(pools):
        parallel = netsplit.parallelize(
            net(), loss, (X, targets), cluster=fast(), schedule=schedule, optimizer=SGD, progress=False
        )
    with parallel:
        assert parallel.whole_plan is not None
        losses = [parallel.train_batch(X, targets) for _ in range(2)]
        return parallel.whole_plan, losses, parallel.state_dict()


def plainly(loss: Any, targets: Tensor = Y) -> tuple[list[float], dict[str, Tensor]]:
    """Whole batches in plain PyTorch."""
    model = net()
    optimizer, losses = SGD(list(model.parameters())), []
    for _ in range(2):
        value = loss(model(X), targets)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses, model.state_dict()


@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (summed, "is a sum over the samples"),
        (contrastive, "is no mean"),
        (counted, "mixes samples other than by their mean"),
        (ranked, "mixes samples other than by their mean"),
        (limited, "mixes samples other than by their mean at 'sum'"),
        (limited_unread, "with outputs 1,000 times as large, the loss of"),
    ],
)
def test_what_is_no_mean_over_the_samples_is_trained_on_whole_batches(
    loss: Any, said: str, pools: Pools
) -> None:
    assert trained(pools, nn.CrossEntropyLoss())[0].schedule.microbatches > 1
    whole, losses, state = trained(pools, loss)
    assert whole.schedule.microbatches == 1
    assert any(said in note and "kept whole" in note for note in whole.notes)
    wanted, plain = plainly(loss)
    assert losses == pytest.approx(wanted, rel=1e-9)
    torch.testing.assert_close(state, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("by_size")
def test_micro_batches_that_are_asked_for_are_taken_with_a_remark_but_no_sum_is(pools: Pools) -> None:
    whole, *_ = trained(pools, contrastive, microbatches=4)
    assert whole.schedule.microbatches == 4
    assert any("is no mean over samples alone" in note for note in whole.to_dict()["notes"])
    assert "is no mean over samples alone" in str(whole)
    whole, *_ = trained(pools, counted, microbatches=4)
    assert whole.schedule.microbatches == 4
    assert "need not be on others; each micro-batch trains with its own" in str(whole)
    with pytest.raises(CaptureError, match=r"is a sum over the samples"):
        trained(pools, summed, microbatches=4)
    assert trained(pools, summed, microbatches=[1, 4])[0].schedule.microbatches == 1


@pytest.mark.usefixtures("by_size")
def test_what_is_seen_at_the_decided_size_alone_is_decided_anew(pools: Pools) -> None:
    """The targets of samples 0 to 3 do not count: the first of four micro-batches has none that does."""
    loss = nn.CrossEntropyLoss(ignore_index=0)
    targets = torch.where(torch.arange(SAMPLES) < 4, 0, 1 + Y % 4)
    assert trained(pools, nn.CrossEntropyLoss(), targets, microbatches=[1, 4])[0].schedule.microbatches == 4
    whole, losses, state = trained(pools, loss, targets, microbatches=[1, 4])
    assert whole.schedule.microbatches == 1
    assert any(note.startswith("4 micro-batches are left out") for note in whole.notes)
    wanted, plain = plainly(loss, targets)
    assert losses == pytest.approx(wanted, rel=1e-9)
    torch.testing.assert_close(state, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("few", "kept"), [(8, True), (SAMPLES, False)])
def test_first_samples_that_a_micro_batch_has_all_and_the_batch_has_not_keep_it_whole(
    few: int, kept: bool
) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + F.relu(outputs[:few] - 50).mean()

    batch = Batch.of(X, Y)
    cutting = RightCuts(net(), loss, batch, named=False)
    assert cutting.right(capture(net(), loss, batch.rows(0, 4).own()), [1, 2, 4]) == (
        [1] if kept else [1, 2, 4]
    )
    assert any("other than by their mean at 'slice'" in note for note in cutting.told(1)) == kept


@pytest.mark.parametrize(("ignored", "told"), [(9, True), (-100, False)])
def test_targets_that_are_ignored_are_remarked_on_where_none_is_here(ignored: int, told: bool) -> None:
    loss, batch = nn.CrossEntropyLoss(ignore_index=ignored), Batch.of(X, Y)
    cutting = RightCuts(net(), loss, batch, named=False)
    assert cutting.right(capture(net(), loss, batch.rows(0, 4).own()), [1, 2, 4]) == [1, 2, 4]
    assert any("is a mean over the targets that it does not ignore" in n for n in cutting.told(4)) == told
    assert cutting.told(1) == ()


def test_a_loss_weighed_by_classes_keeps_the_batch_whole_though_this_one_has_a_single_class() -> None:
    batch = Batch.of(X, torch.full_like(Y, 2))
    cutting = RightCuts(net(), weighed, batch, named=False)
    assert cutting.right(capture(net(), weighed, batch.rows(0, 4).own()), [1, 2, 4]) == [1]
    assert "other than by their mean at 'cross_entropy_loss'" in cutting.told(1)[0]


class Inside(nn.Module):
    """Answers its loss, with what is above a limit for none of these samples, nor for larger inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.own = net()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        outputs = self.own(F.normalize(x))
        loss: Tensor = F.cross_entropy(outputs, targets) + Limits.apply(outputs)  # type: ignore[no-untyped-call]
        return loss


def test_a_loss_inside_a_model_says_that_larger_outputs_were_not_tried() -> None:
    batch = Batch.of(X, Y)
    cutting = RightCuts(Inside(), None, batch, named=False)
    assert cutting.right(capture(Inside(), None, batch.rows(0, 4).own()), [1, 2, 4]) == [1, 2, 4]
    (told,) = cutting.told(4)
    assert "'Limits' stays Python" in told
    assert told.endswith("as its loss is inside it, larger outputs could not be tried")


def test_a_loss_that_stays_python_is_cut_with_a_remark() -> None:
    def picked(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs[targets < 9], targets[targets < 9])

    batch = Batch.of(X, Y)
    cutting = RightCuts(net(), picked, batch, named=False)
    assert cutting.right(capture(net(), picked, batch.rows(0, 2).own()), [1, 2, 4]) == [1, 2, 4]
    assert any("'loss' stays Python, which is not read" in note for note in cutting.told(4))
    assert not cutting.told(1)


ORDINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "two terms": lambda o, y: F.cross_entropy(o, y) + 0.1 * F.relu(o - 50).mean(),
    "no negative outputs": lambda o, y: F.nll_loss(o.softmax(1).log(), y) + o.square().mean(),
    "above 1 is an error": lambda o, y: F.binary_cross_entropy(0.5 + o / 2, F.one_hot(y, 5).to(o)) + o.mean(),
    "too large for exp": lambda o, y: F.cross_entropy(o, y) + o.exp().mean(),
    "by sample": lambda o, y: (
        (F.cross_entropy(o, y, reduction="none") * (o.mean(1) < 9)).mean() + o.var(1).mean()
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_a_mean_over_samples_is_one_of_larger_outputs_too(name: str) -> None:
    batch, model = Batch.of(X, Y), net()
    with torch.no_grad():
        model[-1].weight *= 0.1
    graph = capture(model, ORDINARY[name], batch.rows(0, 2).own())
    assert gradients_too(graph)  # otherwise nothing is looked at but the value
    assert loss_apart(model, ORDINARY[name], batch, graph, 2) is None
    assert elsewhere_apart(model, ORDINARY[name], batch, graph) is None
    assert not model._forward_hooks


def of_five(targets: Tensor) -> Tensor:
    """A class of which the batch has no sample."""
    return (targets == 5).double()


BY_CHANCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "places by a dot product": lambda o, y: torch.dot(of_five(y) * o[:, 0], torch.arange(len(o)).double()),
    "places by a mask": lambda o, y: (of_five(y) * o[:, 0]).masked_fill(torch.arange(len(o)) > 3, 0.0).mean(),
    "neighbours": lambda o, y: F.max_pool1d((of_five(y) * o[:, 0])[None], 3, 1, 1).mean(),
    "added to classes": lambda o, y: o.new_zeros(6).index_add(0, y, o[:, 0])[5],
}


@pytest.mark.parametrize("name", BY_CHANCE)
def test_what_is_0_by_chance_is_seen_on_drawn_values(name: str) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + BY_CHANCE[name](outputs, targets)

    batch, model = Batch.of(X, Y), nn.Linear(6, 6).double()
    graph = capture(model, loss, batch.rows(0, 2).own())
    assert loss_apart(model, loss, batch, graph, 2) is None
    apart = elsewhere_apart(model, loss, batch, graph)
    assert apart is not None
    assert "on drawn values" in str(apart)


@pytest.mark.parametrize(
    "chosen",
    [
        lambda x, y: y == 8,
        lambda x, y: (y > 6) & (y < 9),
        lambda x, y: y // 4 == 2,
        lambda x, y: F.one_hot(y, 10)[:, 7] > 0,
        lambda x, y: x[:, 0] > 8.5,
        lambda x, y: (x.square() + 1).log()[:, 0] > 4,
    ],
    ids=["a class", "classes", "a class of classes", "one hot", "far inputs", "far logarithms"],
)
def test_numbers_that_are_compared_with_and_all_classes_are_drawn(
    chosen: Callable[[Tensor, Tensor], Tensor],
) -> None:
    def loss(outputs: Tensor, y: Tensor, x: Tensor) -> Tensor:
        term = torch.dot(chosen(x, y) * outputs[:, 0], torch.arange(len(outputs)).double())
        return F.cross_entropy(outputs, y) + term

    batch, model = Batch.of(X, (Y, X)), nn.Linear(6, 10).double()
    graph = capture(model, loss, batch.rows(0, 2).own())
    assert loss_apart(model, loss, batch, graph, 2) is None
    assert elsewhere_apart(model, loss, batch, graph) is not None


def test_numbers_keep_their_signs_where_a_loss_has_no_value_otherwise() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        far = (targets > 7.5) * outputs[:, 0]
        return F.mse_loss(outputs[:, 0], targets.log()) + torch.dot(far, torch.arange(len(far)).double())

    batch, model = Batch.of(X, X[:, 0].abs() + 0.01), net()
    graph = capture(model, loss, batch.rows(0, 2).own())
    assert loss_apart(model, loss, batch, graph, 2) is None
    assert elsewhere_apart(model, loss, batch, graph) is not None


def test_targets_of_which_all_are_ignored_hide_none_of_the_others() -> None:
    def loss(outputs: Tensor, targets: Tensor, _: Tensor, compared: Tensor) -> Tensor:
        far = (targets == 4) & (compared < float("inf"))
        return F.cross_entropy(outputs, targets % 4) + torch.dot(
            far * outputs[:, 0], torch.arange(len(far)).double()
        )

    batch, model = Batch.of(X, (Y % 4, torch.full((SAMPLES,), -100), Y)), net()
    graph = capture(model, loss, batch.rows(0, 2).own())
    assert loss_apart(model, loss, batch, graph, 2) is None
    assert elsewhere_apart(model, loss, batch, graph) is not None


def test_numbers_that_something_is_looked_up_by_get_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of bounds they end a GPU's process."""
    drawn = list[Batch]()
    where = "netsplit.graph.checks.apart.elsewhere.losses_apart"
    monkeypatch.setattr(where, lambda _, __, batch, *___, **____: drawn.append(batch))
    places = torch.randn(8, 5).double()

    def loss(outputs: Tensor, columns: Tensor) -> Tensor:
        return F.mse_loss(outputs, F.embedding(columns[:, 0].long(), places))

    model, columns = net(), (X.abs() * 2).clamp(max=7)
    batch = Batch.of(X, columns)
    elsewhere_apart(model, loss, batch, capture(model, loss, batch.rows(0, 2).own()))
    assert drawn
    assert all(torch.equal(each.tensors[1], columns[: each.samples]) for each in drawn)


class Places(nn.Module):
    """Rows of a parameter beside those of the samples."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.out = nn.Parameter(torch.zeros(rows, 6).double()), nn.Linear(12, 5).double()

    def forward(self, x: Tensor) -> Tensor:
        own: Tensor = self.out(torch.cat([x, self.rows[: len(x)].expand_as(x)], 1))
        return own


@pytest.mark.parametrize(("rows", "whole"), [(SAMPLES, True), (1, False)])
def test_rows_by_place_are_seen_by_their_gradients_in_a_loss_of_one_term(rows: int, whole: bool) -> None:
    batch, model = Batch.of(X, Y), Places(rows)
    graph = capture(model, F.cross_entropy, batch.rows(0, 4).own())
    left = RightCuts(model, F.cross_entropy, batch, named=False).right(graph, [1, 4])
    assert (max(left) == 1) == whole


@pytest.mark.parametrize(
    ("term", "whole"),
    [
        (lambda o: (o[:, 0] - 500).relu().view(1, -1).cumsum(1).mean(), True),
        (lambda o: (torch.einsum("ic,jc->ij", o, o) - 5e5).relu().mean(), True),
        (lambda o: (o[:, :1] * o).relu().mean(), False),
    ],
)
def test_samples_are_told_from_one_another_where_micro_batches_have_one(
    term: Callable[[Tensor], Tensor], whole: bool
) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + term(outputs)

    batch, model = Batch.of(X, Y), net()
    cutting = RightCuts(model, loss, batch, named=False)
    left = cutting.right(capture(model, loss, batch.rows(0, 1).own()), [1, SAMPLES])
    assert (max(left) == 1) == whole


class Stop(torch.autograd.Function):
    """No gradient of a loss above a limit."""

    @staticmethod
    def forward(ctx: Any, total: Tensor) -> Tensor:
        ctx.save_for_backward(total)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (total,) = ctx.saved_tensors
        return torch.where(total > 1e9, 0.0, grads[0])


def test_python_that_is_given_a_mean_is_remarked_on() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return Stop.apply(F.cross_entropy(outputs, targets))

    batch, model = Batch.of(X, Y), net()
    cutting = RightCuts(model, loss, batch, named=False)
    cutting.right(capture(model, loss, batch.rows(0, 4).own()), [1, 4])
    assert any("stays Python, which is not read" in note for note in cutting.told(4))


class Rising(nn.Module):
    """A term whose weight is 0 at first."""

    def __init__(self, term: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.term = term
        self.register_buffer("weight", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + self.weight * self.term(outputs)


def test_a_weight_that_is_still_0_hides_nothing() -> None:
    batch, model = Batch.of(X, Y), net()
    for loss, mean in ((Rising(lambda o: o.T @ o.relu()), False), (Rising(torch.square), True)):
        loss.term = lambda o, term=loss.term: term(o).mean()  # type: ignore[misc]
        graph = capture(model, loss, batch.rows(0, 2).own())
        assert loss_apart(model, loss, batch, graph, 2) is None
        assert (elsewhere_apart(model, loss, batch, graph) is None) == mean
        assert not loss.weight.any()


def test_a_0_keeps_its_sign() -> None:
    batch, model, loss = Batch.of(X, Y), net(), Rising(torch.sum)
    loss.weight.neg_()
    elsewhere_apart(model, loss, batch, capture(model, loss, batch.rows(0, 2).own()))
    assert torch.signbit(loss.weight)


def test_flags_that_no_sample_has_are_drawn() -> None:
    flags = torch.zeros(SAMPLES, dtype=torch.bool)

    def loss(outputs: Tensor, targets: Tensor, flags: Tensor) -> Tensor:
        term = (flags * outputs[:, 0]) @ (flags * outputs[:, 1])
        return F.cross_entropy(outputs, targets) + term

    batch, model = Batch.of(X, (Y, flags)), net()
    graph = capture(model, loss, batch.rows(0, 2).own())
    assert loss_apart(model, loss, batch, graph, 2) is None
    assert elsewhere_apart(model, loss, batch, graph) is not None


def test_a_sum_is_seen_however_small_it_is() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e-9 * summed(outputs, targets)

    batch, model = Batch.of(X.float(), Y), net().float()
    apart = loss_apart(model, loss, batch, capture(model, loss, batch.rows(0, 2).own()), 2)
    assert apart is not None
    assert apart.kind == "sum"


def test_targets_with_other_rows_than_the_inputs_are_refused_where_losses_do_not_add_up() -> None:
    """Inputs by steps, then samples."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.mean(0), targets)

    steps, targets = torch.randn(8, 12, 6, dtype=torch.float64), torch.arange(12) % 5
    batch = Batch.of(steps, targets)
    cutting = RightCuts(net(), loss, batch, named=True)
    with pytest.raises(
        CuttingError, match=r"8 samples along their first dimension, and targets of shape \(12,\)"
    ):
        cutting.right(capture(net(), loss, batch.rows(0, 2).own()), [4])
    marked = Batch.of(netsplit.per_sample(steps, dim=1), targets)
    right = RightCuts(net(), loss, marked, named=True)
    assert right.right(capture(net(), loss, marked.rows(0, 3).own()), [4]) == [4]
    assert not right.told(4)


class ByPlace(nn.Module):
    """Adds to a sample what goes by its place, but where the last of its numbers is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.places = nn.Linear(6, 6), nn.Parameter(torch.randn(SAMPLES, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.einsum("b,bc->bc", x[:, -1], self.places[: len(x)])


def test_places_that_a_0_among_the_inputs_hides_are_seen_in_a_loss_of_one_term() -> None:
    x = torch.cat([X[:, :5], torch.zeros(SAMPLES, 1)], 1).double()
    batch, model = Batch.of(x, Y), ByPlace().double()
    graph = capture(model, F.cross_entropy, batch.rows(0, 2).own())
    assert loss_apart(model, F.cross_entropy, batch, graph, 2, gradients=False) is None
    apart = elsewhere_apart(model, F.cross_entropy, batch, graph, several=False)
    assert apart is not None


def test_whole_numbers_that_no_bound_is_kept_of_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lengths, of which too great ones are read from memory that is none of the tensor's."""
    drawn = list[Batch]()
    where = "netsplit.graph.checks.apart.elsewhere.losses_apart"
    monkeypatch.setattr(where, lambda _, __, batch, *___, **____: drawn.append(batch))

    def loss(outputs: Tensor, given: Tensor) -> Tensor:
        steps = outputs.view(len(outputs), 3, 2).permute(1, 0, 2).log_softmax(-1)
        lengths = (torch.full((len(outputs),), 3), given[:, 1])
        return F.ctc_loss(steps, given[:, :1], *lengths, reduction="none").mean()

    model, given = nn.Linear(6, 6).double(), torch.stack([torch.ones(SAMPLES), Y % 2], 1).long()
    batch = Batch.of(X, given)
    elsewhere_apart(model, loss, batch, capture(model, loss, batch.rows(0, 2).own()))
    assert len(drawn) >= 3
    assert all(torch.equal(each.tensors[1], given) for each in drawn)
    assert any(not torch.equal(each.tensors[0], X) for each in drawn)


class Noisy(nn.Module):
    """A variational autoencoder: of samples that are much larger, single draws are, too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.exp(spread / 2) * torch.randn_like(mean)), mean, spread


def evidence(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    again, mean, spread = outputs
    divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)
    return F.mse_loss(again, x) + divergence.mean()


@pytest.mark.parametrize("seed", range(5))
def test_draws_that_scatter_far_between_samples_are_no_reason_to_keep_a_batch_whole(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Noisy(), torch.randn(16, 12)
    graph = capture(model, evidence, Batch.of(x[:2], x[:2]))
    assert elsewhere_apart(model, evidence, Batch.of(x, x), graph) is None

    def summed_too(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
        return evidence(outputs, x) + 1e3 * outputs[1].square().sum()

    graph = capture(model, summed_too, Batch.of(x[:2], x[:2]))
    assert loss_apart(model, summed_too, Batch.of(x, x), graph, 2) is not None


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("loss", "kind"),
    [(summed, "is a sum"), (contrastive, "is no mean"), (counted, "mixes samples other than by their mean")],
)
def test_a_plan_keeps_the_batch_whole_too(loss: Any, kind: str, device: str) -> None:
    """Without values some are drawn."""
    given = (net(device), loss, (X.to(device), Y.to(device)), fast())
    before = {k: t.clone() for k, t in given[0].state_dict().items()}
    open_ = netsplit.AutoSchedule(time_limit_s=0.5)
    whole = netsplit.plan(*given, schedule=open_)
    assert whole.schedule.microbatches == 1
    assert any(kind in note for note in whole.notes)
    assert not netsplit.plan(given[0], nn.CrossEntropyLoss(), *given[2:], schedule=open_).notes
    named: Callable[[], Any] = lambda: netsplit.plan(*given, schedule=GPipe(4))  # noqa: E731
    if loss is summed:
        with pytest.raises(CaptureError, match="is a sum over the samples") as refused:
            named()
        assert str(refused.value).endswith("the schedule 'single_batch', which does not cut batches.")
    else:
        assert any(kind in note for note in named().notes)
    assert all(t.device.type == device for t in given[0].state_dict().values())
    assert device == "meta" or all(torch.equal(t, before[k]) for k, t in given[0].state_dict().items())


class Masked(nn.Module):
    """Attention under a mask that is kept as a buffer of no floating type."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        scores = (x @ x.transpose(-1, -2)).masked_fill(self.mask == 0, -torch.inf)
        y: Tensor = self.out(scores.softmax(-1) @ x)
        return y


def test_a_model_on_meta_whose_mask_is_a_buffer_is_looked_at() -> None:
    def summed_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")

    with torch.device("meta"):
        model = Masked()
    tokens = torch.zeros(8, 4, dtype=torch.long, device="meta")
    open_ = netsplit.AutoSchedule(time_limit_s=0.5)
    whole = netsplit.plan(model, summed_tokens, (tokens, tokens), fast(), schedule=open_)
    assert whole.schedule.microbatches == 1
    assert any("is a sum" in note for note in whole.notes)


def far(outputs: Tensor) -> Tensor:
    return F.relu(outputs - 50).mean()


def looped(outputs: Tensor, targets: Tensor) -> Tensor:
    each = [F.cross_entropy(o[None], y[None]) for o, y in zip(outputs, targets, strict=True)]
    return torch.stack(each).mean()


BY_SIZE: dict[str, Any] = {
    "a step": lambda o, y: F.cross_entropy(o, y) * (2.0 if len(o) > 8 else 1.0),
    "a root": lambda o, y: F.cross_entropy(o, y) + far(o) * len(o) ** 0.5,
    "one less": lambda o, y: F.cross_entropy(o, y) + F.relu(o - 50).sum() / (len(o) - 0.5),
    "a bound": lambda o, y: F.cross_entropy(o, y, reduction="none").clamp(max=100.0 * len(o)).mean(),
    "a sum of ones": lambda o, y: F.cross_entropy(o, y) + far(o) * torch.ones(len(o)).sum(),
}
MEANS: dict[str, Any] = {
    "over the samples": lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(o),
    "over all elements": lambda o, y: F.cross_entropy(o, y) + o.square().sum() / o.numel(),
    "code that stays whole": lambda o, y: F.cross_entropy(o[y < 9], y[y < 9]),
    "over a sum of ones": lambda o, y: (
        F.cross_entropy(o, y) + o.square().sum() / torch.ones(len(o)).sum().clamp(min=1)
    ),
    "over columns, then over the samples": lambda o, y: F.cross_entropy(o, y) + o.sum() / 16 / len(o),
    "a mean over a number": lambda o, y: F.cross_entropy(o, y) + o.square().mean() / 16,
    "a sum times 0": lambda o, y: F.cross_entropy(o, y) + 0.0 * o.sum(),
    "times a share": lambda o, y: F.cross_entropy(o, y, reduction="sum") * (1 / len(o)),
}


@pytest.mark.parametrize(
    ("loss", "by_size"),
    [(loss, True) for loss in BY_SIZE.values()] + [(loss, False) for loss in MEANS.values()],
    ids=[*BY_SIZE, *MEANS],
)
def test_numbers_that_depend_on_how_many_samples_there_are_are_seen_in_two_captures(
    loss: Any, by_size: bool
) -> None:
    batch = Batch.of(X, Y)
    graphs = [capture(net(), loss, batch.rows(0, n).own()) for n in (4, SAMPLES)]
    cutting = RightCuts(net(), loss, batch, named=False)
    assert cutting.at_sizes(*graphs, [1, 4]) == ([1] if by_size else [1, 4])
    assert by_size == any("depends on how many samples there are" in note for note in cutting.remarks)
    named = RightCuts(net(), loss, batch, named=True)
    assert named.at_sizes(*graphs, [1, 4]) == named.at_sizes(*graphs, [1, 4]) == [1, 4]
    assert len(named.remarks) == by_size


@pytest.mark.parametrize(
    "term", [lambda rows: rows.sum() / SAMPLES, lambda rows: rows.sum() * torch.tensor(0.3)]
)
def test_a_number_that_no_size_changes_makes_no_mean_of_a_sum(term: Callable[[Tensor], Tensor]) -> None:
    batch = Batch.of(X, Y)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        rows = (targets == 9)[:, None] * outputs.repeat(1, 4)
        return F.cross_entropy(outputs, targets) + term(rows)

    graphs = [capture(net(), loss, batch.rows(0, n).own()) for n in (4, SAMPLES)]
    cutting = RightCuts(net(), loss, batch, named=False)
    assert cutting.right(graphs[0], [1, 4]) == [1, 4]
    assert cutting.at_sizes(*graphs, [1, 4]) == [1]
    assert any("other than by their mean at 'sum'" in note for note in cutting.remarks)


@pytest.mark.parametrize(
    "loss", [looped, lambda o, y: F.cross_entropy(o, y) + (far(o) if len(o) > 8 else 0.0)]
)
def test_other_operators_at_another_size_are_told(loss: Any) -> None:
    batch = Batch.of(X, Y)
    graphs = [capture(net(), loss, batch.rows(0, n).own()) for n in (4, SAMPLES)]
    cutting = RightCuts(net(), loss, batch, named=False)
    assert cutting.right(graphs[0], [1, 4]) == cutting.at_sizes(*graphs, [1, 4]) == [1, 4]
    assert any("other operators for 4 samples than for 16" in note for note in cutting.told(4))


def test_a_plan_does_not_cut_by_a_number_of_samples() -> None:
    def stepped(outputs: Tensor, targets: Tensor) -> Tensor:  # above what is looked at with drawn values
        return F.cross_entropy(outputs, targets) * (2.0 if len(outputs) > 32 else 1.0)

    open_, batch = netsplit.AutoSchedule(time_limit_s=0.5), (X.repeat(4, 1), Y.repeat(4))
    whole = netsplit.plan(net(), stepped, batch, fast(), schedule=open_)
    assert whole.schedule.microbatches == 1
    assert any("depends on how many samples there are, at 'mul" in note for note in whole.notes)


WEIGHTS = torch.tensor([1.0, 5.0, 1.0, 1.0, 1.0], dtype=torch.float64)


def weighed(outputs: Tensor, targets: Tensor) -> Tensor:
    """By classes, whatever else is drawn."""
    return F.cross_entropy(outputs, targets, weight=WEIGHTS)


@pytest.mark.parametrize("loss", [weighed, summed, contrastive, nn.CrossEntropyLoss()])
def test_of_drawn_samples_few_are_computed_and_all_that_is_apart_is_seen(
    monkeypatch: pytest.MonkeyPatch, loss: Any
) -> None:
    """Two samples, at once and each alone; where these do not add up two by two as well, and that counts."""
    model, batch = net("meta"), Batch.of(X.to("meta"), Y.to("meta"))
    graph = capture(model, nn.CrossEntropyLoss(), batch)
    sizes: list[int] = []

    def noted(*args: Any, **keys: Any) -> CutApart | None:
        sizes.append(args[4])
        return loss_apart(*args, **keys)

    monkeypatch.setattr(cutting_of_plans, "loss_apart", noted)
    cutting = RightCuts(model, loss, batch, named=False)
    means = isinstance(loss, nn.Module)
    assert cutting.right(graph, [1, 4, 8]) == ([1, 4, 8] if means else [1])
    assert sizes == ([1] if means else [1, 2])
    assert bool(cutting.remarks) != means


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """No number on one sample alone."""
    return F.cross_entropy(outputs, targets) + 50 * outputs.var(0).mean()


@pytest.mark.filterwarnings("ignore:var\\(\\)")
def test_a_loss_that_is_no_number_on_the_smallest_micro_batches_is_looked_at_on_larger_ones() -> None:
    open_ = netsplit.AutoSchedule(microbatches=[1, SAMPLES], time_limit_s=0.5)
    whole = netsplit.plan(net(), spread, (X, Y), fast(), schedule=open_)
    assert whole.schedule.microbatches == 1
    assert any(f"{SAMPLES} micro-batches are left out" in note for note in whole.notes)
    cutting = RightCuts(net(), spread, Batch.of(X, Y), named=False)
    graph = capture(net(), spread, (X, Y))
    assert cutting.right(graph, [1, 2, SAMPLES]) == [1]
    assert any("is no mean" in remark for remark in cutting.remarks)


def test_where_only_whole_batches_are_left_and_do_not_fit_the_reason_is_said() -> None:
    spec = netsplit.cpu_cluster(2, capacity=10_000)
    with pytest.raises(InfeasibleError, match="is a sum over the samples"):
        netsplit.plan(net(), summed, (X, Y), spec, schedule=netsplit.AutoSchedule(time_limit_s=0.5))


def test_a_model_too_large_to_draw_is_said_not_to_have_been_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("netsplit.experiment.whole.cutting.DRAWN_BYTES", 100)
    model, batch = net("meta"), Batch.of(X.to("meta"), Y.to("meta"))
    graph = capture(model, nn.CrossEntropyLoss(), batch)
    cutting = RightCuts(model, nn.CrossEntropyLoss(), batch, named=False)
    assert cutting.right(graph, [1, 4]) == [1, 4]
    assert cutting.told(1) == ()
    assert "not checked" in cutting.told(4)[0]


@dataclass(frozen=True)
class Decided:
    """As much of a whole plan as is asked for."""

    microbatches: int
    notes: tuple[str, ...] = ()

    @property
    def schedule(self) -> GPipe:
        return GPipe(self.microbatches)


APART = {kind: CutApart(kind, f"it is {kind}") for kind in ("sum", "other", "no number", "kept")}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "kind", "left"),
    [
        (False, "sum", [1]), (False, "other", [1]), (False, "kept", [1]), (False, "no number", [1, 2]),
        (True, "sum", [1]), (True, "other", [1, 2, 4]), (True, "kept", [1]), (True, "no number", [1, 2]),
    ],
)  # fmt: skip
def test_numbers_are_left_out_when_the_decided_one_is_refused(
    named: bool, kind: str, left: list[int]
) -> None:
    asked: list[Sequence[int]] = []

    def decide(counts: Sequence[int]) -> Any:
        asked.append(list(counts))
        return Decided(max(counts))

    def planner(plan: Any, alike: bool) -> Any:
        if plan.microbatches == 4 and (alike or kind != "other"):
            raise CuttingError(APART[kind])
        return SimpleNamespace(decided=plan)

    cutting = RightCuts(net(), None, Batch.of(X, Y), named)
    made = cutting.decided(decide, planner, [1, 2, 4]).decided
    assert made.microbatches == max(left)
    assert asked == ([[1, 2, 4]] if left == [1, 2, 4] else [[1, 2, 4], left])
    assert any(f"it is {kind}" in remark for remark in cutting.told(1))
    if left == [1, 2, 4]:
        assert made.notes == tuple(cutting.remarks)
    with pytest.raises(CuttingError):
        RightCuts(net(), None, Batch.of(X, Y), named=False).without([4], 4, APART[kind])


def compact(outputs: Tensor, targets: Tensor) -> Tensor:
    kept = torch.zeros_like(outputs[:, 0]).masked_scatter(outputs[:, 1] > 0, outputs[:, 0])
    return F.cross_entropy(outputs, targets) + ((targets // 100 == 4) * kept).mean()


def by_roots(outputs: Tensor, targets: Tensor) -> Tensor:
    far = (targets // 100 == 4) * outputs[:, 0]
    return F.cross_entropy(outputs, targets) + far.mean() / len(outputs) ** 0.5


SAID: dict[str, tuple[Any, str]] = {
    "an operator of which nothing is known": (
        compact, r"whether 'masked_scatter' \(.*\) goes sample by sample is not known",
    ),
    "a number by the size": (by_roots, "computes with a number that depends on how many samples there are"),
    "a loop": (looped, "it has other operators for 4 samples than for 16"),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "words"), SAID.values(), ids=SAID)
@pytest.mark.parametrize("order", [GPipe(4), netsplit.AutoSchedule(time_limit_s=0.5, microbatches=4)])
def test_micro_batches_that_are_asked_for_get_their_word_where_no_number_shows_it(
    order: Any, loss: Any, words: str
) -> None:
    whole = netsplit.plan(net(), loss, (X, Y), fast(), schedule=order)
    assert whole.schedule.microbatches == 4
    assert any(re.search(words, note) for note in whole.notes), whole.notes


@pytest.mark.parametrize(("loss", "words"), SAID.values(), ids=SAID)
def test_a_training_under_a_named_schedule_says_it_too(
    pools: Pools, caplog: pytest.LogCaptureFixture, loss: Any, words: str
) -> None:
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(net(), loss, (X, Y), schedule=GPipe(4), partitioner="m_topo", progress=False),
    ):
        assert any(re.search(words, record.getMessage()) for record in caplog.records)
    caplog.clear()
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            net(), F.cross_entropy, (X, Y), schedule=GPipe(4), partitioner="m_topo", progress=False
        ),
    ):
        assert not any("seen that losses" in record.getMessage() for record in caplog.records)
