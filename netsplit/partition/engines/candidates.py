"""The answers of many methods to one problem, judged by one measure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from netsplit.errors import ModelSizeError, NetSplitError, TimeLimitError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement

__all__ = ["Candidate", "candidates", "order_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement that one method gave, and what it is worth."""

    method: str
    placement: Placement
    where: Ints  # [n]
    value_s: float
    fits: bool


def candidates(
    problem: Problem,
    instance: Instance,
    methods: Iterable[Partitioner],
    value_s: Callable[[Placement], float],
    deadline: float,
    left_out: dict[str, str] | None = None,
    patience: float = 0.5,
) -> Iterator[Candidate]:
    """One candidate after another; a method that refuses the problem, or breaks, gives none.

    Args:
        methods: each is given what is left of the time, those that search less.
        value_s: seconds of a placement, less is better.
        deadline: on ``time.perf_counter``; methods that come later are left out.
        patience: the part of what is left that each is given.
        left_out: gets each method that the problem is too large for, or that broke, and why.
    """
    left_out = {} if left_out is None else left_out
    for method in methods:
        left_s = deadline - time.perf_counter()
        if left_s <= 0:
            log.debug("portfolio: no time left for %s", method.name)
            return
        own = replace(problem, time_limit_s=max(0.05, patience * left_s))
        try:
            placement = method.partition(own)
            where = instance.encode(placement.device_of)
            fits = instance.stages_fit(placement.stages) if placement.replicas else instance.fits(where)
            candidate = Candidate(method.name, placement, where, value_s(placement), fits)
        except (ModelSizeError, TimeLimitError) as refusal:
            log.info("portfolio: %s", refusal)
            left_out[method.name] = str(refusal)
        except NetSplitError as refusal:
            log.debug("portfolio: %s refuses: %s", method.name, refusal)
        except MemoryError as error:
            log.warning("portfolio: %s ran out of memory and is left out", method.name)
            left_out[method.name] = f"out of memory: {error}"
        except Exception as error:  # an answer without one method is better than none
            log.exception("portfolio: %s failed and is left out", method.name)
            left_out[method.name] = f"{type(error).__name__}: {error}"
        else:
            yield candidate


def order_of(instance: Instance, placement: Placement) -> Ints:
    """[n] nodes by priority."""
    return np.argsort([placement.priority[name] for name in instance.names], kind="stable").astype(np.int64)
