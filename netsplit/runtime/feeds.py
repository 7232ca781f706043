"""A batch cut into a program's micro-batches, whose losses and metrics are joined; or read by workers, which
get the dataset once and then each batch's place.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from netsplit.data.dataset import Samples
from netsplit.data.reading.loader import BatchPlace, Loader, Reader, digest_of, probed
from netsplit.errors import NetSplitError, ReadError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import Graph, Variable
from netsplit.graph.recording.whole import by_value, carried_modules
from netsplit.program.instructions import Program
from netsplit.runtime.faults import AS_BEFORE, BatchFailure, one_line
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool

__all__ = [
    "SharedSamples", "UnlikeBatch", "UnreadBatch", "as_batch", "drop_samples", "fed_devices", "give_samples",
    "input_tensors", "loss_fractions", "mean_loss", "mean_metrics", "own_parts", "own_rows", "own_samples",
    "packed_samples", "parts_read", "read_ahead", "require_alike", "require_read", "samples_of",
    "shared_microbatches", "split_batch",
]  # fmt: skip


def as_batch(program: Program, inputs: Any, targets: Any = None) -> Batch:
    if isinstance(inputs, Batch):
        return inputs
    dims = program.graph.input_dims
    if not dims:
        names = program.graph.input_variables
        dims = tuple(0 if program.graph.variables[k].shape else None for k in names)
    return Batch.of(inputs, targets, dims)


def split_batch(program: Program, inputs: Any, targets: Any = None) -> list[dict[str, Tensor]]:
    """Input variables of each micro-batch i, by name.

    Raises:
        NetSplitError: the batch does not have the shape the program was captured for.
    """
    batch = as_batch(program, inputs, targets)
    names = program.graph.input_variables
    if len(batch.tensors) != len(names):
        raise NetSplitError(f"the program takes {len(names)} tensors, the batch has {len(batch.tensors)}.")
    parts: list[dict[str, Tensor]] = []
    start = 0
    for graph in _graphs(program):
        count = max(min(graph.batch_size, batch.samples - start), 0)
        tensors = batch.cut(start, count)
        start += graph.batch_size
        for name, tensor, whole, dim in zip(names, tensors, batch.tensors, batch.dims, strict=True):
            _check(program, graph.variables[name], tensor, whole, dim)
        # Rows with a version of their own: a forward may write into them while others' backwards wait.
        own = [t.detach() if dim is None else t.data for t, dim in zip(tensors, batch.dims, strict=True)]
        parts.append(dict(zip(names, own, strict=True)))
    if start != batch.samples:
        raise NetSplitError(
            f"the batch has {batch.samples} samples (its first tensor has the shape "
            f"{tuple(batch.tensors[0].shape)}) but the program was captured for {start}: use batches of "
            f"{start} samples, or capture again."
        )
    return parts


def own_rows(program: Program, device: str) -> list[int]:
    """Rows of a batch that a device is fed."""
    rows: list[int] = []
    start = 0
    for i, graph in enumerate(_graphs(program)):
        if program.fed(device, i):
            rows += range(start, start + graph.batch_size)
        start += graph.batch_size
    return rows


def own_parts(program: Program, device: str, batch: Batch) -> list[dict[str, Tensor]]:
    """Copies of a device's inputs by micro-batch; the batch has only the samples of `own_rows`."""
    parts: list[dict[str, Tensor]] = []
    for i, (graph, part) in enumerate(
        zip(_graphs(program), own_samples(program, device, batch), strict=True)
    ):
        tensors = dict(zip(graph.input_variables, part.tensors, strict=True))
        parts.append({k: tensors[k].detach().clone() for k in program.fed(device, i)})
    return parts


def own_samples(program: Program, device: str, batch: Batch) -> list[Batch]:
    """The same samples by micro-batch, inputs and targets; none where the device is not fed them."""
    parts: list[Batch] = []
    start = 0
    for i, graph in enumerate(_graphs(program)):
        count = graph.batch_size if program.fed(device, i) else 0
        parts.append(batch.rows(start, start + count))
        start += count
    return parts


def shared_microbatches(program: Program) -> list[int]:
    """Micro-batches that several devices are fed, e.g. one of the inputs, another of the targets."""
    every = range(program.microbatches)
    return [i for i in every if sum(bool(program.fed(name, i)) for name in program.devices) > 1]


def _check(program: Program, variable: Variable, tensor: Tensor, whole: Tensor, dim: int | None) -> None:
    if tensor.shape != variable.shape:
        samples = samples_of(program)
        wanted = tuple(samples if d == dim else n for d, n in enumerate(variable.shape))
        raise NetSplitError(
            f"the batch has a tensor of shape {tuple(whole.shape)} but the program was captured for "
            f"{wanted}: use batches of {samples} samples, or capture again."
        )
    if tensor.dtype is not getattr(torch, variable.dtype):
        raise NetSplitError(
            f"the batch has a tensor of {tensor.dtype} but the program was captured for "
            f"torch.{variable.dtype}: convert it."
        )


def samples_of(program: Program) -> int:
    return sum(graph.batch_size for graph in _graphs(program))


def loss_fractions(program: Program, fraction: float = 1.0) -> list[float]:
    """Each micro-batch's weight in the loss: its part of the samples, times `fraction`.

    Devices that step within the batch take means themselves: each micro-batch counts in full.
    """
    if program.asynchronous:
        return [fraction] * program.microbatches
    return [fraction * part for part in _sample_fractions(program)]


def mean_loss(program: Program, outputs: Mapping[tuple[str, int], float]) -> float:
    """The mean over a batch's samples of the micro-batches' mean losses, of the outputs by (variable, i)."""
    return _mean(program, outputs, program.graph.output_variables[0])


def mean_metrics(program: Program, outputs: Mapping[tuple[str, int], float]) -> Any:
    """The means of the loss's further results, in their own structure; None for none."""
    spec = program.graph.output_spec
    if spec is None:
        return None
    return spec.build([_mean(program, outputs, k) for k in program.graph.output_variables[1:]])


def _mean(program: Program, outputs: Mapping[tuple[str, int], float], k: str) -> float:
    return sum(part * outputs[k, i] for i, part in enumerate(_sample_fractions(program)))


def _sample_fractions(program: Program) -> list[float]:
    sizes = [graph.batch_size for graph in _graphs(program)]
    return [size / sum(sizes) for size in sizes]


def _graphs(program: Program) -> list[Graph]:
    return [program.graph] * (program.microbatches - 1) + [program.tail or program.graph]


class UnlikeBatch(NetSplitError):
    """A batch unlike what the workers expect, or that some cannot read; nothing was computed."""


@dataclass(frozen=True)
class UnreadBatch:
    """A batch by its place; `key` (of `Batch`) describes it, `here` reads it in this process."""

    place: BatchPlace
    key: Hashable
    here: Callable[[], Batch]

    @property
    def samples(self) -> int:
        return self.place.count


def input_tensors(program: Program, batch: Batch | UnreadBatch) -> list[dict[str, Tensor]]:
    return split_batch(program, batch.here() if isinstance(batch, UnreadBatch) else batch)


@dataclass(frozen=True)
class SharedSamples:
    """A dataset for workers, with everything its order and batches depend on."""

    samples: Samples
    batch_size: int
    seed: int
    drop_last: bool
    workers: int
    prefetch: int
    key: Hashable
    dims: tuple[int | None, ...]


_SAMPLES, _READER, _READ = "samples", "reader", "read"


def take_samples(worker: Worker, packed: bytes, probe: BatchPlace) -> tuple[str, str]:
    """Keep a dataset to read; the digest of one batch, or why it cannot be read."""
    drop_samples(worker)
    try:
        shared: SharedSamples = cloudpickle.loads(packed)
        options: dict[str, Any] = {"seed": shared.seed, "drop_last": shared.drop_last}
        alone = Reader(Loader(shared.samples, shared.batch_size, **options))
        digest = digest_of(alone.batch(probe, probed(probe)))
        loader = Loader(
            shared.samples, shared.batch_size, workers=shared.workers, prefetch=shared.prefetch, **options
        )
    except NetSplitError as error:
        return "", str(error).rstrip(".")
    except Exception as error:  # unpickling runs the dataset's code
        return "", one_line(error)
    worker.memory[_SAMPLES], worker.memory[_READER] = shared, Reader(loader)
    return digest, ""


def drop_samples(worker: Worker) -> None:
    """Forget the dataset and end its loading processes."""
    worker.memory.pop(_SAMPLES, None)
    worker.memory.pop(_READ, None)
    reader: Reader | None = worker.memory.pop(_READER, None)
    if reader is not None:
        reader.close()


def read_ahead(worker: Worker, number: int, place: BatchPlace) -> BatchFailure | dict[int, str]:
    """Read a batch before it is trained; digests of the micro-batches that other devices read too."""
    program, device = worker.memory["programs"][number].program, worker.device.name
    read = _read(worker, program, place)
    if isinstance(read, BatchFailure):
        return read
    if read is None:
        return {}
    worker.memory[_READ] = place, own_parts(program, device, read)
    samples = own_samples(program, device, read)
    own = [i for i in shared_microbatches(program) if program.fed(device, i)]
    return {i: digest_of(samples[i].tensors) for i in own}


def parts_read(worker: Worker, program: Program, place: BatchPlace) -> list[dict[str, Tensor]] | BatchFailure:
    """This device's part of every micro-batch of a batch, or why it cannot be read."""
    device = worker.device.name
    kept, parts = worker.memory.pop(_READ, (None, []))
    if kept == place:
        return parts
    read = _read(worker, program, place)
    if isinstance(read, BatchFailure):
        return read
    return [{} for _ in range(program.microbatches)] if read is None else own_parts(program, device, read)


def _read(worker: Worker, program: Program, place: BatchPlace) -> Batch | BatchFailure | None:
    device = worker.device.name
    rows = own_rows(program, device)
    if not rows:
        return None
    reader: Reader | None = worker.memory.get(_READER)
    if reader is None:
        return BatchFailure(device, "has no dataset", -1, "", unlike=True)
    shared: SharedSamples = worker.memory[_SAMPLES]
    try:
        inputs, targets = reader.batch(place, rows)
    except NetSplitError as error:
        reason = str(error).rstrip(".")
        return BatchFailure(
            device, f"cannot read its batch: {reason}", -1, traceback.format_exc(), unread=True
        )
    with suppress(NetSplitError):
        batch = Batch.of(inputs, targets, shared.dims)
        if batch.key == shared.key and batch.samples == len(rows):
            return batch
    return BatchFailure(device, "read a batch with other shapes or dtypes than expected", -1, "", unlike=True)


def fed_devices(program: Program) -> frozenset[str]:
    every = range(program.microbatches)
    return frozenset(name for name in program.devices if any(program.fed(name, i) for i in every))


def packed_samples(shared: SharedSamples) -> bytes:
    """A dataset pickled for other processes; raises the errors of the dataset's own code."""
    with by_value(carried_modules([shared.samples])):
        packed: bytes = cloudpickle.dumps(shared)
    return packed


def give_samples(
    pool: WorkerPool, program: Program, packed: bytes, probe: BatchPlace
) -> dict[str, tuple[str, str]]:
    """Send workers a dataset; each answers the digest of a batch, or why it cannot read one."""
    fed = fed_devices(program)
    ranks = [rank for rank, name in enumerate(program.devices) if name in fed]
    return {pool.who(rank): pool.call_one(rank, take_samples, packed, probe) for rank in ranks}


def require_alike(pool: WorkerPool, digests: Sequence[Mapping[int, str]]) -> None:
    """Raises UnlikeBatch where workers read different samples of a micro-batch."""
    first: dict[int, tuple[int, str]] = {}
    for rank, own in enumerate(digests):
        for i, digest in own.items():
            other, expected = first.setdefault(i, (rank, digest))
            if expected != digest:
                raise UnlikeBatch(
                    f"workers {pool.who(other)} and {pool.who(rank)} read different samples of micro-batch "
                    f"{i}: the dataset changed, or uses a random generator of its own."
                )


def require_read(pool: WorkerPool, parts: Iterable[Any]) -> None:
    """Raises ReadError or UnlikeBatch where a worker could not read its part of a batch."""
    failures = [(rank, part) for rank, part in enumerate(parts) if isinstance(part, BatchFailure)]
    for rank, each in failures:
        if each.unread:
            raise ReadError(f"worker {pool.who(rank)} {each.reason}: {AS_BEFORE}.")
    for rank, each in failures:
        if each.unlike:
            raise UnlikeBatch(f"worker {pool.who(rank)} {each.reason}.")
