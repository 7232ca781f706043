"""How a runner script becomes a command: Hydra in front, one clear sentence for a user's mistake.

::

    @entry(config_name="config")
    def main(cfg: DictConfig) -> float | None: ...

    if __name__ == "__main__":
        main()

What the job returns is what a sweep that searches makes small (docs/sweeps.md).

Exit codes: 0 done, 1 a bug (with its traceback), 2 a mistake that the user can mend, 130 Ctrl-C, SIGTERM or
SIGHUP.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from rich.console import Console
from yaml import YAMLError

from hydra_plugins.netsplit_sweeps._sweep import JobsFailed, run_marked
from netsplit.config import build
from netsplit.errors import ConfigError, NetSplitError
from netsplit.interrupts import EXIT_INTERRUPTED, interrupted, interrupts_raised
from netsplit.signature import TARGET, key_as_given, suggest

from ._own_targets import addable, of_own_targets

__all__ = [
    "command_line",
    "console_of",
    "entry",
    "experiment",
    "option",
    "options",
    "sentence",
    "settings_of",
]

CONF = Path(__file__).resolve().parent.parent / "conf"
USER_MISTAKES = (NetSplitError, HydraException, OmegaConfBaseException, YAMLError)
UNUSABLE = {
    errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ENOENT, errno.ENOSPC,
    errno.ENOTDIR, errno.EROFS,
}  # fmt: skip
EXIT_BUG, EXIT_MISTAKE = 1, 2
FULL_ERROR = "HYDRA_FULL_ERROR"
_SEVERAL = ("partitioner",)
"""Groups that take a list of options."""
_FOLDERS = ("outputs", "outputs/*", "outputs/*/runs")

PLUGINS = {  # options of optional packages -> the extra that installs them
    "hydra/launcher=joblib": "sweep",
    "hydra/launcher=submitit_local": "slurm",
    "hydra/launcher=submitit_slurm": "slurm",
}

_NO_CONFIG_DIR = re.compile(r"Additional config directory '(.*)' not found")  # as Hydra says it

Job = Callable[[DictConfig], Any]

log = logging.getLogger(__name__)


class JobEnd(BaseException):
    """Carries a job's failure past Hydra, which would print its own line about it."""


def entry(config_name: str = "config", conf: Path = CONF) -> Callable[[Job], Callable[[], None]]:
    """Make a command of `job`, with the configs of a folder; a failed job of a multirun stops no other."""

    def decorate(job: Job) -> Callable[[], None]:
        @functools.wraps(job)
        def command() -> None:
            sys.argv[1:] = addable(sys.argv[1:])
            start = hydra.main(version_base="1.3", config_path=str(conf), config_name=config_name)
            _run(start(_logged(job, set(_default_folders()))))

        return command

    return decorate


def command_line(runner: str, words: Iterable[str]) -> str:
    """How a user calls a runner, with the folders and the name of the configs that this command was given."""
    config = HydraConfig.get()
    given = [word for word in config.overrides.hydra if word.lstrip("+").startswith("hydra.searchpath")]
    for source in config.runtime.config_sources:
        if source.provider == "command-line":
            given += ["--config-dir", source.path.removeprefix(f"{config.runtime.cwd}/")]
    if not (CONF / f"{config.job.config_name}.yaml").is_file():
        given += ["--config-name", str(config.job.config_name)]
    return f"netsplit {runner} {shlex.join([*given, *words])}".rstrip()


def settings_of(cfg: DictConfig, owner: str, names: Iterable[str], groups: Iterable[str]) -> Any:
    """The runner's own top-level keys as its settings.

    Args:
        owner: dotted name of the settings' class.
        names: of its fields.
        groups: keys that belong to others.

    Raises:
        ConfigError: an unknown key, or a value that the class does not take.
    """
    own, known = list(names), [*names, *groups]
    for key in map(str, cfg):
        if key not in known:
            raise ConfigError(f"{key} is not a config key: {suggest(key, known)}")
    chosen = OmegaConf.masked_copy(cfg, [name for name in own if name in cfg])
    OmegaConf.set_struct(chosen, False)
    chosen[TARGET] = owner
    return build(chosen)


def experiment() -> str | None:
    """The job's option in `conf/experiment/`; runs are listed under it."""
    chosen = HydraConfig.get().runtime.choices.get("experiment")
    return None if chosen is None else str(chosen)


def console_of(width: int = 110) -> Console:
    """The terminal, or lines of `width` columns for a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=width)


def options(group: str) -> list[str]:
    """Names of a group's options, of `conf/` and of the folders in `hydra.searchpath`, while a job runs."""
    names: list[str] = _repository().get_group_options(group, ObjectType.CONFIG)
    return names


def option(group: str, name: str) -> DictConfig:
    """One of `options`, as in its file."""
    loaded = _repository().load_config(f"{group}/{name}")
    assert loaded is not None
    assert isinstance(loaded.config, DictConfig)
    return loaded.config


def sentence(error: BaseException) -> str:
    """What is wrong, where, and what to give instead, in one line."""
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read '{error.override}': quote values with special characters, as in key='\"~/value\"'."
        )
    if (missing := _NO_CONFIG_DIR.match(str(error))) is not None:
        return f"--config-dir is '{missing[1]}', which is not a folder: give the folder of your own options."
    cause = error.__cause__
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        error = cause if isinstance(cause, OmegaConfBaseException) else error
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key or error.key} must be given: add {error.full_key or error.key}=<value>."
    if isinstance(error, OmegaConfBaseException):
        return _config_sentence(error)
    return " ".join(str(error).split())


def _run(start: Callable[[], None]) -> None:
    logging.raiseExceptions = False  # no tracebacks for a log on a full disk
    wants_traceback = bool(os.environ.get(FULL_ERROR))
    os.environ[FULL_ERROR] = "1"  # Hydra then raises its errors instead of printing them
    try:
        with interrupts_raised():
            start()
    except KeyboardInterrupt as stop:
        _leave(interrupted(*stop.args), EXIT_INTERRUPTED)
    except JobEnd as end:
        _finish(end.__cause__ or end, wants_traceback)
    except JobsFailed as end:
        count = len(end.failures)
        if count > 1:
            sys.stderr.write(f"{count} jobs failed; each has its error in its own log; the first was:\n")
        _finish(end.failures[0], wants_traceback)
    except BrokenPipeError:  # whoever read it, as `head` does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_MISTAKE)
    except Exception as error:
        _finish(error, wants_traceback)
    finally:
        if not wants_traceback:
            os.environ.pop(FULL_ERROR, None)


def _finish(error: BaseException, wants_traceback: bool) -> NoReturn:
    if isinstance(error, OSError) and error.errno in UNUSABLE and not wants_traceback:
        place = f"cannot use '{error.filename}'" if error.filename else "a file cannot be written"
        cure = "" if error.filename else " for the run (hydra.run.dir=) or its database (tracking.uri=)"
        _leave(f"error: {place}: {error.strerror}; choose another place{cure}, or make room.", EXIT_MISTAKE)
    if isinstance(error, ValueError) and "group override must be" in str(error) and not wants_traceback:
        _leave("error: a group cannot be null: choose one of its options (tracking=none).", EXIT_MISTAKE)
    if isinstance(error, USER_MISTAKES) and not wants_traceback:
        _leave(f"error: {sentence(error)}", EXIT_MISTAKE)
    raise error


def _leave(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # the terminal is gone
        sys.stdout.flush()
        sys.stderr.write(f"{message}\n")
    sys.exit(code)


def _logged(job: Job, before: Collection[Path]) -> Job:
    """The job, which logs its failure in its folder, and in a multirun its end; `before`: default folders."""

    def single(cfg: DictConfig) -> Any:
        try:
            _check_choices(cfg)
            return job(cfg)
        except Exception as error:
            _record(error, on_console=False)
            _forget_unused(error, before)
            raise JobEnd from error

    def one_of_many(cfg: DictConfig) -> Any:
        try:
            _check_choices(cfg)
            return job(cfg)
        except Exception as error:
            _record(error, on_console=True)
            raise

    @functools.wraps(job)
    def run(cfg: DictConfig) -> Any:
        words = HydraConfig.get().overrides.task
        if HydraConfig.get().mode == RunMode.RUN:
            return single(of_own_targets(cfg, words))
        # a job is recognised by its composed overrides, before `of_own_targets`
        return run_marked(lambda composed: one_of_many(of_own_targets(composed, words)), cfg, sentence)

    return run


def _default_folders() -> list[Path]:
    """The existing folders in which Hydra makes job folders (conf/hydra/default.yaml)."""
    return [path.absolute() for pattern in _FOLDERS for path in Path().glob(pattern)]


def _forget_unused(error: Exception, before: Collection[Path]) -> None:
    """Remove the empty folders of a job that was refused."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    written = [entry for entry in folder.rglob("*") if entry.is_file() and ".hydra" not in entry.parts]
    if isinstance(error, USER_MISTAKES) and all(entry.suffix == ".log" for entry in written):
        shutil.rmtree(folder, ignore_errors=True)
        made = [path for path in reversed(_default_folders()) if path not in before]
        for parent in [path for path in made if path in folder.absolute().parents]:
            with suppress(OSError):  # it has something, of another command
                parent.rmdir()


def _record(error: Exception, on_console: bool) -> None:
    """Log a mistake as a sentence, anything else with its traceback."""
    root = logging.getLogger()
    quiet = (
        [] if on_console else [entry for entry in root.handlers if not isinstance(entry, logging.FileHandler)]
    )
    for handler in quiet:
        root.removeHandler(handler)
    try:
        if isinstance(error, NetSplitError):
            log.error("error: %s", sentence(error))
        else:
            log.exception("the job failed")
    finally:
        for handler in quiet:
            root.addHandler(handler)


def _missing_option(error: MissingConfigException) -> str:
    name = str(error.missing_cfg_file or "")
    group, _, option = name.rpartition("/")
    if (extra := PLUGINS.get(f"{group}={option}")) is not None:
        return f"{group}={option} is not installed: `pip install 'netsplit[{extra}]'` brings it."
    options = error.options if error.options is not None else _options(group)
    if not group or not options:
        return " ".join(str(error).splitlines()[0].split())
    return f"{group}={option} is not an option: {suggest(option, options)}"


def _config_sentence(error: OmegaConfBaseException) -> str:
    key = str(error.full_key or error.key or "")
    parent = error.parent_node
    names = [str(name) for name in parent] if isinstance(parent, DictConfig) and not parent._is_none() else []
    if names and str(error.key) not in names:
        more = _of_target(key, parent)
        if key not in names and _options(key):
            return f"{key} is not chosen: choose one before you set its keys ({key}=<option>)."
        return f"{key} is not a config key: {suggest(str(error.key), names)}{more}"
    if isinstance(parent, ListConfig) and isinstance(error.key, int) and error.key >= len(parent):
        return f"{key} does not exist: the list has {len(parent)} entries, counted from 0."
    first = str(error).splitlines()[0].strip().rstrip(".")
    return f"{key}: {first}." if key and key not in first else f"{first}."


def _of_target(key: str, node: Any) -> str:
    """What an unknown key may have meant, without importing the target, which may take seconds."""
    while node is not None and not (isinstance(node, DictConfig) and TARGET in node):
        node = node._get_parent()
    if node is None:
        return ""
    full_key = key_as_given(key)
    return f" To add an argument of {node[TARGET]}, write + before it: +{full_key}=<value>."


def _check_choices(cfg: DictConfig) -> None:
    _refuse_lists(HydraConfig.get().overrides.task)
    _require_one_of_each(cfg)


def _refuse_lists(words: Iterable[str]) -> None:
    """Refuse a list of options for a single-option group, as Hydra would merge them."""
    for override in OverridesParser.create().parse_overrides(list(words)):
        group, value = override.key_or_group, override.value()
        if isinstance(value, list) and group not in _SEVERAL and options(group):
            names = ",".join(map(str, value))
            raise ConfigError(
                f"{group}=[{names}] is a list, but {group} takes one option: run several one after another "
                f"with --multirun {group}={names or 'a,b'}."
            )


def _require_one_of_each(cfg: DictConfig) -> None:
    """Refuse an option that is in two places, as Hydra silently takes the first."""
    sources = _repository().sources
    chosen = [(group, name) for group, name in HydraConfig.get().runtime.choices.items() if name]
    chosen += [
        ("partitioner", name) for name in cfg.get("partitioner") or ()
    ]  # a list, which Hydra has no choice for
    for group, name in chosen:
        places = [each.path for each in sources if each.is_config(f"{group}/{name}")]
        if len(places) > 1 and not group.startswith("hydra"):
            winner, hidden = ("NetSplit itself" if Path(each) == CONF else f"'{each}'" for each in places[:2])
            raise ConfigError(
                f"{group}={name} is both in {winner}, which wins, and in {hidden}: rename one of them."
            )


def _repository() -> ConfigRepository:
    folders = ConfigSearchPathImpl()
    for source in HydraConfig.get().runtime.config_sources:
        if source.path:
            folders.append(source.provider, f"{source.schema}://{source.path}")
    return ConfigRepository(folders)


def _options(group: str) -> list[str]:
    """All options of a group, including those of the user's folders."""
    return [path.stem for path in (CONF / group).glob("*.yaml")] if group else []
