"""Predicting a program: its timeline, by discrete events, and its bytes on every device."""

from netsplit.simulate.lifetimes.storages import MemoryProfile
from netsplit.simulate.simulate import memory_profile, predicted_peak_bytes, simulate
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["Event", "MemoryProfile", "Timeline", "memory_profile", "predicted_peak_bytes", "simulate"]
