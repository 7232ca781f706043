"""The discrete-event interpreter, the timeline, and its trace."""

from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["Event", "Timeline", "simulate"]
