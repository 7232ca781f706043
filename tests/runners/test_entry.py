"""`runners._entry`: exit codes, and one sentence for each of a user's mistakes."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from netsplit.config import build, validated
from netsplit.errors import NetSplitError
from netsplit.experiment.request import GROUPS
from runners._entry import entry, experiment
from tests.commands import Command

Run = Callable[..., tuple[int, str]]
ROOT = Path(__file__).resolve().parents[2]


def job(cfg: DictConfig) -> None:
    """Fails as its seed says."""
    validated(cfg, groups=GROUPS)
    if cfg.seed == 2:
        raise NetSplitError("the job found a mistake.")
    if cfg.seed == 3:
        raise KeyboardInterrupt
    if cfg.seed == 4:
        raise RuntimeError("a bug")
    if cfg.seed == 5:
        raise OSError(errno.ENOSPC, "No space left on device", "there")
    if cfg.seed == 7:
        assert not logging.raiseExceptions
        raise OSError(errno.ENOSPC, "No space left on device")
    if cfg.seed == 6:
        signal.raise_signal(signal.SIGHUP)


@pytest.fixture
def run(command: Command) -> Run:
    """Run `job` as a command in an empty folder; answers its exit code and what it wrote to stderr."""

    def call(*arguments: str) -> tuple[int, str]:
        ended = command(entry()(job), "job", *arguments)
        return ended.code, ended.err

    return call


@pytest.mark.parametrize(("before", "code"), [(signal.SIG_DFL, 130), (signal.SIG_IGN, 0)])
def test_a_terminal_that_is_closed_ends_a_job_in_good_order_but_under_nohup(
    run: Run, before: signal.Handlers, code: int
) -> None:
    kept = signal.signal(signal.SIGHUP, before)
    try:
        assert run("seed=6")[0] == code
    finally:
        signal.signal(signal.SIGHUP, kept)


def logs(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in folder.rglob("*.log")}


def test_a_job_that_ends_well_exits_with_0(run: Run) -> None:
    assert run() == (0, "")


def test_outputs_lie_under_the_task_and_the_folder_stays(run: Run, tmp_path: Path) -> None:
    run()
    assert Path.cwd() == tmp_path
    assert len(list(tmp_path.glob("outputs/*/runs/*/.hydra/config.yaml"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=none"], ["model=none is not an option", "amoebanet_d_small"]),
        (["partitioner=[single,none]"], ["partitioner=none is not an option", "m_topo"]),
        (["cluster=[cpu2,cpu4]"], ["cluster=[cpu2,cpu4] is a list", "are --multirun cluster=cpu2,cpu4."]),
        (["model=[lenet]"], ["model=[lenet] is a list", "are --multirun model=lenet."]),
        (["dataset=[]"], ["dataset=[] is a list", "are --multirun dataset=a,b."]),
        (["experiment=quik"], ["experiment=quik is not an option", "did you mean quick?"]),
        (["modle=digits"], ["modle is not a config key", "did you mean model?"]),
        (["model.num_layer=3"], ["model.num_layer is not a config key", "did you mean num_layers?"]),
        (["+model.extra=3"], ["model.extra is not a parameter of netsplit.models.amoebanet_d"]),
        (["model.num_layers=x"], ["model.num_layers is 'x'", "give an integer"]),
        (["epochs=x"], ["epochs is 'x'"]),
        (
            ["experiment=table_6_4", "dataset.shape=3"],
            ["unet", "cases.<name>.dataset.shape=", "+dataset.shape="],
        ),
        (["experiment=table_6_4", "cases.unet.epochs=3"], ["put + before it: +cases.unet.epochs=<value>"]),
        (["cluster.devices.7.name=x"], ["cluster.devices[7] is not there: the list has 2 entries"]),
        (
            ["++cluster.devices=[{name: a}]", "cluster.devices.0.capacity=9"],
            ["cluster.devices[0].capacity is not a config key", "+cluster.devices.0.capacity=<value>."],
        ),
        (["cluster.devices.0.capcity=9"], ["did you mean capacity?"]),
        (["~model.num_layers", "model.num_layers=3"], ["+model.num_layers=<value>."]),
        (["dataset=imagefolder"], ["dataset.root must be given"]),
        (["model=["], ["cannot read 'model=['"]),
        (["dataset.root=~/flowers"], ["cannot read 'dataset.root=~/flowers'", "quote"]),
        (["tracking=null"], ["a group cannot be null"]),
        (["--config-dir", "nowhere"], ["--config-dir is '", "nowhere', which is no folder: give one"]),
        (["+foo.bar=1"], ["foo is not a config key"]),
        (["seed=2"], ["the job found a mistake."]),
        (["seed=5"], ["cannot use 'there': No space left on device; choose another place"]),
        (["seed=7"], ["a file cannot be written: No space left on device", "hydra.run.dir="]),
    ],
)
def test_a_mistake_gives_one_sentence_and_exit_code_2(
    run: Run, arguments: list[str], words: list[str]
) -> None:
    code, stderr = run(*arguments)
    assert code == 2
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert all(word in stderr for word in words), stderr


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], None),
        (["experiment=quick"], "quick"),
        (["experiment=quick", "tracking.experiment=mine"], "mine"),
        (["--multirun", "experiment=quick", "seed=0,1"], "quick"),
    ],
)
def test_runs_are_listed_under_the_experiment_chosen(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str | None
) -> None:
    names = []

    def opened(cfg: DictConfig, groups: object) -> None:
        tracker = build(cfg.tracking)
        tracker.open(experiment())
        names.append(tracker.experiment)

    monkeypatch.setitem(globals(), "validated", opened)
    assert run(*arguments, "tracking=none")[0] == 0
    assert set(names) == {name}


@pytest.mark.parametrize("kept", ["", "outputs", "outputs/job", "outputs/job/runs", "outputs/job/multiruns"])
def test_a_refused_job_leaves_no_folder_that_was_not_there(run: Run, tmp_path: Path, kept: str) -> None:
    (tmp_path / kept).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    run("hydra.job.name=job", "seed=2")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refused_job_leaves_what_lies_beside_its_folder(run: Run, tmp_path: Path) -> None:
    run("hydra.job.name=other")
    run("hydra.job.name=job", "seed=2")
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["other"]
    (tmp_path / "mine").mkdir()
    run("hydra.run.dir=mine/own", "seed=2")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("module", "imported"), [("runners.compare", "hydra"), ("netsplit", "click")])
def test_an_interrupt_while_a_command_imports_is_one_sentence(
    module: str, imported: str, end: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / f"{imported}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(end, signal.SIG_DFL),  # not ignored, as in the background
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(end)
        _, said = process.communicate(timeout=30)
    by = "" if end == signal.SIGINT else f" by {end.name}"
    assert (process.returncode, said) == (130, f"interrupted{by}: stopped before the end.\n")


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_importing_the_commands_leaves_a_program_its_handlers(tmp_path: Path) -> None:
    package, program = tmp_path / "mine", tmp_path / "mine" / "program.py"
    package.mkdir()
    program.write_text("import signal\nprint(*map(signal.getsignal, (1, 2, 15)))\n")
    (package / "__init__.py").write_text("import runners.compare, netsplit.runners.cli.command\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    plain, importing = (
        subprocess.check_output([sys.executable, *words], env=environment, text=True)
        for words in ([str(program)], ["-m", "mine.program"])
    )
    assert importing == plain


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_command_that_is_called_leaves_its_caller_the_handlers(run: Run, seed: int) -> None:
    before = handlers()
    run(f"seed={seed}")
    assert handlers() == before


def test_an_interrupt_exits_with_130(run: Run) -> None:
    code, stderr = run("seed=3")
    assert (code, stderr.count("\n")) == (130, 1)
    assert "interrupted" in stderr


def test_a_bug_keeps_its_traceback_and_is_in_the_log(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run("seed=4")
    (log,) = logs(tmp_path).values()
    assert "RuntimeError: a bug" in log
    assert "Traceback" in log


def test_a_mistake_keeps_its_traceback_when_hydra_is_told_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(NetSplitError):
        run("seed=2")


def test_the_environment_is_left_as_it_was(run: Run) -> None:
    run("seed=2")
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_a_failed_job_of_a_multirun_stops_no_other_and_has_its_own_log(run: Run, tmp_path: Path) -> None:
    code, stderr = run("--multirun", "seed=2,0,2,1")
    assert code == 2
    assert stderr.endswith("the first was:\nerror: the job found a mistake.\n")
    assert "2 jobs failed" in stderr
    texts = logs(tmp_path)
    assert {name for name, text in texts.items() if "the job found a mistake" in text} == {"0", "2"}
    assert set(texts) == {"0", "1", "2", "3"}


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"]])
def test_hydras_own_options_work(run: Run, arguments: list[str]) -> None:
    assert run(*arguments)[0] == 0
