"""A checkpoint goes on under any placement, and in plain PyTorch, as if nothing had happened."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.checkpoint import DefaultLoadPlanner, load
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.utils.data import TensorDataset

from netsplit.data import Data
from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph import Graph, draws, initial_values
from netsplit.graph.random_draws import DrawCounter
from netsplit.partition import MTopo, Random
from netsplit.planning.plan import Plan
from netsplit.program import GPipe, Program
from netsplit.runtime.checkpoint.files import (
    CHECKSUMS,
    EXTRA,
    METADATA,
    CheckpointPart,
    Refusal,
    Saved,
    State,
    is_complete,
    read_extra,
    write_checkpoint,
)
from netsplit.runtime.checkpoint.shares import Copies, Holder, load_draws, load_plain
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.workers.messages import Worker
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.training.checkpoints import Checkpoints
from netsplit.training.epochs import Epoch, Iteration, fit
from netsplit.training.options import Training
from tests.builders import compile_placed, costs_of, cpus
from tests.cover import covering
from tests.messages import tells
from tests.nets import CASES, DRAWING, DROPPED, SGD, TOLERANCE, Case, placements, plain_training
from tests.runtime.equivalence.running import captured, compiled
from tests.workers import Pools, lent_session

ADAM = partial(torch.optim.Adam, lr=0.01, weight_decay=0.01)
OPTIMIZERS: dict[str, Any] = {"momentum": SGD, "adam": ADAM}
ORDER = GPipe(4)
CHAIN = CASES["chain"]
# Buffers written and assigned, a shared BatchNorm, a weight used twice, a branch without gradient.
NAMES = ("chain", "cells", "tied", "shared_norm", "assigned")


def captured_of(case: Case) -> Graph:
    return captured(case.name, 2)


def program_of(graph: Graph, devices: int, cut: float = 0.5) -> Program:
    """The first part of the operators on cpu:0, the rest on the last device."""
    device_of = {
        name: f"cpu:{(devices - 1) * int(i >= cut * len(graph))}" for i, name in enumerate(graph.nodes)
    }
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return compile_placed(graph, device_of, graph.position, cpus(devices), ORDER)


def runtime_of(program: Program, case: Case, optimizer: Any) -> LocalRuntime:
    values = initial_values(case.fresh(), program.graph)
    return LocalRuntime(program, cpus(len(program.devices)), values, optimizer)


def holders(runtime: LocalRuntime) -> list[Holder]:
    graph = runtime.program.graph
    aliases = {k: init.aliases for k, init in graph.initializers.items()}
    constants = frozenset(graph.constants)
    return [
        Holder(share, name, aliases, constants, Copies({name: share.copies}, bool(runtime.program.replicas)))
        for name, share in runtime.shares.items()
    ]


def save(runtime: LocalRuntime, case: Case, folder: Path, **extra: Any) -> None:
    parts: list[CheckpointPart] = []

    def plan(place: Path) -> list[Any]:
        parts.extend(CheckpointPart(holder.state(), place) for holder in holders(runtime))
        return [part.plan() for part in parts]

    def write_parts(plans: list[Any]) -> list[Any]:
        return [part.write(own) for part, own in zip(parts, plans, strict=True)]

    write_checkpoint(folder, extra, unplaced(runtime, case), plan, write_parts)


def unplaced(runtime: LocalRuntime, case: Case) -> State:
    graph = runtime.program.graph
    placed = {name for k, init in graph.wholes.items() for name in (k, *init.aliases)}
    return {f"model.{k}": t for k, t in case.fresh().state_dict().items() if k not in placed}


def restore(runtime: LocalRuntime, folder: Path) -> list[list[str]]:
    changed = []
    for holder in holders(runtime):
        answer = holder.load(folder)
        assert not isinstance(answer, Refusal), answer
        changed.append(answer)
    return changed


def train(runtime: LocalRuntime, case: Case, steps: int) -> list[float]:
    return [runtime.train_batch(case.inputs, case.targets) for _ in range(steps)]


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, case: Case, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        parts = []
        for *inputs, targets in zip(*(t.chunk(4) for t in (*case.inputs, case.targets)), strict=True):
            loss = case.loss(model(*inputs), targets)
            (loss / 4).backward()
            parts.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(parts) / 4)
    return losses


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def same(state: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(state[key], other[key]) for key in state.keys() & other.keys())


@covering(name=NAMES, optimizer=OPTIMIZERS)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_three_devices_then_two_then_plain_is_one_training(
    name: str, optimizer: str, data: st.DataObject
) -> None:
    """Two steps on each, by checkpoints; against six steps of the plain loop."""
    case, make = CASES[name], OPTIMIZERS[optimizer]
    graph = captured_of(case)
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        last: Path | None = None
        for devices in (3, 2):
            program = compiled(graph, data.draw(placements(graph, devices)), devices, ORDER)
            runtime = runtime_of(program, case, make)
            if last is not None:
                restore(runtime, last)
            losses += train(runtime, case, 2)
            last = Path(place) / f"on-{devices}"
            save(runtime, case, last)
        torch.manual_seed(99)
        model = case.build().double()
        plain = make(trainable(model))
        assert last is not None
        load_plain(last, model, plain)
        losses += train_plainly(model, plain, case, 2)
    expected, state = plain_training(case, 4, steps=6, optimizer=make)
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[key], rtol=TOLERANCE, atol=TOLERANCE)


@covering(name=NAMES, optimizer=OPTIMIZERS)
def test_under_the_same_placement_it_goes_on_bit_for_bit(name: str, optimizer: str, tmp_path: Path) -> None:
    case, make = CASES[name], OPTIMIZERS[optimizer]
    program = program_of(captured_of(case), 2)
    whole = runtime_of(program, case, make)
    losses = train(whole, case, 4)
    first, second = runtime_of(program, case, make), runtime_of(program, case, make)
    halves = train(first, case, 2)
    save(first, case, tmp_path / "half")
    train(second, case, 1)  # what is there is replaced, not added to
    assert restore(second, tmp_path / "half") == [[], []]
    assert halves + train(second, case, 2) == losses
    assert same(second.state(), whole.state())


@pytest.mark.parametrize("name", ["tied", "assigned"])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_s_own_functions_load_it_without_ours(name: str, tmp_path: Path) -> None:
    """The recipe of docs/checkpoints.md."""
    case = CASES[name]
    runtime = runtime_of(program_of(captured_of(case), 2), case, ADAM)
    train(runtime, case, 2)
    save(runtime, case, tmp_path / "two")
    model = case.build().double()
    optimizer = ADAM(trainable(model))
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = {
        "model": model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=flat),
    }
    load(
        state,
        checkpoint_id=tmp_path / "two",
        planner=DefaultLoadPlanner(allow_partial_load=True),
        no_dist=True,
    )
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=flat)
    losses = train_plainly(model, optimizer, case, 2)
    expected, _ = plain_training(case, 4, steps=4, optimizer=ADAM)
    assert losses == pytest.approx(expected[2:], rel=TOLERANCE)


def test_replicas_write_once_what_is_the_same_and_keep_buffers_of_their_own(tmp_path: Path) -> None:
    """Running statistics differ between replicas: each goes on with its own; others read the first's."""
    graph = captured_of(CHAIN)
    program = compile_placed(
        graph, dict.fromkeys(graph.nodes, "cpu:0"), graph.position, cpus(2), ORDER,
        replicas={"cpu:0": ("cpu:0", "cpu:1")},
    )  # fmt: skip
    whole, first = runtime_of(program, CHAIN, SGD), runtime_of(program, CHAIN, SGD)
    losses = train(whole, CHAIN, 4)
    train(first, CHAIN, 2)
    save(first, CHAIN, tmp_path / "two")
    second = runtime_of(program, CHAIN, SGD)
    restore(second, tmp_path / "two")
    mean = [share.tensors["norm1.running_mean"] for share in second.shares.values()]
    assert not torch.equal(*mean)
    plain = CHAIN.fresh()
    load_plain(tmp_path / "two", plain)
    assert torch.equal(plain.state_dict()["norm1.running_mean"], mean[0])
    assert train(second, CHAIN, 2) == losses[2:]
    for name, share in whole.shares.items():
        assert same(share.tensors, second.shares[name].tensors)
    saved = Saved(tmp_path / "two")
    assert "replica.cpu:1.norm1.running_mean" in saved.entries
    assert not any(key.startswith("replica") and "weight" in key for key in saved.entries)


# --- what is refused ----------------------------------------------------------------------------------


class Wider(type(CHAIN.fresh())):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * 8 * 8, 6)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the chain after one step of SGD."""
    folder = tmp_path_factory.mktemp("checkpoints") / "one"
    runtime = runtime_of(program_of(captured_of(CHAIN), 2), CHAIN, SGD)
    train(runtime, CHAIN, 1)
    save(runtime, CHAIN, folder, epoch=3)
    return folder


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Wider().double(), r"'head.weight' is float64 \(5, 256\) there and float64 \(6, 256\) here"),
        (lambda: CHAIN.build(), "is float64 .* there and float32 .* here"),
        (lambda: nn.Sequential(), "this one has no 'conv1.weight'"),
    ],
)
def test_another_model_is_refused_and_left_as_it_is(one: Path, model: Any, words: str) -> None:
    made = model()
    before = {key: tensor.clone() for key, tensor in made.state_dict().items()}
    with pytest.raises(ConfigError, match=words) as e:
        load_plain(one, made)
    assert "\n" not in str(e.value)
    assert all(torch.equal(before[key], tensor) for key, tensor in made.state_dict().items())


@pytest.mark.parametrize("missing", [METADATA, EXTRA])
def test_half_a_checkpoint_is_none(one: Path, tmp_path: Path, missing: str) -> None:
    for file in one.iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert is_complete(one)
    assert not is_complete(tmp_path)
    with pytest.raises(ConfigError, match="no complete checkpoint at"):
        load_plain(tmp_path, CHAIN.fresh())


def test_a_bit_that_has_flipped_in_any_file_is_said(one: Path, tmp_path: Path) -> None:
    for changed in sorted(file.name for file in one.iterdir() if file.stat().st_size):
        folder = tmp_path / f"copy of {changed}"
        shutil.copytree(one, folder)
        content = bytearray((folder / changed).read_bytes())
        content[len(content) // 2] ^= 16
        (folder / changed).write_bytes(content)
        model = CHAIN.fresh()
        before = {k: tensor.clone() for k, tensor in model.state_dict().items()}
        with pytest.raises(NetSplitError, match=r"is damaged: its .* has changed"):
            load_plain(folder, model)
        assert all(torch.equal(tensor, before[k]) for k, tensor in model.state_dict().items())


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_metadata_that_runs_code_is_refused_and_not_run(one: Path, tmp_path: Path) -> None:
    ran, copy = tmp_path / "ran", tmp_path / "copy"
    shutil.copytree(one, copy)
    (copy / METADATA).write_bytes(pickle.dumps(Evil(ran)))
    (copy / CHECKSUMS).unlink()
    with pytest.raises(NetSplitError, match=r"names posix\.mkdir.*could run code"):
        load_plain(copy, CHAIN.fresh())
    assert not ran.exists()


# --- interrupted --------------------------------------------------------------------------------------


def _save_for_ever(folder: Path, saved: Connection) -> None:
    torch.set_num_threads(1)
    runtime = runtime_of(program_of(captured_of(CHAIN), 2), CHAIN, SGD)
    for step in range(1, 10_000):
        for tensor in runtime.shares["cpu:0"].tensors.values():
            tensor.detach().fill_(step)
        save(runtime, CHAIN, folder, step=step)
        saved.send(step)


def test_a_kill_at_any_moment_leaves_one_whole_checkpoint(tmp_path: Path) -> None:
    """A process that replaces one checkpoint for ever, killed at times drawn at random."""
    processes = multiprocessing.get_context("forkserver")  # a fork of this process would have its locks
    processes.set_forkserver_preload([__name__, "torch._dynamo"])  # which each would load to capture
    held = set(runtime_of(program_of(captured_of(CHAIN), 2), CHAIN, SGD).shares["cpu:0"].tensors)
    draw, folder = random.Random(3), tmp_path / "one"
    for _ in range(3):
        told, saved = processes.Pipe(duplex=False)
        process = processes.Process(target=_save_for_ever, args=(folder, saved))
        process.start()
        saved.close()
        for _ in range(draw.randint(1, 4)):
            assert told.poll(120), "nothing was saved"
            last = told.recv()
        time.sleep(draw.uniform(0.0, 0.03))
        process.kill()
        process.join()
        whole = [place for place in tmp_path.iterdir() if is_complete(place)]
        assert whole
        steps = set()
        for place in whole:
            step = read_extra(place)["step"]
            model = CHAIN.fresh()
            load_plain(place, model)
            assert all((tensor == step).all() for k, tensor in model.state_dict().items() if k in held)
            steps.add(step)
        assert max(steps) >= last


# --- worker processes ---------------------------------------------------------------------------------

SAMPLES = 20  # two whole batches of eight an epoch, and one of four


@pytest.fixture(scope="module")
def session(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with lent_session(pools, tmp_path_factory.mktemp("workers")) as lent:
        yield lent


def planned(case: Case, optimizer: Any, method: Any = None) -> tuple[ModelStep, Plan]:
    graph, model = captured_of(case), case.fresh()
    step = ModelStep(model, case.loss, case.batch(), Training(optimizer))
    problem = step.problem(graph, costs_of(graph, 1e-4, 2e-4, alpha=3), cpus(2), ORDER)
    plan = step.plan(problem, method or MTopo())
    assert len(set(plan.placement.device_of.values())) == 2
    return step, plan


def samples_of(case: Case) -> Data:
    (inputs,), targets = case.another(3, SAMPLES)
    half = cast(Any, TensorDataset(inputs, targets))
    return Data(case.name, half, half, num_classes=5, classes=tuple("abcde"))


class Killer:
    """Kills a worker when an iteration is done."""

    def __init__(self, session: Session, step: int) -> None:
        self.session, self.step, self.losses = session, step, list[float]()

    def iteration(self, done: Iteration) -> None:
        self.losses.append(done.loss)
        if done.step == self.step:
            os.kill(self.session.pool.hellos[1].pid, signal.SIGKILL)

    def epoch(self, done: Epoch) -> None:
        pass


def test_a_training_whose_worker_is_killed_ends_bit_for_bit_as_one_that_is_not(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Dropout, BatchNorm, Adam, an uneven batch; killed within the second epoch, after a checkpoint."""
    plan = planned(DROPPED, ADAM)
    model = session.deploy(*plan)
    history = fit(model, samples_of(DROPPED), epochs=3)
    expected = model.state_dict()
    model = session.deploy(*plan)
    killer = Killer(session, step=4)
    with caplog.at_level(logging.INFO), Checkpoints(tmp_path, every_iterations=2, keep=9) as checkpoints:
        restarted = fit(
            model,
            samples_of(DROPPED),
            epochs=3,
            observer=killer,
            checkpoints=checkpoints,
            restart=lambda: session.deploy(*plan).runtime,
        )
    assert re.search(r"worker cpu:1 .* died .*: restarting the workers \(1 of 3\)", caplog.text)
    assert tells(caplog.text, "000003-step-4", "1 epochs", "4 iterations", "8 samples", "epoch 2")
    assert [it.loss for it in restarted.iterations] == [it.loss for it in history.iterations] == killer.losses
    assert [e.score for e in restarted.epochs] == [e.score for e in history.epochs]
    assert same(model.state_dict(), expected)


def test_what_is_drawn_goes_on_under_another_placement_and_in_plain_pytorch(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers, one, plain: two batches on each, against six of the plain loop under `netsplit.draws`."""
    graph = captured_of(DRAWING)
    losses: list[float] = []
    for number, seed in enumerate((3, 8)):
        step, plan = planned(DRAWING, ADAM, MTopo() if number else Random())
        model = session.deploy(replace(step, training=replace(step.training, seed=seed)), plan)
        if number:
            model.load_checkpoint(tmp_path / "0")
        losses += [model.train_batch(*DRAWING.batch()) for _ in range(2)]
        model.predict(DRAWING.inputs)
        torch.manual_seed(number)
        model.save_checkpoint(tmp_path / str(number))
        kept = torch.rand(3)
    assert tells(caplog.text, "seed 8", "becomes 3")
    assert load_draws(tmp_path / "1") == DrawCounter(3, 4, 2)
    model.load_checkpoint(tmp_path / "1")
    assert torch.equal(torch.rand(3), kept)  # this process's own generator
    plain = DRAWING.build().double()
    optimizer = ADAM(trainable(plain))
    load_plain(tmp_path / "1", plain, optimizer)
    losses += drawn_plainly(plain, optimizer, graph, range(4, 6))
    alone = DRAWING.fresh()
    assert losses == pytest.approx(
        drawn_plainly(alone, ADAM(trainable(alone)), graph, range(6)), rel=TOLERANCE
    )
    for key, tensor in plain.state_dict().items():
        torch.testing.assert_close(tensor, alone.state_dict()[key], rtol=TOLERANCE, atol=TOLERANCE)


def drawn_plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, graph: Graph, iterations: range
) -> list[float]:
    losses = []
    for n in iterations:
        parts = []
        for i, (x, targets) in enumerate(
            zip(*(t.chunk(4) for t in (*DRAWING.inputs, DRAWING.targets)), strict=True)
        ):
            with draws(graph, 3, n, i):
                loss = DRAWING.loss(model(x), targets)
            (loss / 4).backward()
            parts.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(parts) / 4)
    return losses


def _limit_files(worker: Worker, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_worker_that_cannot_write_says_so_and_training_could_go_on(
    session: Session, tmp_path: Path
) -> None:
    model = session.deploy(*planned(CHAIN, SGD))
    model.train_batch(CHAIN.inputs, CHAIN.targets)
    model.save_checkpoint(tmp_path / "one", {"step": 1})
    session.pool.call_one(1, _limit_files, 1000)
    with pytest.raises(
        NetSplitError, match=r"checkpoint '.*/one' could not be written completely: File too large"
    ):
        model.save_checkpoint(tmp_path / "one", {"step": 2})
    session.pool.call_one(1, _limit_files, resource.RLIM_INFINITY)
    assert [file.name for file in tmp_path.iterdir()] == ["one"]
    assert model.load_checkpoint(tmp_path / "one") == {"step": 1}
    assert model.train_batch(CHAIN.inputs, CHAIN.targets) > 0


def test_workers_refuse_what_does_not_fit_and_stay(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = session.deploy(*planned(CHAIN, SGD))
    model.save_checkpoint(tmp_path / "one")
    with pytest.raises(ConfigError, match="was saved from another model: it has no 'scale'"):
        session.deploy(*planned(CASES["tied"], SGD)).load_checkpoint(tmp_path / "one")
    with pytest.raises(NetSplitError, match="was saved with another optimiser"):
        session.deploy(*planned(CHAIN, ADAM)).load_checkpoint(tmp_path / "one")
    session.deploy(*planned(CHAIN, partial(SGD, lr=0.5))).load_checkpoint(tmp_path / "one")
    assert tells(caplog.text, "lr 0.5 becomes 0.05")


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    """`save_checkpoint` replaces checkpoints only."""
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("hi")
    with pytest.raises(ConfigError, match="holds other files than a checkpoint"):
        write_checkpoint(other, {}, {}, lambda _: [], lambda _: [])
    assert (other / "thesis.txt").read_text() == "hi"
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        write_checkpoint(tmp_path / "new", {"x": float("nan")}, {}, lambda _: [], lambda _: [])
    assert not (tmp_path / "new").exists()
