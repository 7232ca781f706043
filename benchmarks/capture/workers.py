"""Models judged one after another in a process of their own: what ends it, or hangs, costs that model only.

python -m benchmarks.capture.workers torchvision resnet18 resnet34     # one line of JSON for each
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from queue import Empty, Queue

__all__ = ["CaptureOutcome", "judged"]

BEGIN, END = "begins ", "ends "  # of the worker's lines; all others are the models' own


@dataclass(frozen=True)
class CaptureOutcome:
    """What came of one model; see `tests.models_of_people.harness.Outcome`."""

    name: str
    kind: str
    message: str = ""
    amiss: str = ""  # how that is not as it should be; empty where it is
    capture_s: float = 0.0
    operators: int = 0
    whole: int = 0
    total_s: float = 0.0


def judged(family: str, names: Sequence[str], timeout_s: float) -> Iterator[CaptureOutcome]:
    """Each model's outcome, in order; a worker that ends early or takes too long is replaced."""
    waiting = list(names)
    while waiting:
        for outcome in _one_worker(family, waiting, timeout_s):
            waiting.remove(outcome.name)
            yield outcome


def _one_worker(family: str, names: Sequence[str], timeout_s: float) -> Iterator[CaptureOutcome]:
    command = [sys.executable, "-m", "benchmarks.capture.workers", family, *names]
    lines: Queue[str | None] = Queue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
        reader = threading.Thread(target=_read, args=(worker, lines), daemon=True)
        reader.start()
        current, begun = names[0], time.monotonic()
        while True:
            try:
                line = lines.get(timeout=max(0.0, begun + timeout_s - time.monotonic()))
            except Empty:
                worker.kill()
                yield _failed(current, f"took more than {timeout_s:g} s")
                break
            if line is None:
                if current:
                    yield _failed(current, f"its process ended with {worker.wait()}")
                break
            if line.startswith(BEGIN):
                current, begun = line.removeprefix(BEGIN).strip(), time.monotonic()
            elif line.startswith(END):
                current = ""
                yield CaptureOutcome(**json.loads(line.removeprefix(END)))


def _failed(name: str, why: str) -> CaptureOutcome:
    return CaptureOutcome(name, "failed", why, why)


def _read(worker: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        lines.put(line)
    lines.put(None)


def _judge(family: str, name: str) -> CaptureOutcome:
    from benchmarks.capture.models import case_of
    from tests.models_of_people.harness import as_expected, judge

    begin = time.perf_counter()
    try:
        case = case_of(family, name)
        outcome = judge(case)
    except Exception as error:  # the plain loop's own: the model does not train here
        first = next(iter(str(error).splitlines()), "")
        why = f"does not train plainly: {type(error).__name__}: {first}"
        return CaptureOutcome(name, "failed", why, why, total_s=time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    return CaptureOutcome(name, amiss=as_expected(case, outcome), total_s=seconds, **asdict(outcome))


def main(arguments: Sequence[str]) -> None:
    import torch

    family, *names = arguments
    torch.set_num_threads(1)  # operators are small, and others may be at work beside
    _judge("people", "sharing/tied_object")  # what a first capture loads is no model's own
    for name in names:
        sys.stdout.write(f"\n{BEGIN}{name}\n")
        sys.stdout.flush()
        outcome = _judge(family, name)
        sys.stdout.write(f"\n{END}{json.dumps(asdict(outcome))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
