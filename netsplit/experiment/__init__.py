"""Sessions, comparisons, forecasts: from a model and devices to plans that are made, measured, recorded."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.experiment.request import NAMED, Request
    from netsplit.experiment.session import Session

__all__ = ["NAMED", "Request", "Session"]

__getattr__, __dir__ = lazy_names(__name__)
