"""More micro-batches, where nothing fits with as many as are looked at first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.experiment.whole.sizes import Sizes
from netsplit.partition.base import Problem
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import why_none_fits

__all__ = ["or_with_further"]

log = logging.getLogger(__name__)

Decided = TypeVar("Decided")


def or_with_further(
    open_: AutoSchedule,
    samples: int,
    first: Sizes,
    of_counts: Callable[[Sequence[int]], Sizes],
    decided: Callable[[Sizes], Decided],
    problems: Callable[[Sizes], Callable[[int], Problem]],
) -> Decided:
    """What is decided with the first sizes; where nothing fits, with smaller micro-batches.

    Args:
        first: taken already.
        of_counts: numbers of micro-batches to their sizes, taken.
        problems: of sizes, by numbers of micro-batches, as far as bytes are concerned.

    Raises:
        InfeasibleError: nothing fits with either; others as `decided` does with the first.
    """
    try:
        return decided(first)
    except InfeasibleError as refused:
        further = open_.further_counts(samples, first.counts) if max(first.counts) > 1 else ()
        if not further:
            raise
        log.info("No plan fits yet: trying more micro-batches (%s).", ", ".join(map(str, further)))
        try:
            sizes = of_counts(further)
            if why_none_fits(problems(sizes), sizes.counts, open_) is not None:
                raise refused
            return decided(sizes)
        except InfeasibleError:
            raise
        except NetSplitError:
            raise refused from None
