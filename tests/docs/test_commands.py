"""Every command that the pages print is one, its groups, keys and options are there; the cheap ones run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from reproduce.command import STUDIES
from runners._own_targets import addable
from runners.cli.command import RUNNERS, netsplit
from tests.cover import few
from tests.docs.page import PAGES, ROOT, blocks, commands_of

CONFIGS = {"compare": "config", "plan": "plan"} | {name: name for name in RUNNERS if name != "compare"}
OPEN = re.compile(r"<[^>]*>|=\.\.\.|\[-[^\]]*\]")  # what the reader fills in, or may leave out
OTHERS = ("mlflow", "torchrun")

# Where the files are that sections have one save, which are followed word for word.
FOLLOWED = {
    "extending.md": "test_extending.py",
    "integrations.md": "test_integrations.py",
    "notebook.md": "test_notebook_page.py",
    "tutorial.md": "test_tutorial.py",
}

# Why a command is composed and not run; whatever none of these describes runs, in the slow tests.
NOT_RUN = {
    r"^make ": "sets everything up first; what it then calls is on the pages under its own name",
    r"^mlflow server|netsplit ui": "a server, which stays (tests/tracking/test_server.py starts one)",
    r"^torchrun": "several machines (tests/runtime/workers/test_torchrun.py has two agents on one)",
    r"<[^>]*>|=\.\.\.": "the reader fills in a name",
    r"graph=\S+\.(txt|json)": "a profiled graph that the reader has (tests/runners/ run others)",
    r"(dataset|model)(\.root|\.path)?=(imagefolder|imagenet|voc2012|cifar10|onnx)": "the reader's own files",
    r"hydra/launcher=|10\.0\.0\.1": "other machines",
    r"cluster=gpu": "a GPU",
    r"my_pkg|my_module": "the reader's own code (tests/docs/test_tutorial.py runs some)",
    r"scheduler\.warmup=": "more steps than a test has time for",
    r"experiment=(?!quick)": "minutes to hours (tests/runners/test_experiments.py)",
    r"model=(gpt |resnet|amoebanet_d |vgg19 |vgg19,)": "a large model: gigabytes, or minutes of planning",
    r"tracking\.uri=|runners\.report|netsplit report": "needs recorded runs (tests/report/ record some)",
    r"resume=auto": "goes on with what was trained before (tests/training/, tests/runners/ do it)",
    r"benchmarks\.": "measures for minutes; tests/benchmarks/ has each in small",
    r"--multirun": "as often as there are values; tests/runners/ have small ones",
}

# What makes a training a matter of seconds: few samples, nothing measured, a short search.
SHORT = ("epochs=1", "dataset.limit=64", "profile=predicted", "tracking=none", "check=false")


def printed() -> Iterator[tuple[str, str]]:
    """Page and command, of all pages but those that are followed."""
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.language == "bash":
                yield from ((page.name, line) for line in commands_of(block.text))


PRINTED = list(dict.fromkeys(printed()))


def reason(line: str) -> str | None:
    """Why it is not run."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), None)


RUN = [line for page, line in PRINTED if page not in FOLLOWED and reason(line) is None]


def composed(name: str, words: list[str]) -> DictConfig:
    """The first job of a sweep, without what the reader fills in."""
    parsed = OverridesParser.create().parse_overrides([word for word in words if word != "--multirun"])
    first = [
        f"{each.get_key_element()}={next(each.sweep_string_iterator())}"
        if each.is_sweep_override()
        else str(each.input_line)
        for each in parsed
        if not str(each.key_or_group).startswith("hydra")
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(CONFIGS[name], overrides=addable(first))


def _runner(name: str, words: list[str], page: str) -> None:
    if page not in FOLLOWED:  # those have options of their own
        assert len(composed(name, words)) > 0


def _python(words: list[str], page: str) -> None:
    if words[0] != "-m":
        beside = {block.file for block in blocks(_page(page).read_text(encoding="utf-8"))}
        assert words[0] in beside or (ROOT / words[0]).is_file(), words[0]
        return
    if "--" in words:  # a command that is given to another
        _python(words[words.index("--") + 1 :], page)
        words = words[: words.index("--")]
    home, *names = words[1].split(".")
    name = "/".join(names)
    whole = ROOT / home / name / "__main__.py"
    file = whole if whole.is_file() else ROOT / home / f"{name}.py"
    assert file.is_file(), words[1]
    if home == "runners":
        _runner(name, words[2:], page)
    elif home == "reproduce":
        with initialize_config_dir(str(STUDIES), version_base="1.3"):
            assert compose("study", overrides=words[2:]).study
    else:
        assert home == "benchmarks"
        source = file.read_text(encoding="utf-8")
        assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))


def _command(words: list[str], page: str) -> None:
    if words[0] in CONFIGS and (words[0] != "plan" or "=" in words[1]):
        return _runner(words[0], words[1:], page)
    with click.Context(netsplit, info_name="netsplit") as above:
        if words[0].startswith("-"):
            netsplit.make_context("netsplit", words, parent=above, resilient_parsing=True)
        else:
            netsplit.commands[words[0]].make_context(words[0], words[1:], parent=above)
    return None


def _make(words: list[str], page: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert words[0] in targets
    for word in words[1:]:
        key, _, value = word.partition("=")
        assert key in ("ARGS", "JOBS", "PORT", "PYTHON", "GRAPHS", "EXPERIMENTS"), word
        if key == "ARGS" and words[0] in ("run", *CONFIGS):
            _runner({"run": "compare"}.get(words[0], words[0]), shlex.split(value), page)


CHECKS: dict[str, Callable[[list[str], str], None]] = {
    "python": _python, "netsplit": _command, "make": _make,
}  # fmt: skip


@cache
def _page(name: str) -> Path:
    (page,) = (each for each in PAGES if each.name == name)
    return page


def test_there_are_many() -> None:
    assert len(PRINTED) > 80
    spoken = {name for _, line in PRINTED for name in re.findall(r"(?:runners\.|netsplit )(\w+)", line)}
    assert CONFIGS.keys() <= spoken
    assert len(RUN) > 8


def test_every_reason_is_some_command_s() -> None:
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for _, line in PRINTED)]
    assert not unused


@pytest.mark.parametrize(("page", "line"), few(PRINTED, 45), ids=lambda each: str(each)[:70])
def test_a_printed_command_is_one(page: str, line: str) -> None:
    """Nothing is run, and no file is opened."""
    first, *words = shlex.split(OPEN.sub(lambda match: "=OPEN" * ("-" not in match[0]), line), comments=True)
    if first not in OTHERS:
        CHECKS[first]([word for word in words if "OPEN" not in word], page)


@pytest.mark.slow
@pytest.mark.parametrize("line", RUN, ids=lambda line: line[:70])
def test_a_printed_command_runs(line: str, tmp_path: Path) -> None:
    """Trainings are made short; everything else is as it is printed."""
    words = shlex.split(line, comments=True)
    if words[0] == "netsplit":
        words = ["python", "-m", *words]
    match = re.search(r"(?:runners\.|netsplit )(compare|train)\b", line)
    if match is not None:
        given = words[3 + (words[2] == "netsplit") :]
        keys = {word.partition("=")[0] for word in given}
        short = [each for each in SHORT if each.partition("=")[0] not in keys]
        if "autocast" in keys:  # of which no rates are known to predict by
            short.remove("profile=predicted")
        asked = composed(match[1], given)
        short += ["partitioner.auto.time_limit_s=1"] * ("auto" in asked.partitioner)
        words += [*short, "schedule.time_limit_s=2"] if "schedules" in asked.schedule else short
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
