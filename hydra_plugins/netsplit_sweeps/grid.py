"""`hydra/sweeper=grid`, the default: every combination of the values given, less what is done."""

from __future__ import annotations

from collections.abc import Mapping

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from hydra_plugins.netsplit_sweeps._sweep import Sweep

__all__ = ["GridSweeper"]


class GridSweeper(BasicSweeper):
    """Hydra's own sweeper, whose failed jobs stop no batch and whose done ones are skipped.

    Args:
        max_batch_size: jobs given to the launcher at once; None: all.
        params: key -> values to sweep, as on the command line, which wins.
    """

    def __init__(self, max_batch_size: int | None = None, params: Mapping[str, str] | None = None) -> None:
        super().__init__(max_batch_size, dict(params or {}))

    def sweep(self, arguments: list[str]) -> None:
        """Run all combinations.

        Raises:
            JobsFailed: some jobs failed.
        """
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        sweep = Sweep(self.config, self.hydra_context, self.launcher)
        for batch in self.split_arguments(overrides, self.max_batch_size):
            sweep.run(batch)
        sweep.end()
