"""Copies of parameters: their gradients are summed, they stay alike, and all else knows of one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import netsplit
from netsplit.errors import ConfigError, RewriteError
from netsplit.formats.placements import read_placement
from netsplit.graph import Graph, capture, files, initial_values
from netsplit.optim.optimizers import for_model
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.profile.costs import Offload
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.instructions import Reduce
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, OneFOneB
from netsplit.rewrite import CopyWeights, Rewrite, Split, applied, replicate, rewrite_from, split_axes
from netsplit.rewrite.samples import reads_weights
from netsplit.runtime.checkpoint.files import Saved
from netsplit.runtime.checkpoint.shares import load_plain
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from netsplit.simulate.simulate import memory_profile
from netsplit.simulate.tasks import reduce_bytes, reduce_seconds
from tests.builders import cpus
from tests.cover import covering
from tests.examples import tried
from tests.nets import CASES, Case
from tests.profile.measure.test_memory_meter import metered_iteration
from tests.rewrite.models import STEPS, assert_same_step
from tests.rewrite.test_parts import ADAMW, LOSS, MOMENTUM, average, averages_of, batches, mlp
from tests.runtime.checkpoint.test_checkpoint import restore, save
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    local,
    plain,
    scattered,
)
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools, lent_to_sessions

SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "gpipe": GPipe(4),
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
}


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_parts_of_the_batch_with_copies_train_what_the_whole_does(name: str, parts: int) -> None:
    """In one process, where plain autograd gives each copy the gradient of its own readers."""
    step = STEPS[name]
    rewrites = replicate(step.graph(), parts)
    assert tuple(rewrite_from(json.loads(json.dumps(each.to_dict()))) for each in rewrites) == rewrites
    graph = applied(step.graph(), rewrites)
    assert any(init.held_as != k for k, init in graph.initializers.items())
    assert files.loads(files.dumps(graph)).initializers == graph.initializers
    assert_same_step(step, graph)


class Crossed(nn.Module):
    """Attention to something else, whose keys' and values' weights torch cuts out of one."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.attention = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        said = self.inward(x)
        other = torch.tanh(said)
        seen, _ = self.attention(said, other, other, need_weights=False)
        made: torch.Tensor = self.head(seen.amax(1))
        return made


def test_what_the_model_cuts_out_of_a_weight_is_copied() -> None:
    """Each part has regions of the weight, and the model's own cut is gone."""
    step = replace(STEPS["recurrent"], build=Crossed)
    graph = applied(step.graph(), replicate(step.graph(), 2))
    assert "split_with_sizes" in step.graph().nodes
    assert "split_with_sizes" not in graph.nodes
    assert {
        "attention.in_proj_weight[0:8, :]~1",
        "attention.in_proj_weight[8:24, :]",
    } <= graph.initializers.keys()
    assert_same_step(step, graph)


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(4))
@given(data=st.data())
def test_any_operators_may_read_any_copies(name: str, data: st.DataObject) -> None:
    """Draws copies of parts cut along any axes; any number may be the first to be read."""
    assert_same_step(STEPS[name], drawn_copies(data, STEPS[name].graph()))


def drawn_copies(data: st.DataObject, graph: Graph) -> Graph:
    """Some operators along the samples, some otherwise, and copies for some of their readers."""
    splits = list(replicate(graph, 2)) if data.draw(st.booleans(), label="replicate") else []
    for each in splits:
        if isinstance(each, Split) or data.draw(st.booleans(), label=str(each)):
            graph = applied(graph, (*graph.rewrites, each))
    for _ in range(data.draw(st.integers(0, 3), label="splits")):
        node = data.draw(st.sampled_from(reading(graph)), label="node")
        axes = split_axes(graph, node)
        if axes:
            axis = data.draw(st.sampled_from(list(axes)), label="axis")
            first = data.draw(st.integers(1, axes[axis] - 1), label="first")
            graph = applied(graph, (*graph.rewrites, Split(node, axis, (first, axes[axis] - first))))
    for _ in range(data.draw(st.integers(1, 4), label="copies")):
        node = data.draw(st.sampled_from(reading(graph)), label="reader")
        copy = CopyWeights(node, data.draw(st.integers(0, 2), label="copy"))
        try:
            graph = applied(graph, (*graph.rewrites, copy))
        except RewriteError as refused:
            if "is written in every step" not in str(refused):
                raise
    return graph


def reading(graph: Graph) -> list[str]:
    """The operators that read weights."""
    return [v for v in graph.nodes if reads_weights(graph, v)]


@covering(name=["attention", "chain", "cells", "tied"], schedule=SCHEDULES)
@settings(PATIENT, max_examples=tried(3))
@given(data=st.data())
def test_copies_under_any_placement(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = drawn_copies(data, captured_for(case, order))
    program = compiled(graph, scattered(data, graph, 3), 3, order, shared_norm=True)
    trained = local(program, case, batches_of(case), rule=UpdateRule(clip_norm=0.1))
    assert_same(trained, plain(name, order.microbatch_size(8), clip_norm=0.1))


def by_number(graph: Graph, devices: int = 2) -> dict[str, str]:
    """Parts of a number, with what they are put together from, on the device of that number."""
    device_of: dict[str, str] = {}
    for node in graph:
        last = node.name.replace("~", ":").rpartition(":")[2].split(" ")[0]
        device_of[node.name] = f"cpu:{int(last) % devices if last.isdigit() else 0}"
    for group in graph.colocated:
        home = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[home]))
    return device_of


def copied(size: int = 2, more: tuple[Rewrite, ...] = ()) -> Graph:
    """The two layers of `mlp` in halves of the batch, on weights of their own."""
    graph = captured_mlp(size)
    return applied(graph, (*replicate(graph, 2), *more))


def captured_mlp(size: int = 2) -> Graph:
    (x,), y = batches()[0]
    return capture(mlp(), LOSS, (x[:size], y[:size]))


def in_parts_and_copies() -> Graph:
    """Columns of the first layer, each on its half of the batch: four regions' readers on two weights."""
    graph = captured_mlp()
    rewrites = [Split("linear", 1, (6, 10))]
    for part in range(2):
        rewrites.append(Split(f"linear:{part}", 0, (1, 1)))
    return applied(graph, (*rewrites, *(CopyWeights(f"linear:{part}:1", 1) for part in range(2))))


def test_copies_of_parts_have_their_region() -> None:
    graph = in_parts_and_copies()
    assert sorted(k for k in graph.initializers if k.startswith("0.weight")) == [
        "0.weight[0:6, :]", "0.weight[0:6, :]~1", "0.weight[6:16, :]", "0.weight[6:16, :]~1",
    ]  # fmt: skip
    copy = graph.initializers["0.weight[6:16, :]~1"]
    assert (copy.held_as, copy.whole.name, copy.region.offsets) == ("0.weight[6:16, :]", "0.weight", (6, 0))  # type: ignore[union-attr]
    assert not any({"linear:1:0", "linear:1:1"} <= set(each) for each in graph.colocated)
    assert graph.wholes.keys() == captured_mlp().wholes.keys()


def test_what_overlaps_is_copied_whole() -> None:
    """Rows for one copy, columns for another: each is whole where it is, and their gradients are summed."""
    step = STEPS["mlp"]
    graph = applied(step.graph(), (Split("linear", 0, (4, 4)), Split("linear:0", 1, (6, 6))))
    graph = applied(graph, (*graph.rewrites, CopyWeights("linear:1", 1)))
    assert {"0.weight", "0.weight~1"} <= graph.initializers.keys()
    assert_same_step(step, graph)


def test_what_cannot_be_copied_says_why() -> None:
    grouped = STEPS["grouped"].graph()
    norm = next(node.name for node in grouped if node.kind == "batch_norm")
    for node, reason in ((norm, "is written in every step"), ("silu", "no parameters to copy")):
        with pytest.raises(RewriteError, match=reason):
            applied(grouped, (CopyWeights(node, 1),))
    with pytest.raises(RewriteError, match="give the number of a copy"):
        applied(grouped, (CopyWeights("conv2d", -1),))
    sparse = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    words, classes = torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    tokens = capture(sparse, nn.CrossEntropyLoss(), (words, classes))
    with pytest.raises(RewriteError, match="their gradient is sparse"):
        applied(tokens, (CopyWeights("embedding", 1),))
    assert CopyWeights("embedding:1", 1) not in replicate(tokens, 2)


def test_asynchronous_schedules_refuse_copies() -> None:
    graph = copied()
    with pytest.raises(ConfigError, match="every device steps on its own"):
        compiled(graph, by_number(graph), 2, AsyncOneFOneB(4))


def runtime_of(graph: Graph, optimizer: Any = ADAMW, **options: Any) -> LocalRuntime:
    shared = options["rule"].shared_norm if "rule" in options else False
    program = compiled(graph, by_number(graph), 2, GPipe(4), shared_norm=shared)
    return LocalRuntime(program, cpus(2), initial_values(mlp(), graph), optimizer, **options)


FORMS = {"copies": copied, "parts": in_parts_and_copies, "whole": captured_mlp}


@pytest.mark.parametrize("resumed", FORMS)
@pytest.mark.parametrize("saved", FORMS)
def test_a_training_saved_in_any_copies_goes_on_in_others(saved: str, resumed: str, tmp_path: Path) -> None:
    """Moments and averages too; the file has each tensor once, under the plain name."""
    rule, given_batches = UpdateRule(ema_decay=0.5, clip_norm=0.3), batches(4)
    before = runtime_of(FORMS[saved](), rule=rule)
    losses = [before.train_batch(*batch) for batch in given_batches[:2]]
    (x,), y = given_batches[0]
    save(before, Case("copies", mlp, (x,), y), tmp_path / "checkpoint")
    after = runtime_of(FORMS[resumed](), rule=rule)
    restore(after, tmp_path / "checkpoint")
    losses += [after.train_batch(*batch) for batch in given_batches[2:]]
    assert_same(
        Trained(losses, after.state()), plain_loop(mlp(), LOSS, given_batches, 2, ADAMW, clip_norm=0.3)
    )
    averaged = plain_loop(mlp(), LOSS, given_batches, 2, ADAMW, clip_norm=0.3, averages=average)
    assert_same(Trained(losses, averages_of(after)), averaged)
    optimizer = ADAMW((model := mlp()).parameters())
    load_plain(tmp_path / "checkpoint", model, optimizer)
    for k, tensor in before.state().items():
        torch.testing.assert_close(model.state_dict()[k], tensor, rtol=0, atol=0)
    metadata = Saved(tmp_path / "checkpoint")
    assert not any(name.startswith("replica.") or "~" in name for name in metadata.names)
    for share in after.shares.values():
        for k in share.copies:
            first = after.shares[after.program.holders[k][0]]
            assert torch.equal(share.tensors[k], first.tensors[k])


@pytest.mark.parametrize("offload", [None, "both"])
def test_bytes_of_copies_are_predicted(offload: str | None) -> None:
    """Each device has parameter, gradient and moments of its copy, and the sum of gradients."""
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(8, 300, generator=draw), torch.randint(10, (8,), generator=draw)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10))
    graph = capture(model, LOSS, (x, y))
    graph = applied(graph, replicate(graph, 2))
    program = compiled(graph, by_number(graph), 2, SingleBatch())
    kept = Offload() if offload is None else Offload.of(offload)
    profiles = memory_profile(program, 3, offload=kept)
    peaks = {device: each.peak_bytes for device, each in profiles.items()}
    runtime = LocalRuntime(program, cpus(2), initial_values(model, graph), MOMENTUM, offload=kept)
    runtime.train_batch((x,), y)
    assert metered_iteration(runtime, (x,), y) == pytest.approx(peaks, rel=0.05)
    nbytes = sum(init.nbytes for init in program.graph.initializers.values())
    assert min(peaks.values()) > 3 * nbytes


def test_seconds_of_a_sum_are_of_the_bytes_that_its_devices_have() -> None:
    graph = copied()
    program = compiled(graph, by_number(graph), 3, GPipe(4))
    sums = [ins for ins in program.instructions["cpu:1"] if isinstance(ins, Reduce)]
    assert [ins.devices for ins in sums] == [("cpu:0", "cpu:1")]
    nbytes = sum(p.nbytes for p in mlp().parameters())
    assert reduce_bytes(program, sums[0]) == nbytes
    assert not program.instructions["cpu:2"]
    link = cpus(3).links["cpu:0", "cpu:1"]
    expected = 2 * (link.latency_s + nbytes / 2 * link.seconds_per_byte)
    assert reduce_seconds(program, cpus(3), sums[0]) == pytest.approx(expected)


def test_copies_move_when_the_plan_is_another(pools: Pools) -> None:
    """To another device, to fewer and to more of them, with moments, averages and what they were set to."""
    graph = copied()
    homes = by_number(graph)
    placed = [
        homes,
        dict.fromkeys(graph.nodes, "cpu:0"),
        {name: "cpu:2" if home == "cpu:1" else home for name, home in homes.items()},
        {name: "cpu:1" if home == "cpu:0" else "cpu:2" for name, home in homes.items()},
    ]
    programs = [compiled(graph, each, 3, GPipe(4), shared_norm=True) for each in placed]
    rule, given_batches = UpdateRule(clip_norm=0.3, ema_decay=0.5), batches(5)
    bound = for_model(ADAMW, mlp())
    runtime = DistributedRuntime(programs[0], pools(3), initial_values(mlp(), graph), bound, rule)
    losses = [runtime.train_batch(*given_batches[0])]
    nbytes = sum(t.nbytes for t in mlp().state_dict().values())
    moved = []
    for program, batch in zip(programs[1:], given_batches[1:4], strict=True):
        before = runtime.state(averaged=True)
        moved.append(runtime.switch(program, None))
        for k, tensor in runtime.state(averaged=True).items():
            assert torch.equal(tensor, before[k])
        losses.append(runtime.train_batch(*batch))
    assert moved == [0, pytest.approx(4 * nbytes), pytest.approx(4 * nbytes)]
    losses.append(runtime.train_batch(*given_batches[4]))
    assert_same(
        Trained(losses, runtime.state()), plain_loop(mlp(), LOSS, given_batches, 2, ADAMW, clip_norm=0.3)
    )


@dataclass
class InHalves(Partitioner):
    """Data parallelism of one batch."""

    name = "in_halves"

    def choose(self, problem: Problem) -> Choice:
        rewrites = replicate(problem.graph, 2)
        return Choice(by_number(applied(problem.graph, rewrites)), rewrites=rewrites)


@pytest.mark.parametrize("schedule", [GPipe(2), OneFOneB(2), SingleBatch()])
def test_a_parallel_model_with_copies(pools: Pools, tmp_path: Path, schedule: Schedule) -> None:
    """Planned, verified, trained, with a smaller last batch, predicted, saved and loaded."""
    given_batches = batches(3)
    (x,), y = given_batches[0]
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            mlp(), LOSS, (x, y), cluster=replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9),
            partitioner=InHalves(), schedule=schedule, optimizer=ADAMW, profile="predicted", progress=False,
        ) as trained,
    ):  # fmt: skip
        plan = trained.plan
        assert "parts" in str(plan.summary())
        (tmp_path / "placement.json").write_text(json.dumps(plan.placement.to_dict()))
        again = read_placement(tmp_path / "placement.json", plan.problem)
        assert (again.rewrites, again.device_of) == (plan.placement.rewrites, plan.placement.device_of)
        assert sum(e.kind == "reduce" for e in plan.simulated[1].events) == 2
        losses = [trained.train_batch(*batch) for batch in given_batches[:2]]
        trained.save_checkpoint(tmp_path / "saved")
        (x,), y = given_batches[2]
        losses.append(trained.train_batch(x[:5], y[:5]))  # one sample is left for the two of a layer
        state = trained.state_dict()
        said = [trained.predict(x[:count]) for count in (1, 2, 8)]
        trained.load_checkpoint(tmp_path / "saved")
        assert trained.train_batch(x[:5], y[:5]) == losses[-1]
        _, timeline = trained.measure_batch(x, y)
        assert any(e.kind == "reduce" for e in timeline.events)
    last = [((x[:5],), y[:5])]
    size = plan.problem.graph.batch_size
    assert_same(Trained(losses, state), plain_loop(mlp(), LOSS, [*given_batches[:2], *last], size, ADAMW))
    model = mlp()
    model.load_state_dict(state)
    for count, made in zip((1, 2, 8), said, strict=True):
        torch.testing.assert_close(made, model(x[:count]), rtol=1e-9, atol=1e-9)
