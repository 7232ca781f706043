"""Readers of profiled graph files, one per format; `netsplit.workload.read_workload` chooses by content."""

from netsplit.formats.msr import read_msr
from netsplit.formats.own import dumps_workload, read_own
from netsplit.formats.pipedream import read_pipedream

__all__ = ["dumps_workload", "read_msr", "read_own", "read_pipedream"]
