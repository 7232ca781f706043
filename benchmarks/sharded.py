"""States of replicas in slices beside torch's: seconds of a step, metered bytes, trained parameters.

    python -m benchmarks.sharded                      # a wide MLP and a small GPT on two workers
    python -m benchmarks.sharded --workers 4 --rounds 5

Each system trains the same model on the same batch, a part of it on every worker, with AdamW in single
precision: ours with `schedule.shard` at every level, torch's DistributedDataParallel, its
ZeroRedundancyOptimizer, and its `fully_shard` (FSDP2) of every block. Systems take turns, so that a busy
moment meets all of them.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks._command import command_parser
from benchmarks._rounds import Contender, Rounds
from netsplit.cluster.cluster import Cluster
from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.graph import capture, initial_values
from netsplit.placement.placement import Placement, SolverReport, Stage
from netsplit.placement.sharding import in_slices
from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.program import GPipe, compile_program
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.tables import Column, Table

__all__ = ["main"]

ADAMW = partial(torch.optim.AdamW, lr=1e-3)
LIKE = {"none": "ddp", "optimizer": "zero", "gradients": "zero", "parameters": "fsdp"}
"""Ours, and torch's that keeps as much whole."""
COLUMNS = (
    Column("model"), Column("system"), Column("ms a step", ".1f"), Column("torch's / its ms", ".3f"),
    Column("MB", ".1f"), Column("MB / torch's", ".3f"), Column("largest difference", ".1e"),
)  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        z: Tensor = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return z


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


def gpt() -> nn.Sequential:
    blocks = (nn.Sequential(Attention(192, 6), Residual(192)) for _ in range(4))
    return nn.Sequential(nn.Embedding(512, 192), *blocks, nn.Linear(192, 512), nn.Flatten(0, 1))


def mlp() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(8)), nn.Linear(768, 10)
    )


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets.flatten())


def batch_of(model: str, samples: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    if model == "mlp":
        return torch.randn(samples, 768, generator=draw), torch.randint(10, (samples,), generator=draw)
    tokens = torch.randint(512, (samples, 64), generator=draw)
    return tokens, tokens.roll(-1, 1)


@contextmanager
def torch_system(kind: str, model: str, workers: int, samples: int) -> Iterator[Callable[[str], Any]]:
    """Processes that train; called with "step", "bytes" or "state"."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="torch-sharded-") as folder:
        ends = [context.Pipe() for _ in range(workers)]
        processes = [
            context.Process(
                target=_replica, args=(rank, kind, model, workers, samples, folder, far), daemon=True
            )
            for rank, (_, far) in enumerate(ends)
        ]
        for process in processes:
            process.start()

        def ask(what: str) -> Any:
            for near, _ in ends:
                near.send(what)
            first, *_ = [near.recv() for near, _ in ends]
            return first

        try:
            yield ask
        finally:
            for near, _ in ends:
                near.send("end")
            for process in processes:
                process.join(10)


def _replica(
    rank: int, kind: str, name: str, workers: int, samples: int, folder: str, end: Connection
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=workers)
    torch.manual_seed(0)
    model: nn.Module = MODELS[name]()
    trained = model
    if kind == "fsdp":
        mesh = dist.device_mesh.init_device_mesh("cpu", (workers,))
        for block in model.children():
            if any(True for _ in block.parameters()):
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
    zero = {"optimizer_class": torch.optim.AdamW, "lr": 1e-3, "parameters_as_bucket_view": True}
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), **zero) if kind == "zero" else ADAMW(model.parameters())
    )
    inputs, targets = (each.tensor_split(workers)[rank] for each in batch_of(name, samples))

    def step() -> None:
        optimizer.zero_grad()
        loss(trained(inputs), targets).backward()
        optimizer.step()

    while (what := end.recv()) != "end":
        if what == "step":
            step()
            end.send(None)
        elif what == "bytes":
            own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
            held = [*model.parameters(), *(t for state in own.state.values() for t in state.values())]
            held += [p.grad for p in model.parameters() if p.grad is not None] + [inputs]
            with MemoryMeter(torch.device("cpu"), [_local(t) for t in held]) as meter:
                step()
            end.send(meter.peak_bytes)
        else:
            end.send(
                {
                    k: (p.full_tensor() if isinstance(p, DTensor) else p).detach()
                    for k, p in model.named_parameters()
                }
            )
    dist.destroy_process_group()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def our_system(
    level: str, name: str, pool: WorkerPool, workers: int, samples: int
) -> Iterator[Callable[[str], Any]]:
    """The same of ours."""
    torch.manual_seed(0)
    model, (inputs, targets) = MODELS[name](), batch_of(name, samples)
    part = (inputs[: samples // workers], targets[: samples // workers])
    graph = capture(model, loss, part)
    cluster = Cluster("here", pool.spec.devices, {})
    devices = tuple(each.name for each in cluster.devices)
    placement = Placement(
        "ddp", dict.fromkeys(graph.nodes, devices[0]), graph.position, SolverReport("heuristic", 0.0),
        (Stage(tuple(graph.nodes), devices),),
    )  # fmt: skip
    if level != "none":
        placement = in_slices(graph, placement, level)  # type: ignore[arg-type]
    program = compile_program(graph, placement, cluster, GPipe(workers))
    runtime = DistributedRuntime(program, pool, initial_values(model, graph), ADAMW)

    def ask(what: str) -> Any:
        if what == "step":
            runtime.train_batch((inputs,), targets)
            return runtime.finish()
        if what == "bytes":
            _, timeline = runtime.measure((inputs,), targets, bytes_too=True)
            return max((timeline.peak_bytes or {}).values())
        return runtime.state()

    yield ask


def measured(name: str, workers: int, samples: int, rounds: int) -> list[tuple[object, ...]]:
    with ExitStack() as stack:
        asked: dict[str, Callable[[str], Any]] = {}
        for kind in dict.fromkeys(LIKE.values()):
            asked[f"torch {kind}"] = stack.enter_context(torch_system(kind, name, workers, samples))
        for level in LIKE:
            spec = local_cluster(f"cpu{workers}", [LocalDevice(f"cpu:{rank}") for rank in range(workers)], 60)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            pool = stack.enter_context(WorkerPool(spec, folder))
            asked[level] = stack.enter_context(our_system(level, name, pool, workers, samples))
        timed = Rounds([Contender(each, partial(ask, "step")) for each, ask in asked.items()])
        timed.warm_up(3)
        for _ in range(rounds):
            timed.round()
        nbytes = {each: ask("bytes") for each, ask in asked.items()}
        states = {each: ask("state") for each, ask in asked.items()}
    reference, rows = states["torch ddp"], []
    for each in asked:
        beside = f"torch {LIKE[each]}" if each in LIKE else each
        apart = max(float((states[each][k] - own).abs().max()) for k, own in reference.items())
        rows.append((
            name, each, 1e3 * statistics.median(timed.seconds[each]), timed.ratio(beside, each).median,
            nbytes[each] / 1e6, nbytes[each] / nbytes[beside], apart,
        ))  # fmt: skip
    return rows


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "gpt": gpt}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("sharded", __doc__)
    parser.add_argument("--workers", type=int, default=2, help="number of one-thread processes (default: 2)")
    parser.add_argument("--samples", type=int, default=32, help="samples of the whole batch (default: 32)")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each system (default: 15)")
    given = parser.parse_args(arguments)
    rows = [row for name in MODELS for row in measured(name, given.workers, given.samples, given.rounds)]
    print(Table(COLUMNS, rows).markdown())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
