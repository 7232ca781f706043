"""`netsplit.parallelize`: what somebody with a model of their own relies on."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import ConfigError, NetSplitError, WorkerError
from netsplit.training.parallel import ParallelModel
from tests.workers import Pools, lent_to_sessions

BATCH = 32
LOSS = nn.CrossEntropyLoss()


class Knots(nn.Module):
    """Two paths that meet, BatchNorm, one weight used twice, a frozen parameter, one nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 12)
        self.outward = nn.Linear(12, 12, bias=False)
        self.outward.weight = self.inward.weight
        self.scale = nn.Parameter(torch.full((12,), 1.5), requires_grad=False)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 3)
        self.unused = nn.Parameter(torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inward(x))
        return self.head(torch.relu(self.outward(self.norm(x * self.scale))) + x)


def fresh() -> Knots:
    torch.manual_seed(3)
    return Knots()


def samples(count: int) -> tuple[Tensor, Tensor]:
    """Three classes that a line separates."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 12, generator=generator)
    return x, x[:, :3].argmax(1)


def plain_outputs(state: dict[str, Tensor], x: Tensor) -> Tensor:
    model = Knots()
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        return model.eval()(x)


def gone(pids: list[int]) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(processes, timeout=10)[1]


def stated(capacity: str | int = "all") -> ClusterSpec:
    """Two workers with links that are told instead of probed, which takes seconds."""
    return replace(netsplit.cpu_cluster(2, capacity=capacity), latency_s=1e-5, bandwidth=1e9)


def split(cluster: ClusterSpec, **options: Any) -> ParallelModel:
    given = {"schedule": "gpipe"} | options
    return netsplit.parallelize(fresh(), LOSS, samples(BATCH), cluster=cluster, **given)


@pytest.fixture(scope="module")
def parallel(pools: Pools) -> Iterator[ParallelModel]:
    """On two workers of which neither has room for all; the tests train it further and leave it usable."""
    with lent_to_sessions(pools), pytest.MonkeyPatch.context() as patch:
        patch.setattr("netsplit.partition.engines.search.MOVES_A_CHOICE", 30)
        knots = split(stated("13KiB"), optimizer=partial(torch.optim.Adam, lr=0.02))
    with knots:
        yield knots


def test_before_training_the_outputs_are_those_of_the_plain_model(parallel: ParallelModel) -> None:
    x, _ = samples(BATCH)
    state = parallel.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in fresh().state_dict().items())
    torch.testing.assert_close(parallel.predict(x), plain_outputs(state, x))


def test_training_lowers_the_loss_and_raises_the_accuracy(parallel: ParallelModel) -> None:
    x, y = samples(BATCH)
    before = parallel.evaluate([samples(45)])
    losses = [parallel.train_batch(x, y) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
    assert parallel.evaluate([samples(45)]) > max(before, 0.6)


def test_a_model_is_evaluated_on_any_number_of_samples(parallel: ParallelModel) -> None:
    state = parallel.state_dict()
    for count in (1, BATCH, BATCH + 13):
        x, y = samples(count)
        right = int((plain_outputs(state, x).argmax(1) == y).sum())
        assert parallel.predict(x).shape == (count, 3)
        assert parallel.evaluate([(x, y)]) == right / count


def test_a_saved_model_is_the_plain_model(parallel: ParallelModel, tmp_path: Path) -> None:
    parallel.train_batch(*samples(BATCH))
    parallel.save(tmp_path / "deep" / "model.pt")
    state = torch.load(tmp_path / "deep" / "model.pt", weights_only=True)
    x, _ = samples(50)
    assert list(state) == list(fresh().state_dict())
    assert not torch.equal(state["head.weight"], fresh().state_dict()["head.weight"])
    torch.testing.assert_close(plain_outputs(state, x), parallel.predict(x))


def test_tied_weights_stay_tied_and_frozen_or_unused_ones_stay_put(parallel: ParallelModel) -> None:
    for _ in range(2):
        parallel.train_batch(*samples(BATCH))
    state, start = parallel.state_dict(), fresh().state_dict()
    assert torch.equal(state["outward.weight"], state["inward.weight"])
    assert not torch.equal(state["inward.weight"], start["inward.weight"])
    assert torch.equal(state["scale"], start["scale"])
    assert torch.equal(state["unused"], start["unused"])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda m: m.train_batch(samples(32)[0][:, :5], samples(32)[1]),
            ["Knots does not run on this batch", "test_api.py:", "8x5 and 12x12"],
        ),
        (
            lambda m: m.predict(samples(8)[0][:, :5]),
            ["Knots does not run on this batch", "test_api.py:", "8x5 and 12x12"],
        ),
        (lambda m: m.predict(samples(BATCH)[0][:0]), ["no sample"]),
        (lambda m: m.evaluate([]), ["nothing to evaluate"]),
    ],
    ids=["train", "predict", "predict-none", "evaluate-none"],
)
def test_a_wrong_batch_is_refused_in_one_sentence_and_training_goes_on(
    parallel: ParallelModel, act: Callable[[ParallelModel], object], words: list[str]
) -> None:
    with pytest.raises(NetSplitError) as e:
        act(parallel)
    assert "\n" not in str(e.value)
    assert all(word in str(e.value) for word in words), e.value
    assert parallel.train_batch(*samples(BATCH)) > 0


class LossInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((self.linear(x) - y) ** 2).mean()


@pytest.mark.usefixtures("unmeasured")
def test_a_model_with_the_loss_inside_predicts_of_inputs_as_in_training(pools: Pools) -> None:
    x, y = torch.randn(BATCH, 4), torch.randn(BATCH, 3)
    model = LossInside()
    wanted = model(x, y).detach()
    options = {"partitioner": "m_topo", "schedule": "single_batch"}
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(model, None, (x, y), cluster=stated(), **options) as inside,
    ):
        for act in (lambda: inside.predict(x), lambda: inside.evaluate([(x, y)])):
            with pytest.raises(ConfigError, match=r"LossInside\.forward also needs 'y' .*predict\(\(inputs,"):
                act()
        torch.testing.assert_close(inside.predict((x, y)), wanted)
        mean = inside.evaluate([((x, y), y)], lambda loss, targets: (float(loss), 1))
        assert mean == pytest.approx(float(wanted))
        inside.train_batch(x, y)


@pytest.mark.usefixtures("unmeasured")
def test_close_ends_the_workers_and_a_closed_model_says_so(tmp_path: Path) -> None:
    options = {"schedule": "single_batch", "optimizer": lambda p: torch.optim.SGD(p, 0.1)}
    parallel = split(stated(), partitioner="m_topo", **options)
    pids = [hello.pid for hello in parallel.runtime.pool.hellos]
    folder = parallel.runtime.pool.folder
    parallel.train_batch(*samples(BATCH))
    parallel.close()
    parallel.close()
    assert gone(pids)
    assert not folder.exists()
    for act in (parallel.state_dict, partial(parallel.save, tmp_path / "x.pt")):
        with pytest.raises(WorkerError, match="closed"):
            act()
    with pytest.raises(WorkerError, match="closed"):
        parallel.train_batch(*samples(BATCH))
    assert not list(tmp_path.iterdir())  # above all no file of untrained parameters


class Structured(nn.Module):
    """Gives a dict with rows of two samples' halves each, and its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"rows": self.head(x.view(-1, 6)), "given": x}


def _loss_of_rows(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return LOSS(outputs["rows"].view(len(targets), 2, 3).mean(1), targets)


@pytest.mark.usefixtures("unmeasured")
def test_outputs_have_the_models_structure_and_rows(pools: Pools) -> None:
    x, y = samples(BATCH)
    model = Structured()
    options = {"cluster": stated(), "partitioner": "m_topo", "schedule": "gpipe"}
    with lent_to_sessions(pools), netsplit.parallelize(model, _loss_of_rows, (x, y), **options) as parallel:
        outputs = parallel.predict(x[:5])
        with torch.no_grad():
            expected = model(x[:5])
        assert parallel.train_batch(x, y) > 0
    assert torch.allclose(outputs["rows"], expected["rows"], atol=1e-6)
    assert torch.equal(outputs["given"], x[:5])


@pytest.mark.slow
def test_after_a_worker_died_no_stale_parameters_are_handed_out() -> None:
    with split(netsplit.cpu_cluster(2), partitioner="m_topo") as parallel:
        parallel.train_batch(*samples(BATCH))
        victim = parallel.runtime.pool.hellos[1]
        psutil.Process(victim.pid).kill()
        with pytest.raises(WorkerError) as e:
            parallel.train_batch(*samples(BATCH))
        assert f"worker cpu:1 (rank 1, process {victim.pid}" in str(e.value)
        with pytest.raises(WorkerError, match="failed"):
            parallel.state_dict()


X, Y = samples(BATCH)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitioner": "nestplit"}, ["partitioner 'nestplit'", "did you mean netsplit?"]),
        ({"cluster": 0}, ["0 workers"]),
        ({"loss": nn.CrossEntropyLoss}, ["loss is the class CrossEntropyLoss itself: call it"]),
        ({"batch": X}, ["pair"]),
        ({"batch": (X, Y[:16])}, ["Knots does not run on this batch", "(8)", "(16)"]),
        ({"clip_norm": float("nan")}, ["clip_norm is nan"]),
        ({"offload": "both"}, ["offload is both", "cpu:0", "GPUs"]),
        ({"batch": (X[:, :5], Y)}, ["Knots does not run on this batch", "test_api.py"]),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, ["one scalar"]),
        ({"optimizer": "sgd"}, ["optimizer is 'sgd': give", "functools.partial"]),
        ({"optimizer": partial(torch.optim.SGD, lr=-1)}, ["Invalid learning rate"]),
    ],
)
def test_a_bad_argument_is_one_sentence_before_any_worker_starts(
    options: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netsplit.session.session.WorkerPool", None)
    given = {"model": fresh(), "loss": LOSS, "batch": (X, Y)} | options
    with pytest.raises(NetSplitError) as e:
        netsplit.parallelize(given.pop("model"), given.pop("loss"), given.pop("batch"), **given)
    assert "\n" not in str(e.value)
    assert all(word in str(e.value) for word in words), e.value


@pytest.mark.usefixtures("unmeasured")
def test_capacities_too_small_say_how_many_bytes_are_missing_and_leave_no_worker() -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(NetSplitError, match=r"\d+ bytes over its limit"):
        split(stated(1000), partitioner="m_topo")
    assert not psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)[1]


def plain_steps(
    batches: list[tuple[Tensor, Tensor]], microbatch: int, clip_norm: float | None, autocast: bool
) -> dict[str, Tensor]:
    """Plain PyTorch's parameters after a step on each batch, its micro-batches weighted by samples."""
    model, optimizer = fresh(), None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs, targets in batches:
        for x, y in zip(inputs.split(microbatch), targets.split(microbatch), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = LOSS(model(x), y)
            (loss * len(x) / len(inputs)).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("clip_norm", "autocast"), [(0.05, None), (None, "bfloat16")])
def test_uneven_batches_clipping_and_autocast_train_as_plain_pytorch(
    pools: Pools, clip_norm: float | None, autocast: str | None
) -> None:
    batches = [samples(n) for n in (BATCH, 21, 5, 43)]  # micro-batches of 8: 4, 2 and one of 5, one of 5, 5
    plain = plain_steps(batches, 8, clip_norm, autocast is not None)
    options = {"clip_norm": clip_norm, "autocast": autocast, "optimizer": partial(torch.optim.SGD, lr=0.1)}
    with (
        lent_to_sessions(pools),
        split(stated(), partitioner="m_topo", schedule="1f1b", **options) as parallel,
    ):
        for inputs, targets in batches:
            parallel.train_batch(inputs, targets)
        with torch.autocast("cpu", torch.float16), pytest.raises(NetSplitError, match="autocast='float16'"):
            parallel.train_batch(*batches[0])
        state = parallel.state_dict()
    moved = fresh().state_dict()
    for key, tensor in plain.items():
        way = (tensor.double() - moved[key].double()).norm()
        tolerance = 1e-4 if autocast is None else 0.05
        assert (state[key].double() - tensor.double()).norm() <= tolerance * way + 1e-7, key
