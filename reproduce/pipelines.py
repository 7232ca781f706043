"""What hosts send one another in a pipeline, and what hides it, as AlpaComm evaluates training (5.2, 5.3.2).

host 0  d0 d1 d2 d3      a stage of the model's operators, in order, for each host, with operators in parts
            ║ NIC        on its devices; or a stage of whole operators for each device
host 1  d4 d5 d6 d7
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Literal, get_args

from netsplit.cluster.cluster import Cluster, Link
from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.placement.exchange import ExchangeName
from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.decide import decide_whole, verified
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import problem_under
from netsplit.program.schedules import EagerOneFOneB, OneFOneB, Schedule
from netsplit.rewrite import Rewrite, columns_and_rows, replicate, splits_of
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.fastt import V100Servers, described_case
from reproduce.result import StudyResult

__all__ = ["PipelineCase", "StageParts", "pipeline_speeds"]

log = logging.getLogger(__name__)

StageParts = Literal["columns", "samples", "whole"]
"""Products by columns and rows, operators along the samples with copied weights, or no parts."""

_PROVING_S = 0.01  # for bounds, which this does not show
_NO_BYTES = Link(0.0, 1e-18)

COLUMNS = (
    Column("case", text=True),
    Column("hosts", "d"),
    Column("operators", text=True),
    Column("send/receive, 1F1B (ms)", ",.0f", 1e3),
    Column("without overlap (ms)", ",.0f", 1e3),
    Column("broadcast, 1F1B (ms)", ",.0f", 1e3),
    Column("auto, eager 1F1B (ms)", ",.0f", 1e3),
    Column("and weights delayed (ms)", ",.0f", 1e3),
    Column("nothing to send (ms)", ",.0f", 1e3),
    Column("gain", ".2f"),
    Column("whole plan (ms)", ",.0f", 1e3),
    Column("of the bound (%)", ".0f", 100.0),
    Column("sent (MiB)", ",.0f", 2.0**-20),
    Column("instead of (MiB)", ",.0f", 2.0**-20),
)
NOTES = (
    "Planned: operator times are predicted, iterations simulated, timelines verified.",
    "without overlap: broadcast and 1F1B; neither end of a transfer computes during it.",
    "weights delayed: as little as possible; nothing to send: the same, if no byte left a host.",
    "gain: auto with eager 1F1B and weights delayed, over send/receive with 1F1B.",
    "whole plan: the plan of schedule=auto, for cases with whole operators.",
    "sent: between hosts in an iteration, both directions.",
)


@dataclass(frozen=True)
class PipelineCase(ModelCase):
    """A model whose operators are stages of a pipeline over hosts.

    Args:
        parts: of operators, on the devices of a host.
        microbatches: that a batch is cut into.
    """

    parts: StageParts = "columns"
    microbatches: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts not in get_args(StageParts):
            raise ConfigError(
                f"parts of a case is {self.parts!r}: choose one of {', '.join(get_args(StageParts))}."
            )


def pipeline_speeds(
    cases: ByName[PipelineCase],
    servers: V100Servers | None = None,
    hosts: Sequence[int] = (2,),
    whole_plan_s: float = 0.0,
    seed: int = 0,
) -> StudyResult:
    """Seconds of an iteration with and without exchanges, eager forwards and delayed weights.

    Args:
        cases: models, with what is done to their operators.
        servers: None: p3.8xlarge, four V100 a host and 10 Gb/s between hosts.
        hosts: how many, each in turn.
        whole_plan_s: of a decision of everything; 0: none is asked for.
        seed: of nothing that is drawn here; for the problem's record.

    Raises:
        CaptureError: a case cannot be captured.
        RewriteError: its operators cannot be in parts so.
    """
    check_references(cases)
    servers, said = servers or V100Servers(a_server=4), []
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        for count in hosts:
            seconds, sent = _compared(case, servers, count, seed)
            log.info("%s on %d hosts: %s", name, count, seconds)
            whole = _whole_plan(case, servers, count, whole_plan_s, seed) if case.parts == "whole" else None
            best = seconds["delayed"]
            rows.append(
                (
                    case.label or name, count, case.parts, *seconds.values(), seconds["send_receive"] / best,
                    whole.iteration_s if whole else None, seconds["possible"] / best, *sent,
                )
            )  # fmt: skip
            metrics |= {f"seconds.{each}.{name}.{count}": value for each, value in seconds.items()}
            if whole is not None:
                metrics[f"seconds.whole_plan.{name}.{count}"] = whole.iteration_s
                said.append(f"{case.label or name} on {count} hosts: {whole.lines[0]}.")
    return StudyResult("Pipelines over hosts", COLUMNS, tuple(rows), (*NOTES, *said), metrics=metrics)


def _compared(
    case: PipelineCase, servers: V100Servers, hosts: int, seed: int
) -> tuple[dict[str, float], tuple[int, int]]:
    """Seconds by what is done, in the order of the columns; bytes between hosts with and without it."""
    m = case.microbatches
    plain, eager = OneFOneB(m), EagerOneFOneB(m)
    delayed = replace(eager, delay_weights="minimal")
    cluster = servers.of(servers.a_server * hosts)
    problem = described_case(case, cluster, case.batch_size, plain, seed).problem
    placement = stages_over_hosts(problem, servers.a_server, hosts, case.parts)

    def plan(schedule: Schedule, exchange: ExchangeName, where: Problem = problem) -> Plan:
        under = problem_under(where, replace(schedule, exchange=exchange))
        return verified(under, placement, room=False, bound_limit_s=_PROVING_S)

    slow = described_case(case, _without_overlap(servers, hosts), case.batch_size, plain, seed).problem
    free = problem.moved_to(_nothing_between(problem.cluster), problem.costs)
    first, last = plan(plain, "send_receive"), plan(delayed, "auto")
    seconds = {
        "send_receive": first.objective_s,
        "without_overlap": plan(plain, "broadcast", slow).objective_s,
        "broadcast": plan(plain, "broadcast").objective_s,
        "eager": plan(eager, "auto").objective_s,
        "delayed": last.objective_s,
        "possible": plan(delayed, "send_receive", free).objective_s,
    }
    return seconds, (_between_hosts(last), _between_hosts(first))


def _whole_plan(
    case: PipelineCase, servers: V100Servers, hosts: int, limit_s: float, seed: int
) -> Plan | None:
    """Everything decided for the model on those hosts, or None where no time is given for it."""
    if not limit_s:
        return None
    cluster, size = servers.of(servers.a_server * hosts), case.batch_size

    def problem(m: int) -> Problem:
        return described_case(case, cluster, size, OneFOneB(m), seed).problem

    counts = [m for m in range(1, 2 * case.microbatches + 1) if size % m == 0]
    return decide_whole(cache(problem), counts, size, AutoSchedule(time_limit_s=limit_s))


def stages_over_hosts(problem: Problem, a_host: int, hosts: int, parts: StageParts) -> Placement:
    """Stages of about equal seconds in the graph's order: a host each, or of whole operators a device each.

    Part j of an operator is on device j of its host, what is whole or puts parts together on the first.

    Raises:
        RewriteError: operators cannot be in parts so.
    """
    names = [device.name for device in problem.cluster.devices]
    graph = problem.graph
    rewrites = _rewrites(graph, a_host, parts)
    own = problem.rewritten(rewrites)
    width = 1 if parts == "whole" else a_host
    stage_of = _stages(problem, len(names) // width)
    device_of: dict[str, str] = {}
    stages: dict[str, int] = {}
    for node in own.graph:
        stage = _stage_of_origin(node.name, stage_of)
        if stage is None:  # it moves tensors: to where they come from, or a weight to where it is read
            before = [stages[u] for u in own.graph.predecessors[node.name]]
            after = (_stage_of_origin(v, stage_of) for v in own.graph.successors[node.name])
            stage = max(before) if before else min((s for s in after if s is not None), default=0)
        stages[node.name] = stage
        part = re.search(r":(\d+)$", node.name)
        number = int(part[1]) if part is not None and int(part[1]) < width else 0
        device_of[node.name] = names[width * stage + number]
    for group in (*own.graph.colocated, *own.graph.units):
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    priority = topological_priority(own.graph, own.graph.position)
    report = SolverReport("heuristic", 0.0)
    return Placement("stages over hosts", device_of, priority, report, rewrites=tuple(rewrites))


def _rewrites(graph: Graph, count: int, parts: StageParts) -> Sequence[Rewrite]:
    if parts == "whole":
        return ()
    if parts == "samples":
        return replicate(graph, count)
    return splits_of(graph, columns_and_rows(graph), (1.0,) * count)


def _stages(problem: Problem, count: int) -> dict[str, int]:
    """Operator -> its stage."""
    kind = problem.cluster.devices[0].kind
    seconds = [problem.costs.total_s(name, kind) for name in problem.graph.nodes]
    ends = list(accumulate(seconds))
    stage_of = {
        name: min(int((end - own / 2) / ends[-1] * count), count - 1)
        for name, own, end in zip(problem.graph.nodes, seconds, ends, strict=True)
    }
    for group in (*problem.graph.colocated, *problem.graph.units):
        stage_of.update(dict.fromkeys(group, stage_of[group[0]]))
    return stage_of


def _stage_of_origin(name: str, stage_of: Mapping[str, int]) -> int | None:
    while name and name not in stage_of:
        name = name.rpartition(":")[0]
    return stage_of.get(name)


def _without_overlap(servers: V100Servers, hosts: int) -> ClusterDescription:
    return uniform_cluster(
        [servers.a_server, hosts],
        [servers.inside, servers.between],
        latency=[servers.inside_latency_s, servers.between_latency_s],
        name="without overlap",
        model="V100-SXM2-16GB",
        overlap=False,
    )


def _nothing_between(cluster: Cluster) -> Cluster:
    """The cluster where bytes between hosts take no time."""
    links = {pair: _NO_BYTES if cluster.way(*pair) else link for pair, link in cluster.links.items()}
    return replace(cluster, links=links, nics=())


def _between_hosts(plan: Plan) -> int:
    _, timeline = plan.simulated
    way: Callable[..., Sequence[object]] = plan.problem.cluster.way
    return sum(e.nbytes for e in timeline.events if e.kind == "send" and way(e.device, e.peer))
