"""The predicting interpreter: the instructions the runtime executes, in time instead of tensors.

    device p   ──Send──► ┐                      ┌─► arrived ──► the Forward or Backward that waits, on q
                         ├─► ready ──► link p→q ┤
    device q   ──Recv──► ┘   (a heap, by time)  └─► free for the next

A device does one computation at a time; sending and receiving do not occupy it. A transfer occupies its
directed link alone. It is ready when both ends have come to it (rendezvous, as gloo and NCCL have it);
a link takes transfers in the order in which they become ready, ties by tag.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from netsplit.cluster.cluster import Cluster
from netsplit.errors import ConfigError, NetSplitError
from netsplit.profile.costs import Costs
from netsplit.program.check import check_progress, needs
from netsplit.program.instructions import Backward, Forward, Instruction, Program, Recv, Send, Step
from netsplit.simulate.memory import predicted_peak_bytes
from netsplit.simulate.timeline import Event, EventKind, Timeline

__all__ = ["simulate"]

_Key = tuple[str, int, bool]  # variable, micro-batch, gradient?


def simulate(program: Program, cluster: Cluster, costs: Costs) -> Timeline:
    """Predicted timeline of one iteration in seconds, with the peak bytes of every device.

    An instruction first costs its device `costs.instruction_s`; a computation then waits for what it
    reads and lasts the sum of its operators' seconds. The iteration ends when all devices have
    finished and all their sends are over.

    Raises:
        DeadlockError: the program cannot complete (never so for what `compile_program` returns).
        NetSplitError: an operator without a measured cost, or a transfer without a link.
    """
    run = _Run(program, cluster, costs)
    for device in run.devices.values():
        run.advance(device)
    while run.ready:
        run.transfer()
    run.finish()
    events = tuple(sorted(run.events, key=lambda event: (event.start_s, event.end_s, event.device)))
    seconds = max((device.clock for device in run.devices.values()), default=0.0)
    return Timeline(events, seconds, predicted_peak_bytes(program, costs.alpha))


@dataclass
class _Device:
    name: str
    instructions: tuple[Instruction, ...]
    overhead_s: float  # of every instruction
    step_s: float
    at: int = 0
    clock: float = 0.0
    missing: int = 0  # transfers that the instruction it stands at still waits for
    sends: list[Send] = field(default_factory=list)


class _Run:
    def __init__(self, program: Program, cluster: Cluster, costs: Costs) -> None:
        self.program = program
        self.links = cluster.links
        kinds = {device.name: device.kind for device in cluster.devices}
        bytes_on = _trainable_bytes(program)
        self.devices = {
            name: _Device(
                name,
                program.instructions[name],
                costs.instruction_s.get(kinds[name], 0.0),
                bytes_on.get(name, 0) * costs.step_seconds_per_byte.get(kinds[name], 0.0),
            )
            for name in program.devices
        }
        self.seconds = _segment_seconds(program, costs, kinds)
        self.needed = _needed(program)
        self.events: list[Event] = []
        self.met: dict[int, tuple[float, Send | Recv]] = {}  # tag -> the end that came first, and when
        self.ready: list[tuple[float, int, Send, Recv]] = []
        self.link_free: dict[tuple[str, str], float] = {}
        self.arrived: dict[_Key, tuple[float, Recv]] = {}
        self.ended: dict[int, float] = {}  # tag -> when the transfer ended
        self.waiting: dict[_Key, _Device] = {}

    def advance(self, device: _Device) -> None:
        """Execute until the device waits for a transfer whose end is not known yet."""
        while device.at < len(device.instructions):
            ins = device.instructions[device.at]
            if isinstance(ins, Forward | Backward):
                keys = self._keys(ins)
                absent = [key for key in keys if key not in self.arrived]
                if absent:
                    device.missing = len(absent)
                    self.waiting.update(dict.fromkeys(absent, device))
                    return
                device.clock += device.overhead_s
                for key in keys:
                    end, recv = self.arrived[key]
                    self._wait(device, end, recv)
                kind: EventKind = "forward" if isinstance(ins, Forward) else "backward"
                seconds = self.seconds[kind][ins.segment]
                self._compute(device, kind, f"segment {ins.segment}", ins.microbatch, seconds)
            elif isinstance(ins, Step):
                device.clock += device.overhead_s
                self._compute(device, "step", str(ins), -1, device.step_s)
            else:
                device.clock += device.overhead_s
                self._meet(device, ins)
            device.at += 1

    def transfer(self) -> None:
        """Let the transfer that became ready first have its link.

        Whatever becomes ready later in this loop does so through a transfer that ended later: no
        transfer is overtaken by one that the heap does not know yet.
        """
        ready, tag, send, recv = heapq.heappop(self.ready)
        link = (recv.peer, send.peer)
        if link not in self.links:
            raise ConfigError(
                f"the cluster has no link from {link[0]} to {link[1]}, which the program uses: "
                "give it in the cluster file, or probe the links."
            )
        nbytes = self.program.graph.variables[send.source].nbytes
        start = max(ready, self.link_free.get(link, 0.0))
        end = start + self.links[link].seconds(nbytes)
        self.link_free[link] = self.ended[tag] = end
        name = f"gradient of {send.source}" if send.gradient else send.source
        self.events.append(Event(link[0], "send", name, send.microbatch, start, end, link[1], nbytes))
        key = (recv.variable, recv.microbatch, recv.gradient)
        self.arrived[key] = (end, recv)
        device = self.waiting.pop(key, None)
        if device is not None:
            device.missing -= 1
            if device.missing == 0:
                self.advance(device)

    def finish(self) -> None:
        """Every device waits for the last of its sends, as the executor does."""
        if self.met or any(device.at < len(device.instructions) for device in self.devices.values()):
            check_progress(self.program)
            raise AssertionError("the simulator stands still in a program that was proved to complete")
        for device in self.devices.values():
            for send in device.sends:
                self._wait(device, self.ended[send.tag], send)

    def _keys(self, ins: Forward | Backward) -> list[_Key]:
        backward = isinstance(ins, Backward)
        return [(k, ins.microbatch, backward) for k in self.needed[backward][ins.segment]]

    def _meet(self, device: _Device, ins: Send | Recv) -> None:
        if isinstance(ins, Send):
            device.sends.append(ins)
        if ins.tag not in self.met:
            self.met[ins.tag] = (device.clock, ins)
            return
        came, other = self.met.pop(ins.tag)
        send, recv = (ins, other) if isinstance(ins, Send) else (other, ins)
        assert isinstance(send, Send)
        assert isinstance(recv, Recv)
        heapq.heappush(self.ready, (max(came, device.clock), ins.tag, send, recv))

    def _wait(self, device: _Device, end: float, transfer: Send | Recv) -> None:
        if end > device.clock:
            what, i, start = transfer.what, transfer.microbatch, device.clock
            self.events.append(Event(device.name, "wait", what, i, start, end, transfer.peer))
            device.clock = end

    def _compute(self, device: _Device, kind: EventKind, name: str, i: int, seconds: float) -> None:
        start = device.clock
        device.clock = start + seconds
        self.events.append(Event(device.name, kind, name, i, start, device.clock))


def _segment_seconds(program: Program, costs: Costs, kinds: dict[str, str]) -> dict[str, list[float]]:
    """Forward and backward seconds of every segment, on its own device's kind.

    A node through which no gradient passes has no backward, whatever its costs say; nor has a transfer.
    """
    carrying = program.graph.carrying
    trained = {node.name for node in program.graph if not carrying.isdisjoint(node.outputs)}
    found: dict[str, list[float]] = {"forward": [], "backward": []}
    for segment in program.segments:
        measured = costs.seconds.get(kinds[segment.device], {})
        for name in segment.nodes:
            if name not in measured:
                raise NetSplitError(
                    f"operator '{name}' has no measured seconds on device kind '{kinds[segment.device]}': "
                    "profile this graph on a device of that kind first."
                )
        found["forward"].append(sum(measured[name].forward_s for name in segment.nodes))
        found["backward"].append(sum(measured[v].backward_s for v in segment.nodes if v in trained))
    return found


def _needed(program: Program) -> tuple[list[list[str]], list[list[str]]]:
    """Per segment the transfers that its Forward, and that its Backward, waits for."""
    planned = {
        ins.variable
        for each in program.instructions.values()
        for ins in each
        if isinstance(ins, Recv) and ins.gradient
    }
    forward = [[k for k, _, _ in needs(program, Forward(s.index, 0))] for s in program.segments]
    backward = [
        [k for k, _, _ in needs(program, Backward(s.index, 0)) if k in planned] for s in program.segments
    ]
    return forward, backward


def _trainable_bytes(program: Program) -> dict[str, int]:
    """Device -> bytes of the parameters that its Step changes."""
    found: dict[str, int] = {}
    for k, home in program.initializer_device.items():
        init = program.graph.initializers[k]
        if init.requires_grad:
            found[home] = found.get(home, 0) + init.nbytes
    return found
