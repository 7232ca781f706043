"""What is installed and what works here, to be pasted into a report of a bug."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module, metadata

import psutil
import torch
from rich.console import Console

import netsplit
from netsplit.errors import NetSplitError
from netsplit.files import shadowing
from netsplit.profile.measured import default_folder
from netsplit.runtime.transport.neighbours import may_be_read
from netsplit.tracking.host import gpu_names, host_tags

from .machine import probe

__all__ = ["doctor"]

PACKAGES = (
    "torch", "torchvision", "onnx", "hydra-core", "omegaconf", "mlflow", "picos", "gurobipy", "nvidia-ml-py",
    "highspy", "ortools", "cvxopt", "numba", "numpy", "scipy", "networkx",
)  # fmt: skip
OPTIONAL = ("swiglpk", "ray", "optuna", "transformers", "lightning", "safetensors")
LEAST_SHARED = 64 * 2**20  # bytes; data-loading processes pass batches there


def doctor(links: bool) -> None:
    """Print all checks; exit code 1 if one fails."""
    lines, problems = ["```text", *_versions(), *_host()], 0
    for name, check in CHECKS.items():
        try:
            answer = check()
        except (NetSplitError, OSError, RuntimeError, ImportError) as error:
            answer, problems = f"PROBLEM: {' '.join(str(error).split())}", problems + 1
        lines.append(f"{name:16}{answer}")
    console = Console(soft_wrap=True)
    console.print("\n".join([*lines, "```"]), highlight=False, markup=False)
    if links:
        probe("cpu2", None)
    console.print("All is well." if not problems else f"Problems: {problems}, see above.")
    sys.exit(1 if problems else 0)


def _versions() -> list[str]:
    lines = [f"{'netsplit':16}{netsplit.__version__}", f"{'python':16}{platform.python_version()}"]
    for package in (*PACKAGES, *OPTIONAL):
        try:
            lines.append(f"{package:16}{metadata.version(package)}")
        except metadata.PackageNotFoundError:
            if package in PACKAGES:
                lines.append(f"{package:16}not installed: `pip install {package}` brings it")
    return lines


def _host() -> list[str]:
    keys = ("host.os", "host.cpu", "host.cores")
    tags = host_tags()
    gpus = ", ".join(gpu_names()) or "the driver finds none"
    memory = psutil.virtual_memory()
    return [
        *(f"{key.partition('.')[2]:16}{tags[key]}" for key in keys if key in tags),
        f"{'memory':16}{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} free",
        f"{'gpus':16}{gpus}; torch sees {torch.cuda.device_count()}, built for CUDA {torch.version.cuda}",
    ]


def _solvers() -> str:
    cp_model = import_module("ortools.sat.python.cp_model")
    interrupts = import_module("netsplit.interrupts")

    solver = interrupts.cp_sat_solver(5, 0, 1)
    model = cp_model.CpModel()
    model.maximize(model.new_int_var(0, 7, "x"))
    if solver.solve(model) != cp_model.OPTIMAL or solver.objective_value != 7:
        raise RuntimeError("CP-SAT does not solve")
    return f"CP-SAT solves; HiGHS {import_module('highspy').Highs().version()}; {_gurobi()}"


def _picos() -> str:
    by_picos = import_module("netsplit.partition.engines.mixed_integer")
    return f"can use {', '.join(by_picos.PREFIX + name for name in by_picos.picos_engines()) or 'no engine'}"


def _gurobi() -> str:
    gurobipy = import_module("gurobipy")

    try:
        with gurobipy.Env(empty=True) as environment:
            environment.setParam("OutputFlag", 0)
            environment.start()
    except gurobipy.GurobiError as error:
        return f"Gurobi has no licence ({error})"
    return "Gurobi starts (without a licence of yours, models of up to 2,000 variables and rows)"


def _messages() -> str:
    if may_be_read():
        return "workers on one host read each other's memory, if the system allows it"
    return "gloo only: this system has no process_vm_readv"


def _shared() -> str:
    free = shutil.disk_usage("/dev/shm").free
    if free < LEAST_SHARED:
        raise OSError(f"/dev/shm has {free / 2**20:.0f} MiB left: data-loading processes need more")
    return f"/dev/shm has {free / 2**20:.0f} MiB left"


def _profiles() -> str:
    folder = default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder):
        return f"kept in {folder}, {len(list(folder.glob('*.json')))} of them"


def _compiled() -> str:
    function = import_module("netsplit.partition.engines.anneal").anneal.dispatcher
    folder = getattr(function._cache, "cache_path", None)  # numba's; a function that is not cached has none
    if folder is None:
        raise OSError(
            "compiled in every process, as no cache folder is writable: name one in NUMBA_CACHE_DIR"
        )
    return f"kept in {folder}"


def _modules() -> str:
    """Files that hide standard modules from scripts in this folder."""
    files = ", ".join(shadowing([os.getcwd(), *sys.path]).values())
    if files:
        raise NetSplitError(
            f"scripts here, and torch, would import {files} instead of the standard library: rename it"
        )
    return "no file here hides a standard module"


CHECKS: dict[str, Callable[[], str]] = {
    "solvers": _solvers,
    "picos": _picos,
    "messages": _messages,
    "shared memory": _shared,
    "profiles": _profiles,
    "compiled code": _compiled,
    "modules": _modules,
    "compiler": lambda: shutil.which("c++") or shutil.which("g++") or "none; only torch.compile needs one",
}
