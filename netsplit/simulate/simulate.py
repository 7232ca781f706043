"""The predicting interpreter: the instructions the runtime executes, in time instead of tensors.

A device does one computation at a time. A transfer occupies its directed link alone, and begins when
the send has been issued, the receive is ready (as gloo and NCCL have it) and the link is free. On a
link, transfers begin in the order of their tags: both ends issue them in that order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from netsplit.cluster.cluster import Cluster
from netsplit.profile.costs import Costs
from netsplit.program.check import needs
from netsplit.program.instructions import Backward, Forward, Instruction, Program, Recv, Send, Step
from netsplit.simulate.memory import predicted_peak_bytes
from netsplit.simulate.timeline import Event, EventKind, Timeline

__all__ = ["simulate"]


def simulate(program: Program, cluster: Cluster, costs: Costs) -> Timeline:
    """Predicted timeline of one iteration, with peak bytes of every device.

    One pass over the program's global order: whatever an instruction waits for comes before it.
    """
    run = _Run(program, cluster, costs)
    at = dict.fromkeys(program.devices, 0)
    for device in program.order:
        run.execute(device, program.instructions[device][at[device]])
        at[device] += 1
    seconds = max([*run.clock.values(), *run.link_free.values()], default=0.0)
    events = tuple(sorted(run.events, key=lambda event: (event.start_s, event.device)))
    return Timeline(events, seconds, predicted_peak_bytes(program, costs.alpha))


@dataclass
class _Run:
    program: Program
    cluster: Cluster
    costs: Costs
    clock: dict[str, float] = field(init=False)
    link_free: dict[tuple[str, str], float] = field(default_factory=dict)
    issued: dict[int, float] = field(default_factory=dict)  # tag -> when it was sent
    arrival: dict[tuple[str, int, bool], tuple[float, Recv]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = dict.fromkeys(self.program.devices, 0.0)
        self.kind = {device.name: device.kind for device in self.cluster.devices}
        self.forward_s, self.backward_s = [], []
        for segment in self.program.segments:
            seconds = self.costs.seconds[self.kind[segment.device]]
            self.forward_s.append(sum(seconds[name].forward_s for name in segment.nodes))
            self.backward_s.append(sum(seconds[name].backward_s for name in segment.nodes))

    def execute(self, device: str, ins: Instruction) -> None:
        self.clock[device] += self.costs.instruction_s.get(self.kind[device], 0.0)
        if isinstance(ins, Send):
            self.issued[ins.tag] = self.clock[device]
        elif isinstance(ins, Recv):
            self._transfer(device, ins)
        elif isinstance(ins, Step):
            self._compute(device, "step", str(ins), -1, self._step_s(device))
        else:
            self._wait(device, ins)
            forward = isinstance(ins, Forward)
            seconds = (self.forward_s if forward else self.backward_s)[ins.segment]
            kind: EventKind = "forward" if forward else "backward"
            self._compute(device, kind, f"segment {ins.segment}", ins.microbatch, seconds)

    def _transfer(self, device: str, recv: Recv) -> None:
        link = (recv.peer, device)
        nbytes = self.program.graph.variables[recv.source].nbytes
        start = max(self.issued[recv.tag], self.clock[device], self.link_free.get(link, 0.0))
        end = start + self.cluster.transfer_seconds(nbytes, *link)
        self.link_free[link] = end
        self.arrival[recv.variable, recv.microbatch, recv.gradient] = (end, recv)
        name = f"gradient of {recv.source}" if recv.gradient else recv.source
        self.events.append(Event(recv.peer, "send", name, recv.microbatch, start, end, device, nbytes))

    def _wait(self, device: str, ins: Forward | Backward) -> None:
        for key in needs(self.program, ins):
            end, recv = self.arrival.get(key, (0.0, None))
            if recv is not None and end > self.clock[device]:
                start, self.clock[device] = self.clock[device], end
                self.events.append(
                    Event(device, "wait", recv.what, recv.microbatch, start, end, recv.peer)
                )

    def _compute(self, device: str, kind: EventKind, name: str, microbatch: int, seconds: float) -> None:
        start = self.clock[device]
        self.clock[device] = start + seconds
        self.events.append(Event(device, kind, name, microbatch, start, start + seconds))

    def _step_s(self, device: str) -> float:
        initializers = self.program.graph.initializers
        held = [k for k, home in self.program.initializer_device.items() if home == device]
        nbytes = sum(initializers[k].nbytes for k in held if initializers[k].requires_grad)
        return nbytes * self.costs.step_seconds_per_byte.get(self.kind[device], 0.0)
