"""Plain PyTorch data parallelism on the unmodified model: the baseline of the thesis's Table 6-5.

    python -m benchmarks.torch_ddp                      # of experiment=convergence, on two processes
    python -m benchmarks.torch_ddp epochs=2 --json ddp.json
    python -m benchmarks.torch_ddp experiment=table_6_5 dataset.root=<folder> --processes 4 --cuda

Nothing of NetSplit's captures, plans or workers takes part: torch's DistributedDataParallel over gloo on CPU
processes of one thread, or over NCCL on as many GPUs, with the model, loss, optimiser, data and seeds of the
config. Parameters begin as a comparison's do and batches come in the same order, each cut into one piece for
every process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from netsplit.config import build
from netsplit.data.dataset import Data
from netsplit.data.reading.loader import Loader, batches
from netsplit.files import write_json
from netsplit.session.request import without_reading
from netsplit.tables import Column, Table
from netsplit.training.history import Epoch, History, Iteration

__all__ = ["main", "train"]

CONF = Path(__file__).resolve().parents[1] / "conf"
COLUMNS = (
    Column("epoch", "d"),
    Column("training loss", ".4f"),
    Column("test accuracy, %", ".1f", 100.0),
    Column("seconds", ".2f"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torch_ddp", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], help="config overrides, such as epochs=2 (default: none)"
    )
    parser.add_argument("--processes", type=int, default=2, help="number of replicas (default: 2)")
    parser.add_argument("--cuda", action="store_true", help="each process on its own GPU")
    parser.add_argument("--json", type=Path, help="write every iteration and epoch to this file")
    given = parser.parse_args(arguments)
    experiment = (
        [] if any(each.startswith("experiment=") for each in given.overrides) else ["experiment=convergence"]
    )
    with initialize_config_dir(str(CONF), version_base=None):
        cfg = compose("config", [*experiment, *given.overrides])
    history = train(cfg, given.processes, given.cuda)
    rows = [(each.index + 1, each.train_loss, each.score, each.seconds) for each in history.epochs]
    print(Table(COLUMNS, rows).markdown())
    print(
        f"\nsamples/s over {given.processes} processes: median {history.throughput:.1f}, most of "
        f"them {' to '.join(f'{rate:.1f}' for rate in history.spread)}"
    )
    if given.json is not None:
        record = {"iterations": history.iterations, "epochs": history.epochs}
        write_json(given.json, {key: [asdict(each) for each in value] for key, value in record.items()})
    return 0


def train(cfg: DictConfig, processes: int, cuda: bool = False) -> History:
    """All epochs of a config, on so many CPU processes or GPUs."""
    with tempfile.TemporaryDirectory(prefix="torch-ddp-") as folder:
        torch.multiprocessing.spawn(_replica, (cfg, processes, folder, cuda), processes)
        return torch.load(Path(folder, "history.pt"), weights_only=False)


def _replica(rank: int, cfg: DictConfig, processes: int, folder: str, cuda: bool) -> None:
    torch.set_num_threads(1)
    if cuda:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/init", rank=rank, world_size=processes)
    torch.manual_seed(cfg.seed)  # the order of `runners.compare`, so that the parameters are the same
    data: Data = build(without_reading(cfg)[0].dataset)
    model: nn.Module = build(cfg.model).to(device)
    loss: Callable[..., Tensor] = build(cfg.loss)
    replica = DistributedDataParallel(model)
    optimizer = build(cfg.optimizer)(model.parameters())
    loader = Loader(data.train, cfg.batch_size, seed=cfg.seed, drop_last=cfg.drop_last)
    history = History(cfg.batch_size)
    for epoch in range(cfg.epochs):
        model.train()
        for inputs, targets in loader.epoch(epoch):
            start = time.perf_counter()
            pieces = [each.tensor_split(processes)[rank].to(device) for each in (inputs, targets)]
            value = _step(replica, loss, optimizer, pieces, len(pieces[0]) / len(inputs), processes)
            seconds = time.perf_counter() - start
            step = len(history.iterations)
            history.iterations.append(Iteration(step, epoch, value, seconds, samples=len(inputs)))
        done = [each for each in history.iterations if each.epoch == epoch]
        mean = statistics.fmean([each.loss for each in done], [each.samples or 0 for each in done])
        accuracy = _accuracy(model, data, cfg.batch_size)
        history.epochs.append(Epoch(epoch, mean, accuracy, sum(each.seconds for each in done)))
    if rank == 0:
        torch.save(history, Path(folder, "history.pt"))
    dist.barrier()
    dist.destroy_process_group()


def _step(
    replica: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    pieces: Sequence[Tensor],
    fraction: float,
    processes: int,
) -> float:
    """One optimiser step on this process's fraction of a batch; the mean loss of the whole batch.

    Gradients are averaged over processes: where pieces differ in size, each counts by its samples.
    """
    piece, target = pieces
    value = loss(replica(piece), target)
    (value * fraction * processes).backward()
    optimizer.step()
    optimizer.zero_grad()
    total = value.detach() * fraction
    dist.all_reduce(total)
    return float(total)


@torch.no_grad()
def _accuracy(model: nn.Module, data: Data, batch_size: int) -> float:
    """The accuracy on the test half, with this process's running statistics."""
    model.eval()
    device = next(model.parameters()).device
    right = total = 0
    for inputs, targets in batches(data.test, batch_size, shuffle=False, drop_last=False):
        right += int((model(inputs.to(device)).argmax(1) == targets.to(device)).sum())
        total += targets.numel()
    return right / total


if __name__ == "__main__":
    sys.exit(main())
