"""What `runners.simulate` does: shows the devices' time and bytes, who waits for whom, the critical path."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from netsplit.cluster.described import ClusterDescription
from netsplit.formats.placements import read_placement
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.pictures.timeline_figure import timeline_figure
from netsplit.planning.decide import decide, verified
from netsplit.planning.explanation import critical_path, path_lines
from netsplit.program.instructions import Program
from netsplit.program.schedules import Schedule
from netsplit.simulate.simulate import costed_profiles
from netsplit.simulate.timeline import Timeline, device_times, peak_moment_s, waits
from netsplit.simulate.trace import write_trace
from netsplit.tables import Column, Table, counted, nbytes, percent, seconds, short

from ._entry import console_of
from ._graph_file import SimulateSettings, memory_rule
from ._partitioned import NO_LIMIT, read
from ._progress import Waiting

__all__ = ["run"]

log = logging.getLogger(__name__)

_WIDTH = 100  # columns of what goes to a file or a pipe


def run(
    settings: SimulateSettings,
    partitioner: Partitioner | None,
    schedule: Schedule,
    cluster: ClusterDescription | None,
    folder: Path,
) -> float:
    """From the graph file to the tables, the trace and the picture; seconds of an iteration."""
    work = read(settings)
    problem = work.problem(
        cluster,
        "simulated",
        schedule=schedule,
        seed=settings.seed,
        time_limit_s=settings.time_limit,
        alpha=settings.alpha,
        memory=memory_rule(settings, work, of_a_step=True),
        offload=settings.offload,
    )
    console = console_of(_WIDTH)
    if partitioner is None:
        plan = verified(problem, read_placement(settings.placement or "", problem), room=False)
    else:
        with Waiting(console, partitioner.name, partitioner.time_limit_s and settings.time_limit):
            plan = decide(problem, partitioner, room=partitioner.respects_capacity)
        log.info("%s: %s", plan.placement.method, plan.placement.report.summary())
    program, timeline = plan.simulated
    parts = "1 micro-batch" if program.microbatches == 1 else f"{program.microbatches} micro-batches"
    title = f"{work.name}, {plan.placement.method}, {schedule.name} with {parts}"
    console.print(title, style="bold", highlight=False, markup=False)
    show(console, problem, program, timeline, settings.pieces)
    if settings.show_program:
        console.print(program.show(), highlight=False, markup=False, soft_wrap=True)
    write_trace(folder / "trace.json", timeline, parts=plan.event_parts)
    written = "trace.json"
    if settings.picture:
        timeline_figure(timeline, None, folder / "timeline.png")
        written = "trace.json and timeline.png"
    console.print(f"Written to {folder}: {written}.", highlight=False, soft_wrap=True)
    return timeline.iteration_s


def show(console: Console, problem: Problem, program: Program, timeline: Timeline, pieces: int) -> None:
    """Print all tables within the console's width.

    Args:
        pieces: of the critical path, and waits, to show at most.
    """
    whole = timeline.iteration_s
    count = sum(map(len, program.instructions.values()))
    console.print(
        f"iteration {seconds(whole)}: {len(program.segments)} segments, {count} instructions, "
        f"{program.transfers} transfers on {len(program.devices)} devices ({escape(problem.cluster.name)})",
        highlight=False,
    )
    console.print(_times(program, timeline).terminal())
    console.print(_bytes(problem, program, timeline).terminal())
    _show_waits(console, timeline, pieces)
    path = critical_path(timeline, program)
    kinds: Counter[str] = Counter()
    for span in path:
        kinds[span.what] += span.seconds  # type: ignore[assignment]
    made_of = ", ".join(f"{what} {percent(s, whole)}" for what, s in kinds.most_common() if s > 0)
    lines = list(path_lines(path, whole, pieces))
    for line in [*lines[:1], *([f"  made up of: {made_of}"] if made_of else []), *lines[1:]]:
        console.print(line, highlight=False, markup=False)


def _times(program: Program, timeline: Timeline) -> Table:
    whole = timeline.iteration_s
    columns = ("busy", "%", "waits", "%", "idle", "%", "transfers", "%", "hidden")
    rows = []
    for each in device_times(timeline, program.devices):
        cells: list[str] = []
        for value in (each.busy_s, each.wait_s, each.idle_s, each.transfer_s):
            cells += [seconds(value), percent(value, whole) if whole > 0 else "0 %"]
        hidden = percent(each.hidden_s, each.transfer_s) if each.transfer_s > 0 else ""
        rows.append([each.device, *cells, hidden])
    return Table([Column("device", text=True), *map(Column, columns)], rows)


def _bytes(problem: Problem, program: Program, timeline: Timeline) -> Table:
    columns = [
        Column("device", text=True),
        Column("peak"),
        Column("of"),
        Column("when"),
        Column("where", text=True, whole=True),
        *([Column("host")] if timeline.host_bytes else []),
    ]
    rows: list[tuple[str, ...]] = []
    marked: dict[int, str] = {}
    profiles = costed_profiles(program, problem.cluster, problem.costs)
    for device, profile in profiles.items():
        limit, at = problem.cluster.device(device).capacity_bytes, profile.index
        where = str(program.instructions[device][at]) if at >= 0 else ""
        if profile.peak_bytes > limit:
            marked[len(rows)], where = "failed", f"{where} (over the limit)"
        rows.append(
            (
                device,
                nbytes(profile.peak_bytes),
                nbytes(limit) if limit < NO_LIMIT else "no limit",
                seconds(peak_moment_s(program, timeline, profile)) if at >= 0 else "",
                where,
                *([nbytes(profile.host_bytes)] if timeline.host_bytes else []),
            )
        )
    return Table(columns, rows, marked=marked)


def _show_waits(console: Console, timeline: Timeline, limit: int) -> None:
    all_waits = waits(timeline)
    if not all_waits:
        console.print("nothing waits")
        return
    for each in all_waits[:limit]:
        peer = f" from {each.peer}" if each.peer and not each.what.startswith("sum of") else ""
        times = "once" if each.count == 1 else f"{each.count} times"
        text = f"{each.device} waits {seconds(each.seconds)}, {times}, for {short(each.what, 48)}{peer}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    if len(all_waits) > limit:
        rest = all_waits[limit:]
        total = seconds(sum(each.seconds for each in rest))
        console.print(f"and {counted(len(rest), 'more wait')}, {total} in all", highlight=False)
