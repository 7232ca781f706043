"""Recorded comparisons and studies as an HTML page: `netsplit report --help`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from omegaconf import DictConfig, OmegaConf

from netsplit.config import build
from netsplit.errors import ConfigError
from netsplit.tracking.database import require_database

from ._entry import entry, settings_of

__all__ = ["Settings", "job", "main"]

GROUPS = ("tracking",)


@dataclass(frozen=True)
class Settings:
    """The top-level keys of `conf/report.yaml`."""

    experiments: str | list[str]
    runs: int | str | list[str] = "newest"
    output: str = "outputs/report.html"
    title: str = "NetSplit report"

    def __post_init__(self) -> None:
        names = self.names
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"experiments is {self.experiments}: give a name, or a list of names.")

    @property
    def names(self) -> list[str]:
        return [self.experiments] if isinstance(self.experiments, str) else list(self.experiments or ())


def job(cfg: DictConfig) -> None:
    """Everything from the composed config to the page."""
    OmegaConf.resolve(cfg)
    settings: Settings = settings_of(
        cfg, f"{__package__}.report.Settings", [field.name for field in fields(Settings)], GROUPS
    )
    tracker = build(cfg.tracking)
    if not tracker.enabled:
        raise ConfigError("tracking is off, so there is nothing to report: choose tracking=mlflow.")
    require_database(tracker.uri)

    from netsplit.report import check_output, read_report, write_report

    check_output(settings.output)
    report = read_report(tracker.uri, settings.names, settings.runs, settings.title)
    print(f"Written to {write_report(report, settings.output)}: {report.counted()}.")


main = entry(config_name="report")(job)


if __name__ == "__main__":
    main()
