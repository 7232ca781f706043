"""Train with one method, `partitioner=...`, and record it. `python -m runners.train --help`.

python -m runners.train partitioner=m_topo resume=auto                       goes on by itself
python -m runners.train resume=outputs/train/runs/<run>/checkpoints/m_topo   from that training's newest
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
