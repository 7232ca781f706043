"""A real Jupyter kernel: what is shown, the stop button, and the end of the kernel."""

import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ipykernel", reason="needs ipykernel and jupyter_client")
manager = pytest.importorskip("jupyter_client.manager", reason="needs ipykernel and jupyter_client")

pytestmark = pytest.mark.slow  # a kernel each
ROOT = Path(__file__).resolve().parent.parent
START = """
    from dataclasses import replace
    import netsplit, torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    cluster = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)
    def split():
        return netsplit.parallelize(
            net, nn.CrossEntropyLoss(), (x, y), cluster=cluster, partitioner="balanced", schedule="gpipe",
            profile="predicted",
        )
    parallel = split()
"""


class Notebook:
    """Cells, run one after another."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.client = kernel.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.shown: list[dict[str, Any]] = []

    def run(self, code: str, stop_at: str = "") -> dict[str, Any]:
        """The reply; `shown` has what came. The kernel is interrupted when `stop_at` is printed."""
        self.shown = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and stop_at and stop_at in message["content"]["text"]:
                self.kernel.interrupt_kernel()
            self.shown.append(message)

        reply: dict[str, Any] = self.client.execute_interactive(
            textwrap.dedent(code), timeout=120, output_hook=take, allow_stdin=False
        )
        content: dict[str, Any] = reply["content"]
        return content

    def data(self, kind: str) -> list[str]:
        contents = [message["content"].get("data", {}) for message in self.shown]
        return [content[kind] for content in contents if kind in content]

    def printed(self) -> str:
        return "".join(m["content"]["text"] for m in self.shown if m["msg_type"] == "stream")


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    kernel = manager.KernelManager(kernel_name="python3")
    paths = [str(ROOT), *(entry for entry in sys.path if entry)]
    kernel.start_kernel(
        cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    )
    notebook = Notebook(kernel)
    yield notebook
    notebook.client.stop_channels()
    if kernel.is_alive():
        kernel.shutdown_kernel(now=True)


def workers_of(notebook: Notebook) -> list[psutil.Process]:
    return psutil.Process(notebook.kernel.provisioner.pid).children(recursive=True)


def test_a_notebook_shows_stages_summary_and_plots(notebook: Notebook) -> None:
    assert notebook.run(START)["status"] == "ok"
    stages = notebook.data("text/html")[-1]
    for name in ("capture", "starting 2 workers", "plan by balanced", "sending parameters to the devices"):
        assert name in stages
    assert "starting" not in notebook.printed()
    assert notebook.run("parallel.summary()")["status"] == "ok"
    assert "<td" in notebook.data("text/html")[0]
    assert "cpu:1" in notebook.data("text/plain")[0]
    assert notebook.run("parallel.plot('memory')")["status"] == "ok"
    assert "<svg" in notebook.data("image/svg+xml")[0]


def test_the_stop_button_ends_a_cell_and_the_next_one_trains_on(notebook: Notebook) -> None:
    notebook.run(START)
    endless = """
        while True:
            parallel.train_batch(x, y)
            print("trained")
    """
    for _ in range(3):
        reply = notebook.run(endless, stop_at="trained")
        assert reply["ename"] == "KeyboardInterrupt"
        assert notebook.run("print(parallel.train_batch(x, y) > 0)")["status"] == "ok"
        assert notebook.printed() == "True\n"
    before = workers_of(notebook)
    assert before
    notebook.run("del parallel")  # the tracebacks that IPython keeps do not hold it
    assert not psutil.wait_procs(before, timeout=20)[1]
    reply = notebook.run("print('again', flush=True); parallel = split()", stop_at="again")
    assert reply["ename"] == "KeyboardInterrupt"
    assert not psutil.wait_procs(workers_of(notebook), timeout=20)[1]


def test_no_worker_outlives_its_kernel(notebook: Notebook) -> None:
    notebook.run(START)
    workers = workers_of(notebook)
    assert len(workers) >= 3
    notebook.kernel.shutdown_kernel(now=True)
    time.sleep(0.1)
    assert not psutil.wait_procs(workers, timeout=20)[1]
