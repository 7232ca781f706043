"""`python -m runners.plan`: the tables, the files, and one sentence for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.formats.own import save_workload
from netsplit.graph import capture
from netsplit.planning.workload import Workload
from runners._entry import entry
from runners.plan import job
from tests.builders import costs_of, cpus
from tests.commands import Command, Ended

Run = Callable[..., Ended]
FILES = {
    "plan.json", "frontier.txt", "placement.json", "program.txt", "summary.txt", "graph.png", "timeline.png",
}  # fmt: skip
SMALL = ["model=vgg19_small", "batch_size=16", "schedule.time_limit_s=1", "schedule.microbatches=[1,4]"]


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Run:
    """Run the command in a folder with a measured profile."""
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    graph = capture(net, nn.CrossEntropyLoss(), (torch.randn(8, 12), torch.randint(3, (8,))))
    save_workload(Workload("kept", graph, costs_of(graph, 1e-3, 2e-3), cpus(2)), tmp_path / "graph.json")
    return partial(command, entry("plan")(job), "plan")


def written(folder: str = "here") -> dict[str, object]:
    return json.loads((Path(folder) / "plan.json").read_text())  # type: ignore[no-any-return]


def test_a_model_is_planned_and_everything_written(run: Run) -> None:
    ended = run(*SMALL, "schedule.time_limit_s=2", "cluster=titan_rtx3", "hydra.run.dir=here")
    assert ended.code == 0, ended.err
    assert {path.name for path in Path("here").iterdir()} >= FILES
    plan = written()
    assert plan["schedule"] in ended.out
    assert plan["batch_size"] == 16
    assert set(plan["peak_bytes"]) == {"gpu0", "gpu1", "gpu2"}  # type: ignore[arg-type]
    assert all(words in ended.out for words in ("why not", "chosen", "is predicted to be the fastest"))
    text = Path("here/frontier.txt").read_text()
    table = text[text.index("kind ") :].split("\n\n")[0].splitlines()
    table = [line for line in table if " plans skipped: " not in line]
    assert table[1] == "    why not"
    assert all(line in ended.out for line in table)
    assert all(line == line.rstrip() and len(line) <= 100 for line in table)


def test_a_measured_profile_is_planned_with_its_micro_batches(run: Run) -> None:
    ended = run("graph=graph.json", "microbatches=3", "schedule.time_limit_s=1", "hydra.run.dir=here")
    assert ended.code == 0, ended.err
    assert (written()["microbatches"], written()["batch_size"]) == (3, 24)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [





        (["cluster=mixed3"], "gives only relative speeds, which need a measured graph"),
        (["schedule.microbatches=5"], "batch_size 64 does not divide into 5 equal micro-batches"),
        (["graph=graph.json", "cluster=cpu2", "cluster.devices.0.capacity=9", "cluster.devices.1.capacity=9",
          "schedule.time_limit_s=1"], "no plan fits on cluster 'cpu2'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, run: Run) -> None:
    given = [] if any(word.startswith("graph=") for word in words) else ["model=vgg19_small"]
    ended = run(*given, *words)
    assert ended.code == 2
    assert sentence in ended.err
    assert ended.err.count("error:") == 1
