"""A training that goes on keeps the micro-batches that were decided when it began.

Normalisations and rounding depend on them; devices, placement and schedule may be others each time.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from netsplit.files import write_json
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.runtime.checkpoint.cut import saved_cut
from netsplit.training.checkpoints import newest

__all__ = ["as_decided", "as_saved", "keep"]

log = logging.getLogger(__name__)

_FILE = "decided.json"


def as_decided(auto: AutoSchedule, folder: Path) -> AutoSchedule:
    """The schedule with the number of micro-batches that `keep` wrote beside checkpoints, if any."""
    try:
        microbatches = int(json.loads((folder / _FILE).read_text(encoding="utf-8"))["microbatches"])
        kept = replace(auto, microbatches=microbatches)
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or it was cut short
        checkpoint = newest(folder)
        return auto if checkpoint is None else as_saved(auto, checkpoint)
    log.info("Using %d micro-batches, as when this training began (%s).", microbatches, folder / _FILE)
    return kept


def as_saved(auto: AutoSchedule, checkpoint: Path) -> AutoSchedule:
    """The schedule with a checkpoint's number of micro-batches, unless others are asked for."""
    cut, asked = saved_cut(checkpoint), auto.microbatches
    if cut is None or not (
        asked is None or cut.microbatches in ([asked] if isinstance(asked, int) else asked)
    ):
        return auto
    log.info("Using %d micro-batches, as in the checkpoint's training (%s).", cut.microbatches, checkpoint)
    return replace(auto, microbatches=cut.microbatches)


def keep(folder: Path, microbatches: int) -> None:
    """Write the number down for `as_decided`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _FILE, {"microbatches": microbatches})
