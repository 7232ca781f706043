"""`netsplit compare` and `runners.train` as commands: what a user sees, and finds recorded."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import Run

from netsplit.data import batches, digits
from netsplit.formats.read import read_workload
from netsplit.models import vgg19
from netsplit.runtime.workers.messages import read_place

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HIDDEN, BATCH, LIMIT, MICROBATCHES = 4, 16, 32, 160, 4
SMALL = [
    "experiment=quick", "model=vgg19_small", f"model.width={WIDTH}", f"model.hidden={HIDDEN}",
    "model.dropout=0", f"batch_size={BATCH}", f"dataset.limit={LIMIT}",
]  # fmt: skip
MIB = 2**20
CAPACITY = 5 * MIB  # a step at these sizes peaks at 6.5 MiB on one device
UP_TO_S = 500.0  # on a machine that does other things too
pytestmark = pytest.mark.timeout(600)


@dataclass
class Outcome:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    database: str

    @property
    def runs(self) -> dict[str, Run]:
        """Recorded runs of this command by name, the parent as 'parent'."""
        client = MlflowClient(self.database)
        (experiment,) = client.search_experiments(filter_string=f"name = '{self.folder.name}'")
        children = client.search_runs([experiment.experiment_id])
        return {run.data.tags.get("method", "parent"): run for run in children}

    def series(self, method: str, key: str) -> list[float]:
        history = MlflowClient(self.database).get_metric_history(self.runs[method].info.run_id, key)
        return [metric.value for metric in sorted(history, key=lambda metric: metric.step)]

    def artifacts(self, method: str) -> Path:
        return Path(MlflowClient(self.database).download_artifacts(self.runs[method].info.run_id, ""))


@dataclass
class Command:
    """Starts runners in a folder of their own, all with one database: creating it takes seconds."""

    folder: Path

    @property
    def database(self) -> str:
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    def start(self, name: str, *arguments: str, runner: str = "compare") -> subprocess.Popen[str]:
        if runner == "compare" and not any(each.startswith("partitioner") for each in arguments):
            arguments += (f"partitioner=[{','.join(METHODS)}]",)
        command = [
            sys.executable, "-m", f"runners.{runner}", *SMALL,
            f"cluster.devices.0.capacity={CAPACITY}", f"cluster.devices.1.capacity={CAPACITY}",
            f"hydra.run.dir={self.folder / name}", f"tracking.uri={self.database}",
            f"tracking.experiment={name}", *arguments,
        ]  # fmt: skip
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background jobs ignore Ctrl-C, and so would what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def end(self, name: str, process: subprocess.Popen[str]) -> Outcome:
        try:
            stdout, stderr = process.communicate(timeout=UP_TO_S)
        finally:
            process.kill()
        return Outcome(process.returncode, stdout, stderr, self.folder / name, self.database)

    def run(self, name: str, *arguments: str, runner: str = "compare") -> Outcome:
        return self.end(name, self.start(name, *arguments, runner=runner))


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Command:
    folder = tmp_path_factory.mktemp("commands")
    shutil.copy(empty_database, folder / "mlflow.db")
    return Command(folder)


@pytest.fixture(scope="module")
def compared(command: Command) -> Outcome:
    """The methods, each trained for an epoch of five iterations."""
    return command.run("compared")


METHODS = ("m_topo", "single")


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return vgg19(10, WIDTH, HIDDEN, pooled=1, batch_norm=True, dropout=0.0)


def errors(outcome: Outcome) -> list[str]:
    return [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]


def worker_processes(pid: int) -> dict[int, psutil.Process]:
    """Rank -> worker process below the command with `pid`: each maps its heartbeat file."""
    return {
        int(rank[1]): process
        for process in psutil.Process(pid).children(recursive=True)
        for part in process.memory_maps()
        if (rank := re.search(r"rank(\d+)\.heartbeat$", part.path))
    }


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + UP_TO_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_training(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the second worker is at an instruction of its training program."""

    def trains() -> bool:
        place = read_place(folder / "workers", 1)
        deployed = any(folder.glob("*/placement.json"))
        return deployed and place is not None and place.phase == 1 and place.index >= 0

    wait_until(trains, process)


# --- a comparison that goes well --------------------------------------------------------------------


def test_a_comparison_ends_with_exit_code_0_and_a_table_of_its_methods(compared: Outcome) -> None:
    assert compared.code == 0, compared.stderr
    assert "Traceback" not in compared.stderr
    for words in ("Starting 2 workers", "Capturing VGG", "Measuring 2 links", "m_topo: epoch 1"):
        assert words in compared.stdout + compared.stderr
    for method in METHODS:
        assert re.search(rf"^{method} +\w+.* cpu:0 ", compared.stdout, re.MULTILINE), compared.stdout
    assert str(compared.folder) in compared.stdout.replace("\n", "")
    table = compared.stdout[compared.stdout.index("vgg19_small · digits") :].partition("This table is")[0]
    assert max(len(line) for line in table.splitlines()) <= 110
    last = compared.stdout.splitlines()[-1]
    won = re.match(r"(netsplit|m_topo) (is the fastest( that fits)?|and \w+ are level): ", last)
    assert won, last
    command = last.partition(f"To train with {won[1]}: ")[2]
    assert command.startswith("netsplit train experiment=quick model=vgg19_small")
    assert command.endswith(f"schedule=gpipe partitioner={won[1]}")


def test_a_comparison_is_a_finished_run_and_so_is_each_method(compared: Outcome) -> None:
    runs = compared.runs
    assert set(runs) == {"parent", *METHODS}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parent = runs["parent"].info.run_id
    assert {runs[m].data.tags["comparison"] for m in METHODS} == {parent}
    assert {runs[m].info.run_name.split(" · ")[0] for m in METHODS} == set(METHODS)


def test_metrics_per_iteration_epoch_and_run_are_recorded(compared: Outcome) -> None:
    for method in METHODS:
        metrics = compared.runs[method].data.metrics
        assert len(compared.series(method, "train/loss")) == LIMIT // BATCH
        # all but the iteration that is metered for bytes
        assert len(compared.series(method, "train/iteration_s")) == LIMIT // BATCH - 1
        for key in ("train/epoch_loss", "train/epoch_s", "test/accuracy"):
            assert len(compared.series(method, key)) == 1
        assert metrics["speed/seconds_per_iteration"] > 0
        assert metrics["seconds_per_iteration_predicted"] > 0
        tags = compared.runs[method].data.tags
        for kind in ("predicted_peak_bytes", "measured_peak_bytes"):
            assert sum(int(tags.get(f"{kind}.cpu:{rank}", 0)) for rank in range(2)) > MIB
        assert "prediction_error" in metrics
        assert metrics["solver_seconds"] >= 0
        charts = {key for key in metrics if not key.startswith("system/")}
        assert 14 <= len(charts) <= 16
        shared = compared.runs["parent"].data.metrics
        assert shared[f"{method}/samples_per_s"] == metrics["speed/samples_per_s"]
        assert shared[f"{method}/accuracy"] == metrics["test/accuracy"]


def test_artifacts_are_stored_and_can_be_read(compared: Outcome) -> None:
    shared = compared.artifacts("parent")
    names = {"graph.json", "comparison.md", "config.yaml"}
    pictures = {"comparison.png", "training.png"}
    assert {path.name for path in shared.iterdir()} >= names | pictures
    graph = read_workload(shared / "graph.json").graph
    for method in METHODS:
        own = compared.artifacts(method)
        placement = json.loads((own / "placement.json").read_text())
        assert set(placement["device_of"]) == set(graph.nodes)
        assert {path.name for path in own.iterdir()} >= {"config.yaml", "summary.txt", "program.txt"}
        for picture in ("graph.png", "timeline.png"):
            assert (own / picture).read_bytes().startswith(b"\x89PNG")
    for picture in pictures:
        assert (shared / picture).read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_is_the_plain_model_with_the_recorded_accuracy(compared: Outcome) -> None:
    data = digits(limit=LIMIT, seed=0)
    images, targets = (
        torch.stack(column) for column in zip(*(data.test[i] for i in range(LIMIT)), strict=True)
    )
    for method in METHODS:
        plain = model()
        state = torch.load(compared.folder / method / "checkpoint.pt", weights_only=True)
        plain.load_state_dict(state, strict=True)
        with torch.no_grad():
            right = (plain.eval()(images).argmax(1) == targets).float().mean().item()
        recorded = compared.series(method, "test/accuracy")[-1]
        assert right == pytest.approx(recorded, abs=1.01 / len(targets))  # one tie may fall either way


def test_single_trains_bit_for_bit_as_a_plain_loop(compared: Outcome) -> None:
    """Losses of every iteration and all parameters and buffers at the end."""
    plain, loss_of = model(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for inputs, targets in batches(digits(limit=LIMIT, seed=0).train, BATCH, seed=0):
        parts = []
        for x, y in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
            loss = loss_of(plain(x), y)
            (loss / MICROBATCHES).backward()
            parts.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(parts) / MICROBATCHES)
    assert compared.series("single", "train/loss") == losses
    state = torch.load(compared.folder / "single" / "checkpoint.pt", weights_only=True)
    assert all(torch.equal(state[key], tensor) for key, tensor in plain.state_dict().items())


# --- one method, and what goes wrong ----------------------------------------------------------------


@pytest.mark.slow
def test_a_training_goes_on_by_itself_and_again_when_it_is_started_again(command: Command) -> None:
    folder = command.folder / "checkpoints"
    asked = [
        "partitioner=m_topo",
        "schedule=gpipe",
        "resume=auto",
        "checkpoint.every_iterations=1",
        f"checkpoint.folder={folder}",
    ]
    process = command.start("resumed", *asked, "epochs=2", runner="train")
    wait_until(lambda: any(folder.glob("m_topo/*-step-2")), process)
    os.kill(worker_processes(process.pid)[1].pid, signal.SIGKILL)
    outcome = command.end("resumed", process)
    assert outcome.code == 0, outcome.stderr
    assert "restarting the workers (1 of 3)" in outcome.stdout + outcome.stderr
    assert {run.info.status for run in outcome.runs.values()} == {"FINISHED"}
    assert len(outcome.series("m_topo", "train/loss")) == 2 * LIMIT // BATCH  # each once
    longer = command.run("longer", *asked, "epochs=3", runner="train")
    assert longer.code == 0, longer.stderr
    assert len(longer.series("m_topo", "train/loss")) == LIMIT // BATCH
    assert longer.series("m_topo", "train/epoch_loss")[:2] == outcome.series("m_topo", "train/epoch_loss")
    again = command.run("again", *asked, "epochs=3", runner="train")
    assert again.code == 0, again.stderr
    data = again.runs["m_topo"].data
    assert data.metrics["speed/seconds_per_iteration"] > 0
    assert "prediction_error" not in data.metrics
    assert data.tags["measured_by"] == "an earlier run"
    assert "† measured by an earlier run" in again.stdout


@pytest.fixture(scope="module")
def broken(command: Command) -> tuple[Outcome, int]:
    """A method without room, one whose worker is killed, one that goes well; and the killed process."""
    small = [f"cluster.devices.{rank}.capacity=2MiB" for rank in range(2)]
    process = command.start("broken", "partitioner=[netsplit,random,single]", "epochs=3", *small)
    wait_for_training(command.folder / "broken", process)
    victim = worker_processes(process.pid)[1].pid
    os.kill(victim, signal.SIGKILL)
    return command.end("broken", process), victim


@pytest.mark.slow
def test_failed_methods_stop_no_other_and_are_named_at_the_end(broken: tuple[Outcome, int]) -> None:
    outcome, _ = broken
    assert outcome.code == 2, outcome.stderr
    assert {name: run.info.status for name, run in outcome.runs.items()} == {
        "parent": "FINISHED", "netsplit": "FAILED", "random": "FAILED", "single": "FINISHED",
    }  # fmt: skip
    (error,) = errors(outcome)
    assert error.startswith("error: netsplit finds no")
    assert "Traceback" not in outcome.stderr
    assert len(outcome.series("single", "test/accuracy")) == 3  # with new workers


@pytest.mark.slow
def test_an_interrupt_of_the_train_command_stops_the_workers_and_marks_the_runs_killed(
    command: Command,
) -> None:
    process = command.start(
        "interrupted", "partitioner=m_topo", "schedule=gpipe", "epochs=200", runner="train"
    )
    wait_for_training(command.folder / "interrupted", process)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(worker_processes(process.pid)) == 2
    process.send_signal(signal.SIGINT)
    outcome = command.end("interrupted", process)
    assert outcome.code == 130, outcome.stderr
    assert not psutil.wait_procs(below, timeout=10)[1]
    assert {name: run.info.status for name, run in outcome.runs.items()} == {
        "parent": "KILLED",
        "m_topo": "KILLED",
    }
    assert outcome.stderr.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in outcome.stderr
