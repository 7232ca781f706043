"""Which worker holds up the others, in words, from the places of all workers.

A waiting worker is never the cause. The cause is a worker that died, shows no sign of life, raised, or
computes while all others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from netsplit.program.instructions import Collective, Instruction, Program, Recv, Send
from netsplit.runtime.values import way_of
from netsplit.runtime.workers.messages import Heartbeat, Reply

__all__ = ["Findings", "Standing", "diagnose", "standing"]


@dataclass(frozen=True)
class Standing:
    """A device's place in its program."""

    instruction: Instruction | None  # None: at its end
    waits: Send | Recv | Collective | None  # None: it computes, or is unknown

    @property
    def where(self) -> str:
        """' at its forward of segment 1, micro-batch 0, waiting for …', to be put after a name."""
        at = " at its end" if self.instruction is None else f" at its {self.instruction}"
        return at if self.waits is None else f"{at}, waiting for {way_of(self.waits)}"


def standing(programs: Mapping[int, Program], rank: int, place: Heartbeat | None) -> Standing | None:
    """Where a rank is; None outside a program (`programs` by phase) or without a heartbeat."""
    if place is None or place.index < 0 or place.phase not in programs:
        return None
    program = programs[place.phase]
    own = program.instructions[program.devices[rank]]
    instruction = own[place.index] if place.index < len(own) else None
    waits = (ins for ins in own if isinstance(ins, Send | Recv | Collective) and ins.tag == place.waits)
    return Standing(instruction, next(waits, None))


@dataclass(frozen=True)
class Findings:
    """What is known about a failed call, by rank."""

    asked: list[int]
    dead: dict[int, str]  # how they ended, in order
    replies: dict[int, Reply]
    quiet: list[int]  # without sign of life
    standings: Mapping[int, Standing]

    @property
    def raised(self) -> list[int]:
        return [rank for rank, reply in self.replies.items() if reply.error and not reply.waited]

    @property
    def busy(self) -> list[int]:
        """Alive, asked, and yet to answer."""
        return [r for r in self.asked if r not in self.replies and r not in self.dead and r not in self.quiet]

    @property
    def hanging(self) -> list[int]:
        """Workers that compute while others wait; without heartbeats, all that have not answered."""
        if self.dead or self.quiet or self.raised:
            return []
        return [r for r in self.busy if r not in self.standings or self.standings[r].waits is None]


def diagnose(findings: Findings, who: Callable[[int], str], doing: str) -> str:
    """One sentence: the cause, then what the others waited for; `doing` names the call."""
    causes = [f"worker {who(r)} {how}{_where(findings, r, doing)}" for r, how in findings.dead.items()]
    causes += [f"worker {who(r)} does not answer{_where(findings, r, doing)}" for r in findings.quiet]
    for r in findings.raised:
        error, known = findings.replies[r].error, findings.replies[r].known
        raised = f"worker {who(r)} raised {error}{_where(findings, r, doing)}"
        causes.append(f"worker {who(r)}: {error}" if known else raised)
    causes += [f"worker {who(r)} hangs{_where(findings, r, doing)}" for r in findings.hanging]
    effects = [reply.error for reply in findings.replies.values() if reply.error and reply.waited]
    effects += [
        f"{who(r)} was{findings.standings[r].where}"
        for r in findings.busy
        if r in findings.standings and r not in findings.hanging
    ]
    cure = " (raise cluster.timeout_s if it is just slow)" if findings.quiet or findings.hanging else ""
    return "; ".join(part.rstrip(".") for part in [*causes, *effects]) + cure + "."


def _where(findings: Findings, rank: int, doing: str) -> str:
    return findings.standings[rank].where if rank in findings.standings else f" during '{doing}'"
