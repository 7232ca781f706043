"""Train with one method, `partitioner=...`, and record it. `netsplit train --help`.

netsplit train partitioner=m_topo resume=auto                       goes on by itself
netsplit train resume=outputs/train/runs/<run>/checkpoints/m_topo   from that training's newest
"""

from __future__ import annotations

from omegaconf import DictConfig

from ._entry import entry
from .compare import job

__all__ = ["main"]


@entry(config_name="train")
def main(cfg: DictConfig) -> None:
    job(cfg)


if __name__ == "__main__":
    main()
