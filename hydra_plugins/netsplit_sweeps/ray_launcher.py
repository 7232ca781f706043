"""`hydra/launcher=ray`: every job is a task of a Ray cluster, or of the cores of this machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from netsplit.errors import ConfigError, NetSplitError

__all__ = ["RayLauncher"]

log = logging.getLogger(__name__)


class RayLauncher(Launcher):
    """Jobs as Ray tasks; one whose process is killed fails alone.

    Args:
        init: for `ray.init`; `address: auto` joins a cluster that runs.
        remote: what a job needs, for `ray.remote`: num_cpus, num_gpus, resources.
    """

    def __init__(self, init: DictConfig, remote: DictConfig) -> None:
        self.init: Any = OmegaConf.to_container(init, resolve=True)
        self.remote: Any = OmegaConf.to_container(remote, resolve=True)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs, as many at once as the cluster has room for.

        Raises:
            ConfigError: Ray is missing.
        """
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "hydra/launcher=ray is not installed: `pip install 'netsplit[ray]'` brings it."
            ) from error
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        ray.init(**{"ignore_reinit_error": True, **self.init})
        task = ray.remote(**self.remote)(_run) if self.remote else ray.remote(_run)
        refs = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            log.info("\t#%d : %s", number, " ".join(filter_overrides(overrides)))
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = f"{config.hydra.job.name}_{number}"
                config.hydra.job.num = number
            refs.append(task.remote(self.hydra_context, config, self.task_function, Singleton.get_state()))
        return [_got(ray, ref) for ref in refs]


def _run(context: HydraContext, config: DictConfig, job: TaskFunction, state: Any) -> JobReturn:
    setup_globals()
    Singleton.set_state(state)
    HydraConfig.instance().set_config(config)
    return run_job(
        hydra_context=context,
        task_function=job,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _got(ray: Any, ref: Any) -> JobReturn:
    """The job's answer, or a failed one in place of a process that was killed."""
    try:
        answer: JobReturn = ray.get(ref)
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())
        answer = JobReturn(status=JobStatus.FAILED)
        answer.return_value = NetSplitError(f"a job's process ended before the job finished: {reason}")
    return answer
