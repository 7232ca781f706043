"""`hydra/sweeper=optuna`: Optuna chooses the next jobs by what the earlier ones returned.

The study is kept in a database: the same command with the same `hydra.sweep.dir` goes on with it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.netsplit_sweeps._sweep import Mark, Sweep
from netsplit.errors import ConfigError
from netsplit.files import write_text

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

__all__ = ["OptunaSweeper"]

NEEDS_NUMBER = "hydra/sweeper=optuna needs a command that returns a number"
WITHOUT = "leave it out to run every combination."
NO_NUMBER = "it returned no number to search by: no method of the comparison fits the devices."
Point = frozenset[tuple[str, Any]]  # the parameters of a trial

log = logging.getLogger(__name__)


class OptunaSweeper(Sweeper):
    """Searches the values given for those whose job returns the least, or the most.

    Args:
        trials: different jobs in all, with those that the study already has.
        at_once: jobs given to the launcher together; it must be one that runs several at once.
        direction: minimize or maximize what the job returns.
        sampler: tpe, gp or random.
        seed: of the sampler.
        storage: address of the study's database; a SQLite file needs no server.
        study: its name there, before the digest of the configs that it is of.
        params: key -> values to search, as on the command line, which wins.
    """

    def __init__(
        self,
        trials: int,
        at_once: int,
        direction: Literal["minimize", "maximize"],
        sampler: Literal["tpe", "gp", "random"],
        seed: int,
        storage: str,
        study: str,
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.trials = trials
        self.at_once = at_once
        self.direction = direction
        self.sampler = sampler
        self.seed = seed
        self.storage = storage
        self.study = study
        self.params = dict(params or {})
        self._tried: dict[Point, float | None] = {}  # None: its job failed
        self._random = random.Random(seed)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = hydra_context
        self.gives_numbers = getattr(task_function, "__annotations__", {}).get("return") != "None"
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Search until there are enough trials, or nothing new to try.

        Raises:
            ConfigError: Optuna is missing, a setting cannot be used, or there is nothing to search.
            JobsFailed: some jobs failed.
        """
        self._check()
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        given = [f"{key}={value}" for key, value in self.params.items()] + list(arguments)
        fixed, space = _read(parser.parse_overrides(given))
        sweep = Sweep(self.config, self.hydra_context, self.launcher)
        study = self._open(f"{self.study}-{_digest(sweep, fixed, space)}")
        self._recall(study, space)
        sweep.count([[*fixed, *_overrides(point)] for point in self._tried])
        while trials := self._next(study, space):
            marks = sweep.run([[*fixed, *_overrides(point)] for point in trials])
            for (point, same), mark in zip(trials.items(), marks, strict=True):
                self._tried[point] = _value(sweep, mark)
                for trial in same:
                    _tell(study, trial, self._tried[point])
        sweep.end(self._best(sweep.folder))

    def _check(self) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                "hydra/sweeper=optuna is not installed: `pip install 'netsplit[sweep]'` brings it."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if not self.gives_numbers:
            raise ConfigError(f"{NEEDS_NUMBER}, but this one returns none: {WITHOUT}")
        for key in ("trials", "at_once"):
            if not isinstance(value := getattr(self, key), int) or value < 1:
                raise ConfigError(f"hydra.sweeper.{key} is {value}: give an integer of at least 1.")
        choices = {"direction": ("minimize", "maximize"), "sampler": ("tpe", "gp", "random")}
        for key, known in choices.items():
            if getattr(self, key) not in known:
                value = getattr(self, key)
                raise ConfigError(f"hydra.sweeper.{key} is '{value}': give {', '.join(known)}.")

    def _open(self, name: str) -> Study:
        import optuna

        try:
            storage = optuna.storages.get_storage(self.storage)
            names = optuna.get_all_study_names(storage)
            if name not in names and any(f"{each}-".startswith(f"{self.study}-") for each in names):
                log.info("Study '%s' is new: trials with another config or other values are ignored.", name)
            return optuna.create_study(
                storage=storage,
                sampler=self._sampler(),
                study_name=name,
                direction=self.direction,
                load_if_exists=True,
            )
        except Exception as error:  # whatever its database driver raises
            reason = " ".join(str(error).split())
            raise ConfigError(f"hydra.sweeper.storage '{self.storage}' cannot be opened: {reason}") from error

    def _sampler(self) -> BaseSampler:
        from optuna import samplers

        if self.sampler == "random":
            return samplers.RandomSampler(seed=self.seed)
        if self.sampler == "gp":
            return samplers.GPSampler(seed=self.seed)
        return samplers.TPESampler(seed=self.seed, constant_liar=self.at_once > 1)

    def _recall(self, study: Study, space: Mapping[str, BaseDistribution]) -> None:
        """What an earlier command has tried; what failed or was killed then comes first now."""
        from optuna.trial import TrialState

        again: dict[Point, dict[str, Any]] = {}
        known: set[Point] = set()
        for trial in study.get_trials(deepcopy=False):
            if trial.state == TrialState.COMPLETE:
                self._tried[_point(trial.params)] = trial.value
            elif trial.state == TrialState.WAITING:
                known.add(_point(trial.system_attrs.get("fixed_params", {})))
            elif trial.params.keys() == space.keys():
                again[_point(trial.params)] = trial.params
            if trial.state == TrialState.RUNNING:
                study.tell(trial.number, state=TrialState.FAIL)
        for point, params in again.items():
            if point not in self._tried and point not in known:
                study.enqueue_trial(params)
        if self._tried:
            log.info("Study '%s' already has %d trials.", study.study_name, len(self._tried))

    def _next(self, study: Study, space: Mapping[str, BaseDistribution]) -> dict[Point, list[Trial]]:
        """Points not tried yet, each with the trials that ask for it; none when there are enough."""
        size = _size(space)
        wanted = min(self.at_once, min(self.trials, size) - len(self._tried))
        points: dict[Point, list[Trial]] = {}
        while len(points) < wanted:
            trial = study.ask(dict(space))
            point = _point(trial.params)
            if point in self._tried:  # a small space: its answer is known, something new is asked for instead
                _tell(study, trial, self._tried[point])
                study.enqueue_trial(self._untried(space, points))
            elif point in points:
                points[point].append(trial)
                study.enqueue_trial(self._untried(space, points))
            else:
                points[point] = [trial]
        return points

    def _untried(
        self, space: Mapping[str, BaseDistribution], asked: Mapping[Point, object]
    ) -> dict[str, Any]:
        while True:
            drawn = {key: self._drawn(each) for key, each in space.items()}
            if (point := _point(drawn)) not in self._tried and point not in asked:
                return drawn

    def _drawn(self, distribution: BaseDistribution) -> Any:
        from optuna.distributions import FloatDistribution

        if isinstance(distribution, FloatDistribution):
            return self._random.uniform(distribution.low, distribution.high)
        return self._random.choice(_values(distribution))

    def _best(self, folder: Path) -> str:
        """The best point in words, and in `best.yaml`."""
        import yaml

        values = {point: value for point, value in self._tried.items() if value is not None}
        if not values:
            (folder / "best.yaml").unlink(missing_ok=True)  # of another config
            return f"None of {len(self._tried)} trials gave a number."
        choose = min if self.direction == "minimize" else max
        best = choose(values, key=lambda point: values[point])
        overrides = _overrides(best)
        write_text(folder / "best.yaml", yaml.safe_dump({"value": values[best], "overrides": overrides}))
        return f"Best of {len(self._tried)} trials: {values[best]:.6g} with {' '.join(overrides)}"


def _read(overrides: Sequence[Override]) -> tuple[list[str], dict[str, BaseDistribution]]:
    """What is the same for all jobs, and what is searched."""
    space = {each.get_key_element(): _distribution(each) for each in overrides if each.is_sweep_override()}
    if not space:
        raise ConfigError(
            "hydra/sweeper=optuna has nothing to search: give values, as in schedule.microbatches=2,4,8."
        )
    fixed = {
        each.get_key_element(): each.get_value_element_as_str()
        for each in overrides
        if not each.is_sweep_override() and each.get_key_element() not in space
    }
    return [f"{key}={value}" for key, value in fixed.items()], space


def _distribution(override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        whole = isinstance(value.start, int) and isinstance(value.end, int)
        kind = IntDistribution if whole else FloatDistribution
        return kind(value.start, value.end, log="log" in value.tags)  # type: ignore[arg-type]
    words = list(override.sweep_string_iterator())
    if isinstance(value, RangeSweep) and not value.shuffle and isinstance(value.step, int):
        ordered = sorted(map(int, words))
        return IntDistribution(ordered[0], ordered[-1], step=abs(value.step))
    return CategoricalDistribution(words)


def _digest(sweep: Sweep, fixed: Sequence[str], space: Mapping[str, BaseDistribution]) -> str:
    """A digest of the values to search and of what each composes to, before the first job."""
    ends = {key: _ends(each) for key, each in space.items()}
    first = {key: values[0] for key, values in ends.items()}
    points = {_point(first | {key: value}): None for key, values in ends.items() for value in values}
    words = [f"{key}={each}" for key, each in sorted(space.items())]
    for point in points:
        words.append(repr(sweep.composed([*fixed, *_overrides(point)])[1]))
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]


def _ends(distribution: BaseDistribution) -> Sequence[Any]:
    """Values whose configs stand for those of all: every choice, but of numbers the least and the most."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low, distribution.high


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution)
    return range(distribution.low, distribution.high + 1, distribution.step)


def _size(space: Mapping[str, BaseDistribution]) -> float:
    """How many points there are."""
    from optuna.distributions import FloatDistribution

    return math.prod(
        math.inf if isinstance(each, FloatDistribution) else len(_values(each)) for each in space.values()
    )


def _point(params: Mapping[str, Any]) -> Point:
    return frozenset(params.items())


def _overrides(point: Point) -> list[str]:
    return [f"{key}={value}" for key, value in sorted(point)]


def _value(sweep: Sweep, mark: Mark | None) -> float | None:
    if mark is None or mark.outcome != "done":
        return None
    if mark.value is None or not math.isfinite(mark.value):
        sweep.reject(mark, NO_NUMBER)
        return None
    return mark.value


def _tell(study: Study, trial: Trial, value: float | None) -> None:
    from optuna.trial import TrialState

    if value is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, value)
