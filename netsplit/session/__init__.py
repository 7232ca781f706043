"""Sessions, comparisons, forecasts: from a model and devices to plans that are made, measured, recorded."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.session.request import NAMED, Request
    from netsplit.session.session import Session

__all__ = ["NAMED", "Request", "Session"]

__getattr__, __dir__ = lazy_names(__name__)
