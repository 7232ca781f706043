"""A DTensor from one device mesh to another, with other placements; and its gradient back.

    mesh a                       mesh b
    x  ──────── redistribute ──► y           every process of either mesh calls it
    x.grad ◄──────────────────── y.grad      and takes part in backward

`DTensor.redistribute` of torch 2.13 works within one mesh only. Planned by `reshard/`.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Shard

from netsplit.errors import ReshardError, WorkerError
from netsplit.reshard import Layout, Mesh, Network, ReshardPlan, plan_reshard
from netsplit.reshard.placements import mesh_from, out_of_order, spec_from
from netsplit.runtime.resharding.reshard_piece import reshard_piece
from netsplit.runtime.transport.process import ProcessTransport

__all__ = ["redistribute"]

# Only their ratios count: for the strategy and the number of chunks. Bytes per second, and seconds.
_NIC_BANDWIDTH, _INSIDE_BANDWIDTH = 1.25e9, 1.25e10
_NIC_LATENCY_S, _INSIDE_LATENCY_S = 1e-4, 2e-5


@dataclass
class Meeting:
    """Shared state of the processes that reshard together; one of them, the leader, plans.

    `ranks` are of all of them, `hosts` by rank, `calls` redistributions so far, `plans` alike on all.
    """

    leader: int
    ranks: tuple[int, ...]
    transport: ProcessTransport
    timeout_s: float  # of each message and transfer
    hosts: dict[int, str] = field(default_factory=dict)
    calls: int = 0
    plans: dict[Hashable, ReshardPlan] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        """One NIC per host; all NICs and all hosts' inside links alike."""
        by_host: dict[str, list[int | str]] = {}
        for rank, host in self.hosts.items():
            by_host.setdefault(host, []).append(rank)
        return Network.uniform(by_host, _NIC_BANDWIDTH, _INSIDE_BANDWIDTH, _NIC_LATENCY_S, _INSIDE_LATENCY_S)

    def agree(self, at: str, own: object, answer: Callable[[dict[int, Any]], Any] = bool) -> Any:
        """All tell the leader where they are and what they have to say, and get what it makes of that. Who
        goes back through several redistributions in another order than the others would otherwise be sent the
        gradient of another one.

        Raises:
            ReshardError: one is elsewhere, or `answer` raised it: on all of them.
        """
        at = f"{at} among ranks {list(self.ranks)}"
        if dist.get_rank() != self.leader:
            self._say((at, own), self.leader)
            wrong, answered = self._hear(self.leader)
        else:
            said = {self.leader: (at, own)}
            said |= {rank: self._hear(rank) for rank in self.ranks if rank != self.leader}
            wrong, answered = "", None
            try:
                for rank, (where, _) in said.items():
                    if where != at:
                        raise ReshardError(
                            f"rank {rank} is at {where}, rank {self.leader} at {at}: call redistribute and "
                            "its backward in the same order on all ranks."
                        )
                answered = answer({rank: what for rank, (_, what) in said.items()})
            except ReshardError as error:
                wrong = str(error)
            for rank in list(said)[1:]:
                self._say((wrong, answered), rank)
        if wrong:
            raise ReshardError(wrong)
        return answered

    def _say(self, what: object, rank: int) -> None:
        packed = torch.frombuffer(bytearray(pickle.dumps(what)), dtype=torch.uint8)
        for each in (torch.tensor([packed.numel()]), packed):
            self._over(dist.isend, each.to(self.transport.device), rank)

    def _hear(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64, device=self.transport.device)
        self._over(dist.irecv, size, rank)
        packed = torch.empty(int(size), dtype=torch.uint8, device=self.transport.device)
        self._over(dist.irecv, packed, rank)
        return pickle.loads(packed.cpu().numpy().tobytes())

    def _over(self, operation: Callable[..., dist.Work | None], tensor: Tensor, rank: int) -> None:
        try:
            work = operation(tensor, rank)
            assert work is not None
            work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise WorkerError(
                f"rank {dist.get_rank()} and rank {rank} did not both call redistribute within "
                f"{self.timeout_s:g} s: {reason}."
            ) from error


_Key = tuple[str, int, tuple[int, ...]]
_meetings: WeakKeyDictionary[dist.ProcessGroup, dict[_Key, Meeting]] = WeakKeyDictionary()


def meeting_of(leader: int, ranks: tuple[int, ...], device: torch.device, timeout_s: float) -> Meeting:
    """The meeting of these processes, which all call this; kept until ``torch.distributed`` ends.

    No group of its own: torch 2.13 names what members make alone (`use_local_synchronization`) by how many
    groups each has already, and hangs where that differs, as it does once there are meshes of some ranks.
    """
    world = dist.group.WORLD
    assert world is not None
    known = _meetings.setdefault(world, {})
    key = device.type, leader, ranks
    if key not in known:
        devices = {str(rank): device for rank in range(dist.get_world_size())}
        transport = ProcessTransport(devices, str(dist.get_rank()), timeout_s, in_order=True)
        meeting = Meeting(leader, ranks, transport, timeout_s)
        meeting.hosts = meeting.agree(
            "the first redistribution", socket.gethostname(), lambda names: dict(sorted(names.items()))
        )
        known[key] = meeting
    known[key].timeout_s = timeout_s
    return known[key]


def redistribute(
    tensor: DTensor | None,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    source: DeviceMesh | None = None,
    network: Network | None = None,
    timeout_s: float = 300.0,
) -> DTensor:
    """The tensor on another mesh, bit for bit; differentiable. The meshes may share processes.

    All processes of both meshes call it, in the same order, and take part in the backward: a process outside
    the destination calls ``result.sum().backward()`` on its empty piece.

    Args:
        tensor: without a partial sum. A process outside the source may give None and `source`; shape, dtype
            and requires_grad then come from the source's first process.
        mesh: the destination.
        placements: on `mesh`.
        source: the tensor's mesh, for processes without a tensor.
        network: hosts and their NICs by rank, as the source's first process gives them; None: one NIC per
            host, all alike.
        timeout_s: of each transfer.

    Returns:
        The DTensor on `mesh`; outside the destination its piece is empty.

    Raises:
        ReshardError: a partial sum, meshes of two kinds of devices, an order of ranks that torch's own
            operators do not use, or different requests by different processes.
        WorkerError: a transfer timed out, or its peer is gone.
    """
    if tensor is None and source is None:
        raise ReshardError("redistribute without a tensor needs source, the tensor's mesh: give it.")
    origin = source if tensor is None else tensor.device_mesh
    assert origin is not None
    if origin.device_type != mesh.device_type:
        raise ReshardError(
            f"the tensor is on {origin.device_type} and the mesh on {mesh.device_type}: move the tensor "
            "there first."
        )
    own, ways = dist.get_rank(), (mesh_from(origin), mesh_from(mesh))
    ranks = tuple(sorted({int(rank) for each in ways for rank in each.devices}))
    if own not in ranks:
        raise ReshardError(
            f"rank {own} is on neither mesh: only ranks of the two meshes may call redistribute."
        )
    device = torch.device(mesh.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    meeting = meeting_of(int(ways[0].devices[0]), ranks, device, timeout_s)
    meeting.calls += 1
    name = f"redistribution {meeting.calls}"
    request = _asked(tensor, (origin, mesh), ways, tuple(placements))
    task = meeting.agree(name, request, lambda every: _agreed(every, meeting, network))
    meeting.plans.update(task.plans)
    carrier = _Carrier(name, task, meeting, device)
    moved = _Redistribute.apply(carrier.local(tensor), carrier)
    stride = tuple(prod(max(size, 1) for size in task.shape[i + 1 :]) for i in range(len(task.shape)))
    return DTensor.from_local(
        moved, mesh, task.placements, run_check=False,
        shape=torch.Size(task.shape) if task.shape else None, stride=stride or None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """What a process asks for, or what is `wrong` with it; fields it does not know are None."""

    source: Mesh
    mesh: Mesh
    placements: tuple[Placement, ...]
    tensor: tuple[tuple[int, ...], torch.dtype, tuple[Placement, ...]] | None  # shape, dtype, placements
    has_gradient: bool | None = None  # on the source
    wrong: str = ""


@dataclass(frozen=True)
class _Agreed:
    """The agreed move; `there` and `back` are plan keys of tensor and gradient, `plans` the new plans."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool
    placements: tuple[Placement, ...]
    there: Hashable
    back: Hashable
    plans: dict[Hashable, ReshardPlan]


def _asked(
    tensor: DTensor | None,
    meshes: tuple[DeviceMesh, DeviceMesh],
    ways: tuple[Mesh, Mesh],
    placements: tuple[Placement, ...],
) -> _Asked:
    own, (a, b) = dist.get_rank(), ways
    wrong = out_of_order(meshes[1], placements)
    if tensor is None:
        if own in a.devices:
            wrong = f"rank {own} is on the source mesh but gave no tensor: give its local one."
        return _Asked(a, b, placements, None, wrong=wrong)
    shape, held = tuple(tensor.shape), tuple(tensor.placements)
    kind, has_gradient = (shape, tensor.dtype, _normal(held, shape)), None
    if own in a.devices:
        has_gradient = tensor.requires_grad and torch.is_grad_enabled()
        try:
            wrong = wrong or _objection(tensor, meshes[0], ways, placements)
        except ReshardError as error:
            wrong = str(error)
    return _Asked(a, b, _normal(placements, shape), kind, has_gradient, wrong)


def _objection(
    tensor: DTensor, source: DeviceMesh, ways: tuple[Mesh, Mesh], placements: tuple[Placement, ...]
) -> str:
    """Why a source process cannot do it; "" if it can.

    Raises:
        ReshardError: what else cannot.
    """
    shape, every = tuple(tensor.shape), (tuple(tensor.placements), placements)
    for name, way, each in zip(("source", "destination"), ways, every, strict=True):
        if len(each) != len(way.shape):
            return (
                f"{len(each)} placements for the {name}'s mesh of {len(way.shape)} axes: give one for each "
                "axis."
            )
        spec_from(each, len(shape))
    if wrong := out_of_order(source, every[0]):
        return wrong
    own, piece = dist.get_rank(), tuple(tensor.to_local().shape)
    box = Layout(ways[0], spec_from(every[0], len(shape))).region(own, shape)
    sizes = tuple(stop - start for start, stop in box)
    if piece == sizes:
        return ""
    return (
        f"rank {own} has a piece of {list(piece)}, but {every[0]} gives it {list(sizes)} of {list(shape)}: "
        "give DTensor.from_local pieces as torch.chunk cuts them."
    )


def _agreed(every: Mapping[int, _Asked], meeting: Meeting, network: Network | None) -> _Agreed:
    """The leader's decision; all processes must ask for the same.

    Raises:
        ReshardError: they do not, or it cannot be had.
    """
    first = every[meeting.leader]
    if wrong := next((each.wrong for each in every.values() if each.wrong), ""):
        raise ReshardError(wrong)
    assert first.tensor is not None
    shape, dtype, held = first.tensor
    requests = {rank: _told(each, first) for rank, each in every.items()}
    for rank, own in requests.items():
        for part, theirs in zip(own, requests[meeting.leader], strict=True):
            if part != theirs:
                raise ReshardError(
                    f"rank {rank} {part}, rank {meeting.leader} {theirs}: give the same on all ranks."
                )
    known, plans = network or meeting.network, dict[Hashable, ReshardPlan]()
    tables = (known.host_of, known.nic, known.inside)
    figures = *(tuple(each.items()) for each in tables), known.nic_latency_s, known.inside_latency_s

    def planned(a: Layout, b: Layout) -> Hashable:
        key = a, b, shape, dtype.itemsize, figures
        if key not in meeting.plans:
            plans[key] = plan_reshard(a, b, shape, dtype.itemsize, known)
        return key

    a = Layout(first.source, spec_from(held, len(shape)))
    b = Layout(first.mesh, spec_from(first.placements, len(shape)))
    back = planned(b, a) if first.has_gradient else None
    return _Agreed(shape, dtype, bool(first.has_gradient), first.placements, planned(a, b), back, plans)


def _told(own: _Asked, first: _Asked) -> tuple[str, str, str, str]:
    """A process's request in words; the leader's values replace unknown ones."""
    shape, dtype, held = own.tensor or first.tensor or ((), None, ())
    gradient = first.has_gradient if own.has_gradient is None else own.has_gradient
    return (
        f"asks for {_normal(own.placements, shape)} on ranks {list(own.mesh.devices)}",
        f"has the tensor on a mesh {own.source.shape} of ranks {list(own.source.devices)}",
        f"has a tensor {list(shape)} of {dtype} by {held}",
        f"requires {'a' if gradient else 'no'} gradient of its tensor",
    )


@dataclass(frozen=True)
class _Carrier:
    name: str
    task: _Agreed
    meeting: Meeting
    device: torch.device

    def local(self, tensor: DTensor | None) -> Tensor:
        """This process's piece; an empty tensor with a gradient where it has none."""
        if tensor is not None and tensor.device_mesh.get_coordinate() is not None:
            return tensor.to_local()
        return self.kind.new_empty(0).requires_grad_(self.task.has_gradient)

    @property
    def kind(self) -> Tensor:
        return torch.empty(0, dtype=self.task.dtype, device=self.device)

    def moved(self, key: Hashable, local: Tensor, otherwise: Sequence[int]) -> Tensor:
        """The new piece, or an empty tensor of shape `otherwise`."""
        own, plan, meeting = dist.get_rank(), self.meeting.plans[key], self.meeting
        piece = local.detach() if own in plan.source.mesh.devices else None
        in_order = self.device.type == "cuda"
        new = reshard_piece(plan, own, piece, meeting.transport, self.kind, meeting.timeout_s, in_order)
        return self.kind.new_zeros(otherwise) if new is None else new


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, carrier: _Carrier) -> Tensor:
        ctx.carrier, ctx.shape = carrier, local.shape
        return carrier.moved(carrier.task.there, local, (0,) if carrier.task.shape else ())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        carrier: _Carrier = ctx.carrier
        carrier.meeting.agree(f"the gradient of {carrier.name}", None)
        return carrier.moved(carrier.task.back, gradient, ctx.shape), None


def _normal(placements: Sequence[Placement], shape: tuple[int, ...]) -> tuple[Placement, ...]:
    return tuple(
        Shard(each.dim % len(shape)) if type(each) is Shard and shape else each for each in placements
    )
