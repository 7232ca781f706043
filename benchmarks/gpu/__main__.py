"""What NetSplit does on a GPU, checked on one of them in at most five minutes.

    python -m benchmarks.gpu                     # all steps on cuda:0
    python -m benchmarks.gpu --steps race nccl   # some of them
    python -m benchmarks.gpu --cpu               # the same steps on CPU workers

Each step is a process of its own with a time limit, and prints one line of JSON: a step that fails or hangs
does not stop the rest. A table at the end says which steps held what was expected of them (docs/gpu.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._command import command_parser
from benchmarks.gpu.steps import STEPS
from netsplit.tables import Column, Table

_MODULE = "benchmarks.gpu"  # which each step's process runs
TORCH_DEVICES = {False: "cuda:0", True: "cpu"}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every step ran and held; 1 where one did not."""
    parser = command_parser("gpu", __doc__)
    parser.add_argument("--cpu", action="store_true", help="use CPU workers instead of the GPU")
    parser.add_argument(
        "--steps", nargs="+", choices=STEPS, default=list(STEPS), help="checks to run; default: all"
    )
    parser.add_argument("--out", type=Path, help="also write the lines to this file")
    parser.add_argument("--alone", choices=STEPS, help=argparse.SUPPRESS)  # run it here
    asked = parser.parse_args(arguments)
    if asked.alone:
        print(json.dumps(STEPS[asked.alone].run(TORCH_DEVICES[asked.cpu])), flush=True)
        return 0
    if not asked.cpu and not torch.cuda.is_available():
        print("No CUDA device, so nothing was checked: run this on a machine with a GPU, or with --cpu.")
        return 0
    lines = []
    for name in asked.steps:
        lines.append(_step(name, asked.cpu))
        print(json.dumps(lines[-1]), flush=True)
        if asked.out:
            asked.out.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    print(_table(lines))
    return 0 if all(line["held"] for line in lines) else 1


def _step(name: str, cpu: bool) -> dict[str, Any]:
    """Run a step in a process of its own; its line."""
    step, began = STEPS[name], time.monotonic()
    command = [sys.executable, "-m", _MODULE, "--alone", name, *(["--cpu"] if cpu else [])]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=step.limit_s)
        said = out.strip().splitlines()[-1:] or [""]
        facts = json.loads(said[0]) if process.returncode == 0 else {"error": _last(errors)}
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        _, errors = process.communicate()
        facts = {"error": f"not over within {step.limit_s:g} s: {_last(errors)}"}
    except ValueError:
        facts = {"error": f"printed no JSON: {out[-300:]}"}
    seconds = round(time.monotonic() - began, 1)
    held = "error" not in facts and step.holds(facts)
    return {"step": name, "held": held, "seconds": seconds, **facts}


def _last(errors: str) -> str:
    return " | ".join(errors.strip().splitlines()[-4:])[-900:]


def _table(lines: Sequence[dict[str, Any]]) -> str:
    columns = [
        Column("Step", text=True),
        Column("Held", text=True),
        Column("s", ".1f"),
        Column("Expected", text=True),
    ]
    rows = [[x["step"], "yes" if x["held"] else "NO", x["seconds"], STEPS[x["step"]].expected] for x in lines]
    return "\n".join(Table(columns, rows).lines())


if __name__ == "__main__":
    sys.exit(main())
