"""Readers of profiled graph files, one per format; `read_workload` chooses by content."""

from netsplit.formats.own import save_workload
from netsplit.formats.pipedream import read_pipedream
from netsplit.formats.read import read_workload

__all__ = ["read_pipedream", "read_workload", "save_workload"]
