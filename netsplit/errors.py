"""Errors a user can cause; each message is one sentence: what is wrong, where, what to do."""

__all__ = [
    "CaptureError",
    "ConfigError",
    "DeadlockError",
    "InfeasibleError",
    "NetSplitError",
    "WorkerError",
]


class NetSplitError(ValueError):
    """Base of all errors that are the user's to mend; printed without a traceback."""


class ConfigError(NetSplitError):
    """A configuration key or value that cannot be used."""


class CaptureError(NetSplitError):
    """A model that cannot be captured as a graph."""


class InfeasibleError(NetSplitError):
    """No placement satisfies the memory limits."""


class DeadlockError(NetSplitError):
    """A program whose instructions wait for one another in a circle."""


class WorkerError(NetSplitError):
    """A worker process that died, raised, or hung."""
