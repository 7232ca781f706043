"""Parameters in parts: each device has its own part, gradient and moments, and all else sees wholes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import netsplit
from netsplit.errors import ConfigError, InfeasibleError, RewriteError
from netsplit.graph import Graph, capture, files, initial_values
from netsplit.optim.optimizers import for_model
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.schedules import ZBH1, Interleaved, OneFOneB
from netsplit.rewrite import ReadWeights, Rewrite, Split, applied, split_axes
from netsplit.runtime.checkpoint.shares import load_plain
from netsplit.runtime.checkpoint.torch_format import whole_tensors
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import cpus
from tests.examples import tried
from tests.nets import Case
from tests.rewrite.test_training import side_by_side
from tests.runtime.checkpoint.test_checkpoint import restore, save
from tests.runtime.equivalence.running import PATIENT, assert_same, compiled
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools, lent_to_sessions

ADAMW = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)
SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "gpipe": GPipe(4),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
    "interleaved_1f1b": Interleaved(4),
}
UNEVEN: tuple[Rewrite, ...] = (
    Split("linear", 1, (6, 10)),
    Split("gelu", 1, (6, 10)),
    Split("linear_1", "input.1", (6, 10)),
)
OTHERS: tuple[Rewrite, ...] = (Split("linear", "input.1", (4, 8)), Split("linear_1", 1, (3, 3, 4)))


def mlp() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 10)).double()


def batches(steps: int = 3, samples: int = 8) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        (
            (torch.randn(samples, 12, generator=draw, dtype=torch.float64),),
            torch.randint(10, (samples,), generator=draw),
        )
        for _ in range(steps)
    ]


LOSS = nn.CrossEntropyLoss()


def split_graph(rewrites: tuple[Rewrite, ...], size: int = 2) -> Graph:
    (x,), y = batches()[0]
    return applied(capture(mlp(), LOSS, (x[:size], y[:size])), rewrites)


def runtime_of(rewrites: tuple[Rewrite, ...], optimizer: Any, **options: Any) -> LocalRuntime:
    graph = split_graph(rewrites)
    shared = options["rule"].shared_norm if "rule" in options else False
    program = compiled(graph, side_by_side(graph), 2, GPipe(4), shared_norm=shared)
    return LocalRuntime(program, cpus(2), initial_values(mlp(), graph), optimizer, **options)


def test_a_part_is_an_initializer_with_the_whole_s_name_and_its_offsets() -> None:
    graph = split_graph(UNEVEN)
    part = graph.initializers["0.weight[6:16, :]"]
    assert (part.shape, part.region.offsets, part.region.shape) == ((10, 12), (6, 0), (16, 12))  # type: ignore[union-attr]
    assert part.whole == split_graph(()).initializers["0.weight"]
    assert graph.nodes["linear:1"].initializers == ("0.weight[6:16, :]", "0.bias[6:16]")
    assert graph.wholes.keys() == split_graph(()).initializers.keys()
    assert not any({"linear:0", "linear:1"} <= set(each) for each in graph.colocated)
    assert files.loads(files.dumps(graph)).initializers == graph.initializers


def test_a_part_that_is_read_elsewhere_is_a_variable() -> None:
    graph = split_graph((*UNEVEN, ReadWeights("linear:1")))
    assert graph.nodes["linear:1"].initializers == ()
    assert graph.nodes["0.weight[6:16, :]:read"].initializers == ("0.weight[6:16, :]",)
    assert split_axes(graph, "0.weight[6:16, :]:read") == {}
    with pytest.raises(RewriteError, match="or its reader"):
        applied(graph, (*graph.rewrites, Split("0.weight[6:16, :]:read", 0, (5, 5))))


def test_what_overlaps_stays_whole() -> None:
    """The table's words are in parts for one reader, its width for another: one device has it all."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
            self.out.weight = self.words.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(torch.tanh(self.words(tokens)))

    torch.manual_seed(0)
    model, tokens = Tied().double(), torch.arange(8) % 10
    graph = capture(model, LOSS, (tokens, tokens.roll(1)))
    words = Split("embedding", "weight.0", (4, 6))
    alike = applied(graph, (words, Split("linear", 1, (4, 6))))
    assert sorted(alike.initializers) == ["words.weight[0:4, :]", "words.weight[4:10, :]"]
    across = applied(graph, (words, Split("linear", "input.1", (3, 3))))
    assert list(across.initializers) == ["words.weight"]
    given = [((tokens,), tokens.roll(n)) for n in range(3)]
    wanted = plain_loop(model, LOSS, given, 8, ADAMW)
    for each in (alike, across):
        torch.manual_seed(0)
        program = compiled(each, side_by_side(each), 2, SingleBatch())
        runtime = LocalRuntime(program, cpus(2), initial_values(Tied().double(), each), ADAMW)
        trained = Trained([runtime.train_batch(*batch) for batch in given], runtime.state())
        assert_same(trained, wanted)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
def test_parts_train_as_the_whole(pools: Pools, schedule: str, optimizer: Any) -> None:
    """On workers, clipped by one norm over all parts; no device has anything of a parameter whole."""
    order = SCHEDULES[schedule].for_batch(8)
    size = order.microbatch_size(8)
    graph = split_graph(UNEVEN, size)
    program = compiled(graph, side_by_side(graph), 2, order, shared_norm=True)
    assert {k for own in program.held.values() for k in own if not graph.initializers[k].region} == {"2.bias"}
    assert all(program.held.values())
    runtime = DistributedRuntime(
        program, pools(2), initial_values(mlp(), graph), optimizer, UpdateRule(clip_norm=0.1)
    )
    trained = Trained([runtime.train_batch(*batch) for batch in batches()], runtime.state())
    assert_same(trained, plain_loop(mlp(), LOSS, batches(), size, optimizer, clip_norm=0.1))


@settings(PATIENT, max_examples=tried(12))
@given(data=st.data())
def test_a_training_saved_in_any_parts_goes_on_in_any_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Moments and averages too, in parts, whole and in plain PyTorch; whichever comes first."""
    kinds: list[tuple[Rewrite, ...]] = [UNEVEN, OTHERS, ()]
    first, second = (data.draw(st.sampled_from(kinds), label=label) for label in ("saved", "resumed"))
    folder = tmp_path_factory.mktemp("parts") / "checkpoint"
    rule = UpdateRule(ema_decay=0.5, clip_norm=0.3)
    given_batches = batches(4)
    before = workerless(first, rule)
    losses = [before.train_batch(*batch) for batch in given_batches[:2]]
    (x,), y = given_batches[0]
    save(before, Case("parts", mlp, (x,), y), folder)
    after = workerless(second, rule)
    restore(after, folder)
    losses += [after.train_batch(*batch) for batch in given_batches[2:]]
    wanted = plain_loop(mlp(), LOSS, given_batches, 2, ADAMW, clip_norm=0.3)
    assert_same(Trained(losses, after.state()), wanted)
    averaged = plain_loop(mlp(), LOSS, given_batches, 2, ADAMW, clip_norm=0.3, averages=average)
    assert_same(Trained(losses, averages_of(after)), averaged)
    plain, optimizer, kept = mlp(), None, None
    for parameter in plain.parameters():
        parameter.data.zero_()
    optimizer, kept = ADAMW(plain.parameters()), AveragedModel(plain)
    load_plain(folder, plain, optimizer, averages=kept)
    for k, tensor in before.state().items():
        torch.testing.assert_close(plain.state_dict()[k], tensor, rtol=0, atol=0)
    (x,), y = given_batches[2]
    for part, target in zip(x.split(2), y.split(2), strict=True):
        (LOSS(plain(part), target) / 4).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
    optimizer.step()
    torch_file = folder.parent / "whole.pt"
    dcp_to_torch_save(folder, torch_file)
    whole = torch.load(torch_file, weights_only=True)
    assert whole["model"].keys() == plain.state_dict().keys()
    (x,), y = given_batches[3]
    losses_here = [LOSS(plain(a), b).item() for a, b in zip(x.split(2), y.split(2), strict=True)]
    assert sum(losses_here) / 4 == pytest.approx(wanted.losses[3], rel=1e-9)


def workerless(rewrites: tuple[Rewrite, ...], rule: UpdateRule) -> LocalRuntime:
    return runtime_of(rewrites, ADAMW, rule=rule)


def average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))


def averages_of(runtime: LocalRuntime) -> dict[str, Tensor]:
    shares = [share for share in runtime.shares.values() if share.averages is not None]
    tensors = {k: t for share in shares for k, t in share.averages.values.items()}  # type: ignore[union-attr]
    return whole_tensors(tensors, runtime.program.graph.regions)


class Normed(torch.optim.Optimizer):
    """A step of the parameter's own norm, in its gradient's direction (as LARS)."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.sub_(group["lr"] * p.data.norm() * p.grad / p.grad.norm())


@pytest.mark.parametrize("factory", [torch.optim.Adafactor, torch.optim.Muon, Normed])
def test_an_optimizer_that_is_not_element_wise_is_refused_on_parts(factory: Any) -> None:
    weights_only = nn.Sequential(nn.Linear(12, 16, bias=False), nn.Linear(16, 10, bias=False)).double()
    (x,), y = batches()[0]
    graph = capture(weights_only, LOSS, (x[:2], y[:2]))
    values = initial_values(weights_only, graph)

    def made(each: Graph) -> LocalRuntime:
        program = compiled(each, side_by_side(each), 2, GPipe(4))
        return LocalRuntime(program, cpus(2), initial_values(weights_only, each), factory)

    assert values.keys() == graph.initializers.keys()
    made(graph)
    with pytest.raises(ConfigError, match=r"updates parts of '0\.weight' differently"):
        made(applied(graph, (Split("linear", 1, (6, 10)),)))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop"])
def test_an_element_wise_optimizer_steps_on_parts(kind: str) -> None:
    runtime = runtime_of(UNEVEN, getattr(torch.optim, kind))
    trained = Trained([runtime.train_batch(*batch) for batch in batches()], runtime.state())
    wanted = plain_loop(mlp(), LOSS, batches(), 2, getattr(torch.optim, kind))
    assert_same(trained, wanted)


def test_prediction_puts_together_what_it_reads_whole(pools: Pools) -> None:
    """Covers fewer samples than an operator has parts, and two cut dimensions of a weight."""
    (x,), y = batches(1)[0]
    quarters = (Split("linear:1", "input.1", (5, 7)), Split("gelu:0", 0, (1, 1)))
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            mlp(), LOSS, (x, y), partitioner=SideBySideColumns(rewrites=UNEVEN + quarters), schedule=GPipe(4),
            optimizer=ADAMW, profile="predicted", progress=False,
        ) as trained,
    ):  # fmt: skip
        trained.train_batch(x, y)
        state = trained.state_dict()
        said = [trained.predict(x[:count]) for count in (1, 2, 8)]
        graphs = [program.graph for program in trained.runtime.loaded]
    assert "0.weight[6:16, 5:12]" in graphs[0].regions
    assert ["linear:1:1" in each.nodes for each in graphs] == [True, False, True, True]
    plain = mlp()
    plain.load_state_dict(state)
    for count, made in zip((1, 2, 8), said, strict=True):
        torch.testing.assert_close(made, plain(x[:count]), rtol=1e-9, atol=1e-9)


@dataclass
class SideBySideColumns(Partitioner):
    """Second parts on the second device."""

    name = "columns"
    rewrites: tuple[Rewrite, ...] = ()

    def choose(self, problem: Problem) -> Choice:
        graph = applied(problem.graph, self.rewrites)
        return Choice(side_by_side(graph), rewrites=self.rewrites)


def test_a_layer_that_fits_no_device_trains_in_parts(pools: Pools, tmp_path: Path) -> None:
    """Weight, gradient and moments of one linear layer are more than either worker may hold."""

    def wide() -> nn.Sequential:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 10))

    torch.manual_seed(3)
    given_batches = [((torch.randn(16, 64),), torch.randint(10, (16,))) for _ in range(3)]
    adam = partial(torch.optim.Adam, lr=1e-3)
    spec = replace(netsplit.cpu_cluster(2, capacity="4MiB"), latency_s=1e-5, bandwidth=1e9)

    def split(partitioner: Partitioner | str) -> netsplit.ParallelModel:
        (x,), y = given_batches[0]
        return netsplit.parallelize(
            wide(), LOSS, (x, y), cluster=spec, partitioner=partitioner, schedule=GPipe(4), optimizer=adam,
            profile="predicted", progress=False,
        )  # fmt: skip

    halves = (2048, 2048)
    cut = (Split("linear", 1, halves), Split("gelu", 1, halves), Split("linear_1", "input.1", halves))
    assert 4 * 64 * 4096 * 4 > 4 * 2**20 * 0.99
    with lent_to_sessions(pools):
        with pytest.raises(InfeasibleError):
            split("m_topo")
        with split(SideBySideColumns(rewrites=cut)) as trained:
            losses = [trained.train_batch(*batch) for batch in given_batches[:2]]
            trained.save_checkpoint(tmp_path / "two")
            (x,), y = given_batches[2]
            loss, timeline = trained.measure_batch((x,), y, bytes_too=True)
            losses.append(loss)
            assert max(timeline.peak_bytes.values()) < 4 * 2**20
            state, said = trained.state_dict(), trained.predict(x)
            graphs = [program.graph for program in trained.runtime.loaded]
            assert len(graphs) > 1
            assert all(each.nodes["linear:1"].initializers[0] == "0.weight[2048:4096, :]" for each in graphs)
            trained.load_checkpoint(tmp_path / "two")
            assert trained.train_batch((x,), y) == losses[-1]
    wanted = plain_loop(wide(), LOSS, given_batches, 4, adam)
    assert losses == pytest.approx(wanted.losses, rel=1e-5)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-4, atol=1e-5)
    plain = wide()
    plain.load_state_dict(state)
    torch.testing.assert_close(said, plain(x), rtol=1e-4, atol=1e-5)


def test_values_come_and_go_whole(pools: Pools) -> None:
    """A model without memory, whose workers cut parts out of what they draw; averages; a state put there."""
    spec = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 10))
    source = netsplit.SeededWeights(3)
    plain = source.fill(nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 10)))
    given_batches = [((x.float(),), y) for (x,), y in batches(3)]
    (x,), y = given_batches[0]

    def split(one: nn.Module, **options: Any) -> netsplit.ParallelModel:
        return netsplit.parallelize(
            one, LOSS, (x, y), cluster=spec, partitioner=SideBySideColumns(rewrites=UNEVEN),
            schedule=GPipe(4), optimizer=ADAMW, ema_decay=0.5, profile="predicted", progress=False, **options,
        )  # fmt: skip

    with lent_to_sessions(pools), split(model, weights=source) as trained:
        drawn = trained.state_dict()
        losses = [trained.train_batch(*batch) for batch in given_batches]
        state, averages = trained.state_dict(), trained.ema_state_dict()
    for k, tensor in plain.state_dict().items():
        assert torch.equal(drawn[k], tensor), k
    wanted = plain_loop(plain, LOSS, given_batches, 2, ADAMW)
    assert losses == pytest.approx(wanted.losses, rel=1e-5)
    again = source.fill(nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 10)))
    averaged = plain_loop(again, LOSS, given_batches, 2, ADAMW, averages=average)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(averages[k], averaged.state[k], rtol=1e-4, atol=1e-6)
    with lent_to_sessions(pools), split(source.fill(plain)) as other:
        other.load_state_dict(state)
        assert all(torch.equal(tensor, state[k]) for k, tensor in other.state_dict().items())


def test_parts_move_when_the_plan_is_another(pools: Pools) -> None:
    """With their moments and averages, and a learning rate that was set; each to the other device."""
    graph = split_graph(UNEVEN)
    homes = side_by_side(graph)
    other = {name: "cpu:1" if home == "cpu:0" else "cpu:0" for name, home in homes.items()}
    first, second = (compiled(graph, placed, 2, GPipe(4), shared_norm=True) for placed in (homes, other))
    bound = for_model(ADAMW, mlp())
    rule = UpdateRule(clip_norm=0.3, ema_decay=0.5)
    runtime = DistributedRuntime(first, pools(2), initial_values(mlp(), graph), bound, rule)
    losses = [runtime.train_batch(*batch) for batch in batches(4)[:2]]
    runtime.learning_rates = [0.03]
    before = runtime.state(averaged=True)
    nbytes = sum(t.nbytes for t in mlp().state_dict().values())
    assert runtime.switch(second, None) == pytest.approx(4 * nbytes)
    assert runtime.learning_rates == [0.03]
    for k, tensor in runtime.state(averaged=True).items():
        assert torch.equal(tensor, before[k])
    losses += [runtime.train_batch(*batch) for batch in batches(4)[2:]]

    def faster(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else 3.0)

    wanted = plain_loop(mlp(), LOSS, batches(4), 2, ADAMW, clip_norm=0.3, scheduler=faster)
    assert_same(Trained(losses, runtime.state()), wanted)
