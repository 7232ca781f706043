"""`docs/faq.md`: each error that it quotes is provoked, and says what is quoted."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.errors import NetSplitError
from netsplit.training.parallel import ParallelModel
from runners import compare, report, train
from tests.commands import Command
from tests.cover import few
from tests.docs.given import LOSS, batch_of, model_of
from tests.docs.page import sections
from tests.workers import Pools, lent_to_sessions

QUOTED = {
    heading: re.findall(r"^> `` (.+) ``$", text, re.MULTILINE) for heading, text in sections("faq.md").items()
}

# What is another on every machine, or in the last place.
VARIES = {r"\d+\.\d+(e-\d+)?": "0.0", r"process \d+ on [^)]+": "process 1 on host", r"\d+ bytes": "0 bytes"}


EXAMPLE = INPUTS, TARGETS = batch_of(16)


class Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(12, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * min(1.0, self.calls / 100)


class Draw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * random.random()


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return model_of()


def split(
    model: nn.Module | None = None, loss: Any = LOSS, batch: Any = EXAMPLE, **options: Any
) -> ParallelModel:
    chosen = {"partitioner": "balanced", "schedule": "gpipe"} | options
    return netsplit.parallelize(model or model_of(), loss, batch, **chosen)


def trained_on(inputs: Tensor, targets: Tensor) -> None:
    with split() as parallel:
        parallel.train_batch(inputs, targets)


CALLS: dict[str, Callable[[], object]] = {
    "A model without weights": lambda: split(on_meta()),
    "The example batch is no pair": lambda: split(batch=INPUTS),
    "It does not fit": lambda: split(cluster=netsplit.cpu_cluster(2, capacity="1KiB")),
    "A counter in Python": lambda: split(Count()),
    "Random numbers that torch does not draw": lambda: split(Draw()),
    "The loss cannot be trained": lambda: split(loss=None, batch=(INPUTS, None)),
    "It does not train in plain PyTorch either": lambda: split(batch=(INPUTS.double(), TARGETS)),
    "A batch that fails": lambda: trained_on(INPUTS, TARGETS + 100),
    "A loss that is not finite": lambda: trained_on(INPUTS * float("nan"), TARGETS),
}
COMMANDS: dict[str, tuple[Callable[[], object], str, tuple[str, ...]]] = {
    "A key or an option that is not there": (compare.main, "compare", ("epoch=3",)),
    "My model is not found": (train.main, "train", ("model._target_=my_model.Net",)),
    "The data set needs a folder": (train.main, "train", ("dataset=imagefolder",)),
    "There is nothing to report": (report.main, "report", ()),
}


def same_everywhere(text: str) -> str:
    for pattern, word in VARIES.items():
        text = re.sub(pattern, word, text)
    return text


def test_every_heading_quotes_one_sentence_which_is_provoked() -> None:
    assert all(len(sentences) == 1 for sentences in QUOTED.values())
    assert QUOTED.keys() == CALLS.keys() | COMMANDS.keys()


@contextmanager
def unchanged_draws() -> Iterator[None]:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)


@pytest.mark.parametrize("heading", few(list(CALLS), 6))
@pytest.mark.usefixtures("unmeasured")
def test_a_call_says_what_is_quoted(heading: str, pools: Pools) -> None:
    with unchanged_draws(), lent_to_sessions(pools), pytest.raises(NetSplitError) as error:
        CALLS[heading]()
    assert same_everywhere(str(error.value)) == same_everywhere(QUOTED[heading][0])


@pytest.mark.parametrize("heading", COMMANDS)
def test_a_command_says_what_is_quoted(heading: str, command: Command, tmp_path: Path) -> None:
    ended = command(*COMMANDS[heading][:2], *COMMANDS[heading][2])
    assert ended.code == 2
    assert ended.err.replace(f"{tmp_path}/", "").strip() == f"error: {QUOTED[heading][0]}"
