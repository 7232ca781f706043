"""Readers of profiled graph files, one per format; `read.read_workload` chooses by content."""
