"""One case in a process of its own: `python -m benchmarks.scaling.case JSON` prints a row as JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.scaling.drawn import drawn_problem
from netsplit.errors import NetSplitError
from netsplit.partition import METHODS
from netsplit.partition.compile_all import compile_all
from netsplit.planning.decide import decide
from netsplit.settings import ObjectiveName

__all__ = ["Case", "row_of"]


@dataclass(frozen=True)
class Case:
    """What is planned, by which method, within how many seconds."""

    graph: str
    cluster: str
    nodes: int
    devices: int
    objective: ObjectiveName
    method: str
    limit_s: float
    seed: int = 0


def row_of(case: Case) -> dict[str, Any]:
    """Seconds of the method and of what follows it: compiling, simulating and verifying its plan.

    Of both together also those of the processor, which other work on the machine makes little longer.
    """
    problem = drawn_problem(
        case.graph, case.cluster, case.nodes, case.devices, case.objective, case.limit_s, case.seed
    )
    row: dict[str, Any] = {"status": "", "nodes_drawn": len(problem.graph)}
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        plan = decide(problem, METHODS[case.method]())
        notes = plan.placement.report.notes
        row["planning_s"] = plan.seconds
        row |= {"status": plan.status, "score_s": plan.objective_s, "used": len(plan.nodes)}
        row |= {"source": notes.get("found_by", ""), "left_out": notes.get("left_out", {})}
    except NetSplitError as refusal:
        row |= {"status": f"refused: {type(refusal).__name__}", "message": str(refusal)}
    row |= {"all_s": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}
    return row


if __name__ == "__main__":
    asked = Case(**json.loads(sys.argv[1]))
    compile_all()  # once an installation, and no part of what is measured
    print(json.dumps({**asdict(asked), **row_of(asked)}))
