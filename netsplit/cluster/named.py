"""A cluster by the name of an option of `conf/cluster/`, as it is in its file."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec
from netsplit.config import build
from netsplit.errors import ConfigError
from netsplit.signature import suggest

__all__ = ["named_cluster"]

OPTIONS = Path(__file__).resolve().parent.parent / "conf" / "cluster"


def named_cluster(name: str) -> ClusterSpec | ClusterDescription:
    """The cluster of that name.

    Raises:
        ConfigError: there is none, or its file leaves open what must be given.
    """
    known = sorted(path.stem for path in OPTIONS.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"cluster is '{name}', which is no option of conf/cluster: {suggest(name, known)}")
    node = OmegaConf.load(OPTIONS / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    made: ClusterSpec | ClusterDescription = build(OmegaConf.create({"cluster": node}).cluster)
    return made
