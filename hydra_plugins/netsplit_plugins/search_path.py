"""Packages that are installed beside NetSplit add their options by an entry point.

[project.entry-points."netsplit.conf"]
lab = "lab.conf"          # a package whose folders are called as those of NetSplit's conf/
"""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from netsplit.errors import ConfigError

__all__ = ["GROUP", "InstalledOptions"]

GROUP = "netsplit.conf"


class InstalledOptions(SearchPathPlugin):
    """After NetSplit's own options, in the order of the entry points' names."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Raises ConfigError where a package names a folder that it does not have."""
        for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            if not _is_package(point.value):
                owner = point.dist.name if point.dist is not None else "an installed package"
                raise ConfigError(
                    f"{owner} has an entry point {GROUP} '{point.name}' = '{point.value}', which cannot be "
                    f"imported: repair or uninstall {owner}."
                )
            search_path.append(provider=f"{GROUP}:{point.name}", path=f"pkg://{point.value}")


def _is_package(name: str) -> bool:
    try:
        spec = find_spec(name)
    except Exception:  # whatever the package raises where it is imported
        return False
    return spec is not None and spec.submodule_search_locations is not None
