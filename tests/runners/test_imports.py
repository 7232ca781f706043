"""What is loaded before a command has accepted its arguments, and by `netsplit.parallelize`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = [
    "torch", "numba", "mlflow", "matplotlib", "ortools", "gurobipy", "cvxopt", "scipy", "pandas", "sklearn",
]  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]

COMMANDS = {
    "runners.compare --help": 0,
    "runners.compare model=resnet51": 2,
    "runners.partition graph=nowhere.json": 2,
    "netsplit train --help": 0,
    "netsplit plan mine:build --cluster nowhere": 2,
}

# A child of an interpreter that has loaded nothing is as fresh as another interpreter, and there sooner.
CHILDREN = """
import json, os, runpy, sys
commands, heavy = json.loads(sys.argv[1])
for line in commands:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    sys.argv = line.split()
    code = 0
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    with open("ended", "a") as file:
        print(json.dumps([line, code, [each for each in heavy if each in sys.modules]]), file=file)
    os._exit(0)
"""

PARALLELIZED = """
import sys, torch, netsplit
x, y = torch.rand(4, 4), torch.rand(4, 2)
with netsplit.parallelize(
    torch.nn.Linear(4, 2), torch.nn.MSELoss(), (x, y), cluster=2, schedule="gpipe", partitioner="m_topo",
    profile="predicted",
) as model:
    model.train_batch(x, y)
    print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}


def test_what_a_command_refuses_or_explains_loads_nothing_heavy(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    asked = json.dumps([list(COMMANDS), HEAVY])
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, asked], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    ended = [json.loads(line) for line in (tmp_path / "ended").read_text().splitlines()]
    assert ended == [[line, code, []] for line, code in COMMANDS.items()], done.stderr


@pytest.mark.slow
def test_training_with_a_named_method_loads_no_solver_and_no_record(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    heavy = ["mlflow", "hydra", "omegaconf", "matplotlib", "ortools", "gurobipy", "cvxopt"]
    done = subprocess.run(
        [sys.executable, "-c", PARALLELIZED, *heavy],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
