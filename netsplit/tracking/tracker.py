"""Runs in MLflow: one for a comparison and one for each of its methods.

    tracker = Tracker("sqlite:///outputs/mlflow.db")
    with tracker.comparison("digits", config) as comparison:
        with comparison.method("netsplit", config) as run:
            run.metrics([("train/loss", 2.3, 0), ("train/iteration_s", 0.4, 0)])
            run.summary({"speed/samples_per_s": 156.1})

MLflow draws no charts of runs that lie under another one, so those of methods do not: each has the id of its
comparison as a tag, by which `charts_of` finds them. MLflow's client is used, and not its "active run", so
that no environment variable (``MLFLOW_RUN_ID``) can redirect what is written.

A run ends FINISHED; FAILED when an exception leaves its block, which then goes on to the caller;
KILLED on Ctrl-C or SIGTERM, and its comparison with it. Whatever happens, what was logged is written first.
Runs of a process that was killed outright stay RUNNING.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from netsplit.errors import ConfigError
from netsplit.tracking.database import (
    artifact_root,
    check_address,
    open_client,
    open_experiment,
    sqlite_path,
)
from netsplit.tracking.runs import ComparisonRun, Place, ended
from netsplit.tracking.values import LABELS, dotted_keys

__all__ = ["Tracker"]


class Tracker(Place):
    """The place where comparisons are recorded; opened when the first one begins.

    Args:
        uri: ``sqlite:///path`` (relative to the working folder), or a tracking server or database.
        experiment: name of the MLflow experiment, made where missing; None: netsplit.
        enabled: False records nothing and never imports MLflow.
        artifacts: folder or address for the files of a new experiment; None: beside a SQLite file, where a
            server keeps them, or ``outputs/mlartifacts`` with another database.
        system_metrics: seconds between two records of the machine's load (processors, memory, disk, network,
            GPUs) while a method runs; None: none.
        log_model: log each trained model as MLflow's PyTorch flavour does, with its signature.
        register_model: name in the registry of which each logged model is a new version; logs them too.

    Raises:
        ConfigError: `uri` is of no usable kind; at the first comparison, it cannot be opened.
    """

    def __init__(
        self,
        uri: str,
        experiment: str | None = None,
        enabled: bool = True,
        artifacts: str | None = None,
        system_metrics: float | None = None,
        log_model: bool = False,
        register_model: str | None = None,
    ) -> None:
        if register_model is not None and not register_model.strip():
            raise ConfigError("tracking.register_model is empty: give a name, or null.")
        if system_metrics is not None and not 0 < system_metrics < math.inf:
            raise ConfigError(f"tracking.system_metrics is {system_metrics}: give seconds above 0, or null.")
        log_model = enabled and (log_model or register_model is not None)
        super().__init__(log_model=log_model, register_model=register_model, system_metrics=system_metrics)
        path = sqlite_path(uri) if enabled else None
        self.uri = uri if path is None else f"sqlite:///{path}"
        self.experiment = experiment
        self.enabled = enabled
        self.artifacts = artifacts

    def check(self) -> None:
        """Whether runs can be kept, before there are any; makes nothing.

        Raises:
            ConfigError: not there.
        """
        if self.enabled and self.client is None:
            check_address(self.uri)

    def open(self, experiment: str | None = None) -> None:
        """Connect now, rather than at the first comparison; to `experiment`, where the tracker names none."""
        self.experiment = self.experiment or experiment
        if self.enabled and self.client is None:
            client = open_client(self.uri)
            place = artifact_root(self.uri, self.artifacts)
            self.experiment_id = open_experiment(client, self.experiment or "netsplit", place)
            self.client = client

    @contextmanager
    def comparison(
        self, name: str, params: Any = None, tags: Mapping[str, Any] | None = None
    ) -> Iterator[ComparisonRun]:
        """A run for a comparison, tagged with commit, versions and host.

        Args:
            params: the nested config.
            tags: those of `netsplit.tracking.values.LABELS` are parameters of all runs too; beside them this
                run has the whole config, dotted, and a method's run what tells methods apart.
        """
        self.open()
        labels = {key: str(value) for key, value in (tags or {}).items() if key in LABELS}
        run_id = self.new_run(name, {"role": "comparison"}, tags)
        run = ComparisonRun(self, name, run_id, labels, params)
        with ended(run):
            run.params(params, dotted_keys(params or {}) | labels)
            yield run
