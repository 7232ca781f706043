"""`netsplit`: one command for all that users do; `netsplit --help` lists it.

netsplit compare ...  ─┐
netsplit train ...     ├─► the runner's own `main`, with Hydra's overrides
netsplit partition ... ┘
netsplit plan MODULE:NAME, devices, probe, doctor, ui, new, completion ─► here; torch is loaded where needed
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, get_completion_class

from netsplit import __version__
from netsplit.errors import NetSplitError
from netsplit.files import standard_first
from netsplit.interrupts import EXIT_INTERRUPTED, interrupted, interrupts_raised

from .._entry import CONF, EXIT_MISTAKE

__all__ = ["main", "netsplit"]

RUNNERS = {
    "compare": "Compare methods: plan, train and record each.",
    "train": "Train with one method.",
    "partition": "Plan a profiled graph file, without devices.",
    "simulate": "Predict an iteration of a profiled graph file.",
    "report": "Write recorded comparisons and studies as one page.",
}
SHELLS = ("bash", "zsh", "fish")
IN_SCRIPTS = {  # click's completion, without a space after a key and with lists
    "COMPREPLY+=($value)": 'COMPREPLY+=("$value"); [[ $value == *[=[,]* ]] && compopt -o nospace',
    'string split ","': 'string split -m1 ","',
}
KINDS = ("partitioner", "cluster", "dataset", "plugin")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="netsplit")
def netsplit() -> None:
    """Decide which device runs which operator of a PyTorch model, and train it that way.

    compare, train, plan, partition, simulate and report take Hydra's overrides, as in `netsplit compare
    model=bert_small cluster=cpu4`; `--config-dir DIR` adds options of your own, and `netsplit compare --help`
    lists all.
    """


def _overrides(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completions for a runner: groups, options and keys. For bash ``=`` is a word of its own."""
    words = [word for word in context.params.get("words") or () if word != "="]
    group, given, option = incomplete.partition("=")
    shown = f"{group}=" if given else None
    if words and (CONF / words[-1]).is_dir():
        group, option, shown = words[-1], incomplete, ""
    if shown is not None:
        options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        before = option[: max(option.rfind(mark) for mark in "[,") + 1]  # of a list: [auto,heft
        last, chosen = option.removeprefix(before), before.strip("[").split(",")
        return [
            CompletionItem(f"{shown}{before}{each}")
            for each in options
            if each.startswith(last) and each not in chosen
        ]
    file = CONF / f"{'config' if context.info_name == 'compare' else context.info_name}.yaml"
    lines = file.read_text(encoding="utf-8").splitlines()
    keys = {path.name for path in CONF.iterdir() if path.is_dir()}
    keys |= {line.partition(":")[0] for line in lines if line[:1].isalpha()} - {"defaults", "hydra"}
    return [CompletionItem(f"{word}=") for word in sorted(keys) if word.startswith(incomplete)]


def _runner(name: str, text: str) -> None:
    """Add a runner, which gets all words, even `--help`."""

    @netsplit.command(
        name,
        help=text,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=_overrides)
    def run(words: tuple[str, ...]) -> None:
        sys.argv = [f"netsplit {name}", *words]
        import_module(f"{__package__.rpartition('.')[0]}.{name}").main()


for _name, _text in RUNNERS.items():
    _runner(_name, _text)


@netsplit.command(context_settings={"ignore_unknown_options": True})
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="MODEL | KEY=VALUE...", shell_complete=_overrides
)
@click.option(
    "--batch", help="Inputs of one batch: 8x3x32x32, or 8x64:int64<1000; separate several by commas."
)
@click.option("--targets", help="Targets of the loss, written like --batch: '8:int64<10'.")
@click.option("--loss", help="MODULE:NAME, called as loss(outputs, targets); default: mean square.")
@click.option(
    "--cluster", default="cpu2", show_default=True, help="Name in conf/cluster/ or your --config-dir."
)
@click.option("--partitioner", default="auto", show_default=True)
@click.option("--schedule", default="auto", show_default=True)
@click.option("--optimizer", default="momentum", show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Other keys, as in `compare`.")
@click.option(
    "--config-dir", type=click.Path(exists=True, file_okay=False), help="Folder of your own options."
)
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the results.")
@click.pass_context
def plan(context: click.Context, words: tuple[str, ...], **options: Any) -> None:
    """Decide which device runs which operator of MODEL, as MODULE:CALLABLE, and train nothing.

    The callable returns a module, or (module, loss, (inputs, targets)). This folder is searched
    first.

    With Hydra's overrides, as in `netsplit plan model=resnet50 dataset=synthetic cluster=v100x8`, models of
    NetSplit are planned, without starting a worker; `python -m runners.plan --help` lists all.
    """
    if words and "=" not in words[0] and not words[0].startswith("-"):
        if len(words) > 1:
            raise click.UsageError(
                f"'{words[1]}' is not understood: with MODEL, give only options of --help."
            )
        groups = {group: options.pop(group) for group in ("cluster", "schedule", "optimizer")}
        groups["partitioner"] = f"[{options.pop('partitioner')}]"
        folder, overrides = options.pop("config_dir"), options.pop("overrides")
        request = _work("composed").requested(folder, overrides, **groups)
        _work("plan").plan(words[0], **options, request=request)
        return
    stated = [name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if set(stated) - {"config_dir"}:
        raise click.UsageError(f"--{min(stated)} needs MODEL: give KEY=VALUE, as in cluster=v100x8.")
    config_dir = ["--config-dir", options["config_dir"]] if stated else []
    sys.argv = ["netsplit plan", *config_dir, *words]
    import_module(f"{__package__.rpartition('.')[0]}.plan").main()


@netsplit.command()
def devices() -> None:
    """List this machine's devices and the links between its GPUs."""
    _work("machine").devices()


@netsplit.command()
@click.option(
    "--cluster", default="cpu2", show_default=True, help="Name in conf/cluster/ or your --config-dir."
)
@click.option(
    "--config-dir", type=click.Path(exists=True, file_okay=False), help="Folder of your own options."
)
def probe(cluster: str, config_dir: str | None) -> None:
    """Start the workers of a cluster and measure its links."""
    _work("machine").probe(cluster, config_dir)


@netsplit.command()
@click.option("--links", is_flag=True, help="Start two workers and probe the link between them too.")
def doctor(links: bool) -> None:
    """Check versions, devices and solvers; paste the output into a bug report."""
    _work("doctor").doctor(links)


@netsplit.command()
@click.option("--port", default=5000, show_default=True, type=click.IntRange(1, 65535))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Another address lets other machines in."
)
@click.option("--database", default="sqlite:///outputs/mlflow.db", show_default=True)
def ui(port: int, host: str, database: str) -> None:
    """Show the recorded runs in a browser, until Ctrl-C."""
    _work("ui").ui(port, host, database)


@netsplit.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
def new(kind: str, name: str) -> None:
    """Write a PARTITIONER, CLUSTER or DATASET of your own into this folder, or a PLUGIN to install."""
    _work("skeletons").new(kind, name)


@netsplit.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print SHELL's completion script; for bash: eval "$(netsplit completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(netsplit, {}, "netsplit", "_NETSPLIT_COMPLETE").source()
    for theirs, ours in IN_SCRIPTS.items():
        script = script.replace(theirs, ours)
    click.echo(script)


def _work(name: str) -> Any:
    module = import_module(f".{name}", __package__)
    click.get_current_context().with_resource(interrupts_raised())
    return module


def main() -> None:
    """The command's entry point; finds code in the current folder after the standard library's."""
    folder = os.getcwd()
    if folder not in sys.path and str(Path(folder)) not in sys.path:
        sys.path[:] = standard_first([folder, *sys.path])
    _clear(netsplit)


def _clear(command: Callable[..., Any]) -> None:
    """Print errors as one sentence, with exit code 2, and interrupts with 130."""
    try:
        sys.exit(command(prog_name="netsplit", standalone_mode=False))
    except click.ClickException as refused:
        refused.show()
        sys.exit(refused.exit_code)
    except click.Abort as stop:  # click's word for KeyboardInterrupt
        why = stop.__cause__.args if isinstance(stop.__cause__, KeyboardInterrupt) else ()
        click.echo(interrupted(*why), err=True)
        sys.exit(EXIT_INTERRUPTED)
    except NetSplitError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(EXIT_MISTAKE)
